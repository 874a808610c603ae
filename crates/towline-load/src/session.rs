//! A session: connections that stay open between slices of load.
//!
//! ```text
//! open ─► slice { threads: prepare (reopen connections) ─► start together ─► load ─► await the rest } ─► Outcome
//!           ▲────────────────────────────── the same connections ──────────────────────────────────┘
//! ```
//!
//! Two servers are compared with two sessions whose slices alternate, so that disturbances of the machine
//! affect both. A plain run is a session with one slice.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;

use crate::config::Config;
use crate::error::LoadError;
use crate::monitor::Monitor;
use crate::report::{self, Report};
use crate::schedule::Share;
use crate::slice::{Slice, Stop};
use crate::stats::{Interval, Tally};
use crate::variables;
use crate::worker::{FirstResponses, ThreadResult, Worker};

/// Between the last connection and the first request.
const HEAD_START: Duration = Duration::from_millis(1);

/// The result of a slice: the report, and histograms to merge or plot.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub report: Report,
    /// Nanoseconds from the intended start to the last byte.
    pub response: Histogram<u64>,
    /// Nanoseconds from sending to the head of the response.
    pub first_byte: Histogram<u64>,
    /// `response` by second, with two significant digits.
    pub seconds: Vec<Histogram<u64>>,
    /// When the measured time began.
    pub began: SystemTime,
    /// Complete responses to the whole load, with those before and after the measured time.
    pub completed: u64,
}

/// Connections to the targets of one [`Config`], and the state of their threads.
pub struct Session {
    config: Arc<Config>,
    workers: Vec<Worker>,
    /// The merged counts of the workers for a slice.
    tally: Tally,
}

impl Session {
    /// Creates the workers. The first slice opens the connections.
    pub fn open(config: Config) -> Result<Self, LoadError> {
        config.check()?;
        variables::check(&config)?;
        let config = Arc::new(config.with_defaults());
        let of = config.threads as u32;
        let first = FirstResponses::new(&config);
        let workers = (0..of)
            .map(|index| Worker::new(&config, Share { index, of }, first.clone()))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            tally: Tally::new(config.steps()),
            config,
            workers,
        })
    }

    /// Publishes the progress of the next slice to `monitor`.
    pub(crate) fn monitor(&mut self, monitor: &Monitor) {
        for worker in &mut self.workers {
            worker.monitor(monitor);
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Runs one slice of load. Closed connections are reopened before it, outside the measured time. The
    /// measured time begins and ends with a response, so that a stall counts as a whole or not at all;
    /// the latencies of requests in flight at its end count when they are complete.
    pub fn slice(&mut self, slice: &Slice, stop: &Stop) -> Result<Outcome, LoadError> {
        self.measure(slice, stop, true)
    }

    /// Runs the last slice: requests in flight are not awaited.
    pub(crate) fn last_slice(mut self, slice: &Slice, stop: &Stop) -> Result<Outcome, LoadError> {
        self.measure(slice, stop, false)
    }

    fn measure(
        &mut self,
        slice: &Slice,
        stop: &Stop,
        keep_open: bool,
    ) -> Result<Outcome, LoadError> {
        slice.check(&self.config)?;
        let gate = StartGate::new(self.workers.len());
        let work = |worker: &mut Worker| -> io::Result<Option<ThreadResult>> {
            towline_io::exact_timers();
            let prepared = worker.prepare(slice, stop);
            if prepared.is_err() {
                gate.failed.store(true, Ordering::Relaxed);
            }
            // Also after an error: the other threads wait.
            let begin = gate.wait();
            prepared?;
            if gate.failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let thread_result = worker.load(slice.warm_up, begin, keep_open, stop)?;
            if keep_open {
                worker.await_rest(stop)?;
            }
            Ok(Some(thread_result))
        };
        let work = &work;
        let results: Vec<Option<ThreadResult>> = thread::scope(|scope| {
            let spawn = |worker| scope.spawn(move || work(worker));
            let threads: Vec<_> = self.workers.iter_mut().map(spawn).collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect::<io::Result<_>>()
        })?;
        let results: Vec<ThreadResult> = results.into_iter().flatten().collect();
        // One that has not begun is in the future.
        let first = results.iter().map(|result| result.began).min();
        let since = first.map_or(Duration::ZERO, |began| began.elapsed());
        let began = SystemTime::now()
            .checked_sub(since)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        self.tally.reset();
        for worker in &self.workers {
            self.tally.merge(worker.tally());
        }
        let report = report::from_results(&self.config, slice, &results, &self.tally, began);
        Ok(Outcome {
            report,
            seconds: self.tally.series.iter().map(Interval::times).collect(),
            response: self.tally.total.response.exported(),
            first_byte: self.tally.total.first_byte.exported(),
            began,
            completed: self.tally.completed,
        })
    }
}

/// Gate at which all threads wait, and the common start time, set when the last one is ready.
struct StartGate {
    ready: Barrier,
    released: Barrier,
    at: Mutex<Instant>,
    /// A thread could not prepare: no thread begins.
    failed: AtomicBool,
}

impl StartGate {
    fn new(threads: usize) -> Self {
        Self {
            ready: Barrier::new(threads),
            released: Barrier::new(threads),
            at: Mutex::new(Instant::now()),
            failed: AtomicBool::new(false),
        }
    }

    fn wait(&self) -> Instant {
        if self.ready.wait().is_leader() {
            *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + HEAD_START;
        }
        self.released.wait();
        self.time()
    }

    fn time(&self) -> Instant {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
