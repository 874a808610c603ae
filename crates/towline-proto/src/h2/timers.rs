//! Timeouts, and the actions when they expire.

use std::time::{Duration, Instant};

use crate::idle_timer::IdleTimer;
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::timers::earliest;
use crate::multiplexed::{Lifecycle, Timing};
use crate::progress_timer::ProgressTimer;

use super::frame;
use super::rules::{self, Fault};
use super::{Connection, GoAwayState, Phase};

/// Payloads of our PINGs: the keep-alive, and the one after the announcing GOAWAY.
pub(super) const KEEPALIVE_PING: [u8; 8] = *b"alive? \0";
/// Follows the end of a request that was skipped.
pub(super) const SKIPPED_PING: [u8; 8] = *b"skipped\0";
pub(super) const GO_AWAY_PING: [u8; 8] = *b"leaving\0";

/// The timers of a connection.
#[derive(Debug)]
pub(super) struct Timers {
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
    /// When something was last received, or waiting for it began. `None`: from the next known instant.
    last_received: Option<Instant>,
    /// When the keep-alive PING was sent.
    ping_sent: Option<Instant>,
    /// The end of input was handled.
    pub eof_seen: bool,
}

impl Timers {
    pub fn new(now: Instant) -> Self {
        Self {
            unsent_responses: 0,
            block: None,
            send: ProgressTimer::Off,
            window: ProgressTimer::Off,
            settings: Some(now),
            last_received: Some(now),
            ping_sent: None,
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
        self.block = None;
        self.window.stop();
        self.settings = None;
        self.ping_sent = None;
    }

    /// `n` bytes were sent; whether they were the last ones of responses.
    pub fn on_sent(&mut self, n: usize) -> bool {
        if self.unsent_responses == 0 {
            return false;
        }
        self.unsent_responses = self.unsent_responses.saturating_sub(n);
        self.unsent_responses == 0
    }

    /// Waiting for a response begins at the next known instant.
    pub fn wait_later(&mut self) {
        self.last_received = None;
    }

    /// Handles the acknowledgement of a PING.
    pub fn on_ping_ack(&mut self, data: [u8; 8]) {
        if data == KEEPALIVE_PING {
            self.ping_sent = None;
        }
    }
}

impl Connection {
    pub fn deadline(&self) -> Option<Instant> {
        let sending = self.timers.send.deadline(self.core.limits());
        let other = match self.phase {
            Phase::Closed { .. } => return None,
            Phase::Closing { since, .. } if self.output.pending() == 0 => {
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
            since(timers.block, self.core.limits().header_timeout),
            since(timers.settings, self.core.limits().http2.settings_timeout),
            self.core.timers().go_away_at(),
            timers.window.deadline(self.core.limits()),
            self.core.timers().streams(),
            // Immediately: the timers need an instant to start from.
            self.has_unstarted().then_some(self.core.now()),
            self.ping_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time for the peer's FIN. A server that stops does not wait long for clients that keep their half open.
    fn linger_timeout(&self) -> Duration {
        if self.core.is_server() && self.core.is_closing() {
            self.core.limits().drain_linger_timeout
        } else {
            self.core.limits().linger_timeout
        }
    }

    fn has_unstarted(&self) -> bool {
        self.core.timers().has_unstarted() || self.timers.window.is_armed()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        match self.core.timers().idle() {
            // The timer over the peer's reading is the one that counts.
            IdleTimer::Idle(_) if self.timers.unsent_responses > 0 => None,
            timer => timer.deadline(self.core.limits()),
        }
    }

    fn ping_deadline(&self) -> Option<Instant> {
        match self.timers.ping_sent {
            Some(sent) => Some(sent + self.core.limits().http2.ping_timeout),
            None if self.core.is_busy() => {
                Some(self.timers.last_received? + self.core.limits().http2.ping_interval?)
            }
            None => None,
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_now(now);
        if self.timers.send.is_running() && self.timers.send.expired(now, self.core.limits()) {
            return self.abort(rules::SLOW_READER);
        }
        match self.phase {
            Phase::Closed { .. } => {}
            Phase::Closing { since, .. } => {
                if self.output.pending() == 0 && now >= since + self.linger_timeout() {
                    self.phase = Phase::Closed { abort: false };
                }
            }
            Phase::Open => self.handle_timeout_while_open(now),
        }
    }

    fn handle_timeout_while_open(&mut self, now: Instant) {
        let has_passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let since = |since: Option<Instant>, timeout: Option<Duration>| Some(since? + timeout?);
        if has_passed(since(self.timers.block, self.core.limits().header_timeout)) {
            return self.fail_connection(rules::SLOW_HEAD);
        }
        if has_passed(self.idle_deadline()) {
            return self.on_idle_timer_expired();
        }
        if has_passed(since(
            self.timers.settings,
            self.core.limits().http2.settings_timeout,
        )) {
            return self.fail_connection(rules::SETTINGS_LATE);
        }
        if has_passed(self.timers.window.deadline(self.core.limits())) {
            // The streams that waited may have ended.
            self.fill_send_buffer();
        }
        if has_passed(self.timers.window.deadline(self.core.limits()))
            && self.timers.window.expired(now, self.core.limits())
        {
            return self.fail_connection(rules::SLOW_WINDOW);
        }
        if has_passed(self.core.timers().go_away_at()) {
            match self.go_away.own {
                GoAwayState::None => self.announce_go_away(),
                _ => self.send_final_go_away(),
            }
        }
        if has_passed(self.ping_deadline()) {
            self.send_keepalive_ping();
        }
        if has_passed(self.core.timers().streams()) {
            self.check_streams(now);
        }
    }

    /// Sends a keep-alive PING; fails the connection if the last one was not acknowledged.
    fn send_keepalive_ping(&mut self) {
        if self.timers.ping_sent.is_some() {
            return self.fail_connection(rules::NO_PONG);
        }
        self.timers.ping_sent = Some(self.core.now());
        self.write_control(|out| frame::ping(out, 0, KEEPALIVE_PING));
    }

    /// Starts the timer over a window that blocks a stream.
    pub(super) fn watch_window(&mut self, key: StreamKey) {
        if self.core.stream_mut(key).send_timer.arm() {
            self.core.timers_mut().start_later(key);
        }
    }

    pub(super) fn watch_connection_window(&mut self) {
        self.timers.window.arm();
    }
}

impl Timing for Connection {
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.timers.window.start_if_armed(now);
        self.core.set_now(now);
    }

    fn late_head(&mut self, _key: StreamKey, _now: Instant) -> Option<Fault> {
        None
    }

    fn awaits_peer(&self, key: StreamKey) -> bool {
        !self.core.stream(key).own.recv_window.is_exhausted()
    }

    fn is_held_back(&self, key: StreamKey) -> bool {
        !self.core.stream(key).can_send()
    }
}
