//! The life of a connection and of its streams over HTTP/2 and HTTP/3, on top of what each of them does by itself.

use std::sync::Arc;
use std::time::Instant;

use crate::error::CloseReason;
use crate::pending_events::PendingEvents;
use crate::{ConnectionError, Refusal, Side, StreamId, UserError};

use super::core::Core;
use super::fault::Fault;
use super::refusals::Refused;
use super::states::{EndStream, SendState};
use super::stream::{Number, Part, Variant};
use super::streams::StreamKey;
use super::timers::Idleness;

/// A connection of HTTP/2 or HTTP/3. The required methods are those in which the protocols differ.
pub(crate) trait Multiplexed {
    type Variant: Variant;

    fn core(&self) -> &Core<Self::Variant>;

    fn core_mut(&mut self) -> &mut Core<Self::Variant>;

    /// Neither closing nor closed.
    fn is_open(&self) -> bool;

    /// Number of requests that can be in flight at once; 0: no more can be started.
    fn stream_limit(&self) -> usize;

    #[inline]
    fn side(&self) -> Side {
        self.core().side()
    }

    /// Whether the server accepts an extended CONNECT; `None`: its SETTINGS have not arrived.
    #[inline]
    fn extended_connect(&self) -> Option<bool> {
        self.core().extended_connect()
    }

    #[inline]
    fn response_started(&self) -> bool {
        self.core().response_started()
    }

    #[inline]
    fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.core().error()
    }

    /// Number of requests that can be started now.
    #[inline]
    fn stream_capacity(&self) -> usize {
        self.stream_limit()
            .saturating_sub(self.core().open_streams())
    }

    #[inline]
    fn find(&self, id: StreamId) -> Result<StreamKey, UserError> {
        let id = <Self::Variant as Variant>::Id::of(id).ok_or(UserError::UnknownStream)?;
        self.core()
            .find(id)
            .filter(|&key| self.core().stream(key).own.is_known())
            .ok_or(UserError::UnknownStream)
    }

    #[inline]
    fn has_refusals(&self) -> bool {
        self.core().has_refusals()
    }

    fn take_refusal(&mut self) -> Option<Refusal> {
        self.core_mut().take_refusal()
    }

    /// The fault that has ended the stream `id`: its status (0: no response was sent) and its rule.
    fn refusal_of(&self, id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        let key = self.find(id).ok()?;
        self.core().stream(key).exchange.refusal()
    }
}

/// How streams and the connection end.
pub(crate) trait Lifecycle: Multiplexed {
    /// Both messages of a stream are complete, and all was sent. A request may still be on its way.
    fn on_complete(&mut self, key: StreamKey);

    /// The program has released a stream that has failed.
    fn release_failed(&mut self, key: StreamKey);

    /// The rest of a request is not waited for any longer.
    fn stop_discarding(&mut self, key: StreamKey);

    /// Resets a stream after a violation or a timeout. `Err`: the rate limit of resets is exceeded.
    fn reset_stream(&mut self, key: StreamKey, fault: Fault) -> Result<(), Fault>;

    /// The program needs no more of a tunnel, to which it has sent all.
    fn leave_tunnel(&mut self, key: StreamKey);

    /// The program resets a stream that is not closed.
    fn reset_open(&mut self, key: StreamKey);

    /// A client closes the connection.
    fn leave(&mut self);

    /// Server: whether the peer has opened a stream.
    fn has_requests(&self) -> bool;

    /// Announces GOAWAY.
    fn announce_go_away(&mut self);

    /// Closes the connection if GOAWAY was exchanged and no stream is open.
    fn close_if_drained(&mut self);

    /// Orderly end.
    fn close_gracefully(&mut self, error: ConnectionError);

    /// Ends an open connection after a violation or a timeout, and tells the peer.
    fn end_for(&mut self, fault: Fault);

    /// The first stream was opened.
    fn on_busy(&mut self) {}

    /// The last stream was closed.
    fn on_idle(&mut self) {}

    /// Closes the stream if both directions and the program are done with it.
    #[inline]
    fn check_closed(&mut self, key: StreamKey) {
        let (side, stream) = (self.core().side(), self.core().stream(key));
        let is_sent = stream.outbox.end == EndStream::Sent;
        if is_sent && stream.exchange.is_complete(side) && !stream.is_closed() {
            self.on_complete(key);
        }
    }

    /// Marks a stream as closed: its slot is freed on the next call of `next_event`.
    #[inline]
    fn mark_closed(&mut self, key: StreamKey) {
        if self.core_mut().set_closed(key) {
            self.watch_idleness();
        }
    }

    /// Updates the idle timer after a stream was opened or closed.
    #[inline]
    fn watch_idleness(&mut self) {
        let is_open = self.is_open();
        let core = self.core_mut();
        let (is_busy, now) = (core.is_busy(), core.now());
        match core.timers_mut().watch_idleness(is_busy, is_open, now) {
            Idleness::Unchanged => {}
            Idleness::Busy => self.on_busy(),
            Idleness::Idle => self.on_idle(),
        }
        self.close_if_drained();
    }

    /// Resets a stream for the program, or releases one that has failed.
    fn reset(&mut self, key: StreamKey) {
        let side = self.core().side();
        let stream = self.core_mut().stream_mut(key);
        if stream.is_closed() || side == Side::Client && stream.exchange.is_complete(side) {
            // Closed, or as soon as the rest of the request has been sent.
            return;
        }
        if stream.exchange.leaves_tunnel() {
            // As after a response: what was sent is complete, and the rest is not needed.
            self.leave_tunnel(key);
            return self.check_closed(key);
        }
        self.reset_open(key);
    }

    /// Discards everything that the program still writes.
    fn discard_writes(&mut self, key: StreamKey) {
        let exchange = &mut self.core_mut().stream_mut(key).exchange;
        if matches!(exchange.send_state, SendState::Body(_) | SendState::Head) {
            exchange.send_state = SendState::Discard;
            exchange.pending.take(PendingEvents::WRITER_WAITS);
            self.core_mut().notify(key, PendingEvents::WRITABLE);
        }
        self.check_closed(key);
    }

    fn close(&mut self) {
        if !self.is_open() || !self.core_mut().begin_to_close() {
            return;
        }
        self.shorten_discarding();
        match (self.core().side(), self.core().timers().idle().closing()) {
            (Side::Client, _) => self.leave(),
            (Side::Server, Some(closing)) => self.core_mut().timers_mut().set_idle(closing),
            (Side::Server, None) if self.has_requests() => self.announce_go_away(),
            (Side::Server, None) => self.announce_go_away_later(),
        }
    }

    /// Leaves time for a first request. A client may wait for our SETTINGS before it sends one (`HAProxy` does), and
    /// would fail it if GOAWAY came with them.
    fn announce_go_away_later(&mut self) {
        let core = self.core_mut();
        let at = core.now() + Self::Variant::limits(core.limits()).go_away_delay;
        core.timers_mut().set_go_away_at(Some(at));
    }

    /// The peer's first SETTINGS have arrived.
    fn on_settings(&mut self) {
        let now = self.core().now();
        if self.core_mut().timers_mut().settings_received(now) && self.core().is_closing() {
            self.announce_go_away_later();
        }
    }

    /// Ends the connection after a violation or a timeout.
    #[cold]
    fn fail_connection(&mut self, fault: Fault) {
        if self.is_open() {
            if fault.code != Self::Variant::RULES.silent.code {
                let refused = Refused::Connection(fault.reason);
                self.core_mut().record_refusal(refused, 0, fault.rule);
            }
            self.end_for(fault);
        }
    }

    /// Time until which the rest of a request is skipped. A server that stops leaves less time.
    fn discard_until(&self) -> Instant {
        let (core, limits) = (self.core(), self.core().limits());
        core.now()
            + if core.is_closing() {
                limits.drain_idle_timeout
            } else {
                limits.discard_timeout
            }
    }

    /// A server that stops leaves less time to requests that are skipped.
    fn shorten_discarding(&mut self) {
        let latest = self.discard_until();
        for key in self.core().stream_keys() {
            let core = self.core_mut();
            if let Some(until) = &mut core.stream_mut(key).discard_until {
                *until = latest.min(*until);
                let now = core.now();
                core.timers_mut().set_streams(Some(now));
            }
        }
    }
}
