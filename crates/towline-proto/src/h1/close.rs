//! How exchanges and the connection end: in order, or because somebody broke a rule.

use std::sync::Arc;
use std::time::Instant;

use crate::timer::HeadTimer;
use crate::{ConnectionError, Side};

use super::{Connection, PendingEvents, Phase, RecvState, SendState, rules};

impl Connection {
    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.begin_pipelined();
        self.now = now;
        self.eof = true;
        if self.has_unread_response() {
            // Often the answer of a server that refused an upload and closed.
            self.transport_error.get_or_insert(rule);
            self.send.clear();
            return;
        }
        if self.phase == Phase::Open {
            self.fail(rules::aborted(rule));
        }
        self.send.clear();
        self.phase = Phase::Closed { abort: false };
    }

    fn has_unread_response(&self) -> bool {
        let is_due = !matches!(
            self.recv_state,
            RecvState::Idle | RecvState::Complete | RecvState::Failed
        );
        self.side == Side::Client && self.phase == Phase::Open && is_due && !self.recv.is_empty()
    }

    /// Nothing more comes, and something was missing.
    pub(super) fn truncated(&self, rule: ConnectionError) -> ConnectionError {
        self.transport_error.map_or(rule, rules::aborted)
    }

    pub(super) fn try_end_exchange(&mut self) {
        if matches!(self.recv_state, RecvState::Complete) && self.send_state == SendState::Complete
        {
            self.end_exchange();
        }
    }

    pub(super) fn end_exchange(&mut self) {
        let last = !self.exchange.keep_alive || self.closing;
        match self.side {
            _ if last => return self.close_gracefully(rules::DONE),
            // Left as it is until the next event is asked for: what has ended may still be looked at.
            Side::Client if self.has_pipelined() => self.recv_state = RecvState::Idle,
            // The response itself is complete and in order; only the connection is of no use any more.
            Side::Client if !self.recv.is_empty() => {
                return self.close_gracefully(rules::UNSOLICITED);
            }
            Side::Client if self.eof => return self.close_gracefully(rules::DONE),
            Side::Server if self.eof && self.recv.is_empty() => {
                return self.close_gracefully(rules::DONE);
            }
            Side::Client => self.recv_state = RecvState::Idle,
            Side::Server => self.recv_state = RecvState::Head,
        }
        self.send_state = SendState::Idle;
        self.head_timer = if self.recv.is_empty() {
            HeadTimer::Idle(self.now)
        } else {
            HeadTimer::Head(self.now)
        };
    }

    /// The end in order: what is queued leaves, and nothing more is read.
    pub(super) fn close_gracefully(&mut self, error: ConnectionError) {
        self.set_closed(error);
        self.phase = match self.side {
            Side::Client => Phase::Closed { abort: false },
            Side::Server => Phase::Closing {
                since: self.now,
                lingered: 0,
            },
        };
    }

    /// The end without a word.
    pub(super) fn close_now(&mut self, error: ConnectionError) {
        self.set_closed(error);
        self.phase = Phase::Closed { abort: false };
    }

    /// The end because nothing else can be done: queued bytes are lost.
    pub(super) fn abort(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open {
            self.fail_exchange();
            self.set_closed(error);
        }
        self.send.clear();
        self.phase = Phase::Closed { abort: true };
    }

    /// The peer (or the clock) broke a rule: answer it where an answer can still be given, then close.
    #[cold]
    pub(super) fn fail(&mut self, error: ConnectionError) {
        if self.phase != Phase::Open {
            return;
        }
        // A response that ends by closing must not seem to have ended.
        let abort = self.send_state == SendState::UntilClose;
        if self.side == Side::Server && matches!(self.send_state, SendState::Idle | SendState::Head)
        {
            self.send_error_response(&error);
        }
        self.fail_exchange();
        self.close_gracefully(error);
        if abort {
            self.phase = Phase::Closed { abort };
        }
    }

    pub(super) fn fail_exchange(&mut self) {
        if self.exchange_is_open() {
            self.pending.set(PendingEvents::FAILED);
        }
        self.recv_state = RecvState::Failed;
        self.send_state = SendState::Failed;
    }

    pub(super) fn set_closed(&mut self, error: ConnectionError) {
        self.error.get_or_insert_with(|| Arc::new(error));
        self.pending.set(PendingEvents::CLOSED);
        self.head_timer = HeadTimer::Off;
        self.recv_timer.stop();
        self.recv.clear();
    }
}
