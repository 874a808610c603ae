//! Accounts of a worker: live counters, the per-second series, CPU usage, the result of a slice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::slot::State;
use super::{FOREVER, Phase, Worker};
use crate::config::Until;
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
        let draining = self.phase == Phase::Draining;
        let snapshot = Snapshot {
            live_connections: self.live,
            in_flight: self.in_flight,
            oldest: self.oldest,
            is_draining: draining,
            ..Snapshot::default()
        };
        (monitored.counters).publish(&self.tally, &snapshot);
        let ended = self
            .tally
            .series
            .get(monitored.seconds..)
            .unwrap_or_default();
        if !ended.is_empty() && monitored.counters.publish_seconds(ended) {
            monitored.seconds += ended.len();
        }
    }

    /// Updates the per-second series and the usage at their boundaries.
    #[inline]
    pub(super) fn mark(&mut self, now: Instant) {
        if now >= self.window.mark {
            self.mark_due(now);
        }
    }

    #[cold]
    fn mark_due(&mut self, now: Instant) {
        self.tally.sample_live(self.live);
        if self.window.usage_before.is_none() {
            self.window.usage_before = Some((now, Usage::of_this_thread()));
            self.window.mark = self.window.from + Duration::from_secs(1);
        }
        while now >= self.window.mark && self.window.mark <= self.window.to {
            self.tally.end_second(self.live);
            self.window.mark += Duration::from_secs(1);
        }
        if self.window.mark > self.window.to {
            self.window.mark = self.window.begin + FOREVER;
        }
    }

    pub(super) fn thread_result(&mut self, now: Instant) -> ThreadResult {
        let measured = match self.until {
            Until::Time(_) => self.window.to.saturating_duration_since(self.window.from),
            Until::Requests(_) => now.saturating_duration_since(self.window.from),
        };
        let (counted_from, before) = self
            .window
            .usage_before
            .unwrap_or((now, Usage::of_this_thread()));
        let (counted_to, after) = self
            .window
            .usage_after
            .unwrap_or_else(|| (now, Usage::of_this_thread()));
        self.tally.finish(self.live);
        for slot in &self.slots {
            if let State::Open(id) = slot.state
                && let Some(counts) = self.engine.conn(id).and_then(|conn| conn.quic_counts())
            {
                self.tally.quic.add(&counts);
            }
        }
        ThreadResult {
            usage: after.since(before),
            began: self.window.from,
            accounted: counted_to.saturating_duration_since(counted_from),
            measured,
            answered: self.tally.answered,
            live_at_end: self.live,
            start_delay: self.start_delay,
            gave_up: self.gave_up.take(),
        }
    }
}
