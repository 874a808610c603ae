//! System calls that mio does not offer.

use std::io;
use std::os::fd::RawFd;

use mio::Registry;

use crate::conn::id::Source;

/// No SIGPIPE, and no blocking on sockets in blocking mode.
pub(crate) const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Registers a listener so that a new connection wakes one of the processes that share it, not all.
/// Level-triggered: a listener left with waiting connections is reported again.
#[cfg(target_os = "linux")]
pub(crate) fn register_listener(registry: &Registry, fd: RawFd, source: Source) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32,
        u64: source.token().0 as u64,
    };
    // SAFETY: the registry's descriptor is an epoll instance on Linux, mio keeps the token in the same
    // field and reads EPOLLIN as any other, and `event` outlives the call.
    let result = unsafe {
        libc::epoll_ctl(
            registry.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            fd,
            &raw mut event,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn register_listener(registry: &Registry, fd: RawFd, source: Source) -> io::Result<()> {
    registry.register(
        &mut mio::unix::SourceFd(&fd),
        source.token(),
        mio::Interest::READABLE,
    )
}

/// Seconds since 1970 from the coarse clock, which is at most a tick (4 ms) late; the precise clock would
/// cost each response 30 ns.
#[cfg(target_os = "linux")]
pub fn unix_seconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the given structure.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    if result < 0 {
        return 0;
    }
    u64::try_from(now.tv_sec).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Gives memory that the C library keeps for later back to the system.
pub(crate) fn trim_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no pointer is involved, and the function may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
