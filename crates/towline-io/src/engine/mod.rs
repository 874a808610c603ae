//! The engine: one poll, its listeners, its connections, and the turn that serves them.
//!
//! ```text
//! turn_start ─ poll, accept, timers ─► ready list ─ next_ready (reads) ─► front end: next_event, respond
//!      ▲                                   ▲                                   │
//!      └── turn_end (re-arms itself) ◄─────┴────────── flush_and_rearm ◄───────┘
//! ```
//!
//! The poll is edge-triggered, and a turn is bounded in connections and in time. Connections that a turn has not
//! served stay in the ready list, and the engine wakes itself. So neither the connections nor the caller's event
//! loop starve.

pub(crate) mod accept;
mod alarm;
mod balance;
#[cfg(test)]
mod balance_simulation;
mod checkout;
mod config;
pub(crate) mod conn_table;
pub(crate) mod drain;
mod endpoint;
mod flush_and_rearm;
pub(crate) mod listener;
mod loop_poll;
mod memory_trim;
pub(crate) mod pending_dials;
mod poller;
mod timer_fd;
pub(crate) mod timers;
mod turn;
mod udp;
#[cfg(test)]
mod udp_early_tests;
#[cfg(test)]
pub(crate) mod udp_tests;
#[cfg(test)]
mod udp_worker_tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Waker;
use towline_proto::BufferPool;

use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::conn::{Conn, Output};
use crate::engine::accept::{Acceptor, Notice};
use crate::engine::alarm::Alarm;
pub use crate::engine::config::EngineConfig;
use crate::engine::conn_table::{CheckedOut, ConnTable, Readiness, Slot};
use crate::engine::drain::Drain;
use crate::engine::endpoint::Endpoints;
use crate::engine::listener::Listener;
use crate::engine::memory_trim::MemoryTrim;
use crate::engine::pending_dials::PendingDials;
use crate::engine::poller::Poller;
use crate::engine::timers::TimerQueue;
use crate::engine::turn::Turn;
use crate::sys;

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
    config: EngineConfig,
    poller: Poller,
    acceptor: Acceptor,
    endpoints: Endpoints,
    table: ConnTable<S>,
    buffers: BufferPool,
    memory_trim: MemoryTrim,
    timers: TimerQueue,
    alarm: Alarm,
    pending_dials: PendingDials,
    ready: VecDeque<ConnId>,
    turn: Turn,
    drain: Option<Drain>,
}

impl<S: Default> Engine<S> {
    pub fn new(config: EngineConfig) -> io::Result<Self> {
        let poller = Poller::new(config.max_ready_per_turn.max(4))?;
        Ok(Self {
            acceptor: Acceptor::new()?,
            endpoints: Endpoints::default(),
            table: ConnTable::new(),
            buffers: BufferPool::new(config.buffer_bytes, config.spare_buffers),
            memory_trim: MemoryTrim::default(),
            timers: TimerQueue::default(),
            alarm: Alarm::new(poller.registry(), poller.waker())?,
            pending_dials: PendingDials::default(),
            ready: VecDeque::new(),
            turn: Turn::new(Instant::now()),
            drain: None,
            poller,
            config,
        })
    }

    /// Readable whenever `turn_start` has something to do. For another poll; never read from it.
    pub fn as_raw_fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    pub fn waker(&self) -> EngineWaker {
        EngineWaker(Arc::clone(self.poller.waker()))
    }

    /// Adds a listener; its connections are accepted from the next turn on.
    pub fn add_listener(&mut self, listener: Listener, service: Arc<ConnConfig>) -> io::Result<()> {
        let registry = self.poller.registry();
        self.acceptor.listen(listener, service, registry)?;
        self.rearm();
        Ok(())
    }

    /// The listeners, in the order in which they were added.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.acceptor.listeners()
    }

    /// Closes the listeners, and refuses new QUIC connections. Open connections stay. Connections in the kernel's queue
    /// are accepted first, because they are reset when the last process closes the listener.
    pub fn stop_listening(&mut self) {
        let now = self.now();
        self.endpoints.stop_accepting(self.poller.registry());
        self.accept_waiting(now);
        self.acceptor.close(self.poller.registry());
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
        let wait = if self.has_backlog() {
            Some(Duration::ZERO)
        } else {
            wait
        };
        // Enough is ready for a whole turn: the kernel keeps the rest.
        let polled = self.ready.len() < self.config.max_ready_per_turn;
        if polled {
            self.poller.wait(wait)?;
        }
        let now = self.turn.begin(in_event_loop);
        if polled {
            self.on_events();
        }
        self.after_poll(now);
        Ok(())
    }

    /// Begins a turn with events that the caller has taken from the poll.
    #[cfg(all(target_os = "linux", not(towline_portable)))]
    pub(crate) fn begin_turn_with(&mut self, events: impl Iterator<Item = (Source, Readiness)>) {
        let now = self.turn.begin(false);
        for (source, readiness) in events {
            self.on_event(source, readiness);
        }
        self.after_poll(now);
    }

    /// Whether there is work that the poll does not report again.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.ready.is_empty() || self.acceptor.is_pending() || self.endpoints.have_datagrams()
    }

    /// Runs timers, dials and accepts after the poll.
    fn after_poll(&mut self, now: Instant) {
        self.alarm.on_turn(now);
        self.receive_datagrams(now);
        self.expire(now);
        self.pending_dials.advance(self.poller.registry(), now);
        self.accept(now);
        self.turn.set_unserved(self.ready.len());
    }

    fn on_events(&mut self) {
        let events = self.poller.take_events();
        for event in &events {
            let readiness = Readiness {
                readable: event.is_readable() || event.is_error(),
                closed: event.is_read_closed() || event.is_error(),
                writable: event.is_writable() || event.is_error(),
            };
            self.on_event(Source::from_token(event.token()), readiness);
        }
        self.poller.reuse(events);
    }

    fn on_event(&mut self, source: Source, readiness: Readiness) {
        match source {
            Source::Wake | Source::TimerFd => {}
            Source::Listener(index) => self.acceptor.on_ready(index),
            Source::Workers => self.endpoints.on_workers_ready(),
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
                    conn.disarm_udp(self.poller.registry());
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
            if self.turn.in_event_loop() && !self.turn.is_running() {
                self.rearm();
            }
        }
    }

    /// Makes the engine's own descriptor readable, for work that no socket reports.
    pub fn rearm(&mut self) {
        if self.turn.rearm() {
            self.poller.wake();
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
        if !self.ready.is_empty() && !self.turn.allows_service(&self.config) {
            return None;
        }
        let now = self.turn.begin_service();
        while let Some(id) = self.ready.pop_front() {
            self.turn.dequeued();
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
            self.turn.served();
            return Some(id);
        }
        None
    }

    /// Whether the current connection's service time is over: `requeue` it if it has more to do. Reads the clock.
    pub fn is_service_over(&self) -> bool {
        self.turn.is_service_over(&self.config)
    }

    /// Whether the ready list has connections that have not been served in this turn.
    pub fn has_unserved(&self) -> bool {
        self.turn.unserved() > 0
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
        self.turn.clock()
    }

    /// Samples the clock again. The clock is sampled once per turn; call this after long work, before
    /// `flush_and_rearm`.
    pub fn refresh_clock(&mut self) {
        self.set_clock(Instant::now());
    }

    /// [`refresh_clock`](Self::refresh_clock) with a time that the front end has just sampled.
    pub fn set_clock(&mut self, now: Instant) {
        self.turn.set_clock(now);
    }

    /// Ends the turn. If work is left, the descriptor stays readable.
    pub fn turn_end(&mut self) {
        self.turn.end();
        if self.acceptor.is_listening() && self.memory_trim.is_due(self.table.len()) {
            sys::trim_memory();
        }
        self.set_timer(self.turn.clock());
        if self.turn.in_event_loop() && self.has_backlog() {
            self.rearm();
        }
    }

    pub fn conn(&mut self, id: ConnId) -> Option<&mut Conn<S>> {
        self.table.conn(id)
    }

    /// Time of the turn, or outside of one the present.
    pub fn now(&self) -> Instant {
        if self.turn.is_running() {
            self.turn.clock()
        } else {
            Instant::now()
        }
    }

    pub(crate) fn set_timer(&mut self, now: Instant) {
        let [exhausted, ahead] = self.acceptor.paused_until();
        let dials = self.pending_dials.next_deadline();
        let times = [self.timers.next(), exhausted, ahead, dials];
        self.alarm.set(times.into_iter().flatten(), now);
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
        self.acceptor.accepted()
    }

    /// Accept failures to log, at most once a second.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.acceptor.take_notice()
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
