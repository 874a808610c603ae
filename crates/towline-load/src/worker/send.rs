//! Starting requests: permits, the schedule, and the bytes to send.

use std::time::Instant;

use towline_io::ConnId;
use towline_proto::Protocol;

use super::Worker;
use super::conn_state::{InFlight, PendingSend};
use super::slot::{QueuedRequest, SendPermit, State};
use super::templates::NotSent;
use crate::check::Check;
use crate::schedule::Delay;
use crate::stats::Failure;

/// Requests that are invalid one after the other before the connection pauses until the next tick.
const MAX_INVALID_AT_ONCE: usize = 16;

/// The outcome of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    Sent,
    /// The request was invalid, and has failed; the permit allows another one.
    Invalid,
    /// The connection has changed, or takes no more requests.
    Void,
}

impl Worker {
    /// Grants as many permits as a new connection has concurrent requests.
    pub(super) fn grant_permits(&mut self, slot: u32, now: Instant) {
        if let State::Open(id) = self.slots.state(slot)
            && let Some(conn) = self.engine.conn(id)
        {
            conn.state.deferred_permits = 0;
        }
        for _ in 0..self.config.concurrency() {
            self.permit(slot, now);
        }
    }

    /// Grants the deferred permits for which streams are free now.
    pub(super) fn grant_deferred(&mut self, id: ConnId, now: Instant) {
        while let Some(conn) = self.engine.conn(id)
            && conn.state.deferred_permits > 0
            && conn.received_bytes() > 0
            && conn.proto.stream_capacity() > 0
            && let Some(slot) = conn.state.slot
        {
            conn.state.deferred_permits -= 1;
            self.permit(slot, now);
        }
    }

    /// Grants a permit for one request on `slot`, used at once in a closed loop. The caller flushes the
    /// connection.
    pub(super) fn permit(&mut self, slot: u32, now: Instant) {
        if !self.window.sends() {
            return;
        }
        let state = self.slots.get(slot);
        let permit = SendPermit {
            slot,
            serial: state.serial(),
            since: now,
        };
        if self.permits.are_used_at_once() {
            self.use_until_sent(permit, now);
        } else if self.permits.has_schedule() || self.config.barrier {
            let may_be_used = self
                .config
                .requests_per_connection
                .is_none_or(|most| state.used < most || !matches!(state.state(), State::Open(_)));
            if may_be_used {
                self.permits.push(permit);
            }
        } else if self.slots.is_active(slot) {
            self.use_until_sent(permit, now);
        }
    }

    /// Uses a permit of a closed loop for the first valid request of the next ones.
    fn use_until_sent(&mut self, permit: SendPermit, now: Instant) {
        for _ in 0..MAX_INVALID_AT_ONCE {
            if self.permits.is_spent() || self.use_permit(permit, now, now) != Used::Invalid {
                return;
            }
        }
        self.permits.pause(permit);
    }

    /// Uses the permits whose requests were all invalid at the last tick.
    pub(super) fn resume_paused(&mut self, now: Instant) {
        for permit in self.permits.take_paused() {
            if self.window.sends() {
                self.use_until_sent(permit, now);
            }
            if let State::Open(id) = self.slots.state(permit.slot) {
                self.engine.flush_and_rearm(id);
            }
        }
    }

    /// The next start of the schedule, if a permit is available for it.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let at = self.window.at(self.permits.next_start()?);
        let can_start = self.window.sends()
            && !self.permits.is_spent()
            && at < self.window.end()
            && !self.permits.is_empty();
        can_start.then_some(at)
    }

    /// Starts the requests that are due, as far as permits are available.
    pub(super) fn start_due(&mut self) {
        let Some(mut intended) = self.permits.next_start().map(|start| self.window.at(start))
        else {
            return;
        };
        if !self.window.sends() || self.permits.is_empty() || intended > self.engine.clock() {
            return;
        }
        let mut now = Instant::now();
        while intended <= now && intended < self.window.end() && !self.permits.is_spent() {
            let Some(permit) = self.permits.pop() else {
                return;
            };
            self.engine.set_clock(now);
            let used = self.use_permit(permit, intended, now);
            if used != Used::Void {
                if used == Used::Invalid {
                    self.permits.push_first(permit);
                } else if self.window.counts(intended, now) {
                    let delay = Delay::of(intended, permit.since, now);
                    self.tally.wait.record(delay.wait);
                    self.tally.lag.record(delay.lag);
                    let is_late = now >= self.window.end() && !delay.wait.is_zero();
                    self.tally.late += u64::from(is_late);
                }
                self.permits.advance();
                let Some(next) = self.permits.next_start() else {
                    return;
                };
                intended = self.window.at(next);
                if let State::Open(id) = self.slots.state(permit.slot) {
                    self.engine.flush_and_rearm(id);
                }
                now = Instant::now();
            }
        }
    }

    /// Starts one request.
    pub(super) fn use_permit(
        &mut self,
        permit: SendPermit,
        intended: Instant,
        now: Instant,
    ) -> Used {
        let slot = self.slots.get(permit.slot);
        if !slot.admits(&permit) {
            return Used::Void;
        }
        let origin = slot.origin;
        let target = self.origins.of(origin).next();
        let queued = QueuedRequest {
            target,
            intended,
            follows: None,
        };
        let started = match slot.state() {
            State::Open(id) => self.send(permit.slot, id, queued, now),
            State::Absent { .. } if self.config.is_fresh() => {
                self.dial(permit.slot, Some(queued), now);
                Ok(())
            }
            _ => Err(NotSent::Unavailable),
        };
        if matches!(started, Err(NotSent::Unavailable)) {
            return Used::Void;
        }
        self.origins.advance(origin);
        self.permits.spend();
        if self.window.counts(intended, now) {
            self.tally.sent += 1;
        }
        if let Err(NotSent::Invalid(why)) = started {
            self.on_invalid(permit.slot, queued, why, now);
            return Used::Invalid;
        }
        self.slots.begin_request();
        Used::Sent
    }

    /// Fails a request that is invalid.
    #[cold]
    fn on_invalid(&mut self, slot: u32, queued: QueuedRequest, why: String, now: Instant) {
        if self.window.counts(queued.intended, now) {
            let target = Some(queued.target as usize);
            self.tally.count_failure(target, Failure::Invalid);
            self.tally.note(|| why.clone());
            self.tally.note_invalid(why);
        }
        self.restart_session(slot);
    }

    /// Sends the request for which a connection was opened.
    pub(super) fn send_queued(
        &mut self,
        slot: u32,
        id: ConnId,
        queued: QueuedRequest,
        sent: Instant,
    ) {
        let Err(not_sent) = self.send(slot, id, queued, sent) else {
            return;
        };
        let now = self.engine.clock();
        self.slots.end_requests(1);
        match not_sent {
            NotSent::Invalid(why) => {
                self.on_invalid(slot, queued, why, now);
                self.permit(slot, now);
            }
            NotSent::Unavailable => {
                let target = Some(queued.target);
                self.on_failed(target, queued.intended, Failure::Unprocessed, now);
            }
        }
    }

    /// Writes a request to its connection; `sent` is when its service time begins.
    pub(super) fn send(
        &mut self,
        slot: u32,
        id: ConnId,
        queued: QueuedRequest,
        sent: Instant,
    ) -> Result<(), NotSent> {
        let Some(conn) = self.engine.conn(id) else {
            return Err(NotSent::Unavailable);
        };
        let used = &mut self.slots.get_mut(slot).used;
        let most = self.config.requests_per_connection;
        if most.is_some_and(|most| *used >= most) {
            return Err(NotSent::Unavailable);
        }
        let has_streams = self.config.protocol != Protocol::Http1;
        // The server's first bytes announce its stream limit; until then one stream is used.
        let is_known = conn.received_bytes() > 0 || conn.state.pending.is_empty();
        if has_streams && !(is_known && conn.proto.stream_capacity() > 0) {
            conn.state.deferred_permits += 1;
            return Err(NotSent::Unavailable);
        }
        // Only HTTP/1.1 announces the last request.
        let is_last = !has_streams && self.config.says_close && most == Some(*used + 1);
        let stream = match conn.send_again() {
            Some(stream) => stream,
            None => (self.writer).begin(conn, slot, &queued, (is_last, &self.config.targets))?,
        };
        *used += 1;
        conn.state.pending.push_back(InFlight {
            stream,
            target: queued.target,
            intended: queued.intended,
            sent,
            head_at: None,
            check: Check::default(),
        });
        let pending_send = conn.state.pending_send;
        if pending_send != PendingSend::Nothing {
            // The turn may have begun long ago.
            self.delayed.add(
                (slot, self.slots.get(slot).serial()),
                pending_send,
                Instant::now(),
            );
        }
        Ok(())
    }

    /// Whether a request was due in the measured time and is not sent yet.
    pub(super) fn has_backlog(&self) -> bool {
        (self.permits.next_start_in_time())
            .is_some_and(|start| self.window.at(start) < self.window.end())
    }

    /// Counts the requests that were due in the measured time and never found a connection.
    pub(super) fn count_unsent(&mut self) {
        while self.has_backlog()
            && let Some(start) = self.permits.next_start()
        {
            self.tally.unsent += u64::from(self.window.is_due(self.window.at(start)));
            self.permits.advance();
        }
    }
}
