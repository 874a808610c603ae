//! The HTTP/3 part of a request stream, in addition to `multiplexed::stream`: the states of QUIC's two directions, and
//! bytes that are not parsed.
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

use crate::multiplexed::stream::{self, Idle, Number, Part, SharedLimits, SharedRules, Variant};
use crate::multiplexed::streams::{MAX_IDLE_SLOTS, StreamKey};
use crate::{Limits, Protocol, StreamId};

pub(super) use crate::multiplexed::states::{EndStream, RecvState, SendState, Tunnel};

use super::frame::{FrameHeader, MAX_HEADER_BYTES};
use super::rules;

/// Larger buffers for the encoding of heads are not kept.
const MAX_IDLE_SCRATCH_BYTES: usize = 4 * 1024;

/// The number of a request stream (RFC 9000 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId(pub(super) u64);

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

    #[inline]
    fn stream_id(self) -> StreamId {
        StreamId(self.0)
    }

    #[inline]
    fn of(id: StreamId) -> Option<Self> {
        Some(Self(id.0))
    }
}

/// The types, rules and limits of HTTP/3.
#[derive(Debug, Default)]
pub(crate) struct Http3;

impl Variant for Http3 {
    type Id = RequestId;
    type Part = StreamPart;
    type Idle = Lists;

    const PROTOCOL: Protocol = Protocol::Http3;
    const RULES: SharedRules = SharedRules {
        resets: rules::RESETS,
        control: rules::CONTROL,
        messages: rules::MESSAGES,
        silent: rules::SILENT,
        slow_body: rules::SLOW_BODY,
        slow_reader: rules::SLOW_READER,
    };

    #[inline]
    fn limits(limits: &Limits) -> SharedLimits {
        SharedLimits {
            resets: limits.http3.resets,
            control_frames: limits.http3.control_frames,
            max_unsent_bytes: limits.http3.max_unsent_bytes,
            go_away_delay: limits.http3.go_away_delay,
        }
    }
}

/// Streams that are read, and buffers for the encoding of a field section.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Streams with bytes to parse.
    pub(super) ready: VecDeque<StreamKey>,
    /// Streams that QUIC has bytes of, and that have room for them.
    pub(super) readable: VecDeque<u64>,
    /// The lines of the field section being encoded.
    pub(super) lines: Vec<u8>,
    /// The field section that was encoded last.
    pub(super) section: Vec<u8>,
}

impl Idle for Lists {
    #[inline]
    fn is_empty(&self) -> bool {
        // The peer's unidirectional streams may be readable.
        self.readable.is_empty()
    }

    fn shrink(&mut self) {
        self.ready.shrink_to(MAX_IDLE_SLOTS);
        self.readable.shrink_to(MAX_IDLE_SLOTS);
        if self.lines.capacity().max(self.section.capacity()) > MAX_IDLE_SCRATCH_BYTES {
            (self.lines, self.section) = (Vec::new(), Vec::new());
        }
    }
}

/// The receiving part of the QUIC stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RecvSide {
    #[default]
    Open,
    /// The end was received.
    Ended,
    /// Reset by the peer, or reading was abandoned.
    Stopped,
}

/// The sending part of the QUIC stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SendSide {
    #[default]
    Open,
    /// The end was sent.
    Ended,
    Reset,
}

/// Position in the frames of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FrameState {
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
pub(crate) struct Input {
    front: Bytes,
    more: VecDeque<Bytes>,
    len: usize,
    pub(super) state: FrameState,
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

pub(super) type Stream = stream::Stream<Http3>;

/// State that only a stream of HTTP/3 has.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "its places in lists, and independent facts"
)]
pub(crate) struct StreamPart {
    pub(super) recv_side: RecvSide,
    pub(super) send_side: SendSide,
    /// The program knows it. On a server: its request was delivered.
    pub(super) is_announced: bool,
    /// The stream is in the list of those with bytes to parse.
    pub(super) is_ready: bool,
    /// QUIC has bytes of it, or its end.
    pub(super) is_readable: bool,
    /// The stream is in the list of those that are read from QUIC.
    pub(super) is_listed: bool,
    /// QUIC has no room for its bytes.
    pub(super) is_send_blocked: bool,
    /// Server: its request came in early data, and waited for the handshake.
    pub(super) was_held: bool,
    /// Client: its request is not sent in early data.
    pub(super) waits_for_handshake: bool,
    /// Client: bytes of it were sent in early data.
    pub(super) is_early: bool,
    pub(super) input: Input,
    /// Server: when the stream was opened, until its request is complete.
    pub(super) head_since: Option<Instant>,
}

impl StreamPart {
    /// Begins a stream, whose input is empty.
    pub(super) fn begin(&mut self) {
        let input = std::mem::take(&mut self.input);
        *self = Self {
            input,
            ..Self::default()
        };
    }
}

impl Part for StreamPart {
    #[inline]
    fn may_send(&self) -> bool {
        self.send_side == SendSide::Open && !self.waits_for_handshake
    }

    #[inline]
    fn is_known(&self) -> bool {
        self.is_announced
    }

    #[inline]
    fn deadline(&self, limits: &Limits) -> Option<Instant> {
        Some(self.head_since? + limits.header_timeout?)
    }

    fn end(&mut self) {
        self.input.clear();
    }

    fn shrink(&mut self) {
        self.input.more.shrink_to_fit();
    }
}

impl Stream {
    /// Received bytes that were not read by the program, framing included.
    pub(super) fn held(&self) -> usize {
        self.own.input.held() + self.inbox.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h3::frame::FrameType;

    /// Bytes in pieces of that size.
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
