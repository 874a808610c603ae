//! HTTP/1.0 and 1.1, both sides: one exchange at a time over one connection (RFC 9112).
//!
//! Two state machines run in parallel, one per direction, and an exchange is over when both are `Complete`. The
//! receiving one is the request on a server, the response on a client:
//!
//! ```text
//!  receive   Idle ─► Head ─► Length/Chunked/UntilClose ─► Complete ─┐
//!             ▲ (client)└──────► Raw (switched) ─► Complete         ├─► both complete: next
//!  send      Idle ─► Head ─► Length/Chunked/UntilClose ─► Complete ─┘   exchange, or the close
//!                (server)└─► Discard, Raw
//!
//!  phase     Open ──error, last response──► Closing (flush, FIN, linger) ──► Closed
//! ```
//!
//! This file holds the state and the inputs from the network and the clock; `recv` parses messages, `send` writes
//! them, `close` ends exchanges and the connection.

mod chunked;
mod close;
mod encode;
mod head_info;
mod lenient;
mod parse;
mod pending_events;
mod prepared;
mod protocol_switch;
mod recv;
mod rules;
mod scan;
mod send;
mod start_line;
mod trailers;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::body::Method;
use crate::buffer::{RecvBudget, RecvBuffer, SendBuffer};
use crate::idle_timer::IdleTimer;
use crate::progress_timer::ProgressTimer;
use crate::{
    BufferPool, ConnectionError, Interest, Limits, Refusal, Side, StreamError, StreamId, UserError,
    Version,
};

pub use encode::standard_reason;

use chunked::Decoder;
use parse::HeadParser;
pub use parse::HeadScratch;
use pending_events::PendingEvents;
pub(crate) use prepared::Parts;
pub use prepared::PreparedRequest;
use trailers::Trailers;

/// Send buffer kept by an idle client connection for its next head and a small body.
const CLIENT_SEND_BYTES: usize = 8 * 1024;

/// The message being received.
#[derive(Debug)]
enum RecvState {
    /// Client: no response is expected.
    Idle,
    /// A head is next.
    Head,
    /// Number of body bytes still to come, never 0.
    Length(u64),
    Chunked(Decoder),
    UntilClose,
    Raw,
    Complete,
    Failed,
}

/// The message being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    /// No exchange is open.
    Idle,
    /// Server: the final response head is due.
    Head,
    /// Number of announced body bytes still to be sent.
    Length(u64),
    Chunked,
    UntilClose,
    /// A body that must not be sent (HEAD, 204, 304).
    Discard,
    Raw,
    Complete,
    Failed,
}

/// The connection as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is parsed. Queued bytes are sent, then FIN; input is discarded until the peer's FIN, until none
    /// has come for `linger_timeout` after `since`, or until `discard_until` (RFC 9112 9.6).
    Closing {
        since: Instant,
    },
    Closed {
        abort: bool,
    },
}

/// The end of the connection, as the program wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Not at all: it is kept alive.
    None,
    /// After the next response, which announces it, or when it is idle for too long.
    Drain,
    /// After the current exchange.
    Close,
}

/// The current exchange.
#[derive(Debug)]
struct Exchange {
    id: u64,
    method: Method,
    version: Version,
    /// The connection can be reused after this exchange.
    keep_alive: bool,
    /// The request offers an upgrade.
    may_upgrade: bool,
    /// The client waits for `100 Continue` before it sends its body.
    awaits_continue: bool,
    interim_responses: u32,
    body_bytes: u64,
}

/// One end of an HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Connection {
    limits: Arc<Limits>,
    side: Side,
    phase: Phase,
    recv_state: RecvState,
    send_state: SendState,
    exchange: Exchange,
    recv: RecvBuffer,
    send: SendBuffer,
    parser: HeadParser,
    empty_lines: u8,
    /// Number of unread bytes when the body was last found incomplete: part of a trailer line.
    scanned_bytes: usize,
    pending: PendingEvents,
    /// The peer's FIN was seen.
    eof: bool,
    /// The failure of the transport while bytes of the response were still unread (client).
    transport_error: Option<&'static str>,
    /// `drain()` or `close()` was called.
    ending: Ending,
    /// A byte arrived since the last request was sent (client).
    response_started: bool,
    /// The latest known instant: calls of the program carry none.
    now: Instant,
    /// End of the time for input that nobody reads: the rest of a body, or what comes after our FIN.
    discard_until: Instant,
    idle_timer: IdleTimer,
    recv_timer: ProgressTimer,
    send_timer: ProgressTimer,
    error: Option<Arc<ConnectionError>>,
    /// Server: the refusal that has ended the connection.
    refusal: Option<Box<Refusal>>,
    trailers: Option<Box<Trailers>>,
    /// Client: requests that were pipelined after the current one. `None`: never pipelined.
    #[expect(
        clippy::box_collection,
        reason = "servers and most clients have none: 8 bytes, not 32"
    )]
    pipelined: Option<Box<VecDeque<send::PendingRequest>>>,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let (recv_state, idle_timer) = match side {
            Side::Server => (RecvState::Head, IdleTimer::Head(now)),
            Side::Client => (RecvState::Idle, IdleTimer::Idle(now)),
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
        };
        Self {
            limits,
            side,
            phase: Phase::Open,
            recv_state,
            send_state: SendState::Idle,
            exchange,
            recv: RecvBuffer::default(),
            send: SendBuffer::default(),
            parser: HeadParser::default(),
            empty_lines: 0,
            scanned_bytes: 0,
            pending: PendingEvents::default(),
            eof: false,
            transport_error: None,
            ending: Ending::None,
            response_started: false,
            now,
            discard_until: now,
            idle_timer,
            recv_timer: ProgressTimer::Off,
            send_timer: ProgressTimer::Off,
            error: None,
            refusal: None,
            trailers: None,
            pipelined: None,
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
            Side::Client => self.begin_pipelined(),
        }
        let budget = self.recv_budget();
        self.recv.space(buffers, budget)
    }

    pub fn received(&mut self, now: Instant, n: usize) {
        self.begin_pipelined();
        self.now = now;
        if n == 0 {
            return;
        }
        self.recv.received(n);
        self.response_started = true;
        if self.phase != Phase::Open {
            return self.discard();
        }
        match self.recv_state {
            RecvState::Head => {
                if let IdleTimer::Idle(_) | IdleTimer::Closing(_) | IdleTimer::Draining(_) =
                    self.idle_timer
                {
                    self.idle_timer = IdleTimer::Head(now);
                }
            }
            RecvState::Idle => self.fail(rules::UNSOLICITED),
            RecvState::Length(_) | RecvState::Chunked(_) | RecvState::UntilClose => {
                self.received_body(n);
            }
            RecvState::Raw | RecvState::Complete | RecvState::Failed => {}
        }
    }

    fn received_body(&mut self, n: usize) {
        self.recv_timer.advance(self.now, n);
        if self.is_discarding_body() {
            self.discard_body();
        } else if !self.recv.has_space(self.recv_budget()) {
            self.recv_timer.pause();
        }
    }

    /// Input after the end: read only so that a reset does not destroy the last bytes sent.
    fn discard(&mut self) {
        self.recv.clear();
        if let Phase::Closing { since } = &mut self.phase {
            *since = self.now;
        }
    }

    pub fn received_eof(&mut self, now: Instant) {
        self.begin_pipelined();
        self.now = now;
        if self.eof || self.phase != Phase::Open {
            self.eof = true;
            return;
        }
        self.eof = true;
        match (self.side, &self.recv_state) {
            (Side::Server, RecvState::Head) if self.recv.is_empty() => {
                self.close_gracefully(rules::DONE);
            }
            (Side::Server, _) if self.is_discarding_body() => self.discard_body(),
            (Side::Server, _) if self.exchange_is_open() => {
                self.pending.set(PendingEvents::HALF_CLOSED);
            }
            (Side::Client, RecvState::Idle) => self.close_gracefully(rules::DONE),
            (Side::Client, RecvState::Head) if self.recv.is_empty() => {
                self.fail(rules::NO_RESPONSE);
            }
            _ => {}
        }
    }

    pub fn sent(&mut self, now: Instant, n: usize) {
        self.now = now;
        let was_backlogged = self.is_send_backlogged();
        self.send.sent(n);
        if was_backlogged
            && !self.is_send_backlogged()
            && matches!(self.idle_timer, IdleTimer::Head(_))
        {
            self.idle_timer = IdleTimer::Head(now);
        }
        let pending = self.send.pending();
        if pending == 0 {
            self.send_timer.stop();
            self.all_sent();
        } else if n > 0 {
            self.send_timer.advance(now, n);
        } else if !self.send_timer.is_running() {
            self.send_timer.start(now);
        }
        let is_low = pending < self.limits.send_window_bytes / 2;
        if is_low && self.phase == Phase::Open && self.pending.has(PendingEvents::WRITER_WAITS) {
            self.pending.take(PendingEvents::WRITER_WAITS);
            self.pending.set(PendingEvents::WRITABLE);
        }
    }

    fn all_sent(&mut self) {
        match &mut self.idle_timer {
            IdleTimer::Idle(since) | IdleTimer::Draining(since) => *since = self.now,
            IdleTimer::Head(_) | IdleTimer::Closing(_) | IdleTimer::Off => {}
        }
        if let Phase::Closing { since } = &mut self.phase {
            *since = self.now;
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.send_timer.is_running() && self.send_timer.expired(now, &self.limits) {
            return self.abort(rules::SLOW_READER);
        }
        match self.phase {
            Phase::Closed { .. } => {}
            Phase::Closing { since } => {
                if self.send.pending() == 0 && now >= self.linger_deadline(since) {
                    self.phase = Phase::Closed { abort: false };
                }
            }
            Phase::Open => self.handle_timeout_while_open(now),
        }
    }

    fn handle_timeout_while_open(&mut self, now: Instant) {
        let is_slow = self.awaits_body() && self.recv_timer.expired(now, &self.limits);
        if self.is_discarding_body() && (is_slow || now >= self.discard_until) {
            self.close_gracefully(rules::UNREAD_BODY);
            self.discard_until = self.linger_deadline(now);
            return;
        }
        if is_slow {
            return self.fail(rules::SLOW_BODY);
        }
        if !self.awaits_head() || self.idle_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.idle_timer {
            IdleTimer::Idle(_) => self.close_now(rules::IDLE),
            IdleTimer::Draining(_) => self.close_now(rules::DONE),
            _ if self.recv.is_empty() && self.side == Side::Server => self.close_now(rules::SILENT),
            _ => self.fail(rules::SLOW_HEAD),
        }
    }

    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.recv.release(buffers, self.awaits_head());
        // A client writes before it reads, when no pool is available: it keeps a small buffer.
        let kept = if self.side == Side::Client {
            CLIENT_SEND_BYTES
        } else {
            0
        };
        self.send.release(buffers, kept);
    }

    // Outputs.

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
                read: !self.eof && self.recv.has_space(self.recv_budget()),
                write: !flushed,
                shutdown: flushed && self.is_half_closed(),
                ..Interest::default()
            },
        }
    }

    /// A switched stream on which the program has finished sending.
    fn is_half_closed(&self) -> bool {
        matches!(self.recv_state, RecvState::Raw) && self.send_state == SendState::Complete
    }

    pub fn deadline(&self) -> Option<Instant> {
        // It runs only while bytes are pending.
        let sending = self.send_timer.deadline(&self.limits);
        let receiving = match self.phase {
            Phase::Closed { .. } => return None,
            Phase::Closing { since } if self.send.pending() == 0 => {
                Some(self.linger_deadline(since))
            }
            Phase::Open if self.awaits_head() => self.idle_deadline(),
            Phase::Open if self.is_discarding_body() => {
                let silent = self.recv_timer.deadline(&self.limits);
                Some(silent.map_or(self.discard_until, |at| at.min(self.discard_until)))
            }
            Phase::Open if self.awaits_body() => self.recv_timer.deadline(&self.limits),
            Phase::Closing { .. } | Phase::Open => None,
        };
        match (sending, receiving) {
            (Some(sending), Some(receiving)) => Some(sending.min(receiving)),
            (one, other) => one.or(other),
        }
    }

    /// Whether `next_event` may return an event without more input.
    pub fn has_events(&self) -> bool {
        if self.pending.has_deliverable() {
            return true;
        }
        let input = !self.recv.is_empty() || self.eof;
        let wanted = match self.recv_state {
            RecvState::Head => !self.is_send_backlogged() && (self.eof || !self.has_parsed_all()),
            RecvState::Idle => self.has_pipelined(),
            RecvState::Complete | RecvState::Failed => false,
            _ => {
                let is_new = self.eof || self.recv.len() > self.scanned_bytes;
                is_new
                    && (self.pending.has(PendingEvents::READER_WAITS) || self.is_discarding_body())
            }
        };
        self.phase == Phase::Open && input && wanted
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && matches!(self.recv_state, RecvState::Head | RecvState::Idle)
            && self.send_state == SendState::Idle
            && self.recv.is_empty()
            && self.send.pending() == 0
            && !self.has_pipelined()
    }

    pub fn is_reusable(&self) -> bool {
        self.side == Side::Client && self.is_idle() && self.ending == Ending::None && !self.eof
    }

    pub fn response_started(&self) -> bool {
        self.response_started
    }

    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.error.as_ref()
    }

    // Derived state.

    fn recv_budget(&self) -> RecvBudget {
        let window = self.limits.window_bytes;
        match &self.recv_state {
            _ if self.phase != Phase::Open => RecvBudget {
                max_unread: usize::MAX,
                contiguous: false,
            },
            RecvState::Head => RecvBudget {
                max_unread: window.max(self.limits.whole_head_bytes()),
                contiguous: true,
            },
            RecvState::Chunked(decoder) if decoder.in_trailers() => RecvBudget {
                max_unread: window.max(self.limits.max_field_line_bytes as usize + 2),
                contiguous: true,
            },
            _ => RecvBudget {
                max_unread: window,
                contiguous: false,
            },
        }
    }

    /// Pipelined requests are not parsed while the peer does not read the responses to earlier ones: then the
    /// window fills and reading stops too.
    fn is_send_backlogged(&self) -> bool {
        self.side == Side::Server && self.send.pending() >= self.limits.send_window_bytes
    }

    /// Deadline of the next head. While responses wait to be sent, the timer over the peer's reading is the
    /// one that counts: neither idleness nor a slow head can be distinguished from it.
    fn idle_deadline(&self) -> Option<Instant> {
        match self.idle_timer {
            IdleTimer::Idle(_) | IdleTimer::Draining(_) if self.send.pending() > 0 => None,
            _ if self.is_send_backlogged() => None,
            timer => timer.deadline(&self.limits),
        }
    }

    fn awaits_head(&self) -> bool {
        matches!(self.recv_state, RecvState::Head)
    }

    /// Body bytes are expected from the peer.
    fn awaits_body(&self) -> bool {
        matches!(
            self.recv_state,
            RecvState::Length(_) | RecvState::Chunked(_) | RecvState::UntilClose
        ) && !self.exchange.awaits_continue
            && self.recv.has_space(self.recv_budget())
    }

    /// The response is complete and the rest of the request body precedes the next request.
    fn is_discarding_body(&self) -> bool {
        self.side == Side::Server
            && self.send_state == SendState::Complete
            && matches!(
                self.recv_state,
                RecvState::Length(_) | RecvState::Chunked(_)
            )
    }

    /// The program is not done with the exchange, so a failure must be reported.
    fn exchange_is_open(&self) -> bool {
        match self.side {
            Side::Server => !matches!(
                self.send_state,
                SendState::Idle | SendState::Complete | SendState::Failed
            ),
            Side::Client => !matches!(self.recv_state, RecvState::Idle | RecvState::Failed),
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
