//! Simulation of workers that accept by the rule of [`balance`](super::balance), on a virtual clock.
//!
//! A new connection wakes the first sleeping worker in the order of registration (`EPOLLEXCLUSIVE`, a worker that blocks in the
//! poll that has the listener), or all of them, one after the other or in any order (the poll is within another one). A worker
//! that pauses leaves that order, and comes back at its end. A turn takes time, in which others accept. With `SO_REUSEPORT` each
//! worker has a queue of its own, which a hash selects, and no rule can help. `docs/cores.md` has the table that
//! `shares_and_wake_ups` prints.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers and positive times"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::balance::{ACCEPTS_PER_TURN, Balance, PAUSE};

const PAUSE_NS: u64 = PAUSE.as_nanos() as u64;
/// From the arrival of a connection to the turn of a worker that slept.
const WAKE_NS: u64 = 20_000;
const ACCEPT_NS: u64 = 10_000;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wakes {
    First,
    AllInOrder,
    All,
    /// The worker whose queue the connection is in.
    Own,
}

const WAKES: [Wakes; 3] = [Wakes::First, Wakes::AllInOrder, Wakes::All];

#[derive(Clone, Copy)]
struct Load {
    connections: u64,
    /// Mean time between two; 0: all at once.
    gap_ns: u64,
    /// Mean duration of a connection; 0: it stays open.
    life_ns: u64,
    /// One in so many lives for a second; 0: none.
    long_every: u64,
    /// Work for the first request of a connection.
    service_ns: u64,
}

#[derive(Clone, Copy)]
struct Setting {
    workers: usize,
    wakes: Wakes,
    /// Whether the rule is followed.
    balances: bool,
    /// Workers that are blocked from the start.
    stuck: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive,
    Turn(usize),
    Leave(usize),
}

#[derive(Default)]
struct Worker {
    open: u64,
    /// Open connections times nanoseconds, until `counted_at`.
    integral: u128,
    counted_at: u64,
    balance: Balance,
    /// A turn is due.
    awake: bool,
}

struct Simulation {
    setting: Setting,
    load: Load,
    began: Instant,
    /// Nanoseconds since then.
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    random: u64,
    workers: Vec<Worker>,
    /// Workers with a registered listener, in the order in which the kernel wakes them.
    order: Vec<usize>,
    /// The kernel's queue, or that of each worker: times of arrival.
    queues: Vec<VecDeque<u64>>,
    longest_wait: u64,
    opened: u64,
    wake_ups: u64,
    /// Calls of `accept` that find nothing although the worker was woken for it.
    in_vain: u64,
}

impl Simulation {
    fn new(setting: Setting, load: Load) -> Self {
        let mut simulation = Self {
            setting,
            load,
            began: Instant::now(),
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            workers: (0..setting.workers).map(|_| Worker::default()).collect(),
            order: (0..setting.workers).collect(),
            queues: vec![VecDeque::new(); setting.workers],
            longest_wait: 0,
            opened: 0,
            wake_ups: 0,
            in_vain: 0,
        };
        let mut at = 0;
        for _ in 0..load.connections {
            at += simulation.about(load.gap_ns);
            simulation.schedule(at, Event::Arrive);
        }
        simulation
    }

    fn run(mut self) -> Self {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Arrive => self.arrive(),
                Event::Turn(worker) => self.turn(worker),
                Event::Leave(worker) => self.change(worker, |open| open - 1),
            }
        }
        let left = self.queues.iter().skip(self.setting.stuck);
        assert!(
            left.map(VecDeque::len).sum::<usize>() == 0,
            "connections that nobody accepts"
        );
        self
    }

    fn arrive(&mut self) {
        let chosen = (self.next_random() % self.setting.workers as u64) as usize;
        let queue = self.queue_of(chosen);
        self.queues[queue].push_back(self.now);
        let asleep = |worker: &usize| !self.workers[*worker].awake;
        let mut sleeping: Vec<usize> = self.order.iter().copied().filter(asleep).collect();
        match self.setting.wakes {
            Wakes::First => sleeping.truncate(1),
            Wakes::Own => sleeping.retain(|worker| *worker == chosen),
            Wakes::AllInOrder | Wakes::All => {}
        }
        self.wake_ups += sleeping.len() as u64;
        for (place, worker) in (0..).zip(sleeping) {
            self.workers[worker].awake = true;
            let later = match self.setting.wakes {
                Wakes::AllInOrder => place * WAKE_NS / 4,
                Wakes::First | Wakes::All | Wakes::Own => self.about(WAKE_NS / 4),
            };
            self.schedule(self.now + WAKE_NS + later, Event::Turn(worker));
        }
    }

    /// As `Engine::accept`.
    fn turn(&mut self, index: usize) {
        if index < self.setting.stuck {
            return;
        }
        let now = self.began + Duration::from_nanos(self.now);
        if self.workers[index].balance.resume(now) {
            self.order.push(index);
        }
        let mut end = self.now;
        let mut left = ACCEPTS_PER_TURN;
        while left > 0 && self.workers[index].balance.paused_until().is_none() {
            let queue = self.queue_of(index);
            let Some(arrived) = self.queues[queue].pop_front() else {
                self.in_vain += u64::from(left == ACCEPTS_PER_TURN);
                self.workers[index].balance.found_none();
                break;
            };
            left -= 1;
            end += ACCEPT_NS + self.load.service_ns;
            self.longest_wait = self.longest_wait.max(self.now - arrived);
            self.change(index, |open| open + 1);
            if self.load.life_ns > 0 {
                self.opened += 1;
                let every = self.load.long_every;
                let is_long = every > 0 && self.opened.is_multiple_of(every);
                let life_ns = if is_long {
                    SECOND_NS
                } else {
                    self.load.life_ns
                };
                let at = end + self.about(life_ns);
                self.schedule(at, Event::Leave(index));
            }
            let fewest = self.workers.iter().map(|worker| worker.open).min();
            let worker = &mut self.workers[index];
            let fewest = fewest.unwrap_or(worker.open);
            if self.setting.balances && worker.balance.accepted(worker.open, fewest, now) {
                self.order.retain(|other| *other != index);
            }
        }
        match self.workers[index].balance.paused_until() {
            Some(_) => self.schedule(end.max(self.now + PAUSE_NS), Event::Turn(index)),
            None if left == ACCEPTS_PER_TURN => self.workers[index].awake = false,
            None => self.schedule(end, Event::Turn(index)),
        }
    }

    fn change(&mut self, index: usize, by: impl Fn(u64) -> u64) {
        let worker = &mut self.workers[index];
        worker.integral += u128::from(worker.open) * u128::from(self.now - worker.counted_at);
        worker.counted_at = self.now;
        worker.open = by(worker.open);
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn queue_of(&self, worker: usize) -> usize {
        if self.setting.wakes == Wakes::Own {
            worker
        } else {
            0
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// An exponential time with this mean.
    fn about(&mut self, mean: u64) -> u64 {
        let uniform = (self.next_random() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - uniform).ln() * mean as f64) as u64
    }

    /// Connections of the workers: at the end, or on average if they do not stay. Those of the least and the most loaded
    /// worker, as parts of the mean.
    fn shares(&self) -> (f64, f64) {
        let of = |worker: &Worker| match self.load.life_ns {
            0 => worker.open as f64,
            _ => worker.integral as f64,
        };
        let all: Vec<f64> = self.workers.iter().map(of).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let least = all.iter().copied().fold(f64::MAX, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        (least / mean, most / mean)
    }
}

/// Loads that give each worker about 100 connections.
fn loads(workers: usize) -> [(&'static str, Load); 5] {
    let workers = workers as u64;
    let load = |gap_ns, life_ns, service_ns| Load {
        connections: 100 * workers * if life_ns > 0 { 8 } else { 1 },
        gap_ns,
        life_ns,
        long_every: 0,
        service_ns,
    };
    [
        ("all at once", load(0, 0, 0)),
        ("all at once, 0.2 ms of work each", load(0, 0, 200_000)),
        ("one after the other, idle workers", load(1_000_000, 0, 0)),
        (
            "as fast as workers that are busy for 80 % serve them",
            load(210_000 * 10 / 8 / workers, 0, 200_000),
        ),
        (
            "kept for a second on average",
            load(SECOND_NS / (100 * workers), SECOND_NS, 50_000),
        ),
    ]
}

fn settings(balances: bool) -> impl Iterator<Item = Setting> {
    let of = move |workers| {
        WAKES.map(move |wakes| Setting {
            workers,
            wakes,
            balances,
            stuck: 0,
        })
    };
    [2, 4, 16, 64].into_iter().flat_map(of)
}

#[test]
fn every_worker_has_its_share() {
    for setting in settings(true) {
        for (name, load) in loads(setting.workers) {
            let (least, most) = Simulation::new(setting, load).run().shares();
            let workers = setting.workers;
            println!("{workers} workers, {name}: {least:.2} to {most:.2}");
            // If all wake in any order, and a pause is over before the next connection, chance decides: with 64
            // workers the largest deviation of the binomial distribution is expected to be 2.4 times 10 %.
            let is_random = setting.wakes == Wakes::All && load.gap_ns >= 2 * PAUSE_NS;
            let bound = if is_random { 0.35 } else { 0.15 };
            assert!(
                least > 1.0 - bound && most < 1.0 + bound,
                "{workers} workers, {name}: {least:.2} to {most:.2}"
            );
        }
    }
}

#[test]
fn without_the_rule_the_first_worker_has_most() {
    for setting in settings(false).filter(|setting| setting.wakes == Wakes::First) {
        let (_, load) = loads(setting.workers)[2];
        let (least, most) = Simulation::new(setting, load).run().shares();
        assert!(
            least < 0.1 && most > 0.9 * setting.workers as f64,
            "{least} {most}"
        );
    }
}

#[test]
fn a_worker_that_is_stuck_delays_the_others_by_a_pause() {
    for workers in [2, 4, 16, 64] {
        for wakes in WAKES {
            let setting = Setting {
                workers,
                wakes,
                balances: true,
                stuck: 1,
            };
            // One connection a millisecond; each lives for one second.
            let load = Load {
                connections: 4000,
                gap_ns: 1_000_000,
                life_ns: SECOND_NS,
                long_every: 0,
                service_ns: 50_000,
            };
            let waited = Simulation::new(setting, load).run().longest_wait;
            println!("{workers} workers, one stuck: at most {} us", waited / 1000);
            assert!(waited < 5 * PAUSE_NS, "{workers} workers: {waited} ns");
        }
    }
}

#[test]
fn a_worker_that_is_stuck_leaves_the_rate_to_the_others() {
    for workers in [2, 4, 16] {
        for wakes in WAKES {
            let setting = Setting {
                workers,
                wakes,
                balances: true,
                stuck: 1,
            };
            // Connections for one request each, ten thousand a second for each worker that runs.
            let load = Load {
                connections: 10_000 * (workers as u64 - 1),
                gap_ns: 100_000 / (workers as u64 - 1),
                life_ns: 5_000_000,
                long_every: 0,
                service_ns: 20_000,
            };
            let waited = Simulation::new(setting, load).run().longest_wait;
            println!(
                "{workers} workers, one stuck, a connection for each request: at most {} us",
                waited / 1000
            );
            assert!(waited < 20 * PAUSE_NS, "{workers} workers: {waited} ns");
        }
    }
}

/// Connections of each worker, wake-ups and empty calls of `accept` for a connection, and the longest wait in the queue.
#[test]
fn shares_and_wake_ups() {
    println!("| connections | workers | of | least to most | wake-ups | in vain | longest wait |");
    for workers in [2, 4, 16, 64_u64] {
        // Each worker has 100 connections at a time; short ones are for one request.
        let load = |life_ns: u64, long_every: u64| {
            let long_ns = SECOND_NS.checked_div(long_every).unwrap_or_default();
            Load {
                connections: 300 * workers,
                gap_ns: (life_ns + long_ns) / (100 * workers),
                life_ns,
                long_every,
                service_ns: 50_000,
            }
        };
        let loads = [
            (
                "ten for each worker, kept",
                Load {
                    connections: 10 * workers,
                    gap_ns: 2_000_000,
                    ..load(0, 0)
                },
            ),
            ("kept for a second", load(SECOND_NS, 0)),
            ("kept for 20 ms", load(20_000_000, 0)),
            ("one in ten kept", load(20_000_000, 10)),
        ];
        for (name, load) in loads {
            for (of, wakes, balances) in [
                ("one queue, one is woken, rule", Wakes::First, true),
                ("one queue, one is woken", Wakes::First, false),
                ("one queue, all are woken, rule", Wakes::All, true),
                ("`SO_REUSEPORT`", Wakes::Own, false),
            ] {
                let setting = Setting {
                    workers: workers as usize,
                    wakes,
                    balances,
                    stuck: 0,
                };
                let done = Simulation::new(setting, load).run();
                let (least, most) = done.shares();
                let of_each = |count: u64| count as f64 / load.connections as f64;
                let (woken, in_vain) = (of_each(done.wake_ups), of_each(done.in_vain));
                println!(
                    "| {name} | {workers} | {of} | {least:.2} to {most:.2} | {woken:.2} | {in_vain:.2} | {:.1} ms |",
                    done.longest_wait as f64 / 1e6
                );
                if wakes == Wakes::First {
                    assert!(woken <= 1.0, "{woken} wake-ups for a connection");
                }
            }
        }
    }
}

#[test]
fn credit_grows_while_nobody_else_accepts() {
    let mut balance = Balance::default();
    let mut now = Instant::now();
    for credit in [1, 2, 4, 8, 16, 32, 32] {
        assert!(balance.paused_until().is_some() || balance.accepted(10, 0, now));
        assert!(!balance.resume(now));
        now += PAUSE;
        assert!(balance.resume(now));
        for left in (0..credit).rev() {
            assert_eq!(balance.accepted(10, 0, now), left == 0);
        }
    }
    now += PAUSE;
    assert!(balance.resume(now));
    balance.found_none();
    assert!(balance.accepted(10, 0, now));
    assert!(
        !Balance::default().accepted(10, 8, now),
        "two more, and one for each eight"
    );
    assert!(Balance::default().accepted(12, 8, now));
}
