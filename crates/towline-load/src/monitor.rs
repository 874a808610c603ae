//! Progress of a run, visible while it runs.
//!
//! Workers store their counts at every tick, a few dozen times a second, and publish each second that
//! has ended; requests have no extra cost between ticks. A monitor reads at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::stats::{FAILURES, Interval, Tally};
use crate::sync::lock;

/// The classes of failures, as in [`Errors`](crate::Errors).
pub const FAILURE_CLASSES: [&str; FAILURES] = [
    "connect",
    "timeout",
    "reset",
    "protocol",
    "status",
    "content",
    "stream reset",
    "unprocessed",
    "invalid",
];

/// Monitor of one run. Clones share it.
#[derive(Clone, Debug)]
pub struct Monitor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    created: Instant,
    /// Nanoseconds from `created` to the beginning of the load; 0: connecting.
    load_started: AtomicU64,
    workers: Mutex<Vec<Arc<LiveCounters>>>,
    /// Empty: the load is sent from here.
    agents: Mutex<Vec<AgentState>>,
}

/// The counters of one worker.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters(Mutex<Published>);

#[derive(Debug, Default)]
struct Published {
    counts: Snapshot,
    /// Ended, and not taken yet.
    seconds: Vec<Interval>,
    /// Nothing more comes from it: its agent was lost, or its load is over.
    is_gone: bool,
    first_failure: Option<String>,
}

/// The seconds of one worker that have ended since the last call.
#[derive(Debug, Default)]
pub(crate) struct EndedSeconds {
    pub(crate) seconds: Vec<Interval>,
    pub(crate) is_gone: bool,
}

/// One of several agents that share the load, for the live view.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentState {
    pub(crate) name: String,
    /// Responses per second, of the last second.
    pub(crate) per_s: f64,
    pub(crate) failed: u64,
    /// CPU time as a share of that of all its threads, in the last second.
    pub(crate) busy_share: f64,
    /// Last problem of the agent.
    pub(crate) trouble: Option<String>,
}

/// The counters of a run at one moment, without those of the warm-up.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the load began, warm-up included; `None`: connections are being opened.
    pub elapsed: Option<Duration>,
    pub answered: u64,
    /// By class.
    pub failed: [u64; FAILURES],
    pub refused: u64,
    pub received_bytes: u64,
    pub live_connections: u64,
    pub in_flight: u64,
    /// How long the oldest request in flight has waited.
    #[serde(default)]
    pub oldest: Duration,
    /// Nothing is sent any more; the last responses are awaited.
    pub is_draining: bool,
}

impl Default for Monitor {
    fn default() -> Self {
        Self(Arc::new(Shared {
            created: Instant::now(),
            load_started: AtomicU64::new(0),
            workers: Mutex::default(),
            agents: Mutex::default(),
        }))
    }
}

impl Monitor {
    /// The counters of a new worker.
    pub(crate) fn counters(&self) -> Arc<LiveCounters> {
        let counters = Arc::new(LiveCounters::default());
        let mut workers = lock(&self.0.workers);
        workers.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn begin(&self, at: Instant) {
        let since = at.saturating_duration_since(self.0.created).as_nanos();
        self.0
            .load_started
            .store((since as u64).max(1), Ordering::Relaxed);
    }

    pub fn snapshot(&self) -> Snapshot {
        let load_started = self.0.load_started.load(Ordering::Relaxed);
        let elapsed = (load_started > 0).then(|| {
            let load_started = self.0.created + Duration::from_nanos(load_started);
            load_started.elapsed()
        });
        let mut snapshot = Snapshot {
            elapsed,
            ..Snapshot::default()
        };
        let workers = lock(&self.0.workers);
        for counters in workers.iter() {
            snapshot.add(&counters.lock().counts);
        }
        snapshot
    }

    /// The seconds that have ended since the last call, for each worker, oldest first.
    pub(crate) fn take_seconds(&self) -> Vec<EndedSeconds> {
        let workers = lock(&self.0.workers);
        let take = |counters: &Arc<LiveCounters>| {
            let mut live = counters.lock();
            EndedSeconds {
                seconds: std::mem::take(&mut live.seconds),
                is_gone: live.is_gone,
            }
        };
        workers.iter().map(take).collect()
    }

    /// The first failure that a worker has seen.
    pub(crate) fn first_failure(&self) -> Option<String> {
        let workers = lock(&self.0.workers);
        (workers.iter()).find_map(|counters| counters.lock().first_failure.clone())
    }

    /// Shows these agents.
    pub(crate) fn show_agents(&self, states: Vec<AgentState>) {
        *lock(&self.0.agents) = states;
    }

    pub(crate) fn agents(&self) -> Vec<AgentState> {
        lock(&self.0.agents).clone()
    }
}

impl LiveCounters {
    fn lock(&self) -> MutexGuard<'_, Published> {
        lock(&self.0)
    }

    /// Publishes counts and the seconds that have ended. Called by the worker only, which never waits: false if a reader
    /// holds the lock, and the next tick tries again.
    pub(crate) fn publish(&self, tally: &Tally, now: Snapshot, ended: &[Interval]) -> bool {
        let Ok(mut live) = self.0.try_lock() else {
            return false;
        };
        live.counts = Snapshot {
            answered: tally.answers(),
            failed: tally.failures,
            refused: tally.refused,
            received_bytes: tally.received_bytes,
            ..now
        };
        live.seconds.extend_from_slice(ended);
        if live.first_failure.is_none() {
            live.first_failure.clone_from(&tally.first_failure);
        }
        true
    }

    /// Stores the counts of an agent.
    pub(crate) fn store(&self, counts: &Snapshot) {
        self.lock().counts = *counts;
    }

    /// Adds seconds of an agent that have ended.
    pub(crate) fn add_seconds(&self, ended: &[Interval]) {
        self.lock().seconds.extend_from_slice(ended);
    }

    /// Ends the counters of a load that is over: all its seconds have been published.
    pub(crate) fn leave_at_end(&self) {
        self.lock().is_gone = true;
    }

    /// Nothing more comes from this worker: the seconds of the others do not wait for it.
    pub(crate) fn leave(&self) {
        let mut live = self.lock();
        live.is_gone = true;
        let counts = &mut live.counts;
        (counts.live_connections, counts.in_flight) = (0, 0);
        counts.oldest = Duration::ZERO;
    }
}

impl Snapshot {
    /// Adds the counts of one of several workers.
    fn add(&mut self, one: &Self) {
        self.answered += one.answered;
        for (sum, count) in self.failed.iter_mut().zip(one.failed) {
            *sum += count;
        }
        self.refused += one.refused;
        self.received_bytes += one.received_bytes;
        self.live_connections += one.live_connections;
        self.in_flight += one.in_flight;
        self.oldest = self.oldest.max(one.oldest);
        self.is_draining |= one.is_draining;
    }
}
