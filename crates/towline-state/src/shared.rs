//! The file `shared`, which all processes of a store map: the writers' mutex, and a slot for each subscribing process.
//!
//! LMDB has a mutex for writers too, but a thread can only wait for it without a bound. Here a writer can stop waiting,
//! which an event loop needs; the one of LMDB is then always free.
//!
//! ```text
//!            claim                    arm                   publish (commit, then wake)
//!  slot Free ─────▶ Idle (reads the log) ─────▶ Armed (sleeps on its FIFO) ─────▶ Idle
//!    ▲─────────────────────┴────────── released, or its FIFO has no reader any more
//! ```
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::armed::{self, Armed};
use crate::clock::{Clock, Record};
use crate::disk;
use crate::error::{Error, Result};
use crate::folder::{FIFOS, Folder};
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
use crate::record_lock::{Guard, Place, Writers};
#[cfg(all(target_os = "linux", not(towline_portable)))]
use crate::robust_mutex::{Guard, Place, Writers};

const MAGIC: u64 = 0x3245_5441_5453_4c54; // "TLSTATE2"
/// Subscribing processes (and event loops) of one store.
pub const SLOTS: usize = 256;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    /// Slots below this have been used.
    high_water: AtomicU32,
    padding: u32,
    /// Number of slots that have ever been claimed: part of a FIFO's name, so that no two are the same.
    claims: AtomicU64,
    /// Write transactions since the store was made, for figures.
    writes: AtomicU64,
}

#[repr(C)]
struct Slot {
    /// Claim number of the subscriber, or 0: free.
    claim: AtomicU64,
    /// 1: it sleeps, and the next publisher wakes it.
    armed: Armed,
    padding: u32,
}

#[repr(C)]
struct Layout {
    header: Header,
    /// Apart from the header, on a line of the cache of its own.
    padding: [u8; 32],
    mutex: Place,
    slots: [Slot; SLOTS],
    /// Written by the holder of the mutex; read before anybody else has it, and its constant part later.
    clock: Record,
}

/// The mapped file.
pub struct Shared {
    layout: NonNull<Layout>,
    /// Directory of the FIFOs.
    folder: PathBuf,
    clock: Clock,
    writers: Writers,
    /// Holds the lock that says that the store is open.
    file: File,
    /// FIFOs that this process has written to, by slot.
    fifos: Mutex<HashMap<usize, (u64, OwnedFd)>>,
}

// SAFETY: the mapping is shared memory, accessed by atomics and by the functions of its mutex only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The right to write, held by one thread of all processes.
pub struct WriteGuard<'s> {
    _lock: Guard<'s>,
    /// Not Send: the thread that has locked it unlocks it.
    _thread: std::marker::PhantomData<*mut ()>,
}

impl Shared {
    /// Map the file, and make it new if no process has it open: after a restart of the machine its mutex means nothing.
    ///
    /// Only one process at a time may call this for a folder (`store.rs` holds the lock of `opening`). Also returns whether
    /// this one was alone.
    pub fn open(folder: &Folder) -> Result<(Self, bool)> {
        const BYTES: u64 = size_of::<Layout>() as u64;
        let refused = |text: &str| {
            let path = folder.path.join("shared");
            Err(Error::Refused(format!("{} {text}", path.display())))
        };
        let failed = |action| folder.failed("shared", action);
        let file = folder.open_file("shared", true)?;
        // SAFETY: an open descriptor.
        let is_alone = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        let len = file.metadata().map_err(failed("read its length"))?.len();
        if is_alone {
            file.set_len(BYTES).map_err(failed("extend it"))?;
        } else if len != BYTES {
            return refused("is damaged, or of another version of Towline: it has another length");
        }
        disk::reserve(&file, 0, BYTES, is_alone && len == 0)
            .map_err(failed("reserve its space"))?;
        let layout = map(&file).map_err(failed("map it"))?;
        // SAFETY: a field of the mapping, which lasts as long as the writers' lock; no reference to it is made.
        let place = unsafe { &raw mut (*layout.as_ptr()).mutex };
        let mut shared = Self {
            layout,
            writers: Writers::new(folder, place, false)?,
            folder: folder.base.clone(),
            clock: Clock::default(),
            file,
            fifos: Mutex::default(),
        };
        let is_ours = shared.header().magic.load(Ordering::Acquire) == MAGIC;
        let record = shared.clock_record();
        if is_alone {
            shared.clock = Clock::new(record.checked().filter(|_| is_ours));
            shared.reset();
            shared.writers = Writers::new(folder, place, true)?;
            shared.remove_fifos();
        } else if !is_ours {
            return refused("is of another version of Towline");
        } else if let Some(clock) = Clock::join(record) {
            shared.clock = clock;
        } else {
            return refused(
                "is in use in another time namespace, whose clock differs from this one's",
            );
        }
        // SAFETY: an open descriptor. The lock stays until the last copy of the descriptor is closed.
        if unsafe { libc::flock(shared.file.as_raw_fd(), libc::LOCK_SH) } != 0 {
            return Err(failed("lock it")(io::Error::last_os_error()));
        }
        Ok((shared, is_alone))
    }

    fn clock_record(&self) -> Record {
        // SAFETY: a field of the mapping, for which all bytes are valid. Only its constant part counts while others write.
        unsafe { (&raw const (*self.layout.as_ptr()).clock).read_volatile() }
    }

    /// Note the time, from which the clock goes on after a restart of the machine. The caller is the only writer.
    pub fn record_clock(&self) {
        // SAFETY: a field of the mapping, which only the holder of the mutex writes.
        unsafe { (&raw mut (*self.layout.as_ptr()).clock).write_volatile(self.clock.record()) };
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping lasts as long as `self`, and the header consists of atomics.
        unsafe { &self.layout.as_ref().header }
    }

    fn slots(&self) -> &[Slot; SLOTS] {
        // SAFETY: as for the header.
        unsafe { &self.layout.as_ref().slots }
    }

    fn reset(&self) {
        // SAFETY: this process is the only one that has the mapping, of this size, and zeros are valid for all of it.
        unsafe { std::ptr::write_bytes(self.layout.as_ptr(), 0, 1) };
        self.record_clock();
        self.header().magic.store(MAGIC, Ordering::Release);
    }

    fn remove_fifos(&self) {
        for entry in std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_name().as_bytes().starts_with(FIFOS.as_bytes()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    // Writers.

    /// Lock without waiting.
    pub fn try_lock(&self) -> Result<Option<WriteGuard<'_>>> {
        self.lock(Duration::ZERO)
    }

    /// Lock, or give up after some time.
    pub fn lock(&self, timeout: Duration) -> Result<Option<WriteGuard<'_>>> {
        let lock = self.writers.lock(timeout);
        let lock = lock.map_err(Error::io("the writers' mutex"))?;
        Ok(lock.map(|lock| WriteGuard {
            _lock: lock,
            _thread: std::marker::PhantomData,
        }))
    }

    // Subscribers.

    /// Claim a slot and make its FIFO; returns slot, claim and the FIFO's reading end. The caller holds the writers' mutex.
    pub fn claim(&self, _guard: &WriteGuard<'_>) -> Result<(usize, u64, OwnedFd)> {
        let slot = (0..SLOTS).find(|&slot| self.is_free(slot)).ok_or_else(|| {
            Error::Argument(format!("a store has at most {SLOTS} subscribing processes"))
        })?;
        let claim = self.header().claims.fetch_add(1, Ordering::SeqCst) + 1;
        let path = self.fifo(slot, claim);
        let reader =
            make_fifo(&path).map_err(Error::io(format!("cannot make {}", path.display())))?;
        self.slots()[slot].armed.disarm();
        self.slots()[slot].claim.store(claim, Ordering::SeqCst);
        self.header()
            .high_water
            .fetch_max(slot as u32 + 1, Ordering::SeqCst);
        Ok((slot, claim, reader))
    }

    /// Whether the slot has no subscriber; one that has died is removed.
    fn is_free(&self, slot: usize) -> bool {
        let claim = self.slots()[slot].claim.load(Ordering::SeqCst);
        if claim != 0 && open_writer(&self.fifo(slot, claim)).is_err() {
            self.release(slot, claim);
        }
        self.slots()[slot].claim.load(Ordering::SeqCst) == 0
    }

    pub fn release(&self, slot: usize, claim: u64) {
        let _ = std::fs::remove_file(self.fifo(slot, claim));
        let _ =
            self.slots()[slot]
                .claim
                .compare_exchange(claim, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Ask for a byte in the FIFO at the next publication. The caller looks at the log once more after this.
    pub fn arm(&self, slot: usize) {
        self.slots()[slot].armed.arm();
    }

    pub fn disarm(&self, slot: usize) {
        self.slots()[slot].armed.disarm();
    }

    /// Wake all subscribers that sleep. After the commit of a publication.
    pub fn wake(&self) {
        armed::committed();
        let used = self.header().high_water.load(Ordering::SeqCst) as usize;
        for (at, slot) in self.slots()[..used.min(SLOTS)].iter().enumerate() {
            if slot.armed.take() {
                let claim = slot.claim.load(Ordering::SeqCst);
                if claim != 0 && !self.write_byte(at, claim) {
                    self.release(at, claim);
                }
            }
        }
    }

    /// Write to a FIFO; false if nobody reads it any more.
    fn write_byte(&self, slot: usize, claim: u64) -> bool {
        let mut fifos = self
            .fifos
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if fifos.get(&slot).is_none_or(|known| known.0 != claim) {
            match open_writer(&self.fifo(slot, claim)) {
                Ok(fifo) => fifos.insert(slot, (claim, fifo)),
                Err(_) => return false,
            };
        }
        // SAFETY: an open descriptor and one byte.
        let written = unsafe { libc::write(fifos[&slot].1.as_raw_fd(), c"!".as_ptr().cast(), 1) };
        if written == 1 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
            return true; // a full FIFO wakes as well
        }
        fifos.remove(&slot);
        false
    }

    fn fifo(&self, slot: usize, claim: u64) -> PathBuf {
        self.folder.join(format!("{FIFOS}{slot}-{claim}"))
    }

    // Figures.

    pub fn count_write(&self) {
        self.header().writes.fetch_add(1, Ordering::Relaxed);
    }

    pub fn writes(&self) -> u64 {
        self.header().writes.load(Ordering::Relaxed)
    }

    pub fn subscribers(&self) -> usize {
        self.slots()
            .iter()
            .filter(|slot| slot.claim.load(Ordering::Relaxed) != 0)
            .count()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this size, and no reference to it is left.
        unsafe { libc::munmap(self.layout.as_ptr().cast(), size_of::<Layout>()) };
    }
}

fn map(file: &File) -> io::Result<NonNull<Layout>> {
    // SAFETY: a new mapping of an open file, which has been extended to this size.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Layout>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Make a FIFO and open its reading end. It is opened for writing, too: otherwise it is at its end, and so always readable, when
/// the last writer has closed it.
fn make_fifo(path: &Path) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a text that ends with zero.
    if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
        return Err(io::Error::last_os_error());
    }
    open_fifo(&name, libc::O_RDWR)
}

fn open_writer(path: &Path) -> io::Result<OwnedFd> {
    open_fifo(
        &std::ffi::CString::new(path.as_os_str().as_bytes())?,
        libc::O_WRONLY,
    )
}

fn open_fifo(name: &std::ffi::CStr, mode: i32) -> io::Result<OwnedFd> {
    // SAFETY: a text that ends with zero.
    let fd = unsafe { libc::open(name.as_ptr(), mode | libc::O_NONBLOCK | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
