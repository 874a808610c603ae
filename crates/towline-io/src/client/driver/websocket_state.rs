//! WebSocket state of a call: codec, pending receive and closing.

use std::time::{Duration, Instant};

use towline_proto::ws::{self, Event, Kind, ReadAhead, SendError, Status, WebSocket};
use towline_proto::{
    BodySize, BufferPool, HeadRef, Side, StreamId, StreamMut, StreamRead, UserError,
};

use crate::client::request::OutgoingRequest;
use crate::client::websocket::{
    Outgoing, READ_AHEAD_BYTES, UpgradeRequest, WebSocketConfig, WsClosed,
};
use crate::conn::Conn;

/// A call that requests, or has become, a WebSocket; see `websocket`.
pub(super) struct WsCall {
    pub(super) config: WebSocketConfig,
    pub(super) stage: WsPhase,
}

pub(super) enum WsPhase {
    /// `None`: the request has no connection yet.
    Requested(Option<UpgradeRequest>),
    Open(Box<OpenWebSocket>),
}

pub(super) struct OpenWebSocket {
    pub(super) socket: WebSocket,
    pub(super) protocol: Option<Vec<u8>>,
    pub(super) close_timeout: Duration,
    /// The receive in progress, with its deadline.
    pub(super) pending_recv: PendingRecv,
    /// When to read ahead if the program has not asked for another message by then.
    pub(super) ahead_at: Option<Instant>,
    /// How the WebSocket ended. Set once the messages before the end have been taken.
    pub(super) closed: Option<WsClosed>,
    /// Deadline for the server's end of the connection: closed at once, it could lose our close frame.
    pub(super) close_deadline: Option<Instant>,
    /// The program has been notified that the WebSocket is no longer open.
    pub(super) is_end_notified: bool,
}

/// The receive that the program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingRecv {
    Nothing,
    Message { until: Option<Instant> },
}

impl PendingRecv {
    fn until(self) -> Option<Instant> {
        match self {
            Self::Nothing => None,
            Self::Message { until } => until,
        }
    }
}

/// Result of reading as far as allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything received has been read.
    Drained,
    /// Reading is paused.
    Paused,
    /// Nothing more arrives.
    Ended,
}

/// Shared by the `WebSockets` of one [`ClientDriver`](super::ClientDriver).
pub(super) struct WebSocketShared {
    pub(super) scratch: ws::Scratch,
    /// Buffer in which short messages are framed.
    pub(super) frames: Vec<u8>,
}

/// Close code of a connection that ended without a close frame (RFC 6455 7.1.5).
const ABNORMAL_CLOSURE: u16 = 1006;

/// Messages shorter than this are copied behind their frame header; longer ones are sent by reference.
const COPIED_BYTES: usize = 16 * 1024;

impl WsCall {
    /// Writes the request. Each connection gets its own key (RFC 6455 4.1).
    pub(super) fn write_request<S>(
        &mut self,
        peer: &mut Conn<S>,
        request: &OutgoingRequest,
        sockets: Option<&mut WebSocketShared>,
    ) -> Result<StreamId, UserError> {
        let nonce = sockets.map(|sockets| sockets.scratch.nonce());
        let nonce = nonce.unwrap_or_default();
        let upgrade = if peer.is_shared() {
            UpgradeRequest::extended(&self.config)
        } else {
            UpgradeRequest::upgrade(&self.config, nonce)
        };
        let text = upgrade.request(&request.head);
        self.stage = WsPhase::Requested(Some(upgrade));
        let alt_used = peer.alt_used(request);
        text.with_head_and(alt_used, |head| peer.proto.request(head, BodySize::Empty))
    }
}

impl WsCall {
    /// Opens the WebSocket if the final head accepts it; false for any other response. An error is the rule that
    /// the head violates.
    pub(super) fn open_if_granted(
        &mut self,
        head: &HeadRef<'_>,
        now: Instant,
    ) -> Result<bool, &'static str> {
        let WsPhase::Requested(Some(request)) = &self.stage else {
            return Ok(false);
        };
        let Some(granted) = request.check_response(head) else {
            return Ok(false);
        };
        let granted = granted?;
        let deflate = granted.deflate.zip(self.config.deflate);
        let limits = self.config.limits.clone();
        self.stage = WsPhase::Open(Box::new(OpenWebSocket {
            socket: WebSocket::new(Side::Client, limits, deflate, now),
            protocol: granted.protocol,
            close_timeout: self.config.limits.close_timeout,
            pending_recv: PendingRecv::Nothing,
            ahead_at: None,
            closed: None,
            close_deadline: None,
            is_end_notified: false,
        }));
        Ok(true)
    }
}

impl OpenWebSocket {
    /// Returns the earliest deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let times = [
            self.socket.deadline(),
            self.close_deadline,
            self.ahead_at,
            self.pending_recv.until(),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether closing is complete but for the server's end and our own close frame.
    pub(super) fn is_finished(&self) -> bool {
        self.socket.status() != Status::Open && self.socket.deadline().is_none()
    }

    /// Reads what is allowed of what was received, and queues pending output.
    fn advance(
        &mut self,
        stream: &mut StreamMut<'_>,
        now: Instant,
        scratch: &mut ws::Scratch,
    ) -> Progress {
        if !self.is_finished() {
            let max_bytes = match self.pending_recv {
                PendingRecv::Message { .. } => usize::MAX,
                PendingRecv::Nothing => READ_AHEAD_BYTES,
            };
            let mut ahead = self.socket.read_ahead(stream, now, scratch, max_bytes);
            // An error means that the stream failed; the next read returns it.
            let _ = self.socket.flush(stream, scratch);
            if self.on_end(scratch) {
                ahead = self.socket.read_ahead(stream, now, scratch, max_bytes);
            }
            if !self.is_finished() {
                return match ahead {
                    ReadAhead::Pending => Progress::Drained,
                    ReadAhead::Event | ReadAhead::Full | ReadAhead::Ended => Progress::Paused,
                };
            }
        }
        let _ = self.socket.flush(stream, scratch);
        loop {
            match stream.read(usize::MAX) {
                StreamRead::Data(_) => {}
                StreamRead::Pending => return Progress::Drained,
                StreamRead::End | StreamRead::Failed => return Progress::Ended,
            }
        }
    }

    /// Runs `advance`, and receives from the socket as long as it is readable.
    pub(super) fn pull<S>(
        &mut self,
        peer: &mut Conn<S>,
        id: StreamId,
        buffers: &mut BufferPool,
        (now, scratch): (Instant, &mut ws::Scratch),
    ) -> Progress {
        loop {
            let is_shared = peer.is_shared();
            let Ok(mut stream) = peer.proto.stream(id) else {
                return Progress::Ended;
            };
            let progress = self.advance(&mut stream, now, scratch);
            if is_shared && self.is_finished() && !self.socket.has_output() {
                // Ending the stream corresponds to closing the connection in HTTP/1.1 (RFC 8441 5).
                let _ = stream.finish();
            }
            if progress != Progress::Drained || !peer.may_receive() || !peer.receive(buffers, now) {
                return progress;
            }
        }
    }

    /// Takes the event that ends the WebSocket, without a pending receive. Returns whether there was one.
    pub(super) fn on_end(&mut self, scratch: &mut ws::Scratch) -> bool {
        let is_end = self.socket.status() != Status::Open && self.socket.has_event();
        if is_end {
            self.take(scratch, |_, _| ());
        }
        is_end
    }

    /// Takes the next event. A message goes to `sink`.
    pub(super) fn take<T>(
        &mut self,
        scratch: &mut ws::Scratch,
        sink: impl FnOnce(Kind, &[u8]) -> T,
    ) -> Option<T> {
        let taken = match self.socket.next_event() {
            Some(Event::Message { kind, data }) => Some(sink(kind, data)),
            Some(Event::Close { code, reason }) => {
                self.closed.get_or_insert(WsClosed {
                    code,
                    reason: reason.to_owned(),
                    rule: None,
                });
                None
            }
            Some(Event::Failed(violation)) => {
                self.closed.get_or_insert(WsClosed {
                    code: violation.code,
                    reason: String::new(),
                    rule: Some(violation.rule),
                });
                None
            }
            Some(Event::Ping(_) | Event::Pong(_)) | None => None,
        };
        self.socket.release(scratch);
        taken
    }

    /// Whether to notify the program: of a message, a deadline, or the end.
    pub(super) fn has_events(&mut self, now: Instant, over: bool) -> bool {
        let late = self.pending_recv.until().is_some_and(|until| until <= now);
        let is_end = self.socket.status() != Status::Open
            && !std::mem::replace(&mut self.is_end_notified, true);
        let ended = self.closed.is_some();
        let due =
            self.pending_recv != PendingRecv::Nothing && (self.socket.has_event() || ended || late);
        if due {
            self.pending_recv = PendingRecv::Nothing;
        }
        due || is_end || over
    }
}

/// Queues a message or a ping.
pub(super) fn write(
    socket: &mut WebSocket,
    stream: &mut StreamMut<'_>,
    sockets: &mut WebSocketShared,
    what: Outgoing<'_>,
) -> Result<Result<(), UserError>, SendError> {
    let WebSocketShared { scratch, frames } = sockets;
    frames.clear();
    match what {
        Outgoing::Message(kind, data) if data.len() >= COPIED_BYTES => {
            let frame = socket.frame(kind, data, true, scratch)?;
            let head = stream.write(frame.head.as_bytes());
            return Ok(head.and_then(|()| stream.write_shared(frame.payload)));
        }
        Outgoing::Message(kind, data) => socket.send(kind, &data, true, scratch, frames)?,
        Outgoing::Ping(payload) => socket.ping(payload, scratch, frames)?,
    }
    Ok(stream.write(frames))
}

pub(super) fn abnormal_closure() -> WsClosed {
    WsClosed {
        code: ABNORMAL_CLOSURE,
        reason: String::new(),
        rule: Some("the WebSocket has been closed"),
    }
}
