//! Random schedules: each thread of a test pauses at random for nothing, a yield or up to a millisecond.
//!
//! A test runs a few seeds; `TOWLINE_STRESS_SECONDS` runs as many as fit into this time, and `TOWLINE_STRESS_SEED` one.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::MAX_WAIT;

/// Chance of one thread.
#[derive(Clone)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64, thread: u64) -> Self {
        Self((seed << 8 | thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    pub fn pause(&mut self) {
        match self.below(8) {
            0 => thread::sleep(Duration::from_micros(self.below(1000))),
            1 | 2 => thread::yield_now(),
            _ => (0..self.below(200)).for_each(|_| std::hint::spin_loop()),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `check` with one seed after the other. One that does not end is a failure.
pub fn with_seeds(count: u64, check: impl Fn(u64) + Send + Sync + Clone + 'static) {
    let only = number("TOWLINE_STRESS_SEED");
    let until = number("TOWLINE_STRESS_SECONDS")
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let first = until.map_or(0, |_| u64::from(std::process::id()) << 20);
    for seed in only.map_or(first..u64::MAX, |seed| seed..seed + 1) {
        let is_over = until.map_or(seed == count, |until| Instant::now() >= until);
        if only.is_none() && is_over {
            println!("{} seeds", seed - first);
            return;
        }
        let (done, end) = mpsc::channel::<()>();
        let check = check.clone();
        let run = thread::spawn(move || {
            let _done = done;
            check(seed);
        });
        let ended = end.recv_timeout(15 * MAX_WAIT);
        assert_ne!(
            ended,
            Err(RecvTimeoutError::Timeout),
            "seed {seed} does not end"
        );
        assert!(run.join().is_ok(), "seed {seed} has failed");
    }
}
