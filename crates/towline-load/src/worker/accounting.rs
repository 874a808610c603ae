//! Accounts of a worker: live counters, the per-second series, CPU usage, the result of a slice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Worker;
use super::slot::State;
use super::window::Phase;
use crate::monitor::{LiveCounters, Monitor, Snapshot};
use crate::stats::Tally;
use crate::usage::Usage;

/// The result of one thread for a slice; the counts remain in its tally.
#[derive(Debug)]
pub(crate) struct ThreadResult {
    pub(crate) usage: Usage,
    /// When the measured time began: between slices, with a response.
    pub(crate) began: Instant,
    /// The measured time.
    pub(crate) measured: Duration,
    /// Responses in the measured time.
    pub(crate) answered: u64,
    /// The time covered by `usage`.
    pub(crate) accounted: Duration,
    pub(crate) live_at_end: u64,
    /// Time from the common start to that of this thread.
    pub(crate) start_delay: Duration,
    /// Why the load ended before its time.
    pub(crate) gave_up: Option<String>,
}

/// Progress published to a monitor.
pub(super) struct MonitorHandle {
    pub(super) monitor: Monitor,
    counters: Arc<LiveCounters>,
    /// Number of seconds already published.
    seconds: usize,
}

impl Worker {
    /// The counts of the last slice.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn monitor(&mut self, monitor: &Monitor) {
        self.monitored = Some(MonitorHandle {
            monitor: monitor.clone(),
            counters: monitor.counters(),
            seconds: 0,
        });
    }

    pub(super) fn publish(&mut self) {
        let Some(monitored) = &mut self.monitored else {
            return;
        };
        let snapshot = Snapshot {
            live_connections: self.slots.live(),
            in_flight: self.slots.in_flight(),
            oldest: self.slots.oldest(),
            is_draining: self.window.phase() == Phase::Draining,
            ..Snapshot::default()
        };
        let ended = self
            .tally
            .series
            .get(monitored.seconds..)
            .unwrap_or_default();
        if (monitored.counters).publish(&self.tally, snapshot, ended) {
            monitored.seconds += ended.len();
        }
    }

    /// Updates the per-second series and the usage at their boundaries.
    #[inline]
    pub(super) fn mark(&mut self, now: Instant) {
        if self.window.reaches_mark(now) {
            self.window
                .pass_mark(now, &mut self.tally, self.slots.live());
        }
    }

    pub(super) fn thread_result(&mut self, now: Instant) -> ThreadResult {
        let (began, measured) = self.window.measured(now);
        let (usage, accounted) = self.window.usage(now);
        self.tally.finish(self.slots.live());
        for slot in self.slots.iter() {
            if let State::Open(id) = slot.state()
                && let Some(counts) = self.engine.conn(id).and_then(|conn| conn.quic_counts())
            {
                self.tally.quic.add(&counts);
            }
        }
        ThreadResult {
            usage,
            began,
            accounted,
            measured,
            answered: self.tally.answered,
            live_at_end: self.slots.live(),
            start_delay: self.window.start_delay(),
            gave_up: self.origins.outages.take_reason(),
        }
    }
}
