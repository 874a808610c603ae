//! The writers' lock where no mutex is robust, as on macOS: a lock of a file, which the system takes from a process that ends,
//! and a mutex among the threads of a process.
//!
//! The process has the file open once (`store.rs`), and no child inherits such a lock (fcntl(2), `F_SETLK`).
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::folder::Folder;

pub type Place = ();

/// Pauses between attempts. A write transaction takes some microseconds.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LAST_PAUSE: Duration = Duration::from_millis(1);

pub struct Writers {
    file: File,
    threads: Mutex<()>,
}

pub struct Guard<'w>(&'w File, #[allow(dead_code)] MutexGuard<'w, ()>);

impl Writers {
    pub fn new(folder: &Folder, _: *mut Place, _is_new: bool) -> Result<Self> {
        Ok(Self {
            file: folder.open_file("writer", true)?,
            threads: Mutex::default(),
        })
    }

    /// Lock, or give up after some time.
    pub fn lock(&self, timeout: Duration) -> io::Result<Option<Guard<'_>>> {
        let (start, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let thread = match self.threads.try_lock() {
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                thread => thread.ok(),
            };
            if let Some(thread) = thread
                && set(&self.file, libc::F_WRLCK)?
            {
                return Ok(Some(Guard(&self.file, thread)));
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // Only a file that is no longer open has no lock to give back.
        let _ = set(self.0, libc::F_UNLCK);
    }
}

/// Locks the whole file, or unlocks it. False: another process has it.
fn set(file: &File, kind: impl Into<libc::c_int>) -> io::Result<bool> {
    // SAFETY: plain integers, for which zeros are valid: from the first byte to the last.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind.into() as libc::c_short;
    // SAFETY: an open descriptor and an initialised structure.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EAGAIN | libc::EINTR) => Ok(false),
        _ => Err(error),
    }
}
