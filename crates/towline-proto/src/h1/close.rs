//! Ends of exchanges and of the connection: orderly, or after a violation.

use std::time::{Duration, Instant};

use crate::error::{CloseReason, ErrorSource};
use crate::idle_timer::IdleTimer;
use crate::{ConnectionError, Protocol, Refusal, RefusedLine, Side, StreamId};

use super::{Connection, Ending, PendingEvents, Phase, RecvState, SendState, rules};

impl Connection {
    pub fn drain(&mut self, now: Instant) {
        if self.side == Side::Client {
            return self.close();
        }
        self.now = now;
        if self.ending == Ending::None {
            self.ending = Ending::Drain;
            self.shorten_discarding();
        }
        if self.phase == Phase::Open && self.awaits_head() && self.recv.is_empty() {
            self.timers.idle = IdleTimer::Draining(now);
        }
    }

    pub fn close(&mut self) {
        self.ending = Ending::Close;
        self.shorten_discarding();
        if self.phase == Phase::Open && self.is_discarding_body() {
            // Draining is only useful for the next exchange, and there will be none.
            return self.close_gracefully(rules::UNREAD_BODY);
        }
        if self.phase != Phase::Open || self.exchange_is_open() || !self.recv.is_empty() {
            return;
        }
        if let (Side::Server, Some(closing)) = (self.side, self.timers.idle.closing()) {
            self.timers.idle = closing;
            return;
        }
        match self.recv_state {
            RecvState::Head | RecvState::Idle if self.send.pending() == 0 => {
                self.close_now(rules::DONE);
            }
            RecvState::Head | RecvState::Idle => self.close_gracefully(rules::DONE),
            _ => {}
        }
    }

    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.begin_pipelined();
        self.now = now;
        self.eof = true;
        if self.has_unread_response() {
            // Often the response of a server that refused an upload and closed.
            self.failure.record_transport(rule);
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

    /// The error for input that ended too early: the transport's failure, if there was one.
    pub(super) fn truncated(&self, rule: ConnectionError) -> ConnectionError {
        self.failure.transport().map_or(rule, rules::aborted)
    }

    pub(super) fn try_end_exchange(&mut self) {
        if matches!(self.recv_state, RecvState::Complete) && self.send_state == SendState::Complete
        {
            self.end_exchange();
        }
    }

    pub(super) fn end_exchange(&mut self) {
        // While draining, a response that did not announce the end may be followed by one more exchange.
        let last = !self.exchange.keep_alive || self.ending == Ending::Close;
        match self.side {
            _ if last => return self.close_gracefully(rules::DONE),
            // Unchanged until the next call of `next_event`: the exchange that has ended may still be
            // accessed.
            Side::Client if self.has_pipelined() => self.recv_state = RecvState::Idle,
            // The response itself is complete and valid; only the connection cannot be reused.
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
        self.timers.idle = match self.ending {
            _ if !self.recv.is_empty() => IdleTimer::Head(self.now),
            Ending::Drain => IdleTimer::Draining(self.now),
            Ending::None | Ending::Close => IdleTimer::Idle(self.now),
        };
    }

    /// Time for the peer's FIN, which starts anew with each byte that comes before it. A server that stops does not
    /// wait long for clients that keep their half open.
    pub(super) fn linger_deadline(&self, since: Instant) -> Instant {
        let silence = match self.ending {
            Ending::None => self.limits.linger_timeout,
            Ending::Drain | Ending::Close => self.limits.drain_linger_timeout,
        };
        self.timers.discard_until.min(since + silence)
    }

    /// Time for all the input that nobody reads.
    pub(super) fn discard_timeout(&self) -> Duration {
        match self.ending {
            Ending::None => self.limits.discard_timeout,
            Ending::Drain => self.limits.drain_idle_timeout,
            Ending::Close => self.limits.drain_linger_timeout,
        }
    }

    /// Allows less time for it after `ending` has changed.
    fn shorten_discarding(&mut self) {
        let latest = self.now + self.discard_timeout();
        self.timers.discard_until = self.timers.discard_until.min(latest);
    }

    /// Orderly end: queued bytes are sent, and nothing more is read.
    pub(super) fn close_gracefully(&mut self, error: ConnectionError) {
        self.set_closed(error);
        self.timers.discard_until = self.now + self.discard_timeout();
        self.phase = match self.side {
            Side::Client => Phase::Closed { abort: false },
            Side::Server => Phase::Closing { since: self.now },
        };
    }

    /// Closes without sending anything.
    pub(super) fn close_now(&mut self, error: ConnectionError) {
        self.set_closed(error);
        self.phase = Phase::Closed { abort: false };
    }

    /// Closes by reset: queued bytes are lost.
    pub(super) fn abort(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open {
            self.record_refusal(&error);
            self.fail_exchange();
            self.set_closed(error);
        }
        self.send.clear();
        self.phase = Phase::Closed { abort: true };
    }

    /// Handles a violation or a timeout: sends an error response where one can still be sent, then closes.
    #[cold]
    pub(super) fn fail(&mut self, error: ConnectionError) {
        if self.phase != Phase::Open {
            return;
        }
        self.record_refusal(&error);
        // A response that is delimited by closing must not look complete.
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

    /// Keeps what the program's logs need of a fault of the client. A client that goes away refuses nothing.
    fn record_refusal(&mut self, error: &ConnectionError) {
        if self.side == Side::Client
            || error.source != ErrorSource::Peer
            || error.reason == CloseReason::Aborted
        {
            return;
        }
        let is_in_head = matches!(self.recv_state, RecvState::Head);
        let responds = matches!(self.send_state, SendState::Idle | SendState::Head);
        self.failure.refuse(Refusal {
            stream: (!is_in_head).then_some(StreamId(self.exchange.id)),
            status: if responds { error.status } else { 0 },
            reason: error.reason,
            rule: error.rule,
            protocol: Protocol::Http1,
            line: if is_in_head {
                self.refused_line()
            } else {
                RefusedLine::default()
            },
        });
    }

    /// The line of the head in the receive buffer.
    fn refused_line(&self) -> RefusedLine {
        let bytes = self.recv.unread();
        let parser = self.recv.head().map(|head| &head.parser);
        let Some(parser) =
            parser.filter(|parser| parser.has_start_line() && !bytes.starts_with(b"\r"))
        else {
            return RefusedLine::guess(bytes);
        };
        let line = &parser.line;
        let text = |at: u32, len: u32| {
            let range = at as usize..(at + len) as usize;
            bytes.get(range).unwrap_or_default()
        };
        RefusedLine::new(
            text(line.method, line.method_len),
            text(line.target, line.target_len),
            Some(line.version),
        )
    }

    pub fn has_refusals(&self) -> bool {
        self.failure.has_refusal()
    }

    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.failure.take_refusal()
    }

    /// The fault that has ended the exchange `id`: its status (0: no response was sent) and its rule.
    pub fn refusal_of(&self, id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        self.failure.refusal_of(id)
    }

    pub(super) fn fail_exchange(&mut self) {
        if self.exchange_is_open() {
            self.pending.set(PendingEvents::FAILED);
        }
        self.recv_state = RecvState::Failed;
        self.send_state = SendState::Failed;
    }

    pub(super) fn set_closed(&mut self, error: ConnectionError) {
        self.failure.record(error);
        self.pending.set(PendingEvents::CLOSED);
        self.timers.idle = IdleTimer::Off;
        self.timers.recv.stop();
        self.recv.clear();
    }
}
