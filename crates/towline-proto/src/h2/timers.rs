//! Timeouts, and the actions when they expire.

use std::time::{Duration, Instant};

use crate::Side;
use crate::idle_timer::IdleTimer;
use crate::multiplexed::streams::StreamKey;
use crate::progress_timer::ProgressTimer;

use super::frame;
use super::rules;
use super::stream::RecvState;
use super::{Connection, GoAwayState, Phase};

/// Payloads of our PINGs: the keep-alive, and the one after the announcing GOAWAY.
pub(super) const KEEPALIVE_PING: [u8; 8] = *b"alive? \0";
/// Follows the end of a request that was skipped.
pub(super) const SKIPPED_PING: [u8; 8] = *b"skipped\0";
pub(super) const GO_AWAY_PING: [u8; 8] = *b"leaving\0";

/// The timers of a connection.
#[derive(Debug)]
pub(super) struct Timers {
    /// The first frames, or the keep-alive timeout.
    pub idle: IdleTimer,
    /// Bytes of responses that were not sent when the connection became idle: the keep-alive timeout starts
    /// with the last of them. Bytes sent later belong to control frames, which extend nothing.
    pub unsent_responses: usize,
    /// Start of an incomplete header block.
    pub block: Option<Instant>,
    /// Progress of the peer's reading.
    pub send: ProgressTimer,
    /// The connection's window is 0 while streams have bytes to send.
    pub window: ProgressTimer,
    /// Our SETTINGS were sent and are not acknowledged.
    pub settings: Option<Instant>,
    /// The earliest deadline of the streams' timers.
    pub streams: Option<Instant>,
    /// Streams with an armed timer, which starts at the next known instant.
    pub unstarted: Vec<StreamKey>,
    /// When something was last received, or waiting for it began. `None`: from the next known instant.
    last_received: Option<Instant>,
    /// When the keep-alive PING was sent.
    ping_sent: Option<Instant>,
    /// When the next GOAWAY is due: the announcement, or after it the final one.
    pub go_away_at: Option<Instant>,
    /// The end of input was handled.
    pub eof_seen: bool,
}

impl Timers {
    pub fn new(now: Instant) -> Self {
        Self {
            idle: IdleTimer::Head(now),
            unsent_responses: 0,
            block: None,
            send: ProgressTimer::Off,
            window: ProgressTimer::Off,
            settings: Some(now),
            streams: None,
            unstarted: Vec::new(),
            last_received: Some(now),
            ping_sent: None,
            go_away_at: None,
            eof_seen: false,
        }
    }

    pub fn on_received(&mut self, now: Instant) {
        self.last_received = Some(now);
    }

    /// A request was sent: waiting for its response begins.
    pub fn begin_to_wait(&mut self, now: Instant) {
        self.last_received.get_or_insert(now);
    }

    pub fn stop(&mut self) {
        self.idle = IdleTimer::Off;
        self.block = None;
        self.window.stop();
        self.settings = None;
        self.streams = None;
        self.unstarted.clear();
        self.ping_sent = None;
        self.go_away_at = None;
    }

    /// `n` bytes were sent.
    pub fn on_sent(&mut self, now: Instant, n: usize) {
        if self.unsent_responses == 0 {
            return;
        }
        self.unsent_responses = self.unsent_responses.saturating_sub(n);
        if self.unsent_responses == 0 && matches!(self.idle, IdleTimer::Idle(_)) {
            self.idle = IdleTimer::Idle(now);
        }
    }

    fn has_unstarted(&self) -> bool {
        !self.unstarted.is_empty() || self.window.is_armed()
    }

    /// Handles the acknowledgement of a PING.
    pub fn on_ping_ack(&mut self, data: [u8; 8]) {
        if data == KEEPALIVE_PING {
            self.ping_sent = None;
        }
    }
}

pub(super) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Connection {
    pub fn deadline(&self) -> Option<Instant> {
        let sending = self.timers.send.deadline(&self.limits);
        let other = match self.phase {
            Phase::Closed { .. } => return None,
            Phase::Closing { since, .. } if self.send.pending() == 0 => {
                Some(since + self.linger_timeout())
            }
            Phase::Closing { .. } => None,
            Phase::Open => self.open_deadline(),
        };
        earliest(sending, other)
    }

    fn open_deadline(&self) -> Option<Instant> {
        let timers = &self.timers;
        let since = |since: Option<Instant>, timeout: Option<Duration>| Some(since? + timeout?);
        [
            self.idle_deadline(),
            since(timers.block, self.limits.header_timeout),
            since(timers.settings, self.limits.http2.settings_timeout),
            timers.go_away_at,
            timers.window.deadline(&self.limits),
            timers.streams,
            // Immediately: the timers need an instant to start from.
            timers.has_unstarted().then_some(self.now),
            self.ping_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time for the peer's FIN. A server that stops does not wait long for clients that keep their half open.
    fn linger_timeout(&self) -> Duration {
        if self.side == Side::Server && self.closing {
            self.limits.drain_linger_timeout
        } else {
            self.limits.linger_timeout
        }
    }

    fn idle_deadline(&self) -> Option<Instant> {
        match self.timers.idle {
            // The timer over the peer's reading is the one that counts.
            IdleTimer::Idle(_) if self.timers.unsent_responses > 0 => None,
            timer => timer.deadline(&self.limits),
        }
    }

    fn ping_deadline(&self) -> Option<Instant> {
        match self.timers.ping_sent {
            Some(sent) => Some(sent + self.limits.http2.ping_timeout),
            None if self.is_busy() => {
                Some(self.timers.last_received? + self.limits.http2.ping_interval?)
            }
            None => None,
        }
    }

    /// Sets the time and starts the armed timers.
    pub(super) fn set_now(&mut self, now: Instant) {
        self.now = now;
        if !self.timers.has_unstarted() {
            return;
        }
        self.timers.window.start_if_armed(now);
        while let Some(at) = self.timers.unstarted.pop() {
            let stream = self.streams.get_mut(at);
            stream.recv_timer.start_if_armed(now);
            stream.send_timer.start_if_armed(now);
            let recv = stream.recv_timer.deadline(&self.limits);
            let send = stream.send_timer.deadline(&self.limits);
            let deadline = earliest(recv, send);
            self.timers.streams = earliest(self.timers.streams, deadline);
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_now(now);
        if self.timers.send.is_running() && self.timers.send.expired(now, &self.limits) {
            return self.abort(rules::SLOW_READER);
        }
        match self.phase {
            Phase::Closed { .. } => {}
            Phase::Closing { since, .. } => {
                if self.send.pending() == 0 && now >= since + self.linger_timeout() {
                    self.phase = Phase::Closed { abort: false };
                }
            }
            Phase::Open => self.handle_timeout_while_open(now),
        }
    }

    fn handle_timeout_while_open(&mut self, now: Instant) {
        let has_passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let since = |since: Option<Instant>, timeout: Option<Duration>| Some(since? + timeout?);
        if has_passed(since(self.timers.block, self.limits.header_timeout)) {
            return self.fail_connection(rules::SLOW_HEAD);
        }
        if has_passed(self.idle_deadline()) {
            return self.on_idle_timer_expired();
        }
        if has_passed(since(
            self.timers.settings,
            self.limits.http2.settings_timeout,
        )) {
            return self.fail_connection(rules::SETTINGS_LATE);
        }
        if has_passed(self.timers.window.deadline(&self.limits)) {
            // The streams that waited may have ended.
            self.fill_send_buffer();
        }
        if has_passed(self.timers.window.deadline(&self.limits))
            && self.timers.window.expired(now, &self.limits)
        {
            return self.fail_connection(rules::SLOW_WINDOW);
        }
        if has_passed(self.timers.go_away_at) {
            match self.go_away {
                GoAwayState::None => self.announce_go_away(),
                _ => self.send_final_go_away(),
            }
        }
        if has_passed(self.ping_deadline()) {
            self.send_keepalive_ping();
        }
        if has_passed(self.timers.streams) {
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

    /// Sends a keep-alive PING; fails the connection if the last one was not acknowledged.
    fn send_keepalive_ping(&mut self) {
        if self.timers.ping_sent.is_some() {
            return self.fail_connection(rules::NO_PONG);
        }
        self.timers.ping_sent = Some(self.now);
        self.write_control(|out| frame::ping(out, 0, KEEPALIVE_PING));
    }

    /// Starts the timer for body bytes.
    pub(super) fn watch_body(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        stream.recv_timer.start(self.now);
        let deadline = stream.recv_timer.deadline(&self.limits);
        self.timers.streams = earliest(self.timers.streams, deadline);
    }

    /// Starts the timer for a body that the peer held back until `100 Continue`.
    pub(super) fn watch_awaited_body(&mut self, key: StreamKey) {
        if self.streams.get_mut(key).recv_timer.arm() {
            self.timers.unstarted.push(key);
        }
    }

    /// Starts the timer over a window that blocks a stream.
    pub(super) fn watch_window(&mut self, key: StreamKey) {
        if self.streams.get_mut(key).send_timer.arm() {
            self.timers.unstarted.push(key);
        }
    }

    pub(super) fn watch_connection_window(&mut self) {
        self.timers.window.arm();
    }

    /// Checks the timers of every stream.
    fn check_streams(&mut self, now: Instant) {
        for key in self.streams.iter() {
            if self.phase != Phase::Open {
                return;
            }
            let stream = self.streams.get_mut(key);
            if let Some(discard) = stream.discard
                && (now >= discard.until || stream.recv_timer.expired(now, &self.limits))
            {
                self.stop_discarding(key);
            } else if let Some(fault) = self.is_slow(key, now)
                && let Err(fault) = self.reset_stream(key, fault)
            {
                return self.fail_connection(fault);
            }
        }
        let limits = &self.limits;
        self.timers.streams = self
            .streams
            .iter()
            .filter_map(|key| {
                let stream = self.streams.get(key);
                let recv = stream.recv_timer.deadline(limits);
                let until = stream.discard.map(|discard| discard.until);
                earliest(earliest(recv, until), stream.send_timer.deadline(limits))
            })
            .min();
    }

    fn is_slow(&mut self, key: StreamKey, now: Instant) -> Option<rules::Fault> {
        let stream = self.streams.get_mut(key);
        if stream.recv_timer.expired(now, &self.limits) {
            // A full window is not the peer's fault: the program does not read.
            if stream.exchange.recv_state == RecvState::Body && !stream.recv_window.is_exhausted() {
                return Some(rules::SLOW_BODY);
            }
            stream.recv_timer.start(now);
        }
        if stream.send_timer.expired(now, &self.limits) {
            // With an open window it waits for others, or for the transport, which has its own timer.
            if !stream.can_send() {
                return Some(rules::SLOW_WINDOW);
            }
            stream.send_timer.start(now);
        }
        None
    }

    /// Updates the idle timer after a stream was opened or closed.
    pub(super) fn watch_idleness(&mut self) {
        let is_past_start = !matches!(self.timers.idle, IdleTimer::Head(_) | IdleTimer::Closing(_));
        if self.is_busy() {
            if self.timers.idle != IdleTimer::Off {
                self.timers.last_received = None;
            }
            self.timers.idle = IdleTimer::Off;
            self.timers.unsent_responses = 0;
        } else if is_past_start && self.phase == Phase::Open {
            self.timers.idle = IdleTimer::Idle(self.now);
            self.timers.unsent_responses = self.send.pending();
            self.timers.streams = None;
        }
        self.close_if_drained();
    }
}
