//! The embedded store of `towline.state`: values, messages and limits in one memory-mapped file that processes share.
//!
//! LMDB keeps the values: a B-tree by copy-on-write with one writer at a time, whose readers take no lock and never wait.
//! A process that is killed at any instruction leaves the last committed tree in the page cache, and its locks, which are robust,
//! let the next writer continue.
//!
//! ```text
//!  a store is a directory          data.mdb   values, index of expiry, log of messages (LMDB)
//!                                  lock.mdb   LMDB's table of readers
//!                                  shared     mutex of writers, slots of subscribing processes
//!                                  wake-N-G   FIFO of the subscriber in slot N
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `lmdb.rs` | the calls of LMDB that the store uses, made safe |
//! | `shared.rs` | the slots and the writers' lock, in shared memory |
//! | `armed.rs` | who wakes a subscriber that is about to sleep |
//! | `robust_mutex.rs`, `record_lock.rs` | this lock on Linux, and elsewhere |
//! | `record.rs` | layout of keys and values |
//! | `folder.rs` | the directory, and whose files are trusted |
//! | `files.rs` | the settings, and what is refused |
//! | `verify.rs` | the structure of `data.mdb`, before LMDB maps it |
//! | `reserve.rs`, `disk.rs` | space on the disk |
//! | `clock.rs` | the clock that nobody sets |
//! | `store.rs` | opening, forks, read and write transactions, the bound of the size |
//! | `values.rs` | operations on values |
//! | `space.rs` | removal of expired values, eviction |
//! | `limits.rs` | token bucket and sliding window, as functions of time |
//! | `messages.rs` | the log of messages and its readers |
mod armed;
mod clock;
mod disk;
mod error;
mod files;
mod folder;
mod limits;
mod lmdb;
mod messages;
mod record;
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
mod record_lock;
mod reserve;
#[cfg(all(target_os = "linux", not(towline_portable)))]
mod robust_mutex;
mod shared;
mod space;
mod store;
mod values;
mod verify;

// For files that `tests/loom` compiles with loom's atomics.
use std::sync;

pub use error::Error;
pub use files::{Options, WhenFull};
pub use limits::Grant;
pub use messages::{Batch, LogReader, Post};
pub use record::MAX_KEY_BYTES;
pub use store::{Blocking, Info, Store};
pub use values::{Check, Lifetime, Page, Remaining, Write, milliseconds};
