//! The times at which a connection is serviced without an event.

use std::time::Instant;

use crate::conn::id::ConnId;
use crate::engine::timers::TimerQueue;

#[derive(Default)]
pub(crate) struct ConnTimers {
    /// Earliest time for which the engine has scheduled a check of the deadline.
    scheduled_at: Option<Instant>,
    /// Deadline for which the kernel's buffers have been checked before its timeout.
    caught_up: Option<Instant>,
    /// Latest time at which the front end wants the connection to be serviced.
    wake_at: Option<Instant>,
    /// `wake_at` has passed.
    is_wake_due: bool,
}

impl ConnTimers {
    /// Schedules a check of the deadline.
    #[inline]
    pub(crate) fn schedule(&mut self, queue: &mut TimerQueue, id: ConnId, deadline: Instant) {
        queue.schedule(id, &mut self.scheduled_at, deadline);
    }

    /// Whether a deadline is before the check that is scheduled.
    pub(crate) fn is_early(&self, deadline: Instant) -> bool {
        self.scheduled_at
            .is_none_or(|scheduled| deadline < scheduled)
    }

    /// Handles a check. Returns false if an earlier one has taken its place.
    pub(crate) fn is_due(&mut self, at: Instant) -> bool {
        self.scheduled_at
            .take_if(|scheduled| *scheduled == at)
            .is_some()
    }

    /// Records that the scheduled check has passed while another thread had the connection.
    pub(crate) fn fired(&mut self) {
        self.scheduled_at = None;
    }

    /// Whether the kernel's buffers have not been checked for this deadline before.
    pub(crate) fn begin_catch_up(&mut self, deadline: Instant) -> bool {
        self.caught_up.replace(deadline) != Some(deadline)
    }

    pub(crate) fn wake_at(&mut self, at: Instant) {
        if self.wake_at.is_none_or(|earlier| at < earlier) {
            self.wake_at = Some(at);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Notes whether the time for the front end has passed.
    pub(crate) fn check_wake(&mut self, now: Instant) {
        self.is_wake_due |= self.wake_at.take_if(|at| *at <= now).is_some();
    }

    pub(crate) fn is_wake_due(&self) -> bool {
        self.is_wake_due
    }

    pub(crate) fn clear_wake_due(&mut self) {
        self.is_wake_due = false;
    }
}
