//! Progress of a run, visible while it runs.
//!
//! Workers store their counts at every tick, a few dozen times a second, and publish each second that
//! has ended; requests have no extra cost between ticks. A monitor reads at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::stats::{FAILURES, Interval, Tally};

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
pub(crate) struct LiveCounters {
    answered: AtomicU64,
    failed: [AtomicU64; FAILURES],
    refused: AtomicU64,
    received_bytes: AtomicU64,
    live: AtomicU64,
    in_flight: AtomicU64,
    /// In nanoseconds.
    oldest: AtomicU64,
    draining: AtomicBool,
    seconds: Mutex<Vec<Interval>>,
    /// Nothing more comes from it: its agent was lost.
    gone: AtomicBool,
    first_failure: OnceLock<String>,
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
    /// Its last problem.
    pub(crate) trouble: Option<String>,
}

/// The counters of a run at one moment, without those of the warm-up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
        let mut workers = (self.0.workers.lock()).unwrap_or_else(PoisonError::into_inner);
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
        let workers = (self.0.workers.lock()).unwrap_or_else(PoisonError::into_inner);
        for counters in workers.iter() {
            counters.add_to(&mut snapshot);
        }
        snapshot
    }

    /// The seconds that have ended since the last call, for each worker, oldest first.
    pub(crate) fn take_seconds(&self) -> Vec<EndedSeconds> {
        let workers = (self.0.workers.lock()).unwrap_or_else(PoisonError::into_inner);
        let take = |counters: &Arc<LiveCounters>| {
            let mut seconds = (counters.seconds.lock()).unwrap_or_else(PoisonError::into_inner);
            EndedSeconds {
                seconds: std::mem::take(&mut *seconds),
                is_gone: counters.gone.load(Ordering::Relaxed),
            }
        };
        workers.iter().map(take).collect()
    }

    /// The first failure that a worker has seen.
    pub(crate) fn first_failure(&self) -> Option<String> {
        let workers = (self.0.workers.lock()).unwrap_or_else(PoisonError::into_inner);
        let mut failures = workers.iter().filter_map(|one| one.first_failure.get());
        failures.next().cloned()
    }

    /// Shows these agents.
    pub(crate) fn show_agents(&self, states: Vec<AgentState>) {
        *(self.0.agents.lock()).unwrap_or_else(PoisonError::into_inner) = states;
    }

    pub(crate) fn agents(&self) -> Vec<AgentState> {
        (self.0.agents.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl LiveCounters {
    /// Called by the worker only.
    pub(crate) fn publish(&self, tally: &Tally, now: &Snapshot) {
        self.store(&Snapshot {
            answered: tally.answers(),
            failed: tally.failures,
            refused: tally.refused,
            received_bytes: tally.received_bytes,
            ..now.clone()
        });
        if let Some(failure) = &tally.first_failure {
            self.first_failure.get_or_init(|| failure.clone());
        }
    }

    /// Stores counters, which may be those of an agent elsewhere.
    pub(crate) fn store(&self, snapshot: &Snapshot) {
        let put = |place: &AtomicU64, count| place.store(count, Ordering::Relaxed);
        put(&self.answered, snapshot.answered);
        for (place, count) in self.failed.iter().zip(snapshot.failed) {
            put(place, count);
        }
        put(&self.refused, snapshot.refused);
        put(&self.received_bytes, snapshot.received_bytes);
        put(&self.live, snapshot.live_connections);
        put(&self.in_flight, snapshot.in_flight);
        put(&self.oldest, snapshot.oldest.as_nanos() as u64);
        self.draining.store(snapshot.is_draining, Ordering::Relaxed);
    }

    /// Its load is over: all its seconds have been published.
    pub(crate) fn leave_at_end(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Nothing more comes from this worker: the seconds of the others do not wait for it.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.live.store(0, Ordering::Relaxed);
        self.in_flight.store(0, Ordering::Relaxed);
        self.oldest.store(0, Ordering::Relaxed);
    }

    /// Publishes seconds that have ended; false if a reader holds the lock: the next tick tries again.
    pub(crate) fn publish_seconds(&self, ended: &[Interval]) -> bool {
        match self.seconds.try_lock() {
            Ok(mut seconds) => seconds.extend_from_slice(ended),
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => {}
        }
        true
    }

    pub(crate) fn add_to(&self, snapshot: &mut Snapshot) {
        let of = |place: &AtomicU64| place.load(Ordering::Relaxed);
        snapshot.answered += of(&self.answered);
        for (sum, place) in snapshot.failed.iter_mut().zip(&self.failed) {
            *sum += of(place);
        }
        snapshot.refused += of(&self.refused);
        snapshot.received_bytes += of(&self.received_bytes);
        snapshot.live_connections += of(&self.live);
        snapshot.in_flight += of(&self.in_flight);
        let oldest = Duration::from_nanos(of(&self.oldest));
        snapshot.oldest = snapshot.oldest.max(oldest);
        snapshot.is_draining |= self.draining.load(Ordering::Relaxed);
    }
}
