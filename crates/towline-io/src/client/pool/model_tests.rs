//! The pool compared with a plain model, under random histories.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::tests::{Conn, Token};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// A call to the origin with this number.
    Acquire(usize),
    /// The n-th of the current leases, dials, idle connections or waiters.
    Release(usize),
    Remove(usize),
    Retire(usize),
    RemoveIdle(usize),
    /// Whether the capacity is known.
    DialSucceeds(usize, bool),
    DialFails(usize),
    /// Sets the capacity of the n-th connection.
    SetCapacity(usize, u32),
    Cancel(usize),
    Prewarm(usize, usize),
    AdvanceClock(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64_usize;
    prop_oneof![
        6 => (0..4_usize).prop_map(Step::Acquire),
        4 => n.clone().prop_map(Step::Release),
        1 => n.clone().prop_map(Step::Remove),
        1 => n.clone().prop_map(Step::Retire),
        1 => n.clone().prop_map(Step::RemoveIdle),
        5 => (n.clone(), any::<bool>()).prop_map(|(n, is_known)| Step::DialSucceeds(n, is_known)),
        1 => n.clone().prop_map(Step::DialFails),
        1 => (n.clone(), 0..5_u32).prop_map(|(n, capacity)| Step::SetCapacity(n, capacity)),
        2 => n.prop_map(Step::Cancel),
        1 => (0..4_usize, 0..3_usize).prop_map(|(origin, n)| Step::Prewarm(origin, n)),
        1 => (0..4_u64).prop_map(Step::AdvanceClock),
    ]
}

#[derive(Clone, Debug)]
struct Live {
    slot: SlotId,
    origin: usize,
    conn: Conn,
    leases: Vec<Token>,
    capacity: u32,
    is_provisional: bool,
    retired: bool,
    since: Instant,
}

/// The expected state, kept in plain lists.
struct Model {
    pool: Pool<usize, Conn, Token>,
    limits: PoolLimits,
    capacity: u32,
    /// Expected capacity of a dial before anything is known.
    expected: u32,
    /// Expected capacity of a dial, by origin.
    expected_capacities: [usize; 4],
    keys: Vec<Arc<usize>>,
    now: Instant,
    dials: Vec<(SlotId, usize)>,
    live: Vec<Live>,
    waiting: HashMap<usize, VecDeque<(WaiterId, Token)>>,
    /// Waiters notified that a dial is for them.
    expecting: HashSet<Token>,
    next: u32,
}

impl Model {
    fn new(limits: PoolLimits, capacity: u32, expected: u32) -> Self {
        Self {
            pool: Pool::new(limits),
            limits,
            capacity,
            expected,
            expected_capacities: [expected as usize; 4],
            keys: (0..4).map(Arc::new).collect(),
            now: Instant::now(),
            dials: Vec::new(),
            live: Vec::new(),
            waiting: HashMap::new(),
            expecting: HashSet::new(),
            next: 0,
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Acquire(origin) => self.acquire(origin),
            Step::Release(n) => self.release(n),
            Step::Remove(n) => {
                if let Some((at, _)) = self.nth_lease(n) {
                    self.end_provisional(at);
                    let removed = self.live.remove(at);
                    self.pool.remove(removed.slot);
                }
            }
            Step::Retire(n) => {
                if let Some((at, _)) = self.nth_lease(n) {
                    self.end_provisional(at);
                    self.live[at].retired = true;
                    self.pool.retire(self.live[at].slot);
                }
            }
            Step::RemoveIdle(n) => {
                let idle: Vec<_> = (0..self.live.len())
                    .filter(|&at| self.live[at].leases.is_empty())
                    .collect();
                if !idle.is_empty() {
                    let at = idle[n % idle.len()];
                    self.end_provisional(at);
                    let removed = self.live.remove(at);
                    self.pool.remove(removed.slot);
                }
            }
            Step::DialSucceeds(n, is_known) => {
                if !self.dials.is_empty() {
                    let (slot, origin) = self.dials.remove(n % self.dials.len());
                    self.next += 1;
                    let known = is_known.then_some(self.capacity);
                    if is_known {
                        self.expected_capacities[origin] = self.capacity as usize;
                    }
                    self.live.push(Live {
                        slot,
                        origin,
                        conn: self.next,
                        leases: Vec::new(),
                        capacity: known.unwrap_or(1),
                        is_provisional: !is_known,
                        retired: false,
                        since: self.now,
                    });
                    self.pool.dialled(slot, self.next, known, self.now);
                }
            }
            Step::DialFails(n) => self.fail_dial(n),
            Step::SetCapacity(n, capacity) => self.set_capacity(n, capacity),
            Step::Cancel(n) => self.cancel(n),
            Step::Prewarm(origin, n) => {
                let id = self.pool.origin(&self.keys[origin], self.expected);
                self.pool.prewarm(id, n);
            }
            Step::AdvanceClock(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.pool.expire(self.now);
                let next = self.pool.next_expiry();
                assert!(
                    next.is_none_or(|at| at > self.now),
                    "an expired connection is kept"
                );
            }
        }
        self.run_actions();
        self.check();
    }

    fn acquire(&mut self, origin: usize) {
        self.next += 1;
        let token = self.next;
        let id = self.pool.origin(&self.keys[origin], self.expected);
        if let Some(lease) = self.pool.acquire(id, self.now) {
            assert!(self.queue(origin).is_empty(), "a call preceded a waiter");
            return self.leased(&lease, token, origin);
        }
        match self.pool.wait(id, token, false) {
            Ok(waiter) => self.queue(origin).push_back((waiter, token)),
            Err(refused) => {
                assert_eq!(refused, token);
                let queued: usize = (0..4).map(|origin| self.queued(origin)).sum();
                // Waiters whose dial had a lower capacity than expected are queued in addition.
                let is_full = self.limits.max_queue.is_some_and(|limit| queued >= limit);
                assert!(is_full, "refused although the queue has room");
            }
        }
    }

    /// Number of waiters for which no dial is in progress.
    fn queued(&self, origin: usize) -> usize {
        let id = |slot: &usize| {
            self.pool
                .slots
                .get(*slot)
                .is_some_and(|slot| slot.open.is_none())
        };
        let dials = (0..64)
            .filter(id)
            .filter(|&slot| {
                let index = self.pool.slots[slot].origin;
                self.pool
                    .origins
                    .peek(index)
                    .is_some_and(|of| *of.key == origin)
            })
            .count();
        let waiting = self.waiting.get(&origin).map_or(0, VecDeque::len);
        waiting.saturating_sub(self.expected_by(origin, dials))
    }

    /// Number of waiters that this number of dials and the provisional connections are expected to serve.
    fn expected_by(&self, origin: usize, dials: usize) -> usize {
        dials * self.expected_capacities[origin] + self.expected_of_provisional(origin)
    }

    fn expected_of_provisional(&self, origin: usize) -> usize {
        let own = |live: &&Live| live.origin == origin && live.is_provisional;
        self.live.iter().filter(own).count() * (self.expected_capacities[origin] - 1)
    }

    /// A connection fails.
    fn end_provisional(&mut self, at: usize) {
        let live = &mut self.live[at];
        if std::mem::take(&mut live.is_provisional) {
            self.expected_capacities[live.origin] = 1;
        }
    }

    fn set_capacity(&mut self, n: usize, capacity: u32) {
        if self.live.is_empty() {
            return;
        }
        let at = n % self.live.len();
        let live = &mut self.live[at];
        let changes = std::mem::replace(&mut live.capacity, capacity) != capacity;
        let was_provisional = std::mem::take(&mut live.is_provisional);
        let has_room = !live.retired && live.leases.len() < capacity as usize;
        if (changes && has_room) || (was_provisional && (has_room || capacity > 0)) {
            self.expected_capacities[live.origin] = capacity as usize;
        }
        self.pool.set_capacity(live.slot, capacity);
    }

    fn queue(&mut self, origin: usize) -> &mut VecDeque<(WaiterId, Token)> {
        self.waiting.entry(origin).or_default()
    }

    fn leased(&mut self, lease: &Lease<Conn>, token: Token, origin: usize) {
        let live = self
            .live
            .iter_mut()
            .find(|live| live.slot == lease.slot)
            .expect("a connection that is open");
        assert_eq!((live.conn, live.origin), (lease.conn, origin));
        assert!(!live.retired);
        live.leases.push(token);
        assert!(live.leases.len() <= live.capacity as usize);
    }

    fn nth_lease(&self, n: usize) -> Option<(usize, usize)> {
        let all: Vec<_> = (0..self.live.len())
            .flat_map(|at| (0..self.live[at].leases.len()).map(move |lease| (at, lease)))
            .collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn release(&mut self, n: usize) {
        if let Some((at, lease)) = self.nth_lease(n) {
            self.live[at].leases.remove(lease);
            let slot = self.live[at].slot;
            self.pool.release(slot, self.now);
            // A shared connection may be retired for an origin that has none.
            let open = self
                .pool
                .find(slot)
                .and_then(|index| self.pool.slots[index].open.as_ref());
            self.live[at].retired |= open.is_some_and(|open| open.retired);
        }
    }

    fn fail_dial(&mut self, n: usize) {
        if self.dials.is_empty() {
            return;
        }
        let (slot, origin) = self.dials.remove(n % self.dials.len());
        self.expected_capacities[origin] = 1;
        let first = self
            .pool
            .dial_failed(slot)
            .map(|(waiter, &token)| (waiter, token));
        if let Some((waiter, token)) = first {
            assert!(self.queue(origin).contains(&(waiter, token)));
            // Every second waiter waits for another attempt.
            if token % 2 == 0 {
                self.queue(origin).retain(|&(id, _)| id != waiter);
                assert_eq!(self.pool.cancel(waiter), Some(token));
                self.run_actions();
                self.expecting.remove(&token);
            }
        }
    }

    fn cancel(&mut self, n: usize) {
        let all: Vec<_> = self
            .waiting
            .iter()
            .flat_map(|(&origin, queue)| queue.iter().map(move |&entry| (origin, entry)))
            .collect();
        if all.is_empty() {
            return;
        }
        let (origin, (waiter, token)) = all[n % all.len()];
        self.queue(origin).retain(|&(id, _)| id != waiter);
        assert_eq!(self.pool.cancel(waiter), Some(token));
        self.run_actions();
        self.expecting.remove(&token);
        assert_eq!(self.pool.cancel(waiter), None, "cancelled twice");
    }

    fn run_actions(&mut self) {
        while let Some(action) = self.pool.next_action() {
            match action {
                Action::Dial(slot, origin) => {
                    let key = **self.pool.key(origin).expect("known");
                    self.dials.push((slot, key));
                }
                Action::CancelDial(slot) => {
                    let before = self.dials.len();
                    self.dials.retain(|&(dial, _)| dial != slot);
                    assert_eq!(self.dials.len() + 1, before);
                }
                Action::Close(conn) => {
                    let at = self.live.iter().position(|live| live.conn == conn);
                    let removed = self.live.remove(at.expect("open until now"));
                    assert!(removed.leases.is_empty(), "closed while in use");
                }
                Action::AwaitDial(token) => assert!(self.expecting.insert(token)),
                Action::AwaitFree(token) => assert!(self.expecting.remove(&token)),
                Action::Assign(lease, token) => {
                    self.expecting.remove(&token);
                    let origin = self
                        .live
                        .iter()
                        .find(|live| live.slot == lease.slot)
                        .expect("open")
                        .origin;
                    let first = self.queue(origin).pop_front();
                    assert_eq!(
                        first.map(|(_, token)| token),
                        Some(token),
                        "not the first waiter"
                    );
                    self.leased(&lease, token, origin);
                }
            }
        }
    }

    fn check(&self) {
        let total = self.live.len() + self.dials.len();
        let idle = self
            .live
            .iter()
            .filter(|live| live.leases.is_empty())
            .count();
        let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
        let status = self.pool.status();
        assert_eq!(
            (
                status.active + status.idle,
                status.idle,
                status.dialling,
                status.waiting
            ),
            (self.live.len(), idle, self.dials.len(), waiting)
        );
        assert!(total <= self.limits.max_connections);
        assert!(idle <= self.limits.max_keepalive);
        for (origin, key) in self.keys.iter().enumerate() {
            let dials = self.dials.iter().filter(|dial| dial.1 == origin).count();
            let own = |live: &&Live| live.origin == origin;
            let slots = dials + self.live.iter().filter(own).count();
            assert!(slots <= self.limits.max_connections_per_host);
            let waiting = self.waiting.get(&origin).map_or(0, VecDeque::len);
            let expect = |&(at, &(_, token)): &(usize, &(WaiterId, Token))| {
                (at < self.expected_by(origin, dials)) == self.expecting.contains(&token)
            };
            let queue = self.waiting.get(&origin).into_iter().flatten();
            assert!(queue.enumerate().all(|entry| expect(&entry)));
            let free = |live: &&Live| {
                let age = self.now - live.since;
                let is_old = (self.limits.max_connection_age).is_some_and(|limit| age >= limit);
                let is_free = !live.retired && live.leases.len() < live.capacity as usize;
                own(live) && is_free && !is_old
            };
            assert!(
                waiting == 0 || !self.live.iter().any(|live| free(&live)),
                "a waiter although a connection of {key} is free"
            );
            if waiting > self.expected_by(origin, dials)
                && slots < self.limits.max_connections_per_host
            {
                let surplus = |dial: &(SlotId, usize)| {
                    let dials = self.dials.iter().filter(|other| other.1 == dial.1).count();
                    let waiting = self.waiting.get(&dial.1).map_or(0, VecDeque::len);
                    let unserved = waiting.saturating_sub(self.expected_of_provisional(dial.1));
                    dials > unserved.div_ceil(self.expected_capacities[dial.1])
                };
                assert_eq!(
                    total, self.limits.max_connections,
                    "a waiter although a connection can be opened"
                );
                assert_eq!(
                    idle, 0,
                    "a waiter although another origin's connection is idle"
                );
                assert!(
                    !self.dials.iter().any(surplus),
                    "a waiter although another origin has a surplus dial"
                );
            }
        }
    }

    /// Releases everything and checks that the pool is empty.
    fn finish(mut self) {
        for (_, queue) in std::mem::take(&mut self.waiting) {
            for (waiter, token) in queue {
                assert_eq!(self.pool.cancel(waiter), Some(token));
            }
        }
        self.run_actions();
        while self.nth_lease(0).is_some() {
            self.release(0);
            self.run_actions();
        }
        assert_eq!(self.pool.status().active, 0);
        assert!(self.pool.close().is_empty());
        self.run_actions();
        assert_eq!(self.pool.status(), PoolStatus::default());
        assert!(self.live.is_empty() && self.dials.is_empty());
    }
}

fn limits() -> impl Strategy<Value = PoolLimits> {
    let sizes = (1..8_usize, 1..5_usize, 0..6_usize);
    let times = (prop::option::of(1..4_u64), prop::option::of(1..8_u64));
    (sizes, times, prop::option::of(0..4_usize)).prop_map(|(sizes, times, max_queue)| PoolLimits {
        max_connections: sizes.0,
        max_connections_per_host: sizes.1,
        max_keepalive: sizes.2,
        keepalive_expiry: times.0.map(Duration::from_secs),
        max_connection_age: times.1.map(Duration::from_secs),
        max_queue,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_matches_the_model_in_random_histories(
        limits in limits(),
        capacity in 1..4_u32,
        expected in 1..4_u32,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(limits, capacity, expected);
        for step in &steps {
            model.run(step);
        }
        model.finish();
    }
}
