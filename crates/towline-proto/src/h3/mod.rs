//! HTTP/3 (RFC 9114): the connection as a whole. Exchanges follow; until then no request can be sent, and streams of
//! the peer are refused.
#![expect(clippy::unused_self, reason = "the interface of a whole connection")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::error::{CloseReason, ErrorSource};
use crate::{
    BodySize, BufferPool, ConnectionError, Event, Interest, Limits, PreparedRequest, QuicClose,
    QuicCommand, Refusal, RequestHead, ResponseHead, Side, StreamId, StreamRecv, StreamSend,
    UserError,
};

/// One end of an HTTP/3 connection.
#[derive(Debug)]
pub struct Connection {
    side: Side,
    commands: VecDeque<QuicCommand>,
    is_closed: bool,
    /// The last event is due.
    closed_event: bool,
    error: Option<Arc<ConnectionError>>,
}

impl Connection {
    pub fn new(side: Side, _limits: Arc<Limits>, _now: Instant) -> Self {
        Self {
            side,
            commands: VecDeque::new(),
            is_closed: false,
            closed_event: false,
            error: None,
        }
    }

    pub fn side(&self) -> Side {
        self.side
    }

    pub fn stream_readable(&mut self, _now: Instant, id: u64) {
        let code = crate::ErrorCode::H3_REQUEST_REJECTED.0;
        self.commands
            .push_back(QuicCommand::StopSending { id, code });
    }

    pub fn next_stream_recv(&mut self) -> Option<StreamRecv> {
        None
    }

    pub fn stream_received(&mut self, _now: Instant, _id: u64, _data: Bytes) {}

    pub fn stream_end(&mut self, _now: Instant, _id: u64) {}

    pub fn stream_reset_received(&mut self, _now: Instant, _id: u64, _code: u64) {}

    pub fn stream_drained(&mut self, _id: u64) {}

    pub fn stream_stop_received(&mut self, _now: Instant, _id: u64, _code: u64) {}

    pub fn set_stream_credit(&mut self, _now: Instant, _bidi_available: u64) {}

    pub fn quic_closed(&mut self, _now: Instant, close: QuicClose) {
        let (reason, source, rule) = match close {
            QuicClose::ByApplication(_) => (
                CloseReason::Done,
                ErrorSource::None,
                "closed by the peer (RFC 9114 5.3)",
            ),
            QuicClose::ByTransport(rule) => (CloseReason::Aborted, ErrorSource::Peer, rule),
            QuicClose::IdleTimeout => (
                CloseReason::Timeout,
                ErrorSource::None,
                "idle timeout (RFC 9000 10.1)",
            ),
        };
        self.end(ConnectionError::new(reason, source, 0, rule));
    }

    fn end(&mut self, error: ConnectionError) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.closed_event = true;
            self.error = Some(Arc::new(error));
        }
    }

    pub fn next_quic_command(&mut self) -> Option<QuicCommand> {
        self.commands.pop_front()
    }

    pub fn next_stream_send(&mut self) -> Option<StreamSend> {
        None
    }

    pub fn stream_sent(&mut self, _now: Instant, _id: u64, _n: usize, _end: bool) {}

    pub fn stream_writable(&mut self, _now: Instant, _id: u64) {}

    pub fn stream_acknowledged(&mut self, _now: Instant, _id: u64) {}

    pub fn received_abort(&mut self, _now: Instant, rule: &'static str) {
        self.end(ConnectionError::new(
            CloseReason::Aborted,
            ErrorSource::Peer,
            0,
            rule,
        ));
    }

    pub fn release(&mut self, _buffers: &mut BufferPool) {}

    pub fn handle_timeout(&mut self, _now: Instant) {}

    pub fn request(
        &mut self,
        _head: &RequestHead<'_>,
        _size: BodySize,
    ) -> Result<StreamId, UserError> {
        self.no_request()
    }

    pub fn request_pipelined(
        &mut self,
        _head: &RequestHead<'_>,
        _body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        self.no_request()
    }

    pub fn request_prepared(&mut self, _request: &PreparedRequest) -> Result<StreamId, UserError> {
        self.no_request()
    }

    fn no_request(&self) -> Result<StreamId, UserError> {
        match self.side {
            Side::Client => Err(UserError::NotIdle),
            Side::Server => Err(UserError::WrongSide),
        }
    }

    pub fn respond(
        &mut self,
        _id: StreamId,
        _head: &ResponseHead<'_>,
        _size: BodySize,
    ) -> Result<(), UserError> {
        match self.side {
            Side::Client => Err(UserError::WrongSide),
            Side::Server => Err(UserError::UnknownStream),
        }
    }

    pub fn drain(&mut self, _now: Instant) {
        self.close();
    }

    pub fn close(&mut self) {
        if !self.is_closed {
            let (code, reason) = (crate::ErrorCode::H3_NO_ERROR.0, "");
            self.commands.push_back(QuicCommand::Close { code, reason });
            let done =
                ConnectionError::new(CloseReason::Done, ErrorSource::None, 0, "closed in order");
            self.end(done);
        }
    }

    pub fn next_event(&mut self) -> Option<Event<'_>> {
        std::mem::take(&mut self.closed_event)
            .then(|| self.error.clone())
            .flatten()
            .map(Event::Closed)
    }

    pub fn has_events(&self) -> bool {
        self.closed_event
    }

    pub fn interest(&self) -> Interest {
        let has_commands = !self.commands.is_empty();
        Interest {
            read: !self.is_closed,
            write: has_commands,
            closed: self.is_closed && !has_commands,
            ..Interest::default()
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    pub fn is_idle(&self) -> bool {
        !self.is_closed
    }

    pub fn stream_capacity(&self) -> usize {
        0
    }

    pub fn stream_limit(&self) -> usize {
        0
    }

    pub fn extended_connect(&self) -> Option<bool> {
        None
    }

    pub fn response_started(&self) -> bool {
        false
    }

    pub fn has_refusals(&self) -> bool {
        false
    }

    pub fn take_refusal(&mut self) -> Option<Refusal> {
        None
    }

    pub fn refusal_of(&self, _id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        None
    }

    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.error.as_ref()
    }
}
