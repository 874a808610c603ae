//! HTTP/2 connections, which carry many calls. A call that ends closes its stream only; a retired connection
//! closes with its last call.
//!
//! ```text
//!  opened ──preface─► calls begin and are released ──GOAWAY, EOF, timeout──► retired ─last call─► closed
//! ```

use std::sync::Arc;
use std::time::Instant;

use towline_proto::StreamId;

use super::call::{StreamHandle, Upload};
use super::early_data::TOO_EARLY;
use super::{CallEvent, CallId, ClientDriver};
use crate::client::conn_ext::ConnEvent;
use crate::client::pool::Lease;
use crate::client::request::{CallError, CallErrorKind, CallPhase};
use crate::client::retry_policy::{self, RetryContext};
use crate::conn::Conn;
use crate::conn::id::ConnId;
use crate::conn::stream_map::StreamMap;

/// The status of a response from a server that is not authoritative for the request (RFC 9110 15.5.20).
const MISDIRECTED: u16 = 421;

/// Client state of an HTTP/2 connection.
#[derive(Default)]
pub(super) struct H2State {
    calls: StreamMap<CallId>,
    /// WebSocket calls that wait for the server's SETTINGS (RFC 8441 3).
    awaiting_settings: Vec<CallId>,
    /// Time of the last receive, and the total bytes received by then.
    last_received: Option<Instant>,
    received: u64,
    /// The limit of streams after the last events. `None`: the server has not announced it.
    stream_limit: Option<usize>,
}

impl H2State {
    pub(super) fn begin(&mut self, stream: StreamId, call: CallId) {
        self.calls.insert(stream, call);
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.calls.remove(stream);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.awaiting_settings.is_empty()
    }

    pub(super) fn take_awaiting_settings(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.awaiting_settings)
    }

    pub(super) fn await_settings(&mut self, call: CallId) {
        self.awaiting_settings.push(call);
    }
}

impl ClientDriver {
    /// Takes events of an HTTP/2 connection until one of them produces a call event. The caller handles that one
    /// before the next is taken, so that the body can be read without a copy.
    pub(super) fn on_h2_ready(&mut self, conn: ConnId) {
        let now = self.engine.clock();
        while self.events.is_empty() {
            let Some(peer) = self.engine.conn(conn) else {
                self.h2_events_of = None;
                return;
            };
            let Conn {
                proto: wire, state, ..
            } = peer;
            let Some(event) = wire.next_event() else {
                return self.finish_h2_events(conn, now);
            };
            match ConnEvent::of(event) {
                Some((stream, event)) => match (state.h2.calls.get(stream), event) {
                    (Some(&id), event) => self.on_stream_event(id, event, now),
                    // The end of a request whose response has been read could not be sent.
                    (None, ConnEvent::Failed(_)) => {
                        if let Ok(mut stream) = wire.stream(stream) {
                            stream.reset();
                        }
                    }
                    (None, _) => {}
                },
                None => self.retire_conn(conn),
            }
        }
    }

    /// Retires a connection: it takes no further calls and closes with its last one.
    fn retire_conn(&mut self, conn: ConnId) {
        self.fail_awaiting_settings(conn);
        self.note_limit(conn);
        if let Some(slot) = self.engine.conn(conn).and_then(|peer| peer.state.slot) {
            self.pool.retire(slot);
            self.run_pool_actions();
        }
    }

    /// Handles 421 (Misdirected Request) from an alternative, which is not authoritative for the origin: it is
    /// forgotten, and the request is sent to the origin itself, whatever its method (RFC 9110 15.5.20, RFC 7838 6).
    /// False: the response is the program's, since its request cannot be sent again, or did not use an alternative.
    fn leave_alternative(&mut self, id: CallId, now: Instant) -> bool {
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return false;
        };
        let Some(handle) = call.handle() else {
            return false;
        };
        let is_over_quic = self
            .engine
            .conn(handle.conn)
            .is_some_and(|peer| peer.is_http3());
        if !is_over_quic || call.request.route.alt_used().is_none() {
            return false;
        }
        if let Some(http3) = &self.dial.http3 {
            http3.misdirected(&call.request.route, now);
        }
        let retry_context = RetryContext {
            reused: call.reused,
            response_started: false,
            unprocessed: true,
            calm: false,
            resends: call.resends,
        };
        let is_plain = call.websocket.is_none();
        if self.closed
            || !is_plain
            || !retry_policy::may_resend(&call.request, &call.options, retry_context)
        {
            return false;
        }
        call.request.route = Arc::new(call.request.route.over_tcp());
        call.retry_context = Some(retry_context);
        call.continue_deadline = None;
        self.remove(handle);
        if self.has_external_pool {
            // The program sends it again.
            let rule = "the alternative is not responsible for the origin (421, RFC 9110 15.5.20)";
            let error = CallError::new(CallErrorKind::RemoteProtocol, CallPhase::Head, rule);
            self.fail(id, error);
        } else {
            self.resend(id);
        }
        self.run_pool_actions();
        true
    }

    /// Sends a request again whose response is not for the program: of an alternative that is not authoritative, or to
    /// early data. False: the response is the program's.
    fn sends_again(&mut self, id: CallId, status: u16, now: Instant) -> bool {
        let sends_early = self.dial.quic.early_data;
        let is_sent = match status {
            MISDIRECTED => self.leave_alternative(id, now),
            TOO_EARLY => sends_early && self.resend_too_early(id),
            _ => false,
        };
        if sends_early && !is_sent {
            self.note_early_data(id);
        }
        is_sent
    }

    fn on_stream_event(&mut self, id: CallId, event: ConnEvent, now: Instant) {
        if let ConnEvent::Head { head, .. } = &event
            && self.sends_again(id, head.view().status(), now)
        {
            return;
        }
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        call.times.progress = now;
        match event {
            ConnEvent::Head { head, end } => {
                if let Err(rule) = call.handle_head(&head.view(), now) {
                    return self.reject_upgrade(id, rule);
                }
                if let Some(http3) = &self.dial.http3 {
                    http3.observe(&call.request.route, &head.view(), now);
                }
                call.head = Some(head);
                call.times.head = Some(now);
                self.events.push_back((id, CallEvent::Head { end }));
                // A success instead of 100 (Continue): the server takes the body all the same.
                self.release_body(id);
                if end && !self.is_sending(id) {
                    self.complete(id);
                }
            }
            ConnEvent::Interim(head) => {
                let got_continue = head.view().status() == 100;
                self.events.push_back((id, CallEvent::Informational(head)));
                if got_continue {
                    self.release_body(id);
                }
            }
            ConnEvent::Readable | ConnEvent::Failed(_) if call.open_websocket().is_some() => {
                self.drive_websocket(id);
            }
            ConnEvent::Readable => {
                call.reader_waits = false;
                self.events.push_back((id, CallEvent::Readable));
            }
            ConnEvent::Writable => {
                let is_websocket = call.open_websocket().is_some();
                if call.upload != Upload::Done {
                    self.events.push_back((id, CallEvent::Writable));
                }
                self.wake_at_end(id);
                if is_websocket {
                    self.drive_websocket(id);
                }
            }
            ConnEvent::Switched => {
                call.upload = Upload::Tunnel;
                let is_websocket = call.open_websocket().is_some();
                self.events.push_back((id, CallEvent::Switched));
                if is_websocket {
                    self.drive_websocket(id);
                }
            }
            ConnEvent::Failed(error) => self.on_exchange_failed(id, &error),
        }
    }

    /// Finishes a connection whose events have been taken: updates its capacity and starts calls that awaited SETTINGS.
    fn finish_h2_events(&mut self, conn: ConnId, now: Instant) {
        self.h2_events_of = None;
        if self.touched != Some(conn) {
            self.flush_touched();
            self.touched = Some(conn);
        }
        let Some(peer) = self.engine.conn(conn) else {
            return;
        };
        let received = peer.traffic.received;
        let h2 = &mut peer.state.h2;
        if std::mem::replace(&mut h2.received, received) != received {
            h2.last_received = Some(now);
        }
        if !peer.proto.settings_received() {
            // The limit of streams is unknown: the first call stays the only one.
            return;
        }
        let limit = peer.proto.stream_limit();
        if self.has_external_pool && h2.stream_limit.replace(limit) != Some(limit) {
            self.limit_changes.push(conn);
        }
        // The peer's SETTINGS may have changed the number of streams.
        let room = peer.proto.stream_capacity() as u32;
        let awaiting_settings = peer.state.h2.take_awaiting_settings();
        if let Some(slot) = peer.state.slot {
            let leases = self.pool.leases(slot);
            self.pool.set_capacity(slot, leases + room);
            self.run_pool_actions();
        }
        for id in awaiting_settings {
            self.start_awaiting_settings(id, now);
        }
    }

    /// Prepares a new connection. Returns the number of concurrent calls it takes; `None`: its server announces it.
    /// With early data it is that of an earlier connection.
    pub(super) fn send_preface(&mut self, conn: ConnId) -> Option<u32> {
        let now = self.now();
        let Some(peer) = self.engine.conn(conn).filter(|peer| peer.is_shared()) else {
            return Some(1);
        };
        peer.state.h2.last_received = Some(now);
        let is_early = peer.proto.began_with_early_data();
        let capacity = is_early.then(|| peer.proto.stream_capacity() as u32);
        // The preface is sent together with the first request, if one waits.
        self.schedule_flush(conn);
        capacity
    }

    /// Returns a call to the front of the pool's queue: the server has lowered its stream limit.
    pub(super) fn on_stream_limit(
        &mut self,
        id: CallId,
        lease: &Lease<ConnId>,
        now: Instant,
    ) -> Result<(), CallError> {
        let others = self.pool.leases(lease.slot).saturating_sub(1);
        self.pool.set_capacity(lease.slot, others);
        self.pool.release(lease.slot, now);
        self.find_connection(id, true, now)
    }

    /// Releases the stream of an exchange that is over, complete or not. The connection stays open.
    pub(super) fn release_stream(&mut self, handle: StreamHandle, now: Instant) {
        let StreamHandle { conn, slot, stream } = handle;
        let Some(peer) = self.engine.conn(conn) else {
            return self.pool.remove(slot);
        };
        peer.state.h2.calls.remove(stream);
        peer.keep_open = !peer.state.h2.is_idle();
        if let Ok(mut body) = peer.proto.stream(stream) {
            // Without effect when both directions are complete.
            body.reset();
        }
        let has_settings = peer.proto.settings_received();
        let room = peer.proto.stream_capacity() as u32;
        let others = self.pool.leases(slot).saturating_sub(1);
        self.schedule_flush(conn);
        if has_settings {
            self.pool.set_capacity(slot, others + room);
        }
        self.pool.release(slot, now);
    }

    /// Retires the connection of a timed-out call if it has received nothing since `since`: no further call
    /// is assigned to it.
    pub(super) fn mark_suspect(&mut self, handle: StreamHandle, since: Instant) {
        let last_received = self.engine.conn(handle.conn).and_then(|peer| {
            let is_shared = peer.is_shared();
            peer.state.h2.last_received.filter(|_| is_shared)
        });
        if last_received.is_some_and(|last_received| last_received <= since) {
            self.pool.retire(handle.slot);
            self.note_limit(handle.conn);
        }
    }

    /// Notes that the number of calls that a connection takes may have changed.
    pub(in crate::client) fn note_limit(&mut self, conn: ConnId) {
        if self.has_external_pool {
            self.limit_changes.push(conn);
        }
    }

    /// Closes a connection that the pool has removed and that carries no call.
    pub(super) fn close_conn(&mut self, conn: ConnId) {
        let now = self.now();
        if let Some(peer) = self.engine.conn(conn).filter(|peer| peer.is_shared()) {
            peer.send_goaway(now);
        }
        self.engine.close(conn);
    }
}
