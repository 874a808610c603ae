//! System calls that mio does not offer, in two versions: Linux's, and one for every Unix.
//!
//! `--cfg towline_portable` takes the second version on Linux too, so that its tests run there (`make portable`).

#[cfg(all(target_os = "linux", not(towline_portable)))]
mod linux;
mod outcome;
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
mod portable;

#[cfg(all(target_os = "linux", not(towline_portable)))]
use linux as system;
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
use portable as system;

pub(crate) use outcome::owned;
#[cfg(target_vendor = "apple")]
pub use system::resident_bytes;
pub(crate) use system::{
    CONNECTED_TAKE_ADDRESS, INHERITS_NO_DELAY, MAX_BATCH, MORE_FOLLOWS, accept,
    leave_port_to_connect, omit_unused_messages, open_beneath, recv, register_listener, send,
    set_socket_mode, trim_memory, unnamed_file,
};
pub use system::{shared_file, unix_seconds};

/// No SIGPIPE, and no blocking on sockets in blocking mode.
pub(crate) const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Resident memory of a process, if it runs.
#[cfg(not(target_vendor = "apple"))]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: no arguments beyond a constant.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page_bytes).ok()?)
}
