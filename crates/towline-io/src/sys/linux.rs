//! The calls of Linux.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use mio::Registry;
use socket2::{SockAddr, Socket};

use super::outcome::{count, owned};
use crate::conn::id::Source;

pub(crate) const MORE_FOLLOWS: libc::c_int = libc::MSG_MORE;

/// Accepted sockets have `TCP_NODELAY` of their listener.
pub(crate) const INHERITS_NO_DELAY: bool = true;

/// A datagram may name the peer of its connected socket, as quinn-udp does.
pub(crate) const CONNECTED_TAKE_ADDRESS: bool = true;

/// Datagrams in one batch for GSO. More would not fit into the 64 KiB of an IP packet at a usual MTU.
pub(crate) const MAX_BATCH: usize = 40;

/// `send(2)` and `recv(2)` as bare system calls. Those of glibc before 2.41 are points where a thread can be cancelled,
/// which costs a program with threads four atomic operations for each request and its response.
pub(crate) fn send(fd: RawFd, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    let none = std::ptr::null::<libc::sockaddr>();
    let (start, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the kernel only reads `bytes`, during the call, and there is no address.
    count(unsafe { libc::syscall(libc::SYS_sendto, fd, start, len, flags, none, 0) })
}

/// See [`send`].
pub(crate) fn recv(fd: RawFd, space: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    let none = std::ptr::null_mut::<libc::sockaddr>();
    let (start, len) = (space.as_mut_ptr(), space.len());
    let no_len = std::ptr::null_mut::<libc::socklen_t>();
    // SAFETY: the kernel writes at most `len` bytes to `space`, during the call, and no address.
    count(unsafe { libc::syscall(libc::SYS_recvfrom, fd, start, len, flags, none, no_len) })
}

/// Registers a listener so that a new connection wakes one of the processes that share it, not all.
/// Level-triggered: a listener left with waiting connections is reported again.
pub(crate) fn register_listener(registry: &Registry, fd: RawFd, source: Source) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32,
        u64: source.token().0 as u64,
    };
    let (poll, add) = (registry.as_raw_fd(), libc::EPOLL_CTL_ADD);
    // SAFETY: the registry's descriptor is an epoll instance on Linux, mio keeps the token in the same
    // field and reads EPOLLIN as any other, and `event` outlives the call.
    count(unsafe { libc::epoll_ctl(poll, add, fd, &raw mut event) }).map(drop)
}

pub(crate) fn accept(listener: &Socket) -> io::Result<(Socket, SockAddr)> {
    listener.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
}

/// Delays the choice of the local port until connect(2). Otherwise each bind takes a port for all destinations, not
/// for this one only (ip(7), `IP_BIND_ADDRESS_NO_PORT`).
pub(crate) fn leave_port_to_connect(socket: &Socket) {
    set_option(
        socket,
        (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
        true,
    );
}

/// Turns off control messages of received datagrams that nobody reads: the time of arrival, and the destination if there is
/// only one. With all of them, the ECN mark of joined datagrams (GRO) finds no room in quinn-udp's buffer.
pub(crate) fn omit_unused_messages(socket: &Socket, has_any_address: bool) {
    let options = [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        (libc::IPPROTO_IP, libc::IP_PKTINFO),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    ];
    let unused = if has_any_address { 1 } else { options.len() };
    for option in &options[..unused] {
        set_option(socket, *option, false);
    }
}

/// An error is harmless: the options save work.
fn set_option(socket: &Socket, (level, name): (libc::c_int, libc::c_int), is_on: bool) {
    let value = libc::c_int::from(is_on);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the options take an int, which outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            len,
        )
    };
}

/// Opens a new file without a name.
pub(crate) fn unnamed_file(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
        .custom_flags(libc::O_TMPFILE | libc::O_EXCL)
        .open(dir)
}

/// Changes the permissions of a socket. If the path is a link now, the link is not followed.
pub(crate) fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    let socket = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(path)?;
    if !socket.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("the socket was replaced"));
    }
    let mode = Permissions::from_mode(mode);
    let by_descriptor = format!("/proc/self/fd/{}", socket.as_raw_fd());
    // Without /proc by its name.
    fs::set_permissions(by_descriptor, mode.clone()).or_else(|_| fs::set_permissions(path, mode))
}

/// Opens a path that does not leave the directory, in one step.
pub(crate) fn open_beneath(directory: RawFd, path: &CStr, flags: i32) -> io::Result<File> {
    // SAFETY: plain integers, for which zeros are valid.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from(flags.cast_unsigned());
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
    let (call, path) = (libc::SYS_openat2, path.as_ptr());
    let len = size_of::<libc::open_how>();
    // SAFETY: valid pointers, the size belongs to the struct; the new descriptor has no other owner.
    unsafe { owned(libc::syscall(call, directory, path, &raw mut how, len)) }.map(File::from)
}

/// Memory that processes which inherit its descriptor can map.
pub fn shared_file() -> io::Result<OwnedFd> {
    // SAFETY: a C string; the new descriptor has no other owner.
    unsafe { owned(libc::memfd_create(c"towline".as_ptr(), libc::MFD_CLOEXEC)) }
}

/// Seconds since 1970 from the coarse clock, which is at most a tick (4 ms) late; the precise clock would
/// cost each response 30 ns.
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

/// Gives memory that the C library keeps for later back to the system.
pub(crate) fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointer is involved, and the function may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
