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
    ResponseHead, Side, StreamId, UserError, h1,
};

/// One end of one transport connection.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
}

/// The protocol spoken on the transport.
#[derive(Debug)]
enum Wire {
    H1(h1::Connection),
}

/// Calls a method of whatever wire it is.
macro_rules! on_wire {
    ($wire:expr, $conn:ident => $call:expr) => {
        match $wire {
            Wire::H1($conn) => $call,
        }
    };
}

impl Connection {
    /// The server's end of a connection accepted at `now`: the header deadline counts from here.
    pub fn server(limits: Arc<Limits>, now: Instant) -> Self {
        Self {
            wire: Wire::H1(h1::Connection::new(Side::Server, limits, now)),
        }
    }

    /// The client's end of a connection established at `now`.
    pub fn client(limits: Arc<Limits>, now: Instant) -> Self {
        Self {
            wire: Wire::H1(h1::Connection::new(Side::Client, limits, now)),
        }
    }

    /// Which end this is.
    pub fn side(&self) -> Side {
        on_wire!(&self.wire, conn => conn.side())
    }

    /// Where the next bytes from the transport go. Empty: stop reading, the program is behind.
    pub fn recv_space<'a>(&'a mut self, blocks: &mut Blocks) -> &'a mut [u8] {
        on_wire!(&mut self.wire, conn => conn.recv_space(blocks))
    }

    /// `n` bytes were put into `recv_space`. Drain `next_event` afterwards.
    pub fn received(&mut self, now: Instant, n: usize) {
        on_wire!(&mut self.wire, conn => conn.received(now, n));
    }

    /// The transport reached its orderly end (FIN; under TLS, `close_notify`).
    pub fn received_eof(&mut self, now: Instant) {
        on_wire!(&mut self.wire, conn => conn.received_eof(now));
    }

    /// The transport broke (reset, TLS truncation or alert); `rule` says how, for the error.
    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        on_wire!(&mut self.wire, conn => conn.received_abort(now, rule));
    }

    /// `n` bytes of `send_slices` have left; 0: the transport would block, which starts the clock on
    /// the reader at the other end.
    pub fn sent(&mut self, now: Instant, n: usize) {
        on_wire!(&mut self.wire, conn => conn.sent(now, n));
    }

    /// `n` bytes of the body of `id` went into the transport without passing through here (`sendfile`),
    /// while nothing was pending. They count against the announced size and as progress; 0: the
    /// transport would block.
    pub fn sent_outside(&mut self, now: Instant, id: StreamId, n: u64) -> Result<(), UserError> {
        on_wire!(&mut self.wire, conn => conn.sent_outside(now, id, n))
    }

    /// To be called at or after `deadline()`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        on_wire!(&mut self.wire, conn => conn.handle_timeout(now));
    }

    /// Gives unused memory back: an empty block and send buffer, or the block of a small unread rest
    /// (up to 4 KiB, which moves to a block of its own size). An idle connection then holds nothing.
    pub fn release(&mut self, blocks: &mut Blocks) {
        on_wire!(&mut self.wire, conn => conn.release(blocks));
    }

    /// Client: starts a request on an idle connection. With [`BodySize::Empty`] it is complete;
    /// otherwise write the body and `finish`.
    pub fn request(
        &mut self,
        head: &RequestHead<'_>,
        body: BodySize,
    ) -> Result<StreamId, UserError> {
        on_wire!(&mut self.wire, conn => conn.request(head, body))
    }

    /// Client: sends a whole request behind those whose answers are still due (pipelining, RFC 9112
    /// 9.3.2), or as the first. Answers come in the order of the requests; when the connection ends
    /// before, [`Event::Failed`] speaks of the oldest and the later ones have no event of their own.
    /// How many go ahead is the program's decision, and so is the harm that one slow answer does.
    pub fn request_ahead(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        on_wire!(&mut self.wire, conn => conn.request_ahead(head, body))
    }

    /// Server: answers an exchange. A 1xx status (not 101) is interim and comes before the final one;
    /// 101 to an upgrade, or 2xx to CONNECT, switches the stream to raw bytes. Bodies that HEAD, 204 and
    /// 304 do not allow are swallowed. With [`BodySize::Empty`] the message is complete; otherwise write
    /// the body and `finish`.
    pub fn respond(
        &mut self,
        id: StreamId,
        head: &ResponseHead<'_>,
        body: BodySize,
    ) -> Result<(), UserError> {
        on_wire!(&mut self.wire, conn => conn.respond(id, head, body))
    }

    /// The exchange `id`, for reading and writing. It stays addressable until the next one begins.
    pub fn stream(&mut self, id: StreamId) -> Result<StreamMut<'_>, UserError> {
        on_wire!(&self.wire, conn => conn.check_open(id))?;
        Ok(StreamMut {
            wire: &mut self.wire,
        })
    }

    /// Closes gracefully: what is in flight is finished (its head says `connection: close`), an idle
    /// connection closes now.
    pub fn close(&mut self) {
        on_wire!(&mut self.wire, conn => conn.close());
    }

    /// The next thing that happened, or `None` until more is received.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        on_wire!(&mut self.wire, conn => conn.next_event())
    }

    /// Fills `out` with what is to be sent, for one `writev`; returns how many slices.
    pub fn send_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        on_wire!(&self.wire, conn => conn.send_slices(out))
    }

    /// Bytes waiting to be sent.
    pub fn pending_bytes(&self) -> usize {
        on_wire!(&self.wire, conn => conn.pending_bytes())
    }

    /// What the transport should do now.
    pub fn interest(&self) -> Interest {
        on_wire!(&self.wire, conn => conn.interest())
    }

    /// When `handle_timeout` must be called next, if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        on_wire!(&self.wire, conn => conn.deadline())
    }

    /// Kept alive, no exchange open, nothing unread, nothing to send.
    pub fn is_idle(&self) -> bool {
        on_wire!(&self.wire, conn => conn.is_idle())
    }

    /// Client: may carry another request. Stays false once anything unexpected was seen.
    pub fn is_reusable(&self) -> bool {
        on_wire!(&self.wire, conn => conn.is_reusable())
    }

    /// Client: a byte has arrived since the last request was sent. When not, and the connection was
    /// reused, an idempotent request may be sent again on another.
    pub fn response_started(&self) -> bool {
        on_wire!(&self.wire, conn => conn.response_started())
    }

    /// `next_event` may have something although nothing more was received, because the program did
    /// something: answered, so that the next pipelined request is due.
    pub fn has_events(&self) -> bool {
        on_wire!(&self.wire, conn => conn.has_events())
    }

    /// Why the connection closed, once it has.
    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        on_wire!(&self.wire, conn => conn.error())
    }
}

/// One exchange of a connection, borrowed for reading and writing.
#[derive(Debug)]
pub struct StreamMut<'a> {
    wire: &'a mut Wire,
}

impl<'a> StreamMut<'a> {
    /// Takes up to `max` bytes of the body. The first read sends `100 Continue` where it is awaited.
    pub fn read(&mut self, max: usize) -> Read<'_> {
        on_wire!(&mut *self.wire, conn => conn.read(max))
    }

    /// `read`, with a borrow as long as the connection's.
    pub fn into_read(self, max: usize) -> Read<'a> {
        on_wire!(self.wire, conn => conn.read(max))
    }

    /// Bytes that `read` would give now; 0 says nothing about why.
    pub fn available(&mut self) -> usize {
        on_wire!(&mut *self.wire, conn => conn.available())
    }

    /// Trailer fields of the received body; none before its end.
    pub fn trailers(&self) -> Fields<'_> {
        on_wire!(&*self.wire, conn => conn.trailers())
    }

    /// Received bytes held and not yet read, framing included.
    pub fn buffered(&self) -> usize {
        on_wire!(&*self.wire, conn => conn.buffered())
    }

    /// Queues body bytes by copying them.
    pub fn write(&mut self, data: &[u8]) -> Result<(), UserError> {
        on_wire!(&mut *self.wire, conn => conn.write(data))
    }

    /// Queues body bytes by reference when they are large; small ones are copied, which is cheaper.
    pub fn write_shared(&mut self, data: Bytes) -> Result<(), UserError> {
        on_wire!(&mut *self.wire, conn => conn.write_shared(data))
    }

    /// Ends the message.
    pub fn finish(&mut self) -> Result<(), UserError> {
        on_wire!(&mut *self.wire, conn => conn.finish(&[]))
    }

    /// Ends a chunked message with trailer fields.
    pub fn finish_with(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        on_wire!(&mut *self.wire, conn => conn.finish(trailers))
    }

    /// Gives the exchange up. A message under way never looks complete to the peer: the connection closes.
    pub fn reset(&mut self) {
        on_wire!(&mut *self.wire, conn => conn.reset());
    }

    /// Bytes of a body of known size that are still to be sent, 0 where its method or status allows
    /// none. `None`: the size is not known, or no body is due.
    pub fn body_left(&self) -> Option<u64> {
        on_wire!(&*self.wire, conn => conn.body_left())
    }

    /// Bytes that may be queued before the high-water mark; 0: wait for [`Event::Writable`].
    pub fn room(&self) -> usize {
        on_wire!(&*self.wire, conn => conn.room())
    }
}
