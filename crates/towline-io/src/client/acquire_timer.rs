//! Time that a call has waited for its connection, and what it waited for. Pure, and used by both front ends.
//!
//! ```text
//!  Queue (pool timeout) ◄──dial started──► Dial (connect timeout) ◄── pause before another attempt
//! ```

use std::time::{Duration, Instant};

use super::request::{CallErrorKind, Timeouts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitKind {
    /// Waits for a free connection, or for room to open one.
    Queue,
    /// Waits for a dial.
    Dial,
}

/// Both waits accumulate when interrupted, so that neither in total exceeds its timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcquireTimer {
    kind: WaitKind,
    since: Instant,
    queued: Duration,
    dialling: Duration,
}

impl AcquireTimer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            kind: WaitKind::Queue,
            since: now,
            queued: Duration::ZERO,
            dialling: Duration::ZERO,
        }
    }

    /// Switches to waiting for a dial.
    pub(super) fn await_dial(&mut self, now: Instant) {
        self.switch_to(WaitKind::Dial, now);
    }

    pub(super) fn await_free(&mut self, now: Instant) {
        self.switch_to(WaitKind::Queue, now);
    }

    /// Waits until `at` to dial again; the connect timeout starts anew there.
    pub(super) fn retry(&mut self, at: Instant) {
        self.switch_to(WaitKind::Dial, at);
        self.dialling = Duration::ZERO;
    }

    fn switch_to(&mut self, kind: WaitKind, now: Instant) {
        let spent = now.saturating_duration_since(self.since);
        match self.kind {
            WaitKind::Queue => self.queued += spent,
            WaitKind::Dial => self.dialling += spent,
        }
        self.kind = kind;
        self.since = now;
    }

    /// Returns the deadline of the wait, and the kind of timeout that it is.
    pub(super) fn bound(&self, timeouts: &Timeouts) -> Option<(Instant, CallErrorKind)> {
        let (timeout, spent, error_kind) = match self.kind {
            WaitKind::Queue => (timeouts.pool, self.queued, CallErrorKind::PoolTimeout),
            WaitKind::Dial => (
                timeouts.connect,
                self.dialling,
                CallErrorKind::ConnectTimeout,
            ),
        };
        let left = timeout?.saturating_sub(spent);
        // An instant beyond the clock's range is no deadline.
        Some((self.since.checked_add(left)?, error_kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_counts_on_where_it_stopped() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let timeouts = Timeouts {
            connect: Some(Duration::from_secs(5)),
            pool: Some(Duration::from_secs(10)),
            ..Timeouts::default()
        };
        let mut timer = AcquireTimer::new(start);
        let pool = |seconds| Some((at(seconds), CallErrorKind::PoolTimeout));
        let connect = |seconds| Some((at(seconds), CallErrorKind::ConnectTimeout));
        assert_eq!(timer.bound(&timeouts), pool(10));
        timer.await_dial(at(4));
        assert_eq!(timer.bound(&timeouts), connect(9));
        timer.await_free(at(7));
        assert_eq!(timer.bound(&timeouts), pool(13));
        timer.await_dial(at(8));
        assert_eq!(timer.bound(&timeouts), connect(10));
        timer.retry(at(12));
        assert_eq!(timer.bound(&timeouts), connect(17));
        // Interrupted before the pause is over: no dialling time has been used.
        timer.await_free(at(11));
        timer.await_dial(at(11));
        assert_eq!(timer.bound(&timeouts), connect(16));
    }

    #[test]
    fn no_timeout_is_no_bound() {
        let timeouts = Timeouts {
            connect: Some(Duration::MAX),
            pool: None,
            ..Timeouts::default()
        };
        let mut timer = AcquireTimer::new(Instant::now());
        assert_eq!(timer.bound(&timeouts), None);
        timer.await_dial(Instant::now());
        assert_eq!(timer.bound(&timeouts), None);
    }
}
