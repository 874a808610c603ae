//! The virtual clock.

use std::time::{Duration, Instant};

/// A clock that advances only when told to.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    now: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        // `Instant` has no other constructor; only differences from here matter.
        let start = Instant::now();
        Self { start, now: start }
    }
}

impl Clock {
    pub fn now(&self) -> Instant {
        self.now
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Moves to `at`; never backwards.
    pub fn advance_to(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }
}
