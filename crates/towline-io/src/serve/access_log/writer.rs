//! The thread that writes log lines, and the bounded buffer in front of it.
//!
//! Two byte buffers are swapped: requests append to one under a short lock, the thread writes the other. A
//! full buffer, a full disk, a broken or slow pipe lose lines, which are counted; requests never wait. The
//! thread starts with the first line, so that a writer created before a fork works in the worker, and
//! sleeps briefly after each wake-up, so that a busy server wakes it a few dozen times a second rather
//! than once per request.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::output_file::{self, Output};

/// Size of the buffer: about 10,000 lines, a tenth of a second at full load.
pub const DEFAULT_BUFFER_BYTES: usize = 1024 * 1024;

/// Time for which lines are collected before they are written; also the largest delay of the log.
const GATHER: Duration = Duration::from_millis(20);

/// `PIPE_BUF` on Linux: writes of up to this size to a pipe shared by workers are atomic.
const PIPE_BYTES: usize = 4096;

/// Destination of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sink {
    Stdout,
    Stderr,
    /// A file, appended to and created if missing; several workers may share it.
    File(PathBuf),
    /// A function of the program.
    Lines(LineSink),
}

/// A function that takes a batch of whole lines, on the writer's thread.
#[derive(Clone)]
pub struct LineSink(pub Arc<WriteLines>);

type WriteLines = dyn Fn(&[u8]) + Send + Sync;

impl std::fmt::Debug for LineSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LineSink")
    }
}

impl PartialEq for LineSink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LineSink {}

impl Sink {
    fn open(&self) -> io::Result<Target> {
        let file = match self {
            Self::Lines(sink) => return Ok(Target::Lines(sink.clone())),
            Self::Stdout => duplicate(libc::STDOUT_FILENO)?,
            Self::Stderr => duplicate(libc::STDERR_FILENO)?,
            Self::File(path) => output_file::open(path, Output::Append, 0o640)?,
        };
        let is_pipe = file.metadata().is_ok_and(|data| data.file_type().is_fifo());
        let piece_bytes = if is_pipe { PIPE_BYTES } else { usize::MAX };
        Ok(Target::File(FileTarget {
            file,
            piece_bytes,
            torn: false,
        }))
    }
}

fn duplicate(fd: i32) -> io::Result<File> {
    // SAFETY: fcntl with a number; the result is checked before it is owned.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` is a new descriptor without another owner.
    Ok(unsafe { File::from_raw_fd(copy) })
}

/// Handle that queues lines. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    sink: Sink,
    buffer_bytes: usize,
    queue: Mutex<Queue>,
    /// Wakes the thread for lines, and [`Writer::close`] at the end.
    changed: Condvar,
    dropped: AtomicU64,
    /// Lost lines not yet returned by `take_unreported`.
    unreported: AtomicU64,
    reopen: AtomicBool,
}

struct Queue {
    lines: Vec<u8>,
    thread: Thread,
    /// Time after which the thread drops lines that it cannot write at once.
    give_up: Option<Instant>,
}

/// ```text
/// Absent --first line--> Busy <--wake/sleep--> Idle --close--> Ended
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    Absent,
    /// Writing or collecting: it checks the queue again by itself.
    Busy,
    /// Waiting: the next line must wake it.
    Idle,
    Ended,
}

impl Writer {
    /// Opens the destination once, so that a path that cannot be written fails at start-up.
    pub fn new(sink: Sink, buffer_bytes: usize) -> io::Result<Self> {
        sink.open()?;
        let queue = Queue {
            lines: Vec::new(),
            thread: Thread::Absent,
            give_up: None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                sink,
                buffer_bytes,
                queue: Mutex::new(queue),
                changed: Condvar::new(),
                dropped: AtomicU64::new(0),
                unreported: AtomicU64::new(0),
                reopen: AtomicBool::new(false),
            }),
        })
    }

    /// Queues one line, with its newline. Returns false when there is no room; the line is counted as lost.
    pub fn push(&self, line: &[u8]) -> bool {
        let mut queue = self.shared.lock();
        let fits = queue.lines.len() + line.len() <= self.shared.buffer_bytes;
        if !fits || queue.thread == Thread::Ended || queue.give_up.is_some() {
            drop(queue);
            self.shared.lose(1);
            return false;
        }
        queue.lines.extend_from_slice(line);
        match queue.thread {
            Thread::Absent => self.start(&mut queue),
            Thread::Idle => {
                queue.thread = Thread::Busy;
                drop(queue);
                self.shared.changed.notify_all();
            }
            Thread::Busy | Thread::Ended => {}
        }
        true
    }

    fn start(&self, queue: &mut Queue) {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("towline-log".into());
        queue.thread = match thread.spawn(move || shared.run()) {
            Ok(_) => Thread::Busy,
            // No thread available: the next line tries again; the buffer stays bounded.
            Err(_) => Thread::Absent,
        };
    }

    /// Number of lines lost so far.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Relaxed)
    }

    /// Number of lines lost since the last call from any thread, for a counter that outlives this writer.
    pub fn take_unreported(&self) -> u64 {
        if self.shared.unreported.load(Relaxed) == 0 {
            return 0;
        }
        self.shared.unreported.swap(0, Relaxed)
    }

    /// Reopens the file before the next line is written (log rotation, SIGUSR1). Only sets a flag, so a
    /// signal handler may call it.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Relaxed);
    }

    /// Waits until all lines are written, for `timeout` at most; later lines are dropped. Returns false when
    /// the timeout passed first and the remaining lines are lost, or when others have pushed lines meanwhile.
    pub fn close(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut queue = self.shared.lock();
        if queue.thread == Thread::Absent {
            queue.thread = Thread::Ended;
            return queue.lines.is_empty();
        }
        queue.give_up.get_or_insert(deadline);
        let dropped = self.dropped();
        self.shared.changed.notify_all();
        while queue.thread != Thread::Ended {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.shared.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.dropped() == dropped
    }
}

impl Shared {
    /// Ignores poisoning: the queue is consistent at every point.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, lines: u64) {
        self.dropped.fetch_add(lines, Relaxed);
        self.unreported.fetch_add(lines, Relaxed);
    }

    fn run(&self) {
        let mut target = self.sink.open();
        let mut batch = Vec::new();
        while let Some(give_up) = self.next_batch(&mut batch) {
            if self.reopen.swap(false, Relaxed) || target.is_err() {
                // The old file stays in use when the new one cannot be opened.
                target = self.sink.open().or(target);
            }
            let written = match &mut target {
                Ok(target) => target.write_lines(&batch, || give_up.or(self.lock().give_up)),
                Err(_) => 0,
            };
            let lost = batch[written..].split(|&byte| byte == b'\n').count() - 1;
            if lost > 0 {
                self.lose(lost as u64);
            }
        }
    }

    /// Swaps the buffers. `None` at the end; the value is the deadline, if any.
    #[allow(clippy::option_option)] // Outer: is there a batch; inner: is there a deadline.
    fn next_batch(&self, batch: &mut Vec<u8>) -> Option<Option<Instant>> {
        batch.clear();
        let mut queue = self.lock();
        while queue.lines.is_empty() && queue.give_up.is_none() {
            queue.thread = Thread::Idle;
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        queue.thread = Thread::Busy;
        if queue.give_up.is_none() && queue.lines.len() < self.buffer_bytes / 2 {
            // Closing ends the collecting time early.
            let gathered = self.changed.wait_timeout(queue, GATHER);
            queue = gathered.unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.lines.is_empty() {
            queue.thread = Thread::Ended;
            self.changed.notify_all();
            return None;
        }
        std::mem::swap(&mut queue.lines, batch);
        Some(queue.give_up)
    }
}

enum Target {
    File(FileTarget),
    Lines(LineSink),
}

impl Target {
    /// Writes `lines` and returns the number of bytes written: fewer than given after an error or the deadline.
    fn write_lines(&mut self, lines: &[u8], give_up: impl Fn() -> Option<Instant>) -> usize {
        match self {
            Self::File(file) => file.write_lines(lines, give_up),
            Self::Lines(LineSink(sink)) => {
                sink(lines);
                lines.len()
            }
        }
    }
}

struct FileTarget {
    file: File,
    /// Largest size of one write, in whole lines where possible.
    piece_bytes: usize,
    /// The last write stopped inside a line.
    torn: bool,
}

impl FileTarget {
    /// Writes `bytes` and returns the number written: fewer than given after an error or the deadline.
    fn write_lines(&mut self, lines: &[u8], give_up: impl Fn() -> Option<Instant>) -> usize {
        if self.torn && self.file.write(b"\n").is_ok() {
            self.torn = false;
        }
        let mut written = 0;
        while written < lines.len() {
            let piece = piece(&lines[written..], self.piece_bytes);
            match self.file.write(piece) {
                Ok(0) => break,
                Ok(n) => written += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if give_up().is_some_and(|deadline| Instant::now() >= deadline) {
                        break;
                    }
                    self.wait_writable();
                }
                Err(_) => break,
            }
        }
        self.torn = written > 0 && lines[written - 1] != b'\n' || written == 0 && self.torn;
        written
    }

    /// Waits briefly for a terminal or pipe that is in non-blocking mode; then the deadline is checked.
    fn wait_writable(&self) {
        let mut poll = libc::pollfd {
            fd: self.file.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 50) };
    }
}

/// Length of the longest prefix of whole lines within `limit`; a single longer line is cut.
fn piece(lines: &[u8], limit: usize) -> &[u8] {
    if lines.len() <= limit {
        return lines;
    }
    let end = lines[..limit]
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(limit, |at| at + 1);
    &lines[..end]
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
