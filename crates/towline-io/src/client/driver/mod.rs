//! The asynchronous client below Python: one engine, one pool, and the calls of one event loop.
//!
//! ```text
//!   begin ─► connection available? ─yes─► request written ─► Head ─► read ... End ─► connection released
//!               └─no─► waits (pool) ◄─ stale or connect retry ──┘ Failed ─► connection closed
//! ```
//!
//! In each turn, call [`ClientDriver::turn`], then [`ClientDriver::next_event`] until it returns `None`. Handle
//! each event before asking for the next (take the head, read the available body): `next_event` flushes the
//! connection of the previous event and returns its buffer to the engine. End every call with
//! [`ClientDriver::cancel`]; a call that is over keeps its trailers and timings until then.
//!
//! `call` holds the state of one call, `acquire` gets a connection for it, `events` and `h2_events` turn the
//! events of HTTP/1 and HTTP/2 connections into call events, `body` reads and writes, `timers` keeps the
//! deadlines, `early_data` handles 0-RTT, `external_pool` takes connections of the blocking client, `websocket` drives calls that became `WebSockets`, and `websocket_state` holds their state.

mod acquire;
mod body;
mod call;
mod early_data;
mod events;
mod external_pool;
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

use super::conn_ext::Trailer;
use super::connection_info::ConnectionInfo;
use super::connection_log::CloseRecord;
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

/// Configuration of a [`ClientDriver`].
#[derive(Clone, Debug)]
pub struct ClientDriverConfig {
    pub engine: EngineConfig,
    pub pool: PoolLimits,
    pub dial: Arc<DialConfig>,
    /// Limits of each connection; `window_bytes` bounds the unread bytes of a response.
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

/// When a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// In `begin`.
    Immediate,
    /// In `begin`, or at the end of the turn if it is called within one: all requests of a turn together.
    #[default]
    TurnEnd,
    /// In [`ClientDriver::flush`], or at the end of the turn.
    Manual,
}

/// Identifies one call of one [`ClientDriver`]. After `cancel` it matches no call. Later calls are greater, until
/// the counter wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    generation: u32,
    index: u32,
}

impl CallId {
    /// A number that no other current call has, as small as possible.
    pub(in crate::client) fn index(self) -> usize {
        self.index as usize
    }

    /// Packs the id into one number, for languages that cannot hold a struct.
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

/// Event of a call.
#[derive(Debug)]
pub enum CallEvent {
    /// The head of the response arrived: [`ClientDriver::take_head`]. `end`: there is no body.
    Head {
        end: bool,
    },
    /// An interim response.
    Informational(OwnedHead),
    /// After [`CallRead::Pending`]: body bytes, or the end. After [`WsReceived::Pending`](super::WsReceived::Pending):
    /// a message, the end, or the deadline of the receive.
    Readable,
    /// A streamed body can be written. Comes when the request has got its connection, then after each `write`
    /// that left no room.
    Writable,
    /// After a 101, or a 2xx to CONNECT, and its `Head`: `read` and `write` now carry raw bytes.
    Switched,
    Failed(Box<CallError>),
}

/// Result of [`ClientDriver::read`].
#[derive(Debug)]
pub enum CallRead<'a> {
    /// Never empty. Reading returns flow-control credit to the server.
    Data(&'a [u8]),
    /// No data is available: [`CallEvent::Readable`] or [`CallEvent::Failed`] follows.
    Pending,
    /// The whole body has been read and the connection has been released.
    End,
    Failed(Box<CallError>),
}

/// Client state of one connection of the engine.
#[derive(Default)]
struct ConnState {
    /// HTTP/1: the current call.
    call: Option<CallId>,
    /// HTTP/2: all current calls.
    h2: H2State,
    /// Slot of the connection in the pool, once it has one.
    slot: Option<SlotId>,
    /// Timings of the dial, until the first call takes them.
    dial: Option<DialTimings>,
    info: Option<Arc<ConnectionInfo>>,
    _close_record: Option<CloseRecord>,
    /// The connection is in `unflushed`.
    unflushed: bool,
}

/// The asynchronous client of one event loop; see the module documentation.
pub struct ClientDriver {
    engine: Engine<ConnState>,
    pool: Pool<Route, ConnId, CallId>,
    calls: Slab<Call>,
    events: VecDeque<(CallId, CallEvent)>,
    dials: HashMap<SlotId, DialId>,
    timers: CallTimers,
    /// Connection of the last event or read, to be flushed and re-armed.
    touched: Option<ConnId>,
    /// HTTP/2 connection whose events are being taken one by one. It is flushed when there are no more.
    h2_events_of: Option<ConnId>,
    unflushed: Vec<ConnId>,
    /// Created for the first WebSocket.
    sockets: Option<WebSocketShared>,
    /// Connections whose number of streams may have changed; kept if `has_external_pool`.
    limit_changes: Vec<ConnId>,
    /// Another pool dials the connections and assigns the calls.
    has_external_pool: bool,
    in_turn: bool,
    conn_config: Arc<ConnConfig>,
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
            limit_changes: Vec::new(),
            has_external_pool: false,
            in_turn: false,
            conn_config: Arc::new(ConnConfig {
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

    /// Returns the epoll descriptor. It is readable whenever `turn` has work; poll it, never read from it.
    pub fn as_raw_fd(&self) -> RawFd {
        self.engine.as_raw_fd()
    }

    /// Returns a handle that wakes `turn` from another thread.
    pub fn waker(&self) -> EngineWaker {
        self.engine.waker()
    }

    /// Polls for at most `wait`; `Some(0)` never blocks, for use under another event loop. Take every event afterwards.
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

    /// Returns the next event, from inside or outside a turn. `None` ends the turn.
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

    /// Sends the requests and body bytes that were held back to be sent together.
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

    /// Takes the final head; it is returned once.
    pub fn take_head(&mut self, call: CallId) -> Option<OwnedHead> {
        self.call_mut(call)?.head.take()
    }

    /// Returns the trailer fields of a response that has been read to its end.
    pub fn trailers(&self, call: CallId) -> &[Trailer] {
        self.call(call).map_or(&[], |call| &call.trailers)
    }

    pub fn timings(&self, call: CallId) -> Timings {
        let call = self.call(call);
        call.map(|call| call.times.timings()).unwrap_or_default()
    }

    /// Whether the connection had carried an exchange before this call.
    pub fn is_reused(&self, call: CallId) -> bool {
        self.call(call).is_some_and(|call| call.reused)
    }

    /// Returns the connection that carries the call, or carried it last.
    pub fn info(&self, call: CallId) -> Option<&Arc<ConnectionInfo>> {
        self.call(call)?.info.as_ref()
    }

    pub fn status(&self) -> PoolStatus {
        self.pool.status()
    }

    /// Returns the pool's status per route.
    pub fn status_by_route(&self) -> impl Iterator<Item = (&Arc<Route>, PoolStatus)> {
        self.pool.status_by_origin()
    }

    /// Refuses new calls, fails those that wait for a connection, and closes `WebSockets` (1001). Other calls
    /// continue. Closing is complete when `is_empty`.
    pub fn close(&mut self) {
        self.closed = true;
        self.dial.save_alternatives();
        self.close_websockets();
        let rested = self
            .calls
            .iter()
            .filter(|(_, call)| call.rests_until().is_some());
        let rested = rested.map(|(index, call)| CallId {
            index: index as u32,
            generation: call.generation,
        });
        for call in rested
            .collect::<Vec<_>>()
            .into_iter()
            .chain(self.pool.close())
        {
            self.fail(call, CallError::closed());
        }
        self.run_pool_actions();
    }

    /// Whether no connection is open and no call is in progress.
    pub fn is_empty(&self) -> bool {
        let status = self.pool.status();
        status == PoolStatus::default() && self.events.is_empty()
    }

    /// Returns the number of calls begun and not yet passed to `cancel`.
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
            // Wakes the outer event loop, which takes the event.
            self.engine.rearm();
        }
    }

    fn now(&self) -> Instant {
        self.engine.now()
    }
}
