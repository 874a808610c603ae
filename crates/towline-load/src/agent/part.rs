//! An agent's part of a load that several agents share: the agent's end of [`messages`](crate::hosts::messages).
//!
//! ```text
//! prepare ─► Preparing ──ready──► Waiting ──begin──► Running ──result──► none
//!                └──failed──────────┴────stop, end of input──┴──────────► none
//! ```
//!
//! The load runs on threads of its own, so that commands are read, and clocks compared, meanwhile.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::LoadError;
use crate::hosts::messages::{
    Clock, Introduction, Order, PartEvent, PartResult, Progress, ThreadFigures,
};
use crate::monitor::Monitor;
use crate::session::Session;
use crate::slice::Stop;
use crate::sync::lock;
use crate::usage;

/// Often enough for a live view.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Attempts to make a folder.
const MAX_FOLDERS: u64 = 10_000;
/// Interval between checks for the end of a wait.
const TICK: Duration = Duration::from_millis(20);

/// The agent's output, one line at a time.
pub(super) struct Output<W>(Mutex<W>);

impl<W: Write> Output<W> {
    pub(super) fn new(output: W) -> Self {
        Self(Mutex::new(output))
    }

    pub(super) fn write(&self, message: &impl Serialize) -> std::io::Result<()> {
        let mut bytes = serde_json::to_vec(message)?;
        bytes.push(b'\n');
        let mut output = lock(&self.0);
        output.write_all(&bytes)?;
        output.flush()
    }
}

/// Ends the process when its controller is silent: a connection may be cut without an end of the input.
pub(super) struct Watchdog {
    started: Instant,
    /// Nanoseconds from `started` to the last command.
    heard: AtomicU64,
    /// Limit in nanoseconds; 0: none.
    limit: AtomicU64,
}

impl Watchdog {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            heard: AtomicU64::new(0),
            limit: AtomicU64::new(0),
        })
    }

    pub(super) fn on_command(&self) {
        let since = self.started.elapsed().as_nanos() as u64;
        self.heard.store(since, Ordering::Relaxed);
    }

    /// Begins to watch.
    pub(super) fn start(self: &Arc<Self>, limit: Duration) {
        let limit = limit.as_nanos() as u64;
        if self.limit.swap(limit, Ordering::Relaxed) != 0 {
            return;
        }
        let watched = Arc::clone(self);
        // Ends with the process; without the thread, a connection that is cut is noticed by its own timeouts only.
        let _ = thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                while watched.limit.load(Ordering::Relaxed) != 0 {
                    thread::sleep(Duration::from_millis(200));
                    watched.check();
                }
            });
    }

    pub(super) fn end(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    fn check(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        let now = self.started.elapsed().as_nanos() as u64;
        if limit != 0 && now.saturating_sub(self.heard.load(Ordering::Relaxed)) > limit {
            eprintln!(
                "towline-load: the agent ends: nothing was heard of its controller for too long"
            );
            std::process::exit(1);
        }
    }
}

/// The part that is being prepared or runs.
pub(super) struct Part {
    stop: Stop,
    begin: Sender<u64>,
    /// Set before the result is written: the controller may send the next order as soon as it has read it.
    over: Arc<AtomicBool>,
}

impl Part {
    pub(super) fn start<'scope, W: Write + Send>(
        scope: &'scope Scope<'scope, '_>,
        order: Order,
        output: &'scope Output<W>,
        clock: Clock,
    ) -> Self {
        Self::spawn(scope, output, move |stop, begins| {
            run(order, output, (stop, &Mutex::new(begins)), clock)
        })
    }

    fn spawn<'scope, W: Write + Send>(
        scope: &'scope Scope<'scope, '_>,
        output: &'scope Output<W>,
        run: impl FnOnce(&Stop, Receiver<u64>) -> Result<PartResult, LoadError> + Send + 'scope,
    ) -> Self {
        let stop = Stop::default();
        let over = Arc::new(AtomicBool::new(false));
        let (begin, begins) = mpsc::channel();
        let (own, ended) = (stop.clone(), Arc::clone(&over));
        scope.spawn(move || {
            let event = match run(&own, begins) {
                Ok(result) => PartEvent::Result(Box::new(result)),
                Err(error) => PartEvent::Failed(error.to_string()),
            };
            ended.store(true, Ordering::Release);
            // An output that is closed has no reader; the end of the input follows.
            let _ = output.write(&event);
        });
        Self { stop, begin, over }
    }

    pub(super) fn begin(&self, at_ns: u64) {
        // Fails if the part is over already.
        let _ = self.begin.send(at_ns);
    }

    pub(super) fn stop(&self) {
        self.stop.request();
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// Opens the connections, waits for the start, sends the load.
fn run<W: Write + Send>(
    order: Order,
    output: &Output<W>,
    (stop, begins): (&Stop, &Mutex<Receiver<u64>>),
    clock: Clock,
) -> Result<PartResult, LoadError> {
    let folder = (order.authorities_pem.is_some())
        .then(TemporaryFolder::new)
        .transpose()?;
    let order = match &folder {
        Some(folder) => order.unpack(&folder.path)?,
        None => order,
    };
    let mut session = Session::open_part(order.config, order.part)?;
    let monitor = Monitor::default();
    session.monitor(&monitor);
    let start = || {
        output.write(&PartEvent::Ready {}).ok()?;
        wait_for_begin(begins, stop).map(|ns| clock.instant(ns))
    };
    let (over, ended) = mpsc::channel::<()>();
    let monitor = &monitor;
    let (tally, results) = thread::scope(|scope| {
        scope.spawn(move || report_progress(monitor, output, &ended, stop));
        let measured = session.last_slice_of_part(&order.slice, stop, &start);
        drop(over);
        measured
    })?;
    Ok(PartResult {
        tally,
        threads: (results.iter())
            .map(|result| ThreadFigures::new(result, &clock))
            .collect(),
        peak_memory_bytes: usage::peak_memory(),
    })
}

/// The time of the start on the agent's clock; `None`: the load is stopped before it.
fn wait_for_begin(begins: &Mutex<Receiver<u64>>, stop: &Stop) -> Option<u64> {
    let begins = lock(begins);
    loop {
        match begins.recv_timeout(TICK) {
            Ok(ns) => return Some(ns),
            Err(RecvTimeoutError::Timeout) if !stop.is_requested() => {}
            Err(_) => return None,
        }
    }
}

/// Writes the progress until the load is over. Nobody reads a closed output: the load ends.
fn report_progress<W: Write>(
    monitor: &Monitor,
    output: &Output<W>,
    ended: &Receiver<()>,
    stop: &Stop,
) {
    while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let counts = monitor.snapshot();
        if counts.elapsed.is_none() {
            continue;
        }
        let seconds = monitor.take_seconds().into_iter();
        let progress = Progress {
            counts,
            seconds: seconds.map(|ended| ended.seconds).collect(),
            cpu_ns: usage::process_cpu().as_nanos() as u64,
            first_failure: monitor.first_failure(),
        };
        if output
            .write(&PartEvent::Progress(Box::new(progress)))
            .is_err()
        {
            return stop.request();
        }
    }
}

/// A folder for the files of an order, removed with the value.
struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    fn new() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("towline-agent-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            // Fails if somebody else has made it, such as a killed agent that had the same process id.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MAX_FOLDERS => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Describes this machine to the controller.
pub(super) fn introduction() -> Introduction {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let local_ports = read("/proc/sys/net/ipv4/ip_local_port_range").and_then(|text| {
        let mut bounds = text.split_whitespace().map(str::parse::<u64>);
        let (first, last) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
        Some(last.saturating_sub(first) + 1)
    });
    Introduction {
        version: env!("CARGO_PKG_VERSION").into(),
        host: read("/proc/sys/kernel/hostname").map_or(String::new(), |name| name.trim().into()),
        local_ports,
        open_files: usage::open_files_limit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_left_is_not_taken() {
        let first = TemporaryFolder::new().unwrap();
        let name = first
            .path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let (prefix, number) = name.rsplit_once('-').unwrap();
        let number: u64 = number.parse().unwrap();
        // A killed agent with the same process id leaves such folders.
        let left: Vec<_> = (number + 1..number + 4)
            .map(|number| std::env::temp_dir().join(format!("{prefix}-{number}")))
            .collect();
        for path in &left {
            std::fs::create_dir(path).unwrap();
        }
        let next = TemporaryFolder::new().unwrap();
        assert!(!left.contains(&next.path), "{left:?}");
        for path in &left {
            std::fs::remove_dir(path).unwrap();
        }
        let path = next.path.clone();
        drop(next);
        assert!(!path.exists());
    }

    /// An output whose reader looks at every piece before the writer continues.
    struct Watched {
        written: Sender<()>,
        seen: Receiver<()>,
    }

    impl Write for Watched {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.written.send(());
            let _ = self.seen.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_part_is_over_when_its_result_is_read() {
        let (written, writes) = mpsc::channel();
        let (look, seen) = mpsc::channel();
        let output = Output::new(Watched { written, seen });
        thread::scope(|scope| {
            let part = Part::spawn(scope, &output, |_, _| Err(LoadError::Config("no".into())));
            writes.recv().unwrap();
            assert!(part.is_over());
            drop(look);
        });
    }
}
