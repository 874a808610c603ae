//! Listeners in the epoll of the event loop that runs the engine.
//!
//! Processes that share a listener register it with `EPOLLEXCLUSIVE`: a new connection wakes one of them. The kernel looks
//! for a process that waits for the epoll with the listener. A process that waits for an event loop waits for
//! another epoll, which has the engine's in it, so the kernel would go on and wake all of them.

use std::io;
use std::os::fd::RawFd;

/// The epoll of an event loop, and the descriptor under which it reports listeners. The loop calls the reader of this
/// descriptor, which itself is never readable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopPoll {
    pub(crate) epoll: RawFd,
    pub(crate) reported_as: RawFd,
}

impl LoopPoll {
    /// Level-triggered: a listener left with waiting connections is reported again.
    #[cfg(target_os = "linux")]
    pub(crate) fn register(self, listener: RawFd) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
        self.control(libc::EPOLL_CTL_ADD, listener, events)
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn deregister(self, listener: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, listener, 0)
    }

    #[cfg(target_os = "linux")]
    fn control(self, operation: libc::c_int, fd: RawFd, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: u64::from(self.reported_as.cast_unsigned()),
        };
        // SAFETY: `event` outlives the call, which fails if `epoll` is no epoll.
        let result = unsafe { libc::epoll_ctl(self.epoll, operation, fd, &raw mut event) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn register(self, _listener: RawFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn deregister(self, _listener: RawFd) -> io::Result<()> {
        Ok(())
    }
}
