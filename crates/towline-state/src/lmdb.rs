//! The calls of LMDB that the store uses, made safe.
//!
//! `heed` is not used, because the store needs two things that it does not offer: read transactions that are kept and renewed
//! (a read is then two stores to the table of readers), and an environment that a forked child may open again.
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;

use lmdb_master_sys as sys;

use crate::clock::Clock;
use crate::error::{Error, Result};

/// Reader slots: one for each thread that reads at the same time, in all processes.
const MAX_READERS: u32 = 2048;
/// Length of LMDB's table of readers: a line of the cache for each, and its head.
pub const LOCK_BYTES: u64 = (MAX_READERS as u64 * 64 + 1024).next_multiple_of(4096);
/// Kept read transactions of a process. More threads than these at once open one each time.
const KEPT_READS: usize = 64;
/// The unnamed database, and those with names.
const DATABASES: u32 = 3;
/// Attempts of a read that has found pages of two transactions.
const READ_ATTEMPTS: usize = 8;

/// A database of the environment. `Values` is the unnamed one, so that a write changes one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Db {
    Values,
    Expiry,
    Log,
}

/// An open environment. It belongs to the process that has opened it; a forked child must not use it.
pub struct Env {
    raw: *mut sys::MDB_env,
    handles: [sys::MDB_dbi; DATABASES as usize],
    reads: Mutex<Vec<KeptRead>>,
    pub clock: Clock,
}

// SAFETY: LMDB's environment may be used by several threads; a write transaction stays on its thread (`WriteTxn` is not
// Send), and read transactions may move between threads because of MDB_NOTLS.
unsafe impl Send for Env {}
// SAFETY: as above.
unsafe impl Sync for Env {}

/// A read transaction between two uses: reset, holding its slot in the table of readers.
struct KeptRead(*mut sys::MDB_txn);

// SAFETY: with MDB_NOTLS a read transaction may be used by one thread after another.
unsafe impl Send for KeptRead {}

impl Env {
    /// Open or create the files in `folder`, whose permissions become 0600. `open_databases` comes next.
    pub fn open(folder: &Path, map_bytes: u64, sync: bool, clock: Clock) -> Result<Self> {
        let path = CString::new(folder.as_os_str().as_bytes())
            .map_err(|_| Error::Argument("a path has no zero byte".into()))?;
        let mut flags = sys::MDB_NOTLS | sys::MDB_WRITEMAP | sys::MDB_NORDAHEAD;
        if !sync {
            flags |= sys::MDB_NOSYNC;
        }
        let mut raw = ptr::null_mut();
        // SAFETY: an out pointer; the environment is closed below if it cannot be opened.
        check(unsafe { sys::mdb_env_create(&raw mut raw) })?;
        // SAFETY: `raw` is a new environment, not yet opened, as these three require; the path ends with a zero byte.
        let opened = unsafe {
            check(sys::mdb_env_set_mapsize(raw, map_bytes as usize as _))
                .and_then(|()| check(sys::mdb_env_set_maxreaders(raw, MAX_READERS)))
                .and_then(|()| check(sys::mdb_env_set_maxdbs(raw, DATABASES)))
                .and_then(|()| check(sys::mdb_env_open(raw, path.as_ptr(), flags, 0o600)))
        };
        let env = Self {
            raw,
            handles: [0; DATABASES as usize],
            reads: Mutex::new(Vec::new()),
            clock,
        };
        opened?; // dropping `env` closes it
        Ok(env)
    }

    pub fn open_databases(&mut self) -> Result<()> {
        let mut raw = ptr::null_mut();
        // SAFETY: an open environment and an out pointer.
        check(unsafe { sys::mdb_txn_begin(self.raw, ptr::null_mut(), 0, &raw mut raw) })?;
        for (at, name) in [None, Some(c"expiry"), Some(c"log")]
            .into_iter()
            .enumerate()
        {
            let name = name.map_or(ptr::null(), CStr::as_ptr);
            // SAFETY: a write transaction of this thread, a name that ends with zero or is null, an out pointer.
            let code =
                unsafe { sys::mdb_dbi_open(raw, name, sys::MDB_CREATE, &raw mut self.handles[at]) };
            if let Err(error) = check(code) {
                // SAFETY: the transaction is open and used no more.
                unsafe { sys::mdb_txn_abort(raw) };
                return Err(error);
            }
        }
        // SAFETY: as above.
        check(unsafe { sys::mdb_txn_commit(raw) })
    }

    /// Run `read` on a snapshot. It must not keep anything of the transaction.
    ///
    /// A reader that loses the processor while it begins, for as long as two commits take, can find a mixture of two
    /// transactions. LMDB then reports a missing page, and the read is repeated.
    pub fn read<T>(&self, mut read: impl FnMut(&Txn<'_>) -> Result<T>) -> Result<T> {
        let mut attempt = 0;
        loop {
            let kept = self.begin_read()?;
            let txn = Txn {
                raw: kept.0,
                env: self,
                thread: PhantomData,
            };
            let found = read(&txn);
            self.keep(kept);
            attempt += 1;
            match found {
                Err(Error::Lmdb(sys::MDB_PAGE_NOTFOUND | sys::MDB_CORRUPTED, _))
                    if attempt < READ_ATTEMPTS => {}
                found => return found,
            }
        }
    }

    fn begin_read(&self) -> Result<KeptRead> {
        let kept = self
            .reads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .pop();
        if let Some(kept) = kept {
            // SAFETY: a reset read transaction, which only this thread has.
            match check(unsafe { sys::mdb_txn_renew(kept.0) }) {
                Ok(()) => return Ok(kept),
                // SAFETY: as above; it is used no more.
                Err(_) => unsafe { sys::mdb_txn_abort(kept.0) },
            }
        }
        let mut raw = ptr::null_mut();
        // SAFETY: an open environment and an out pointer.
        let begin = || unsafe {
            sys::mdb_txn_begin(self.raw, ptr::null_mut(), sys::MDB_RDONLY, &raw mut raw)
        };
        let mut begin = begin;
        let mut code = begin();
        if code == sys::MDB_READERS_FULL && self.remove_dead_readers()? > 0 {
            code = begin();
        }
        check(code)?;
        Ok(KeptRead(raw))
    }

    fn keep(&self, read: KeptRead) {
        // SAFETY: an active read transaction, whose cursors have ended with the closure of `read`.
        unsafe { sys::mdb_txn_reset(read.0) };
        let mut kept = self
            .reads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.len() < KEPT_READS {
            kept.push(read);
        } else {
            // SAFETY: it is used no more.
            unsafe { sys::mdb_txn_abort(read.0) };
        }
    }

    /// Begin the only write transaction. The caller holds the writers' mutex, so that this does not wait.
    pub fn write(&self) -> Result<WriteTxn<'_>> {
        let mut raw = ptr::null_mut();
        // SAFETY: an open environment and an out pointer.
        check(unsafe { sys::mdb_txn_begin(self.raw, ptr::null_mut(), 0, &raw mut raw) })?;
        Ok(WriteTxn {
            txn: Txn {
                raw,
                env: self,
                thread: PhantomData,
            },
            is_open: true,
        })
    }

    /// Free the slots of readers whose process has died; returns their number.
    pub fn remove_dead_readers(&self) -> Result<i32> {
        let mut dead = 0;
        // SAFETY: an open environment and an out pointer.
        check(unsafe { sys::mdb_reader_check(self.raw, &raw mut dead) })?;
        Ok(dead)
    }

    /// Number of free pages that the next change may use. The caller is the only writer.
    pub fn free_pages(&self) -> Result<u64> {
        let mut oldest = u64::MAX;
        // SAFETY: an open environment; `keep_oldest` gets a pointer to `oldest`.
        unsafe { sys::mdb_reader_list(self.raw, Some(keep_oldest), (&raw mut oldest).cast()) };
        self.read(|txn| {
            // SAFETY: an active transaction. Its number is that of the last change, whose pages the next one must not use.
            let oldest = oldest.min(unsafe { sys::mdb_txn_id(txn.raw) } as u64);
            let mut cursor = txn.cursor_of(FREE_PAGES)?;
            let mut free = 0;
            while let Some((transaction, list)) = cursor.next()? {
                if word(transaction) >= oldest {
                    break;
                }
                free += word(list);
            }
            Ok(free)
        })
    }

    /// Number of pages of the file that have been used so far.
    pub fn used_pages(&self) -> Result<u64> {
        // SAFETY: a plain structure of numbers and a pointer, for which zeros are valid.
        let mut info: sys::MDB_envinfo = unsafe { std::mem::zeroed() };
        // SAFETY: an open environment and an out pointer.
        check(unsafe { sys::mdb_env_info(self.raw, &raw mut info) })?;
        Ok(info.me_last_pgno as u64 + 1)
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        let kept = self
            .reads
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for read in kept.drain(..) {
            // SAFETY: a reset transaction of this environment, used no more.
            unsafe { sys::mdb_txn_abort(read.0) };
        }
        // SAFETY: no transaction is left: the others borrow the environment.
        unsafe { sys::mdb_env_close(self.raw) };
    }
}

/// Handle of LMDB's list of free pages: by transaction, a count and their numbers.
const FREE_PAGES: sys::MDB_dbi = 0;

fn word(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk::<8>()
        .map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Take the snapshot's number from a line of the table of readers: process, thread, snapshot. It is `-` between two reads.
unsafe extern "C" fn keep_oldest(line: *const c_char, oldest: *mut c_void) -> c_int {
    // SAFETY: LMDB gives a text that ends with zero, and the pointer of its caller.
    let (line, oldest) = unsafe { (CStr::from_ptr(line), &mut *oldest.cast::<u64>()) };
    let snapshot = line
        .to_str()
        .ok()
        .and_then(|line| line.split_whitespace().last()?.parse().ok());
    *oldest = snapshot.unwrap_or(u64::MAX).min(*oldest);
    0
}

/// A transaction, for reading. Its slices end with it, or with the next change.
pub struct Txn<'e> {
    raw: *mut sys::MDB_txn,
    env: &'e Env,
    /// Not Send, not Sync: a transaction stays on its thread.
    thread: PhantomData<*mut ()>,
}

/// Number of items and pages of a database.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    pub entries: u64,
    pub pages: u64,
    /// Pages of the tree: those but the ones of large values.
    pub tree_pages: u64,
}

impl Txn<'_> {
    /// Time of the store, in milliseconds.
    pub fn now(&self) -> u64 {
        self.env.clock.now()
    }

    fn handle(&self, db: Db) -> sys::MDB_dbi {
        self.env.handles[db as usize]
    }

    pub fn get(&self, db: Db, key: &[u8]) -> Result<Option<&[u8]>> {
        let (mut key, mut found) = (value(key), value(&[]));
        // SAFETY: an active transaction and a handle of its environment; `found` points into the map on success.
        match unsafe { sys::mdb_get(self.raw, self.handle(db), &raw mut key, &raw mut found) } {
            sys::MDB_NOTFOUND => Ok(None),
            // SAFETY: LMDB returns memory of its map that is unchanged until the transaction ends or writes.
            code => check(code).map(|()| Some(unsafe { slice(&found) })),
        }
    }

    pub fn size(&self, db: Db) -> Result<Size> {
        // SAFETY: a plain structure of numbers, for which zeros are valid.
        let mut stat: sys::MDB_stat = unsafe { std::mem::zeroed() };
        // SAFETY: an active transaction, a handle of its environment, an out pointer.
        check(unsafe { sys::mdb_stat(self.raw, self.handle(db), &raw mut stat) })?;
        let tree_pages = (stat.ms_branch_pages + stat.ms_leaf_pages) as u64;
        Ok(Size {
            entries: stat.ms_entries as u64,
            pages: tree_pages + stat.ms_overflow_pages as u64,
            tree_pages,
        })
    }

    /// A cursor before the first item.
    pub fn cursor(&self, db: Db) -> Result<Cursor<'_>> {
        self.cursor_of(self.handle(db))
    }

    fn cursor_of(&self, handle: sys::MDB_dbi) -> Result<Cursor<'_>> {
        let mut raw = ptr::null_mut();
        // SAFETY: an active transaction, a handle of its environment, an out pointer.
        check(unsafe { sys::mdb_cursor_open(self.raw, handle, &raw mut raw) })?;
        Ok(Cursor {
            raw,
            txn: PhantomData,
        })
    }
}

/// The write transaction. Without `commit` its changes are discarded.
pub struct WriteTxn<'e> {
    txn: Txn<'e>,
    is_open: bool,
}

impl<'e> std::ops::Deref for WriteTxn<'e> {
    type Target = Txn<'e>;
    fn deref(&self) -> &Txn<'e> {
        &self.txn
    }
}

/// Position of a new item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// By its key. The item replaces one with the same key.
    Sorted,
    /// After all others.
    Last,
}

impl WriteTxn<'_> {
    /// Store an item; returns its memory, of `len` bytes, for the caller to fill.
    pub fn put(&mut self, db: Db, key: &[u8], len: usize, position: Position) -> Result<&mut [u8]> {
        let (mut key, mut space) = (
            value(key),
            sys::MDB_val {
                mv_size: len,
                mv_data: ptr::null_mut(),
            },
        );
        let flags = sys::MDB_RESERVE
            | if position == Position::Last {
                sys::MDB_APPEND
            } else {
                0
            };
        // SAFETY: an active write transaction and a handle of its environment; with MDB_RESERVE LMDB returns space.
        check(unsafe {
            sys::mdb_put(
                self.txn.raw,
                self.txn.handle(db),
                &raw mut key,
                &raw mut space,
                flags,
            )
        })?;
        // SAFETY: LMDB has reserved `len` bytes, which stay until the next change; `self` is borrowed until then.
        Ok(unsafe { std::slice::from_raw_parts_mut(space.mv_data.cast(), len) })
    }

    /// Remove an item; false if there was none.
    pub fn remove(&mut self, db: Db, key: &[u8]) -> Result<bool> {
        let mut key = value(key);
        // SAFETY: an active write transaction and a handle of its environment; no data is compared.
        match unsafe {
            sys::mdb_del(
                self.txn.raw,
                self.txn.handle(db),
                &raw mut key,
                ptr::null_mut(),
            )
        } {
            sys::MDB_NOTFOUND => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    /// Make all changes visible at once.
    pub fn commit(mut self) -> Result<()> {
        self.is_open = false;
        // SAFETY: an active transaction, used no more.
        check(unsafe { sys::mdb_txn_commit(self.txn.raw) })
    }
}

impl Drop for WriteTxn<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // SAFETY: an active transaction, used no more.
            unsafe { sys::mdb_txn_abort(self.txn.raw) };
        }
    }
}

/// An item: key and value.
pub type Item<'t> = (&'t [u8], &'t [u8]);

/// A position in a database, in the order of keys.
pub struct Cursor<'t> {
    raw: *mut sys::MDB_cursor,
    txn: PhantomData<&'t ()>,
}

impl<'t> Cursor<'t> {
    pub fn first(&mut self) -> Result<Option<Item<'t>>> {
        self.go(&[], sys::MDB_FIRST)
    }

    pub fn last(&mut self) -> Result<Option<Item<'t>>> {
        self.go(&[], sys::MDB_LAST)
    }

    /// The first item whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<Option<Item<'t>>> {
        self.go(key, sys::MDB_SET_RANGE)
    }

    pub fn next(&mut self) -> Result<Option<Item<'t>>> {
        self.go(&[], sys::MDB_NEXT)
    }

    fn go(&mut self, key: &[u8], to: sys::MDB_cursor_op) -> Result<Option<Item<'t>>> {
        let (mut key, mut found) = (value(key), value(&[]));
        // SAFETY: an open cursor of an active transaction; both values point into the map on success.
        match unsafe { sys::mdb_cursor_get(self.raw, &raw mut key, &raw mut found, to) } {
            sys::MDB_NOTFOUND => Ok(None),
            // SAFETY: as for `get`.
            code => check(code).map(|()| Some(unsafe { (slice(&key), slice(&found)) })),
        }
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is still open, because the cursor borrows it.
        unsafe { sys::mdb_cursor_close(self.raw) };
    }
}

fn value(bytes: &[u8]) -> sys::MDB_val {
    // LMDB does not write through this pointer.
    sys::MDB_val {
        mv_size: bytes.len(),
        mv_data: bytes.as_ptr().cast_mut().cast(),
    }
}

/// SAFETY: the value must point to `mv_size` bytes that stay unchanged for `'t`.
unsafe fn slice<'t>(value: &sys::MDB_val) -> &'t [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: of the caller.
    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

fn check(code: i32) -> Result<()> {
    match code {
        sys::MDB_SUCCESS => Ok(()),
        sys::MDB_MAP_FULL => Err(Error::Full { size: 0 }),
        sys::MDB_INVALID | sys::MDB_VERSION_MISMATCH => Err(Error::Refused(
            "data.mdb is no file of LMDB, or of another version".into(),
        )),
        code if code > 0 => Err(Error::Io(
            "the store".into(),
            std::io::Error::from_raw_os_error(code),
        )),
        code => {
            // SAFETY: a static text that ends with zero.
            let text = unsafe { CStr::from_ptr(sys::mdb_strerror(code)) };
            Err(Error::Lmdb(code, text.to_string_lossy().into_owned()))
        }
    }
}
