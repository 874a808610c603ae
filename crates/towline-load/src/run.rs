//! A run: workers start together on threads of their own, and their parts become one report.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;

use crate::config::{Config, LoadError};
use crate::report::{self, Report};
use crate::schedule::Share;
use crate::worker::{Part, Worker};

/// Between the last connection and the first request.
const HEAD_START: Duration = Duration::from_millis(2);

/// Ends a run from outside; what was measured until then is kept.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// May be called in a signal handler.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a run gives: the report, and the histograms for those who want to merge or plot them.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub report: Report,
    /// Nanoseconds from the intended start to the last byte.
    pub response: Histogram<u64>,
    /// The same by second, to two digits.
    pub seconds: Vec<Histogram<u64>>,
    /// When the measured time began.
    pub began: SystemTime,
}

/// Puts `config`'s load on its targets until it is over or `stop` is asked.
pub fn run(config: &Config, stop: &Stop) -> Result<Outcome, LoadError> {
    config.check()?;
    let of = config.threads as u32;
    let workers: Vec<_> = (0..of)
        .map(|index| Worker::new(config, Share { index, of }))
        .collect::<io::Result<_>>()?;
    let start = Start::new(config.threads);
    let parts: Vec<Part> = thread::scope(|scope| {
        let spawn = |worker| scope.spawn(|| work(worker, &start, stop));
        let threads: Vec<_> = workers.into_iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect::<io::Result<_>>()
    })?;
    let since_begin = start.time().elapsed();
    let began = SystemTime::now()
        .checked_sub(since_begin.saturating_sub(config.lead()))
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let (report, tally) = report::of_parts(config, &parts, began);
    Ok(Outcome {
        report,
        seconds: tally
            .series
            .iter()
            .map(crate::stats::Interval::times)
            .collect(),
        response: tally.response.0,
        began,
    })
}

fn work(mut worker: Worker<'_>, start: &Start, stop: &Stop) -> io::Result<Part> {
    towline_io::exact_timers();
    let connected = worker.connect();
    // Whatever came of it: the others wait.
    let begin = start.agree();
    connected?;
    worker.run(begin, stop)
}

/// The moment at which all threads begin, known when the last one is ready.
struct Start {
    ready: Barrier,
    agreed: Barrier,
    at: Mutex<Instant>,
}

impl Start {
    fn new(threads: usize) -> Self {
        Self {
            ready: Barrier::new(threads),
            agreed: Barrier::new(threads),
            at: Mutex::new(Instant::now()),
        }
    }

    fn agree(&self) -> Instant {
        if self.ready.wait().is_leader() {
            *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + HEAD_START;
        }
        self.agreed.wait();
        self.time()
    }

    fn time(&self) -> Instant {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
