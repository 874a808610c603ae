//! The public surface: one connection, whatever its side and protocol version.
//!
//! Four kinds of methods, named by direction: from the network and the clock (`recv_space`,
//! `received*`, `sent`, `handle_timeout`), from the program (`request`, `respond`, `stream`, `close`),
//! towards both (`next_event`, `send_slices`, `interest`, `deadline`), and plain getters.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::{
    Blocks, BodySize, ConnectionError, Event, Field, Fields, Interest, Limits, Read, RequestHead,
    ResponseHead, Side, StreamId, UserError,
};

/// One end of one transport connection.
#[derive(Debug)]
pub struct Connection {
    side: Side,
}

impl Connection {
    /// The server's end of a connection accepted at `now`: the header deadline counts from here.
    pub fn server(_limits: Arc<Limits>, _now: Instant) -> Self {
        Self { side: Side::Server }
    }

    /// The client's end of a connection established at `now`.
    pub fn client(_limits: Arc<Limits>, _now: Instant) -> Self {
        Self { side: Side::Client }
    }

    /// Which end this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Where the next bytes from the transport go. Empty: stop reading, the program is behind.
    pub fn recv_space<'a>(&'a mut self, _blocks: &mut Blocks) -> &'a mut [u8] {
        &mut []
    }

    /// `n` bytes were put into `recv_space`. Drain `next_event` afterwards.
    pub fn received(&mut self, _now: Instant, _n: usize) {}

    /// The transport reached its orderly end (FIN; under TLS, `close_notify`).
    pub fn received_eof(&mut self, _now: Instant) {}

    /// The transport broke (reset, TLS truncation or alert); `rule` says how, for the error.
    pub fn received_abort(&mut self, _now: Instant, _rule: &'static str) {}

    /// `n` bytes of `send_slices` have left; 0: the transport would block, which starts the clock on
    /// the reader at the other end.
    pub fn sent(&mut self, _now: Instant, _n: usize) {}

    /// `n` bytes of the body of `id` went into the transport without passing through here (`sendfile`),
    /// while nothing was pending. They count against the announced size and as progress at `now`.
    pub fn sent_outside(&mut self, _now: Instant, _id: StreamId, _n: u64) -> Result<(), UserError> {
        Err(UserError::UnknownStream)
    }

    /// To be called at or after `deadline()`; harmless at any other time.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// Gives unused memory back: an empty block and send buffer, or the block of a small unread rest
    /// (up to 4 KiB, which moves to a block of its own size). An idle connection then holds nothing.
    pub fn release(&mut self, _blocks: &mut Blocks) {}

    /// Client: starts a request on an idle connection. With [`BodySize::Empty`] it is complete;
    /// otherwise write the body and `finish`.
    pub fn request(
        &mut self,
        _head: &RequestHead<'_>,
        _body: BodySize,
    ) -> Result<StreamId, UserError> {
        Err(UserError::NotIdle)
    }

    /// Server: answers an exchange. A 1xx status (not 101) is interim and comes before the final one;
    /// 101 to an upgrade, or 2xx to CONNECT, switches the stream to raw bytes. Bodies that HEAD, 204 and
    /// 304 do not allow are swallowed. With [`BodySize::Empty`] the message is complete; otherwise write
    /// the body and `finish`.
    pub fn respond(
        &mut self,
        _id: StreamId,
        _head: &ResponseHead<'_>,
        _body: BodySize,
    ) -> Result<(), UserError> {
        Err(UserError::UnknownStream)
    }

    /// The exchange `id`, for reading and writing. It stays addressable until the next one begins.
    pub fn stream(&mut self, _id: StreamId) -> Result<StreamMut<'_>, UserError> {
        Err(UserError::UnknownStream)
    }

    /// Closes gracefully: what is in flight is finished (its head says `connection: close`), an idle
    /// connection closes now.
    pub fn close(&mut self) {}

    /// The next thing that happened, or `None` until more is received.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        None
    }

    /// Fills `out` with what is to be sent, for one `writev`; returns how many slices.
    pub fn send_slices<'a>(&'a self, _out: &mut [IoSlice<'a>]) -> usize {
        0
    }

    /// Bytes waiting to be sent.
    pub fn pending_bytes(&self) -> usize {
        0
    }

    /// What the transport should do now.
    pub fn interest(&self) -> Interest {
        Interest::default()
    }

    /// When `handle_timeout` must be called next, if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Kept alive, no exchange open, nothing unread, nothing to send.
    pub fn is_idle(&self) -> bool {
        true
    }

    /// Client: may carry another request. Stays false once anything unexpected was seen.
    pub fn is_reusable(&self) -> bool {
        false
    }

    /// Why the connection closed, once it has.
    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        None
    }
}

/// One exchange of a connection, borrowed for reading and writing.
#[derive(Debug)]
pub struct StreamMut<'a> {
    conn: &'a mut Connection,
}

impl StreamMut<'_> {
    /// Takes up to `max` bytes of the body. The first read sends `100 Continue` where it is awaited.
    pub fn read(&mut self, _max: usize) -> Read<'_> {
        let _ = &self.conn;
        Read::Pending
    }

    /// Trailer fields of the received body; none before its end.
    pub fn trailers(&self) -> Fields<'_> {
        Fields::new(&[], &[])
    }

    /// Received bytes held and not yet read, framing included.
    pub fn buffered(&self) -> usize {
        0
    }

    /// Queues body bytes by copying them.
    pub fn write(&mut self, _data: &[u8]) -> Result<(), UserError> {
        Err(UserError::StreamFailed)
    }

    /// Queues body bytes by reference when they are large; small ones are copied, which is cheaper.
    pub fn write_shared(&mut self, _data: Bytes) -> Result<(), UserError> {
        Err(UserError::StreamFailed)
    }

    /// Ends the message.
    pub fn finish(&mut self) -> Result<(), UserError> {
        Err(UserError::StreamFailed)
    }

    /// Ends a chunked message with trailer fields.
    pub fn finish_with(&mut self, _trailers: &[Field<'_>]) -> Result<(), UserError> {
        Err(UserError::StreamFailed)
    }

    /// Gives the exchange up. A message under way never looks complete to the peer: the connection closes.
    pub fn reset(&mut self) {}

    /// Bytes that may be queued before the high-water mark; 0: wait for [`Event::Writable`].
    pub fn room(&self) -> usize {
        0
    }
}
