//! Timers that connections of both protocols have.

use std::time::Instant;

use crate::Limits;
use crate::idle_timer::IdleTimer;

use super::streams::StreamKey;

/// The timers of a connection and its streams.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The first frames, or the keep-alive timeout.
    idle: IdleTimer,
    /// The earliest deadline of the streams' timers.
    streams: Option<Instant>,
    /// Streams with an armed timer, which starts at the next known instant.
    unstarted: Vec<StreamKey>,
    /// When the next step of the own GOAWAY is due.
    go_away_at: Option<Instant>,
}

/// Change that `watch_idleness` has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idleness {
    Unchanged,
    /// The first stream was opened.
    Busy,
    /// The last stream was closed.
    Idle,
}

impl Timers {
    pub fn new(now: Instant) -> Self {
        Self {
            idle: IdleTimer::Head(now),
            streams: None,
            unstarted: Vec::new(),
            go_away_at: None,
        }
    }

    pub fn stop(&mut self) {
        self.idle = IdleTimer::Off;
        self.streams = None;
        self.unstarted.clear();
        self.go_away_at = None;
    }

    #[inline]
    pub fn idle(&self) -> IdleTimer {
        self.idle
    }

    pub fn set_idle(&mut self, idle: IdleTimer) {
        self.idle = idle;
    }

    /// The keep-alive timeout counts from now.
    pub fn restart_idle(&mut self, now: Instant) {
        if matches!(self.idle, IdleTimer::Idle(_)) {
            self.idle = IdleTimer::Idle(now);
        }
    }

    /// The peer has sent its SETTINGS; false if the timer does not wait for them.
    pub fn settings_received(&mut self, now: Instant) -> bool {
        let is_first = self.is_before_settings();
        if is_first {
            self.idle = IdleTimer::Idle(now);
        }
        is_first
    }

    #[inline]
    fn is_before_settings(&self) -> bool {
        matches!(self.idle, IdleTimer::Head(_) | IdleTimer::Closing(_))
    }

    /// Updates the idle timer after a stream was opened or closed.
    #[inline]
    pub fn watch_idleness(&mut self, is_busy: bool, is_open: bool, now: Instant) -> Idleness {
        if is_busy {
            if self.idle == IdleTimer::Off {
                return Idleness::Unchanged;
            }
            self.idle = IdleTimer::Off;
            Idleness::Busy
        } else if is_open && !self.is_before_settings() {
            self.idle = IdleTimer::Idle(now);
            self.streams = None;
            Idleness::Idle
        } else {
            Idleness::Unchanged
        }
    }

    /// The deadline of a stream is checked, too.
    #[inline]
    pub fn watch(&mut self, deadline: Option<Instant>) {
        self.streams = earliest(self.streams, deadline);
    }

    /// Sets the earliest deadline of all streams.
    pub fn set_streams(&mut self, deadline: Option<Instant>) {
        self.streams = deadline;
    }

    #[inline]
    pub fn streams(&self) -> Option<Instant> {
        self.streams
    }

    /// The timers of a stream start at the next known instant.
    #[inline]
    pub fn start_later(&mut self, key: StreamKey) {
        self.unstarted.push(key);
    }

    #[inline]
    pub fn has_unstarted(&self) -> bool {
        !self.unstarted.is_empty()
    }

    #[inline]
    pub fn pop_unstarted(&mut self) -> Option<StreamKey> {
        self.unstarted.pop()
    }

    /// All streams are gone.
    pub fn forget_streams(&mut self) {
        self.unstarted.clear();
    }

    #[inline]
    pub fn go_away_at(&self) -> Option<Instant> {
        self.go_away_at
    }

    pub fn set_go_away_at(&mut self, at: Option<Instant>) {
        self.go_away_at = at;
    }

    /// The earliest deadline of all. Armed timers are due immediately, since they need an instant to start from.
    pub fn deadline(&self, limits: &Limits, now: Instant) -> Option<Instant> {
        [
            self.idle.deadline(limits),
            self.go_away_at,
            self.streams,
            self.has_unstarted().then_some(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
