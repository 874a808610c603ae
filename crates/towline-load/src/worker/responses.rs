//! What an answer comes to in the account, and what becomes of its connection.

use std::time::Instant;

use towline_io::ConnId;
use towline_proto::Protocol;

use super::conn_state::Flight;
use super::send_modes::Rest;
use super::slot::State;
use super::{GRACE_PART, Phase, SHORTEST_GRACE, Worker};
use crate::check::Fault;
use crate::stats::Failure;

impl Worker {
    /// A request of a connection has its answer: the one at `place`.
    pub(super) fn answered(&mut self, id: ConnId, place: usize, now: Instant) {
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        let unsent_bytes = peer.conn.pending_bytes();
        let line = &mut peer.state;
        let (Some(mut flight), Some(slot)) = (line.flights.remove(place), line.slot) else {
            return;
        };
        let target = flight.target as usize;
        let (expect, known) = (&self.config.targets[target].expect, &mut self.known[target]);
        let fault = flight.check.end(expect, known);
        let (status, body_bytes) = (flight.check.status(), flight.check.length());
        let refused =
            fault == Some(Fault::Status) && self.config.refusal_statuses.contains(&status);
        line.refused |= refused;
        let is_last = line.flights.is_empty();
        let is_message = line.socket.is_some();
        let is_spent = match self.config.protocol {
            // The messages of a connection are counted here as streams are: nothing in them says which is the last.
            _ if is_message => {
                let used = self.slots[slot as usize].used;
                let most = self.config.requests_per_connection;
                is_last && most.is_some_and(|most| used >= most)
            }
            // Answered before it was all sent: nothing can follow on this connection.
            Protocol::Http1 => is_last && (line.rest != Rest::Nothing || unsent_bytes > 0),
            // A stream of its own ends alone. Nobody says `connection: close` here: the end is ours to make.
            Protocol::Http2 => {
                line.rest = Rest::Nothing;
                if self.config.targets[target].body.is_some()
                    && let Ok(mut stream) = peer.conn.stream(flight.stream)
                {
                    stream.reset();
                }
                let used = self.slots[slot as usize].used;
                let most = self.config.requests_per_connection;
                is_last && most.is_some_and(|most| used >= most)
            }
        };
        self.in_flight -= 1;
        self.server_is_back(now);
        if self.counts(flight.intended, now) {
            if !is_message {
                self.tally.status(status);
            }
            match fault {
                _ if refused => self.tally.refused += 1,
                Some(fault) => self.faulty(fault, &flight, status, body_bytes),
                None => self.tally.answered(&flight.answer(now, body_bytes)),
            }
        }
        if is_spent {
            self.farewell(id, now);
            self.over(id, Failure::Reset, "", now);
            self.engine.hang_up(id);
        } else {
            self.credit(slot, now);
        }
    }

    /// A stream has failed, and its connection goes on.
    pub(super) fn stream_failed(
        &mut self,
        id: ConnId,
        place: usize,
        failure: Failure,
        rule: String,
        now: Instant,
    ) {
        let Some(line) = self.engine.peer(id).map(|peer| &mut peer.state) else {
            return;
        };
        let (Some(flight), Some(slot)) = (line.flights.remove(place), line.slot) else {
            return;
        };
        line.rest = Rest::Nothing;
        self.in_flight -= 1;
        self.failed(flight.intended, failure, now);
        self.tally.note(|| rule);
        self.credit(slot, now);
    }

    /// Ends the requests that have waited too long: HTTP/1.1 with their connection, HTTP/2 alone where
    /// the connection is alive.
    pub(super) fn expire(&mut self, now: Instant) {
        const RULE: &str = "no answer in time";
        for index in 0..self.slots.len() {
            if self.gave_up_upgrade(index, now) {
                continue;
            }
            let State::Open(id) = self.slots[index].state else {
                continue;
            };
            while let Some(peer) = self.engine.peer(id) {
                let Some(oldest) = peer.state.flights.front() else {
                    break;
                };
                if now < oldest.sent + self.config.timeout {
                    break;
                }
                let is_heard = peer.state.heard_at.is_some_and(|at| at > oldest.sent);
                if self.config.protocol == Protocol::Http1 || !is_heard {
                    self.over(id, Failure::Timeout, RULE, now);
                    self.engine.abort(id);
                    break;
                }
                if let Ok(mut stream) = peer.conn.stream(oldest.stream) {
                    stream.reset();
                }
                self.stream_failed(id, 0, Failure::Timeout, RULE.into(), now);
                self.engine.settle(id);
            }
        }
    }

    fn faulty(&mut self, fault: Fault, flight: &Flight, status: u16, body_bytes: u64) {
        let expect = &self.config.targets[flight.target as usize].expect;
        match fault {
            Fault::Status => {
                self.tally.failed(Failure::Status);
                self.tally.note(|| format!("status {status}"));
            }
            Fault::Kind => {
                self.tally.failed(Failure::Content);
                self.tally
                    .note(|| "a message of the other kind (text, binary)".into());
            }
            Fault::Field(at) => {
                self.tally.failed(Failure::Content);
                let name = expect.fields.get(at).map_or("", |(name, _)| name);
                (self.tally).note(|| format!("the field {name} is not the expected one"));
            }
            Fault::Coding => {
                self.tally.failed(Failure::Content);
                let coding = expect.coding.map_or("", crate::Coding::name);
                self.tally.note(|| {
                    format!("a body of {body_bytes} bytes is not the expected one in {coding}")
                });
            }
            Fault::Content => {
                self.tally.failed(Failure::Content);
                (self.tally)
                    .note(|| format!("a body of {body_bytes} bytes is not the expected one"));
            }
        }
    }

    /// An answer, or the end of a request without one: from now on what is late has its grace, no more.
    fn server_is_back(&mut self, now: Instant) {
        if self.phase == Phase::Late {
            let measured = self.window.to - self.window.from;
            let grace = (measured / GRACE_PART).max(SHORTEST_GRACE);
            self.late_until = self.late_until.min(self.window.to.max(now) + grace);
        }
    }

    pub(super) fn failed(&mut self, intended: Instant, failure: Failure, now: Instant) {
        self.server_is_back(now);
        if self.counts(intended, now) {
            self.tally.failed(failure);
        }
    }

    /// A connection that ended before anything was answered, where the server may refuse.
    pub(super) fn turned_away(&mut self, intended: Instant, now: Instant) {
        self.server_is_back(now);
        if self.counts(intended, now) {
            self.tally.refused += 1;
        }
    }
}
