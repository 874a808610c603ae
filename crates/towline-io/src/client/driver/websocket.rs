//! `WebSockets`: a call whose stream goes on as one when the server grants it (RFC 6455, RFC 8441).
//!
//! ```text
//!   UpgradeRequest ──granted──► Open ──closed, failed──► Leaving ──the server's end, time──► Over
//!     └──any other answer, which is a response as usual
//! ```
//!
//! The program pulls: what it has not asked for stays unread, but for one message of up to [`AHEAD_BYTES`](crate::client::websocket::AHEAD_BYTES), so that
//! pings, pongs and the close in front of or behind it are seen. One receives at a time; all may send.

use std::time::{Duration, Instant};

use towline_proto::ProtocolPolicy;
use towline_proto::ws::{Kind, SendError, Status};

use super::call::{Call, Stage, StreamHandle, Upload};
use super::websocket_state::{
    OpenWebSocket, PendingRecv, Progress, WebSocketShared, WsCall, WsPhase, vanished, write,
};
use super::{CallEvent, CallId, CallRead, ClientDriver};
use crate::client::pool::Lease;
use crate::client::request::{CallError, CallErrorKind, CallPhase};
use crate::client::websocket::{
    MOST_REFUSAL_BYTES, Outgoing, WebSocketConfig, WsClosed, WsReceived, WsSendError, shared,
};
use crate::conn::id::ConnId;

/// The code of a client that is closed (RFC 6455 7.4.1).
const GOING_AWAY: u16 = 1001;

/// A program that works on a message asks for the next when it is done, which reads on; one that takes longer is
/// to miss no ping. What it answers in between comes before whatever stands behind.
const AHEAD_AFTER: Duration = Duration::from_millis(100);

impl ClientDriver {
    pub(super) fn talk_on(
        &mut self,
        terms: WebSocketConfig,
    ) -> Result<Box<WsCall>, Box<CallError>> {
        if self.sockets.is_none() {
            let made = shared().map_err(|error| {
                let (kind, phase) = (CallErrorKind::LocalProtocol, CallPhase::Pool);
                Box::new(CallError::new(kind, phase, error.to_string()))
            })?;
            self.sockets = Some(WebSocketShared {
                h2: made,
                frames: Vec::new(),
            });
        }
        Ok(Box::new(WsCall {
            terms,
            stage: WsPhase::Requested(None),
        }))
    }

    /// The server has granted the WebSocket.
    pub fn is_websocket(&self, id: CallId) -> bool {
        self.call(id)
            .is_some_and(|call| call.conversation().is_some())
    }

    /// The subprotocol that the server has chosen.
    pub fn subprotocol(&self, id: CallId) -> Option<&[u8]> {
        let conversation = self.call(id)?.conversation()?;
        conversation.protocol.as_deref()
    }

    /// How a WebSocket has ended, once the messages before have been taken.
    pub fn closed(&self, id: CallId) -> Option<&WsClosed> {
        self.call(id)?.conversation()?.closed.as_ref()
    }

    /// The content of the answer that refuses a WebSocket, or its first part: `None`: it is still to come.
    pub fn refusal(&mut self, id: CallId, content: &mut Vec<u8>) -> Option<()> {
        loop {
            match self.read(
                id,
                MOST_REFUSAL_BYTES - content.len().min(MOST_REFUSAL_BYTES - 1),
            ) {
                CallRead::Data(data) => content.extend_from_slice(data),
                CallRead::Pending => return None,
                CallRead::End | CallRead::Failed(_) => return Some(()),
            }
            if content.len() >= MOST_REFUSAL_BYTES {
                return Some(());
            }
        }
    }

    /// Takes the next message, through `sink`. Where there is none, `Readable` tells of one, of the end, or that
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
            let Some(conversation) = call.conversation_mut() else {
                break;
            };
            let taken = conversation.take(&mut sockets.h2, |kind, data| {
                sink.take().map(|sink| sink(kind, data))
            });
            if let Some(message) = taken.flatten() {
                conversation.asks = PendingRecv::Nothing;
                conversation.ahead_at.get_or_insert(now + AHEAD_AFTER);
                self.schedule_deadline(id);
                return WsReceived::Message(message);
            }
            if let Some(closed) = &conversation.closed {
                let closed = closed.clone();
                conversation.asks = PendingRecv::Nothing;
                return WsReceived::Closed(closed);
            }
            if over {
                return match error {
                    Some(error) => WsReceived::Failed(error),
                    None => WsReceived::Closed(vanished()),
                };
            }
            if first {
                conversation.asks = PendingRecv::Message { until };
                self.drive_websocket(id);
            }
        }
        match self.call(id).and_then(Call::conversation) {
            Some(_) => WsReceived::Pending,
            None => WsReceived::Closed(vanished()),
        }
    }

    /// Nobody waits for a message any more.
    pub fn stop_receiving(&mut self, id: CallId) {
        if let Some(conversation) = self.call_mut(id).and_then(Call::conversation_mut) {
            conversation.asks = PendingRecv::Nothing;
        }
    }

    /// Queues a message or a ping, whole or not at all, where there is room for one to begin.
    pub fn send_message(&mut self, id: CallId, what: Outgoing<'_>) -> Result<(), WsSendError> {
        let Some(call) = self.call(id) else {
            return Err(WsSendError::Closed(vanished()));
        };
        let (handle, error) = (call.handle(), call.error.clone());
        let Some(StreamHandle { conn, stream, .. }) = handle else {
            return Err(error.map_or_else(|| self.refuse(id), WsSendError::Failed));
        };
        let (Some(call), Some(peer), Some(sockets)) = (
            self.calls.get_mut(id.index as usize),
            self.engine.conn(conn),
            self.sockets.as_mut(),
        ) else {
            return Err(self.refuse(id));
        };
        let (Some(conversation), Ok(mut stream)) =
            (call.conversation_mut(), peer.proto.stream(stream))
        else {
            return Err(self.refuse(id));
        };
        if conversation.socket.status() != Status::Open {
            return Err(self.refuse(id));
        }
        if stream.send_capacity() == 0 {
            return Err(WsSendError::NoRoom);
        }
        let written = write(&mut conversation.socket, &mut stream, sockets, what);
        match written {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(self.refuse(id)),
            Err(mistake) => return Err(WsSendError::Mistake(mistake)),
        }
        let now = self.now();
        if let Some(call) = self.call_mut(id) {
            call.times.progress = now;
        }
        self.schedule_flush(conn);
        self.schedule_deadline(id);
        Ok(())
    }

    /// Why a WebSocket that is closing takes nothing more.
    fn refuse(&self, id: CallId) -> WsSendError {
        WsSendError::Closed(self.closed(id).cloned().unwrap_or_else(vanished))
    }

    /// Begins the closing handshake; harmless where it has begun. A message that nobody has taken is dropped.
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
        let Some(conversation) = call.conversation_mut() else {
            return Ok(());
        };
        match conversation.socket.close(now, code, reason) {
            Ok(()) | Err(SendError::Closing) => {}
            Err(mistake) => return Err(mistake),
        }
        // It does not hold up the peer's close behind it.
        while conversation.socket.has_event() {
            conversation.take(&mut sockets.h2, |_, _| ());
        }
        self.drive_websocket(id);
        Ok(())
    }

    /// The client goes away.
    pub(super) fn close_websockets(&mut self) {
        let open = self
            .calls
            .iter()
            .filter(|(_, call)| call.conversation().is_some());
        let ids: Vec<CallId> = open
            .map(|(index, call)| CallId {
                index: index as u32,
                generation: call.generation,
            })
            .collect();
        for id in ids {
            // The code may be sent, and one that is closing goes on doing so.
            let _ = self.close_websocket(id, GOING_AWAY, "");
        }
    }

    /// Nothing is on its way any more in either direction, and the connection has been given up.
    pub fn is_over(&self, id: CallId) -> bool {
        self.call(id)
            .is_none_or(|call| matches!(call.stage, Stage::Over))
    }

    /// Reads ahead, sends what is due, keeps the clock, and tells those who wait.
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
        let Some(conversation) = call.conversation_mut() else {
            return;
        };
        conversation.ahead_at = None;
        let mut peer = peer;
        let mut pull = |conversation: &mut OpenWebSocket| {
            let h2 = &mut sockets.h2;
            let progress = peer.as_deref_mut().map_or(Progress::BlockingError, |peer| {
                conversation.pull(peer, stream, buffers, (now, h2))
            });
            if progress == Progress::BlockingError {
                conversation.socket.received_eof(now);
            }
            progress
        };
        let mut progress = pull(conversation);
        // What has come counts before the time that it took.
        conversation.socket.handle_timeout(now);
        if conversation.socket.has_output() && progress != Progress::BlockingError {
            progress = pull(conversation);
        }
        conversation.on_end(&mut sockets.h2);
        if conversation.is_finished() {
            let until = now + conversation.close_timeout;
            conversation.leaving.get_or_insert(until);
        }
        let late = conversation.leaving.is_some_and(|until| until <= now);
        let over = progress == Progress::BlockingError || late;
        let news = conversation.has_events(now, over);
        if news {
            self.push_event(id, CallEvent::Readable);
        }
        if self
            .engine
            .conn(conn)
            .is_some_and(|peer| peer.proto.pending_bytes() > 0)
        {
            self.schedule_flush(conn);
        } else if self.h2_events_of != Some(conn) {
            self.touched = Some(conn);
            if !self.in_turn {
                self.flush_touched();
            }
        }
        if over {
            self.release_handle(id);
        } else {
            self.schedule_deadline(id);
        }
    }

    /// Something waits for [`flush`](Self::flush).
    pub fn is_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }

    // Over HTTP/2.

    /// The server has said whether it allows `WebSockets`.
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

    /// It does not: a connection of HTTP/1.1, where that may be spoken.
    pub(super) fn start_elsewhere(
        &mut self,
        id: CallId,
        lease: &Lease<ConnId>,
        now: Instant,
    ) -> Result<(), CallError> {
        let only_http2 = self.dial.protocols == ProtocolPolicy::Http2;
        if let Some(call) = self.call_mut(id) {
            call.stage = Stage::Over;
            if !only_http2 {
                call.request.route = call.request.route.for_websocket();
            }
        }
        self.return_unused(lease, now);
        if only_http2 {
            return Err(CallError::new(
                CallErrorKind::RemoteProtocol,
                CallPhase::Head,
                "the server does not allow WebSockets over HTTP/2 (RFC 8441 3), and HTTP/1.1 is switched off",
            ));
        }
        self.find_connection(id, false, now)
    }

    /// A connection ends before its server has said it.
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

    /// A call gives back a connection on which it has sent nothing.
    pub(super) fn release_unused(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        if let Stage::AwaitingSettings(lease) = call.stage {
            call.stage = Stage::Over;
            self.return_unused(&lease, now);
        }
    }

    /// A WebSocket is over, and its connection, or its stream, with it.
    fn release_handle(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        let Some(handle) = call.handle() else {
            return;
        };
        call.stage = Stage::Over;
        call.upload = Upload::Done;
        call.times.over = Some(now);
        if let Some(peer) = self.engine.conn(handle.conn)
            && !peer.is_shared()
        {
            // A last close frame, as far as the system takes it.
            peer.flush(now, usize::MAX);
        }
        self.remove(handle);
        self.run_pool_actions();
    }
}
