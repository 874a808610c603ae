//! The times of a dial: its start, its current phase and its deadline. Pure: the clock is an argument.

use std::time::{Duration, Instant};

use super::{DialConfig, DialError, DialPhase};

#[derive(Clone, Copy, Debug)]
pub(super) struct DialClock {
    started: Instant,
    phase_started: Instant,
    deadline: Option<Instant>,
}

impl DialClock {
    pub(super) fn start(config: &DialConfig, now: Instant) -> Self {
        Self {
            started: now,
            phase_started: now,
            deadline: (config.connect_timeout).and_then(|timeout| now.checked_add(timeout)),
        }
    }

    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    pub(super) fn begin_phase(&mut self, now: Instant) {
        self.phase_started = now;
    }

    /// Ends a phase and returns its duration.
    pub(super) fn end_phase(&mut self, now: Instant) -> Duration {
        let spent = now.saturating_duration_since(self.phase_started);
        self.phase_started = now;
        spent
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The deadline of the dial, or that of its stage if it is earlier.
    pub(super) fn deadline(&self, stage: Option<Instant>) -> Option<Instant> {
        [self.deadline, stage].into_iter().flatten().min()
    }

    /// The limit, for messages of timeouts at `now`: "within 5 s".
    pub(super) fn within(&self, now: Instant) -> String {
        let limit = self.deadline.unwrap_or(now);
        let limit = limit.saturating_duration_since(self.started);
        format!("within {} s", (limit.as_secs_f64() * 1e3).round() / 1e3)
    }

    /// The error of a lookup of `host` that was too slow.
    pub(super) fn slow_lookup(&self, host: &str, now: Instant) -> DialError {
        let within = self.within(now);
        let message = format!("no address of {host:?} {within}: the name server is slow");
        DialError::timeout(DialPhase::Resolve, message)
    }

    /// The error of certificates that were not read in time.
    pub(super) fn slow_certificates(&self, now: Instant) -> DialError {
        let within = self.within(now);
        let message = format!("the trusted certificates were not read {within}");
        DialError::timeout(DialPhase::Tls, message)
    }
}
