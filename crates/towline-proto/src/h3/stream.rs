//! One request stream: the message states of its two directions, those of QUIC, and their buffers.
//!
//! ```text
//!  message     Head ─► Body ─► Ended ─► Done                  see multiplexed::states
//!  RecvSide    Open ──FIN──► Ended                            SendSide   Open ──FIN──► Ended
//!                └──reset, STOP_SENDING──► Stopped                         └──reset──► Reset
//! ```
//!
//! The stream exists as long as the program uses it, or QUIC has not taken all its bytes.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Buf, Bytes};

use crate::StreamStats;
use crate::multiplexed::buffers::{Inbox, Outbox};
use crate::multiplexed::exchange::Exchange;
use crate::multiplexed::priority::Priority;
use crate::multiplexed::send_queue::{QueueLink, Queued};
pub(super) use crate::multiplexed::states::{EndStream, RecvState, SendState, Tunnel};
use crate::multiplexed::streams::{Number, Slot};
use crate::progress_timer::ProgressTimer;

use super::frame::{FrameHeader, MAX_HEADER_BYTES};

/// The number of a request stream (RFC 9000 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestId(pub u64);

impl Default for RequestId {
    fn default() -> Self {
        Self::NONE
    }
}

impl Number for RequestId {
    const NONE: Self = Self(u64::MAX);

    #[inline]
    fn place(self) -> usize {
        (self.0 >> 2) as usize
    }
}

/// The receiving part of the QUIC stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RecvSide {
    #[default]
    Open,
    /// The end was received.
    Ended,
    /// Reset by the peer, or reading was abandoned.
    Stopped,
}

/// The sending part of the QUIC stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SendSide {
    #[default]
    Open,
    /// The end was sent.
    Ended,
    Reset,
}

/// Position in the frames of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FrameState {
    #[default]
    Header,
    /// Inside a HEADERS frame of this length.
    Headers(usize),
    /// A whole field section that needs entries which have not arrived.
    Blocked,
    /// A whole field section of a request that waits for the handshake.
    Held,
    /// Inside a DATA frame: bytes left.
    Data(u64),
    /// Inside a frame that is ignored: bytes left.
    Skip(u64),
}

/// Bytes received and not parsed.
#[derive(Debug, Default)]
pub(super) struct Input {
    front: Bytes,
    more: VecDeque<Bytes>,
    len: usize,
    pub state: FrameState,
    /// The beginning of a field section that came in several pieces, or all of one that is blocked or held.
    section: Vec<u8>,
}

impl Input {
    pub fn push(&mut self, data: Bytes) {
        self.len += data.len();
        if self.front.is_empty() {
            self.front = data;
        } else {
            self.more.push_back(data);
        }
    }

    /// Unparsed bytes, including those of an incomplete field section.
    pub fn held(&self) -> usize {
        self.len + self.section.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The next header and its own length, if it is complete.
    pub fn frame_header(&self) -> Option<(FrameHeader, usize)> {
        if self.more.is_empty() || self.front.len() >= MAX_HEADER_BYTES {
            return FrameHeader::parse(&self.front);
        }
        let mut bytes = [0; MAX_HEADER_BYTES];
        let mut len = 0;
        for piece in std::iter::once(&self.front).chain(&self.more) {
            let n = piece.len().min(MAX_HEADER_BYTES - len);
            bytes[len..len + n].copy_from_slice(&piece[..n]);
            len += n;
        }
        FrameHeader::parse(&bytes[..len])
    }

    /// Takes up to `max` bytes in one piece.
    pub fn take(&mut self, max: usize) -> Bytes {
        let piece = if self.front.len() <= max {
            let next = self.more.pop_front().unwrap_or_default();
            std::mem::replace(&mut self.front, next)
        } else {
            self.front.split_to(max)
        };
        self.len -= piece.len();
        piece
    }

    /// Skips up to `max` bytes; returns how many.
    pub fn skip(&mut self, max: u64) -> usize {
        let mut left = usize::try_from(max).unwrap_or(usize::MAX).min(self.len);
        let skipped = left;
        while left > 0 {
            let n = left.min(self.front.len());
            self.front.advance(n);
            left -= n;
            self.len -= n;
            if self.front.is_empty() {
                self.front = self.more.pop_front().unwrap_or_default();
            }
        }
        skipped
    }

    /// Takes a field section of `len` bytes; `None`: it is not complete.
    pub fn section(&mut self, len: usize) -> Option<Bytes> {
        if self.section.is_empty() && self.front.len() >= len {
            return Some(self.take(len));
        }
        while self.section.len() < len && self.len > 0 {
            let piece = self.take(len - self.section.len());
            self.section.extend_from_slice(&piece);
        }
        (self.section.len() == len).then(|| std::mem::take(&mut self.section).into())
    }

    /// Keeps a section until it can be decoded.
    pub fn block(&mut self, section: &Bytes) {
        self.section = section.to_vec();
        self.state = FrameState::Blocked;
    }

    /// Keeps the section of a request that waits for the handshake.
    pub fn hold(&mut self, section: &Bytes) {
        self.block(section);
        self.state = FrameState::Held;
    }

    /// The section that is blocked.
    pub fn blocked_section(&self) -> &[u8] {
        &self.section
    }

    /// Takes the section that was blocked or held.
    pub fn unblock(&mut self) -> Bytes {
        self.state = FrameState::Header;
        std::mem::take(&mut self.section).into()
    }

    pub fn clear(&mut self) {
        self.front = Bytes::new();
        self.more.clear();
        self.len = 0;
        self.section = Vec::new();
        self.state = FrameState::Header;
    }
}

/// A stream in use by the program, the peer or QUIC. Its buffers are kept when it ends and reused by the next one in
/// its slot.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "its places in lists, and independent facts"
)]
pub(super) struct Stream {
    /// [`RequestId::NONE`]: a free slot.
    pub id: RequestId,
    pub exchange: Exchange,
    pub recv_side: RecvSide,
    pub send_side: SendSide,
    /// The program knows it. On a server: its request was delivered.
    pub is_announced: bool,
    /// It is in the list of streams with pending events.
    pub has_events: bool,
    /// It is in the list of streams with bytes to parse.
    pub is_ready: bool,
    /// QUIC has bytes of it, or its end.
    pub is_readable: bool,
    /// It is in the list of streams that are read from QUIC.
    pub is_listed: bool,
    /// QUIC has no room for its bytes.
    pub is_send_blocked: bool,
    /// It is in the list of closed streams.
    pub is_closed: bool,
    /// Server: its request came in early data, and waited for the handshake.
    pub was_held: bool,
    /// Client: its request is not sent in early data.
    pub waits_for_handshake: bool,
    /// Client: bytes of it were sent in early data.
    pub is_early: bool,
    pub stats: StreamStats,
    pub input: Input,
    pub inbox: Inbox,
    pub outbox: Outbox,
    /// Server: when the stream was opened, until its request is complete.
    pub head_since: Option<Instant>,
    /// Server: the response is sent, and the rest of the request is skipped until then, as over HTTP/2.
    pub discard_until: Option<Instant>,
    pub recv_timer: ProgressTimer,
    pub send_timer: ProgressTimer,
    pub priority: Priority,
    pub link: QueueLink,
}

impl Stream {
    /// Initializes the stream in a free slot, whose buffers are empty.
    pub fn begin(&mut self, id: RequestId) {
        let buffers = (
            std::mem::take(&mut self.input),
            std::mem::take(&mut self.inbox),
            std::mem::take(&mut self.outbox),
        );
        *self = Self {
            id,
            input: buffers.0,
            inbox: buffers.1,
            outbox: buffers.2,
            ..Self::default()
        };
    }

    pub fn has_failed(&self) -> bool {
        self.exchange.has_failed()
    }

    /// There is something to send that only QUIC or its turn holds back.
    pub fn wants_to_send(&self) -> bool {
        self.send_side == SendSide::Open
            && !self.waits_for_handshake
            && (!self.outbox.is_empty() || self.outbox.end == EndStream::Pending)
    }

    /// Received bytes that were not read by the program, framing included.
    pub fn held(&self) -> usize {
        self.input.held() + self.inbox.len()
    }
}

impl Slot for Stream {
    type Id = RequestId;

    fn id(&self) -> RequestId {
        self.id
    }

    fn end(&mut self) {
        self.id = RequestId::NONE;
        self.input.clear();
        self.inbox.clear();
        self.outbox.clear();
        self.outbox.end = EndStream::Open;
        self.exchange.end();
    }

    fn shrink(&mut self) {
        self.inbox.shrink();
        self.outbox.shrink();
        self.input.more.shrink_to_fit();
    }
}

impl Queued for Stream {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn link(&mut self) -> &mut QueueLink {
        &mut self.link
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h3::frame::FrameType;

    /// The same bytes in pieces of each size.
    fn pieces(bytes: &[u8], size: usize) -> Input {
        let mut input = Input::default();
        for piece in bytes.chunks(size) {
            input.push(Bytes::copy_from_slice(piece));
        }
        input
    }

    #[test]
    fn frames_are_found_at_every_cut() {
        let bytes = b"\x01\x40\x05abcdefghijkl";
        for size in 1..=bytes.len() {
            let mut input = pieces(bytes, size);
            let (header, len) = input.frame_header().expect("complete");
            assert_eq!((header.frame_type, header.len), (FrameType::Headers, 5));
            assert_eq!(input.skip(len as u64), 3);
            assert_eq!(input.section(5).expect("complete"), &b"abcde"[..]);
            assert_eq!(input.skip(2), 2);
            let mut rest = Vec::new();
            while !input.is_empty() {
                let piece = input.take(2);
                assert!((1..=2).contains(&piece.len()));
                rest.extend_from_slice(&piece);
            }
            assert_eq!(rest, b"hijkl");
            assert_eq!(input.held(), 0);
        }
    }

    #[test]
    fn an_incomplete_section_is_held() {
        let mut input = pieces(b"abc", 2);
        assert_eq!(input.section(5), None);
        assert_eq!((input.held(), input.is_empty()), (3, true));
        input.push(Bytes::from_static(b"defg"));
        assert_eq!(input.section(5).expect("complete"), &b"abcde"[..]);
        assert_eq!(input.held(), 2);
    }
}
