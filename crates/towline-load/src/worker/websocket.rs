//! WebSocket connections: a handshake before the first permit, then messages in place of requests.
//!
//! ```text
//! connected ─► Handshaking ──101──► Open ──message, reply, message ...──► closed by the server, or after its last message
//!                  └ any other response, or a timeout: counts as a failed dial
//! ```

use std::io;
use std::sync::Arc;
use std::time::Instant;

use towline_io::{Conn, ConnId};
use towline_proto::ws::{self, ReadAhead, Scratch, WebSocket};
use towline_proto::{Event, Protocol, StreamId};

use super::conn_state::{ConnEvent, ConnState, failure_of};
use super::slot::{QueuedRequest, State};
use super::{Phase, Worker};
use crate::check::VerifiedBody;
use crate::config::Config;
use crate::stats::Failure;
use crate::target::Target;
use crate::websocket::{self, Handshake, WsFailure, WsRefused};

/// Normal closure (RFC 6455 7.4.1).
const NORMAL: u16 = 1000;

/// The WebSocket of a connection.
pub(super) struct WsState {
    stage: WsStage,
    /// Messages in flight when bytes were last received: the limit of replies among those bytes.
    replies_expected: usize,
}

enum WsStage {
    /// Also the negotiated WebSocket, between the head of the response and the switch.
    Handshaking(Handshake, Option<WebSocket>),
    Open(WebSocket, StreamId),
}

/// State shared by all `WebSockets` of a thread.
pub(super) struct WsContext {
    shared: Scratch,
    limits: Arc<ws::Limits>,
    /// Frames to be written to a connection.
    scratch: Vec<u8>,
}

impl WsState {
    /// Bytes were received while this many messages were in flight.
    pub(super) fn on_received(&mut self, under_way: usize) {
        self.replies_expected = under_way;
    }
}

impl WsContext {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            shared: Scratch::new(towline_io::seed()?),
            limits: websocket::limits(config.longest_message()),
            scratch: Vec::new(),
        })
    }

    /// Advances to the next event.
    pub(super) fn advance(
        &mut self,
        conn: &mut Conn<ConnState>,
        targets: &[Target],
        verified: &[VerifiedBody],
        now: Instant,
    ) -> ConnEvent {
        while let Some(event) = conn.proto.next_event() {
            let Some(socket) = conn.state.socket.as_deref_mut() else {
                return ConnEvent::Idle;
            };
            match (event, &mut socket.stage) {
                (Event::Head { head, .. }, WsStage::Handshaking(handshake, negotiated)) => {
                    match handshake.end(&head, &self.limits, now) {
                        Ok(socket) => *negotiated = Some(socket),
                        Err(refusal) => return ConnEvent::WsRefused(refusal),
                    }
                }
                (Event::Switched { stream }, WsStage::Handshaking(_, negotiated)) => {
                    if let Some(negotiated) = negotiated.take() {
                        socket.stage = WsStage::Open(negotiated, stream);
                        return ConnEvent::WsOpened;
                    }
                }
                (Event::Closed(error), _) => {
                    let end = ConnEvent::Closed(failure_of(&error), error.rule.into());
                    // Messages received before the end still count.
                    return match self.read(conn, targets, verified, now) {
                        ConnEvent::Idle => end,
                        step => step,
                    };
                }
                _ => {}
            }
        }
        self.read(conn, targets, verified, now)
    }

    fn read(
        &mut self,
        conn: &mut Conn<ConnState>,
        targets: &[Target],
        verified: &[VerifiedBody],
        now: Instant,
    ) -> ConnEvent {
        let conn_state = &mut conn.state;
        let Some(WsState {
            stage: WsStage::Open(socket, stream),
            replies_expected,
        }) = conn_state.socket.as_deref_mut()
        else {
            return ConnEvent::Idle;
        };
        let Ok(mut stream) = conn.proto.stream(*stream) else {
            return ConnEvent::Idle;
        };
        let ahead = socket.read_ahead(&mut stream, now, &mut self.shared, usize::MAX);
        // Pongs, and the reply to a close. An error means that the stream has failed, which reading
        // reports.
        let _ = socket.flush(&mut stream, &mut self.shared);
        if ahead != ReadAhead::Event {
            return ConnEvent::Idle;
        }
        let failure = match socket.next_event() {
            Some(ws::Event::Message { kind, data }) => match conn_state.pending.front_mut() {
                Some(request) if *replies_expected > 0 => {
                    *replies_expected -= 1;
                    let target = request.target as usize;
                    let expect = &targets[target].expect;
                    let sent = targets[target].messages.map(|messages| messages.kind);
                    (request.check).message(data, sent == Some(kind), expect, &verified[target]);
                    return ConnEvent::Completed(0);
                }
                _ => Some(WsFailure::protocol_violation("an unsolicited message")),
            },
            event => event.and_then(|event| WsFailure::of(&event)),
        };
        failure.map_or(ConnEvent::Idle, |failure| {
            ConnEvent::WsFailed(Box::new(failure))
        })
    }

    /// Writes a message to its connection.
    pub(super) fn send(&mut self, conn: &mut Conn<ConnState>, target: &Target) -> Option<StreamId> {
        let (Some(message), Some(messages)) = (&target.body, target.messages) else {
            return None;
        };
        let WsStage::Open(socket, id) = &mut conn.state.socket.as_deref_mut()?.stage else {
            return None;
        };
        let stream = conn.proto.stream(*id).ok()?;
        let means = (&mut self.shared, &mut self.scratch);
        websocket::send(socket, stream, message, messages, means).then_some(*id)
    }
}

impl Worker {
    /// The target of the `WebSockets` in a slot, if any.
    pub(super) fn handshake_of(&self, slot: u32) -> Option<usize> {
        self.origins[self.slots[slot as usize].origin].handshake
    }

    /// Starts the handshake on a new connection; the slot remains in the dialling state.
    pub(super) fn upgrade(
        &mut self,
        slot: u32,
        id: ConnId,
        (begun, queued): (Instant, Option<QueuedRequest>),
        now: Instant,
    ) {
        let (Some(index), Some(conn)) = (self.handshake_of(slot), self.engine.conn(id)) else {
            return self.on_connect_failed(slot, queued, Failure::Connect, false, now);
        };
        let target = &self.config.targets[index];
        // Invalid handshakes were refused before the run.
        let Ok(handshake) = Handshake::begin(&mut conn.proto, target, &mut self.ws_context.shared)
        else {
            self.engine.abort(id);
            return self.on_connect_failed(slot, queued, Failure::Connect, false, now);
        };
        conn.state.slot = Some(slot);
        conn.state.socket = Some(Box::new(WsState {
            stage: WsStage::Handshaking(handshake, None),
            replies_expected: 0,
        }));
        self.dialling += 1;
        self.slots[slot as usize].state = State::Upgrading { id, begun, queued };
        self.engine.flush_and_rearm(id);
    }

    pub(super) fn on_upgraded(&mut self, id: ConnId, now: Instant) {
        if let Some(conn) = self.engine.conn(id)
            && let Some(slot) = conn.state.slot
            && let State::Upgrading { begun, queued, .. } = self.slots[slot as usize].state
        {
            self.dialling -= 1;
            self.on_connected(slot, id, begun, queued, now);
        }
    }

    /// Handles a response that refuses the WebSocket.
    pub(super) fn on_ws_refused(&mut self, id: ConnId, refusal: &WsRefused, now: Instant) {
        let Some(slot) = (self.engine.conn(id)).and_then(|conn| conn.state.slot.take()) else {
            return;
        };
        self.engine.abort(id);
        let State::Upgrading { queued, .. } = self.slots[slot as usize].state else {
            return;
        };
        let refused =
            (refusal.status).is_some_and(|status| self.config.refusal_statuses.contains(&status));
        if let Some(status) = refusal.status
            && (self.phase == Phase::Connecting || self.counts(now, now))
        {
            self.tally.count_status(status);
        }
        self.on_upgrade_failed(slot, queued, (refusal.failure, refused), &refusal.rule, now);
    }

    pub(super) fn on_upgrade_failed(
        &mut self,
        slot: u32,
        queued: Option<QueuedRequest>,
        (failure, refused): (Failure, bool),
        rule: &str,
        now: Instant,
    ) {
        self.dialling -= 1;
        if !refused {
            self.tally.note(|| rule.into());
        }
        self.on_connect_failed(slot, queued, failure, refused, now);
    }

    /// Handles the end of a WebSocket.
    pub(super) fn on_ws_failed(&mut self, id: ConnId, ws_failure: &WsFailure, now: Instant) {
        if let Some(code) = ws_failure.code
            && self.counts(now, now)
        {
            self.tally.count_status(code);
        }
        self.on_closed(id, ws_failure.failure, &ws_failure.rule, now);
        // Sends the reply to a close frame first.
        self.engine.flush_and_rearm(id);
        self.engine.close(id);
    }

    /// Sends a close frame if the connection is a WebSocket.
    pub(super) fn close_websocket(&mut self, id: ConnId, now: Instant) {
        if let Some(conn) = self.engine.conn(id)
            && let Some(socket) = conn.state.socket.as_deref_mut()
            && let WsStage::Open(socket, stream) = &mut socket.stage
            && let Ok(mut stream) = conn.proto.stream(*stream)
            && socket.close(now, NORMAL, "").is_ok()
        {
            let _ = socket.flush(&mut stream, &mut self.ws_context.shared);
            self.engine.flush_and_rearm(id);
        }
    }
}

impl Drop for Worker {
    /// Closes all `WebSockets` with a close frame, and QUIC connections with `CONNECTION_CLOSE`: a server would keep them
    /// until their idle timeout.
    fn drop(&mut self) {
        for index in 0..self.slots.len() {
            if let State::Open(id) = self.slots[index].state {
                self.close_websocket(id, Instant::now());
                if self.config.protocol == Protocol::Http3 {
                    self.engine.abort(id);
                }
            }
        }
    }
}
