//! One stream: the states of its two directions, and their buffers.
//!
//! ```text
//!  receive    Head ─► Body ─► Ended ─► Done            (a request's head is there when the stream is)
//!           (client)                (client: read to the end)
//!  send       Head ─► Body/Discard ─► Complete
//!           (server)                  outbox.end: Open ─► Pending ─► Sent
//!
//!  either of them ──reset, broken rule──► Failed
//! ```
//!
//! The states of RFC 9113 5.1: *open* is neither `Ended` nor `Sent`; *half-closed (remote)* is `Ended`;
//! *half-closed (local)* is `Sent`; a stream that is both, or failed, is *closed*, and exists only as long as the
//! program uses it.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::body::Method;
use crate::head::OwnedFields;
use crate::progress_timer::ProgressTimer;
use crate::{StreamError, StreamStats};

use super::pending_events::PendingEvents;
use super::window::{RecvWindow, SendWindow};

/// A buffer that grew beyond this is not kept for the next stream.
const MAX_IDLE_BYTES: usize = 64 * 1024;
/// The same for an idle connection.
const MAX_RESTING_BYTES: usize = 4 * 1024;

/// The message being received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RecvState {
    /// Client: the final response head is due.
    #[default]
    Head,
    /// DATA, or trailers.
    Body,
    /// `END_STREAM` was received; there may be unread bytes.
    Ended,
    /// Client: the program has read the end.
    Done,
    Failed,
}

/// The message being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SendState {
    /// Server: the final response head is due.
    #[default]
    Head,
    /// Number of announced bytes still to be sent; `None`: until `finish`.
    Body(Option<u64>),
    /// A body that must not be sent (HEAD, 204, 304), or that the peer no longer needs.
    Discard,
    /// The program has finished the message.
    Complete,
    Failed,
}

/// State of the `END_STREAM` to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum EndStream {
    #[default]
    Open,
    /// To be sent with the last queued byte, or with the trailers.
    Pending,
    Sent,
}

/// CONNECT (RFC 9113 8.5, RFC 8441).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tunnel {
    #[default]
    None,
    /// Requested. Bytes received belong to the tunnel and cannot be read before it is open.
    Requested,
    Open,
}

/// The client's priority for a response (RFC 9218).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Priority {
    /// 0 (first) to 7.
    pub urgency: u8,
    /// Sent interleaved with others of its urgency. Also the default if no priority was given, against RFC
    /// 9218 4.2: one long download must not block everything else of a client that does not use priorities.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self {
            urgency: 3,
            incremental: true,
        }
    }
}

impl Priority {
    /// Parses a `priority` field or frame: a dictionary (RFC 8941 3.2) of which only `u` and `i` matter.
    /// Malformed members are ignored.
    pub fn of(value: &[u8]) -> Self {
        let mut priority = Self {
            incremental: false,
            ..Self::default()
        };
        for member in value.split(|&byte| byte == b',') {
            match member.trim_ascii() {
                [b'u', b'=', urgency @ b'0'..=b'7'] => priority.urgency = urgency - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

/// Received bytes that the program did not read immediately.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Inbox {
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub fn push(&mut self, data: &[u8]) {
        if self.is_empty() {
            self.clear();
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(data);
    }

    /// Takes up to `max` bytes. They stay in place until more is pushed.
    pub fn take(&mut self, max: usize) -> &[u8] {
        let from = self.start;
        self.start = self.bytes.len().min(from.saturating_add(max));
        &self.bytes[from..self.start]
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        if self.bytes.capacity() > MAX_IDLE_BYTES {
            self.bytes = Vec::new();
        }
    }
}

/// Bytes to send that wait for a window, for space in the send buffer or for their turn.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Small pieces that were copied, after the others.
    tail: BytesMut,
    bytes: usize,
    pub end: EndStream,
}

impl Outbox {
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn push(&mut self, data: &[u8]) {
        self.tail.extend_from_slice(data);
        self.bytes += data.len();
    }

    pub fn push_shared(&mut self, data: Bytes) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.bytes += data.len();
        self.pieces.push_back(data);
    }

    /// Takes the next piece, of up to `max` bytes.
    pub fn take(&mut self, max: usize) -> Bytes {
        let piece = match self.pieces.front_mut() {
            Some(front) if front.len() > max => {
                let piece = front.slice(..max);
                front.advance(max);
                piece
            }
            Some(_) => self.pieces.pop_front().unwrap_or_default(),
            None => self.tail.split_to(max.min(self.tail.len())).freeze(),
        };
        self.bytes -= piece.len();
        piece
    }

    pub fn clear(&mut self) {
        self.pieces.clear();
        self.tail.clear();
        self.bytes = 0;
    }
}

/// A stream in use by the program, the peer or both. Its buffers are kept when it ends and reused by the next one
/// in its slot.
#[expect(
    clippy::struct_excessive_bools,
    reason = "its places in lists, and what its client waits for"
)]
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// 0: a free slot.
    pub id: u32,
    pub recv_state: RecvState,
    pub send_state: SendState,
    pub tunnel: Tunnel,
    pub method: Method,
    pub pending: PendingEvents,
    /// It is in the list of streams with pending events.
    pub has_events: bool,
    /// It is in the list of closed streams.
    pub is_closed: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub awaits_continue: bool,
    pub interim_responses: u8,
    /// Announced body bytes that are still to come.
    pub announced: Option<u64>,
    pub received_bytes: u64,
    pub stats: StreamStats,
    pub recv_window: RecvWindow,
    pub send_window: SendWindow,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub recv_timer: ProgressTimer,
    pub send_timer: ProgressTimer,
    pub priority: Priority,
    /// It is in the send queue.
    pub is_queued: bool,
    /// The next stream in that queue.
    pub next_queued: Option<u32>,
    /// Received trailers.
    pub trailers: Option<Box<OwnedFields>>,
    /// Trailers to send after the body.
    pub pending_trailers: Option<Box<OwnedFields>>,
    pub failure: Option<StreamError>,
}

impl Stream {
    /// Initializes the stream in a free slot. Fields cleared by [`end`](Self::end) are left as they are.
    pub fn begin(&mut self, id: u32, recv_window: RecvWindow, send_window: SendWindow) {
        // Field by field, since replacing the whole stream would construct and drop the few fields that own
        // memory.
        let Self {
            id: own_id,
            recv_state,
            send_state,
            tunnel,
            method,
            pending,
            has_events,
            is_closed,
            awaits_continue,
            interim_responses,
            announced,
            received_bytes,
            stats,
            recv_window: own_recv_window,
            send_window: own_send_window,
            inbox: _,
            outbox: _,
            recv_timer,
            send_timer,
            priority,
            is_queued,
            next_queued,
            trailers: _,
            pending_trailers: _,
            failure: _,
        } = self;
        *own_id = id;
        *own_recv_window = recv_window;
        *own_send_window = send_window;
        *recv_state = RecvState::default();
        *send_state = SendState::default();
        *tunnel = Tunnel::default();
        *method = Method::default();
        *pending = PendingEvents::default();
        *has_events = false;
        *is_closed = false;
        *awaits_continue = false;
        *interim_responses = 0;
        *announced = None;
        *received_bytes = 0;
        *stats = StreamStats::default();
        *recv_timer = ProgressTimer::default();
        *send_timer = ProgressTimer::default();
        *priority = Priority::default();
        *is_queued = false;
        *next_queued = None;
    }

    /// Frees the slot.
    pub fn end(&mut self) {
        self.id = 0;
        self.inbox.clear();
        self.outbox.clear();
        self.outbox.end = EndStream::Open;
        self.trailers = None;
        self.pending_trailers = None;
        self.failure = None;
    }

    /// Frees large buffers of a free slot.
    pub fn shrink(&mut self) {
        if self.inbox.bytes.capacity() > MAX_RESTING_BYTES {
            self.inbox = Inbox::default();
        }
        if self.outbox.tail.capacity() > MAX_RESTING_BYTES {
            self.outbox = Outbox::default();
        }
    }

    pub fn has_failed(&self) -> bool {
        self.recv_state == RecvState::Failed
    }

    /// There is something to send that only windows, buffer space or its turn hold back.
    pub fn wants_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.outbox.end == EndStream::Pending
    }

    /// The same, and its own window does not hold it back.
    pub fn can_send(&self) -> bool {
        self.wants_to_send() && (self.outbox.is_empty() || self.send_window.bytes() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_parsed() {
        let of = |value: &str| {
            let Priority {
                urgency,
                incremental,
            } = Priority::of(value.as_bytes());
            (urgency, incremental)
        };
        assert_eq!(of(""), (3, false));
        assert_eq!(of("u=0"), (0, false));
        assert_eq!(of("u=7, i"), (7, true));
        assert_eq!(of("i=?1,u=2"), (2, true));
        assert_eq!(of("i=?0, u=9, x=3;y, u=-1"), (3, false));
    }

    #[test]
    fn pieces_are_taken_in_order_at_every_size() {
        for size in 1..12 {
            let mut outbox = Outbox::default();
            outbox.push(b"ab");
            outbox.push(b"c");
            outbox.push_shared(Bytes::from_static(b"defgh"));
            outbox.push(b"ij");
            let mut seen = Vec::new();
            while !outbox.is_empty() {
                let piece = outbox.take(size);
                assert!(!piece.is_empty() && piece.len() <= size);
                seen.extend_from_slice(&piece);
                assert_eq!(seen.len() + outbox.len(), 10);
            }
            assert_eq!(seen, b"abcdefghij");
        }
    }

    #[test]
    fn an_inbox_returns_the_pushed_bytes() {
        let mut inbox = Inbox::default();
        let mut seen = Vec::new();
        for round in 0..50_u8 {
            inbox.push(&[round; 7]);
            seen.extend_from_slice(inbox.take(5));
        }
        while !inbox.is_empty() {
            seen.extend_from_slice(inbox.take(100));
        }
        let expected: Vec<u8> = (0..50).flat_map(|round| [round; 7]).collect();
        assert_eq!(seen, expected);
    }
}
