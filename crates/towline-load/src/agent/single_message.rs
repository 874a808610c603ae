//! Sends one message over a WebSocket and returns the reply.

use std::io;
use std::time::Instant;

use towline_io::Conn;
use towline_proto::ws::{Event, Kind, ReadAhead, Scratch, WebSocket};
use towline_proto::{HeadRef, StreamId, UserError};

use crate::target::Target;
use crate::websocket::{self, Handshake, WsFailure, WsRefused};

pub(super) struct SingleMessage<'a> {
    target: &'a Target,
    shared: Scratch,
    handshake: Option<Handshake>,
    socket: Option<WebSocket>,
    /// Known after the connection has switched.
    stream: Option<StreamId>,
}

impl<'a> SingleMessage<'a> {
    /// `None`: the target is not a WebSocket.
    pub(super) fn of(target: &'a Target) -> io::Result<Option<Self>> {
        if target.messages.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            target,
            shared: Scratch::new(towline_io::seed()?),
            handshake: None,
            socket: None,
            stream: None,
        }))
    }

    pub(super) fn start(&mut self, conn: &mut Conn<()>) -> Result<(), UserError> {
        let handshake = Handshake::begin(&mut conn.proto, self.target, &mut self.shared)?;
        self.handshake = Some(handshake);
        Ok(())
    }

    /// Verifies the response to the handshake.
    pub(super) fn on_head(&mut self, head: &HeadRef<'_>) -> Result<(), WsRefused> {
        if let Some(handshake) = self.handshake.take() {
            let limits = websocket::limits(self.target.longest_message());
            self.socket = Some(handshake.end(head, &limits, Instant::now())?);
        }
        Ok(())
    }

    /// Sends the message after the connection has switched.
    pub(super) fn send(&mut self, conn: &mut Conn<()>, id: StreamId) {
        self.stream = Some(id);
        let (Some(messages), Some(socket)) = (self.target.messages, &mut self.socket) else {
            return;
        };
        let message = self.target.body.clone().unwrap_or_default();
        if let Ok(stream) = conn.proto.stream(id) {
            let means = (&mut self.shared, &mut Vec::new());
            // An error means that the stream is ending, which the next read reports.
            websocket::send(socket, stream, &message, messages, means);
        }
    }

    /// Whether messages may be received.
    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// The next message, or the end of the WebSocket; `None`: nothing yet.
    pub(super) fn next_reply(&mut self, conn: &mut Conn<()>) -> Option<Result<WsReply, WsFailure>> {
        let socket = self.socket.as_mut()?;
        let mut stream = conn.proto.stream(self.stream?).ok()?;
        let ahead = socket.read_ahead(&mut stream, Instant::now(), &mut self.shared, usize::MAX);
        let _ = socket.flush(&mut stream, &mut self.shared);
        if ahead != ReadAhead::Event {
            return None;
        }
        match socket.next_event()? {
            Event::Message { kind, data } => Some(Ok(WsReply {
                kind: match kind {
                    Kind::Text => "text",
                    Kind::Binary => "binary",
                },
                data: data.to_vec(),
            })),
            event => WsFailure::of(&event).map(Err),
        }
    }
}

/// A message received.
pub(super) struct WsReply {
    pub(super) kind: &'static str,
    pub(super) data: Vec<u8>,
}
