//! Thread pool for blocking work: name lookups and certificate files. Threads start on demand and end after
//! an idle time; a process that exits does not wait for them. Completion is signalled through a descriptor,
//! for epoll and poll(2) alike.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::fork::PerGeneration;

/// Most tasks that wait for a thread.
const MAX_QUEUED_TASKS: usize = 4096;

const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pool for name lookups. A lookup occupies its thread until the system's resolver returns.
pub(crate) static LOOKUPS: ThreadPool = ThreadPool::new(8);

/// Pool for files, which would wait for lookups in a common pool.
pub(crate) static FILES: ThreadPool = ThreadPool::new(2);

/// A bounded number of threads; a child of fork starts its own.
pub(crate) struct ThreadPool {
    workers: PerGeneration<Workers>,
    max_threads: usize,
}

impl ThreadPool {
    const fn new(max_threads: usize) -> Self {
        Self {
            workers: PerGeneration::new(),
            max_threads,
        }
    }

    /// Runs `work` on a thread of the pool. A task that is dropped before it starts is never run.
    pub(crate) fn spawn<T: Send + Sync + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Arc<Task<T>>> {
        let (reader, writer) = io::pipe()?;
        let task = Arc::new(Task {
            work: Mutex::new(Some((Box::new(work), writer))),
            outcome: OnceLock::new(),
            reader,
        });
        let work: Arc<dyn Work> = task.clone();
        self.workers
            .current()
            .enqueue(Arc::downgrade(&work), self.max_threads)?;
        Ok(task)
    }

    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        lock(&self.workers.current().queue).threads
    }
}

/// Work for the pool and its result.
pub(crate) struct Task<T> {
    work: Mutex<Option<(Closure<T>, PipeWriter)>>,
    outcome: OnceLock<Result<T, Panicked>>,
    reader: PipeReader,
}

/// The work has panicked, so there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

type Closure<T> = Box<dyn FnOnce() -> T + Send>;

impl<T> Task<T> {
    pub(crate) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }
}

/// Handle to wait for a task. The task lives as long as one of its handles does.
pub(crate) struct TaskHandle<T> {
    task: Arc<Task<T>>,
    /// A duplicate per handle, so that two of them can be registered in one poll.
    reader: PipeReader,
}

impl<T> TaskHandle<T> {
    pub(crate) fn new(task: Arc<Task<T>>) -> io::Result<Self> {
        let reader = task.reader.try_clone()?;
        Ok(Self { task, reader })
    }

    /// Descriptor that is readable once the task is done.
    pub(crate) fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    /// Result of the task; `None` while it is not done.
    pub(crate) fn outcome(&self) -> Option<Result<&T, Panicked>> {
        let outcome = self.task.outcome.get()?;
        Some(outcome.as_ref().map_err(|panicked| *panicked))
    }
}

trait Work: Send + Sync {
    fn run(&self);
}

impl<T: Send + Sync> Work for Task<T> {
    fn run(&self) {
        if let Some((work, mut writer)) = lock(&self.work).take() {
            let outcome = panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked);
            let _ = self.outcome.set(outcome);
            // Closing alone is not enough: a child of fork may hold this end open too.
            let _ = writer.write(&[0]);
        }
    }
}

/// The threads of one process and their queue.
#[derive(Default)]
struct Workers {
    queue: Mutex<Queue>,
    available: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Weak<dyn Work>>,
    threads: usize,
    idle: usize,
}

impl Workers {
    fn enqueue(&'static self, work: Weak<dyn Work>, max_threads: usize) -> io::Result<()> {
        let mut queue = lock(&self.queue);
        if queue.waiting.len() >= MAX_QUEUED_TASKS {
            queue.waiting.retain(|work| work.strong_count() > 0);
            if queue.waiting.len() >= MAX_QUEUED_TASKS {
                return Err(io::Error::other("too many lookups wait already"));
            }
        }
        queue.waiting.push_back(work);
        if queue.waiting.len() > queue.idle && queue.threads < max_threads {
            let thread = thread::Builder::new().name("towline-helper".into());
            match thread.spawn(|| self.run_worker()) {
                Ok(_) => queue.threads += 1,
                // The existing threads will run it.
                Err(_) if queue.threads > 0 => {}
                Err(error) => {
                    queue.waiting.pop_back();
                    return Err(error);
                }
            }
        }
        drop(queue);
        self.available.notify_one();
        Ok(())
    }

    fn run_worker(&self) {
        block_signals();
        let mut queue = lock(&self.queue);
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                if let Some(work) = work.upgrade() {
                    work.run();
                }
                queue = lock(&self.queue);
                continue;
            }
            queue.idle += 1;
            let (guard, waited) = self
                .available
                .wait_timeout(queue, IDLE_TIMEOUT)
                .unwrap_or_else(PoisonError::into_inner);
            queue = guard;
            queue.idle -= 1;
            if waited.timed_out() && queue.waiting.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

/// Blocks signals in this thread: they must interrupt the thread in which the program waits.
fn block_signals() {
    // SAFETY: fills a local set and sets the mask of the calling thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Locks `mutex`; a panic leaves nothing inconsistent under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    fn wait<T>(handle: &TaskHandle<T>) {
        let _ = (&handle.reader).read(&mut [0]).unwrap();
    }

    #[test]
    fn threads_are_bounded_and_end_when_idle() {
        static POOL: ThreadPool = ThreadPool::new(3);
        static DONE: AtomicUsize = AtomicUsize::new(0);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let gate = Arc::clone(&gate);
                let work = move || {
                    let _ = lock(&gate).recv();
                    DONE.fetch_add(1, Ordering::Relaxed);
                };
                POOL.spawn(work).unwrap()
            })
            .collect();
        assert_eq!(POOL.threads(), 3);
        // The queued tasks are dropped, and the running ones may end.
        let last = TaskHandle::new(Arc::clone(&tasks[0])).unwrap();
        drop(tasks);
        drop(open);
        wait(&last);
        let start = Instant::now();
        while POOL.threads() > 0 {
            assert!(start.elapsed() < 10 * IDLE_TIMEOUT, "threads stayed");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(DONE.load(Ordering::Relaxed) <= 4);
    }

    #[test]
    fn signals_are_blocked_in_pool_threads() {
        static POOL: ThreadPool = ThreadPool::new(1);
        let is_blocked = || {
            // SAFETY: reads the mask of the calling thread into a local set.
            unsafe {
                let mut mask = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                libc::sigismember(&raw const mask, libc::SIGINT) == 1
            }
        };
        assert!(!is_blocked());
        let handle = TaskHandle::new(POOL.spawn(is_blocked).unwrap()).unwrap();
        wait(&handle);
        assert_eq!(handle.outcome(), Some(Ok(&true)));
    }

    #[test]
    fn a_panic_is_an_outcome() {
        static POOL: ThreadPool = ThreadPool::new(3);
        let task = POOL
            .spawn(|| -> u8 { panic!("as the test wants") })
            .unwrap();
        let handle = TaskHandle::new(task).unwrap();
        wait(&handle);
        assert_eq!(handle.outcome(), Some(Err(Panicked)));
        let task = POOL.spawn(|| 5).unwrap();
        let tickets = [
            TaskHandle::new(Arc::clone(&task)).unwrap(),
            TaskHandle::new(task).unwrap(),
        ];
        wait(&tickets[1]);
        assert_eq!(tickets[0].outcome(), Some(Ok(&5)));
    }
}
