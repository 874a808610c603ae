//! Opening connections, and the consequences of their end.

use std::time::{Duration, Instant};

use towline_io::ConnConfig;
use towline_io::ConnId;
use towline_io::client::{Dial, DialConfig, DialErrorKind, Established};
use towline_io::quic::QuicLimits;
use towline_proto::{Http2Limits, Http3Limits, Limits, Protocol, ProtocolPolicy};

use super::slot::{QueuedRequest, State};
use super::{Phase, Worker};
use crate::config::Config;
use crate::stats::{Failure, ResponseTimes};

impl Worker {
    /// Dials for `slot`; `queued` is the request that waits for this connection.
    pub(super) fn dial(&mut self, slot: u32, queued: Option<QueuedRequest>, now: Instant) {
        let state = &mut self.slots[slot as usize];
        let route = self.origins[state.origin].route.clone();
        state.state = State::Dialling { begun: now, queued };
        self.dialling += 1;
        let dial = Dial::start(route, &self.dial_config, now);
        self.engine.dial(dial, u64::from(slot));
    }

    /// Dials the connections that are absent and due.
    pub(super) fn open_due(&mut self, now: Instant) {
        if !self.phase.sends() || self.budget == Some(0) {
            return;
        }
        for index in 0..self.slots.len() {
            let State::Absent { due: Some(due) } = self.slots[index].state else {
                continue;
            };
            if due > now {
                continue;
            }
            let index = index as u32;
            if self.config.is_fresh() {
                // The back-off is over: requests may use the slot again.
                self.slots[index as usize].state = State::Absent { due: None };
                self.permit(index, now);
            } else {
                self.dial(index, None, now);
            }
        }
    }

    pub(super) fn take_dial_results(&mut self, now: Instant) {
        while let Some(dialled) = self.engine.next_dial_outcome() {
            self.dialling -= 1;
            let slot = dialled.tag as u32;
            let State::Dialling { begun, queued } = self.slots[slot as usize].state else {
                continue;
            };
            let mut refused = false;
            let adopted = dialled.result.map_err(|error| {
                let os_error = error.os_error.unwrap_or_default();
                refused = !self.config.refusal_statuses.is_empty()
                    && [libc::ECONNREFUSED, libc::ECONNRESET, libc::EPIPE].contains(&os_error);
                if !refused {
                    self.tally.note(|| error.message.clone());
                    self.on_dial_failed(slot, &error.message, now);
                }
                match error.kind {
                    DialErrorKind::Timeout => Failure::Timeout,
                    _ => Failure::Connect,
                }
            });
            let adopted = adopted.and_then(|established| {
                if self.is_secure(slot)
                    && let Some(rule) = not_negotiated(&self.config, &established)
                {
                    self.tally.note(|| rule.into());
                    self.on_dial_failed(slot, rule, now);
                    return Err(Failure::Connect);
                }
                let adopted = self.engine.adopt(*established, &self.service);
                adopted.map_err(|_| Failure::Connect)
            });
            if adopted.is_ok() {
                self.end_outage(slot);
            }
            match adopted {
                Ok(id) if self.handshake_of(slot).is_some() => {
                    self.upgrade(slot, id, (begun, queued), now);
                }
                Ok(id) => self.on_connected(slot, id, begun, queued, now),
                Err(failure) => self.on_connect_failed(slot, queued, failure, refused, now),
            }
        }
    }

    fn is_secure(&self, slot: u32) -> bool {
        self.origins[self.slots[slot as usize].origin].route.secure
    }

    pub(super) fn on_connected(
        &mut self,
        slot: u32,
        id: ConnId,
        begun: Instant,
        queued: Option<QueuedRequest>,
        now: Instant,
    ) {
        let state = &mut self.slots[slot as usize];
        let again = state.was_open;
        state.on_connected(id);
        self.live += 1;
        self.repeat_on(slot, id);
        if let Some(conn) = self.engine.conn(id) {
            conn.state.slot = Some(slot);
        }
        if self.phase == Phase::Connecting || self.counts(now, now) {
            self.tally.connect.record(now - begun);
            let meant = self.config.is_fresh() || self.config.connects_in_slice || queued.is_some();
            self.tally.reconnects += u64::from(again && !meant);
        }
        match queued {
            // Counted as in flight since the dial.
            Some(queued) => self.send_queued(slot, id, queued, queued.follows.unwrap_or(begun)),
            None => self.grant_permits(slot, now),
        }
        self.engine.flush_and_rearm(id);
    }

    pub(super) fn on_connect_failed(
        &mut self,
        slot: u32,
        queued: Option<QueuedRequest>,
        failure: Failure,
        refused: bool,
        now: Instant,
    ) {
        let retry_at = self.slots[slot as usize].retry_at(now);
        self.slots[slot as usize].closed(Some(retry_at));
        if let Some(queued) = queued {
            self.in_flight -= 1;
            self.restart_session(slot);
            return if refused {
                self.on_refused(queued.intended, now);
            } else {
                self.on_queued_failed(&queued, failure, now);
            };
        }
        self.align(now);
        // Otherwise a run by count would wait for requests that cannot be sent.
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(1);
        }
        if refused && self.phase == Phase::Connecting {
            self.tally.refused += 1;
        } else if refused {
            self.on_refused(now, now);
        } else if self.phase == Phase::Connecting || self.is_end() || self.counts(now, now) {
            self.tally.count_failure(None, failure);
            let is_overdue = self.is_end() && failure == Failure::Timeout;
            self.tally.at_end.overdue += u64::from(is_overdue);
        }
    }

    /// Counts a request whose connection could not be opened.
    fn on_queued_failed(&mut self, queued: &QueuedRequest, failure: Failure, now: Instant) {
        let counted = self.on_failed(Some(queued.target), queued.intended, failure, now);
        if counted && failure == Failure::Timeout {
            let waited = now.saturating_duration_since(queued.intended);
            let times = ResponseTimes {
                response: waited,
                service: waited,
                first_byte: waited,
                body_bytes: 0,
            };
            self.count_unanswered(queued.target, &times);
        }
    }

    /// Closes all connections after a slice, whose counts are complete.
    pub(super) fn close_all(&mut self) {
        for slot in &mut self.slots {
            let State::Open(id) = slot.state else {
                continue;
            };
            slot.closed(None);
            self.live -= 1;
            if let Some(conn) = self.engine.conn(id) {
                conn.state.slot = None;
            }
            self.engine.close(id);
        }
    }

    /// Handles the end of a connection. Its requests without a response have failed.
    pub(super) fn on_closed(&mut self, id: ConnId, failure: Failure, rule: &str, now: Instant) {
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        self.tally.quic.add(&conn.quic_counts().unwrap_or_default());
        let was_silent = conn.received_bytes() == 0;
        let conn_state = &mut conn.state;
        let Some(slot) = conn_state.slot.take() else {
            return;
        };
        if let State::Upgrading {
            begun: _, queued, ..
        } = self.slots[slot as usize].state
        {
            return self.on_upgrade_failed(slot, queued, (failure, false), rule, now);
        }
        let pending = std::mem::take(&mut conn_state.pending);
        let may_refuse = !self.config.refusal_statuses.is_empty();
        let was_refused = conn_state.refused;
        let used_slot = &self.slots[slot as usize];
        let unanswered = pending.len() as u64 + used_slot.failed;
        let has_responses = used_slot.used > unanswered;
        self.live -= 1;
        self.in_flight -= pending.len() as u64;
        if !pending.is_empty() {
            self.restart_session(slot);
        }
        for request in &pending {
            // A response that began and was cut is not a refusal.
            if may_refuse && failure == Failure::Reset && !has_responses && was_silent {
                self.on_refused(request.intended, now);
            } else {
                self.on_request_failed(request, failure, now);
                self.tally.note(|| rule.into());
            }
        }
        // Unexpected bytes arrived: no request has failed, but the server has.
        if pending.is_empty() && failure == Failure::Protocol {
            self.on_failed(None, now, failure, now);
            self.tally.note(|| rule.into());
        }
        if self.phase == Phase::Connecting {
            return self.slots[slot as usize].closed(None);
        }
        if slot as usize >= self.active {
            return self.slots[slot as usize].closed(None);
        }
        let state = &mut self.slots[slot as usize];
        if has_responses {
            state.reset_pause();
        }
        if was_refused || (!has_responses && unanswered > 0) {
            // Back off from a server that closes without a response, or refuses.
            let at = state.retry_at(now);
            return state.closed(Some(at));
        }
        state.closed(Some(now));
        if !self.phase.sends() || self.budget == Some(0) {
            return;
        }
        if self.config.is_fresh() {
            self.slots[slot as usize].state = State::Absent { due: None };
            self.permit(slot, now);
        } else {
            self.dial(slot, None, now);
        }
    }
}

/// The error of a server that negotiates another protocol than HTTP/2 or HTTP/3 under TLS.
pub(crate) fn not_negotiated(config: &Config, established: &Established) -> Option<&'static str> {
    let rule = match config.protocol {
        Protocol::Http1 => return None,
        Protocol::Http2 => "the server did not negotiate HTTP/2 (RFC 9113 3.2)",
        Protocol::Http3 => "the server did not negotiate HTTP/3 (RFC 9114 3.1)",
    };
    (established.alpn.as_deref() != Some(alpn(config.protocol))).then_some(rule)
}

/// The configuration of the dials.
pub(crate) fn dial_config(config: &Config) -> DialConfig {
    let dials = DialConfig {
        connect_timeout: Some(config.connect_timeout),
        quic: QuicLimits {
            // As large as those of HTTP/2: the generator's flow control never limits the load.
            stream_window_bytes: 1 << 30,
            connection_window_bytes: 1 << 30,
            send_window_bytes: 64 << 20,
            // Connections are idle while the bench measures others.
            idle_timeout: Duration::from_secs(3600),
            early_data: config.early_data,
            ..QuicLimits::client()
        },
        alpn: vec![alpn(config.protocol).to_vec()],
        ..DialConfig::default()
    };
    match config.protocol {
        Protocol::Http3 => dials.with_protocols(ProtocolPolicy::Http3),
        _ => dials,
    }
}

/// The protocol and limits of the connections.
pub(crate) fn service(config: &Config) -> ConnConfig {
    /// Large, so that flow control of the generator never limits the load.
    const WINDOW_BYTES: u32 = 1 << 30;
    let limits = Limits {
        http2: Http2Limits {
            stream_window_bytes: WINDOW_BYTES,
            connection_window_bytes: WINDOW_BYTES,
            max_concurrent_streams: config.concurrency() as u32,
            ..Http2Limits::client()
        },
        http3: Http3Limits {
            max_concurrent_streams: config.concurrency() as u32,
            ..Http3Limits::client()
        },
        ..Limits::client()
    };
    ConnConfig {
        protocols: match config.protocol {
            Protocol::Http1 => ProtocolPolicy::Http1,
            Protocol::Http2 => ProtocolPolicy::Http2,
            Protocol::Http3 => ProtocolPolicy::Http3,
        },
        ..ConnConfig::plain(limits)
    }
}

/// The ALPN identifier of a protocol (RFC 7301).
fn alpn(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Http1 => b"http/1.1",
        Protocol::Http2 => b"h2",
        Protocol::Http3 => b"h3",
    }
}
