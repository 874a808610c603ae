//! Who gets which connection: the pool behind its lock, and the threads that wait for it.
//!
//! ```text
//!   acquire ─► free connection ─────────────────────────────────────────────► Lease
//!      └─none─► a Seat: parked, or driving a dial (poll(2)) ──Served──────────► Lease
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
use super::pooled_conn::Cable;
use super::waiter::{Errand, Message, Seat};
use crate::client::pool::{Action, Lease, OriginId, Pool, PoolStatus, SlotId, WaiterId};
use crate::client::request::{CallError, CallErrorKind, CallOptions, CallPhase};
use crate::client::route::Route;
use crate::client::{fork, retry};
use crate::conn::config::ConnConfig;

/// What the threads of one client share.
pub(super) struct Desk {
    pub(super) config: BlockingConfig,
    pub(super) service: Arc<ConnConfig>,
    pub(super) generation: u64,
    state: Mutex<State>,
}

struct State {
    pool: Pool<Route, Cable, Arc<Seat>>,
    /// Those who wait and drive nothing, the first come first.
    parked: BTreeMap<u64, Arc<Seat>>,
    /// Who drives which dial.
    drivers: Vec<(SlotId, Arc<Seat>)>,
    /// Dials without a driver: connections opened ahead of need.
    undriven: Vec<(OriginId, Errand)>,
    /// What a child of fork has to close.
    fds: HashSet<RawFd>,
    seats: u64,
    closed: bool,
}

/// What is done when the lock is open again.
#[derive(Default)]
struct Aftermath {
    ring: Vec<Arc<Seat>>,
    /// Connections and dials; closing them takes system calls.
    closed: Vec<Cable>,
    dropped: Vec<Errand>,
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        for seat in self.ring.drain(..) {
            seat.ring();
        }
    }
}

/// A place in the queue.
pub(super) struct Place {
    pub(super) seat: Arc<Seat>,
    id: WaiterId,
}

/// What asking for a connection gave.
pub(super) enum Asked {
    Free(Found),
    Wait(Place),
}

/// A connection for a call.
pub(super) struct Found {
    pub(super) lease: Lease<Cable>,
    /// No other call of this client has one.
    pub(super) alone: bool,
}

impl Desk {
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
            seats: 0,
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
        let mut after = Aftermath::default();
        let mut state = self.lock();
        let result = change(&mut state);
        state.settle(&mut after);
        drop(state);
        result
    }

    /// A connection that is free now, or a place in the queue. `urgent`: in front, for one that has had
    /// its turn and whose connection turned out to be dead.
    pub(super) fn ask(
        &self,
        route: &Arc<Route>,
        options: &CallOptions,
        urgent: bool,
        now: Instant,
    ) -> Result<Asked, Box<CallError>> {
        let share = self.config.dial.hoped_share(route);
        self.change(|state| {
            if state.closed {
                return Err(Box::new(CallError::closed()));
            }
            state.pool.expire(now);
            let origin = state.pool.origin(route, share);
            match state.pool.acquire(origin, now) {
                Some(lease) => {
                    let alone = state.pool.status().active == 1;
                    Ok(Asked::Free(Found { lease, alone }))
                }
                None => state.queue(origin, options, urgent, now).map(Asked::Wait),
            }
        })
    }

    /// The exchange is over and the connection can carry another.
    pub(super) fn give_back(&self, slot: SlotId, now: Instant) {
        self.change(|state| {
            state.pool.expire(now);
            state.pool.release(slot, now);
        });
    }

    /// The connection is of no more use. Its descriptor is about to be closed.
    pub(super) fn discard(&self, slot: SlotId, fd: RawFd) {
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
    pub(super) fn leave(&self, place: &Place, mut driving: Option<Errand>, now: Instant) {
        self.change(|state| {
            state.retire(&place.seat);
            state.pool.cancel(place.id);
            while let Some(message) = place.seat.next() {
                match message {
                    Message::Served(lease) => state.pool.release(lease.slot, now),
                    Message::Drive(errand) => driving = Some(errand),
                    Message::Failed(_) | Message::Forget(_) | Message::Look => {}
                }
            }
        });
        self.hand_over(driving);
    }

    /// One who drives leaves: another one takes the dial over.
    pub(super) fn hand_over(&self, errand: Option<Errand>) {
        let Some(errand) = errand else {
            return;
        };
        let share = self.config.dial.hoped_share(&errand.route);
        let dropped = self.change(|state| {
            let before = state.drivers.len();
            state.drivers.retain(|(slot, _)| *slot != errand.slot);
            if state.drivers.len() == before {
                // It was cancelled meanwhile.
                return Some(errand);
            }
            let origin = state.pool.origin(&errand.route, share);
            match state.assign(origin, errand) {
                Ok(seat) => {
                    seat.ring();
                    None
                }
                Err(errand) => {
                    state.pool.remove(errand.slot);
                    Some(errand)
                }
            }
        });
        drop(dropped);
    }

    /// A dial has made its connection, which goes to whoever is first.
    pub(super) fn dialled(&self, slot: SlotId, cable: Cable, seat: &Arc<Seat>, now: Instant) {
        let capacity = cable.capacity();
        self.change(|state| {
            state.drop_driver(slot, seat);
            state.fds.extend(cable.fds());
            state.pool.dialled(slot, cable, capacity, now);
        });
    }

    /// A dial has failed: another attempt after a pause, in which it keeps its place in the pool, where
    /// the one for whom it was begun wants that and still waits.
    pub(super) fn redial(&self, errand: &mut Errand, error: &CallError, now: Instant) -> bool {
        let whose = self.lock().pool.dialled_for(errand.slot).map(Arc::clone);
        let Some(whose) = whose else {
            return false;
        };
        let failures = whose.count_attempt();
        if !retry::may_redial(&whose.options, error, failures) {
            return false;
        }
        let at = now + whose.options.backoff.pause(failures, retry::draw());
        whose.measure(|waiting| waiting.retry(at));
        errand.dial = None;
        errand.begin_at = Some(at);
        errand.deadline = whose.bound().map(|(at, _)| at);
        // Who waits elsewhere finds that it may wait longer when its time is over.
        true
    }

    /// A dial has failed for good: the one for whom it was begun is told.
    pub(super) fn dial_failed(&self, slot: SlotId, error: CallError, seat: &Arc<Seat>) {
        let told = self.change(|state| {
            state.drop_driver(slot, seat);
            let waiting = state.pool.dial_failed(slot);
            let (id, whose) = waiting.map(|(id, seat)| (id, Arc::clone(seat)))?;
            state.pool.cancel(id);
            state.retire(&whose);
            whose.tell(Message::Failed(Box::new(error)));
            Some(whose)
        });
        if let Some(seat) = told {
            seat.ring();
        }
    }

    /// Starts dials until `route` has `n` connections; the caller drives them.
    pub(super) fn prewarm(&self, route: &Arc<Route>, n: usize) -> Vec<Errand> {
        let share = self.config.dial.hoped_share(route);
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
        own.into_iter().map(|(_, errand)| errand).collect()
    }

    pub(super) fn prewarmed(&self, slot: SlotId, cable: Option<Cable>, now: Instant) {
        let capacity = cable.as_ref().map_or(0, Cable::capacity);
        self.change(|state| match cable {
            Some(cable) => {
                state.fds.extend(cable.fds());
                state.pool.dialled(slot, cable, capacity, now);
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
            for seat in &waiting {
                state.retire(seat);
                seat.tell(Message::Failed(Box::new(CallError::closed())));
            }
            waiting
        });
        for seat in waiting {
            seat.ring();
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
    pub(super) fn abandon(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            for fd in state.fds.drain() {
                // SAFETY: the descriptor belongs to a connection of this pool, which is never dropped
                // in this process (`Line::drop` sees to that), so nobody closes it twice.
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
    ) -> Result<Place, Box<CallError>> {
        self.seats += 1;
        let seat = Arc::new(Seat::new(self.seats, origin, *options, now));
        // Before the pool can have a dial for it.
        self.parked.insert(seat.number, Arc::clone(&seat));
        match self.pool.wait(origin, Arc::clone(&seat), urgent) {
            Ok(id) => Ok(Place { seat, id }),
            Err(seat) => {
                self.parked.remove(&seat.number);
                let rule = "as many calls wait for a connection as max_queue allows";
                let error = CallError::new(CallErrorKind::QueueFull, CallPhase::Pool, rule);
                Err(Box::new(CallError {
                    retryable: true,
                    ..error
                }))
            }
        }
    }

    fn settle(&mut self, after: &mut Aftermath) {
        while let Some(action) = self.pool.next_action() {
            match action {
                Action::Serve(lease, seat) => {
                    self.retire(&seat);
                    seat.tell(Message::Served(lease));
                    after.ring.push(seat);
                }
                Action::Dial(slot, origin) => {
                    let Some(route) = self.pool.key(origin).map(Arc::clone) else {
                        continue;
                    };
                    let whose = self.pool.dialled_for(slot);
                    let errand = Errand {
                        slot,
                        route,
                        dial: None,
                        begin_at: None,
                        deadline: whose.and_then(|seat| seat.bound()).map(|(at, _)| at),
                    };
                    match self.assign(origin, errand) {
                        Ok(seat) => after.ring.push(seat),
                        Err(errand) => self.undriven.push((origin, errand)),
                    }
                }
                Action::Expect(seat) => {
                    let now = Instant::now();
                    seat.measure(|waiting| waiting.expect(now));
                    seat.tell(Message::Look);
                    after.ring.push(seat);
                }
                Action::Queue(seat) => {
                    let now = Instant::now();
                    seat.measure(|waiting| waiting.queue(now));
                    seat.tell(Message::Look);
                    after.ring.push(seat);
                }
                Action::CancelDial(slot) => self.cancel_dial(slot, after),
                Action::Close(cable) => {
                    for fd in cable.fds() {
                        self.fds.remove(&fd);
                    }
                    after.closed.push(cable);
                }
            }
        }
    }

    /// Gives a dial to the first who is parked at this origin.
    fn assign(&mut self, origin: OriginId, errand: Errand) -> Result<Arc<Seat>, Errand> {
        let found = self.parked.iter().find(|(_, seat)| seat.origin == origin);
        let Some(number) = found.map(|(number, _)| *number) else {
            return Err(errand);
        };
        match self.parked.remove(&number) {
            Some(seat) => {
                self.drivers.push((errand.slot, Arc::clone(&seat)));
                seat.tell(Message::Drive(errand));
                Ok(seat)
            }
            None => Err(errand),
        }
    }

    fn cancel_dial(&mut self, slot: SlotId, after: &mut Aftermath) {
        let driver = self.drivers.iter().position(|(of, _)| *of == slot);
        if let Some(at) = driver {
            let (_, seat) = self.drivers.swap_remove(at);
            self.park(&seat);
            seat.tell(Message::Forget(slot));
            after.ring.push(seat);
        } else if let Some(at) = self.undriven.iter().position(|(_, of)| of.slot == slot) {
            after.dropped.push(self.undriven.swap_remove(at).1);
        }
    }

    /// Its dial is over: who drove it is parked like the others.
    fn drop_driver(&mut self, slot: SlotId, seat: &Arc<Seat>) {
        let before = self.drivers.len();
        self.drivers.retain(|(of, _)| *of != slot);
        if self.drivers.len() < before {
            self.park(seat);
        }
    }

    fn park(&mut self, seat: &Arc<Seat>) {
        if !seat.is_over() {
            self.parked.insert(seat.number, Arc::clone(seat));
        }
    }

    /// Its wait is over: it drives nothing new.
    fn retire(&mut self, seat: &Seat) {
        seat.set_over();
        self.parked.remove(&seat.number);
    }
}
