//! One stream: the states of its two directions, and what waits in each.
//!
//! ```text
//!  receiving  Head ─► Body ─► Ended ─► Done            (a request's head is there when the stream is)
//!           (client)                (client: read to the end)
//!  sending    Head ─► Body/Discard ─► Complete
//!           (server)                  outbox.end: Open ─► Pending ─► Sent
//!
//!  either of them ──reset, broken rule──► Failed
//! ```
//!
//! RFC 9113 5.1 in these words: *open* is neither `Ended` nor `Sent`; *half-closed (remote)* is `Ended`;
//! *half-closed (local)* is `Sent`; a stream that is both, or failed, is *closed*, and lives on only as long
//! as the program has to do with it.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::body::Method;
use crate::head::OwnedFields;
use crate::timer::ProgressTimer;
use crate::{StreamError, StreamStats};

use super::window::{RecvWindow, SendWindow};

/// A buffer that grew beyond this is not kept for the next stream.
const MAX_IDLE_BYTES: usize = 64 * 1024;
/// The same where the connection rests.
const MAX_RESTING_BYTES: usize = 4 * 1024;

/// The message being received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RecvState {
    /// Client: the final response head is due.
    #[default]
    Head,
    /// DATA, or trailers.
    Body,
    /// `END_STREAM` was seen; bytes may still wait for the program.
    Ended,
    /// Client: the program has seen the end.
    Done,
    Failed,
}

/// The message being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SendState {
    /// Server: the final response head is due.
    #[default]
    Head,
    /// So many bytes are still announced; `None`: until it is finished.
    Body(Option<u64>),
    /// A body that must not be sent (HEAD, 204, 304), or that nobody wants any more.
    Discard,
    /// The program has said everything.
    Complete,
    Failed,
}

/// `END_STREAM` of what we send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum EndStream {
    #[default]
    Open,
    /// It leaves with the last byte that waits, or with the trailers.
    Pending,
    Sent,
}

/// CONNECT (RFC 9113 8.5, RFC 8441).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tunnel {
    #[default]
    None,
    /// RequestInfo for. What comes belongs to the tunnel and is not shown before it is open.
    Requested,
    Open,
}

/// Things to tell the program about a stream, and what it waits for: a small set.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct PendingEvents(u8);

impl PendingEvents {
    pub const READABLE: u8 = 1;
    pub const WRITABLE: u8 = 2;
    pub const SWITCHED: u8 = 4;
    pub const HALF_CLOSED: u8 = 8;
    pub const FAILED: u8 = 16;
    pub const EVENTS: u8 =
        Self::READABLE | Self::WRITABLE | Self::SWITCHED | Self::HALF_CLOSED | Self::FAILED;
    /// The program saw `Pending` and awaits `Readable`.
    pub const READER_WAITS: u8 = 32;
    /// The program saw no room and awaits `Writable`.
    pub const WRITER_WAITS: u8 = 64;

    pub fn has(self, event: u8) -> bool {
        self.0 & event != 0
    }

    pub fn set(&mut self, event: u8) {
        self.0 |= event;
    }

    pub fn take(&mut self, event: u8) -> bool {
        let had = self.has(event);
        self.0 &= !event;
        had
    }
}

/// The client's wish in which order answers come (RFC 9218).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Priority {
    /// 0 (first) to 7.
    pub urgency: u8,
    /// Takes turns with others of its urgency. Also where nothing was said, against RFC 9218 4.2: one
    /// long download must not stop everything else of a client that knows nothing of priorities.
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
    /// Of a `priority` field or frame: a dictionary (RFC 8941 3.2) of which only `u` and `i` matter.
    /// What is malformed is as if it were not there.
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

/// Bytes received that the program has not read in the turn they came in.
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

    /// Up to `max` bytes, taken. They stay where they are until more is pushed.
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

/// Bytes to send that wait for a window, for room or for their turn.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Small pieces that were copied, behind the others.
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

    /// The next piece, of up to `max` bytes.
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

/// A stream that the program, the peer or both still have to do with. Its buffers stay when it ends and
/// serve the next one in its place.
#[expect(
    clippy::struct_excessive_bools,
    reason = "its places in lists, and what its client waits for"
)]
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// 0: a free place.
    pub id: u32,
    pub recv_state: RecvState,
    pub send_state: SendState,
    pub tunnel: Tunnel,
    pub method: Method,
    pub pending: PendingEvents,
    /// It stands in the list of streams with notices.
    pub has_events: bool,
    /// It stands in the list of streams that are over.
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
    /// It stands in the list of streams that can send.
    pub is_queued: bool,
    /// The next one in that list.
    pub next_queued: Option<u32>,
    /// Received when the body has ended.
    pub trailers: Option<Box<OwnedFields>>,
    /// To send behind the body.
    pub pending_trailers: Option<Box<OwnedFields>>,
    pub failure: Option<StreamError>,
}

impl Stream {
    /// Makes a free place a stream again. What [`end`](Self::end) has cleared is left as it is.
    pub fn begin(&mut self, id: u32, recv_window: RecvWindow, send_window: SendWindow) {
        // Each by its name, since a whole new stream would have to be made and taken apart again for the few that
        // own memory.
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

    /// Makes it a free place.
    pub fn end(&mut self) {
        self.id = 0;
        self.inbox.clear();
        self.outbox.clear();
        self.outbox.end = EndStream::Open;
        self.trailers = None;
        self.pending_trailers = None;
        self.failure = None;
    }

    /// Gives back what is much, of a free place.
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

    /// There is something to send that only windows, room or its turn hold back.
    pub fn wants_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.outbox.end == EndStream::Pending
    }

    /// ... and its own window does not.
    pub fn can_send(&self) -> bool {
        self.wants_to_send() && (self.outbox.is_empty() || self.send_window.bytes() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read_simply() {
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
    fn pieces_leave_in_order_at_every_size() {
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
    fn an_inbox_gives_what_was_pushed() {
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
