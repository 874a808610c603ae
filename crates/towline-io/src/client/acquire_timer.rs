//! Timeouts of a call that waits for a connection: pure, common to the asynchronous and the blocking client.
//!
//! ```text
//!  Queue (pool timeout) ◄──dials for it──► Dial (connect timeout) ◄── pause before another attempt
//! ```

use std::time::{Duration, Instant};

use super::request::{CallErrorKind, Timeouts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitKind {
    /// A connection that becomes free, or room to open one.
    Queue,
    /// One that is being opened.
    Dial,
}

/// Both waits count on where they stopped, so that none is ever longer than its timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcquireTimer {
    what: WaitKind,
    since: Instant,
    queued: Duration,
    dialling: Duration,
}

impl AcquireTimer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            what: WaitKind::Queue,
            since: now,
            queued: Duration::ZERO,
            dialling: Duration::ZERO,
        }
    }

    /// A dial is under way for it.
    pub(super) fn expect(&mut self, now: Instant) {
        self.turn_to(WaitKind::Dial, now);
    }

    pub(super) fn queue(&mut self, now: Instant) {
        self.turn_to(WaitKind::Queue, now);
    }

    /// Its own dial has failed and is repeated at `at`, with the whole connect timeout before it.
    pub(super) fn retry(&mut self, at: Instant) {
        self.turn_to(WaitKind::Dial, at);
        self.dialling = Duration::ZERO;
    }

    fn turn_to(&mut self, what: WaitKind, now: Instant) {
        let spent = now.saturating_duration_since(self.since);
        match self.what {
            WaitKind::Queue => self.queued += spent,
            WaitKind::Dial => self.dialling += spent,
        }
        self.what = what;
        self.since = now;
    }

    /// When the wait ends in vain, and as what.
    pub(super) fn bound(&self, timeouts: &Timeouts) -> Option<(Instant, CallErrorKind)> {
        let (timeout, spent, kind) = match self.what {
            WaitKind::Queue => (timeouts.pool, self.queued, CallErrorKind::PoolTimeout),
            WaitKind::Dial => (
                timeouts.connect,
                self.dialling,
                CallErrorKind::ConnectTimeout,
            ),
        };
        let left = timeout?.saturating_sub(spent);
        // A time beyond the clock's range is no bound.
        Some((self.since.checked_add(left)?, kind))
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
        let mut waiting = AcquireTimer::new(start);
        let pool = |seconds| Some((at(seconds), CallErrorKind::PoolTimeout));
        let connect = |seconds| Some((at(seconds), CallErrorKind::ConnectTimeout));
        assert_eq!(waiting.bound(&timeouts), pool(10));
        waiting.expect(at(4));
        assert_eq!(waiting.bound(&timeouts), connect(9));
        waiting.queue(at(7));
        assert_eq!(waiting.bound(&timeouts), pool(13));
        waiting.expect(at(8));
        assert_eq!(waiting.bound(&timeouts), connect(10));
        waiting.retry(at(12));
        assert_eq!(waiting.bound(&timeouts), connect(17));
        // Told otherwise before the pause is over: nothing has been spent.
        waiting.queue(at(11));
        waiting.expect(at(11));
        assert_eq!(waiting.bound(&timeouts), connect(16));
    }

    #[test]
    fn no_timeout_is_no_bound() {
        let timeouts = Timeouts {
            connect: Some(Duration::MAX),
            pool: None,
            ..Timeouts::default()
        };
        let mut waiting = AcquireTimer::new(Instant::now());
        assert_eq!(waiting.bound(&timeouts), None);
        waiting.expect(Instant::now());
        assert_eq!(waiting.bound(&timeouts), None);
    }
}
