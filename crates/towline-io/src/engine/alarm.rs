//! The time at which the engine's descriptor becomes readable without an event.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use mio::{Registry, Waker};

use crate::engine::timer_fd::TimerFd;

pub(crate) struct Alarm {
    timer: TimerFd,
    /// When the timer fires, if it is set.
    set_for: Option<Instant>,
    /// Latest time at which the front end needs a turn.
    wake_at: Option<Instant>,
}

impl Alarm {
    pub(crate) fn new(registry: &Registry, waker: &Arc<Waker>) -> io::Result<Self> {
        Ok(Self {
            timer: TimerFd::new(registry, waker)?,
            set_for: None,
            wake_at: None,
        })
    }

    /// Forgets the times that have passed.
    pub(crate) fn on_turn(&mut self, now: Instant) {
        self.set_for.take_if(|at| *at <= now);
        self.wake_at.take_if(|at| *at <= now);
    }

    /// Requests a turn at `at` at the latest. Returns whether that is earlier than before.
    pub(crate) fn wake_at(&mut self, at: Instant) -> bool {
        let is_earlier = self.wake_at.is_none_or(|earlier| at < earlier);
        if is_earlier {
            self.wake_at = Some(at);
        }
        is_earlier
    }

    /// Sets the timer to the first of `times` and of the time requested, unless it fires earlier.
    pub(crate) fn set(&mut self, times: impl IntoIterator<Item = Instant>, now: Instant) {
        let Some(next) = times.into_iter().chain(self.wake_at).min() else {
            return;
        };
        if self.set_for.is_none_or(|at| next < at) {
            self.timer.set(next, now);
            self.set_for = Some(next);
        }
    }
}
