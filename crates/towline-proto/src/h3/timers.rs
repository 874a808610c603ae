//! Timeouts, and the actions when they expire.

use std::time::{Duration, Instant};

use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::timers::earliest;
use crate::multiplexed::{Lifecycle, Timing};

use super::rules::{self, Fault};
use super::{Connection, GoAwayState, Phase};

impl Connection {
    pub fn deadline(&self) -> Option<Instant> {
        let core = &self.core;
        match self.phase {
            Phase::Closed => None,
            Phase::Closing { progress, until } => {
                let linger = progress + core.limits().linger_timeout;
                Some(until.map_or(linger, |until| until.min(linger)))
            }
            Phase::Open => earliest(
                core.timers().deadline(core.limits(), core.now()),
                self.acknowledgements.deadline(),
            ),
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_now(now);
        match self.phase {
            Phase::Closed => {}
            Phase::Closing { .. } => {
                if self.deadline().is_some_and(|at| now >= at) {
                    self.finish_closing();
                }
            }
            Phase::Open => self.handle_timeout_while_open(now),
        }
    }

    fn handle_timeout_while_open(&mut self, now: Instant) {
        self.acknowledgements.expire(now);
        let has_passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if has_passed(self.core.timers().idle().deadline(self.core.limits())) {
            return self.on_idle_timer_expired();
        }
        if has_passed(self.core.timers().go_away_at()) {
            self.core.timers_mut().set_go_away_at(None);
            match self.go_away.own {
                GoAwayState::None => self.announce_go_away(),
                GoAwayState::Announced => self.send_final_go_away(),
                GoAwayState::Final(_) => self.close_if_drained(),
            }
        }
        if self.phase == Phase::Open && has_passed(self.core.timers().streams()) {
            self.check_streams(now);
        }
    }

    /// Starts the timer for a request's head.
    pub(super) fn watch_head(&mut self) {
        let deadline = self.core.limits().header_timeout;
        let deadline = deadline.map(|timeout| self.core.now() + timeout);
        self.core.timers_mut().watch(deadline);
    }

    /// Starts the timer for a stream that QUIC has no room for, unless it runs.
    pub(super) fn watch_sending(&mut self, key: StreamKey) {
        let now = self.core.now();
        let stream = self.core.stream_mut(key);
        if !stream.send_timer.is_running() {
            stream.send_timer.start(now);
            self.watch_deadline(key);
        }
    }
}

impl Timing for Connection {
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.core.set_now(now);
    }

    fn late_head(&mut self, key: StreamKey, now: Instant) -> Option<Fault> {
        let (stream, limits) = self.core.stream_and_limits(key);
        let timeout = limits.header_timeout.unwrap_or(Duration::MAX);
        if now.saturating_duration_since(stream.own.head_since?) < timeout {
            return None;
        }
        self.core.head_decoder_mut().clear();
        Some(rules::SLOW_HEAD)
    }

    /// Without room, or with bytes in QUIC, it is the program that does not read.
    fn awaits_peer(&self, key: StreamKey) -> bool {
        self.room(key) > 0 && !self.core.stream(key).own.is_readable
    }

    fn is_held_back(&self, key: StreamKey) -> bool {
        self.core.stream(key).own.is_send_blocked
    }
}
