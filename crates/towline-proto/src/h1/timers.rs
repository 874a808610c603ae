//! Deadlines of a connection, and what happens when they pass.

use std::time::Instant;

use crate::Side;
use crate::idle_timer::IdleTimer;
use crate::progress_timer::ProgressTimer;

use super::{Connection, Phase, rules};

/// The timers of a connection.
#[derive(Debug)]
pub(super) struct Timers {
    /// Timer of the next head, or of an idle connection.
    pub idle: IdleTimer,
    /// Timer of the body that is received.
    pub recv: ProgressTimer,
    /// Timer of the peer's reading. It exists only while the kernel has no room for pending bytes.
    pub send: Option<Box<ProgressTimer>>,
    /// End of the time for input that nobody reads: the rest of a body, or what comes after our FIN.
    pub discard_until: Instant,
}

impl Timers {
    pub fn new(idle: IdleTimer, now: Instant) -> Self {
        Self {
            idle,
            recv: ProgressTimer::Off,
            send: None,
            discard_until: now,
        }
    }

    /// A write took `n` bytes and left others. The first one that takes nothing starts the timer.
    pub fn wrote_part(&mut self, now: Instant, n: usize) {
        match &mut self.send {
            Some(timer) if n > 0 => timer.advance(now, n),
            None if n == 0 => self.send = Some(Box::new(ProgressTimer::started(now))),
            _ => {}
        }
    }
}

impl Connection {
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        let sending = self.timers.send.as_mut();
        if sending.is_some_and(|timer| timer.expired(now, &self.limits)) {
            return self.abort(rules::SLOW_READER);
        }
        match self.phase {
            Phase::Closed { .. } => {}
            Phase::Closing { since } => {
                if self.send.pending() == 0 && now >= self.linger_deadline(since) {
                    self.phase = Phase::Closed { abort: false };
                }
            }
            Phase::Open => self.handle_timeout_while_open(now),
        }
    }

    fn handle_timeout_while_open(&mut self, now: Instant) {
        let is_slow = self.awaits_body() && self.timers.recv.expired(now, &self.limits);
        if self.is_discarding_body() && (is_slow || now >= self.timers.discard_until) {
            self.close_gracefully(rules::UNREAD_BODY);
            self.timers.discard_until = self.linger_deadline(now);
            return;
        }
        if is_slow {
            return self.fail(rules::SLOW_BODY);
        }
        if !self.awaits_head() || self.idle_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.timers.idle {
            IdleTimer::Idle(_) => self.close_now(rules::IDLE),
            IdleTimer::Draining(_) => self.close_now(rules::DONE),
            _ if self.recv.is_empty() && self.side == Side::Server => self.close_now(rules::SILENT),
            _ => self.fail(rules::SLOW_HEAD),
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        let sending = self.timers.send.as_ref();
        let sending = sending.and_then(|timer| timer.deadline(&self.limits));
        let receiving = match self.phase {
            Phase::Closed { .. } => return None,
            Phase::Closing { since } if self.send.pending() == 0 => {
                Some(self.linger_deadline(since))
            }
            Phase::Open if self.awaits_head() => self.idle_deadline(),
            Phase::Open if self.is_discarding_body() => {
                let silent = self.timers.recv.deadline(&self.limits);
                Some(silent.map_or(self.timers.discard_until, |at| {
                    at.min(self.timers.discard_until)
                }))
            }
            Phase::Open if self.awaits_body() => self.timers.recv.deadline(&self.limits),
            Phase::Closing { .. } | Phase::Open => None,
        };
        match (sending, receiving) {
            (Some(sending), Some(receiving)) => Some(sending.min(receiving)),
            (one, other) => one.or(other),
        }
    }

    /// Deadline of the next head. While responses wait to be sent, the timer over the peer's reading is the
    /// one that counts: neither idleness nor a slow head can be distinguished from it.
    fn idle_deadline(&self) -> Option<Instant> {
        match self.timers.idle {
            IdleTimer::Idle(_) | IdleTimer::Draining(_) if self.send.pending() > 0 => None,
            _ if self.is_send_backlogged() => None,
            timer => timer.deadline(&self.limits),
        }
    }
}
