//! The end of a load, and requests without a response.
//!
//! A closed loop always has requests in flight at its end. They are awaited, without being counted, for as long as the
//! load has shown that a request may take. What takes longer has failed, so that a server that hangs is never silently
//! fine. An open loop counts the requests in flight, and awaits them for the whole timeout.

use std::time::{Duration, Instant};

use towline_io::ConnId;
use towline_proto::Protocol;

use super::conn_state::InFlight;
use super::slot::State;
use super::window::Alignment;
use super::{Phase, Worker};
use crate::stats::{AtEnd, Failure, ResponseTimes};
use crate::usage::Usage;

/// A request may take this long at the end of any load: the pauses of a healthy server are shorter.
const MIN_PATIENCE: Duration = Duration::from_secs(1);
/// Multiples of the median and of the longest time so far that a request may take at the end.
const MEDIANS: u32 = 10;
const LONGEST: u32 = 2;

impl Worker {
    /// Ends a closed loop, or a load that is interrupted: notes what is in flight, and how long it is awaited.
    pub(super) fn begin_end(&mut self, now: Instant, is_interrupted: bool) {
        self.note_in_flight(now);
        if self.schedule.is_some() && !is_interrupted {
            return;
        }
        // The wait is no part of the load.
        (self.window.usage_after).get_or_insert_with(|| (now, Usage::of_this_thread()));
        let timeout = self.config.timeout;
        let known = self.tally.usual_and_longest();
        // Nothing tells how long a target takes that has had no response, when others had.
        let is_unknown = known.is_some() && !is_interrupted && self.awaits_first_response();
        let (usual, longest) = known.unwrap_or_default();
        let likely = MIN_PATIENCE.max(usual * MEDIANS).max(longest * LONGEST);
        self.patience = if is_unknown {
            timeout
        } else {
            timeout.min(likely)
        };
        self.tally.at_end.patience = self.patience;
    }

    /// Ends a load at once: only what is overdue already has failed.
    pub(super) fn interrupt(&mut self, now: Instant) {
        self.window.to = self.window.to.min(now);
        let had_begun = now >= self.window.from;
        self.begin_end(now, true);
        self.phase = Phase::Draining;
        if had_begun {
            self.expire(now);
        }
        self.count_unsent();
    }

    /// Counts what is in flight when the measured time ends.
    pub(super) fn note_in_flight(&mut self, now: Instant) {
        let mut at_end = AtEnd {
            patience: self.patience,
            ..AtEnd::default()
        };
        let age = |since: Instant| now.saturating_duration_since(since);
        for slot in &self.slots {
            match slot.state {
                State::Dialling { begun, queued } | State::Upgrading { begun, queued, .. } => {
                    match queued {
                        Some(_) => at_end.ages.record(age(begun)),
                        None => at_end.connections += 1,
                    }
                }
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

    /// Whether a request is in flight whose target has had no response, while others had.
    fn awaits_first_response(&mut self) -> bool {
        let (slots, engine, tally) = (&self.slots, &mut self.engine, &self.tally);
        slots.iter().any(|slot| match slot.state {
            State::Open(id) => engine.conn(id).is_some_and(|conn| {
                let mut pending = conn.state.pending.iter();
                pending.any(|request| tally.lacks_responses_to(request.target as usize))
            }),
            _ => false,
        })
    }

    /// Whether a closed loop has ended, apart from what is in flight: its failures still count.
    pub(super) fn is_rest(&self) -> bool {
        self.schedule.is_none()
            && (self.window.alignment == Alignment::Closed || self.phase == Phase::Draining)
    }

    /// Whether a plain load is over, apart from what is awaited.
    pub(super) fn is_end(&self) -> bool {
        matches!(self.phase, Phase::Late | Phase::Draining)
            && self.window.alignment == Alignment::Fixed
    }

    /// Whether nothing is in flight any more, and no connection is awaited.
    pub(super) fn is_idle(&mut self) -> bool {
        let (slots, engine) = (&self.slots, &mut self.engine);
        self.in_flight == 0
            && !slots.iter().any(|slot| match slot.state {
                State::Dialling { .. } | State::Upgrading { .. } => true,
                State::Open(id) => (engine.conn(id)).is_some_and(|conn| conn.state.is_barred()),
                State::Absent { .. } => false,
            })
    }

    /// Fails the requests that have timed out: over HTTP/1.1 with their connection, over HTTP/2 alone if
    /// the connection is alive. Finds the oldest request.
    pub(super) fn expire(&mut self, now: Instant) {
        self.oldest = Duration::ZERO;
        for index in 0..self.slots.len() {
            match self.slots[index].state {
                State::Absent { .. } => {}
                State::Dialling { begun, .. } => self.expire_dial(index as u32, begun, now),
                State::Upgrading { begun, .. } => self.expire_upgrade(index as u32, begun, now),
                State::Open(_) => self.expire_requests(index, now),
            }
        }
    }

    fn expire_requests(&mut self, index: usize, now: Instant) {
        while let State::Open(id) = self.slots[index].state
            && let Some(conn) = self.engine.conn(id)
        {
            let Some(oldest) = conn.state.pending.front() else {
                return self.expire_barred(index, id, now);
            };
            let (sent, stream) = (oldest.sent, oldest.stream);
            let waited = now.saturating_duration_since(sent);
            if waited < self.patience {
                self.oldest = self.oldest.max(waited);
                return;
            }
            let unanswered = conn.state.pending.len() as u64 + self.slots[index].failed;
            let responses = self.slots[index].used.saturating_sub(unanswered);
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
    fn expire_barred(&mut self, index: usize, id: ConnId, now: Instant) {
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        if !conn.state.is_barred() {
            conn.state.barred_since = None;
            return;
        }
        let since = *conn.state.barred_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        if waited < self.patience {
            self.oldest = self.oldest.max(waited);
            return;
        }
        self.on_failed(None, since, Failure::Timeout, now);
        self.tally.at_end.overdue += u64::from(self.is_end());
        let seconds = waited.as_secs_f64();
        (self.tally)
            .note(|| format!("for {seconds:.2} s the server allowed no stream on a connection"));
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(1);
        }
        self.on_closed(id, Failure::Timeout, "", now);
        self.engine.abort(id);
        debug_assert!(!matches!(self.slots[index].state, State::Open(_)));
    }

    /// Fails a dial that takes too long at the end of the load; before that it has a timeout of its own.
    fn expire_dial(&mut self, slot: u32, begun: Instant, now: Instant) {
        let State::Dialling { queued, .. } = self.slots[slot as usize].state else {
            return;
        };
        let waited = now.saturating_duration_since(begun);
        if self.phase != Phase::Draining || waited < self.patience {
            self.oldest = self.oldest.max(waited);
            return;
        }
        let seconds = waited.as_secs_f64();
        (self.tally).note(|| format!("no connection in {seconds:.2} s"));
        self.on_connect_failed(slot, queued, Failure::Timeout, false, now);
    }

    /// Fails a WebSocket handshake that takes too long.
    fn expire_upgrade(&mut self, slot: u32, begun: Instant, now: Instant) {
        let State::Upgrading { id, .. } = self.slots[slot as usize].state else {
            return;
        };
        let timeout = match self.phase {
            Phase::Draining => self.patience.min(self.config.connect_timeout),
            _ => self.config.connect_timeout,
        };
        let waited = now.saturating_duration_since(begun);
        if waited < timeout {
            self.oldest = self.oldest.max(waited);
            return;
        }
        self.on_closed(id, Failure::Timeout, "no WebSocket handshake in time", now);
        self.engine.abort(id);
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
        self.tally.at_end.overdue += u64::from(self.is_end());
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
