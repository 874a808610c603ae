//! The connection pool behind its lock, and the threads that wait for a connection.
//!
//! ```text
//!   acquire ─► free connection ─────────────────────────────────────────────► Lease
//!      └─none─► a Waiter: parked, or driving a dial (poll(2)) ──Assigned──────► Lease
//!                         │ assigned another connection: its dial goes to a parked waiter
//!                         └─ Failed, timeout, interrupted
//! ```
//!
//! The lock is held for a few hundred nanoseconds, never over a system call. There is no thread but the callers':
//! each waiting one drives at most one dial, and a dial without a waiter to drive it is dropped.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::config::BlockingConfig;
use super::h2_driver::H2Driver;
use super::pooled_conn::PooledConn;
use super::waiter_mailbox::{Message, PendingDial, Waiter};
use crate::client::pool::{Action, Lease, OriginId, Pool, PoolStatus, SlotId, WaiterId};
use crate::client::request::{CallError, CallOptions};
use crate::client::route::Route;
use crate::client::{call_error, fork, retry_policy};
use crate::conn::config::ConnConfig;

/// The state that all threads of one client share.
pub(super) struct SharedPool {
    pub(super) config: BlockingConfig,
    pub(super) service: Arc<ConnConfig>,
    pub(super) generation: u64,
    state: Mutex<State>,
    /// Made for the first HTTP/2 connection.
    h2: OnceLock<Arc<H2Driver>>,
}

struct State {
    pool: Pool<Route, PooledConn, Arc<Waiter>>,
    /// Waiters without a dial, in order of arrival.
    parked: BTreeMap<u64, Arc<Waiter>>,
    /// The waiter that drives each dial.
    drivers: Vec<(SlotId, Arc<Waiter>)>,
    /// Dials without a driver: connections opened ahead of need.
    undriven: Vec<(OriginId, PendingDial)>,
    /// Descriptors that a forked child has to close.
    fds: HashSet<RawFd>,
    waiters: u64,
    closed: bool,
}

/// Work done after unlocking.
#[derive(Default)]
struct Deferred {
    wake: Vec<Arc<Waiter>>,
    /// Connections and dials to drop; closing them takes system calls.
    closed: Vec<PooledConn>,
    dropped: Vec<PendingDial>,
}

impl Drop for Deferred {
    fn drop(&mut self) {
        for waiter in self.wake.drain(..) {
            waiter.notify();
        }
    }
}

/// An entry in the queue.
pub(super) struct QueueEntry {
    pub(super) waiter: Arc<Waiter>,
    id: WaiterId,
}

/// The result of `try_acquire`.
pub(super) enum AcquireOutcome {
    Free(Acquired),
    Wait(QueueEntry),
}

/// A connection for a call.
pub(super) struct Acquired {
    pub(super) lease: Lease<PooledConn>,
    /// No other call of this client has a connection.
    pub(super) is_only_call: bool,
}

impl SharedPool {
    pub(super) fn new(config: BlockingConfig) -> Self {
        let service = ConnConfig {
            limits: Arc::clone(&config.limits),
            protocols: config.dial.protocols,
            ..ConnConfig::default()
        };
        let state = State {
            pool: Pool::new(config.pool),
            parked: BTreeMap::new(),
            drivers: Vec::new(),
            undriven: Vec::new(),
            fds: HashSet::new(),
            waiters: 0,
            closed: false,
        };
        Self {
            config,
            service: Arc::new(service),
            generation: fork::generation(),
            state: Mutex::new(state),
            h2: OnceLock::new(),
        }
    }

    pub(super) fn h2_driver(&self) -> io::Result<&Arc<H2Driver>> {
        if self.h2.get().is_none() {
            // If another thread was faster, its driver is used.
            let _ = self.h2.set(Arc::new(H2Driver::new(&self.config)?));
        }
        self.h2.get().ok_or(io::ErrorKind::Other.into())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then runs the resulting actions of the pool.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // Dropped after the guard.
        let mut deferred = Deferred::default();
        let mut state = self.lock();
        let result = change(&mut state);
        state.run_pool_actions(&mut deferred);
        drop(state);
        result
    }

    /// Returns a free connection, or an entry in the queue. `urgent`: at its front, for a call whose
    /// connection turned out to be dead.
    pub(super) fn try_acquire(
        &self,
        route: &Arc<Route>,
        options: &CallOptions,
        urgent: bool,
        now: Instant,
    ) -> Result<AcquireOutcome, Box<CallError>> {
        let share = self.config.dial.expected_capacity(route);
        self.change(|state| {
            if state.closed {
                return Err(Box::new(CallError::closed()));
            }
            state.pool.expire(now);
            let origin = state.pool.origin(route, share);
            match state.pool.acquire(origin, now) {
                Some(lease) => {
                    let is_only_call = state.pool.status().active == 1;
                    Ok(AcquireOutcome::Free(Acquired {
                        lease,
                        is_only_call,
                    }))
                }
                None => state
                    .queue(origin, options, urgent, now)
                    .map(AcquireOutcome::Wait),
            }
        })
    }

    /// Returns a reusable connection to the pool.
    pub(super) fn release(&self, slot: SlotId, now: Instant) {
        self.change(|state| {
            state.pool.expire(now);
            state.pool.release(slot, now);
        });
    }

    /// Bounds the idle time of a connection, as its server has announced.
    pub(super) fn limit_idle(&self, slot: SlotId, most: Duration) {
        self.change(|state| state.pool.limit_idle(slot, most));
    }

    /// Removes a connection from the pool. Its descriptor is about to be closed.
    pub(super) fn remove(&self, slot: SlotId, fd: RawFd) {
        self.change(|state| {
            state.fds.remove(&fd);
            state.pool.remove(slot);
        });
    }

    /// Sets the number of calls that a shared connection carries at once.
    pub(super) fn set_capacity(&self, slot: SlotId, capacity: u32) {
        self.change(|state| state.pool.set_capacity(slot, capacity));
    }

    /// Stops assigning calls to a shared connection. It closes with its last call.
    pub(super) fn retire(&self, slot: SlotId) {
        self.change(|state| state.pool.retire(slot));
    }

    /// Leaves the queue. A connection assigned meanwhile goes to the next waiter.
    pub(super) fn cancel_wait(
        &self,
        entry: &QueueEntry,
        mut driving: Option<PendingDial>,
        now: Instant,
    ) {
        self.change(|state| {
            state.retire(&entry.waiter);
            state.pool.cancel(entry.id);
            while let Some(message) = entry.waiter.next() {
                match message {
                    Message::Assigned(lease) => state.pool.release(lease.slot, now),
                    Message::Dial(pending) => driving = Some(pending),
                    Message::Failed(_) | Message::DropDial(_) | Message::Recheck => {}
                }
            }
        });
        self.hand_over(driving);
    }

    /// Gives the dial of a leaving waiter to another one.
    pub(super) fn hand_over(&self, pending: Option<PendingDial>) {
        let Some(pending) = pending else {
            return;
        };
        let share = self.config.dial.expected_capacity(&pending.route);
        let dropped = self.change(|state| {
            let before = state.drivers.len();
            state.drivers.retain(|(slot, _)| *slot != pending.slot);
            if state.drivers.len() == before {
                // The dial was cancelled meanwhile.
                return Some(pending);
            }
            let origin = state.pool.origin(&pending.route, share);
            match state.assign(origin, pending) {
                Ok(waiter) => {
                    waiter.notify();
                    None
                }
                Err(pending) => {
                    state.pool.remove(pending.slot);
                    Some(pending)
                }
            }
        });
        drop(dropped);
    }

    /// Pools the connection of a completed dial; the first waiter gets it.
    pub(super) fn dialled(
        &self,
        slot: SlotId,
        conn: PooledConn,
        waiter: &Arc<Waiter>,
        now: Instant,
    ) {
        self.add(slot, conn, now, |state| state.drop_driver(slot, waiter));
    }

    fn add(&self, slot: SlotId, conn: PooledConn, now: Instant, before: impl FnOnce(&mut State)) {
        let (capacity, h2) = (conn.capacity(), conn.h2_conn());
        self.change(|state| {
            before(state);
            state.fds.insert(conn.fd);
            state.pool.dialled(slot, conn, capacity, now);
        });
        if let Some(h2) = h2 {
            h2.report_limit(self);
        }
    }

    /// Repeats a failed dial after a pause, in its pool slot, if the waiter that it was begun for wants that
    /// and still waits.
    pub(super) fn redial(
        &self,
        pending: &mut PendingDial,
        error: &CallError,
        now: Instant,
    ) -> bool {
        let whose = self.lock().pool.dialled_for(pending.slot).map(Arc::clone);
        let Some(whose) = whose else {
            return false;
        };
        let failures = whose.count_attempt();
        if !retry_policy::may_redial(&whose.options, error, failures) {
            return false;
        }
        let at = now
            + whose
                .options
                .backoff
                .pause(failures, retry_policy::random_u32());
        whose.measure(|waiting| waiting.retry(at));
        pending.dial = None;
        pending.begin_at = Some(at);
        pending.deadline = whose.bound().map(|(at, _)| at);
        // A waiter elsewhere finds out about its longer wait when its time expires.
        true
    }

    /// Fails the waiter that a finally failed dial was begun for.
    pub(super) fn dial_failed(&self, slot: SlotId, error: CallError, waiter: &Arc<Waiter>) {
        let told = self.change(|state| {
            state.drop_driver(slot, waiter);
            let waiting = state.pool.dial_failed(slot);
            let (id, whose) = waiting.map(|(id, waiter)| (id, Arc::clone(waiter)))?;
            state.pool.cancel(id);
            state.retire(&whose);
            whose.send(Message::Failed(Box::new(error)));
            Some(whose)
        });
        if let Some(waiter) = told {
            waiter.notify();
        }
    }

    /// Starts dials until `route` has `n` connections; the caller drives them.
    pub(super) fn prewarm(&self, route: &Arc<Route>, n: usize) -> Vec<PendingDial> {
        let share = self.config.dial.expected_capacity(route);
        self.change(|state| {
            let origin = state.pool.origin(route, share);
            state.pool.prewarm(origin, n);
        });
        let mut state = self.lock();
        let origin = state.pool.origin(route, share);
        let (own, others) = std::mem::take(&mut state.undriven)
            .into_iter()
            .partition::<Vec<_>, _>(|(of, _)| *of == origin);
        state.undriven = others;
        own.into_iter().map(|(_, pending)| pending).collect()
    }

    pub(super) fn prewarmed(&self, slot: SlotId, conn: Option<PooledConn>, now: Instant) {
        match conn {
            Some(conn) => self.add(slot, conn, now, |_| {}),
            None => self.change(|state| {
                state.pool.dial_failed(slot);
            }),
        }
    }

    pub(super) fn status(&self) -> PoolStatus {
        self.lock().pool.status()
    }

    /// Closes idle connections and accepts no further calls.
    pub(super) fn close(&self) {
        let waiting = self.change(|state| {
            state.closed = true;
            let waiting = state.pool.close();
            for waiter in &waiting {
                state.retire(waiter);
                waiter.send(Message::Failed(Box::new(CallError::closed())));
            }
            waiting
        });
        for waiter in waiting {
            waiter.notify();
        }
    }

    /// In a forked child nothing of the parent's is dropped: another thread may have been changing it.
    pub(super) fn outlive_fork(self: &Arc<Self>) {
        if self.generation != fork::generation() {
            std::mem::forget(Arc::clone(self));
        }
    }

    /// In a forked child: closes the parent's sockets without sending anything. The connections themselves
    /// are not touched: threads that do not exist here may hold their locks.
    pub(super) fn close_after_fork(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            for fd in state.fds.drain() {
                // SAFETY: the descriptor belongs to a connection of this pool, which is never dropped in this
                // process (see `H1Conn::drop`), so it is closed once.
                unsafe { libc::close(fd) };
            }
        }
    }
}

impl State {
    fn queue(
        &mut self,
        origin: OriginId,
        options: &CallOptions,
        urgent: bool,
        now: Instant,
    ) -> Result<QueueEntry, Box<CallError>> {
        self.waiters += 1;
        let waiter = Arc::new(Waiter::new(self.waiters, origin, *options, now));
        // Before the pool can assign a dial to it.
        self.parked.insert(waiter.number, Arc::clone(&waiter));
        match self.pool.wait(origin, Arc::clone(&waiter), urgent) {
            Ok(id) => Ok(QueueEntry { waiter, id }),
            Err(waiter) => {
                self.parked.remove(&waiter.number);
                Err(Box::new(call_error::queue_full()))
            }
        }
    }

    fn run_pool_actions(&mut self, deferred: &mut Deferred) {
        while let Some(action) = self.pool.next_action() {
            match action {
                Action::Assign(lease, waiter) => {
                    self.retire(&waiter);
                    waiter.send(Message::Assigned(lease));
                    deferred.wake.push(waiter);
                }
                Action::Dial(slot, origin) => {
                    let Some(route) = self.pool.key(origin).map(Arc::clone) else {
                        continue;
                    };
                    let whose = self.pool.dialled_for(slot);
                    let pending = PendingDial {
                        slot,
                        route,
                        dial: None,
                        begin_at: None,
                        deadline: whose.and_then(|waiter| waiter.bound()).map(|(at, _)| at),
                    };
                    match self.assign(origin, pending) {
                        Ok(waiter) => deferred.wake.push(waiter),
                        Err(pending) => self.undriven.push((origin, pending)),
                    }
                }
                Action::AwaitDial(waiter) => {
                    let now = Instant::now();
                    waiter.measure(|waiting| waiting.await_dial(now));
                    waiter.send(Message::Recheck);
                    deferred.wake.push(waiter);
                }
                Action::AwaitFree(waiter) => {
                    let now = Instant::now();
                    waiter.measure(|waiting| waiting.await_free(now));
                    waiter.send(Message::Recheck);
                    deferred.wake.push(waiter);
                }
                Action::CancelDial(slot) => self.cancel_dial(slot, deferred),
                Action::Close(conn) => {
                    self.fds.remove(&conn.fd);
                    deferred.closed.push(conn);
                }
            }
        }
    }

    /// Gives a dial to the first parked waiter of this origin.
    fn assign(
        &mut self,
        origin: OriginId,
        pending: PendingDial,
    ) -> Result<Arc<Waiter>, PendingDial> {
        let acquired = self
            .parked
            .iter()
            .find(|(_, waiter)| waiter.origin == origin);
        let Some(number) = acquired.map(|(number, _)| *number) else {
            return Err(pending);
        };
        match self.parked.remove(&number) {
            Some(waiter) => {
                self.drivers.push((pending.slot, Arc::clone(&waiter)));
                waiter.send(Message::Dial(pending));
                Ok(waiter)
            }
            None => Err(pending),
        }
    }

    fn cancel_dial(&mut self, slot: SlotId, deferred: &mut Deferred) {
        let driver = self.drivers.iter().position(|(of, _)| *of == slot);
        if let Some(at) = driver {
            let (_, waiter) = self.drivers.swap_remove(at);
            self.park(&waiter);
            waiter.send(Message::DropDial(slot));
            deferred.wake.push(waiter);
        } else if let Some(at) = self.undriven.iter().position(|(_, of)| of.slot == slot) {
            deferred.dropped.push(self.undriven.swap_remove(at).1);
        }
    }

    /// The dial of a waiter has ended: the waiter is parked like the others.
    fn drop_driver(&mut self, slot: SlotId, waiter: &Arc<Waiter>) {
        let before = self.drivers.len();
        self.drivers.retain(|(of, _)| *of != slot);
        if self.drivers.len() < before {
            self.park(waiter);
        }
    }

    fn park(&mut self, waiter: &Arc<Waiter>) {
        if !waiter.is_over() {
            self.parked.insert(waiter.number, Arc::clone(waiter));
        }
    }

    /// The wait of a waiter has ended: it gets no dial.
    fn retire(&mut self, waiter: &Waiter) {
        waiter.set_over();
        self.parked.remove(&waiter.number);
    }
}
