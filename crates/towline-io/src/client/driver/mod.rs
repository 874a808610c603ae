//! The asynchronous client below Python: one engine, one pool, and the calls of one event loop.
//!
//! ```text
//!   begin ─► connection at hand? ─yes─► request written ─► Head ─► read ... End ─► connection back
//!               └─no─► waits (pool) ◄─ stale or connect retry ─┘ Failed ─► connection closed
//! ```
//!
//! A turn: [`ClientDriver::turn`], then [`ClientDriver::next_event`] until there is none. Act on an event before
//! asking for the next one (take the head, read what is there): the connection that it came from is
//! settled then, and gives its block back. Every call ends with [`ClientDriver::cancel`], which is harmless
//! after its last event: a call that is over keeps its trailers and timings until then.
//!
//! `call` holds the state of one call, `start` brings calls onto connections, `drive` turns what
//! happens there into events, `shared` does so where a connection carries many calls (HTTP/2), `body`
//! reads and writes, `clock` keeps the deadlines, `talk` is what follows where a call becomes a
//! WebSocket, whose state is in `conversation`.

mod acquire;
mod body;
mod call;
mod events;
mod h2_events;
mod timers;
mod websocket;
mod websocket_state;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use towline_proto::{Limits, OwnedHead};

use super::connection_info::ConnectionInfo;
use super::dial::{DialConfig, DialTimings};
use super::pool::{Pool, PoolLimits, PoolStatus, SlotId};
use super::request::{CallError, Timings};
use super::route::Route;
use crate::conn::config::ConnConfig;
use crate::conn::id::ConnId;
use crate::engine::pending_dials::DialId;
use crate::engine::{Engine, EngineConfig, EngineWaker};

use call::{Call, Stage};
use h2_events::H2State;
use timers::CallTimers;
use websocket_state::WebSocketShared;

/// The bounds and terms of a client.
#[derive(Clone, Debug)]
pub struct ClientDriverConfig {
    pub engine: EngineConfig,
    pub pool: PoolLimits,
    pub dial: Arc<DialConfig>,
    /// Of each connection; `window_bytes` is what a response may have here that nobody has read.
    pub limits: Arc<Limits>,
    pub flush: FlushPolicy,
}

impl Default for ClientDriverConfig {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            pool: PoolLimits::default(),
            dial: Arc::default(),
            limits: Arc::new(Limits::client()),
            flush: FlushPolicy::default(),
        }
    }
}

/// When a request leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// When it is begun.
    Immediate,
    /// When it is begun, and at the end of the turn when that is within one: those of a turn together.
    #[default]
    TurnEnd,
    /// With [`ClientDriver::flush`], or at the end of the turn.
    Manual,
}

/// One call of one [`ClientDriver`]. Once the call is gone the name finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    index: u32,
    generation: u32,
}

impl CallId {
    /// As one number, for languages that cannot hold a struct.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`CallId::as_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

/// An event of a call.
#[derive(Debug)]
pub enum CallEvent {
    /// The response has begun: [`ClientDriver::take_head`]. `end`: no body follows.
    Head {
        end: bool,
    },
    /// An interim response.
    Informational(OwnedHead),
    /// After [`CallRead::Pending`]: body bytes, or the end. After [`WsReceived::Pending`](super::WsReceived::Pending):
    /// a message, the end, or the end of the time.
    Readable,
    /// A streamed body may go on. Comes first when the request has got its connection, then after each
    /// `write` that left no room.
    Writable,
    /// After a 101, or a 2xx to CONNECT, and its `Head`: `read` and `write` now carry raw bytes.
    Switched,
    Failed(Box<CallError>),
}

/// Outcome of reading a response.
#[derive(Debug)]
pub enum CallRead<'a> {
    /// Never empty. Taking it is what lets the server send more.
    Data(&'a [u8]),
    /// Nothing now: [`CallEvent::Readable`] or [`CallEvent::Failed`] follows.
    Pending,
    /// The whole body has been read and the connection has been given back.
    End,
    Failed(Box<CallError>),
}

/// State of a connection of the engine.
#[derive(Default)]
struct ConnState {
    /// HTTP/1: the call that it carries.
    call: Option<CallId>,
    /// HTTP/2: all of them.
    h2: H2State,
    /// Its place in the pool, once it has one.
    slot: Option<SlotId>,
    /// Timings of its dial, reported by its first call.
    dial: Option<DialTimings>,
    info: Option<Arc<ConnectionInfo>>,
    /// Stands in `unflushed`.
    unflushed: bool,
}

/// See the module's picture. It belongs to one event loop.
pub struct ClientDriver {
    engine: Engine<ConnState>,
    pool: Pool<Route, ConnId, CallId>,
    calls: Slab<Call>,
    events: VecDeque<(CallId, CallEvent)>,
    dials: HashMap<SlotId, DialId>,
    timers: CallTimers,
    /// The connection that the front end handles or has read from: still to be flushed.
    touched: Option<ConnId>,
    /// The shared connection whose events are being taken, one by one. It is settled when there are no
    /// more.
    h2_events_of: Option<ConnId>,
    unflushed: Vec<ConnId>,
    /// Made for the first WebSocket.
    sockets: Option<WebSocketShared>,
    in_turn: bool,
    service: Arc<ConnConfig>,
    dial: Arc<DialConfig>,
    flush: FlushPolicy,
    generation: u32,
    closed: bool,
}

impl ClientDriver {
    pub fn new(config: ClientDriverConfig) -> io::Result<Self> {
        Ok(Self {
            engine: Engine::new(config.engine)?,
            pool: Pool::new(config.pool),
            calls: Slab::new(),
            events: VecDeque::new(),
            dials: HashMap::new(),
            timers: CallTimers::default(),
            touched: None,
            h2_events_of: None,
            unflushed: Vec::new(),
            sockets: None,
            in_turn: false,
            service: Arc::new(ConnConfig {
                limits: config.limits,
                protocols: config.dial.protocols,
                ..ConnConfig::default()
            }),
            dial: config.dial,
            flush: config.flush,
            generation: 0,
            closed: false,
        })
    }

    /// Readable whenever `turn` has something to do. For another poll; never read from it.
    pub fn as_raw_fd(&self) -> RawFd {
        self.engine.as_raw_fd()
    }

    /// Starts a turn from another thread.
    pub fn waker(&self) -> EngineWaker {
        self.engine.waker()
    }

    /// Polls. `Some(0)` never blocks and is what a foreign loop calls. Take every event afterwards.
    pub fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.flush_touched();
        self.flush();
        let wait = if self.events.is_empty() {
            wait
        } else {
            Some(Duration::ZERO)
        };
        self.engine.turn_start(wait)?;
        self.in_turn = true;
        Ok(())
    }

    /// Returns the next event, of a turn or between turns. `None` ends the turn.
    pub fn next_event(&mut self) -> Option<(CallId, CallEvent)> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if let Some(conn) = self.h2_events_of {
                self.on_h2_ready(conn);
                continue;
            }
            self.flush_touched();
            if !self.in_turn {
                return None;
            }
            if let Some(conn) = self.engine.next_ready() {
                self.touched = Some(conn);
                self.on_ready(conn);
            } else if !self.take_dial_outcomes() && !self.expire() {
                self.end_turn();
                return None;
            }
        }
    }

    fn end_turn(&mut self) {
        self.in_turn = false;
        self.flush();
        self.schedule_idle_expiry();
        self.engine.turn_end();
    }

    /// Sends what has been held back to leave together.
    pub fn flush(&mut self) {
        while let Some(conn) = self.unflushed.pop() {
            if let Some(peer) = self.engine.conn(conn) {
                peer.state.unflushed = false;
            }
            self.engine.flush_and_rearm(conn);
        }
    }

    fn flush_touched(&mut self) {
        if let Some(conn) = self.touched.take() {
            self.engine.flush_and_rearm(conn);
        }
    }

    /// The final head, once.
    pub fn take_head(&mut self, call: CallId) -> Option<OwnedHead> {
        self.call_mut(call)?.head.take()
    }

    /// Trailer fields of a response that has been read to its end.
    pub fn trailers(&self, call: CallId) -> &[(Vec<u8>, Vec<u8>)] {
        self.call(call).map_or(&[], |call| &call.trailers)
    }

    pub fn timings(&self, call: CallId) -> Timings {
        let call = self.call(call);
        call.map(|call| call.times.timings()).unwrap_or_default()
    }

    /// The connection had carried an exchange before.
    pub fn is_reused(&self, call: CallId) -> bool {
        self.call(call).is_some_and(|call| call.reused)
    }

    /// Of the connection that carries the call, or did.
    pub fn info(&self, call: CallId) -> Option<&Arc<ConnectionInfo>> {
        self.call(call)?.info.as_ref()
    }

    pub fn status(&self) -> PoolStatus {
        self.pool.status()
    }

    /// The same per route.
    pub fn status_by_route(&self) -> impl Iterator<Item = (&Arc<Route>, PoolStatus)> {
        self.pool.status_by_origin()
    }

    /// Takes no further call and fails those that wait; `WebSockets` are closed (1001), the others go on. Over when
    /// `is_empty`.
    pub fn close(&mut self) {
        self.closed = true;
        self.close_websockets();
        for call in self.pool.close() {
            self.fail(call, CallError::closed());
        }
        self.run_pool_actions();
    }

    /// No connection is open and no call is under way.
    pub fn is_empty(&self) -> bool {
        let status = self.pool.status();
        status == PoolStatus::default() && self.events.is_empty()
    }

    /// Calls that have been begun and not yet put away with `cancel`.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    fn call(&self, id: CallId) -> Option<&Call> {
        let call = self.calls.get(id.index as usize)?;
        (call.generation == id.generation).then_some(call)
    }

    fn call_mut(&mut self, id: CallId) -> Option<&mut Call> {
        let call = self.calls.get_mut(id.index as usize)?;
        (call.generation == id.generation).then_some(call)
    }

    fn push_event(&mut self, call: CallId, event: CallEvent) {
        self.events.push_back((call, event));
        if !self.in_turn {
            // A foreign loop must come and take it.
            self.engine.rearm();
        }
    }

    fn now(&self) -> Instant {
        self.engine.now()
    }
}
