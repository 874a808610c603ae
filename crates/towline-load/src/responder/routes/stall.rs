//! Stalls of the whole server, as by a garbage collector: nothing is read, accepted or answered.

use std::time::{Duration, Instant};

/// Number of stalls that are recorded; the oldest are dropped.
const MAX_RECORDED: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallPlan {
    pub every: Duration,
    pub length: Duration,
}

pub struct Stall {
    injection: StallPlan,
    next: Instant,
}

impl Stall {
    pub fn new(injection: StallPlan, now: Instant) -> Self {
        Self {
            injection,
            next: now + injection.every,
        }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Sleeps through a stall that is due, and records it.
    pub fn if_due(&mut self, log: &mut Vec<(u64, u64)>) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let from = monotonic_ns();
        std::thread::sleep(self.injection.length);
        if log.len() >= MAX_RECORDED {
            log.remove(0);
        }
        log.push((from, monotonic_ns()));
        // Stalls that were missed are not repeated.
        while self.next <= now {
            self.next += self.injection.every;
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
