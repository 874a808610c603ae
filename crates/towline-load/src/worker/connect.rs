//! Opening connections, and the consequences of their end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_io::client::{Dial, DialConfig, DialError, DialErrorKind, Established, Route};
use towline_io::quic::QuicLimits;
use towline_io::{ConnConfig, ConnId, Engine};
use towline_proto::{Http2Limits, Http3Limits, Limits, Protocol, ProtocolPolicy};

use super::Worker;
use super::conn_state::ConnState;
use super::slot::{PendingDial, QueuedRequest, State};
use super::window::Phase;
use crate::config::Config;
use crate::stats::{Failure, ResponseTimes};

type DialResult = Result<Box<Established>, DialError>;

/// Dials, and makes connections of them.
pub(super) struct Dialer {
    dials: Arc<DialConfig>,
    service: Arc<ConnConfig>,
    /// Dials whose outcome has not been taken.
    pending: u64,
}

impl Dialer {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            dials: Arc::new(dial_config(config)),
            service: Arc::new(service(config)),
            pending: 0,
        }
    }

    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    fn start(
        &mut self,
        engine: &mut Engine<ConnState>,
        route: Arc<Route>,
        slot: u32,
        now: Instant,
    ) {
        self.pending += 1;
        engine.dial(Dial::start(route, &self.dials, now), u64::from(slot));
    }

    /// A slot and the outcome of its dial.
    fn next(&mut self, engine: &mut Engine<ConnState>) -> Option<(u32, DialResult)> {
        let dialled = engine.next_dial_outcome()?;
        self.pending -= 1;
        Some((dialled.tag as u32, dialled.result))
    }
}

impl Worker {
    /// Dials for `slot`; `queued` is the request that waits for this connection.
    pub(super) fn dial(&mut self, slot: u32, queued: Option<QueuedRequest>, now: Instant) {
        let route = Arc::clone(&self.origin_of(slot).route);
        self.slots.dial(slot, PendingDial { begun: now, queued });
        self.dialer.start(&mut self.engine, route, slot, now);
    }

    /// Whether connections are being opened.
    pub(super) fn is_connecting(&self) -> bool {
        self.dialer.pending() + self.slots.upgrading() > 0
    }

    /// Dials the connections that are absent and due.
    pub(super) fn open_due(&mut self, now: Instant) {
        if !self.window.sends() || self.permits.is_spent() {
            return;
        }
        for slot in 0..self.slots.len() as u32 {
            match self.slots.state(slot) {
                State::Absent { due: Some(due) } if due <= now => self.open_again(slot, now),
                _ => {}
            }
        }
    }

    /// Opens the connection of a slot, or, with fresh connections, lets requests use the slot again.
    fn open_again(&mut self, slot: u32, now: Instant) {
        if self.config.is_fresh() {
            self.slots.wait(slot, None);
            self.permit(slot, now);
        } else {
            self.dial(slot, None, now);
        }
    }

    pub(super) fn take_dial_results(&mut self, now: Instant) {
        while let Some((slot, result)) = self.dialer.next(&mut self.engine) {
            let State::Dialling(opening) = self.slots.state(slot) else {
                continue;
            };
            match self.establish(slot, result, now) {
                Ok(id) => {
                    let destination = self.origin_of(slot).destination();
                    self.origins.outages.end(destination);
                    if self.handshake_of(slot).is_some() {
                        self.upgrade(slot, id, opening, now);
                    } else {
                        self.on_connected(slot, id, opening, now);
                    }
                }
                Err(failure) => self.on_connect_failed(slot, opening.queued, failure, now),
            }
        }
    }

    /// Makes a connection of a dial's outcome; otherwise its failure, and whether the server has refused.
    fn establish(
        &mut self,
        slot: u32,
        result: DialResult,
        now: Instant,
    ) -> Result<ConnId, (Failure, bool)> {
        let established = result.map_err(|error| {
            let os_error = error.os_error.unwrap_or_default();
            let refused = !self.config.refusal_statuses.is_empty()
                && [libc::ECONNREFUSED, libc::ECONNRESET, libc::EPIPE].contains(&os_error);
            if !refused {
                self.on_dial_failed(slot, &error.message, now);
            }
            let failure = match error.kind {
                DialErrorKind::Timeout => Failure::Timeout,
                _ => Failure::Connect,
            };
            (failure, refused)
        })?;
        if self.origin_of(slot).route.secure
            && let Some(rule) = not_negotiated(&self.config, &established)
        {
            self.on_dial_failed(slot, rule, now);
            return Err((Failure::Connect, false));
        }
        let added = self
            .engine
            .add_established(*established, &self.dialer.service);
        added.map_err(|_| (Failure::Connect, false))
    }

    fn on_dial_failed(&mut self, slot: u32, error: &str, now: Instant) {
        self.tally.note(|| error.into());
        let destination = self.origin_of(slot).destination();
        self.origins.outages.begin(destination, error, now);
    }

    pub(super) fn on_connected(
        &mut self,
        slot: u32,
        id: ConnId,
        opening: PendingDial,
        now: Instant,
    ) {
        let PendingDial { begun, queued } = opening;
        let again = self.slots.open(slot, id);
        if again {
            (self.origins).on_replaced(self.slots.get(slot).origin);
        }
        self.repeat_on(slot, id);
        if let Some(conn) = self.engine.conn(id) {
            conn.state.slot = Some(slot);
        }
        if self.window.counts_now(now) {
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

    /// Counts a connection that could not be opened, or that the server has refused.
    pub(super) fn on_connect_failed(
        &mut self,
        slot: u32,
        queued: Option<QueuedRequest>,
        (failure, refused): (Failure, bool),
        now: Instant,
    ) {
        self.slots.retry(slot, now);
        if let Some(queued) = queued {
            self.slots.end_requests(1);
            self.restart_session(slot);
            return if refused {
                self.on_refused(queued.intended, now);
            } else {
                self.on_queued_failed(&queued, failure, now);
            };
        }
        self.align(now);
        // Otherwise a run by count would wait for requests that cannot be sent.
        self.permits.spend();
        let is_end = self.window.is_end();
        if refused && self.window.phase() == Phase::Connecting {
            self.tally.refused += 1;
        } else if refused {
            self.on_refused(now, now);
        } else if is_end || self.window.counts_now(now) {
            self.tally.count_failure(None, failure);
            self.tally.at_end.overdue += u64::from(is_end && failure == Failure::Timeout);
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
        for slot in 0..self.slots.len() as u32 {
            let State::Open(id) = self.slots.state(slot) else {
                continue;
            };
            self.slots.close(slot);
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
        if let State::Upgrading(_, opening) = self.slots.state(slot) {
            return self.on_upgrade_failed(slot, opening.queued, (failure, false), rule, now);
        }
        let pending = std::mem::take(&mut conn_state.pending);
        let may_refuse = !self.config.refusal_statuses.is_empty();
        let was_refused = conn_state.refused;
        let used_slot = self.slots.get(slot);
        let unanswered = pending.len() as u64 + used_slot.failed;
        let has_responses = used_slot.used > unanswered;
        self.slots.close(slot);
        self.slots.end_requests(pending.len());
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
        if self.window.phase() == Phase::Connecting || !self.slots.is_active(slot) {
            return;
        }
        if has_responses {
            self.slots.get_mut(slot).reset_pause();
        }
        if was_refused || (!has_responses && unanswered > 0) {
            // Back off from a server that closes without a response, or refuses.
            return self.slots.retry(slot, now);
        }
        self.slots.wait(slot, Some(now));
        if self.window.sends() && !self.permits.is_spent() {
            self.open_again(slot, now);
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
