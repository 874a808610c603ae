//! The rule by which workers that share listeners leave each other their share of connections.
//!
//! ```text
//! accepting ── clearly ahead after an accept ──► paused, for 0.5 ms ──► accepting with credit
//! ```
//!
//! The kernel wakes the same worker again and again, and a kept-alive connection stays with its worker. So a worker that is
//! clearly ahead pauses accepting. If the others do not accept meanwhile (one that is blocked never will), it accepts one more
//! after a pause, then two, and so on, and the kernel's queue does not grow. `balance_simulation.rs` shows the effect
//! with 2 to 64 workers.

use std::time::{Duration, Instant};

/// Connections accepted per listener and turn; the rest is left to later turns and to the other processes
/// that share the listener.
pub(crate) const ACCEPTS_PER_TURN: usize = 8;

/// Short beside a response over a network, and long enough for another worker to wake up.
pub(super) const PAUSE: Duration = Duration::from_micros(500);

/// Difference in connections between workers that is tolerated.
const TOLERATED_LEAD: u64 = 2;

/// Connections that a worker may accept after a pause: 64,000 a second, more than one serves.
const MOST_CREDIT: u32 = 32;

/// Whether a worker with `mine` connections is clearly ahead of the accepting one with the fewest.
fn is_ahead(mine: u64, fewest: u64) -> bool {
    mine > fewest + TOLERATED_LEAD + fewest / 8
}

/// The pauses of one worker.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    until: Option<Instant>,
    /// Connections that may be accepted although this worker is ahead.
    credit: u32,
    /// Pauses in a row at whose end connections were waiting.
    pauses: u32,
}

impl Balance {
    /// The end of the pause.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.until
    }

    /// Ends a pause that is over; true if there was one.
    pub(crate) fn resume(&mut self, now: Instant) -> bool {
        let is_over = self.until.is_some_and(|until| until <= now);
        if is_over {
            self.until = None;
            self.credit = (1 << self.pauses.min(u32::BITS - 1)).min(MOST_CREDIT);
            self.pauses += 1;
        }
        is_over
    }

    /// Counts an accepted connection, with which this worker has `mine`; true if a pause begins.
    pub(crate) fn accepted(&mut self, mine: u64, fewest: u64, now: Instant) -> bool {
        if !is_ahead(mine, fewest) {
            *self = Self::default();
            return false;
        }
        self.credit = self.credit.saturating_sub(1);
        if self.credit > 0 {
            return false;
        }
        self.until = Some(now + PAUSE);
        true
    }

    /// No connection is waiting: others have taken them.
    pub(crate) fn found_none(&mut self) {
        (self.credit, self.pauses) = (0, 0);
    }
}
