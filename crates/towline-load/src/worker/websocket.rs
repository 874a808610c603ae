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
use towline_proto::ws::{self, ReadAhead, Scratch};
use towline_proto::{Connection, Event, Protocol, StreamId, UserError};

use super::Worker;
use super::conn_state::{ConnState, WsStage, WsState};
use super::events::{ConnEvent, failure_of};
use super::slot::{PendingDial, QueuedRequest, State};
use crate::check::VerifiedBody;
use crate::config::Config;
use crate::stats::Failure;
use crate::target::Target;
use crate::websocket::{self, Handshake, WsFailure, WsRefused};

/// Normal closure (RFC 6455 7.4.1).
const NORMAL: u16 = 1000;

/// State shared by all `WebSockets` of a thread.
pub(super) struct WsContext {
    shared: Scratch,
    limits: Arc<ws::Limits>,
    /// Frames to be written to a connection.
    scratch: Vec<u8>,
}

impl WsContext {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            shared: Scratch::new(towline_io::seed()?),
            limits: websocket::limits(config.longest_message()),
            scratch: Vec::new(),
        })
    }

    /// Sends the handshake for `target` on a new connection.
    fn begin(&mut self, conn: &mut Connection, target: &Target) -> Result<Handshake, UserError> {
        Handshake::begin(conn, target, &mut self.shared)
    }

    /// Sends a close frame if the connection is an open WebSocket.
    fn close(&mut self, conn: &mut Conn<ConnState>, now: Instant) -> Option<()> {
        let WsStage::Open(socket, stream) = &mut conn.state.socket.as_deref_mut()?.stage else {
            return None;
        };
        let mut stream = conn.proto.stream(*stream).ok()?;
        socket.close(now, NORMAL, "").ok()?;
        let _ = socket.flush(&mut stream, &mut self.shared);
        Some(())
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
        self.origin_of(slot).handshake()
    }

    /// Starts the handshake on a new connection.
    pub(super) fn upgrade(&mut self, slot: u32, id: ConnId, opening: PendingDial, now: Instant) {
        let refused = (Failure::Connect, false);
        let (Some(index), Some(conn)) = (self.handshake_of(slot), self.engine.conn(id)) else {
            return self.on_connect_failed(slot, opening.queued, refused, now);
        };
        let target = &self.config.targets[index];
        // Invalid handshakes were refused before the run.
        let Ok(handshake) = self.writer.websockets.begin(&mut conn.proto, target) else {
            self.engine.abort(id);
            return self.on_connect_failed(slot, opening.queued, refused, now);
        };
        conn.state.slot = Some(slot);
        conn.state.socket = Some(Box::new(WsState {
            stage: WsStage::Handshaking(handshake, None),
            replies_expected: 0,
        }));
        self.slots.upgrade(slot, id, opening);
        self.engine.flush_and_rearm(id);
    }

    pub(super) fn on_upgraded(&mut self, id: ConnId, now: Instant) {
        if let Some(conn) = self.engine.conn(id)
            && let Some(slot) = conn.state.slot
            && let State::Upgrading(_, opening) = self.slots.state(slot)
        {
            self.on_connected(slot, id, opening, now);
        }
    }

    /// Handles a response that refuses the WebSocket.
    pub(super) fn on_ws_refused(&mut self, id: ConnId, refusal: &WsRefused, now: Instant) {
        let Some(slot) = (self.engine.conn(id)).and_then(|conn| conn.state.slot.take()) else {
            return;
        };
        self.engine.abort(id);
        let State::Upgrading(_, opening) = self.slots.state(slot) else {
            return;
        };
        let refused =
            (refusal.status).is_some_and(|status| self.config.refusal_statuses.contains(&status));
        if let Some(status) = refusal.status
            && self.window.counts_now(now)
        {
            self.tally.count_status(status);
        }
        let failure = (refusal.failure, refused);
        self.on_upgrade_failed(slot, opening.queued, failure, &refusal.rule, now);
    }

    pub(super) fn on_upgrade_failed(
        &mut self,
        slot: u32,
        queued: Option<QueuedRequest>,
        (failure, refused): (Failure, bool),
        rule: &str,
        now: Instant,
    ) {
        if !refused {
            self.tally.note(|| rule.into());
        }
        self.on_connect_failed(slot, queued, (failure, refused), now);
    }

    /// Handles the end of a WebSocket.
    pub(super) fn on_ws_failed(&mut self, id: ConnId, ws_failure: &WsFailure, now: Instant) {
        if let Some(code) = ws_failure.code
            && self.window.counts(now, now)
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
            && self.writer.websockets.close(conn, now).is_some()
        {
            self.engine.flush_and_rearm(id);
        }
    }
}

impl Drop for Worker {
    /// Closes all `WebSockets` with a close frame, and QUIC connections with `CONNECTION_CLOSE`: a server would keep them
    /// until their idle timeout.
    fn drop(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            if let State::Open(id) = self.slots.state(slot) {
                self.close_websocket(id, Instant::now());
                if self.config.protocol == Protocol::Http3 {
                    self.engine.abort(id);
                }
            }
        }
    }
}
