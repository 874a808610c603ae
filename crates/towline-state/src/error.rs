//! Errors of the store.
use std::fmt;
use std::io;

use lmdb_master_sys as sys;

/// Reason why an operation has not been carried out. Nothing has changed then.
#[derive(Debug)]
pub enum Error {
    /// The values have reached the store's size, and none may be evicted.
    Full { size: u64 },
    /// The call would have had to wait, or to work for long, and the caller did not allow that.
    Busy,
    /// The directory or its files are no store, or one of another version, or damaged.
    Refused(String),
    /// An argument that no store accepts: a key that is too long, a message larger than the log.
    Argument(String),
    /// The value is not a decimal integer of 64 bits, or the sum is not.
    NotInteger,
    /// An item of `data.mdb` cannot be what the store has written.
    Damaged,
    /// A system call failed; the text says which and on what.
    Io(String, io::Error),
    /// An error of LMDB that has no case above.
    Lmdb(i32, String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: the failed action and its path.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io(action.into(), error)
    }

    /// The damage of `data.mdb`, if this error reports one.
    pub fn damage(&self) -> Option<String> {
        const CODES: [i32; 5] = [
            sys::MDB_PAGE_NOTFOUND,
            sys::MDB_CORRUPTED,
            sys::MDB_INVALID,
            sys::MDB_INCOMPATIBLE,
            sys::MDB_BAD_TXN,
        ];
        match self {
            Self::Damaged => Some("an item is too short".into()),
            Self::Lmdb(code, text) if CODES.contains(code) => Some(format!("LMDB reports {text}")),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { size } => write!(
                f,
                "the store is full: its size is {size} bytes; a new one takes `size`, and `when_full=\"evict\"`"
            ),
            Self::Busy => f.write_str("the store is in use by another writer"),
            Self::Refused(text) | Self::Argument(text) => f.write_str(text),
            Self::NotInteger => f.write_str("the value, or the sum, is not an integer of 64 bits"),
            Self::Damaged => f.write_str("data.mdb is damaged"),
            Self::Io(action, error) => write!(f, "{action}: {error}"),
            Self::Lmdb(code, text) => write!(f, "LMDB reports {text} ({code})"),
        }
    }
}

impl std::error::Error for Error {}

/// For items of the file that cannot be what the store has written.
pub fn damaged() -> Error {
    Error::Damaged
}
