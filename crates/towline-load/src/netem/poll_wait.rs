//! A wait with microsecond precision, which mio does not offer.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Waits until `fd` is readable or `wait` is over, to the nanosecond as far as the kernel's timer slack
/// allows. Returns false at once, without waiting, where the system has no such call.
#[cfg(all(target_os = "linux", not(towline_portable)))]
pub(super) fn await_readable(fd: RawFd, wait: Duration) -> io::Result<bool> {
    let wait = libc::timespec {
        tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: an initialized pollfd and timespec that outlive the call, and no signal mask.
    let result = unsafe { libc::ppoll(&raw mut entry, 1, &raw const wait, std::ptr::null()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(true)
}

#[cfg(not(all(target_os = "linux", not(towline_portable))))]
pub(super) fn await_readable(_fd: RawFd, _wait: Duration) -> io::Result<bool> {
    Ok(false)
}
