//! The end of a load, and requests without a response.
//!
//! A closed loop always has requests in flight at its end. They are awaited, without being counted, for as long as the
//! load has shown that a request may take. What takes longer has failed, so that a server that hangs is never silently
//! fine. An open loop counts the requests in flight, and awaits them for the whole timeout.

use std::time::{Duration, Instant};

use towline_io::ConnId;
use towline_proto::Protocol;

use super::Worker;
use super::conn_state::InFlight;
use super::slot::{PendingDial, State};
use super::window::{Boundary, Phase};
use crate::stats::{AtEnd, Failure, ResponseTimes};

/// A request may take this long at the end of any load: the pauses of a healthy server are shorter.
const MIN_PATIENCE: Duration = Duration::from_secs(1);
/// Multiples of the median and of the longest time so far that a request may take at the end.
const MEDIANS: u32 = 10;
const LONGEST: u32 = 2;

impl Worker {
    /// Ends a closed loop, or a load that is interrupted: notes what is in flight, and how long it is awaited.
    pub(super) fn begin_end(&mut self, now: Instant, is_interrupted: bool) {
        self.note_in_flight(now);
        if self.permits.has_schedule() && !is_interrupted {
            return;
        }
        self.window.end_usage(now);
        let known = self.tally.usual_and_longest();
        // Nothing tells how long a target takes that has had no response, when others had.
        let is_known = known.is_none() || is_interrupted || !self.awaits_first_response();
        if is_known {
            let (usual, longest) = known.unwrap_or_default();
            let likely = MIN_PATIENCE.max(usual * MEDIANS).max(longest * LONGEST);
            self.window.limit_request_timeout(likely);
        }
        self.tally.at_end.patience = self.window.request_timeout();
    }

    /// Ends a load at once: only what is overdue already has failed.
    pub(super) fn interrupt(&mut self, now: Instant) {
        let had_begun = self.window.interrupt(now);
        self.begin_end(now, true);
        self.window.drain();
        if had_begun {
            self.expire(now);
        }
        self.count_unsent();
    }

    /// Counts what is in flight when the measured time ends.
    pub(super) fn note_in_flight(&mut self, now: Instant) {
        let mut at_end = AtEnd {
            patience: self.window.request_timeout(),
            ..AtEnd::default()
        };
        let age = |since: Instant| now.saturating_duration_since(since);
        for slot in self.slots.iter() {
            match slot.state() {
                State::Dialling(opening) | State::Upgrading(_, opening) => match opening.queued {
                    Some(_) => at_end.ages.record(age(opening.begun)),
                    None => at_end.connections += 1,
                },
                State::Open(id) => {
                    let Some(conn) = self.engine.conn(id) else {
                        continue;
                    };
                    for request in &conn.state.pending {
                        at_end.ages.record(age(request.sent));
                    }
                    at_end.connections += u64::from(conn.state.is_barred());
                }
                State::Absent { .. } => {}
            }
        }
        self.tally.at_end = at_end;
    }

    /// Passes a boundary of an aligned window: the server has responded, or a request has failed.
    #[inline]
    pub(super) fn align(&mut self, now: Instant) {
        match self.window.align(now) {
            None => {}
            Some(Boundary::Opened) => self.mark(now),
            Some(Boundary::Closed) => self.note_in_flight(now),
        }
    }

    /// Closes an aligned window that has waited for a response for the whole timeout: the time counts,
    /// with no response in it.
    pub(super) fn close_without_response(&mut self, now: Instant) {
        let Some(after) = self.window.missed_boundary(now) else {
            return;
        };
        if self.window.open(after) {
            self.mark(after);
        }
        self.window.close(now);
        self.note_in_flight(now);
    }

    /// Whether a request is in flight whose target has had no response, while others had.
    fn awaits_first_response(&mut self) -> bool {
        let (slots, engine, tally) = (&self.slots, &mut self.engine, &self.tally);
        slots.iter().any(|slot| match slot.state() {
            State::Open(id) => engine.conn(id).is_some_and(|conn| {
                let mut pending = conn.state.pending.iter();
                pending.any(|request| tally.lacks_responses_to(request.target as usize))
            }),
            _ => false,
        })
    }

    /// Whether nothing is in flight any more, and no connection is awaited.
    pub(super) fn is_idle(&mut self) -> bool {
        let (slots, engine) = (&self.slots, &mut self.engine);
        slots.in_flight() == 0
            && !slots.iter().any(|slot| match slot.state() {
                State::Dialling(_) | State::Upgrading(..) => true,
                State::Open(id) => (engine.conn(id)).is_some_and(|conn| conn.state.is_barred()),
                State::Absent { .. } => false,
            })
    }

    /// Fails the requests that have timed out: over HTTP/1.1 with their connection, over HTTP/2 alone if
    /// the connection is alive. Finds the oldest request.
    pub(super) fn expire(&mut self, now: Instant) {
        self.slots.forget_oldest();
        for slot in 0..self.slots.len() as u32 {
            match self.slots.state(slot) {
                State::Absent { .. } => {}
                State::Dialling(opening) => self.expire_dial(slot, opening, now),
                State::Upgrading(id, opening) => self.expire_upgrade(id, opening.begun, now),
                State::Open(_) => self.expire_requests(slot, now),
            }
        }
    }

    /// How long something has waited since `begun`, if it has waited in vain for `timeout`.
    fn expired(&mut self, begun: Instant, timeout: Duration, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(begun);
        if waited < timeout {
            self.slots.note_age(waited);
            return None;
        }
        Some(waited)
    }

    fn expire_requests(&mut self, slot: u32, now: Instant) {
        while let State::Open(id) = self.slots.state(slot)
            && let Some(conn) = self.engine.conn(id)
        {
            let Some(oldest) = conn.state.pending.front() else {
                return self.expire_barred(id, now);
            };
            let (sent, stream) = (oldest.sent, oldest.stream);
            let waited = now.saturating_duration_since(sent);
            if waited < self.window.request_timeout() {
                return self.slots.note_age(waited);
            }
            let unanswered = conn.state.pending.len() as u64 + self.slots.get(slot).failed;
            let responses = self.slots.get(slot).used.saturating_sub(unanswered);
            let name = self.config.targets[oldest.target as usize].step_name();
            let rule = timeout_rule(oldest, &name, waited, responses);
            let is_alive = conn.state.last_received_at.is_some_and(|at| at > sent);
            if self.config.protocol == Protocol::Http1 || !is_alive {
                self.on_closed(id, Failure::Timeout, &rule, now);
                return self.engine.abort(id);
            }
            if let Ok(mut stream) = conn.proto.stream(stream) {
                stream.reset();
            }
            self.on_stream_failed(id, 0, Failure::Timeout, rule, now);
            self.engine.flush_and_rearm(id);
        }
    }

    /// Fails a connection on which the server allows no request.
    fn expire_barred(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        if !conn.state.is_barred() {
            conn.state.barred_since = None;
            return;
        }
        let since = *conn.state.barred_since.get_or_insert(now);
        let Some(waited) = self.expired(since, self.window.request_timeout(), now) else {
            return;
        };
        self.on_failed(None, since, Failure::Timeout, now);
        self.tally.at_end.overdue += u64::from(self.window.is_end());
        let seconds = waited.as_secs_f64();
        (self.tally)
            .note(|| format!("for {seconds:.2} s the server allowed no stream on a connection"));
        self.permits.spend();
        self.on_closed(id, Failure::Timeout, "", now);
        self.engine.abort(id);
    }

    /// Fails a dial that takes too long at the end of the load; before that it has a timeout of its own.
    fn expire_dial(&mut self, slot: u32, opening: PendingDial, now: Instant) {
        let patience = match self.window.phase() {
            Phase::Draining => self.window.request_timeout(),
            _ => Duration::MAX,
        };
        if let Some(waited) = self.expired(opening.begun, patience, now) {
            let seconds = waited.as_secs_f64();
            (self.tally).note(|| format!("no connection in {seconds:.2} s"));
            self.on_connect_failed(slot, opening.queued, (Failure::Timeout, false), now);
        }
    }

    /// Fails a WebSocket handshake that takes too long.
    fn expire_upgrade(&mut self, id: ConnId, begun: Instant, now: Instant) {
        let timeout = match self.window.phase() {
            Phase::Draining => self
                .window
                .request_timeout()
                .min(self.config.connect_timeout),
            _ => self.config.connect_timeout,
        };
        if self.expired(begun, timeout, now).is_some() {
            self.on_closed(id, Failure::Timeout, "no WebSocket handshake in time", now);
            self.engine.abort(id);
        }
    }

    /// Counts a request that has failed, and how long it has waited if it had no response.
    pub(super) fn on_request_failed(&mut self, request: &InFlight, failure: Failure, now: Instant) {
        let counted = self.on_failed(Some(request.target), request.intended, failure, now);
        if counted && failure == Failure::Timeout {
            self.count_unanswered(request.target, &request.response_times(now, 0));
        }
    }

    pub(super) fn count_unanswered(&mut self, target: u32, waited: &ResponseTimes) {
        self.tally.count_unanswered(target as usize, waited);
        self.tally.at_end.overdue += u64::from(self.window.is_end());
    }
}

fn timeout_rule(request: &InFlight, name: &str, waited: Duration, responses: u64) -> String {
    let seconds = waited.as_secs_f64();
    match request.head_at {
        Some(_) => format!(
            "the response to {name} had not ended after {seconds:.2} s: {} bytes of its body had come",
            request.check.length()
        ),
        None => format!(
            "no response to {name} in {seconds:.2} s, on a connection that had {responses} before"
        ),
    }
}
