//! Timeouts of connections of both protocols, and the actions when they expire.

use std::time::Instant;

use crate::error::{DONE, IDLE};
use crate::idle_timer::IdleTimer;

use super::connection::Lifecycle;
use super::fault::Fault;
use super::states::RecvState;
use super::stream::Variant;
use super::streams::StreamKey;
use super::timers::earliest;

/// A connection that watches the time.
pub(crate) trait Timing: Lifecycle {
    /// Sets the time and starts the armed timers.
    fn set_now(&mut self, now: Instant);

    /// The fault of a request whose head is not complete in time.
    fn late_head(&mut self, key: StreamKey, now: Instant) -> Option<Fault>;

    /// Whether it is the peer, and not the program, that must send the next bytes of a body.
    fn awaits_peer(&self, key: StreamKey) -> bool;

    /// Whether it is the peer that holds back what a stream sends, and not others or the transport.
    fn is_held_back(&self, key: StreamKey) -> bool;

    /// Whether the peer is too slow on a stream, one of whose timers has expired.
    fn is_slow(&mut self, key: StreamKey, now: Instant) -> Option<Fault> {
        if let Some(fault) = self.late_head(key, now) {
            return Some(fault);
        }
        let (awaits_peer, is_held_back) = (self.awaits_peer(key), self.is_held_back(key));
        let (stream, limits) = self.core_mut().stream_and_limits(key);
        if stream.recv_timer.expired(now, limits) {
            if stream.exchange.recv_state == RecvState::Body && awaits_peer {
                return Some(Self::Variant::RULES.slow_body);
            }
            stream.recv_timer.start(now);
        }
        if stream.send_timer.expired(now, limits) {
            if is_held_back {
                return Some(Self::Variant::RULES.slow_reader);
            }
            stream.send_timer.start(now);
        }
        None
    }

    /// As `close`: GOAWAY needs no idle time, because the peer knows which of its requests were processed.
    fn drain(&mut self, now: Instant) {
        self.set_now(now);
        self.close();
    }

    fn on_idle_timer_expired(&mut self) {
        match self.core().timers().idle() {
            IdleTimer::Head(_) => self.fail_connection(Self::Variant::RULES.silent),
            IdleTimer::Idle(_) => self.close_gracefully(IDLE),
            IdleTimer::Closing(_) | IdleTimer::Draining(_) => self.close_gracefully(DONE),
            IdleTimer::Off => {}
        }
    }

    /// The timers of a stream have changed.
    #[inline]
    fn watch_deadline(&mut self, key: StreamKey) {
        let core = self.core_mut();
        let deadline = core.stream(key).deadline(core.limits());
        core.timers_mut().watch(deadline);
    }

    /// Starts the timer for body bytes.
    #[inline]
    fn watch_body(&mut self, key: StreamKey) {
        let now = self.core().now();
        let (stream, limits) = self.core_mut().stream_and_limits(key);
        stream.recv_timer.start(now);
        let deadline = earliest(stream.recv_timer.deadline(limits), stream.discard_until);
        self.core_mut().timers_mut().watch(deadline);
    }

    /// Starts the timer for a body that the peer held back until `100 Continue`.
    fn watch_awaited_body(&mut self, key: StreamKey) {
        let core = self.core_mut();
        if core.stream_mut(key).recv_timer.arm() {
            core.timers_mut().start_later(key);
        }
    }

    /// Checks the timers of every stream.
    fn check_streams(&mut self, now: Instant) {
        for key in self.core().stream_keys() {
            if !self.is_open() {
                return;
            }
            let (stream, limits) = self.core_mut().stream_and_limits(key);
            if let Some(until) = stream.discard_until
                && (now >= until || stream.recv_timer.expired(now, limits))
            {
                self.stop_discarding(key);
            } else if let Some(fault) = self.is_slow(key, now)
                && let Err(fault) = self.reset_stream(key, fault)
            {
                return self.fail_connection(fault);
            }
        }
        let core = self.core_mut();
        let deadlines = core.stream_keys();
        let earliest = deadlines
            .filter_map(|key| core.stream(key).deadline(core.limits()))
            .min();
        core.timers_mut().set_streams(earliest);
    }
}
