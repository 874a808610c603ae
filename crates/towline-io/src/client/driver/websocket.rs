//! WebSocket calls: after the handshake, the stream of the call carries messages (RFC 6455, RFC 8441).
//!
//! ```text
//!   UpgradeRequest ──accepted──► Open ──closed, failed──► waits for EOF ──EOF, close timeout──► Over
//!     └──any other response: an ordinary call
//! ```
//!
//! Messages are pulled by the program: they stay unread until it asks for one, except for one message of up to
//! [`READ_AHEAD_BYTES`](crate::client::websocket::READ_AHEAD_BYTES), so that pings, pongs and the close frame around it are
//! handled. One task receives at a time; any number may send.

use std::time::{Duration, Instant};

use towline_proto::ProtocolPolicy;
use towline_proto::ws::{Kind, SendError, Status};

use super::call::{Call, Stage, StreamHandle};
use super::websocket_state::{
    OpenWebSocket, PendingRecv, Progress, WebSocketShared, WsCall, WsPhase, abnormal_closure, write,
};
use super::{CallEvent, CallId, CallRead, ClientDriver};
use crate::client::pool::Lease;
use crate::client::request::{CallError, CallErrorKind, CallPhase};
use crate::client::websocket::{
    MAX_REFUSAL_BYTES, Outgoing, WebSocketConfig, WsClosed, WsReceived, WsSendError, shared,
};
use crate::conn::id::ConnId;

/// Close code of a client that is closed (RFC 6455 7.4.1).
const GOING_AWAY: u16 = 1001;

/// Delay between a message and reading ahead. A program that asks for the next message earlier reads on anyway, and
/// its response is then sent before what follows is handled; one that works longer still gets its pings answered.
const AHEAD_AFTER: Duration = Duration::from_millis(100);

impl ClientDriver {
    pub(super) fn prepare_websocket(
        &mut self,
        config: WebSocketConfig,
    ) -> Result<Box<WsCall>, Box<CallError>> {
        if self.sockets.is_none() {
            let made = shared().map_err(|error| {
                let (kind, phase) = (CallErrorKind::LocalProtocol, CallPhase::Pool);
                Box::new(CallError::new(kind, phase, error.to_string()))
            })?;
            self.sockets = Some(WebSocketShared {
                scratch: made,
                frames: Vec::new(),
            });
        }
        Ok(Box::new(WsCall {
            config,
            stage: WsPhase::Requested(None),
        }))
    }

    /// Whether the server has accepted the WebSocket.
    pub fn is_websocket(&self, id: CallId) -> bool {
        self.call(id)
            .is_some_and(|call| call.open_websocket().is_some())
    }

    /// Returns the subprotocol that the server has chosen.
    pub fn subprotocol(&self, id: CallId) -> Option<&[u8]> {
        let websocket = self.call(id)?.open_websocket()?;
        websocket.protocol.as_deref()
    }

    /// Returns how a WebSocket has ended, once the messages before the end have been taken.
    pub fn closed(&self, id: CallId) -> Option<&WsClosed> {
        self.call(id)?.open_websocket()?.closed.as_ref()
    }

    /// Reads the body of a response that rejects a WebSocket, up to a limit. `None`: more is to come.
    pub fn refusal(&mut self, id: CallId, content: &mut Vec<u8>) -> Option<()> {
        loop {
            match self.read(
                id,
                MAX_REFUSAL_BYTES - content.len().min(MAX_REFUSAL_BYTES - 1),
            ) {
                CallRead::Data(data) => content.extend_from_slice(data),
                CallRead::Pending => return None,
                CallRead::End | CallRead::Failed(_) => return Some(()),
            }
            if content.len() >= MAX_REFUSAL_BYTES {
                return Some(());
            }
        }
    }

    /// Passes the next message to `sink`. If there is none, a `Readable` event follows: a message, the end, or
    /// `until` has come.
    pub fn receive<T>(
        &mut self,
        id: CallId,
        until: Option<Instant>,
        sink: impl FnOnce(Kind, &[u8]) -> T,
    ) -> WsReceived<T> {
        let now = self.now();
        let mut sink = Some(sink);
        for first in [true, false] {
            let (Some(call), Some(sockets)) =
                (self.calls.get_mut(id.index as usize), self.sockets.as_mut())
            else {
                break;
            };
            if call.generation != id.generation {
                break;
            }
            let over = matches!(call.stage, Stage::Over);
            let error = call.error.clone();
            let Some(websocket) = call.open_websocket_mut() else {
                break;
            };
            let taken = websocket.take(&mut sockets.scratch, |kind, data| {
                sink.take().map(|sink| sink(kind, data))
            });
            if let Some(message) = taken.flatten() {
                websocket.pending_recv = PendingRecv::Nothing;
                websocket.ahead_at.get_or_insert(now + AHEAD_AFTER);
                self.schedule_deadline(id);
                return WsReceived::Message(message);
            }
            if let Some(closed) = &websocket.closed {
                let closed = closed.clone();
                websocket.pending_recv = PendingRecv::Nothing;
                return WsReceived::Closed(closed);
            }
            if over {
                return match error {
                    Some(error) => WsReceived::Failed(error),
                    None => WsReceived::Closed(abnormal_closure()),
                };
            }
            if first {
                websocket.pending_recv = PendingRecv::Message { until };
                self.drive_websocket(id);
            }
        }
        match self.call(id).and_then(Call::open_websocket) {
            Some(_) => WsReceived::Pending,
            None => WsReceived::Closed(abnormal_closure()),
        }
    }

    /// Ends a pending receive.
    pub fn stop_receiving(&mut self, id: CallId) {
        if let Some(websocket) = self.call_mut(id).and_then(Call::open_websocket_mut) {
            websocket.pending_recv = PendingRecv::Nothing;
        }
    }

    /// Queues a message or a ping, whole or not at all. Requires that there is room for its first byte.
    pub fn send_message(&mut self, id: CallId, what: Outgoing<'_>) -> Result<(), WsSendError> {
        let Some(call) = self.call(id) else {
            return Err(WsSendError::Closed(abnormal_closure()));
        };
        let (handle, error) = (call.handle(), call.error.clone());
        let Some(StreamHandle { conn, stream, .. }) = handle else {
            return Err(error.map_or_else(|| self.closed_error(id), WsSendError::Failed));
        };
        let (Some(call), Some(peer), Some(sockets)) = (
            self.calls.get_mut(id.index as usize),
            self.engine.conn(conn),
            self.sockets.as_mut(),
        ) else {
            return Err(self.closed_error(id));
        };
        let (Some(websocket), Ok(mut stream)) =
            (call.open_websocket_mut(), peer.proto.stream(stream))
        else {
            return Err(self.closed_error(id));
        };
        if websocket.socket.status() != Status::Open {
            return Err(self.closed_error(id));
        }
        if stream.send_capacity() == 0 {
            return Err(WsSendError::NoRoom);
        }
        let written = write(&mut websocket.socket, &mut stream, sockets, what);
        match written {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(self.closed_error(id)),
            Err(misuse) => return Err(WsSendError::Misuse(misuse)),
        }
        let now = self.now();
        if let Some(call) = self.call_mut(id) {
            call.times.progress = now;
        }
        self.schedule_flush(conn);
        self.schedule_deadline(id);
        Ok(())
    }

    /// Returns the error of a send on a WebSocket that is not open.
    fn closed_error(&self, id: CallId) -> WsSendError {
        WsSendError::Closed(self.closed(id).cloned().unwrap_or_else(abnormal_closure))
    }

    /// Begins the closing handshake; harmless if it has begun. A message that has not been taken is dropped.
    pub fn close_websocket(
        &mut self,
        id: CallId,
        code: u16,
        reason: &str,
    ) -> Result<(), SendError> {
        let now = self.now();
        let (Some(call), Some(sockets)) =
            (self.calls.get_mut(id.index as usize), self.sockets.as_mut())
        else {
            return Ok(());
        };
        if call.generation != id.generation || matches!(call.stage, Stage::Over) {
            return Ok(());
        }
        let Some(websocket) = call.open_websocket_mut() else {
            return Ok(());
        };
        match websocket.socket.close(now, code, reason) {
            Ok(()) | Err(SendError::Closing) => {}
            Err(mistake) => return Err(mistake),
        }
        // An unread message must not block the peer's close frame behind it.
        while websocket.socket.has_event() {
            websocket.take(&mut sockets.scratch, |_, _| ());
        }
        self.drive_websocket(id);
        Ok(())
    }

    /// Begins the closing handshake of every open WebSocket.
    pub(super) fn close_websockets(&mut self) {
        let open = self
            .calls
            .iter()
            .filter(|(_, call)| call.open_websocket().is_some());
        let ids: Vec<CallId> = open
            .map(|(index, call)| CallId {
                index: index as u32,
                generation: call.generation,
            })
            .collect();
        for id in ids {
            // 1001 is a valid code, and a WebSocket that is closing already goes on.
            let _ = self.close_websocket(id, GOING_AWAY, "");
        }
    }

    /// Whether the call is over and its connection released.
    pub fn is_over(&self, id: CallId) -> bool {
        self.call(id)
            .is_none_or(|call| matches!(call.stage, Stage::Over))
    }

    /// Reads ahead, sends pending output, handles deadlines and notifies the program.
    pub(super) fn drive_websocket(&mut self, id: CallId) {
        let now = self.now();
        let Some(StreamHandle { conn, stream, .. }) = self.call(id).and_then(Call::handle) else {
            return;
        };
        if self.touched.is_some_and(|touched| touched != conn) {
            self.flush_touched();
        }
        let (Some(call), (peer, buffers), Some(sockets)) = (
            self.calls.get_mut(id.index as usize),
            self.engine.conn_and_buffers(conn),
            self.sockets.as_mut(),
        ) else {
            return;
        };
        let Some(websocket) = call.open_websocket_mut() else {
            return;
        };
        websocket.ahead_at = None;
        let mut peer = peer;
        let mut pull = |websocket: &mut OpenWebSocket| {
            let scratch = &mut sockets.scratch;
            let progress = peer.as_deref_mut().map_or(Progress::Ended, |peer| {
                websocket.pull(peer, stream, buffers, (now, scratch))
            });
            if progress == Progress::Ended {
                websocket.socket.received_eof(now);
            }
            progress
        };
        let mut progress = pull(websocket);
        // Received frames are handled before an expired deadline.
        websocket.socket.handle_timeout(now);
        if websocket.socket.has_output() && progress != Progress::Ended {
            progress = pull(websocket);
        }
        websocket.on_end(&mut sockets.scratch);
        if websocket.is_finished() {
            let until = now + websocket.close_timeout;
            websocket.close_deadline.get_or_insert(until);
        }
        let late = websocket.close_deadline.is_some_and(|until| until <= now);
        let over = progress == Progress::Ended || late;
        let notify = websocket.has_events(now, over);
        if notify {
            self.push_event(id, CallEvent::Readable);
        }
        if self
            .engine
            .conn(conn)
            .is_some_and(|peer| peer.proto.pending_bytes() > 0 || peer.io.quic().is_some())
        {
            self.schedule_flush(conn);
        } else if self.h2_events_of != Some(conn) {
            self.touched = Some(conn);
            if !self.in_turn {
                self.flush_touched();
            }
        }
        if over {
            self.end_websocket(id);
        } else {
            self.schedule_deadline(id);
        }
    }

    /// Whether output waits for [`flush`](Self::flush).
    pub fn is_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }

    // Over HTTP/2.

    /// Starts a call whose server has sent its SETTINGS.
    pub(super) fn start_awaiting_settings(&mut self, id: CallId, now: Instant) {
        let Some(call) = self.call_mut(id) else {
            return;
        };
        let Stage::AwaitingSettings(lease) = call.stage else {
            return;
        };
        if let Err(error) = self.start(id, &lease, now) {
            self.fail(id, error);
        }
        self.run_pool_actions();
    }

    /// Moves a call to an HTTP/1.1 connection if that is allowed: the server does not support RFC 8441.
    pub(super) fn start_over_http1(
        &mut self,
        id: CallId,
        lease: &Lease<ConnId>,
        now: Instant,
    ) -> Result<(), CallError> {
        let lacks_http1 = matches!(
            self.dial.protocols,
            ProtocolPolicy::Http2 | ProtocolPolicy::Http3
        );
        if let Some(call) = self.call_mut(id) {
            call.stage = Stage::Over;
            if !lacks_http1 {
                call.request.route = call.request.route.for_websocket();
            }
        }
        self.release_lease(lease, now);
        if lacks_http1 {
            return Err(CallError::new(
                CallErrorKind::RemoteProtocol,
                CallPhase::Head,
                "the server does not allow WebSockets over this version of HTTP (RFC 8441 3, RFC 9220 3), and HTTP/1.1 is switched off",
            ));
        }
        self.find_connection(id, false, now)
    }

    /// Fails the calls that wait for SETTINGS on a connection that has ended.
    pub(super) fn fail_awaiting_settings(&mut self, conn: ConnId) {
        let Some(peer) = self.engine.conn(conn) else {
            return;
        };
        for id in peer.state.h2.take_awaiting_settings() {
            let error = CallError::new(
                CallErrorKind::ServerDisconnected,
                CallPhase::Head,
                "the connection ended before the server's settings (RFC 9113 3.4)",
            );
            self.release_unused(id);
            self.fail(id, error);
        }
    }

    /// Releases the connection of a call that has written nothing to it.
    pub(super) fn release_unused(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        if let Stage::AwaitingSettings(lease) = call.stage {
            call.stage = Stage::Over;
            self.release_lease(&lease, now);
        }
    }

    /// Ends a WebSocket call, and with it its HTTP/1 connection or HTTP/2 stream.
    fn end_websocket(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        let Some(handle) = call.handle() else {
            return;
        };
        call.end(now);
        if let Some(peer) = self.engine.conn(handle.conn)
            && !peer.is_shared()
        {
            // Sends a last close frame if the socket accepts it now.
            peer.flush(now, usize::MAX);
        }
        self.remove(handle);
        self.run_pool_actions();
    }
}
