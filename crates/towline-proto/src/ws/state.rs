//! Parts of the state of a WebSocket.

use std::time::Instant;

use super::close::CloseFrame;
use super::deflate::{Compressor, Inflation};
use super::frame::{MAX_HEAD_BYTES, Start};
use super::mask::Mask;
use super::message::Kind;
use super::rules::{self, Violation};
use super::utf8::Validator;

/// The event that waits for `next_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingEvent {
    None,
    Message,
    Ping,
    Pong,
    Close,
    Failed(Violation),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Closing { until: Instant },
    AwaitingEof { until: Instant },
    Finished,
}

/// Control frames that wait for `transmit`. One of each: only the latest ping needs a pong (RFC 6455 5.5.3).
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub ping: Option<Vec<u8>>,
    pub pong: Option<Vec<u8>>,
    pub close: Option<CloseFrame>,
}

/// Position in the stream of frames.
#[derive(Debug)]
pub(super) enum RecvState {
    /// In a head, with the bytes received of it.
    Head {
        bytes: [u8; MAX_HEAD_BYTES],
        len: u8,
    },
    /// In a payload.
    Payload { start: Start, left: u64, mask: Mask },
    /// Nothing more is read.
    Ended,
}

impl Default for RecvState {
    fn default() -> Self {
        Self::Head {
            bytes: [0; MAX_HEAD_BYTES],
            len: 0,
        }
    }
}

impl RecvState {
    pub fn is_between_frames(&self) -> bool {
        matches!(self, Self::Head { len: 0, .. } | Self::Ended)
    }

    /// The next part is short: a head, or a control frame.
    pub fn is_short(&self) -> bool {
        match self {
            Self::Head { .. } | Self::Ended => true,
            Self::Payload { start, .. } => start.opcode.is_control(),
        }
    }
}

/// The message in progress, or the last one.
#[derive(Debug)]
pub(super) struct Message {
    pub kind: Kind,
    pub data: Vec<u8>,
    pub complete: bool,
    /// Total charge of its fragments.
    pub charged: u64,
    pub text: Validator,
    pub inflation: Option<Inflation>,
}

impl Message {
    /// Checks the bytes from offset `from` on.
    pub fn check_text(&mut self, from: usize) -> Result<(), Violation> {
        match self.kind {
            Kind::Text => self.text.check(&self.data[from..]).map_err(|_| rules::TEXT),
            Kind::Binary => Ok(()),
        }
    }
}

/// Whether a message is being sent in fragments.
#[derive(Debug)]
pub(super) enum SendState {
    Idle,
    Fragments {
        kind: Kind,
        compressor: Option<Compressor>,
    },
}
