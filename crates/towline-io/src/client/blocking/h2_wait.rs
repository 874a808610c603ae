//! The waits of calls over HTTP/2: one of the waiting threads polls for all connections of the [`H2Driver`].
//!
//! ```text
//!             ┌─ no leader ─► Polling: poll(2) for all ─► a turn, wake the calls that have events ─┐
//!  wait ──────┤                                                                                    ├─► check again
//!             └─ a leader ──► parked ◄── unparked: an event arrived, or it is elected leader ──────┘
//! ```
//!
//! The lock is never held over a wait. Invariant on unlock: output is flushed as far as the kernel accepts it, and
//! if any thread waits, one is polling or has been elected to poll. While no thread waits nothing is read: the next
//! call processes the input that has arrived before it begins.

use std::sync::MutexGuard;
use std::thread::{self, Thread};
use std::time::Instant;

use super::h1_conn::poll;
use super::h2_driver::{DriverState, H2Driver, Leader};
use super::shared_pool::SharedPool;
use super::wait_policy::{Stop, WaitPolicy};
use crate::client::driver::CallId;

impl H2Driver {
    /// Waits until `ready` returns something. The timeouts of the call are events of the driver.
    pub(super) fn wait<T>(
        &self,
        call: CallId,
        pool: &SharedPool,
        policy: &mut WaitPolicy<'_>,
        mut ready: impl FnMut(&mut DriverState) -> Option<T>,
    ) -> Result<T, Stop> {
        let mut now = Instant::now();
        let (mut last_check, mut was_signalled) = (now, false);
        let mut policy = policy.without_total();
        let mut phase = policy.phase(now, None);
        let mut wake = Vec::new();
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                self.unlock(state, pool, wake);
                return Ok(value);
            }
            let check_at = phase.next_check_at(last_check, now);
            if was_signalled || now >= check_at {
                // The interrupt check may run for a thread that wants this lock.
                self.unlock(state, pool, std::mem::take(&mut wake));
                phase.check()?;
                state = self.lock();
                now = Instant::now();
                (last_check, was_signalled) = (now, false);
                continue;
            }
            if state.leader == Leader::None {
                (state, was_signalled) = self.poll_as_leader(state, pool, check_at, &mut wake);
            } else {
                state = self.sleep(state, call, pool, check_at, std::mem::take(&mut wake));
            }
            now = Instant::now();
        }
    }

    /// Another thread polls: waits to be unparked.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, DriverState>,
        call: CallId,
        pool: &SharedPool,
        until: Instant,
        wake: Vec<Thread>,
    ) -> MutexGuard<'a, DriverState> {
        if let Some(slot) = state.calls.get_mut(call) {
            slot.parked_thread = Some(thread::current());
            state.parked.insert(call);
        }
        self.unlock(state, pool, wake);
        thread::park_timeout(until.saturating_duration_since(Instant::now()));
        let mut state = self.lock();
        state.unpark(call);
        if state.leader == Leader::Elected(call) {
            state.leader = Leader::None;
        }
        state
    }

    /// Polls for all threads. Also returns whether a signal interrupted it.
    fn poll_as_leader<'a>(
        &'a self,
        mut state: MutexGuard<'a, DriverState>,
        pool: &SharedPool,
        until: Instant,
        wake: &mut Vec<Thread>,
    ) -> (MutexGuard<'a, DriverState>, bool) {
        state.leader = Leader::Polling;
        self.unlock(state, pool, std::mem::take(wake));
        let mut entry = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let most = until.saturating_duration_since(Instant::now());
        // A failure here occurs in the following turn as well.
        let count = poll(std::slice::from_mut(&mut entry), most).unwrap_or(1);
        let was_signalled = count == 0 && Instant::now() < until;
        let mut state = self.lock();
        state.leader = Leader::None;
        state.turn(wake);
        (state, was_signalled)
    }
}

impl DriverState {
    pub(super) fn unpark(&mut self, call: CallId) -> Option<Thread> {
        self.parked.remove(&call);
        self.calls.get_mut(call)?.parked_thread.take()
    }

    /// Makes sure that a thread polls, if any waits. The thread of the most recent call is elected: it usually stays
    /// longest.
    pub(super) fn elect_leader(&mut self, wake: &mut Vec<Thread>) {
        if self.leader == Leader::None
            && let Some(&most_recent) = self.parked.last()
        {
            wake.extend(self.unpark(most_recent));
            self.leader = Leader::Elected(most_recent);
        }
    }
}
