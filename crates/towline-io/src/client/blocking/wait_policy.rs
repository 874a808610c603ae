//! How long a thread may wait, and what interrupts its wait.

use std::thread;
use std::time::{Duration, Instant};

/// Longest slice of a wait, so that the usual timeouts need the same `SO_RCVTIMEO`.
const LONGEST_SLICE: Duration = Duration::from_secs(1);

/// The reason why a wait was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The program interrupted it.
    Interrupted,
    /// The timeout of this phase expired.
    Phase,
    /// The total timeout of the call expired.
    Total,
}

/// Deadlines and interrupt check of the waits of one call. A signal that arrives during a system call ends it
/// at once; one that arrives between the check and the sleep does not. The thread that handles signals
/// therefore never sleeps longer than `check_interval`.
pub struct WaitPolicy<'a> {
    interrupted: &'a mut dyn FnMut() -> bool,
    check_interval: Duration,
    total: Option<Instant>,
}

impl<'a> WaitPolicy<'a> {
    /// `interrupted` is called at least every `check_interval` (`None`: only after a signal) and says whether to
    /// stop waiting.
    pub fn new(interrupted: &'a mut dyn FnMut() -> bool, check_interval: Option<Duration>) -> Self {
        Self {
            interrupted,
            check_interval: check_interval.unwrap_or(LONGEST_SLICE).min(LONGEST_SLICE),
            total: None,
        }
    }

    pub(super) fn set_total(&mut self, deadline: Option<Instant>) {
        self.total = deadline;
    }

    /// A policy without the total timeout, for waits that another clock bounds.
    pub(super) fn without_total(&mut self) -> WaitPolicy<'_> {
        WaitPolicy {
            interrupted: &mut *self.interrupted,
            check_interval: self.check_interval,
            total: None,
        }
    }

    /// Sleeps for `pause`, at most until the total timeout.
    pub(super) fn rest(&mut self, pause: Duration) -> Result<(), Stop> {
        if pause.is_zero() {
            return Ok(());
        }
        let mut phase = self.phase(Instant::now(), Some(pause));
        let mut slice = phase.first_slice();
        loop {
            thread::sleep(slice);
            match phase.next_slice() {
                Ok(next) => slice = next,
                Err(Stop::Phase) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Starts a wait that counts from `since`.
    pub(super) fn phase(&mut self, since: Instant, timeout: Option<Duration>) -> Phase<'_, 'a> {
        // A time beyond the clock's range is no bound.
        Phase {
            since,
            deadline: timeout.and_then(|timeout| since.checked_add(timeout)),
            policy: self,
        }
    }
}

/// One wait of a call: for the head, for more of the body, for buffer space.
pub(super) struct Phase<'p, 'a> {
    since: Instant,
    deadline: Option<Instant>,
    policy: &'p mut WaitPolicy<'a>,
}

impl Phase<'_, '_> {
    /// How long to sleep first, by the clock as read when the wait began.
    pub(super) fn first_slice(&self) -> Duration {
        self.slice(self.since)
    }

    /// After a sleep without result: how long to sleep next, or why to stop.
    pub(super) fn next_slice(&mut self) -> Result<Duration, Stop> {
        let now = Instant::now();
        self.check_at(now)?;
        Ok(self.slice(now))
    }

    /// Latest time of the next `check`, if the previous one was at `last_check`.
    pub(super) fn next_check_at(&self, last_check: Instant, now: Instant) -> Instant {
        (last_check + self.policy.check_interval).min(now + self.slice(now))
    }

    /// `Err` when the wait has to stop: interrupted, or past a deadline.
    pub(super) fn check(&mut self) -> Result<(), Stop> {
        self.check_at(Instant::now())
    }

    /// Sets a deadline that replaces the timeout.
    pub(super) fn end_at(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    fn check_at(&mut self, now: Instant) -> Result<(), Stop> {
        if (self.policy.interrupted)() {
            return Err(Stop::Interrupted);
        }
        if self.policy.total.is_some_and(|total| total <= now) {
            return Err(Stop::Total);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Stop::Phase);
        }
        Ok(())
    }

    fn slice(&self, now: Instant) -> Duration {
        [self.deadline, self.policy.total]
            .into_iter()
            .flatten()
            .map(|deadline| deadline.saturating_duration_since(now))
            .fold(self.policy.check_interval, Duration::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_shortest_bound_decides_and_is_named() {
        let now = Instant::now();
        let mut no = || false;
        let mut policy = WaitPolicy::new(&mut no, Some(100 * MS));
        assert_eq!(policy.phase(now, None).first_slice(), 100 * MS);
        assert_eq!(policy.phase(now, Some(30 * MS)).first_slice(), 30 * MS);
        policy.set_total(Some(now + 20 * MS));
        let mut phase = policy.phase(now, Some(30 * MS));
        assert_eq!(phase.first_slice(), 20 * MS);
        assert_eq!(phase.check_at(now), Ok(()));
        assert_eq!(phase.check_at(now + 20 * MS), Err(Stop::Total));
        policy.set_total(None);
        let mut phase = policy.phase(now, Some(30 * MS));
        assert_eq!(phase.check_at(now + 30 * MS), Err(Stop::Phase));
    }

    #[test]
    fn an_interruption_comes_before_any_timeout() {
        let now = Instant::now();
        let mut yes = || true;
        let mut policy = WaitPolicy::new(&mut yes, None);
        let mut phase = policy.phase(now, Some(Duration::ZERO));
        assert_eq!(phase.first_slice(), Duration::ZERO);
        assert_eq!(phase.next_slice(), Err(Stop::Interrupted));
    }

    #[test]
    fn a_timeout_beyond_the_clock_is_none() {
        let mut no = || false;
        let mut policy = WaitPolicy::new(&mut no, None);
        let phase = policy.phase(Instant::now(), Some(Duration::MAX));
        assert_eq!(phase.first_slice(), LONGEST_SLICE);
    }
}
