//! Helper threads for what would block a loop: lookups of names, files of certificates. They are few,
//! start when there is work and end when there has been none for a while; a process that exits does not
//! wait for them. What they found is told through a descriptor, for epoll and poll(2) alike.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::fork::PerGeneration;

/// Work that waits for a thread.
const MAX_WAITING: usize = 4096;

const IDLE: Duration = Duration::from_secs(2);

/// For names. One that hangs holds its thread for as long as the system's resolver likes.
pub(crate) static LOOKUPS: Helpers = Helpers::new(8);

/// For files, so that these do not wait for names.
pub(crate) static FILES: Helpers = Helpers::new(2);

/// Threads of this process; a child of fork starts its own.
pub(crate) struct Helpers {
    crew: PerGeneration<Crew>,
    max_threads: usize,
}

impl Helpers {
    const fn new(max_threads: usize) -> Self {
        Self {
            crew: PerGeneration::new(),
            max_threads,
        }
    }

    /// Runs `work` on a helper thread. Dropped before its turn comes, it is never run.
    pub(crate) fn start<T: Send + Sync + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Arc<Task<T>>> {
        let (ear, bell) = io::pipe()?;
        let task = Arc::new(Task {
            work: Mutex::new(Some((Box::new(work), bell))),
            outcome: OnceLock::new(),
            ear,
        });
        let work: Arc<dyn Work> = task.clone();
        self.crew
            .current()
            .take(Arc::downgrade(&work), self.max_threads)?;
        Ok(task)
    }

    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        lock(&self.crew.current().desk).threads
    }
}

/// Something to find out, and in the end what was found.
pub(crate) struct Task<T> {
    work: Mutex<Option<(Thunk<T>, PipeWriter)>>,
    outcome: OnceLock<Result<T, Panicked>>,
    ear: PipeReader,
}

/// The work will not come to an end: there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

type Thunk<T> = Box<dyn FnOnce() -> T + Send>;

impl<T> Task<T> {
    pub(crate) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }
}

/// One who waits for a task. The task lives as long as one of them does.
pub(crate) struct Ticket<T> {
    task: Arc<Task<T>>,
    /// Of its own, so that two that wait in one poll do not collide.
    ear: PipeReader,
}

impl<T> Ticket<T> {
    pub(crate) fn new(task: Arc<Task<T>>) -> io::Result<Self> {
        let ear = task.ear.try_clone()?;
        Ok(Self { task, ear })
    }

    /// Readable once the outcome is there, and for ever after.
    pub(crate) fn fd(&self) -> RawFd {
        self.ear.as_raw_fd()
    }

    /// `None`: not yet.
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
        if let Some((work, mut bell)) = lock(&self.work).take() {
            let outcome = panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked);
            let _ = self.outcome.set(outcome);
            // A byte, not only the closing: a child of fork may hold this end open too.
            let _ = bell.write(&[0]);
        }
    }
}

/// The threads and what waits for them.
#[derive(Default)]
struct Crew {
    desk: Mutex<Desk>,
    news: Condvar,
}

#[derive(Default)]
struct Desk {
    waiting: VecDeque<Weak<dyn Work>>,
    threads: usize,
    idle: usize,
}

impl Crew {
    fn take(&'static self, work: Weak<dyn Work>, max_threads: usize) -> io::Result<()> {
        let mut desk = lock(&self.desk);
        if desk.waiting.len() >= MAX_WAITING {
            desk.waiting.retain(|work| work.strong_count() > 0);
            if desk.waiting.len() >= MAX_WAITING {
                return Err(io::Error::other("too many lookups wait already"));
            }
        }
        desk.waiting.push_back(work);
        if desk.waiting.len() > desk.idle && desk.threads < max_threads {
            let thread = thread::Builder::new().name("towline-helper".into());
            match thread.spawn(|| self.serve()) {
                Ok(_) => desk.threads += 1,
                // Those that are there will come to it.
                Err(_) if desk.threads > 0 => {}
                Err(error) => {
                    desk.waiting.pop_back();
                    return Err(error);
                }
            }
        }
        drop(desk);
        self.news.notify_one();
        Ok(())
    }

    fn serve(&self) {
        block_signals();
        let mut desk = lock(&self.desk);
        loop {
            if let Some(work) = desk.waiting.pop_front() {
                drop(desk);
                if let Some(work) = work.upgrade() {
                    work.run();
                }
                desk = lock(&self.desk);
                continue;
            }
            desk.idle += 1;
            let (held, waited) = self
                .news
                .wait_timeout(desk, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            desk = held;
            desk.idle -= 1;
            if waited.timed_out() && desk.waiting.is_empty() {
                desk.threads -= 1;
                return;
            }
        }
    }
}

/// A signal must interrupt the thread that the program waits in, not one of these.
fn block_signals() {
    // SAFETY: fills a set of its own and gives it to the calling thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Nothing that is kept under these locks can be half done.
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

    fn wait<T>(ticket: &Ticket<T>) {
        let _ = (&ticket.ear).read(&mut [0]).unwrap();
    }

    #[test]
    fn threads_are_few_and_end() {
        static CREW: Helpers = Helpers::new(3);
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
                CREW.start(work).unwrap()
            })
            .collect();
        assert_eq!(CREW.threads(), 3);
        // Nobody waits for these any more, and those that run are let go.
        let last = Ticket::new(Arc::clone(&tasks[0])).unwrap();
        drop(tasks);
        drop(open);
        wait(&last);
        let start = Instant::now();
        while CREW.threads() > 0 {
            assert!(start.elapsed() < 10 * IDLE, "threads stayed");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(DONE.load(Ordering::Relaxed) <= 4);
    }

    #[test]
    fn signals_are_left_to_the_program() {
        static CREW: Helpers = Helpers::new(1);
        let is_blocked = || {
            // SAFETY: asks for the mask of the calling thread, into a set of its own.
            unsafe {
                let mut mask = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                libc::sigismember(&raw const mask, libc::SIGINT) == 1
            }
        };
        assert!(!is_blocked());
        let ticket = Ticket::new(CREW.start(is_blocked).unwrap()).unwrap();
        wait(&ticket);
        assert_eq!(ticket.outcome(), Some(Ok(&true)));
    }

    #[test]
    fn a_panic_is_an_outcome() {
        static CREW: Helpers = Helpers::new(3);
        let task = CREW
            .start(|| -> u8 { panic!("as the test wants") })
            .unwrap();
        let ticket = Ticket::new(task).unwrap();
        wait(&ticket);
        assert_eq!(ticket.outcome(), Some(Err(Panicked)));
        let task = CREW.start(|| 5).unwrap();
        let tickets = [
            Ticket::new(Arc::clone(&task)).unwrap(),
            Ticket::new(task).unwrap(),
        ];
        wait(&tickets[1]);
        assert_eq!(tickets[0].outcome(), Some(Ok(&5)));
    }
}
