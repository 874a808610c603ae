//! Turns that begin at a time, precise to microseconds. mio rounds up to milliseconds, so this calls `epoll_pwait2(2)`
//! on the epoll instance below it.

use std::io;
use std::time::Instant;

use crate::Engine;

/// Waits with microsecond precision where the system supports it (see [`exact_timers`]).
#[derive(Default)]
pub struct PreciseWait {
    #[cfg(all(target_os = "linux", not(towline_portable)))]
    poll: linux::PrecisePoll,
}

impl PreciseWait {
    /// Like [`Engine::turn_start`], for a front end with its own thread that waits until `at`. Does not wait when `at`
    /// has passed.
    pub fn turn_start_by<S: Default>(
        &mut self,
        engine: &mut Engine<S>,
        at: Instant,
    ) -> io::Result<()> {
        let wait = at.saturating_duration_since(Instant::now());
        #[cfg(all(target_os = "linux", not(towline_portable)))]
        if !wait.is_zero() && !engine.has_backlog() && self.poll.wait(engine, wait)? {
            engine.begin_turn_with(self.poll.events());
            return Ok(());
        }
        engine.begin_turn(Some(wait), false)
    }
}

/// Sets the timer slack of this thread to a nanosecond (the default is 50 microseconds). A failure costs
/// precision only.
pub fn exact_timers() {
    #[cfg(all(target_os = "linux", not(towline_portable)))]
    // SAFETY: no pointer is involved.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64)
    };
}

#[cfg(all(target_os = "linux", not(towline_portable)))]
mod linux {
    use std::io;
    use std::time::Duration;

    use crate::Engine;
    use crate::conn::id::Source;
    use crate::engine::conn_table::Readiness;

    const MAX_EVENTS: u16 = 256;

    /// The events of the last wait.
    #[derive(Default)]
    pub(super) struct PrecisePoll {
        events: Vec<libc::epoll_event>,
        /// The kernel (before 5.11) or a seccomp filter does not support the call.
        is_missing: bool,
    }

    impl PrecisePoll {
        /// Waits until there are events or the time is over, to the nanosecond as
        /// far as the kernel's timer slack allows. Returns false at once, without waiting, where the call is not
        /// supported.
        pub(super) fn wait<S: Default>(
            &mut self,
            engine: &Engine<S>,
            wait: Duration,
        ) -> io::Result<bool> {
            self.events.clear();
            if self.is_missing {
                return Ok(false);
            }
            self.events.reserve(MAX_EVENTS.into());
            let wait = libc::timespec {
                tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            };
            // SAFETY: `events` has room for `MAX_EVENTS`, the timespec is that of the kernel on 64-bit
            // machines (id.rs requires one), both outlive the call, and there is no signal mask.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    engine.as_raw_fd(),
                    self.events.as_mut_ptr(),
                    libc::c_int::from(MAX_EVENTS),
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
                    self.is_missing = true;
                    Ok(false)
                }
                _ => Err(error),
            }
        }

        /// Events of the last wait.
        pub(super) fn events(&self) -> impl Iterator<Item = (Source, Readiness)> {
            self.events.iter().map(|event| {
                let (bits, token) = (event.events, event.u64);
                let any = |flags: libc::c_int| bits & flags.cast_unsigned() != 0;
                // Interpreted as mio does.
                let error = any(libc::EPOLLERR);
                let read_closed =
                    any(libc::EPOLLHUP) || any(libc::EPOLLIN) && any(libc::EPOLLRDHUP);
                let readiness = Readiness {
                    readable: any(libc::EPOLLIN | libc::EPOLLPRI) || error,
                    closed: read_closed || error,
                    writable: any(libc::EPOLLOUT) || error,
                };
                (Source::from_token(mio::Token(token as usize)), readiness)
            })
        }
    }
}
