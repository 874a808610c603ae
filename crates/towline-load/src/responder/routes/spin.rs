//! Busy work that makes a server slower than another by a known amount of CPU time.
//!
//! The work of a request is a number of steps, so that an interrupted thread does not do less of it. A percentage is
//! of the turn's CPU time, and is spent by the same clock: also where the core is slower than it was at the start.

use std::hint::black_box;

/// Steps between two readings of the clock, about a quarter of a microsecond.
const STEPS_BETWEEN_READINGS: u64 = 100;

pub struct Spin {
    steps_per_request: u64,
    /// Share of the cost of a turn.
    share: f64,
    /// CPU time to be spent; negative after more was spent than was due, which the next turns make up for.
    owed_ns: f64,
    cpu_before_ns: u64,
}

impl Spin {
    pub fn new(steps_per_request: u64, percent: f64) -> Self {
        Self {
            steps_per_request,
            share: percent / 100.0,
            owed_ns: 0.0,
            cpu_before_ns: cpu_ns(),
        }
    }

    pub fn request(&self) {
        resume_body(self.steps_per_request);
    }

    /// Runs also with a share of 0, so that two servers differ in the share only.
    #[expect(clippy::cast_precision_loss, reason = "a turn is far below 2^53 ns")]
    pub fn turn(&mut self) {
        let mut now = cpu_ns();
        self.owed_ns += now.saturating_sub(self.cpu_before_ns) as f64 * self.share;
        while self.owed_ns > 0.0 {
            resume_body(STEPS_BETWEEN_READINGS);
            let read = cpu_ns();
            self.owed_ns -= read.saturating_sub(now) as f64;
            now = read;
        }
        self.cpu_before_ns = now;
    }
}

/// CPU nanoseconds per step: the smallest of several measurements, since disturbances only increase it.
pub fn calibrated() -> f64 {
    const STEPS: u64 = 1_000_000;
    let tries = (0..10).map(|_| {
        let before = cpu_ns();
        resume_body(STEPS);
        cpu_ns() - before
    });
    #[expect(clippy::cast_precision_loss, reason = "some milliseconds")]
    let least = tries.min().unwrap_or_default() as f64;
    #[expect(clippy::cast_precision_loss, reason = "a million")]
    let steps = STEPS as f64;
    (least / steps).max(0.01)
}

#[expect(
    clippy::cast_sign_loss,
    reason = "a negative share makes no steps: `as` saturates"
)]
pub fn steps(ns: f64, ns_per_step: f64) -> u64 {
    (ns / ns_per_step).round() as u64
}

/// Each step depends on the one before it.
fn resume_body(steps: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure given to it; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    let part = |number| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
