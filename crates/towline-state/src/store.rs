//! A store: its directory, the environment of this process, and the course of a read and of a write.
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::clock::coarse_ms;
use crate::disk;
use crate::error::{Error, Result};
use crate::files::{
    Options, PAGE, Settings, WhenFull, check_data, existing_settings, finish_settings,
    lock_opening, other_settings, write_settings,
};
use crate::folder::Folder;
use crate::lmdb::{Db, Env, LOCK_BYTES, Txn, WriteTxn};
use crate::shared::{Shared, WriteGuard};

/// A writer that gets no turn for this long reports it: the process that has the lock is stopped, not busy.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a writer tries again and again before it sleeps, or gives up: a transaction takes a few microseconds.
const SPIN: Duration = Duration::from_micros(30);
/// Bytes and items that a call may handle without waiting being allowed: about 0.1 ms of copying.
pub const SHORT_BYTES: usize = 256 * 1024;
pub const SHORT_ITEMS: usize = 128;
/// Rounds of removal that one write makes before it is refused.
const REMOVAL_ROUNDS: usize = 64;
/// Time that a write waits for readers whose snapshots keep old pages, when these fill the file: a read takes microseconds, unless
/// its thread has lost the processor.
const READERS_WAIT: Duration = Duration::from_secs(1);
const READERS_PAUSE: Duration = Duration::from_millis(2);
/// Interval between looks at whether the files are still in their directory.
const LOOK_INTERVAL_MS: u64 = 100;

/// Whether a call may wait for other writers and work for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    Wait,
    /// `Error::Busy` instead, after about 0.1 ms.
    Short,
}

/// Figures of a store.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub keys: u64,
    /// Bytes of the pages with values and with the index of expiry.
    pub used_bytes: u64,
    pub expiring: u64,
    pub messages: u64,
    pub subscribers: usize,
    pub writes: u64,
    /// Bytes of the file so far.
    pub file_bytes: u64,
    pub settings: (u64, WhenFull, bool),
}

/// The files of a store, opened by this process.
pub struct OpenFiles {
    pub env: Env,
    pub shared: Shared,
    pub settings: Settings,
    pub folder: Folder,
    pub data: File,
    /// Time of the next look at whether it is still in the directory, in milliseconds of the coarse clock.
    next_look: AtomicU64,
    /// Pages of the file that are known to have space on the disk (`reserve.rs`).
    pub reserved: AtomicU64,
    /// Pages of the trees after the last write of this process.
    pub tree_pages: AtomicU64,
    /// Users whose directory root may use, for openings after a fork.
    workers: Option<u32>,
    /// Time of the next removal of expired values, in milliseconds.
    pub next_sweep: AtomicU64,
    /// Where the last eviction ended: the next goes on from there.
    pub hand: Mutex<Vec<u8>>,
}

/// A store. After a fork the child opens its files again at the first use.
pub struct Store {
    opened: Arc<OpenFiles>,
    generation: u64,
    reopened: OnceLock<Box<Store>>,
}

/// Number of forks between this process and the first one.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The stores of this process. Opening one twice would drop LMDB's locks when one of the two is closed.
static OPEN: Mutex<Vec<(u64, PathBuf, Weak<OpenFiles>)>> = Mutex::new(Vec::new());

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

impl Store {
    /// Open the store in a directory; make both if they are missing.
    pub fn open(folder: &Path, options: Options) -> Result<Self> {
        static WATCH_FORKS: Once = Once::new();
        // SAFETY: the handler only adds to an atomic.
        WATCH_FORKS.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(count_fork));
        });
        let folder = Folder::open(folder, options.workers)?;
        let mut open = OPEN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let generation = generation();
        open.retain(|(of, _, opened)| *of == generation && opened.strong_count() > 0);
        let known = open
            .iter()
            .filter(|(_, path, _)| *path == folder.path)
            .find_map(|(_, _, opened)| opened.upgrade().filter(|opened| opened.is_in_place()));
        let opened = if let Some(opened) = known {
            if opened.settings.with(options) != opened.settings {
                return Err(other_settings(&folder, opened.settings));
            }
            opened
        } else {
            let path = folder.path.clone();
            let opened = Arc::new(OpenFiles::open(folder, options)?);
            open.push((generation, path, Arc::downgrade(&opened)));
            opened
        };
        Ok(Self {
            opened,
            generation,
            reopened: OnceLock::new(),
        })
    }

    /// The files, as this process has opened them.
    pub fn opened(&self) -> Result<&OpenFiles> {
        if self.generation == generation() {
            return Ok(&self.opened);
        }
        if self.reopened.get().is_none() {
            let store = Box::new(Self::open(&self.opened.folder.path, self.opened.same())?);
            let _ = self.reopened.set(store); // another thread may have been faster
        }
        self.reopened.get().expect("has been set").opened()
    }

    /// Opens the store again for another owner.
    pub fn share(&self) -> Result<Self> {
        let opened = self.opened()?;
        Self::open(&opened.folder.path, opened.same())
    }

    /// Run `read` on a snapshot. It may run again.
    pub fn read<T>(&self, read: impl FnMut(&Txn<'_>) -> Result<T>) -> Result<T> {
        let opened = self.opened()?;
        opened.check_place()?;
        opened.env.read(read).map_err(|error| opened.named(error))
    }

    pub fn info(&self) -> Result<Info> {
        let opened = self.opened()?;
        let Settings {
            size,
            when_full,
            sync,
        } = opened.settings;
        opened.env.read(|txn| {
            let (values, expiry) = (txn.size(Db::Values)?, txn.size(Db::Expiry)?);
            Ok(Info {
                keys: values.entries.saturating_sub(2), // the names of the other databases
                used_bytes: (values.pages + expiry.pages) * PAGE,
                expiring: expiry.entries,
                messages: txn.size(Db::Log)?.entries,
                subscribers: opened.shared.subscribers(),
                writes: opened.shared.writes(),
                file_bytes: opened.env.used_pages()? * PAGE,
                settings: (size, when_full, sync),
            })
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.generation != generation() {
            // The environment of the parent: closing it here would change the table of readers under the parent.
            std::mem::forget(Arc::clone(&self.opened));
        }
    }
}

/// The course of a write, and what it may need.
#[derive(Clone, Copy)]
pub struct Change {
    pub blocking: Blocking,
    /// Bytes and number of the values that are written.
    pub bytes: usize,
    pub items: usize,
}

/// Result of the function of a write: its value, and whether there is something to commit.
pub enum Outcome<T> {
    Changed(T),
    Unchanged(T),
}

/// End of one transaction. Unless it is `Done`, nothing has been written.
enum Attempt<T> {
    Done(T),
    /// The values would be more than the size of the store.
    OverSize,
    /// The file is, by old pages that a reader's snapshot keeps.
    FileFull,
}

impl OpenFiles {
    fn open(folder: Folder, options: Options) -> Result<Self> {
        let opening = lock_opening(&folder)?;
        let existing = existing_settings(&folder)?;
        let settings = existing.unwrap_or(Settings::DEFAULT).with(options);
        settings.check()?;
        if existing.is_none() {
            write_settings(&folder, settings)?;
        }
        let (shared, is_alone) = Shared::open(&folder)?;
        if existing.is_some() {
            check_data(&folder, is_alone)?;
        }
        if let Some(existing) = existing.filter(|existing| *existing != settings) {
            if !is_alone {
                return Err(other_settings(&folder, existing));
            }
            write_settings(&folder, settings)?;
            finish_settings(&folder)?;
        }
        reserve_lock_file(&folder, is_alone)?;
        let env = Env::open(
            &folder.base,
            settings.map_bytes(),
            settings.sync,
            shared.clock(),
        )?;
        let data = folder.open_file("data.mdb", false)?;
        env.remove_dead_readers()?;
        let mut opened = Self {
            env,
            shared,
            settings,
            folder,
            data,
            next_look: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            tree_pages: AtomicU64::new(0),
            workers: options.workers,
            next_sweep: AtomicU64::new(0),
            hand: Mutex::default(),
        };
        opened.reserve_at_open(existing.is_none())?;
        opened.env.open_databases()?;
        opened.env.read(|txn| opened.note_tree(txn))?;
        if existing.is_none() {
            finish_settings(&opened.folder)?;
        }
        drop(opening);
        Ok(opened)
    }

    /// Options with which this process opens the store again.
    fn same(&self) -> Options {
        Options {
            workers: self.workers,
            ..Options::default()
        }
    }

    /// Run `change` as the only writer and commit it. It runs again after an eviction.
    pub fn write<T>(
        &self,
        change: Change,
        function: impl FnMut(&mut WriteTxn<'_>, u64) -> Result<Outcome<T>>,
    ) -> Result<T> {
        self.write_unnamed(change, function)
            .map_err(|error| self.named(error))
    }

    /// The error with the file's name, if the file is damaged.
    #[cold]
    fn named(&self, error: Error) -> Error {
        match error.damage() {
            Some(what) => {
                let path = self.folder.path.join("data.mdb");
                Error::Refused(format!("{} is damaged: {what}", path.display()))
            }
            None => error,
        }
    }

    fn write_unnamed<T>(
        &self,
        change: Change,
        mut function: impl FnMut(&mut WriteTxn<'_>, u64) -> Result<Outcome<T>>,
    ) -> Result<T> {
        let is_long =
            change.bytes > SHORT_BYTES || change.items > SHORT_ITEMS || self.settings.sync;
        if change.blocking == Blocking::Short && is_long {
            return Err(Error::Busy);
        }
        if change.bytes as u64 > self.settings.size {
            return Err(self.full());
        }
        self.check_place()?;
        let _guard = self.lock(change.blocking)?;
        let mut readers_until = None;
        let mut rounds = 0;
        while rounds < REMOVAL_ROUNDS {
            let now = self.env.clock.now();
            match self.try_write(change, now, &mut function)? {
                Attempt::Done(value) => return Ok(value),
                Attempt::FileFull => {
                    if change.blocking == Blocking::Short {
                        return Err(Error::Busy);
                    }
                    let until = *readers_until.get_or_insert(Instant::now() + READERS_WAIT);
                    if self.env.remove_dead_readers()? > 0 || Instant::now() < until {
                        std::thread::sleep(READERS_PAUSE);
                        continue;
                    }
                }
                Attempt::OverSize => {}
            }
            rounds += 1;
            // The store is full, and nothing has been written.
            match self.make_space(now) {
                Ok(true) => {}
                Ok(false) | Err(Error::Full { .. }) => return Err(self.full()),
                Err(error) => return Err(error),
            }
            if change.blocking == Blocking::Short {
                return Err(Error::Busy);
            }
        }
        Err(self.full())
    }

    /// One transaction.
    fn try_write<T>(
        &self,
        change: Change,
        now: u64,
        function: &mut impl FnMut(&mut WriteTxn<'_>, u64) -> Result<Outcome<T>>,
    ) -> Result<Attempt<T>> {
        self.reserve(change)?;
        let mut txn = self.env.write()?;
        let value = match function(&mut txn, now) {
            Ok(Outcome::Changed(value)) => value,
            Ok(Outcome::Unchanged(value)) => return Ok(Attempt::Done(value)),
            Err(Error::Full { .. }) => return Ok(Attempt::FileFull),
            Err(error) => return Err(error),
        };
        if change.bytes > 0 && self.is_over_size(&txn)? {
            return Ok(Attempt::OverSize);
        }
        let committed = match self.sweep_if_due(&mut txn, now) {
            Ok(()) => txn.commit(),
            Err(error) => Err(error),
        };
        match committed {
            Ok(()) => {
                self.shared.count_write();
                Ok(Attempt::Done(value))
            }
            Err(Error::Full { .. }) => Ok(Attempt::FileFull),
            Err(error) => Err(error),
        }
    }

    /// Refuses a store whose files are not in the directory any more, now and then: a process that opens the store later has
    /// another one, and counters or locks of the two would differ.
    fn check_place(&self) -> Result<()> {
        let now = coarse_ms();
        if now < self.next_look.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !self.is_in_place() {
            return Err(Error::Refused(format!(
                "{}: the store was removed or replaced while it was open, or its file cut; open it again",
                self.folder.path.display()
            )));
        }
        self.next_look
            .store(now + LOOK_INTERVAL_MS, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the directory still has the file that is open, and all of it. Where that cannot be known, it has.
    fn is_in_place(&self) -> bool {
        let of = |found: &std::fs::Metadata| (found.dev(), found.ino());
        match (
            self.data.metadata(),
            std::fs::metadata(self.folder.path.join("data.mdb")),
        ) {
            (Ok(open), Ok(there)) => {
                of(&open) == of(&there) && open.len() >= self.settings.map_bytes()
            }
            (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), Ok(_)) => true,
        }
    }

    pub fn full(&self) -> Error {
        Error::Full {
            size: self.settings.size,
        }
    }

    fn is_over_size(&self, txn: &Txn<'_>) -> Result<bool> {
        let (values, expiry) = (txn.size(Db::Values)?, txn.size(Db::Expiry)?);
        self.tree_pages
            .store(values.tree_pages + expiry.tree_pages, Ordering::Relaxed);
        Ok(values.pages + expiry.pages > self.settings.size / PAGE)
    }

    /// Become the only writer.
    pub fn lock(&self, blocking: Blocking) -> Result<WriteGuard<'_>> {
        if let Some(guard) = self.shared.try_lock()? {
            return Ok(guard);
        }
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..64 {
                std::hint::spin_loop();
            }
            if let Some(guard) = self.shared.try_lock()? {
                return Ok(guard);
            }
        }
        if blocking == Blocking::Short {
            return Err(Error::Busy);
        }
        self.shared.lock(LOCK_TIMEOUT)?.ok_or(Error::Busy)
    }
}

/// Give LMDB's table of readers its length and its space: LMDB maps it as it is.
fn reserve_lock_file(folder: &Folder, is_alone: bool) -> Result<()> {
    const NAME: &str = "lock.mdb";
    let file = folder.open_file(NAME, true)?;
    let len = file
        .metadata()
        .map_err(folder.failed(NAME, "read its length"))?
        .len();
    if !is_alone && len < LOCK_BYTES {
        let path = folder.path.join(NAME);
        return Err(Error::Refused(format!(
            "{} is damaged: it is shorter than its contents",
            path.display()
        )));
    }
    if is_alone {
        // LMDB makes it new.
        file.set_len(0).map_err(folder.failed(NAME, "empty it"))?;
    }
    disk::reserve(&file, 0, LOCK_BYTES, is_alone)
        .map(drop)
        .map_err(folder.failed(NAME, "reserve its space"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Lifetime;

    #[test]
    fn a_write_waits_for_a_reader_whose_snapshot_fills_the_file() {
        let folder = std::env::temp_dir().join(format!("towline-old-pages-{}", std::process::id()));
        let options = Options {
            size: Some(1 << 20),
            ..Options::default()
        };
        let store = Store::open(&folder, options).unwrap();
        let opened = store.opened().unwrap();
        let map = opened.settings.map_bytes();
        let value = vec![7; 100 * 1024];
        let writes = 2 * map / value.len() as u64;
        std::thread::scope(|threads| {
            let (ready, begun) = std::sync::mpsc::channel();
            threads.spawn(|| {
                let ready = ready;
                opened
                    .env
                    .read(|_| {
                        ready.send(()).unwrap();
                        while opened.env.used_pages()? * PAGE + 512 * 1024 < map {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        std::thread::sleep(Duration::from_millis(50));
                        Ok(())
                    })
                    .unwrap();
            });
            begun.recv().unwrap();
            for _ in 0..writes {
                store
                    .set(Blocking::Wait, b"key", &value, Lifetime::Forever)
                    .unwrap();
            }
        });
        std::fs::remove_dir_all(folder).unwrap();
    }
}
