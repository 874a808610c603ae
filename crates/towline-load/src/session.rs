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
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::LoadError;
use crate::monitor::Monitor;
use crate::report::{self, Report};
use crate::schedule::Share;
use crate::slice::{Slice, Stop};
use crate::stats::{Interval, Tally};
use crate::sync::lock;
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
        let of = config.threads as u32;
        Self::open_part(config, Part { first: 0, of })
    }

    /// Creates the workers of a part of the load. Numbers and rates of `config` are those of the whole load, except for
    /// the threads.
    pub(crate) fn open_part(config: Config, part: Part) -> Result<Self, LoadError> {
        config.check()?;
        variables::check(&config)?;
        let config = Arc::new(config.with_defaults());
        let first = FirstResponses::new(&config);
        let own = part.first..part.first + config.threads as u32;
        let share = |index| Share { index, of: part.of };
        let workers = own
            .map(|index| Worker::new(&config, share(index), first.clone()))
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
        self.outcome(slice, stop, true)
    }

    /// Runs the last slice: requests in flight are not awaited.
    pub(crate) fn last_slice(mut self, slice: &Slice, stop: &Stop) -> Result<Outcome, LoadError> {
        self.outcome(slice, stop, false)
    }

    /// Runs the last slice as a part of a load: it begins when `start` returns.
    pub(crate) fn last_slice_of_part(
        mut self,
        slice: &Slice,
        stop: &Stop,
        start: &StartTime<'_>,
    ) -> Result<(Tally, Vec<ThreadResult>), LoadError> {
        let results = self.measure(slice, stop, false, start)?;
        Ok((self.tally, results))
    }

    fn outcome(
        &mut self,
        slice: &Slice,
        stop: &Stop,
        keep_open: bool,
    ) -> Result<Outcome, LoadError> {
        let soon = || Some(Instant::now() + HEAD_START);
        let results = self.measure(slice, stop, keep_open, &soon)?;
        Ok(Outcome::new(&self.config, slice, &results, &self.tally))
    }

    /// Runs a slice; the counts of the workers are merged in `tally`.
    fn measure(
        &mut self,
        slice: &Slice,
        stop: &Stop,
        keep_open: bool,
        start: &StartTime<'_>,
    ) -> Result<Vec<ThreadResult>, LoadError> {
        slice.check(&self.config)?;
        let gate = StartGate::new(self.workers.len(), start);
        let work = |worker: &mut Worker| -> io::Result<Option<ThreadResult>> {
            towline_io::generator::exact_timers();
            let prepared = worker.prepare(slice, stop);
            if prepared.is_err() {
                gate.failed.store(true, Ordering::Relaxed);
            }
            // After an error too: the other threads wait.
            let begin = gate.wait();
            prepared?;
            let Some(begin) = begin else {
                return Ok(None);
            };
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
        self.tally.reset();
        for worker in &self.workers {
            self.tally.merge(worker.tally());
        }
        Ok(results.into_iter().flatten().collect())
    }
}

impl Outcome {
    /// The outcome of a slice, from the results of its threads and their merged counts.
    pub(crate) fn new(
        config: &Config,
        slice: &Slice,
        results: &[ThreadResult],
        tally: &Tally,
    ) -> Self {
        // The start of a load that has not begun is in the future.
        let first = results.iter().map(|result| result.began).min();
        let since = first.map_or(Duration::ZERO, |began| began.elapsed());
        let began = SystemTime::now()
            .checked_sub(since)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        Self {
            report: report::from_results(config, slice, results, tally, began),
            seconds: tally.series.iter().map(Interval::times).collect(),
            response: tally.total.response.exported(),
            first_byte: tally.total.first_byte.exported(),
            began,
            completed: tally.completed,
        }
    }
}

/// The threads of a session among all that share the load: those from `first` on, of `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) first: u32,
    pub(crate) of: u32,
}

/// Called when all threads are ready, by one of them; returns their common start. `None`: there is none.
pub(crate) type StartTime<'a> = dyn Fn() -> Option<Instant> + Sync + 'a;

/// Gate at which all threads wait, and the common start time, set when the last one is ready.
struct StartGate<'a> {
    ready: Barrier,
    released: Barrier,
    start: &'a StartTime<'a>,
    at: Mutex<Option<Instant>>,
    /// A thread could not prepare: no thread begins.
    failed: AtomicBool,
}

impl<'a> StartGate<'a> {
    fn new(threads: usize, start: &'a StartTime<'a>) -> Self {
        Self {
            ready: Barrier::new(threads),
            released: Barrier::new(threads),
            start,
            at: Mutex::new(None),
            failed: AtomicBool::new(false),
        }
    }

    fn wait(&self) -> Option<Instant> {
        if self.ready.wait().is_leader() && !self.failed.load(Ordering::Relaxed) {
            let at = (self.start)();
            *lock(&self.at) = at;
        }
        self.released.wait();
        *lock(&self.at)
    }
}
