//! Time: what is overdue, and what is done about it.

use std::time::{Duration, Instant};

use crate::timer::{HeadClock, Progress};

use super::frame;
use super::rules;
use super::stream::Receiving;
use super::streams::At;
use super::{Connection, Phase};

/// What we ask to see whether the peer is there, and when all it sent before our GOAWAY has come.
pub(super) const ALIVE: [u8; 8] = *b"alive? \0";
pub(super) const LEAVING: [u8; 8] = *b"leaving\0";

/// The clocks of a connection.
#[derive(Debug)]
pub(super) struct Clocks {
    /// The first frames, or idleness.
    pub head: HeadClock,
    /// Bytes of answers that had not left when the connection became idle: with the last of them its rest
    /// begins. What is sent later answers control frames, which prolong nothing.
    pub unsent_answers: usize,
    /// A header block began and has not ended.
    pub block: Option<Instant>,
    /// The peer takes what we send.
    pub send: Progress,
    /// The connection's window is shut while streams want to send.
    pub window: Progress,
    /// Our SETTINGS left and are not acknowledged.
    pub settings: Option<Instant>,
    /// No stream's clock expires before.
    pub streams: Option<Instant>,
    /// Streams with a clock that starts when the time is told.
    pub untold: Vec<At>,
    /// Something was received last, or the wait for it began. `None`: it begins when the time is known.
    heard: Option<Instant>,
    /// Asked at that time whether it is there.
    asked: Option<Instant>,
    /// Told at that time that we leave.
    pub left: Option<Instant>,
    /// The end of input has been dealt with.
    pub eof_seen: bool,
}

impl Clocks {
    pub fn new(now: Instant) -> Self {
        Self {
            head: HeadClock::Head(now),
            unsent_answers: 0,
            block: None,
            send: Progress::Off,
            window: Progress::Off,
            settings: Some(now),
            streams: None,
            untold: Vec::new(),
            heard: Some(now),
            asked: None,
            left: None,
            eof_seen: false,
        }
    }

    pub fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// A request leaves: from here on its answer is waited for.
    pub fn begin_to_wait(&mut self, now: Instant) {
        self.heard.get_or_insert(now);
    }

    pub fn stop(&mut self) {
        self.head = HeadClock::Off;
        self.block = None;
        self.window.stop();
        self.settings = None;
        self.streams = None;
        self.untold.clear();
        self.asked = None;
        self.left = None;
    }

    /// `n` bytes have left.
    pub fn answers_left(&mut self, now: Instant, n: usize) {
        if self.unsent_answers == 0 {
            return;
        }
        self.unsent_answers = self.unsent_answers.saturating_sub(n);
        if self.unsent_answers == 0 && matches!(self.head, HeadClock::Idle(_)) {
            self.head = HeadClock::Idle(now);
        }
    }

    fn are_untold(&self) -> bool {
        !self.untold.is_empty() || self.window.is_due()
    }

    /// The answer to one of our questions.
    pub fn answered(&mut self, data: [u8; 8]) {
        if data == ALIVE {
            self.asked = None;
        }
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
        let sending = self.clocks.send.deadline(&self.limits);
        let other = match self.phase {
            Phase::Closed { .. } => return None,
            Phase::Closing { since, .. } if self.send.pending() == 0 => {
                Some(since + self.limits.linger_timeout)
            }
            Phase::Closing { .. } => None,
            Phase::Open => self.open_deadline(),
        };
        earliest(sending, other)
    }

    fn open_deadline(&self) -> Option<Instant> {
        let clocks = &self.clocks;
        let since = |since: Option<Instant>, timeout: Option<Duration>| Some(since? + timeout?);
        [
            self.head_deadline(),
            since(clocks.block, self.limits.header_timeout),
            since(clocks.settings, self.limits.http2.settings_timeout),
            since(clocks.left, Some(self.limits.parting_timeout)),
            clocks.window.deadline(&self.limits),
            clocks.streams,
            // At once: somebody has to tell the time.
            clocks.are_untold().then_some(self.now),
            self.ping_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn head_deadline(&self) -> Option<Instant> {
        match self.clocks.head {
            // The clock over the peer's reading is the one that counts.
            HeadClock::Idle(_) if self.clocks.unsent_answers > 0 => None,
            clock => clock.deadline(&self.limits),
        }
    }

    fn ping_deadline(&self) -> Option<Instant> {
        match self.clocks.asked {
            Some(asked) => Some(asked + self.limits.http2.ping_timeout),
            None if self.is_busy() => Some(self.clocks.heard? + self.limits.http2.ping_interval?),
            None => None,
        }
    }

    /// The time is `now`: clocks that the program has set begin to run.
    pub(super) fn tell(&mut self, now: Instant) {
        self.now = now;
        if !self.clocks.are_untold() {
            return;
        }
        self.clocks.window.told(now);
        while let Some(at) = self.clocks.untold.pop() {
            let stream = self.streams.at_mut(at);
            stream.recv_clock.told(now);
            stream.send_clock.told(now);
            let recv = stream.recv_clock.deadline(&self.limits);
            let send = stream.send_clock.deadline(&self.limits);
            let deadline = earliest(recv, send);
            self.clocks.streams = earliest(self.clocks.streams, deadline);
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.tell(now);
        if self.clocks.send.is_running() && self.clocks.send.expired(now, &self.limits) {
            return self.abandon(rules::SLOW_READER);
        }
        match self.phase {
            Phase::Closed { .. } => {}
            Phase::Closing { since, .. } => {
                if self.send.pending() == 0 && now >= since + self.limits.linger_timeout {
                    self.phase = Phase::Closed { abort: false };
                }
            }
            Phase::Open => self.handle_open_timeout(now),
        }
    }

    fn handle_open_timeout(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let since = |since: Option<Instant>, timeout: Option<Duration>| Some(since? + timeout?);
        if is_due(since(self.clocks.block, self.limits.header_timeout)) {
            return self.end_with(rules::SLOW_HEAD);
        }
        if is_due(self.head_deadline()) {
            return self.head_is_overdue();
        }
        if is_due(since(
            self.clocks.settings,
            self.limits.http2.settings_timeout,
        )) {
            return self.end_with(rules::SETTINGS_LATE);
        }
        if is_due(self.clocks.window.deadline(&self.limits)) {
            // The streams that waited may be gone.
            self.pump();
        }
        if is_due(self.clocks.window.deadline(&self.limits))
            && self.clocks.window.expired(now, &self.limits)
        {
            return self.end_with(rules::SLOW_WINDOW);
        }
        if is_due(since(self.clocks.left, Some(self.limits.parting_timeout))) {
            self.leave();
        }
        if is_due(self.ping_deadline()) {
            self.ask();
        }
        if is_due(self.clocks.streams) {
            self.check_streams(now);
        }
    }

    fn head_is_overdue(&mut self) {
        match self.clocks.head {
            HeadClock::Head(_) => self.end_with(rules::SILENT),
            HeadClock::Idle(_) => self.shut(rules::IDLE),
            HeadClock::Parting(_) => self.shut(rules::DONE),
            HeadClock::Off => {}
        }
    }

    /// Is the peer there? Not, when it has not answered the last time.
    fn ask(&mut self) {
        if self.clocks.asked.is_some() {
            return self.end_with(rules::NO_PONG);
        }
        self.clocks.asked = Some(self.now);
        self.write_control(|out| frame::ping(out, 0, ALIVE));
    }

    /// Begins to wait for body bytes.
    pub(super) fn watch_body(&mut self, at: At) {
        let stream = self.streams.at_mut(at);
        stream.recv_clock.start(self.now);
        let deadline = stream.recv_clock.deadline(&self.limits);
        self.clocks.streams = earliest(self.clocks.streams, deadline);
    }

    /// The program has asked for a body that the peer holds back until then.
    pub(super) fn watch_awaited_body(&mut self, at: At) {
        if self.streams.at_mut(at).recv_clock.start_when_told() {
            self.clocks.untold.push(at);
        }
    }

    /// The peer's window holds a stream back.
    pub(super) fn watch_window(&mut self, at: At) {
        if self.streams.at_mut(at).send_clock.start_when_told() {
            self.clocks.untold.push(at);
        }
    }

    pub(super) fn watch_connection_window(&mut self) {
        self.clocks.window.start_when_told();
    }

    /// Looks at the clock of every stream.
    fn check_streams(&mut self, now: Instant) {
        for at in self.streams.iter() {
            if self.phase != Phase::Open {
                return;
            }
            if let Some(fault) = self.is_slow(at, now)
                && let Err(fault) = self.break_stream(at, fault)
            {
                return self.end_with(fault);
            }
        }
        let limits = &self.limits;
        self.clocks.streams = self
            .streams
            .iter()
            .filter_map(|at| {
                let stream = self.streams.at(at);
                earliest(
                    stream.recv_clock.deadline(limits),
                    stream.send_clock.deadline(limits),
                )
            })
            .min();
    }

    fn is_slow(&mut self, at: At, now: Instant) -> Option<rules::Fault> {
        let stream = self.streams.at_mut(at);
        if stream.recv_clock.expired(now, &self.limits) {
            // A full window is our fault: nobody reads.
            if stream.receiving == Receiving::Body && !stream.recv_window.is_shut() {
                return Some(rules::SLOW_BODY);
            }
            stream.recv_clock.start(now);
        }
        if stream.send_clock.expired(now, &self.limits) {
            // With an open window it waits for others, or for the transport, which has its own clock.
            if !stream.can_send() {
                return Some(rules::SLOW_WINDOW);
            }
            stream.send_clock.start(now);
        }
        None
    }

    /// A stream has come or gone.
    pub(super) fn watch_idleness(&mut self) {
        let is_past_start = !matches!(self.clocks.head, HeadClock::Head(_) | HeadClock::Parting(_));
        if self.is_busy() {
            if self.clocks.head != HeadClock::Off {
                self.clocks.heard = None;
            }
            self.clocks.head = HeadClock::Off;
            self.clocks.unsent_answers = 0;
        } else if is_past_start && self.phase == Phase::Open {
            self.clocks.head = HeadClock::Idle(self.now);
            self.clocks.unsent_answers = self.send.pending();
            self.clocks.streams = None;
        }
        self.check_left();
    }
}
