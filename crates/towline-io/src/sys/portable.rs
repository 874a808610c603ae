//! Replacements of the calls of Linux for other Unix systems, macOS above all.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use mio::Registry;
use socket2::{SockAddr, Socket};

use super::outcome::{count, owned};
use crate::conn::id::Source;

pub(crate) const MORE_FOLLOWS: libc::c_int = 0;

pub(crate) const INHERITS_NO_DELAY: bool = false;

/// macOS: `EISCONN`.
pub(crate) const CONNECTED_TAKE_ADDRESS: bool = false;

pub(crate) const MAX_BATCH: usize = 1;

pub(crate) fn send(fd: RawFd, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the kernel only reads `bytes`, during the call.
    count(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

pub(crate) fn recv(fd: RawFd, space: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `space.len()` bytes to `space`, during the call.
    count(unsafe { libc::recv(fd, space.as_mut_ptr().cast(), space.len(), flags) })
}

pub(crate) fn register_listener(registry: &Registry, fd: RawFd, source: Source) -> io::Result<()> {
    registry.register(
        &mut mio::unix::SourceFd(&fd),
        source.token(),
        mio::Interest::READABLE,
    )
}

/// Without `SO_NOSIGPIPE`, which socket2 sets on macOS: the call fails there if the client has left already, and nobody
/// needs the option, because Rust's and Python's start ignores SIGPIPE.
pub(crate) fn accept(listener: &Socket) -> io::Result<(Socket, SockAddr)> {
    let (socket, addr) = listener.accept_raw()?;
    socket.set_cloexec(true)?;
    socket.set_nonblocking(true)?;
    Ok((socket, addr))
}

pub(crate) fn leave_port_to_connect(_socket: &Socket) {}

pub(crate) fn omit_unused_messages(_socket: &Socket, _has_any_address: bool) {}

pub(crate) fn unnamed_file(_dir: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn open_beneath(_directory: RawFd, _path: &CStr, _flags: i32) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// See the one of Linux.
pub(crate) fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (mode, flags) = (mode as libc::mode_t, libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: a C string that outlives the call.
    count(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), mode, flags) }).map(drop)
}

/// Memory of POSIX, whose name is removed at once. macOS allows 31 characters.
pub fn shared_file() -> io::Result<OwnedFd> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let (pid, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let name = CString::new(format!("/towline-{pid}-{number}"))?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        // SAFETY: a C string, and the mode as the last argument; the new descriptor, which closes on exec, has no other owner.
        let made = unsafe { owned(libc::shm_open(name.as_ptr(), flags, 0o600)) };
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // of a process that was killed
            Err(error) => return Err(error),
            Ok(memory) => {
                // SAFETY: a C string.
                unsafe { libc::shm_unlink(name.as_ptr()) };
                return Ok(memory);
            }
        }
    }
}

pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(target_vendor = "apple")]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    // SAFETY: plain integers, for which zeros are valid.
    let mut info: libc::proc_taskinfo = unsafe { std::mem::zeroed() };
    let len = size_of_val(&info) as libc::c_int;
    let (pid, kind) = (pid.cast_signed(), libc::PROC_PIDTASKINFO);
    // SAFETY: the system writes at most `len` bytes to `info`.
    let written = unsafe { libc::proc_pidinfo(pid, kind, 0, (&raw mut info).cast(), len) };
    (written == len).then_some(info.pti_resident_size)
}

pub(crate) fn trim_memory() {}
