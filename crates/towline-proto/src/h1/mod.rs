//! HTTP/1.0 and 1.1, both sides: one exchange at a time over one connection (RFC 9112).
//!
//! Two halves run beside each other, one per direction, and an exchange is over when both are
//! `Complete`. The server's incoming half is the request, the client's the response:
//!
//! ```text
//!  incoming  Idle ─► Head ─► Length/Chunked/UntilClose ─► Complete ─┐
//!             ▲ (client)└──────► Raw (switched) ─► Complete         ├─► both complete: the next
//!  outgoing  Idle ─► Head ─► Length/Chunked/UntilClose ─► Complete ─┘   exchange, or the close
//!                (server)└─► Swallow, Raw
//!
//!  phase     Open ──error, last answer──► Closing (flush, FIN, linger) ──► Closed
//! ```
//!
//! This file holds the state and what comes from the network and the clock; `recv` reads messages,
//! `send` writes them, `close` ends exchanges and the connection.

mod chunked;
mod close;
pub mod encode;
mod head_info;
mod parse;
mod prepared;
pub mod protocol_switch;
mod recv;
mod rules;
mod send;
mod start_line;
pub mod target;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::body::Method;
use crate::buffer::{RecvBuffer, Room, SendBuffer};
use crate::timer::{HeadClock, Progress};
use crate::{
    BufferPool, ConnectionError, Interest, Limits, Side, StreamError, StreamId, UserError, Version,
};

pub use encode::standard_reason;

use chunked::Decoder;
use parse::HeadParser;
pub use parse::HeadScratch;
pub(crate) use prepared::Parts;
pub use prepared::PreparedRequest;
use recv::Trailers;

/// What an idle client connection keeps to write its next head and a small body into.
const CLIENT_SEND_BYTES: usize = 8 * 1024;

/// The message being received.
#[derive(Debug)]
enum Incoming {
    /// Client: no response is due.
    Idle,
    /// A head is next.
    Head,
    /// So many body bytes are still to come, never 0.
    Length(u64),
    Chunked(Decoder),
    UntilClose,
    Raw,
    Complete,
    Failed,
}

/// The message being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    /// No exchange is open.
    Idle,
    /// Server: the final response head is due.
    Head,
    /// So many body bytes are still announced.
    Length(u64),
    Chunked,
    UntilClose,
    /// A body that must not be sent (HEAD, 204, 304).
    Swallow,
    Raw,
    Complete,
    Failed,
}

/// The connection as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is parsed. What is queued leaves, then FIN; input is swallowed until the peer's
    /// FIN or `linger_timeout` after `since` (RFC 9112 9.6).
    Closing {
        since: Instant,
        lingered: u64,
    },
    Closed {
        abort: bool,
    },
}

/// What the exchange in hand is about.
#[derive(Debug)]
struct Exchange {
    id: u64,
    method: Method,
    version: Version,
    /// The connection may go on after this exchange.
    keep_alive: bool,
    /// The request asked for an upgrade.
    may_upgrade: bool,
    /// The client waits for `100 Continue` before it sends its body.
    awaits_continue: bool,
    interim_responses: u8,
    body_bytes: u64,
    drained_bytes: u64,
}

/// Things to tell the program, and whom to wake: a small set.
#[derive(Debug, Default, Clone, Copy)]
struct Notices(u8);

impl Notices {
    const SWITCHED: u8 = 1;
    const HALF_CLOSED: u8 = 2;
    const WRITABLE: u8 = 4;
    const FAILED: u8 = 8;
    const CLOSED: u8 = 16;
    /// The program saw `Pending` and awaits `Readable`.
    const READER_WAITS: u8 = 32;
    /// The program saw no room and awaits `Writable`.
    const WRITER_WAITS: u8 = 64;
    const WAITS: u8 = Self::READER_WAITS | Self::WRITER_WAITS;

    fn has(self, notice: u8) -> bool {
        self.0 & notice != 0
    }

    fn set(&mut self, notice: u8) {
        self.0 |= notice;
    }

    fn take(&mut self, notice: u8) -> bool {
        let had = self.has(notice);
        self.0 &= !notice;
        had
    }
}

/// One end of an HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Connection {
    limits: Arc<Limits>,
    side: Side,
    phase: Phase,
    incoming: Incoming,
    outgoing: Outgoing,
    exchange: Exchange,
    recv: RecvBuffer,
    send: SendBuffer,
    parser: HeadParser,
    empty_lines: u8,
    /// Unread bytes when the body was last found to need more: part of a trailer line.
    looked_at: usize,
    notices: Notices,
    /// The peer's FIN was seen.
    eof: bool,
    /// What broke the transport while bytes of the response were still to be read (client).
    broken: Option<&'static str>,
    /// `close()` was called.
    closing: bool,
    /// A byte arrived since the last request was sent (client).
    response_started: bool,
    /// The latest instant that we were told: commands of the program carry none.
    now: Instant,
    head_clock: HeadClock,
    recv_clock: Progress,
    send_clock: Progress,
    error: Option<Arc<ConnectionError>>,
    trailers: Option<Box<Trailers>>,
    /// Client: exchanges whose requests were sent behind the one in hand. None: never pipelined.
    #[expect(
        clippy::box_collection,
        reason = "servers and most clients have none: 8 bytes, not 32"
    )]
    ahead: Option<Box<VecDeque<send::Ahead>>>,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let (incoming, head_clock) = match side {
            Side::Server => (Incoming::Head, HeadClock::Head(now)),
            Side::Client => (Incoming::Idle, HeadClock::Idle(now)),
        };
        let exchange = Exchange {
            id: 0,
            method: Method::Other,
            version: Version::Http11,
            keep_alive: true,
            may_upgrade: false,
            awaits_continue: false,
            interim_responses: 0,
            body_bytes: 0,
            drained_bytes: 0,
        };
        Self {
            limits,
            side,
            phase: Phase::Open,
            incoming,
            outgoing: Outgoing::Idle,
            exchange,
            recv: RecvBuffer::default(),
            send: SendBuffer::default(),
            parser: HeadParser::default(),
            empty_lines: 0,
            looked_at: 0,
            notices: Notices::default(),
            eof: false,
            broken: None,
            closing: false,
            response_started: false,
            now,
            head_clock,
            recv_clock: Progress::Off,
            send_clock: Progress::Off,
            error: None,
            trailers: None,
            ahead: None,
        }
    }

    pub fn side(&self) -> Side {
        self.side
    }

    // From the network and the clock.

    pub fn recv_space(&mut self, buffers: &mut BufferPool) -> &mut [u8] {
        if self.eof || matches!(self.phase, Phase::Closed { .. }) {
            return &mut [];
        }
        match self.side {
            Side::Server => self.send.prepare(buffers),
            Side::Client => self.begin_ahead(),
        }
        let room = self.room_to_read();
        self.recv.space(buffers, room)
    }

    pub fn received(&mut self, now: Instant, n: usize) {
        self.begin_ahead();
        self.now = now;
        if n == 0 {
            return;
        }
        self.recv.received(n);
        self.response_started = true;
        if self.phase != Phase::Open {
            return self.swallow(n);
        }
        match self.incoming {
            Incoming::Head => {
                if let HeadClock::Idle(_) | HeadClock::Parting(_) = self.head_clock {
                    self.head_clock = HeadClock::Head(now);
                }
            }
            Incoming::Idle => self.violate(rules::UNSOLICITED),
            Incoming::Length(_) | Incoming::Chunked(_) | Incoming::UntilClose => {
                self.received_body(n);
            }
            Incoming::Raw | Incoming::Complete | Incoming::Failed => {}
        }
    }

    fn received_body(&mut self, n: usize) {
        self.recv_clock.advance(self.now, n);
        if self.is_draining() {
            self.drain();
        } else if !self.recv.has_room(self.room_to_read()) {
            self.recv_clock.pause();
        }
    }

    /// Input behind the end of everything: read only so that no reset destroys our last words.
    fn swallow(&mut self, n: usize) {
        self.recv.clear();
        if let Phase::Closing { lingered, .. } = &mut self.phase {
            *lingered += n as u64;
            if *lingered > self.limits.max_linger_bytes {
                self.phase = Phase::Closed { abort: false };
            }
        }
    }

    pub fn received_eof(&mut self, now: Instant) {
        self.begin_ahead();
        self.now = now;
        if self.eof || self.phase != Phase::Open {
            self.eof = true;
            return;
        }
        self.eof = true;
        match (self.side, &self.incoming) {
            (Side::Server, Incoming::Head) if self.recv.is_empty() => self.shut(rules::DONE),
            (Side::Server, _) if self.is_draining() => self.drain(),
            (Side::Server, _) if self.exchange_is_open() => self.notices.set(Notices::HALF_CLOSED),
            (Side::Client, Incoming::Idle) => self.shut(rules::DONE),
            (Side::Client, Incoming::Head) if self.recv.is_empty() => {
                self.violate(rules::NO_RESPONSE);
            }
            _ => {}
        }
    }

    pub fn sent(&mut self, now: Instant, n: usize) {
        self.now = now;
        let answers_waited = self.answers_wait();
        self.send.sent(n);
        if answers_waited && !self.answers_wait() && matches!(self.head_clock, HeadClock::Head(_)) {
            self.head_clock = HeadClock::Head(now);
        }
        let pending = self.send.pending();
        if pending == 0 {
            self.send_clock.stop();
            self.all_sent();
        } else if n > 0 {
            self.send_clock.advance(now, n);
        } else if !self.send_clock.is_running() {
            self.send_clock.start(now);
        }
        let is_low = pending < self.limits.send_window_bytes / 2;
        if is_low && self.phase == Phase::Open && self.notices.has(Notices::WRITER_WAITS) {
            self.notices.take(Notices::WRITER_WAITS);
            self.notices.set(Notices::WRITABLE);
        }
    }

    fn all_sent(&mut self) {
        if let HeadClock::Idle(_) = self.head_clock {
            self.head_clock = HeadClock::Idle(self.now);
        }
        if let Phase::Closing { since, .. } = &mut self.phase {
            *since = self.now;
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.send_clock.is_running() && self.send_clock.expired(now, &self.limits) {
            return self.abandon(rules::SLOW_READER);
        }
        match self.phase {
            Phase::Closed { .. } => {}
            Phase::Closing { since, .. } => {
                if self.send.pending() == 0 && now >= since + self.limits.linger_timeout {
                    self.phase = Phase::Closed { abort: false };
                }
            }
            Phase::Open => self.handle_open_timeout(now),
        }
    }

    fn handle_open_timeout(&mut self, now: Instant) {
        if self.awaits_body() && self.recv_clock.expired(now, &self.limits) {
            return self.violate(rules::SLOW_BODY);
        }
        if !self.awaits_head() || self.head_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.head_clock {
            HeadClock::Idle(_) => self.vanish(rules::IDLE),
            _ if self.recv.is_empty() && self.side == Side::Server => self.vanish(rules::SILENT),
            _ => self.violate(rules::SLOW_HEAD),
        }
    }

    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.recv.release(buffers, self.awaits_head());
        // A client writes before it reads, when no pool is at hand: some room stays with it.
        let kept = if self.side == Side::Client {
            CLIENT_SEND_BYTES
        } else {
            0
        };
        self.send.release(buffers, kept);
    }

    // From the program.

    pub fn close(&mut self) {
        self.closing = true;
        if self.phase == Phase::Open && self.is_draining() {
            // Draining serves the next exchange, and there will be none.
            return self.shut(rules::UNREAD_BODY);
        }
        if self.phase != Phase::Open || self.exchange_is_open() || !self.recv.is_empty() {
            return;
        }
        if let (Side::Server, Some(parting)) = (self.side, self.head_clock.parting()) {
            self.head_clock = parting;
            return;
        }
        match self.incoming {
            Incoming::Head | Incoming::Idle if self.send.pending() == 0 => self.vanish(rules::DONE),
            Incoming::Head | Incoming::Idle => self.shut(rules::DONE),
            _ => {}
        }
    }

    // Towards both.

    pub fn send_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.send.slices(out)
    }

    pub fn pending_bytes(&self) -> usize {
        self.send.pending()
    }

    pub fn interest(&self) -> Interest {
        let flushed = self.send.pending() == 0;
        match self.phase {
            Phase::Closed { abort } => Interest {
                closed: true,
                abort,
                ..Interest::default()
            },
            Phase::Closing { .. } if flushed && self.eof => Interest {
                closed: true,
                ..Interest::default()
            },
            Phase::Closing { .. } => Interest {
                read: !self.eof,
                write: !flushed,
                shutdown: flushed,
                ..Interest::default()
            },
            Phase::Open => Interest {
                read: !self.eof && self.recv.has_room(self.room_to_read()),
                write: !flushed,
                shutdown: flushed && self.is_half_shut(),
                ..Interest::default()
            },
        }
    }

    /// A switched stream whose outgoing direction the program has ended.
    fn is_half_shut(&self) -> bool {
        matches!(self.incoming, Incoming::Raw) && self.outgoing == Outgoing::Complete
    }

    pub fn deadline(&self) -> Option<Instant> {
        // It runs only while the peer has something to take.
        let sending = self.send_clock.deadline(&self.limits);
        let receiving = match self.phase {
            Phase::Closed { .. } => return None,
            Phase::Closing { since, .. } if self.send.pending() == 0 => {
                Some(since + self.limits.linger_timeout)
            }
            Phase::Open if self.awaits_head() => self.head_deadline(),
            Phase::Open if self.awaits_body() => self.recv_clock.deadline(&self.limits),
            Phase::Closing { .. } | Phase::Open => None,
        };
        match (sending, receiving) {
            (Some(sending), Some(receiving)) => Some(sending.min(receiving)),
            (one, other) => one.or(other),
        }
    }

    /// Whether `next_event` may have something without more input.
    pub fn has_events(&self) -> bool {
        if self.notices.0 & !Notices::WAITS != 0 {
            return true;
        }
        let input = !self.recv.is_empty() || self.eof;
        let wanted = match self.incoming {
            Incoming::Head => !self.answers_wait() && (self.eof || !self.has_parsed_all()),
            Incoming::Idle => self.has_ahead(),
            Incoming::Complete | Incoming::Failed => false,
            _ => {
                let is_new = self.eof || self.recv.len() > self.looked_at;
                is_new && (self.notices.has(Notices::READER_WAITS) || self.is_draining())
            }
        };
        self.phase == Phase::Open && input && wanted
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && matches!(self.incoming, Incoming::Head | Incoming::Idle)
            && self.outgoing == Outgoing::Idle
            && self.recv.is_empty()
            && self.send.pending() == 0
            && !self.has_ahead()
    }

    pub fn is_reusable(&self) -> bool {
        self.side == Side::Client && self.is_idle() && !self.closing && !self.eof
    }

    pub fn response_started(&self) -> bool {
        self.response_started
    }

    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.error.as_ref()
    }

    // What the state means.

    fn room_to_read(&self) -> Room {
        let window = self.limits.window_bytes;
        match &self.incoming {
            _ if self.phase != Phase::Open => Room {
                unread: usize::MAX,
                contiguous: false,
            },
            Incoming::Head => Room {
                unread: window.max(self.limits.whole_head_bytes()),
                contiguous: true,
            },
            Incoming::Chunked(decoder) if decoder.in_trailers() => Room {
                unread: window.max(self.limits.max_field_line_bytes as usize + 2),
                contiguous: true,
            },
            _ => Room {
                unread: window,
                contiguous: false,
            },
        }
    }

    /// Pipelined requests are not looked at while the peer does not take the answers to those before:
    /// then the window fills and reading stops too.
    fn answers_wait(&self) -> bool {
        self.side == Side::Server && self.send.pending() >= self.limits.send_window_bytes
    }

    /// When the next head is overdue. While answers wait for the peer's reading, the clock over that
    /// reading is the one that counts: neither idleness nor a slow head can be told from it.
    fn head_deadline(&self) -> Option<Instant> {
        match self.head_clock {
            HeadClock::Idle(_) if self.send.pending() > 0 => None,
            _ if self.answers_wait() => None,
            clock => clock.deadline(&self.limits),
        }
    }

    fn awaits_head(&self) -> bool {
        matches!(self.incoming, Incoming::Head)
    }

    /// It is the peer's turn to send body bytes.
    fn awaits_body(&self) -> bool {
        matches!(
            self.incoming,
            Incoming::Length(_) | Incoming::Chunked(_) | Incoming::UntilClose
        ) && !self.exchange.awaits_continue
            && self.recv.has_room(self.room_to_read())
    }

    /// The response is complete and the rest of the request body is in the way of the next request.
    fn is_draining(&self) -> bool {
        self.side == Side::Server
            && self.outgoing == Outgoing::Complete
            && matches!(self.incoming, Incoming::Length(_) | Incoming::Chunked(_))
    }

    /// The program still has to do with the exchange, so it must hear of a failure.
    fn exchange_is_open(&self) -> bool {
        match self.side {
            Side::Server => !matches!(
                self.outgoing,
                Outgoing::Idle | Outgoing::Complete | Outgoing::Failed
            ),
            Side::Client => !matches!(self.incoming, Incoming::Idle | Incoming::Failed),
        }
    }

    pub(super) fn check_stream(&self, id: StreamId) -> Result<(), UserError> {
        if id.0 == self.exchange.id && id.0 != 0 {
            Ok(())
        } else {
            Err(UserError::UnknownStream)
        }
    }

    pub fn check_open(&self, id: StreamId) -> Result<(), UserError> {
        self.check_stream(id)
    }

    fn stream_error(&self) -> StreamError {
        self.error.as_ref().map_or(StreamError::Reset, |error| {
            StreamError::Connection(error.clone())
        })
    }
}
