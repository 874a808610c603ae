//! Timeouts, and the actions when they expire.

use std::time::{Duration, Instant};

use crate::idle_timer::IdleTimer;
use crate::multiplexed::streams::StreamKey;

use super::rules::{self, Fault};
use super::stream::RecvState;
use super::{Connection, GoAwayState, Phase};

/// The timers of a connection.
#[derive(Debug)]
pub(super) struct Timers {
    /// The peer's SETTINGS, or the keep-alive timeout.
    pub idle: IdleTimer,
    /// The earliest deadline of the streams' timers.
    pub streams: Option<Instant>,
    /// Streams with an armed timer, which starts at the next known instant.
    pub unstarted: Vec<StreamKey>,
    /// When the next step of the own GOAWAY is due: the announcement, the final one, or closing.
    pub go_away_at: Option<Instant>,
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
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Connection {
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closed => None,
            Phase::Closing { progress, until } => {
                let linger = progress + self.limits.linger_timeout;
                Some(until.map_or(linger, |until| until.min(linger)))
            }
            Phase::Open => [
                self.timers.idle.deadline(&self.limits),
                self.timers.go_away_at,
                self.timers.streams,
                // Immediately: the timers need an instant to start from.
                (!self.timers.unstarted.is_empty()).then_some(self.now),
            ]
            .into_iter()
            .flatten()
            .min(),
        }
    }

    /// Sets the time and starts the armed timers.
    pub(super) fn set_now(&mut self, now: Instant) {
        self.now = now;
        while let Some(key) = self.timers.unstarted.pop() {
            let stream = self.streams.get_mut(key);
            stream.recv_timer.start_if_armed(now);
            stream.send_timer.start_if_armed(now);
            self.watch_deadline(key);
        }
    }

    fn watch_deadline(&mut self, key: StreamKey) {
        let deadline = self.stream_deadline(key);
        self.timers.streams = earliest(self.timers.streams, deadline);
    }

    fn stream_deadline(&self, key: StreamKey) -> Option<Instant> {
        let (stream, limits) = (self.streams.get(key), &self.limits);
        let head = stream.head_since.zip(limits.header_timeout);
        [
            head.map(|(since, timeout)| since + timeout),
            stream.recv_timer.deadline(limits),
            stream.send_timer.deadline(limits),
            stream.discard_until,
        ]
        .into_iter()
        .flatten()
        .min()
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
        let has_passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if has_passed(self.timers.idle.deadline(&self.limits)) {
            return self.on_idle_timer_expired();
        }
        if has_passed(self.timers.go_away_at) {
            self.timers.go_away_at = None;
            match self.go_away {
                GoAwayState::None => self.announce_go_away(),
                GoAwayState::Announced => self.send_final_go_away(),
                GoAwayState::Final(_) => self.close_if_drained(),
            }
        }
        if self.phase == Phase::Open && has_passed(self.timers.streams) {
            self.check_streams(now);
        }
    }

    fn on_idle_timer_expired(&mut self) {
        match self.timers.idle {
            IdleTimer::Head(_) => self.fail_connection(rules::SILENT),
            IdleTimer::Idle(_) => self.close_gracefully(rules::IDLE),
            IdleTimer::Closing(_) | IdleTimer::Draining(_) => self.close_gracefully(rules::DONE),
            IdleTimer::Off => {}
        }
    }

    /// Starts the timer for a request's head.
    pub(super) fn watch_head(&mut self) {
        let deadline = self.limits.header_timeout;
        let deadline = deadline.map(|timeout| self.now + timeout);
        self.timers.streams = earliest(self.timers.streams, deadline);
    }

    /// Starts the timer for body bytes.
    pub(super) fn watch_body(&mut self, key: StreamKey) {
        self.streams.get_mut(key).recv_timer.start(self.now);
        self.watch_deadline(key);
    }

    /// Starts the timer for a body that the peer held back until `100 Continue`.
    pub(super) fn watch_awaited_body(&mut self, key: StreamKey) {
        if self.streams.get_mut(key).recv_timer.arm() {
            self.timers.unstarted.push(key);
        }
    }

    /// Starts the timer for a stream that QUIC has no room for, unless it runs.
    pub(super) fn watch_sending(&mut self, key: StreamKey) {
        let now = self.now;
        let stream = self.streams.get_mut(key);
        if !stream.send_timer.is_running() {
            stream.send_timer.start(now);
            self.watch_deadline(key);
        }
    }

    /// Checks the timers of every stream.
    fn check_streams(&mut self, now: Instant) {
        for key in self.streams.iter() {
            if self.phase != Phase::Open {
                return;
            }
            let stream = self.streams.get_mut(key);
            if let Some(until) = stream.discard_until
                && (now >= until || stream.recv_timer.expired(now, &self.limits))
            {
                self.stop_discarding(key);
            } else if let Some(fault) = self.is_slow(key, now)
                && let Err(fault) = self.reset_stream(key, fault)
            {
                return self.fail_connection(fault);
            }
        }
        let deadlines = self.streams.iter();
        self.timers.streams = deadlines.filter_map(|key| self.stream_deadline(key)).min();
    }

    fn is_slow(&mut self, key: StreamKey, now: Instant) -> Option<Fault> {
        let has_room = self.room(key) > 0;
        let stream = self.streams.get_mut(key);
        let timeout = self.limits.header_timeout.unwrap_or(Duration::MAX);
        let is_late = |since: Instant| now.saturating_duration_since(since) >= timeout;
        if stream.head_since.is_some_and(is_late) {
            self.head_decoder.clear();
            return Some(rules::SLOW_HEAD);
        }
        if stream.recv_timer.expired(now, &self.limits) {
            // Without room, or with bytes in QUIC, it is the program that does not read.
            if stream.exchange.recv_state == RecvState::Body && has_room && !stream.is_readable {
                return Some(rules::SLOW_BODY);
            }
            stream.recv_timer.start(now);
        }
        if stream.send_timer.expired(now, &self.limits) {
            // Not blocked: it waits for others.
            if stream.is_send_blocked {
                return Some(rules::SLOW_READER);
            }
            stream.send_timer.start(now);
        }
        None
    }

    /// Updates the idle timer after a stream was opened or closed.
    pub(super) fn watch_idleness(&mut self) {
        let is_past_start = !matches!(self.timers.idle, IdleTimer::Head(_) | IdleTimer::Closing(_));
        if self.is_busy() {
            self.timers.idle = IdleTimer::Off;
        } else if is_past_start && self.phase == Phase::Open {
            self.timers.idle = IdleTimer::Idle(self.now);
            self.timers.streams = None;
        }
        self.close_if_drained();
    }
}
