//! Listeners in the epoll of the event loop that runs the engine.
//!
//! With `EPOLLEXCLUSIVE` a new connection wakes one of the processes that wait for an epoll with the listener. A process with an
//! event loop waits for another epoll, which has the engine's in it, so the kernel would go on and wake all of them.

use std::io;
use std::os::fd::RawFd;

/// The epoll of an event loop, and the descriptor, itself never readable, whose reader the loop calls for listeners.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopPoll {
    pub(crate) epoll: RawFd,
    pub(crate) reported_as: RawFd,
}

impl LoopPoll {
    /// Level-triggered: a listener left with waiting connections is reported again.
    pub(crate) fn register(self, listener: RawFd) -> io::Result<()> {
        self.control(listener, true)
    }

    pub(crate) fn deregister(self, listener: RawFd) -> io::Result<()> {
        self.control(listener, false)
    }

    #[cfg(target_os = "linux")]
    fn control(self, fd: RawFd, adds: bool) -> io::Result<()> {
        let operation = if adds {
            libc::EPOLL_CTL_ADD
        } else {
            libc::EPOLL_CTL_DEL
        };
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLEXCLUSIVE).cast_unsigned(),
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
    fn control(self, _fd: RawFd, _adds: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
