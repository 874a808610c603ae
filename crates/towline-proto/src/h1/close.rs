//! How exchanges and the connection end: in order, or because somebody broke a rule.

use std::sync::Arc;
use std::time::Instant;

use crate::timer::HeadClock;
use crate::{ConnectionError, Side};

use super::{Connection, Incoming, Notices, Outgoing, Phase, rules};

impl Connection {
    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.begin_ahead();
        self.now = now;
        self.eof = true;
        if self.has_unread_response() {
            // Often the answer of a server that refused an upload and closed.
            self.broken.get_or_insert(rule);
            self.send.clear();
            return;
        }
        if self.phase == Phase::Open {
            self.violate(rules::aborted(rule));
        }
        self.send.clear();
        self.phase = Phase::Closed { abort: false };
    }

    fn has_unread_response(&self) -> bool {
        let is_due = !matches!(
            self.incoming,
            Incoming::Idle | Incoming::Complete | Incoming::Failed
        );
        self.side == Side::Client && self.phase == Phase::Open && is_due && !self.recv.is_empty()
    }

    /// Nothing more comes, and something was missing.
    pub(super) fn truncated(&self, rule: ConnectionError) -> ConnectionError {
        self.broken.map_or(rule, rules::aborted)
    }

    pub(super) fn try_end_exchange(&mut self) {
        if matches!(self.incoming, Incoming::Complete) && self.outgoing == Outgoing::Complete {
            self.end_exchange();
        }
    }

    pub(super) fn end_exchange(&mut self) {
        let last = !self.exchange.keep_alive || self.closing;
        match self.side {
            _ if last => return self.shut(rules::DONE),
            // Left as it is until the next event is asked for: what has ended may still be looked at.
            Side::Client if self.has_ahead() => self.incoming = Incoming::Idle,
            // The response itself is complete and in order; only the connection is of no use any more.
            Side::Client if !self.recv.is_empty() => return self.shut(rules::UNSOLICITED),
            Side::Client if self.eof => return self.shut(rules::DONE),
            Side::Server if self.eof && self.recv.is_empty() => return self.shut(rules::DONE),
            Side::Client => self.incoming = Incoming::Idle,
            Side::Server => self.incoming = Incoming::Head,
        }
        self.outgoing = Outgoing::Idle;
        self.head_clock = if self.recv.is_empty() {
            HeadClock::Idle(self.now)
        } else {
            HeadClock::Head(self.now)
        };
    }

    /// The end in order: what is queued leaves, and nothing more is read.
    pub(super) fn shut(&mut self, error: ConnectionError) {
        self.close_with(error);
        self.phase = match self.side {
            Side::Client => Phase::Closed { abort: false },
            Side::Server => Phase::Closing {
                since: self.now,
                lingered: 0,
            },
        };
    }

    /// The end without a word.
    pub(super) fn vanish(&mut self, error: ConnectionError) {
        self.close_with(error);
        self.phase = Phase::Closed { abort: false };
    }

    /// The end because nothing else can be done: queued bytes are lost.
    pub(super) fn abandon(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open {
            self.fail_exchange();
            self.close_with(error);
        }
        self.send.clear();
        self.phase = Phase::Closed { abort: true };
    }

    /// The peer (or the clock) broke a rule: answer it where an answer can still be given, then close.
    #[cold]
    pub(super) fn violate(&mut self, error: ConnectionError) {
        if self.phase != Phase::Open {
            return;
        }
        // A response that ends by closing must not seem to have ended.
        let abort = self.outgoing == Outgoing::UntilClose;
        if self.side == Side::Server && matches!(self.outgoing, Outgoing::Idle | Outgoing::Head) {
            self.refuse(&error);
        }
        self.fail_exchange();
        self.shut(error);
        if abort {
            self.phase = Phase::Closed { abort };
        }
    }

    pub(super) fn fail_exchange(&mut self) {
        if self.exchange_is_open() {
            self.notices.set(Notices::FAILED);
        }
        self.incoming = Incoming::Failed;
        self.outgoing = Outgoing::Failed;
    }

    pub(super) fn close_with(&mut self, error: ConnectionError) {
        self.error.get_or_insert_with(|| Arc::new(error));
        self.notices.set(Notices::CLOSED);
        self.head_clock = HeadClock::Off;
        self.recv_clock.stop();
        self.recv.clear();
    }
}
