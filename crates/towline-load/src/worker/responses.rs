//! Counting responses and deciding what happens to their connections.

use std::time::Instant;

use towline_io::ConnId;
use towline_proto::Protocol;

use super::Worker;
use super::conn_state::{InFlight, PendingSend};
use crate::check::Mismatch;
use crate::stats::Failure;

impl Worker {
    /// Counts a complete response, to the request at `index`, and reuses or closes the connection.
    pub(super) fn on_response(&mut self, id: ConnId, index: usize, now: Instant) {
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        let unsent_bytes = conn.unsent_bytes();
        let conn_state = &mut conn.state;
        let (Some(mut request), Some(slot)) = (conn_state.pending.remove(index), conn_state.slot)
        else {
            return;
        };
        let target = request.target as usize;
        let (status, body_bytes) = (request.check.status(), request.check.length());
        let mismatch = if self.verification.is_like_first(target, status, body_bytes) {
            None
        } else {
            let expect = &self.config.targets[target].expect;
            let mismatch = (self.verification).end(&mut request.check, target, expect);
            match &mut self.writer.users {
                Some(users) if mismatch.is_none() => {
                    users.on_response(slot, target, &mut request.check, &self.config)
                }
                _ => mismatch,
            }
        };
        let refused =
            mismatch == Some(Mismatch::Status) && self.config.refusal_statuses.contains(&status);
        conn_state.refused |= refused;
        let is_last = conn_state.pending.is_empty();
        let is_message = conn_state.socket.is_some();
        let is_spent = is_last
            && if is_message || self.config.protocol != Protocol::Http1 || !self.config.says_close {
                // Messages and streams end alone: nothing in them marks the last one of a connection.
                let used = self.slots.get(slot).used;
                (self.config.requests_per_connection).is_some_and(|most| used >= most)
            } else {
                // The response came before the request was fully sent: the connection cannot be reused.
                conn_state.pending_send != PendingSend::Nothing || unsent_bytes > 0
            };
        if !is_message && self.config.protocol != Protocol::Http1 {
            conn_state.pending_send = PendingSend::Nothing;
            if self.config.targets[target].body.is_some()
                && let Ok(mut stream) = conn.proto.stream(request.stream)
            {
                stream.reset();
            }
        }
        self.slots.end_requests(1);
        if mismatch.is_some() {
            self.restart_session(slot);
        }
        self.window.on_server_active(now);
        self.align(now);
        let counts = self.window.counts(request.intended, now);
        if counts && !is_message {
            self.tally.count_status(status);
        }
        match mismatch {
            _ if refused => self.tally.refused += u64::from(counts),
            Some(mismatch)
                if counts || (self.window).counts_latency(request.intended, request.sent, now) =>
            {
                self.count_mismatch(mismatch, &request, status, body_bytes);
            }
            Some(_) => {}
            None => {
                self.count_success(&request, status, body_bytes, now);
                if !is_spent && self.repeated.is_some() {
                    self.learn_response(id, target, status, body_bytes);
                }
            }
        }
        if is_spent {
            self.close_websocket(id, now);
            self.on_closed(id, Failure::Reset, "", now);
            self.engine.close(id);
        } else {
            self.permit(slot, now);
        }
    }

    /// Counts a response that has passed all checks.
    pub(super) fn count_success(
        &mut self,
        request: &InFlight,
        status: u16,
        body_bytes: u64,
        now: Instant,
    ) {
        let target = request.target as usize;
        let counts = self.window.counts(request.intended, now);
        self.tally.completed += 1;
        if counts && !(self.verification).is_like_first(target, status, body_bytes) {
            let shape = (status, body_bytes);
            (self.verification).compare(target, shape, &mut self.tally);
        }
        let times = request.response_times(now, body_bytes);
        if counts {
            self.tally.count_answered(target, times.body_bytes);
        }
        if (self.window).counts_latency(request.intended, request.sent, now) {
            self.tally.count_times(target, &times);
        }
    }

    /// Counts a failed stream; its connection continues.
    pub(super) fn on_stream_failed(
        &mut self,
        id: ConnId,
        index: usize,
        failure: Failure,
        rule: String,
        now: Instant,
    ) {
        let Some(conn_state) = self.engine.conn(id).map(|conn| &mut conn.state) else {
            return;
        };
        let (Some(request), Some(slot)) = (conn_state.pending.remove(index), conn_state.slot)
        else {
            return;
        };
        conn_state.pending_send = PendingSend::Nothing;
        self.slots.get_mut(slot).failed += 1;
        self.slots.end_requests(1);
        self.restart_session(slot);
        self.on_request_failed(&request, failure, now);
        self.tally.note(|| rule);
        self.permit(slot, now);
    }

    fn count_mismatch(
        &mut self,
        mismatch: Mismatch,
        request: &InFlight,
        status: u16,
        body_bytes: u64,
    ) {
        let target = request.target as usize;
        let failure = match mismatch {
            Mismatch::Status => Failure::Status,
            _ => Failure::Content,
        };
        self.tally.count_failure(Some(target), failure);
        let expect = &self.config.targets[target].expect;
        self.tally.note(|| match mismatch {
            Mismatch::Status => format!("status {status}"),
            Mismatch::Kind => "a message of the wrong kind (text, binary)".into(),
            Mismatch::Field(at) => {
                let name = expect.fields.get(at).map_or("", |(name, _)| name);
                format!("the header {name} is not the expected one")
            }
            Mismatch::Trailer => "the trailers are not the expected ones".into(),
            Mismatch::Capture(at, lack) => expect.captures[at].failure(lack),
            Mismatch::Coding => {
                let coding = expect.coding.map_or("", crate::Coding::name);
                format!("a body of {body_bytes} bytes is not the expected one in {coding}")
            }
            Mismatch::Content => format!("a body of {body_bytes} bytes is not the expected one"),
        });
    }

    /// Counts a failed request; without `target` it is the server's alone. Returns whether it counts.
    pub(super) fn on_failed(
        &mut self,
        target: Option<u32>,
        intended: Instant,
        failure: Failure,
        now: Instant,
    ) -> bool {
        self.window.on_server_active(now);
        self.align(now);
        // A request that was in flight at the end of a slice and fails afterwards counts in the slice.
        let counts = self.window.is_rest() || self.window.counts(intended, now);
        if counts {
            let target = target.map(|target| target as usize);
            self.tally.count_failure(target, failure);
        }
        counts
    }

    /// Counts a connection that ended before any response, where the server may refuse.
    pub(super) fn on_refused(&mut self, intended: Instant, now: Instant) {
        self.window.on_server_active(now);
        self.align(now);
        if self.window.counts(intended, now) {
            self.tally.refused += 1;
        }
    }
}
