//! The pool against what anybody can check by counting, under random histories.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

pub(super) type Conn = u32;
pub(super) type Who = u32;

#[derive(Clone, Debug)]
enum Step {
    /// A call to the origin of that number.
    Ask(usize),
    /// The n-th of the leases, dials, idle connections or waiters there are.
    Release(usize),
    Break(usize),
    Retire(usize),
    BreakIdle(usize),
    DialSucceeds(usize),
    DialFails(usize),
    /// The n-th connection takes so many from now on.
    Change(usize, u32),
    Cancel(usize),
    Prewarm(usize, usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64_usize;
    prop_oneof![
        6 => (0..4_usize).prop_map(Step::Ask),
        4 => n.clone().prop_map(Step::Release),
        1 => n.clone().prop_map(Step::Break),
        1 => n.clone().prop_map(Step::Retire),
        1 => n.clone().prop_map(Step::BreakIdle),
        5 => n.clone().prop_map(Step::DialSucceeds),
        1 => n.clone().prop_map(Step::DialFails),
        1 => (n.clone(), 0..5_u32).prop_map(|(n, capacity)| Step::Change(n, capacity)),
        2 => n.prop_map(Step::Cancel),
        1 => (0..4_usize, 0..3_usize).prop_map(|(origin, n)| Step::Prewarm(origin, n)),
        1 => (0..4_u64).prop_map(Step::Pass),
    ]
}

#[derive(Clone, Debug)]
struct Live {
    slot: SlotId,
    origin: usize,
    conn: Conn,
    leases: Vec<Who>,
    capacity: u32,
    retired: bool,
    since: Instant,
}

/// The expected state, kept in plain lists.
struct Model {
    pool: Pool<usize, Conn, Who>,
    limits: PoolLimits,
    capacity: u32,
    /// Expected capacity of a dial before anything is known.
    expected: u32,
    /// Expected capacity of a dial, by origin.
    shares: [usize; 4],
    keys: Vec<Arc<usize>>,
    now: Instant,
    dials: Vec<(SlotId, usize)>,
    live: Vec<Live>,
    waiting: HashMap<usize, VecDeque<(WaiterId, Who)>>,
    /// Waiters notified that a dial is for them.
    expecting: HashSet<Who>,
    next: u32,
}

impl Model {
    fn new(limits: PoolLimits, capacity: u32, expected: u32) -> Self {
        Self {
            pool: Pool::new(limits),
            limits,
            capacity,
            expected,
            shares: [expected as usize; 4],
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
            Step::Ask(origin) => self.ask(origin),
            Step::Release(n) => self.release(n),
            Step::Break(n) => {
                if let Some((at, _)) = self.nth_lease(n) {
                    let gone = self.live.remove(at);
                    self.pool.remove(gone.slot);
                }
            }
            Step::Retire(n) => {
                if let Some((at, _)) = self.nth_lease(n) {
                    self.live[at].retired = true;
                    self.pool.retire(self.live[at].slot);
                }
            }
            Step::BreakIdle(n) => {
                let idle: Vec<_> = (0..self.live.len())
                    .filter(|&at| self.live[at].leases.is_empty())
                    .collect();
                if !idle.is_empty() {
                    let gone = self.live.remove(idle[n % idle.len()]);
                    self.pool.remove(gone.slot);
                }
            }
            Step::DialSucceeds(n) => {
                if !self.dials.is_empty() {
                    let (slot, origin) = self.dials.remove(n % self.dials.len());
                    self.next += 1;
                    // Not more than the last one took, until it says otherwise.
                    let capacity = self.capacity.min(self.shares[origin] as u32);
                    self.shares[origin] = capacity as usize;
                    self.live.push(Live {
                        slot,
                        origin,
                        conn: self.next,
                        leases: Vec::new(),
                        capacity,
                        retired: false,
                        since: self.now,
                    });
                    self.pool.dialled(slot, self.next, self.capacity, self.now);
                }
            }
            Step::DialFails(n) => self.fail_dial(n),
            Step::Change(n, capacity) => self.change(n, capacity),
            Step::Cancel(n) => self.cancel(n),
            Step::Prewarm(origin, n) => {
                let id = self.pool.origin(&self.keys[origin], self.expected);
                self.pool.prewarm(id, n);
            }
            Step::Pass(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.pool.expire(self.now);
                let next = self.pool.next_expiry();
                assert!(next.is_none_or(|at| at > self.now), "expired and kept");
            }
        }
        self.act();
        self.check();
    }

    fn ask(&mut self, origin: usize) {
        self.next += 1;
        let who = self.next;
        let id = self.pool.origin(&self.keys[origin], self.expected);
        if let Some(lease) = self.pool.acquire(id, self.now) {
            assert!(self.queue(origin).is_empty(), "overtook a waiter");
            return self.leased(&lease, who, origin);
        }
        match self.pool.wait(id, who, false) {
            Ok(waiter) => self.queue(origin).push_back((waiter, who)),
            Err(refused) => {
                assert_eq!(refused, who);
                let queued: usize = (0..4).map(|origin| self.queued(origin)).sum();
                // Those who expected a connection that takes fewer came on top.
                let is_full = self.limits.max_queue.is_some_and(|most| queued >= most);
                assert!(is_full, "refused beside room");
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
        waiting.saturating_sub(dials * self.shares[origin])
    }

    fn change(&mut self, n: usize, capacity: u32) {
        if self.live.is_empty() {
            return;
        }
        let at = n % self.live.len();
        let live = &mut self.live[at];
        let changes = std::mem::replace(&mut live.capacity, capacity) != capacity;
        if changes && !live.retired && live.leases.len() < capacity as usize {
            self.shares[live.origin] = capacity as usize;
        }
        self.pool.set_capacity(live.slot, capacity);
    }

    fn queue(&mut self, origin: usize) -> &mut VecDeque<(WaiterId, Who)> {
        self.waiting.entry(origin).or_default()
    }

    fn leased(&mut self, lease: &Lease<Conn>, who: Who, origin: usize) {
        let live = self
            .live
            .iter_mut()
            .find(|live| live.slot == lease.slot)
            .expect("a connection that is open");
        assert_eq!((live.conn, live.origin), (lease.conn, origin));
        assert!(!live.retired);
        live.leases.push(who);
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
            // A shared connection may be given up for an origin that has none.
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
        self.shares[origin] = 1;
        let first = self
            .pool
            .dial_failed(slot)
            .map(|(waiter, &who)| (waiter, who));
        if let Some((waiter, who)) = first {
            assert!(self.queue(origin).contains(&(waiter, who)));
            // Every second one tries again.
            if who % 2 == 0 {
                self.queue(origin).retain(|&(id, _)| id != waiter);
                assert_eq!(self.pool.cancel(waiter), Some(who));
                self.act();
                self.expecting.remove(&who);
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
        let (origin, (waiter, who)) = all[n % all.len()];
        self.queue(origin).retain(|&(id, _)| id != waiter);
        assert_eq!(self.pool.cancel(waiter), Some(who));
        self.act();
        self.expecting.remove(&who);
        assert_eq!(self.pool.cancel(waiter), None, "cancelled twice");
    }

    fn act(&mut self) {
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
                    let gone = self.live.remove(at.expect("open until now"));
                    assert!(gone.leases.is_empty(), "closed while in use");
                }
                Action::AwaitDial(who) => assert!(self.expecting.insert(who)),
                Action::AwaitFree(who) => assert!(self.expecting.remove(&who)),
                Action::Assign(lease, who) => {
                    self.expecting.remove(&who);
                    let origin = self
                        .live
                        .iter()
                        .find(|live| live.slot == lease.slot)
                        .expect("open")
                        .origin;
                    let first = self.queue(origin).pop_front();
                    assert_eq!(
                        first.map(|(_, who)| who),
                        Some(who),
                        "not the first in line"
                    );
                    self.leased(&lease, who, origin);
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
            let expect = |&(at, &(_, who)): &(usize, &(WaiterId, Who))| {
                (at < dials * self.shares[origin]) == self.expecting.contains(&who)
            };
            let queue = self.waiting.get(&origin).into_iter().flatten();
            assert!(queue.enumerate().all(|entry| expect(&entry)));
            let free = |live: &&Live| {
                let age = self.now - live.since;
                let is_old = (self.limits.max_connection_age).is_some_and(|most| age >= most);
                let is_free = !live.retired && live.leases.len() < live.capacity as usize;
                own(live) && is_free && !is_old
            };
            assert!(
                waiting == 0 || !self.live.iter().any(|live| free(&live)),
                "waits beside a free connection of {key}"
            );
            if waiting > dials * self.shares[origin] && slots < self.limits.max_connections_per_host
            {
                let surplus = |dial: &(SlotId, usize)| {
                    let dials = self.dials.iter().filter(|other| other.1 == dial.1).count();
                    let waiting = self.waiting.get(&dial.1).map_or(0, VecDeque::len);
                    dials > waiting.div_ceil(self.shares[dial.1])
                };
                assert_eq!(
                    total, self.limits.max_connections,
                    "waits while there is room"
                );
                assert_eq!(idle, 0, "waits while another origin's connection is idle");
                assert!(
                    !self.dials.iter().any(surplus),
                    "waits beside a useless dial"
                );
            }
        }
    }

    /// Everything is given back, and nothing is left over.
    fn finish(mut self) {
        for (_, queue) in std::mem::take(&mut self.waiting) {
            for (waiter, who) in queue {
                assert_eq!(self.pool.cancel(waiter), Some(who));
            }
        }
        self.act();
        while self.nth_lease(0).is_some() {
            self.release(0);
            self.act();
        }
        assert_eq!(self.pool.status().active, 0);
        assert!(self.pool.close().is_empty());
        self.act();
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
    fn the_rules_hold_in_every_history(
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

pub(super) fn pool(max_connections: usize, per_host: usize) -> Pool<usize, Conn, Who> {
    Pool::new(PoolLimits {
        max_connections,
        max_connections_per_host: per_host,
        ..PoolLimits::default()
    })
}

/// Carries every dial out at once; returns who was served.
fn dial_all(pool: &mut Pool<usize, Conn, Who>, now: Instant) -> Vec<(Who, Lease<Conn>)> {
    let mut served = Vec::new();
    let mut conn = 0;
    while let Some(action) = pool.next_action() {
        match action {
            Action::Dial(slot, _) => {
                conn += 1;
                pool.dialled(slot, conn, 1, now);
            }
            Action::Assign(lease, who) => served.push((who, lease)),
            _ => {}
        }
    }
    served
}

#[test]
fn the_connection_used_last_is_used_next() {
    let (mut pool, now) = (pool(9, 9), Instant::now());
    let origin = pool.origin(&Arc::new(0), 1);
    for who in 0..3 {
        assert!(pool.wait(origin, who, false).is_ok());
    }
    let served = dial_all(&mut pool, now);
    assert_eq!(served.len(), 3);
    for (_, lease) in &served {
        assert!(!lease.reused);
        pool.release(lease.slot, now);
    }
    let lease = pool.acquire(origin, now).unwrap();
    assert_eq!((lease.slot, lease.reused), (served[2].1.slot, true));
}

#[test]
fn an_origin_without_a_connection_is_not_starved_by_one_under_load() {
    let (mut pool, now) = (pool(1, 1), Instant::now());
    let (busy, quiet) = (pool.origin(&Arc::new(0), 1), pool.origin(&Arc::new(1), 1));
    assert!(pool.wait(busy, 0, false).is_ok());
    let first = dial_all(&mut pool, now).remove(0).1;
    assert!(pool.wait(busy, 1, false).is_ok());
    assert!(pool.wait(quiet, 2, false).is_ok());
    assert!(pool.wait(busy, 3, false).is_ok());
    // 1 came first and is served by reuse; 2 came before 3 and has no connection that could serve it.
    pool.release(first.slot, now);
    let served = dial_all(&mut pool, now);
    assert_eq!(served.iter().map(|(who, _)| *who).collect::<Vec<_>>(), [1]);
    pool.release(served[0].1.slot, now);
    let served = dial_all(&mut pool, now);
    assert_eq!(served.iter().map(|(who, _)| *who).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_full_queue_refuses_all_but_urgent_waiters() {
    let mut pool: Pool<usize, Conn, Who> = Pool::new(PoolLimits {
        max_connections_per_host: 1,
        max_queue: Some(1),
        ..PoolLimits::default()
    });
    let origin = pool.origin(&Arc::new(0), 1);
    assert!(pool.wait(origin, 0, false).is_ok());
    assert!(pool.wait(origin, 1, false).is_ok());
    assert_eq!(pool.wait(origin, 2, false), Err(2));
    assert!(pool.wait(origin, 3, true).is_ok());
    let served = dial_all(&mut pool, Instant::now());
    assert_eq!(served[0].0, 3, "an urgent waiter stands in front");
}

#[test]
fn the_queue_is_as_long_as_it_may_be_whatever_else_is_dialled() {
    let mut pool: Pool<usize, Conn, Who> = Pool::new(PoolLimits {
        max_connections_per_host: 1,
        max_queue: Some(1),
        ..PoolLimits::default()
    });
    for other in 1..9 {
        let other = pool.origin(&Arc::new(other), 1);
        pool.prewarm(other, 1);
    }
    let origin = pool.origin(&Arc::new(0), 1);
    assert!(pool.wait(origin, 0, false).is_ok(), "has a dial");
    assert!(pool.wait(origin, 1, false).is_ok(), "the one that may wait");
    assert_eq!(pool.wait(origin, 2, false), Err(2));
    let elsewhere = pool.origin(&Arc::new(9), 1);
    assert!(pool.wait(elsewhere, 3, false).is_ok(), "waits for nobody");
}

#[test]
fn a_dial_fails_the_one_it_was_begun_for_and_leaves_with_it() {
    let (mut pool, now) = (pool(9, 9), Instant::now());
    let origin = pool.origin(&Arc::new(0), 1);
    let waiters = [0, 1, 2].map(|who| pool.wait(origin, who, false).unwrap());
    let mut dials = Vec::new();
    while let Some(action) = pool.next_action() {
        if let Action::Dial(slot, _) = action {
            dials.push(slot);
        }
    }
    assert_eq!(
        dials
            .iter()
            .map(|&dial| *pool.dialled_for(dial).unwrap())
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(pool.dial_failed(dials[1]), Some((waiters[1], &1)));
    pool.cancel(waiters[1]);
    pool.cancel(waiters[0]);
    assert_eq!(
        pool.dialled_for(dials[0]),
        None,
        "cancelled with its waiter"
    );
    assert_eq!(pool.dialled_for(dials[2]), Some(&2));
    // Its own connection serves somebody else: the dial that goes on is nobody's.
    pool.wait(origin, 3, true).unwrap();
    pool.dialled(dials[2], 7, 1, now);
    assert!(pool.next_action().is_some());
    assert_eq!(pool.status().waiting, 1);
}

#[test]
fn unused_origins_are_forgotten_and_used_ones_are_not() {
    let mut pool = pool(10, 10);
    let kept = Arc::new(0);
    let origin = pool.origin(&kept, 1);
    assert!(pool.wait(origin, 0, false).is_ok());
    for key in 1..100_000 {
        pool.origin(&Arc::new(key), 1);
    }
    assert_eq!(pool.origin(&kept, 1), origin);
    assert!(pool.origins.len() <= 2048);
    assert_eq!(pool.status_by_origin().count(), 1);
}
