//! WebSocket state of a call: the codec, the pending receive, the close.

use std::time::{Duration, Instant};

use towline_proto::ws::{self, Event, Kind, ReadAhead, SendError, Status, WebSocket};
use towline_proto::{
    BodySize, BufferPool, HeadRef, Side, StreamId, StreamMut, StreamRead, UserError,
};

use super::ConnState;
use crate::client::request::OutgoingRequest;
use crate::client::websocket::{AHEAD_BYTES, Outgoing, UpgradeRequest, WebSocketConfig, WsClosed};
use crate::conn::Conn;

/// See the module's picture.
pub(super) struct WsCall {
    pub(super) terms: WebSocketConfig,
    pub(super) stage: WsPhase,
}

pub(super) enum WsPhase {
    /// `None`: its connection is still to come.
    Requested(Option<UpgradeRequest>),
    Open(Box<OpenWebSocket>),
}

pub(super) struct OpenWebSocket {
    pub(super) socket: WebSocket,
    pub(super) protocol: Option<Vec<u8>>,
    pub(super) close_timeout: Duration,
    /// The program waits for a message, and until when.
    pub(super) asks: PendingRecv,
    /// When to read on behind a message that has been taken, if the program has not asked for the next by then.
    pub(super) ahead_at: Option<Instant>,
    /// Reason of its end, set once the messages before it have been taken.
    pub(super) closed: Option<WsClosed>,
    /// The connection is kept for the server's end until then: closed at once it could lose our close frame.
    pub(super) leaving: Option<Instant>,
    /// The program has been notified that it is no longer open.
    pub(super) is_end_notified: bool,
}

/// The pending receive of the program.
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

/// How far reading came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All that is here has been read.
    Empty,
    /// No more is read for now.
    Rests,
    /// Nothing comes any more.
    BlockingError,
}

/// Buffers shared by the `WebSockets` of one `ClientDriver`.
pub(super) struct WebSocketShared {
    pub(super) h2: ws::Scratch,
    /// Short messages are put together here.
    pub(super) frames: Vec<u8>,
}

/// The code of a connection that ended without a close frame (RFC 6455 7.1.5).
const VANISHED: u16 = 1006;

/// Messages shorter than this are put together with others; longer ones are handed over whole.
const COPIED_BYTES: usize = 16 * 1024;

impl WsCall {
    /// Writes the request. Each connection gets a key of its own (RFC 6455 4.1).
    pub(super) fn ask(
        &mut self,
        peer: &mut Conn<ConnState>,
        request: &OutgoingRequest,
        sockets: Option<&mut WebSocketShared>,
    ) -> Result<StreamId, UserError> {
        let nonce = sockets.map(|sockets| sockets.h2.nonce());
        let nonce = nonce.unwrap_or_default();
        let asked = if peer.is_shared() {
            UpgradeRequest::extended(&self.terms)
        } else {
            UpgradeRequest::upgrade(&self.terms, nonce)
        };
        let text = asked.request(&request.head);
        self.stage = WsPhase::Requested(Some(asked));
        text.with_head(|head| peer.proto.request(head, BodySize::Empty))
    }
}

impl WsCall {
    /// Opens the WebSocket if the final head grants it; false for any other response. An error is the rule that
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
        let deflate = granted.deflate.zip(self.terms.deflate);
        let limits = self.terms.limits.clone();
        self.stage = WsPhase::Open(Box::new(OpenWebSocket {
            socket: WebSocket::new(Side::Client, limits, deflate, now),
            protocol: granted.protocol,
            close_timeout: self.terms.limits.close_timeout,
            asks: PendingRecv::Nothing,
            ahead_at: None,
            closed: None,
            leaving: None,
            is_end_notified: false,
        }));
        Ok(true)
    }
}

impl OpenWebSocket {
    /// When something is to be done, whatever comes.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let times = [
            self.socket.deadline(),
            self.leaving,
            self.ahead_at,
            self.asks.until(),
        ];
        times.into_iter().flatten().min()
    }

    /// Nothing is said any more; the server's end, and our own close frame, are still to come.
    pub(super) fn is_finished(&self) -> bool {
        self.socket.status() != Status::Open && self.socket.deadline().is_none()
    }

    /// Reads what may be read of what is here, and sends what is due.
    fn advance(
        &mut self,
        stream: &mut StreamMut<'_>,
        now: Instant,
        h2: &mut ws::Scratch,
    ) -> Progress {
        if !self.is_finished() {
            let most = match self.asks {
                PendingRecv::Message { .. } => usize::MAX,
                PendingRecv::Nothing => AHEAD_BYTES,
            };
            let mut ahead = self.socket.read_ahead(stream, now, h2, most);
            // A refusal is about a stream that has failed, which the next read tells.
            let _ = self.socket.flush(stream, h2);
            if self.on_end(h2) {
                ahead = self.socket.read_ahead(stream, now, h2, most);
            }
            if !self.is_finished() {
                return match ahead {
                    ReadAhead::Pending => Progress::Empty,
                    ReadAhead::Event | ReadAhead::Full | ReadAhead::Ended => Progress::Rests,
                };
            }
        }
        let _ = self.socket.flush(stream, h2);
        loop {
            match stream.read(usize::MAX) {
                StreamRead::Data(_) => {}
                StreamRead::Pending => return Progress::Empty,
                StreamRead::End | StreamRead::Failed => return Progress::BlockingError,
            }
        }
    }

    /// `advance`, and reading from the socket where it is known to have something.
    pub(super) fn pull(
        &mut self,
        peer: &mut Conn<ConnState>,
        id: StreamId,
        buffers: &mut BufferPool,
        (now, h2): (Instant, &mut ws::Scratch),
    ) -> Progress {
        loop {
            let is_shared = peer.is_shared();
            let Ok(mut stream) = peer.proto.stream(id) else {
                return Progress::BlockingError;
            };
            let progress = self.advance(&mut stream, now, h2);
            if is_shared && self.is_finished() && !self.socket.has_output() {
                // What is the end of a connection on HTTP/1.1 is the end of a stream here (RFC 8441 5).
                let _ = stream.finish();
            }
            if progress != Progress::Empty
                || !peer.input.readable
                || peer.input.over
                || !peer.receive(buffers, now)
            {
                return progress;
            }
        }
    }

    /// Its end needs nobody who asks for it; what follows is read.
    pub(super) fn on_end(&mut self, h2: &mut ws::Scratch) -> bool {
        let ends = self.socket.status() != Status::Open && self.socket.has_event();
        if ends {
            self.take(h2, |_, _| ());
        }
        ends
    }

    /// Takes the event that waits. The message goes to `sink`.
    pub(super) fn take<T>(
        &mut self,
        h2: &mut ws::Scratch,
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
        self.socket.release(h2);
        taken
    }

    /// Somebody has to look: at a message, at the time, at the end.
    pub(super) fn has_events(&mut self, now: Instant, over: bool) -> bool {
        let late = self.asks.until().is_some_and(|until| until <= now);
        let ends = self.socket.status() != Status::Open
            && !std::mem::replace(&mut self.is_end_notified, true);
        let ended = self.closed.is_some();
        let due = self.asks != PendingRecv::Nothing && (self.socket.has_event() || ended || late);
        if due {
            self.asks = PendingRecv::Nothing;
        }
        due || ends || over
    }
}

/// Queues what there is room for.
pub(super) fn write(
    socket: &mut WebSocket,
    stream: &mut StreamMut<'_>,
    sockets: &mut WebSocketShared,
    what: Outgoing<'_>,
) -> Result<Result<(), UserError>, SendError> {
    let WebSocketShared { h2, frames } = sockets;
    frames.clear();
    match what {
        Outgoing::Message(kind, data) if data.len() >= COPIED_BYTES => {
            let frame = socket.frame(kind, data, true, h2)?;
            let head = stream.write(frame.head.as_bytes());
            return Ok(head.and_then(|()| stream.write_shared(frame.payload)));
        }
        Outgoing::Message(kind, data) => socket.send(kind, &data, true, h2, frames)?,
        Outgoing::Ping(payload) => socket.ping(payload, h2, frames)?,
    }
    Ok(stream.write(frames))
}

pub(super) fn vanished() -> WsClosed {
    WsClosed {
        code: VANISHED,
        reason: String::new(),
        rule: Some("the WebSocket has been closed"),
    }
}
