//! Waits with microsecond precision. mio rounds up to milliseconds, so this calls `epoll_pwait2(2)` on the
//! epoll instance below it.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::conn::id::Source;
use crate::engine::conn_table::Readiness;

/// Event buffer of the precise wait.
pub(crate) struct PreciseWait {
    events: Vec<libc::epoll_event>,
    max_events: usize,
    /// The kernel (before 5.11) or a seccomp filter does not support the call.
    missing: bool,
}

impl PreciseWait {
    pub(crate) fn new(max_events: usize) -> Self {
        Self {
            events: Vec::new(),
            max_events,
            missing: false,
        }
    }

    /// Waits on the epoll instance `fd` until there are events or the time is over, to the nanosecond as
    /// far as the kernel's timer slack allows. Returns false at once, without waiting, where the call is not
    /// supported.
    pub(crate) fn wait(&mut self, fd: RawFd, wait: Duration) -> io::Result<bool> {
        self.events.clear();
        if self.missing {
            return Ok(false);
        }
        self.events.reserve(self.max_events);
        let wait = libc::timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        // SAFETY: `events` has room for `max_events`, the timespec is that of the kernel on 64-bit
        // machines (id.rs requires one), both outlive the call, and there is no signal mask.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                fd,
                self.events.as_mut_ptr(),
                libc::c_int::try_from(self.max_events).unwrap_or(libc::c_int::MAX),
                &raw const wait,
                std::ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        if let Ok(n) = usize::try_from(n) {
            // SAFETY: the kernel has filled `n` entries.
            unsafe { self.events.set_len(n) };
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(true),
            Some(libc::ENOSYS | libc::EPERM) => {
                self.missing = true;
                Ok(false)
            }
            _ => Err(error),
        }
    }

    /// Events of the last wait.
    pub(crate) fn events(&self) -> impl Iterator<Item = (Source, Readiness)> {
        self.events.iter().map(|event| {
            let (bits, token) = (event.events, event.u64);
            let any = |flags: libc::c_int| bits & flags.cast_unsigned() != 0;
            // Interpreted as mio does.
            let error = any(libc::EPOLLERR);
            let read_closed = any(libc::EPOLLHUP) || any(libc::EPOLLIN) && any(libc::EPOLLRDHUP);
            let readiness = Readiness {
                readable: any(libc::EPOLLIN | libc::EPOLLPRI) || error,
                closed: read_closed || error,
                writable: any(libc::EPOLLOUT) || error,
            };
            (Source::from_token(mio::Token(token as usize)), readiness)
        })
    }
}
