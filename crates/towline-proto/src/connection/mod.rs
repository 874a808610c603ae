//! The public API: one connection, of either side and protocol version.
//!
//! Four kinds of methods, named by direction: from the network and the clock (`recv_space`, `received*`, `sent`,
//! `handle_timeout`), from the program (`request`, `respond`, `stream`, `close`), outputs (`next_event`,
//! `send_slices`, `interest`, `deadline`), and plain getters.

mod quic;
mod repeated;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::h2::Preface;
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Events, Lifecycle, Messages, Multiplexed, Timing};
use crate::{
    BodySize, BufferPool, CloseReason, ConnectionError, Event, Field, Fields, Interest, Limits,
    Protocol, ProtocolPolicy, Refusal, RequestHead, ResponseHead, Side, StreamId, StreamRead,
    StreamStats, UserError, h1, h2, h3,
};

use repeated::EncodedRequests;

/// One end of one transport connection.
#[derive(Debug)]
pub struct Connection {
    inner: Inner,
    /// `Either` until the first bytes, or [`set_protocol`](Self::set_protocol), have decided.
    protocols: ProtocolPolicy,
    /// Boxed, since only a load generator has some.
    encoded_requests: Option<Box<EncodedRequests>>,
}

/// The state machine of the protocol in use.
#[expect(
    clippy::large_enum_variant,
    reason = "HTTP/1 stays where its connection is; HTTP/2 and HTTP/3 have more to hold and are boxed"
)]
#[derive(Debug)]
// A tag of its own: it takes 70 of 10,200 instructions an exchange (benches/h2_memory) to find which of three variants the
// unused values of a field stand for.
#[repr(u8)]
enum Inner {
    H1(h1::Connection),
    H2(Box<h2::Connection>),
    H3(Box<h3::Connection>),
}

/// Calls a method of the connection, of any protocol.
macro_rules! dispatch {
    ($inner:expr, $conn:ident => $call:expr) => {
        match $inner {
            Inner::H1($conn) => $call,
            Inner::H2($conn) => $call,
            Inner::H3($conn) => $call,
        }
    };
}

/// Calls a method for the bytes of a transport that is one stream: not of HTTP/3 (`quic.rs`).
macro_rules! dispatch_bytes {
    ($inner:expr, $conn:ident => $call:expr, none: $none:expr) => {
        match $inner {
            Inner::H1($conn) => $call,
            Inner::H2($conn) => $call,
            Inner::H3(_) => $none,
        }
    };
}

impl Connection {
    /// The server's end of a connection accepted at `now`, for HTTP/1 only. The header timeout counts from
    /// here.
    pub fn server(limits: Arc<Limits>, now: Instant) -> Self {
        Self::server_with_policy(limits, ProtocolPolicy::Http1, now)
    }

    /// The server's end of a connection accepted at `now`, for the protocols of this policy.
    pub fn server_with_policy(
        limits: Arc<Limits>,
        protocols: ProtocolPolicy,
        now: Instant,
    ) -> Self {
        Self::of(Side::Server, protocols, limits, now)
    }

    /// The client's end of a connection established at `now`, for HTTP/1.
    pub fn client(limits: Arc<Limits>, now: Instant) -> Self {
        Self::client_with_protocol(limits, Protocol::Http1, now)
    }

    /// The client's end of a connection established at `now`. HTTP/2 starts without negotiation: ALPN has
    /// chosen it, or the server is known to support it. HTTP/3: the transport is QUIC.
    pub fn client_with_protocol(limits: Arc<Limits>, protocol: Protocol, now: Instant) -> Self {
        let protocols = match protocol {
            Protocol::Http1 => ProtocolPolicy::Http1,
            Protocol::Http2 => ProtocolPolicy::Http2,
            Protocol::Http3 => ProtocolPolicy::Http3,
        };
        Self::of(Side::Client, protocols, limits, now)
    }

    fn of(side: Side, protocols: ProtocolPolicy, limits: Arc<Limits>, now: Instant) -> Self {
        Self {
            inner: match protocols {
                ProtocolPolicy::Http1 | ProtocolPolicy::Either => Inner::h1(side, limits, now),
                ProtocolPolicy::Http2 => Inner::h2(side, limits, now),
                ProtocolPolicy::Http3 => Inner::h3(side, limits, now),
            },
            protocols,
            encoded_requests: None,
        }
    }

    /// Sets the protocol before the first byte in either direction: the result of ALPN (RFC 7301).
    pub fn set_protocol(&mut self, protocol: Protocol) -> Result<(), UserError> {
        match (&mut self.inner, protocol) {
            (Inner::H1(_), Protocol::Http1) => self.protocols = ProtocolPolicy::Http1,
            (Inner::H1(conn), Protocol::Http2) if conn.is_untouched() => self.switch_to_h2(),
            (Inner::H2(_), Protocol::Http2) | (Inner::H3(_), Protocol::Http3) => {}
            _ => return Err(UserError::WrongProtocol),
        }
        Ok(())
    }

    /// The protocol in use; `None` until the peer's first bytes have decided it.
    pub fn protocol(&self) -> Option<Protocol> {
        match (&self.inner, self.protocols) {
            (Inner::H2(_), _) => Some(Protocol::Http2),
            (Inner::H3(_), _) => Some(Protocol::Http3),
            (_, ProtocolPolicy::Either) => None,
            _ => Some(Protocol::Http1),
        }
    }

    /// HTTP/2 client: requests name the scheme `https` instead of `http`, because the transport is TLS. A
    /// target in absolute form names its own scheme.
    pub fn set_secure(&mut self, secure: bool) {
        if let Inner::H2(conn) = &mut self.inner {
            conn.set_secure(secure);
            // Encoded requests contain the scheme.
            self.encoded_requests = None;
        }
    }

    /// Passes the bytes received by the HTTP/1 state machine to a new HTTP/2 one.
    fn switch_to_h2(&mut self) {
        if let Inner::H1(conn) = &mut self.inner {
            self.inner = Inner::H2(Box::new(h2::Connection::from_http1(conn.switch_protocol())));
            self.protocols = ProtocolPolicy::Http2;
        }
    }

    /// Chooses the protocol by the first bytes, once enough of them are here.
    #[cold]
    fn detect_protocol(&mut self) {
        let Inner::H1(conn) = &self.inner else { return };
        match Preface::detect(conn.unread()) {
            Preface::Partial => {}
            Preface::Absent => self.protocols = ProtocolPolicy::Http1,
            Preface::Complete => self.switch_to_h2(),
        }
    }

    /// Chooses HTTP/1 when no more bytes come that could complete the HTTP/2 preface.
    fn fall_back_to_h1(&mut self) {
        if self.protocols == ProtocolPolicy::Either {
            self.protocols = ProtocolPolicy::Http1;
        }
    }

    /// The bytes received may still become the preface of HTTP/2: HTTP/1 must not parse them.
    fn is_undecided(&self) -> bool {
        self.protocols == ProtocolPolicy::Either
            && matches!(&self.inner, Inner::H1(conn) if !conn.unread().is_empty())
    }

    /// The end that this is.
    pub fn side(&self) -> Side {
        dispatch!(&self.inner, conn => conn.side())
    }

    /// Buffer space for the next bytes from the transport. Empty: stop reading until the program has read.
    pub fn recv_space<'a>(&'a mut self, buffers: &mut BufferPool) -> &'a mut [u8] {
        dispatch_bytes!(&mut self.inner, conn => conn.recv_space(buffers), none: &mut [])
    }

    /// `n` bytes were put into `recv_space`. Drain `next_event` afterwards.
    pub fn received(&mut self, now: Instant, n: usize) {
        dispatch_bytes!(&mut self.inner, conn => conn.received(now, n), none: ());
        if self.protocols == ProtocolPolicy::Either {
            self.detect_protocol();
        }
    }

    /// The transport reached its orderly end (FIN; under TLS, `close_notify`).
    pub fn received_eof(&mut self, now: Instant) {
        self.fall_back_to_h1();
        dispatch_bytes!(&mut self.inner, conn => conn.received_eof(now), none: ());
    }

    /// The transport failed (reset, TLS truncation or alert); `rule` describes it in the error.
    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.fall_back_to_h1();
        dispatch!(&mut self.inner, conn => conn.received_abort(now, rule));
    }

    /// `n` bytes of `send_slices` were written; 0: the transport would block, which starts the timer over the
    /// peer's reading.
    #[inline]
    pub fn sent(&mut self, now: Instant, n: usize) {
        dispatch_bytes!(&mut self.inner, conn => conn.sent(now, n), none: ());
    }

    /// HTTP/1: `n` bytes of the body of `id` were written by another way (`sendfile`), while nothing was pending. They count
    /// against the announced size and as progress; 0: the transport would block.
    pub fn sent_externally(&mut self, now: Instant, id: StreamId, n: u64) -> Result<(), UserError> {
        dispatch_bytes!(
            &mut self.inner,
            conn => conn.sent_externally(now, id, n),
            none: Err(UserError::WrongProtocol)
        )
    }

    /// To be called at or after `deadline()`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        dispatch!(&mut self.inner, conn => conn.handle_timeout(now));
    }

    /// Returns unused memory to the pool: empty buffers, or the receive buffer of a few unread bytes (up to 4 KiB, which
    /// move to a buffer of their own size). An idle connection then holds none.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        dispatch!(&mut self.inner, conn => conn.release(buffers));
    }

    /// Client: starts a request: with HTTP/1 on an idle connection, with HTTP/2 next to others while there is
    /// [`stream_capacity`](Self::stream_capacity). With [`BodySize::Empty`] it is complete; otherwise write
    /// the body and `finish`.
    pub fn request(
        &mut self,
        head: &RequestHead<'_>,
        body: BodySize,
    ) -> Result<StreamId, UserError> {
        dispatch!(&mut self.inner, conn => conn.request(head, body))
    }

    /// Client: sends a whole request after those whose responses are outstanding (pipelining, RFC 9112
    /// 9.3.2), or as the first. Responses come in the order of the requests; when the connection ends before,
    /// [`Event::Failed`] names the oldest and the later ones have no event of their own. The program decides
    /// how many to pipeline, at the risk that one slow response delays the others. HTTP/2 has no such order:
    /// it is `request` with the body in one call.
    pub fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        dispatch!(&mut self.inner, conn => conn.request_pipelined(head, body))
    }

    /// Server: responds to an exchange. A 1xx status (not 101) is interim and precedes the final one; 101 to
    /// an upgrade (HTTP/1), or 2xx to CONNECT, switches the stream to raw bytes. Bodies that HEAD, 204 and
    /// 304 do not allow are discarded. With [`BodySize::Empty`] the message is complete; otherwise write the
    /// body and `finish`.
    pub fn respond(
        &mut self,
        id: StreamId,
        head: &ResponseHead<'_>,
        body: BodySize,
    ) -> Result<(), UserError> {
        dispatch!(&mut self.inner, conn => conn.respond(id, head, body))
    }

    /// The exchange `id`, for reading and writing. HTTP/1: it stays addressable until the next one begins.
    /// HTTP/2: until the next call of `next_event` after it ended, which for the receiver is when `read` has
    /// returned [`StreamRead::End`] or `Head` had `end` set.
    #[inline]
    pub fn stream(&mut self, id: StreamId) -> Result<StreamMut<'_>, UserError> {
        let inner = match &mut self.inner {
            Inner::H1(conn) => {
                conn.check_open(id)?;
                StreamRef::H1(conn)
            }
            Inner::H2(conn) => {
                let key = conn.find(id)?;
                StreamRef::H2(conn, key)
            }
            Inner::H3(conn) => {
                let key = conn.find(id)?;
                StreamRef::H3(conn, key)
            }
        };
        Ok(StreamMut { inner })
    }

    /// Closes gracefully: exchanges in flight are finished, an idle connection closes now. HTTP/1: the next
    /// head has `connection: close`. HTTP/2: GOAWAY twice, once as an announcement and once with the last
    /// stream, when requests that were on their way have arrived (RFC 9113 6.8).
    pub fn close(&mut self) {
        dispatch!(&mut self.inner, conn => conn.close());
    }

    /// Server: like [`close`](Self::close), but an idle HTTP/1 connection has `Limits::drain_idle_timeout` to send
    /// one more request, whose response has `connection: close`. So no client reuses a connection that is being
    /// closed.
    pub fn drain(&mut self, now: Instant) {
        dispatch!(&mut self.inner, conn => conn.drain(now));
    }

    /// The next event, or `None` until more is received.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        if self.is_undecided() {
            return None;
        }
        dispatch!(&mut self.inner, conn => conn.next_event())
    }

    /// Fills `out` with the bytes to send, for one `writev`; returns the number of slices.
    pub fn send_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        dispatch_bytes!(&self.inner, conn => conn.send_slices(out), none: 0)
    }

    /// Number of bytes waiting to be sent.
    pub fn pending_bytes(&self) -> usize {
        dispatch_bytes!(&self.inner, conn => conn.pending_bytes(), none: 0)
    }

    /// The I/O that the connection waits for.
    #[inline]
    pub fn interest(&self) -> Interest {
        dispatch!(&self.inner, conn => conn.interest())
    }

    /// The instant at which `handle_timeout` must be called, if nothing else happens before.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        dispatch!(&self.inner, conn => conn.deadline())
    }

    /// Kept alive, no exchange open, nothing unread, nothing to send.
    pub fn is_idle(&self) -> bool {
        dispatch!(&self.inner, conn => conn.is_idle())
    }

    /// Client: can take another request. Stays false after anything unexpected was received.
    pub fn is_reusable(&self) -> bool {
        match &self.inner {
            Inner::H1(conn) => conn.is_reusable(),
            Inner::H2(conn) => conn.is_reusable(),
            Inner::H3(conn) => conn.stream_capacity() > 0,
        }
    }

    /// Client: number of requests that can be started now. HTTP/1: 1 or 0; HTTP/2: within the peer's limit
    /// and the own one.
    pub fn stream_capacity(&self) -> usize {
        match &self.inner {
            Inner::H1(conn) => usize::from(conn.is_reusable()),
            Inner::H2(conn) => conn.stream_capacity(),
            Inner::H3(conn) => conn.stream_capacity(),
        }
    }

    /// Client: number of requests that can be in flight at once, as far as is known now; 0: no more can be
    /// started. It is a guess until [`settings_received`](Self::settings_received).
    pub fn stream_limit(&self) -> usize {
        match &self.inner {
            Inner::H1(conn) => usize::from(conn.is_reusable()),
            Inner::H2(conn) => conn.stream_limit(),
            Inner::H3(conn) => conn.stream_limit(),
        }
    }

    /// Client: the server's SETTINGS have arrived. Until then its limit of streams is unknown, and it may treat streams
    /// above it as an error of the connection. With early data they are known from an earlier connection.
    pub fn settings_received(&self) -> bool {
        self.extended_connect().is_some() || self.began_with_early_data()
    }

    /// Client: whether an extended CONNECT may be sent (RFC 8441 3). `None`: the server's SETTINGS have not
    /// arrived.
    pub fn extended_connect(&self) -> Option<bool> {
        match &self.inner {
            Inner::H1(_) => Some(false),
            Inner::H2(conn) => conn.extended_connect(),
            Inner::H3(conn) => conn.extended_connect(),
        }
    }

    /// Client: a byte has arrived since the last request was sent. If not, and the connection was reused, an
    /// idempotent request may be sent again on another.
    pub fn response_started(&self) -> bool {
        dispatch!(&self.inner, conn => conn.response_started())
    }

    /// Server, HTTP/1.1: the current request offers to change the protocol of the connection (RFC 9110 7.8).
    pub fn offers_upgrade(&self) -> bool {
        match &self.inner {
            Inner::H1(conn) => conn.offers_upgrade(),
            Inner::H2(_) | Inner::H3(_) => false,
        }
    }

    /// Server, HTTP/1: the request has been read, no byte is behind it, and its final response has not begun. Once the
    /// pending bytes are sent, a program may take the socket over.
    pub fn is_between_request_and_response(&self) -> bool {
        match &self.inner {
            Inner::H1(conn) => conn.is_between_request_and_response(),
            Inner::H2(_) | Inner::H3(_) => false,
        }
    }

    /// `next_event` may return an event although nothing more was received, because of a call of the program:
    /// after a response, the next pipelined request can be parsed.
    #[inline]
    pub fn has_events(&self) -> bool {
        dispatch!(&self.inner, conn => conn.has_events()) && !self.is_undecided()
    }

    /// Server: whether [`take_refusal`](Self::take_refusal) returns one.
    #[inline]
    pub fn has_refusals(&self) -> bool {
        dispatch!(&self.inner, conn => conn.has_refusals())
    }

    /// Server: the next request, or the connection, that this end has refused. The program is not asked about
    /// them; this is for its logs and counters. Each is returned once.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        dispatch!(&mut self.inner, conn => conn.take_refusal())
    }

    /// Server: the fault for which this end has failed the exchange `id`, while the exchange is known: the
    /// status that it has sent if the program had sent none (or 0), the kind of fault and the rule.
    pub fn refusal_of(&self, id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        dispatch!(&self.inner, conn => conn.refusal_of(id))
    }

    /// Why the connection closed; `None` while it is open.
    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        dispatch!(&self.inner, conn => conn.error())
    }
}

impl Inner {
    fn h1(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        Self::H1(h1::Connection::new(side, limits, now))
    }

    fn h2(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        Self::H2(Box::new(h2::Connection::new(side, limits, now)))
    }

    fn h3(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        Self::H3(Box::new(h3::Connection::new(side, limits, now)))
    }
}

/// One exchange of a connection, borrowed for reading and writing.
#[derive(Debug)]
pub struct StreamMut<'a> {
    inner: StreamRef<'a>,
}

/// The connection of the exchange: HTTP/1 has one at a time, HTTP/2 and HTTP/3 many.
#[derive(Debug)]
enum StreamRef<'a> {
    H1(&'a mut h1::Connection),
    H2(&'a mut h2::Connection, StreamKey),
    H3(&'a mut h3::Connection, StreamKey),
}

/// Calls a method of the exchange, on any protocol.
macro_rules! dispatch_stream {
    ($inner:expr, $method:ident($($argument:expr),*)) => {
        match $inner {
            StreamRef::H1(conn) => conn.$method($($argument),*),
            StreamRef::H2(conn, key) => conn.$method(*key, $($argument),*),
            StreamRef::H3(conn, key) => conn.$method(*key, $($argument),*),
        }
    };
    ($inner:expr, $method:ident(), h1: $h1:expr) => {
        match $inner {
            StreamRef::H1(_) => $h1,
            StreamRef::H2(conn, key) => conn.$method(*key),
            StreamRef::H3(conn, key) => conn.$method(*key),
        }
    };
}

impl<'a> StreamMut<'a> {
    /// Reads up to `max` bytes of the body. The first read sends `100 Continue` if the client expects it.
    pub fn read(&mut self, max: usize) -> StreamRead<'_> {
        dispatch_stream!(&mut self.inner, read(max))
    }

    /// Like `read`, with the lifetime of the connection's borrow.
    pub fn into_read(self, max: usize) -> StreamRead<'a> {
        match self.inner {
            StreamRef::H1(conn) => conn.read(max),
            StreamRef::H2(conn, key) => conn.read(key, max),
            StreamRef::H3(conn, key) => conn.read(key, max),
        }
    }

    /// Number of bytes that `read` would return now; 0 has several possible reasons.
    pub fn available(&mut self) -> usize {
        dispatch_stream!(&mut self.inner, available())
    }

    /// The end of the body was received, whether it was read or not. Always false for HTTP/1, where only
    /// reading finds it.
    pub fn end_received(&self) -> bool {
        dispatch_stream!(&self.inner, end_received(), h1: false)
    }

    /// Trailer fields of the received body; none before its end.
    pub fn trailers(&self) -> Fields<'_> {
        dispatch_stream!(&self.inner, trailers())
    }

    /// Bytes written here that wait for a window or for their turn; [`pending_bytes`](Connection::pending_bytes) counts
    /// those that wait for the transport. Always 0 for HTTP/1.
    pub fn queued(&self) -> usize {
        dispatch_stream!(&self.inner, queued(), h1: 0)
    }

    /// Whether the peer does not need the rest of the body: what is written is discarded (RFC 9113 8.1, RFC 9114 4.1).
    /// Always false for HTTP/1.
    pub fn is_body_unwanted(&self) -> bool {
        dispatch_stream!(&self.inner, is_body_unwanted(), h1: false)
    }

    /// Has [`Event::Writable`] follow when some of the queued bytes have been sent. Not for HTTP/1.
    pub fn await_sent(&mut self) {
        match &mut self.inner {
            StreamRef::H1(_) => {}
            StreamRef::H2(conn, key) => conn.await_sent(*key),
            StreamRef::H3(conn, key) => conn.await_sent(*key),
        }
    }

    /// HTTP/2, client: byte counts of the stream's frames. `None` for HTTP/1: the transport counts its bytes.
    pub fn stats(&self) -> Option<StreamStats> {
        match &self.inner {
            StreamRef::H1(_) => None,
            StreamRef::H2(conn, key) => Some(conn.stats(*key)),
            StreamRef::H3(conn, key) => Some(conn.stats(*key)),
        }
    }

    /// Number of received bytes that were not read yet, framing included.
    pub fn buffered(&self) -> usize {
        dispatch_stream!(&self.inner, buffered())
    }

    /// Queues body bytes by copying them.
    #[inline]
    pub fn write(&mut self, data: &[u8]) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, write(data))
    }

    /// Queues body bytes by reference when they are large; small ones are copied, which is cheaper.
    pub fn write_shared(&mut self, data: Bytes) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, write_shared(data))
    }

    /// Ends the message.
    #[inline]
    pub fn finish(&mut self) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, finish(&[]))
    }

    /// Ends a message of unknown size with trailer fields.
    pub fn finish_with(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, finish(trailers))
    }

    /// Aborts the exchange. A message in progress never looks complete to the peer: HTTP/1 closes the connection, HTTP/2
    /// resets the stream. A failed exchange is done with; a switched one that is finished discards what still arrives.
    pub fn reset(&mut self) {
        dispatch_stream!(&mut self.inner, reset());
    }

    /// Bytes of a body of known size that are still to be sent, 0 if it may have none. `None`: no size is known, or no body due.
    pub fn body_left(&self) -> Option<u64> {
        dispatch_stream!(&self.inner, body_left())
    }

    /// Number of bytes that can be queued before the high-water mark; 0: [`Event::Writable`] follows.
    #[inline]
    pub fn send_capacity(&mut self) -> usize {
        dispatch_stream!(&mut self.inner, send_capacity())
    }
}
