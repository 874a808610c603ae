//! Who gets which connection: the pool behind its lock, and the threads that wait for it.
//!
//! ```text
//!   acquire ─► free connection ─────────────────────────────────────────────► Lease
//!      └─none─► a Waiter: parked, or driving a dial (poll(2)) ──Served──────────► Lease
//!                         │ served by another's connection: the dial goes to one who is parked
//!                         └─ Failed, timeout, interrupted
//! ```
//!
//! The lock is held for a few hundred nanoseconds, never over a system call. There is no thread but the
//! callers': each waiting one drives at most one dial, and a dial that nobody is left to drive is dropped.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::BlockingConfig;
use super::pooled_conn::PooledConn;
use super::waiter::{Message, PendingDial, Waiter};
use crate::client::pool::{Action, Lease, OriginId, Pool, PoolStatus, SlotId, WaiterId};
use crate::client::request::{CallError, CallOptions};
use crate::client::route::Route;
use crate::client::{fork, outcome};
use crate::conn::config::ConnConfig;

/// What the threads of one client share.
pub(super) struct SharedPool {
    pub(super) config: BlockingConfig,
    pub(super) service: Arc<ConnConfig>,
    pub(super) generation: u64,
    state: Mutex<State>,
}

struct State {
    pool: Pool<Route, PooledConn, Arc<Waiter>>,
    /// Those who wait and drive nothing, the first come first.
    parked: BTreeMap<u64, Arc<Waiter>>,
    /// Who drives which dial.
    drivers: Vec<(SlotId, Arc<Waiter>)>,
    /// Dials without a driver: connections opened ahead of need.
    undriven: Vec<(OriginId, PendingDial)>,
    /// What a child of fork has to close.
    fds: HashSet<RawFd>,
    waiters: u64,
    closed: bool,
}

/// What is done when the lock is open again.
#[derive(Default)]
struct Deferred {
    wake: Vec<Arc<Waiter>>,
    /// Connections and dials; closing them takes system calls.
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

/// A place in the queue.
pub(super) struct QueueEntry {
    pub(super) waiter: Arc<Waiter>,
    id: WaiterId,
}

/// What asking for a connection gave.
pub(super) enum AcquireOutcome {
    Free(Acquired),
    Wait(QueueEntry),
}

/// A connection for a call.
pub(super) struct Acquired {
    pub(super) lease: Lease<PooledConn>,
    /// No other call of this client has one.
    pub(super) alone: bool,
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
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state, and then what the pool wants done because of it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // Dropped after the guard.
        let mut deferred = Deferred::default();
        let mut state = self.lock();
        let result = change(&mut state);
        state.run_pool_actions(&mut deferred);
        drop(state);
        result
    }

    /// A connection that is free now, or a place in the queue. `urgent`: in front, for one that has had
    /// its turn and whose connection turned out to be dead.
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
                    let alone = state.pool.status().active == 1;
                    Ok(AcquireOutcome::Free(Acquired { lease, alone }))
                }
                None => state
                    .queue(origin, options, urgent, now)
                    .map(AcquireOutcome::Wait),
            }
        })
    }

    /// The exchange is over and the connection can carry another.
    pub(super) fn release(&self, slot: SlotId, now: Instant) {
        self.change(|state| {
            state.pool.expire(now);
            state.pool.release(slot, now);
        });
    }

    /// The connection is of no more use. Its descriptor is about to be closed.
    pub(super) fn remove(&self, slot: SlotId, fd: RawFd) {
        self.change(|state| {
            state.fds.remove(&fd);
            state.pool.remove(slot);
        });
    }

    /// A shared connection takes so many calls at once.
    pub(super) fn set_capacity(&self, slot: SlotId, capacity: u32) {
        self.change(|state| state.pool.set_capacity(slot, capacity));
    }

    /// A shared connection takes no further call. It closes with its last one.
    pub(super) fn retire(&self, slot: SlotId) {
        self.change(|state| state.pool.retire(slot));
    }

    /// Leaves the queue; what had been served meanwhile goes to the next one.
    pub(super) fn unlock(
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

    /// One who drives leaves: another one takes the dial over.
    pub(super) fn hand_over(&self, pending: Option<PendingDial>) {
        let Some(pending) = pending else {
            return;
        };
        let share = self.config.dial.expected_capacity(&pending.route);
        let dropped = self.change(|state| {
            let before = state.drivers.len();
            state.drivers.retain(|(slot, _)| *slot != pending.slot);
            if state.drivers.len() == before {
                // It was cancelled meanwhile.
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

    /// A dial has made its connection, which goes to whoever is first.
    pub(super) fn dialled(
        &self,
        slot: SlotId,
        conn: PooledConn,
        waiter: &Arc<Waiter>,
        now: Instant,
    ) {
        let capacity = conn.capacity();
        self.change(|state| {
            state.drop_driver(slot, waiter);
            state.fds.extend(conn.fds());
            state.pool.dialled(slot, conn, capacity, now);
        });
    }

    /// A dial has failed: another attempt after a pause, in which it keeps its place in the pool, where
    /// the one for whom it was begun wants that and still waits.
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
        if !outcome::may_redial(&whose.options, error, failures) {
            return false;
        }
        let at = now + whose.options.backoff.pause(failures, outcome::draw());
        whose.measure(|waiting| waiting.retry(at));
        pending.dial = None;
        pending.begin_at = Some(at);
        pending.deadline = whose.bound().map(|(at, _)| at);
        // Who waits elsewhere finds that it may wait longer when its time is over.
        true
    }

    /// A dial has failed for good: the one for whom it was begun is told.
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
        let capacity = conn.as_ref().map_or(0, PooledConn::capacity);
        self.change(|state| match conn {
            Some(conn) => {
                state.fds.extend(conn.fds());
                state.pool.dialled(slot, conn, capacity, now);
            }
            None => drop(state.pool.dial_failed(slot)),
        });
    }

    pub(super) fn status(&self) -> PoolStatus {
        self.lock().pool.status()
    }

    /// Closes what is idle and takes no further calls.
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

    /// In a child of fork nothing of the parent's is dropped: another thread may have been in the middle
    /// of changing it.
    pub(super) fn outlive_fork(self: &Arc<Self>) {
        if self.generation != fork::generation() {
            std::mem::forget(Arc::clone(self));
        }
    }

    /// In a child of fork: closes the parent's sockets without a word to anybody. The connections
    /// themselves are not touched: their locks may be held by threads that do not exist here.
    pub(super) fn close_after_fork(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            for fd in state.fds.drain() {
                // SAFETY: the descriptor belongs to a connection of this pool, which is never dropped
                // in this process (`H1Conn::drop` sees to that), so nobody closes it twice.
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
        // Before the pool can have a dial for it.
        self.parked.insert(waiter.number, Arc::clone(&waiter));
        match self.pool.wait(origin, Arc::clone(&waiter), urgent) {
            Ok(id) => Ok(QueueEntry { waiter, id }),
            Err(waiter) => {
                self.parked.remove(&waiter.number);
                Err(Box::new(outcome::queue_full()))
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
                    waiter.measure(|waiting| waiting.expect(now));
                    waiter.send(Message::Recheck);
                    deferred.wake.push(waiter);
                }
                Action::AwaitFree(waiter) => {
                    let now = Instant::now();
                    waiter.measure(|waiting| waiting.queue(now));
                    waiter.send(Message::Recheck);
                    deferred.wake.push(waiter);
                }
                Action::CancelDial(slot) => self.cancel_dial(slot, deferred),
                Action::Close(conn) => {
                    for fd in conn.fds() {
                        self.fds.remove(&fd);
                    }
                    deferred.closed.push(conn);
                }
            }
        }
    }

    /// Gives a dial to the first who is parked at this origin.
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

    /// Its dial is over: who drove it is parked like the others.
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

    /// Its wait is over: it drives nothing new.
    fn retire(&mut self, waiter: &Waiter) {
        waiter.set_over();
        self.parked.remove(&waiter.number);
    }
}
