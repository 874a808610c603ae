//! The timer in the engine's poll. The engine's descriptor becomes readable when the timer fires, so the caller's
//! event loop needs no timer for the engine.

use std::io;
use std::time::{Duration, Instant};

#[cfg(all(target_os = "linux", not(towline_portable)))]
pub(crate) use linux::TimerFd;
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
pub(crate) use thread::TimerThread as TimerFd;

/// Added to each timer: firing too early costs a turn, and timeouts tolerate this delay.
const SLACK: Duration = Duration::from_millis(1);

#[cfg(all(target_os = "linux", not(towline_portable)))]
mod linux {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::sync::Arc;

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Waker};

    use super::{Instant, SLACK, io};
    use crate::conn::id::Source;

    /// A timerfd. It is registered edge-triggered and never read: setting it again clears it.
    pub(crate) struct TimerFd {
        fd: OwnedFd,
    }

    impl TimerFd {
        pub(crate) fn new(registry: &Registry, _waker: &Arc<Waker>) -> io::Result<Self> {
            let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
            // SAFETY: no pointers are passed.
            let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor was just created and has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let token = Source::TimerFd.token();
            registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self { fd })
        }

        pub(crate) fn set(&mut self, at: Instant, now: Instant) {
            let after = at.saturating_duration_since(now) + SLACK;
            let value = libc::timespec {
                tv_sec: after.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: after.subsec_nanos().into(),
            };
            let never = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let spec = libc::itimerspec {
                it_interval: never,
                it_value: value,
            };
            // SAFETY: `spec` is an initialized itimerspec that outlives the call; the old value is not requested.
            let result = unsafe {
                libc::timerfd_settime(
                    self.fd.as_raw_fd(),
                    0,
                    &raw const spec,
                    std::ptr::null_mut(),
                )
            };
            debug_assert_eq!(result, 0, "timerfd_settime refuses only invalid arguments");
        }
    }
}

/// Replacement for systems without timerfd: a thread that sleeps until the time and wakes the poll.
#[cfg(any(not(target_os = "linux"), towline_portable, test))]
mod thread {
    use std::sync::{Arc, Condvar, Mutex, PoisonError};

    use mio::{Registry, Waker};

    use super::{Instant, SLACK, io};

    #[derive(Default)]
    struct Shared {
        state: Mutex<State>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct State {
        at: Option<Instant>,
        stopped: bool,
    }

    pub(crate) struct TimerThread {
        shared: Arc<Shared>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl TimerThread {
        pub(crate) fn new(_registry: &Registry, waker: &Arc<Waker>) -> io::Result<Self> {
            let shared = Arc::new(Shared::default());
            let (own, waker) = (Arc::clone(&shared), Arc::clone(waker));
            let body = move || run(&own, &waker);
            let thread = std::thread::Builder::new()
                .name("towline-timer".into())
                .spawn(body)?;
            Ok(Self {
                shared,
                thread: Some(thread),
            })
        }

        pub(crate) fn set(&mut self, at: Instant, _now: Instant) {
            self.change(|state| state.at = Some(at + SLACK));
        }

        fn change(&self, change: impl FnOnce(&mut State)) {
            change(
                &mut self
                    .shared
                    .state
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            self.shared.changed.notify_one();
        }
    }

    impl Drop for TimerThread {
        fn drop(&mut self) {
            self.change(|state| state.stopped = true);
            if let Some(thread) = self.thread.take() {
                // The thread never panics.
                let _ = thread.join();
            }
        }
    }

    fn run(shared: &Shared, waker: &Waker) {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.stopped {
            let left = state
                .at
                .map(|at| at.saturating_duration_since(Instant::now()));
            state = match left {
                None => shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => {
                    // If the poll is gone, the engine drops this timer soon.
                    let _ = waker.wake();
                    state.at = None;
                    state
                }
                Some(left) => {
                    let result = shared.changed.wait_timeout(state, left);
                    result.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    #[cfg(test)]
    mod tests {
        use std::time::Duration;

        use mio::{Events, Poll, Token};

        use super::*;

        #[test]
        fn the_thread_wakes_the_poll_at_the_earlier_time() {
            let mut poll = Poll::new().unwrap();
            let waker = Arc::new(Waker::new(poll.registry(), Token(1)).unwrap());
            let mut timer = TimerThread::new(poll.registry(), &waker).unwrap();
            let start = Instant::now();
            timer.set(start + Duration::from_secs(60), start);
            timer.set(start + Duration::from_millis(30), start);
            let mut events = Events::with_capacity(4);
            poll.poll(&mut events, Some(Duration::from_secs(10)))
                .unwrap();
            assert_eq!(events.iter().count(), 1);
            assert!(start.elapsed() >= Duration::from_millis(30));
        }
    }
}
