//! Stalls of the whole server, as by a garbage collector: nothing is read, accepted or answered.

use std::time::{Duration, Instant};

/// Number of stalls that are recorded; the oldest are dropped.
const MAX_RECORDED: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallPlan {
    pub every: Every,
    pub length: Duration,
    /// The most stalls; `None`: no limit.
    pub times: Option<usize>,
}

/// The beginning of each stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    Time(Duration),
    /// After this number of requests, as a garbage collector that runs when enough was allocated.
    Requests(u64),
}

pub struct Stall {
    plan: StallPlan,
    left: Option<usize>,
    /// By time: the next one.
    next: Option<Instant>,
    /// By requests: their number at the next one.
    next_request: u64,
}

impl Stall {
    pub fn new(plan: StallPlan, now: Instant) -> Self {
        let (next, next_request) = match plan.every {
            Every::Time(every) => (Some(now + every), u64::MAX),
            Every::Requests(count) => (None, count),
        };
        Self {
            plan,
            left: plan.times,
            next,
            next_request,
        }
    }

    /// When a turn is due for a stall.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Sleeps through a stall that is due, and records it. `requests` is the number so far.
    pub fn if_due(&mut self, requests: u64, log: &mut Vec<(u64, u64)>) {
        let now = Instant::now();
        if requests < self.next_request && self.next.is_none_or(|next| now < next) {
            return;
        }
        let from = monotonic_ns();
        std::thread::sleep(self.plan.length);
        if log.len() >= MAX_RECORDED {
            log.remove(0);
        }
        log.push((from, monotonic_ns()));
        self.left = self.left.map(|left| left.saturating_sub(1));
        if self.left == Some(0) {
            (self.next, self.next_request) = (None, u64::MAX);
            return;
        }
        // Stalls that were missed are not repeated.
        match (self.plan.every, &mut self.next) {
            (Every::Time(every), Some(next)) => {
                while *next <= now {
                    *next += every;
                }
            }
            (Every::Requests(count), _) => self.next_request = requests + count,
            (Every::Time(_), None) => {}
        }
    }
}

/// The clock of Python's `time.monotonic_ns`.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure given to it; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let part = |number| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
