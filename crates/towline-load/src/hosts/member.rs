//! An agent as the controller knows it.
//!
//! ```text
//! Idle ─prepare─► Preparing ─ready─► Ready ─begin─► Running ─result─► Done
//!                     └───────failed, closed, silent──┴──────────────► Lost
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::ClockAlignment;
use super::link::Link;
use super::messages::{Introduction, PartResult, Progress};
use crate::monitor::{AgentState, LiveCounters, Snapshot};
use crate::report::BUSY_SHARE;

/// Silence that is mentioned. Progress comes five times a second.
const MENTIONED_SILENCE: Duration = Duration::from_secs(2);
/// Silence after which an agent counts as lost: twice a retransmission after a loss of packets or two.
pub(super) const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// A generator that is busy for this time is overloaded.
const BUSY_FOR: Duration = Duration::from_secs(1);

pub(super) enum State {
    Idle,
    Preparing,
    Ready,
    Running,
    Done(Box<PartResult>),
    Lost { why: String, at: Instant },
}

pub(super) struct Member {
    pub(super) name: String,
    pub(super) threads: usize,
    pub(super) link: Link,
    pub(super) introduction: Introduction,
    pub(super) alignment: ClockAlignment,
    pub(super) state: State,
    pub(super) heard: Instant,
    /// Counts of the last sign of life.
    pub(super) counts: Snapshot,
    pub(super) first_failure: Option<String>,
    /// Observations of the run.
    pub(super) notes: Vec<String>,
    /// Counters of each thread.
    pub(super) counters: Vec<Arc<LiveCounters>>,
    is_silent: bool,
    is_busy: bool,
    /// Times, CPU times and responses of the last second.
    recent: VecDeque<(Instant, u64, u64)>,
}

impl Member {
    pub(super) fn new(
        name: String,
        threads: usize,
        link: Link,
        introduction: Introduction,
    ) -> Self {
        Self {
            name,
            threads,
            link,
            introduction,
            alignment: ClockAlignment::default(),
            state: State::Idle,
            heard: Instant::now(),
            counts: Snapshot::default(),
            first_failure: None,
            notes: Vec::new(),
            counters: Vec::new(),
            is_silent: false,
            is_busy: false,
            recent: VecDeque::new(),
        }
    }

    /// Forgets the last run.
    pub(super) fn reset(&mut self, now: Instant) {
        self.state = State::Preparing;
        self.heard = now;
        self.counts = Snapshot::default();
        self.first_failure = None;
        self.notes.clear();
        (self.is_silent, self.is_busy) = (false, false);
        self.recent.clear();
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost { .. })
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Takes the agent's counts; returns what is to be noticed.
    pub(super) fn on_progress(&mut self, progress: Progress, now: Instant) -> Vec<String> {
        let mut news = Vec::new();
        if self.first_failure.is_none()
            && let Some(failure) = progress.first_failure
        {
            news.push(format!(
                "its first failure: {}{failure}",
                shortage(&failure)
            ));
            self.first_failure = Some(failure);
        }
        if let Some(first) = self.counters.first() {
            first.store(&progress.counts);
        }
        for (counters, seconds) in self.counters.iter().zip(&progress.seconds) {
            counters.add_seconds(seconds);
        }
        self.recent
            .push_back((now, progress.cpu_ns, progress.counts.answered));
        while self.recent.len() > 2 && now - self.recent[1].0 >= BUSY_FOR {
            self.recent.pop_front();
        }
        if self.busy_share() >= BUSY_SHARE && self.recent_time() >= BUSY_FOR && !self.is_busy {
            self.is_busy = true;
            let percent = self.busy_share() * 100.0;
            news.push(format!(
                "it is out of CPU: busy for {percent:.0} % of the time"
            ));
        }
        self.counts = progress.counts;
        self.notes.extend(news.iter().cloned());
        news
    }

    /// Notices silence; returns what is new about it.
    pub(super) fn on_tick(&mut self, now: Instant) -> Option<String> {
        let silence = now.saturating_duration_since(self.heard);
        let was_silent = std::mem::replace(&mut self.is_silent, silence >= MENTIONED_SILENCE);
        let news = match (was_silent, self.is_silent) {
            (false, true) => format!("nothing was heard of it for {:.1} s", silence.as_secs_f64()),
            (true, false) => "it is heard again".into(),
            _ => return None,
        };
        self.notes.push(news.clone());
        Some(news)
    }

    fn recent_time(&self) -> Duration {
        match (self.recent.front(), self.recent.back()) {
            (Some(first), Some(last)) => last.0 - first.0,
            _ => Duration::ZERO,
        }
    }

    /// CPU time of the last second as a share of that of all threads.
    #[expect(clippy::cast_precision_loss, reason = "for comparison")]
    fn busy_share(&self) -> f64 {
        let (Some(first), Some(last)) = (self.recent.front(), self.recent.back()) else {
            return 0.0;
        };
        let time = self.recent_time().as_secs_f64() * self.threads as f64;
        if time > 0.0 {
            last.1.saturating_sub(first.1) as f64 / 1e9 / time
        } else {
            0.0
        }
    }

    /// The agent for the live view.
    #[expect(clippy::cast_precision_loss, reason = "for the eye")]
    pub(super) fn shown(&self) -> AgentState {
        let seconds = self.recent_time().as_secs_f64();
        let (first, last) = (self.recent.front(), self.recent.back());
        let count = first
            .zip(last)
            .map_or(0, |(first, last)| last.2.saturating_sub(first.2));
        AgentState {
            name: self.name.clone(),
            per_s: if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            },
            failed: self.counts.failed.iter().sum(),
            busy_share: self.busy_share(),
            trouble: match &self.state {
                State::Lost { why, .. } => Some(format!("lost: {why}")),
                _ => self.notes.last().cloned(),
            },
        }
    }
}

/// The name of a shortage of the machine that an error of the system means.
fn shortage(failure: &str) -> &'static str {
    let of = |number: i32| failure.contains(&format!("os error {number}"));
    if of(libc::EADDRNOTAVAIL) || failure.contains("Cannot assign requested address") {
        "out of local ports: "
    } else if of(libc::EMFILE) || of(libc::ENFILE) || failure.contains("Too many open files") {
        "out of open files: "
    } else {
        ""
    }
}
