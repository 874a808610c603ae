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
//! This file holds the state and the inputs from the network; `recv` parses messages, `send` writes them, `timers` has
//! the deadlines, `close` ends exchanges and the connection.

mod chunked;
mod close;
mod encode;
mod failure;
mod head_info;
mod lenient;
mod parse;
mod prepared;
mod protocol_switch;
mod recv;
mod rules;
mod scan;
mod send;
mod start_line;
mod timers;
mod trailers;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::body::Method;
use crate::buffer::{RecvBudget, RecvBuffer, SendBuffer};
use crate::idle_timer::IdleTimer;
use crate::pending_events::PendingEvents;
use crate::{
    BufferPool, ConnectionError, Interest, Limits, Side, StreamError, StreamId, UserError, Version,
};

pub use encode::standard_reason;

use chunked::Decoder;
use failure::Failure;
pub(crate) use parse::HeadParser;
pub use parse::HeadScratch;
pub(crate) use prepared::Parts;
pub use prepared::{EncodedResponse, PreparedRequest};
use timers::Timers;
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
    empty_lines: u8,
    /// Number of unread bytes when the body was last found incomplete: part of a trailer line.
    scanned_bytes: usize,
    pending: PendingEvents,
    /// The peer's FIN was seen.
    eof: bool,
    /// `drain()` or `close()` was called.
    ending: Ending,
    /// A byte arrived since the last request was sent (client).
    response_started: bool,
    /// The latest known instant: calls of the program carry none.
    now: Instant,
    timers: Timers,
    failure: Failure,
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
            empty_lines: 0,
            scanned_bytes: 0,
            pending: PendingEvents::default(),
            eof: false,
            ending: Ending::None,
            response_started: false,
            now,
            timers: Timers::new(idle_timer, now),
            failure: Failure::default(),
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
                    self.timers.idle
                {
                    self.timers.idle = IdleTimer::Head(now);
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
        self.timers.recv.advance(self.now, n);
        if self.is_discarding_body() {
            self.discard_body();
        } else if !self.recv.has_space(self.recv_budget()) {
            self.timers.recv.pause();
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
            && matches!(self.timers.idle, IdleTimer::Head(_))
        {
            self.timers.idle = IdleTimer::Head(now);
        }
        let pending = self.send.pending();
        if pending == 0 {
            self.timers.send = None;
            self.all_sent();
        } else {
            self.timers.wrote_part(now, n);
        }
        let is_low = pending < self.limits.send_window_bytes / 2;
        if is_low && self.phase == Phase::Open && self.pending.has(PendingEvents::WRITER_WAITS) {
            self.pending.take(PendingEvents::WRITER_WAITS);
            self.pending.set(PendingEvents::WRITABLE);
        }
    }

    fn all_sent(&mut self) {
        match &mut self.timers.idle {
            IdleTimer::Idle(since) | IdleTimer::Draining(since) => *since = self.now,
            IdleTimer::Head(_) | IdleTimer::Closing(_) | IdleTimer::Off => {}
        }
        if let Phase::Closing { since } = &mut self.phase {
            *since = self.now;
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

    /// Whether `next_event` may return an event without more input.
    pub fn has_events(&self) -> bool {
        if self.pending.has(PendingEvents::EVENTS) {
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
        self.failure.error()
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
        self.failure.error().map_or(StreamError::Reset, |error| {
            StreamError::Connection(error.clone())
        })
    }
}
