//! The writers' lock on Linux: a robust mutex in memory that the processes share. A killed writer leaves it to the next one.
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::folder::Folder;

/// The part of the shared memory that it needs.
pub type Place = libc::pthread_mutex_t;

pub struct Writers(*mut Place);

/// Held by a thread.
pub struct Guard<'w>(&'w Writers);

impl Writers {
    /// `is_new`: no other process uses the memory.
    pub fn new(folder: &Folder, place: *mut Place, is_new: bool) -> Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        let (shared, robust) = (libc::PTHREAD_PROCESS_SHARED, libc::PTHREAD_MUTEX_ROBUST);
        // SAFETY: attributes are initialised before they are used; nobody uses the mutex yet.
        let code = unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), shared);
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), robust);
            let init = || libc::pthread_mutex_init(place, attributes.as_ptr());
            let code = if is_new { init() } else { 0 };
            libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
            code
        };
        match code {
            0 => Ok(Self(place)),
            code => Err(folder.failed("shared", "make its mutex")(
                io::Error::from_raw_os_error(code),
            )),
        }
    }

    /// Lock, or give up after some time.
    pub fn lock(&self, timeout: Duration) -> io::Result<Option<Guard<'_>>> {
        let code = if timeout.is_zero() {
            // SAFETY: an initialised robust mutex.
            unsafe { libc::pthread_mutex_trylock(self.0) }
        } else {
            // SAFETY: as above.
            unsafe { lock_until(self.0, timeout) }
        };
        match code {
            0 => {}
            libc::EBUSY | libc::ETIMEDOUT => return Ok(None),
            // The writer before has died. Its transaction was not committed, so there is nothing to repair.
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds the mutex now.
                unsafe { libc::pthread_mutex_consistent(self.0) };
            }
            code => return Err(io::Error::from_raw_os_error(code)),
        }
        Ok(Some(Guard(self)))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread has locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.0) };
    }
}

type ClockLock = unsafe extern "C" fn(
    *mut libc::pthread_mutex_t,
    libc::clockid_t,
    *const libc::timespec,
) -> libc::c_int;

/// Lock, or return `ETIMEDOUT`. The older function of POSIX waits by the wall clock, so it is used only where the newer one
/// (glibc 2.30) is missing, and for short waits.
///
/// SAFETY: the mutex is initialised.
unsafe fn lock_until(mutex: *mut libc::pthread_mutex_t, timeout: Duration) -> libc::c_int {
    const SHORT: Duration = Duration::from_millis(20);
    static NEWER: OnceLock<Option<ClockLock>> = OnceLock::new();
    let newer = NEWER.get_or_init(|| {
        // SAFETY: a name that ends with zero; the function of this name has this type.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"pthread_mutex_clocklock".as_ptr());
            std::mem::transmute::<*mut libc::c_void, Option<ClockLock>>(found)
        }
    });
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        let code = if let Some(lock) = newer {
            let until = in_time(libc::CLOCK_MONOTONIC, left);
            // SAFETY: of the caller.
            unsafe { lock(mutex, libc::CLOCK_MONOTONIC, &raw const until) }
        } else {
            let until = in_time(libc::CLOCK_REALTIME, left.min(SHORT));
            // SAFETY: of the caller.
            unsafe { libc::pthread_mutex_timedlock(mutex, &raw const until) }
        };
        if code != libc::ETIMEDOUT || left.is_zero() {
            return code;
        }
    }
}

/// The time of a clock, and some more.
fn in_time(clock: libc::clockid_t, more: Duration) -> libc::timespec {
    let mut until = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: an out pointer.
    unsafe { libc::clock_gettime(clock, &raw mut until) };
    let nanoseconds = u128::from(until.tv_nsec.unsigned_abs()) + more.as_nanos();
    until.tv_sec += (nanoseconds / 1_000_000_000) as i64;
    until.tv_nsec = (nanoseconds % 1_000_000_000) as libc::c_long;
    until
}
