//! Results of system calls.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The result of a call that returns a count, or -1 with `errno`.
pub(super) fn count(result: impl TryInto<usize>) -> io::Result<usize> {
    result.try_into().map_err(|_| io::Error::last_os_error())
}

/// Owns the descriptor that a call returns, or -1 with `errno`.
///
/// # Safety
///
/// The descriptor is new and has no other owner.
pub(crate) unsafe fn owned(result: impl TryInto<RawFd>) -> io::Result<OwnedFd> {
    match result.try_into() {
        // SAFETY: of the caller.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
