//! The public surface: one connection, whatever its side and protocol version.
//!
//! Four kinds of methods, named by direction: from the network and the clock (`recv_space`,
//! `received*`, `sent`, `handle_timeout`), from the program (`request`, `respond`, `stream`, `close`),
//! towards both (`next_event`, `send_slices`, `interest`, `deadline`), and plain getters.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::h2::Preface;
use crate::{
    BodySize, BufferPool, ConnectionError, Event, Field, Fields, Interest, Limits, PreparedRequest,
    Protocol, ProtocolPolicy, RequestHead, ResponseHead, Side, StreamId, StreamRead, StreamStats,
    UserError, h1, h2,
};

/// One end of one transport connection.
#[derive(Debug)]
pub struct Connection {
    inner: Inner,
    /// `Either` until the first bytes, or [`speak`](Self::speak), have decided.
    protocols: ProtocolPolicy,
}

/// The protocol spoken on the transport.
#[expect(
    clippy::large_enum_variant,
    reason = "HTTP/1 stays where its connection is; HTTP/2 has more to hold and is boxed"
)]
#[derive(Debug)]
enum Inner {
    H1(h1::Connection),
    H2(Box<h2::Connection>),
}

/// Calls a method of whatever wire it is.
macro_rules! dispatch {
    ($inner:expr, $conn:ident => $call:expr) => {
        match $inner {
            Inner::H1($conn) => $call,
            Inner::H2($conn) => $call,
        }
    };
}

impl Connection {
    /// The server's end of a connection accepted at `now`: the header deadline counts from here. It speaks
    /// HTTP/1 only.
    pub fn server(limits: Arc<Limits>, now: Instant) -> Self {
        Self::server_with_policy(limits, ProtocolPolicy::Http1, now)
    }

    /// The server's end of a connection accepted at `now`, speaking what is asked of it.
    pub fn server_with_policy(
        limits: Arc<Limits>,
        protocols: ProtocolPolicy,
        now: Instant,
    ) -> Self {
        Self {
            inner: match protocols {
                ProtocolPolicy::Http1 | ProtocolPolicy::Either => {
                    Inner::h1(Side::Server, limits, now)
                }
                ProtocolPolicy::Http2 => Inner::h2(Side::Server, limits, now),
            },
            protocols,
        }
    }

    /// The client's end of a connection established at `now`, speaking HTTP/1.
    pub fn client(limits: Arc<Limits>, now: Instant) -> Self {
        Self::client_with_protocol(limits, Protocol::Http1, now)
    }

    /// The client's end of a connection established at `now`. HTTP/2 is spoken without asking: ALPN has
    /// chosen it, or the server is known to speak it.
    pub fn client_with_protocol(limits: Arc<Limits>, protocol: Protocol, now: Instant) -> Self {
        match protocol {
            Protocol::Http1 => Self {
                inner: Inner::h1(Side::Client, limits, now),
                protocols: ProtocolPolicy::Http1,
            },
            Protocol::Http2 => Self {
                inner: Inner::h2(Side::Client, limits, now),
                protocols: ProtocolPolicy::Http2,
            },
        }
    }

    /// Settles what is spoken before the first byte, in either direction: the word of ALPN (RFC 7301).
    pub fn set_protocol(&mut self, protocol: Protocol) -> Result<(), UserError> {
        let Inner::H1(conn) = &mut self.inner else {
            return match protocol {
                Protocol::Http2 => Ok(()),
                Protocol::Http1 => Err(UserError::WrongProtocol),
            };
        };
        match protocol {
            Protocol::Http1 => self.protocols = ProtocolPolicy::Http1,
            Protocol::Http2 if conn.is_untouched() => self.switch_to_h2(),
            Protocol::Http2 => return Err(UserError::WrongProtocol),
        }
        Ok(())
    }

    /// What is spoken here; `None` while the peer's first bytes have yet to tell.
    pub fn protocol(&self) -> Option<Protocol> {
        match (&self.inner, self.protocols) {
            (Inner::H2(_), _) => Some(Protocol::Http2),
            (_, ProtocolPolicy::Either) => None,
            _ => Some(Protocol::Http1),
        }
    }

    /// HTTP/2 client: requests name the scheme `https` instead of `http`, because the transport is TLS.
    /// A target in absolute form says it itself.
    pub fn set_secure(&mut self, secure: bool) {
        if let Inner::H2(conn) = &mut self.inner {
            conn.set_secure(secure);
        }
    }

    /// What has come over HTTP/1's wire goes on as HTTP/2.
    fn switch_to_h2(&mut self) {
        if let Inner::H1(conn) = &mut self.inner {
            self.inner = Inner::H2(Box::new(h2::Connection::from_http1(conn.switch_protocol())));
            self.protocols = ProtocolPolicy::Http2;
        }
    }

    /// Looks at the first bytes, where they decide.
    #[cold]
    fn detect_protocol(&mut self) {
        let Inner::H1(conn) = &self.inner else { return };
        match Preface::detect(conn.unread()) {
            Preface::Partial => {}
            Preface::Absent => self.protocols = ProtocolPolicy::Http1,
            Preface::Complete => self.switch_to_h2(),
        }
    }

    /// No more comes that could make it the other.
    fn fall_back_to_h1(&mut self) {
        if self.protocols == ProtocolPolicy::Either {
            self.protocols = ProtocolPolicy::Http1;
        }
    }

    /// The bytes here may yet become the preface of HTTP/2: HTTP/1 must not look at them.
    fn is_undecided(&self) -> bool {
        self.protocols == ProtocolPolicy::Either
            && matches!(&self.inner, Inner::H1(conn) if !conn.unread().is_empty())
    }

    /// Which end this is.
    pub fn side(&self) -> Side {
        dispatch!(&self.inner, conn => conn.side())
    }

    /// Where the next bytes from the transport go. Empty: stop reading, the program is behind.
    pub fn recv_space<'a>(&'a mut self, buffers: &mut BufferPool) -> &'a mut [u8] {
        dispatch!(&mut self.inner, conn => conn.recv_space(buffers))
    }

    /// `n` bytes were put into `recv_space`. Drain `next_event` afterwards.
    pub fn received(&mut self, now: Instant, n: usize) {
        dispatch!(&mut self.inner, conn => conn.received(now, n));
        if self.protocols == ProtocolPolicy::Either {
            self.detect_protocol();
        }
    }

    /// The transport reached its orderly end (FIN; under TLS, `close_notify`).
    pub fn received_eof(&mut self, now: Instant) {
        self.fall_back_to_h1();
        dispatch!(&mut self.inner, conn => conn.received_eof(now));
    }

    /// The transport broke (reset, TLS truncation or alert); `rule` says how, for the error.
    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.fall_back_to_h1();
        dispatch!(&mut self.inner, conn => conn.received_abort(now, rule));
    }

    /// `n` bytes of `send_slices` have left; 0: the transport would block, which starts the clock on
    /// the reader at the other end.
    pub fn sent(&mut self, now: Instant, n: usize) {
        dispatch!(&mut self.inner, conn => conn.sent(now, n));
    }

    /// `n` bytes of the body of `id` went into the transport without passing through here (`sendfile`),
    /// while nothing was pending. They count against the announced size and as progress; 0: the
    /// transport would block. HTTP/1 only: elsewhere bodies are framed.
    pub fn sent_externally(&mut self, now: Instant, id: StreamId, n: u64) -> Result<(), UserError> {
        dispatch!(&mut self.inner, conn => conn.sent_externally(now, id, n))
    }

    /// To be called at or after `deadline()`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        dispatch!(&mut self.inner, conn => conn.handle_timeout(now));
    }

    /// Gives unused memory back: an empty block and send buffer, or the block of a small unread rest
    /// (up to 4 KiB, which moves to a block of its own size). An idle connection then holds nothing.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        dispatch!(&mut self.inner, conn => conn.release(buffers));
    }

    /// Client: starts a request, with HTTP/1 on an idle connection, with HTTP/2 beside others while
    /// there is [`stream_capacity`](Self::stream_capacity). With [`BodySize::Empty`] it is complete; otherwise
    /// write the body and `finish`.
    pub fn request(
        &mut self,
        head: &RequestHead<'_>,
        body: BodySize,
    ) -> Result<StreamId, UserError> {
        dispatch!(&mut self.inner, conn => conn.request(head, body))
    }

    /// Client: sends a whole request behind those whose answers are still due (pipelining, RFC 9112
    /// 9.3.2), or as the first. Answers come in the order of the requests; when the connection ends
    /// before, [`Event::Failed`] speaks of the oldest and the later ones have no event of their own.
    /// How many go ahead is the program's decision, and so is the harm that one slow answer does. HTTP/2
    /// has no such order: it is `request` with the body in one call.
    pub fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        dispatch!(&mut self.inner, conn => conn.request_pipelined(head, body))
    }

    /// [`request_pipelined`](Self::request_pipelined) with a request that is checked and written already: for
    /// programs that send the same one over and over.
    pub fn request_prepared(&mut self, request: &PreparedRequest) -> Result<StreamId, UserError> {
        dispatch!(&mut self.inner, conn => conn.request_prepared(request))
    }

    /// Server: answers an exchange. A 1xx status (not 101) is interim and comes before the final one;
    /// 101 to an upgrade (HTTP/1), or 2xx to CONNECT, switches the stream to raw bytes. Bodies that HEAD,
    /// 204 and 304 do not allow are swallowed. With [`BodySize::Empty`] the message is complete; otherwise write
    /// the body and `finish`.
    pub fn respond(
        &mut self,
        id: StreamId,
        head: &ResponseHead<'_>,
        body: BodySize,
    ) -> Result<(), UserError> {
        dispatch!(&mut self.inner, conn => conn.respond(id, head, body))
    }

    /// The exchange `id`, for reading and writing. HTTP/1: it stays addressable until the next one
    /// begins. HTTP/2: until the next event is asked for after it ended, which for the one who receives
    /// is when `read` has given [`StreamRead::End`] or `Head` said that it is the end.
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
        };
        Ok(StreamMut { inner })
    }

    /// Closes gracefully: what is in flight is finished, an idle connection closes now. HTTP/1: the head
    /// says `connection: close`. HTTP/2: GOAWAY, once to tell and once more when what was on its way
    /// then has arrived (RFC 9113 6.8).
    pub fn close(&mut self) {
        dispatch!(&mut self.inner, conn => conn.close());
    }

    /// The next thing that happened, or `None` until more is received.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        if self.is_undecided() {
            return None;
        }
        dispatch!(&mut self.inner, conn => conn.next_event())
    }

    /// Fills `out` with what is to be sent, for one `writev`; returns how many slices.
    pub fn send_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        dispatch!(&self.inner, conn => conn.send_slices(out))
    }

    /// Bytes waiting to be sent.
    pub fn pending_bytes(&self) -> usize {
        dispatch!(&self.inner, conn => conn.pending_bytes())
    }

    /// What the transport should do now.
    pub fn interest(&self) -> Interest {
        dispatch!(&self.inner, conn => conn.interest())
    }

    /// When `handle_timeout` must be called next, if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        dispatch!(&self.inner, conn => conn.deadline())
    }

    /// Kept alive, no exchange open, nothing unread, nothing to send.
    pub fn is_idle(&self) -> bool {
        dispatch!(&self.inner, conn => conn.is_idle())
    }

    /// Client: may carry another request. Stays false once anything unexpected was seen.
    pub fn is_reusable(&self) -> bool {
        dispatch!(&self.inner, conn => conn.is_reusable())
    }

    /// Client: how many requests may be started now. HTTP/1: 1 or 0; HTTP/2: what the peer's limit and
    /// ours leave.
    pub fn stream_capacity(&self) -> usize {
        match &self.inner {
            Inner::H1(conn) => usize::from(conn.is_reusable()),
            Inner::H2(conn) => conn.stream_capacity(),
        }
    }

    /// Client: how many requests may be under way at once, as far as is known now; 0: no more may begin.
    pub fn stream_limit(&self) -> usize {
        match &self.inner {
            Inner::H1(conn) => usize::from(conn.is_reusable()),
            Inner::H2(conn) => conn.stream_limit(),
        }
    }

    /// Client: whether an extended CONNECT may be sent (RFC 8441 3). `None`: the server has not said yet.
    pub fn extended_connect(&self) -> Option<bool> {
        match &self.inner {
            Inner::H1(_) => Some(false),
            Inner::H2(conn) => conn.extended_connect(),
        }
    }

    /// Client: a byte has arrived since the last request was sent. When not, and the connection was
    /// reused, an idempotent request may be sent again on another.
    pub fn response_started(&self) -> bool {
        dispatch!(&self.inner, conn => conn.response_started())
    }

    /// `next_event` may have something although nothing more was received, because the program did
    /// something: answered, so that the next pipelined request is due.
    pub fn has_events(&self) -> bool {
        dispatch!(&self.inner, conn => conn.has_events()) && !self.is_undecided()
    }

    /// Why the connection closed, once it has.
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
}

/// One exchange of a connection, borrowed for reading and writing.
#[derive(Debug)]
pub struct StreamMut<'a> {
    inner: StreamRef<'a>,
}

/// Where the exchange stands: the only one of its connection, or one of many.
#[derive(Debug)]
enum StreamRef<'a> {
    H1(&'a mut h1::Connection),
    H2(&'a mut h2::Connection, h2::StreamKey),
}

/// Calls a method of the exchange, on whatever wire it is.
macro_rules! dispatch_stream {
    ($inner:expr, $method:ident($($argument:expr),*)) => {
        match $inner {
            StreamRef::H1(conn) => conn.$method($($argument),*),
            StreamRef::H2(conn, key) => conn.$method(*key, $($argument),*),
        }
    };
}

impl<'a> StreamMut<'a> {
    /// Takes up to `max` bytes of the body. The first read sends `100 Continue` where it is awaited.
    pub fn read(&mut self, max: usize) -> StreamRead<'_> {
        dispatch_stream!(&mut self.inner, read(max))
    }

    /// `read`, with a borrow as long as the connection's.
    pub fn into_read(self, max: usize) -> StreamRead<'a> {
        match self.inner {
            StreamRef::H1(conn) => conn.read(max),
            StreamRef::H2(conn, key) => conn.read(key, max),
        }
    }

    /// Bytes that `read` would give now; 0 says nothing about why.
    pub fn available(&mut self) -> usize {
        dispatch_stream!(&mut self.inner, available())
    }

    /// The end of the body is here, read or not. HTTP/1: it shows when it is read.
    pub fn end_received(&self) -> bool {
        match &self.inner {
            StreamRef::H1(_) => false,
            StreamRef::H2(conn, key) => conn.end_received(*key),
        }
    }

    /// Trailer fields of the received body; none before its end.
    pub fn trailers(&self) -> Fields<'_> {
        dispatch_stream!(&self.inner, trailers())
    }

    /// Bytes written here that wait for a window or a turn; what waits for the transport is counted by
    /// [`pending_bytes`](Connection::pending_bytes). HTTP/1: none.
    pub fn queued(&self) -> usize {
        match &self.inner {
            StreamRef::H1(_) => 0,
            StreamRef::H2(conn, key) => conn.queued(*key),
        }
    }

    /// HTTP/2, client: what the frames of the stream carried. HTTP/1 has the connection to itself, and whoever
    /// reads and writes its bytes counts them.
    pub fn stats(&self) -> Option<StreamStats> {
        match &self.inner {
            StreamRef::H1(_) => None,
            StreamRef::H2(conn, key) => Some(conn.stats(*key)),
        }
    }

    /// Received bytes held and not yet read, framing included.
    pub fn buffered(&self) -> usize {
        dispatch_stream!(&self.inner, buffered())
    }

    /// Queues body bytes by copying them.
    pub fn write(&mut self, data: &[u8]) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, write(data))
    }

    /// Queues body bytes by reference when they are large; small ones are copied, which is cheaper.
    pub fn write_shared(&mut self, data: Bytes) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, write_shared(data))
    }

    /// Ends the message.
    pub fn finish(&mut self) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, finish(&[]))
    }

    /// Ends a message of unknown size with trailer fields.
    pub fn finish_with(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        dispatch_stream!(&mut self.inner, finish(trailers))
    }

    /// Gives the exchange up. A message under way never looks complete to the peer: HTTP/1 closes the
    /// connection, HTTP/2 resets the stream. On one that has failed: the program has done with it. On a
    /// switched one that is finished: what the peer may still send is of no interest.
    pub fn reset(&mut self) {
        dispatch_stream!(&mut self.inner, reset());
    }

    /// Bytes of a body of known size that are still to be sent, 0 where its method or status allows
    /// none. `None`: the size is not known, or no body is due.
    pub fn body_left(&self) -> Option<u64> {
        dispatch_stream!(&self.inner, body_left())
    }

    /// Bytes that may be queued before the high-water mark; 0: wait for [`Event::Writable`].
    pub fn send_capacity(&self) -> usize {
        dispatch_stream!(&self.inner, send_capacity())
    }
}
