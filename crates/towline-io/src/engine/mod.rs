//! The engine: one poll, its listeners, its connections, and the turn that serves them.
//!
//! ```text
//! turn_start ─ poll, accept, timers ─► ready list ─ next_ready (reads) ─► front end: next_event, respond
//!      ▲                                   ▲                                   │
//!      └── turn_end (re-arms itself) ◄─────┴────────── flush_and_rearm ◄───────┘
//! ```
//!
//! The poll is edge-triggered and a turn is bounded, in connections and in time. Connections that a turn
//! has not served stay in the ready list, and the engine wakes itself, so that neither the connections
//! nor the caller's event loop starve.

pub(crate) mod accept;
mod balance;
#[cfg(test)]
mod balance_simulation;
mod checkout;
pub(crate) mod conn_table;
pub(crate) mod drain;
mod endpoint;
mod flush_and_rearm;
pub(crate) mod listener;
mod memory_trim;
pub(crate) mod pending_dials;
mod timer_fd;
mod timers;
mod udp;
#[cfg(test)]
mod udp_early_tests;
#[cfg(test)]
pub(crate) mod udp_tests;
#[cfg(test)]
mod udp_worker_tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Poll, Waker};
use towline_proto::BufferPool;

use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::conn::{Conn, Output};
use crate::engine::accept::{FdExhaustion, Notice, RegisteredListener};
use crate::engine::balance::Balance;
use crate::engine::conn_table::{CheckedOut, ConnTable, Readiness, Slot};
use crate::engine::drain::Drain;
use crate::engine::endpoint::{RegisteredEndpoint, RegisteredWorkers};
use crate::engine::listener::Listener;
use crate::engine::memory_trim::MemoryTrim;
use crate::engine::pending_dials::PendingDials;
use crate::engine::timer_fd::TimerFd;
use crate::engine::timers::TimerQueue;
use crate::sys;

/// The bounds of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Connections served per turn. 16 keeps the other callbacks of an event loop on time; a front end
    /// that has a thread of its own may use more.
    pub max_ready_per_turn: usize,
    /// Duration of a turn after which no further connection is served.
    pub turn_time: Duration,
    /// Duration of one connection's service after which it goes to the end of the ready list. It is not
    /// served again in a turn that has lasted as long, because the poll may have new events.
    pub service_time: Duration,
    /// Bytes written per connection and flush.
    pub flush_bytes: usize,
    /// Size of one receive buffer.
    pub buffer_bytes: usize,
    /// Number of unused buffers kept.
    pub spare_buffers: usize,
    /// TLS handshakes in progress; beyond it the oldest is closed.
    pub max_handshakes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_ready_per_turn: 16,
            turn_time: Duration::from_micros(500),
            // Bounds the wait of other connections; ten times the cost of a turn.
            service_time: Duration::from_micros(100),
            flush_bytes: 1024 * 1024,
            buffer_bytes: 64 * 1024,
            spare_buffers: 16,
            max_handshakes: 1024,
        }
    }
}

/// Wakes an engine from any thread or from a signal handler: its next turn starts at once.
#[derive(Clone, Debug)]
pub struct EngineWaker(pub(crate) Arc<Waker>);

impl EngineWaker {
    pub fn wake(&self) -> io::Result<()> {
        self.0.wake()
    }
}

/// Poll, listeners and connections; see the picture of the module. `S` is the front end's state of a connection.
pub struct Engine<S> {
    pub(crate) config: EngineConfig,
    pub(crate) poll: Poll,
    pub(crate) events: Events,
    pub(crate) waker: Arc<Waker>,
    pub(crate) listeners: Vec<RegisteredListener>,
    pub(crate) endpoints: Vec<RegisteredEndpoint>,
    pub(crate) workers: Option<RegisteredWorkers>,
    pub(crate) fd_exhaustion: FdExhaustion,
    /// Pauses in which new connections are left to workers that have fewer.
    pub(crate) balance: Balance,
    pub(crate) table: ConnTable<S>,
    pub(crate) handshakes: VecDeque<ConnId>,
    pub(crate) buffers: BufferPool,
    memory_trim: MemoryTrim,
    pub(crate) timers: TimerQueue,
    pub(crate) timer: TimerFd,
    pub(crate) timer_at: Option<Instant>,
    /// Latest time at which the front end needs a turn.
    pub(crate) wake_at: Option<Instant>,
    pub(crate) pending_dials: PendingDials,
    pub(crate) ready: VecDeque<ConnId>,
    pub(crate) turn: Turn,
    pub(crate) drain: Option<Drain>,
    pub(crate) accepted: u64,
}

/// The current turn, or the last one.
pub(crate) struct Turn {
    pub(crate) running: bool,
    /// Started from the caller's event loop, which must be woken when work is left.
    pub(crate) in_event_loop: bool,
    /// The engine has made its own descriptor readable.
    pub(crate) rearmed: bool,
    pub(crate) started: Instant,
    pub(crate) now: Instant,
    /// Time set by the front end since the last connection was served.
    pub(crate) clock_override: Option<Instant>,
    pub(crate) served: usize,
    /// Start of the current connection's service.
    pub(crate) service_started: Instant,
    /// Number of connections in the ready list that have not been served in this turn.
    pub(crate) unserved: usize,
}

impl<S: Default> Engine<S> {
    pub fn new(config: EngineConfig) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), Source::Wake.token())?);
        let timer = TimerFd::new(poll.registry(), &waker)?;
        let now = Instant::now();
        Ok(Self {
            // Events that do not fit stay in the kernel, which keeps the descriptor readable.
            events: Events::with_capacity(config.max_ready_per_turn.max(4)),
            buffers: BufferPool::new(config.buffer_bytes, config.spare_buffers),
            memory_trim: MemoryTrim::default(),
            poll,
            waker,
            listeners: Vec::new(),
            endpoints: Vec::new(),
            workers: None,
            fd_exhaustion: FdExhaustion::new()?,
            balance: Balance::default(),
            table: ConnTable::new(),
            handshakes: VecDeque::new(),
            timers: TimerQueue::default(),
            timer,
            timer_at: None,
            wake_at: None,
            pending_dials: PendingDials::default(),
            ready: VecDeque::new(),
            turn: Turn {
                running: false,
                in_event_loop: false,
                rearmed: false,
                started: now,
                now,
                clock_override: None,
                served: 0,
                service_started: now,
                unserved: 0,
            },
            drain: None,
            accepted: 0,
            config,
        })
    }

    /// Readable whenever `turn_start` has something to do. For another poll; never read from it.
    pub fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    pub fn waker(&self) -> EngineWaker {
        EngineWaker(Arc::clone(&self.waker))
    }

    /// Adds a listener; its connections are accepted from the next turn on.
    pub fn add_listener(&mut self, listener: Listener, service: Arc<ConnConfig>) -> io::Result<()> {
        let source = Source::Listener(self.listeners.len());
        let fd = listener.socket().as_raw_fd();
        sys::register_listener(self.poll.registry(), fd, source)?;
        if let Some(meter) = &service.meter {
            meter.accepting.store(1, Relaxed);
        }
        self.listeners.push(RegisteredListener {
            is_tcp: listener.is_tcp()?,
            listener,
            service,
            pending: true,
        });
        self.rearm();
        Ok(())
    }

    /// The listeners, in the order in which they were added.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().map(|registered| &registered.listener)
    }

    /// Closes the listeners, and refuses new QUIC connections. Open connections stay. Connections in the kernel's queue
    /// are accepted first, because they are reset when the last process closes the listener.
    pub fn stop_listening(&mut self) {
        let now = self.now();
        self.stop_accepting();
        self.accept_waiting(now);
        for registered in self.listeners.drain(..) {
            if let Some(meter) = &registered.service.meter {
                meter.accepting.store(0, Relaxed);
            }
            // Explicitly, since another process may hold the same socket open.
            let fd = registered.listener.socket().as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
    }

    /// Polls, accepts and handles due timers. `Some(0)` never blocks and is for use within an event loop;
    /// a front end with its own thread waits with `None` (until there is work) or for a time.
    pub fn turn_start(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.begin_turn(wait, wait == Some(Duration::ZERO))
    }

    pub(crate) fn begin_turn(
        &mut self,
        wait: Option<Duration>,
        in_event_loop: bool,
    ) -> io::Result<()> {
        self.turn.in_event_loop = in_event_loop;
        let wait = if self.has_backlog() {
            Some(Duration::ZERO)
        } else {
            wait
        };
        // Enough is ready for a whole turn: the kernel keeps the rest.
        let polled = self.ready.len() < self.config.max_ready_per_turn;
        if polled {
            match self.poll.poll(&mut self.events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Err(_) => self.events.clear(),
                Ok(()) => {}
            }
        }
        let now = self.start_clock();
        if polled {
            self.on_events();
        }
        self.after_poll(now);
        Ok(())
    }

    /// Begins a turn with events that the caller has taken from the poll.
    pub(crate) fn begin_turn_with(&mut self, events: impl Iterator<Item = (Source, Readiness)>) {
        self.turn.in_event_loop = false;
        let now = self.start_clock();
        for (source, readiness) in events {
            self.on_event(source, readiness);
        }
        self.after_poll(now);
    }

    /// Whether there is work that the poll does not report again.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.ready.is_empty() || self.accept_pending() || self.has_datagrams()
    }

    fn start_clock(&mut self) -> Instant {
        let now = Instant::now();
        self.turn = Turn {
            running: true,
            rearmed: false,
            started: now,
            now,
            clock_override: None,
            served: 0,
            service_started: now,
            unserved: 0,
            in_event_loop: self.turn.in_event_loop,
        };
        now
    }

    /// Runs timers, dials and accepts after the poll.
    fn after_poll(&mut self, now: Instant) {
        if self.timer_at.is_some_and(|at| at <= now) {
            self.timer_at = None;
        }
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
        }
        self.receive_datagrams(now);
        self.expire(now);
        self.pending_dials.advance(self.poll.registry(), now);
        self.accept(now);
        self.turn.unserved = self.ready.len();
    }

    fn on_events(&mut self) {
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let readiness = Readiness {
                readable: event.is_readable() || event.is_error(),
                closed: event.is_read_closed() || event.is_error(),
                writable: event.is_writable() || event.is_error(),
            };
            self.on_event(Source::from_token(event.token()), readiness);
        }
        self.events = events;
    }

    fn on_event(&mut self, source: Source, readiness: Readiness) {
        match source {
            Source::Wake | Source::TimerFd => {}
            Source::Listener(index) => {
                if let Some(registered) = self.listeners.get_mut(index) {
                    registered.pending = true;
                }
            }
            Source::Workers => {
                if let Some(workers) = &mut self.workers {
                    workers.pending = true;
                }
            }
            Source::Udp(index) => self.on_endpoint_event(index, readiness),
            Source::Dial(index) => self.pending_dials.on_ready(index),
            Source::Connection(id) => self.on_readiness(id, readiness),
        }
    }

    /// Records readiness of a connection, from the poll or from a check-in.
    pub(crate) fn on_readiness(&mut self, id: ConnId, readiness: Readiness) {
        match self.table.slot(id) {
            Some(Slot::Attached(conn)) => {
                conn.input.readable |= readiness.readable || readiness.closed;
                conn.input.closed |= readiness.closed;
                let unblocked = readiness.writable && conn.output == Output::Blocked;
                if unblocked {
                    conn.output = Output::Open;
                    conn.disarm_udp(&self.poll);
                }
                if unblocked || conn.input.readable {
                    self.enqueue(id);
                }
            }
            Some(Slot::CheckedOut(checked_out)) => {
                checked_out.readiness.readable |= readiness.readable;
                checked_out.readiness.closed |= readiness.closed;
                checked_out.readiness.writable |= readiness.writable;
                self.enqueue(id);
            }
            None => {}
        }
    }

    pub(crate) fn enqueue(&mut self, id: ConnId) {
        let queued = match self.table.slot(id) {
            Some(Slot::Attached(conn)) => &mut conn.queued,
            Some(Slot::CheckedOut(CheckedOut {
                queued: Some(queued),
                ..
            })) => queued,
            _ => return,
        };
        if !std::mem::replace(queued, true) {
            self.ready.push_back(id);
            // A front end with its own thread starts another turn anyway.
            if self.turn.in_event_loop && !self.turn.running {
                self.rearm();
            }
        }
    }

    /// Makes the engine's own descriptor readable, for work that no socket reports.
    pub fn rearm(&mut self) {
        if !std::mem::replace(&mut self.turn.rearmed, true) {
            // A counter that is full keeps the descriptor readable just as well.
            let _ = self.waker.wake();
        }
    }

    /// Reads the next ready connection and returns it. Handle its events, then call `flush_and_rearm`.
    /// `None` when nothing is ready or the bounds of this turn are reached.
    pub fn next_ready(&mut self) -> Option<ConnId> {
        self.next_ready_with(|conn, buffers, now, budget| {
            conn.begin_service(buffers, now, budget);
        })
    }

    /// [`next_ready`](Self::next_ready) with the function that reads the connection. It gets the time and the bytes that
    /// may be flushed.
    #[inline]
    pub(crate) fn next_ready_with(
        &mut self,
        read: impl FnOnce(&mut Conn<S>, &mut BufferPool, Instant, usize),
    ) -> Option<ConnId> {
        if self.turn.served > 0 && !self.ready.is_empty() {
            if self.turn.served >= self.config.max_ready_per_turn {
                return None;
            }
            self.turn.now = self.turn.clock_override.take().unwrap_or_else(Instant::now);
            let most = if self.turn.unserved > 0 {
                self.config.turn_time
            } else {
                self.config.turn_time.min(self.config.service_time)
            };
            if self.turn.now.duration_since(self.turn.started) >= most {
                return None;
            }
        }
        let now = self.turn.now;
        self.turn.service_started = now;
        while let Some(id) = self.ready.pop_front() {
            self.turn.unserved = self.turn.unserved.saturating_sub(1);
            match self.table.slot(id) {
                Some(Slot::Attached(conn)) => {
                    conn.queued = false;
                    read(conn, &mut self.buffers, now, self.config.flush_bytes);
                }
                Some(Slot::CheckedOut(CheckedOut {
                    queued: Some(queued),
                    ..
                })) => *queued = false,
                _ => continue,
            }
            self.turn.served += 1;
            return Some(id);
        }
        None
    }

    /// Whether the current connection's service time is over: `requeue` it if it has more to do. Reads the clock.
    pub fn is_service_over(&self) -> bool {
        self.turn.service_started.elapsed() >= self.config.service_time
    }

    /// Whether the ready list has connections that have not been served in this turn.
    pub fn has_unserved(&self) -> bool {
        self.turn.unserved > 0
    }

    /// Whether connections are ready, for this turn or the next.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Number of connections in the ready list.
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Time of this turn, sampled when it started or refreshed.
    pub fn clock(&self) -> Instant {
        self.turn.now
    }

    /// Samples the clock again. The clock is sampled once per turn; call this after long work, before
    /// `flush_and_rearm`.
    pub fn refresh_clock(&mut self) {
        self.set_clock(Instant::now());
    }

    /// [`refresh_clock`](Self::refresh_clock) with a time that the front end has just sampled.
    pub fn set_clock(&mut self, now: Instant) {
        self.turn.now = now;
        self.turn.clock_override = Some(now);
    }

    /// Ends the turn. If work is left, the descriptor stays readable.
    pub fn turn_end(&mut self) {
        self.turn.running = false;
        if !self.listeners.is_empty() && self.memory_trim.is_due(self.table.len()) {
            sys::trim_memory();
        }
        self.set_timer(self.turn.now);
        if self.turn.in_event_loop && self.has_backlog() {
            self.rearm();
        }
    }

    pub fn conn(&mut self, id: ConnId) -> Option<&mut Conn<S>> {
        self.table.conn(id)
    }

    pub(crate) fn now(&self) -> Instant {
        if self.turn.running {
            self.turn.now
        } else {
            Instant::now()
        }
    }

    pub(crate) fn set_timer(&mut self, now: Instant) {
        let next = [
            self.timers.next(),
            self.fd_exhaustion.until,
            self.balance.paused_until(),
            self.wake_at,
            self.pending_dials.next_deadline(),
        ];
        let Some(next) = next.into_iter().flatten().min() else {
            return;
        };
        if self.timer_at.is_none_or(|at| next < at) {
            self.timer.set(next, now);
            self.timer_at = Some(next);
        }
    }

    pub fn connection_ids(&self) -> Vec<ConnId> {
        self.table.ids().collect()
    }

    /// Number of open connections, including those that are checked out.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of connections accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Accept failures to log, at most once a second.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.fd_exhaustion.take_notice()
    }

    pub(crate) fn conn_and_buffers(
        &mut self,
        id: ConnId,
    ) -> (Option<&mut Conn<S>>, &mut BufferPool) {
        (self.table.conn(id), &mut self.buffers)
    }

    /// The engine's buffer pool, for reads outside of `next_ready`.
    pub fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }
}
