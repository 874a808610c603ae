//! System calls that mio does not offer.

use std::io;
use std::os::fd::RawFd;

use mio::Registry;

use crate::conn::id::Source;

/// No SIGPIPE, and no blocking on sockets in blocking mode.
pub(crate) const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// `send(2)` and `recv(2)` as bare system calls. Those of glibc before 2.41 are points where a thread can be cancelled,
/// which costs a program with threads four atomic operations for each request and its response.
#[cfg(target_os = "linux")]
pub(crate) fn send(fd: RawFd, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    let none = std::ptr::null::<libc::sockaddr>();
    let (start, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the kernel only reads `bytes`, during the call, and there is no address.
    let n = unsafe { libc::syscall(libc::SYS_sendto, fd, start, len, flags, none, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// See [`send`].
#[cfg(target_os = "linux")]
pub(crate) fn recv(fd: RawFd, space: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    let none = std::ptr::null_mut::<libc::sockaddr>();
    let (start, len) = (space.as_mut_ptr(), space.len());
    let no_len = std::ptr::null_mut::<libc::socklen_t>();
    // SAFETY: the kernel writes at most `len` bytes to `space`, during the call, and no address.
    let n = unsafe { libc::syscall(libc::SYS_recvfrom, fd, start, len, flags, none, no_len) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn send(fd: RawFd, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the kernel only reads `bytes`, during the call.
    let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn recv(fd: RawFd, space: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `space.len()` bytes to `space`, during the call.
    let n = unsafe { libc::recv(fd, space.as_mut_ptr().cast(), space.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

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
