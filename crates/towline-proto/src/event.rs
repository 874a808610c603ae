//! Outputs of a connection: events for the program, interest for the transport.

use std::sync::Arc;
use std::time::Instant;

use crate::{ConnectionError, HeadRef, StreamError};

/// The end of the connection that this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Sends requests.
    Client,
    /// Sends responses.
    Server,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// The protocols that a server accepts on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProtocolPolicy {
    /// HTTP/1.0 and 1.1 only.
    #[default]
    Http1,
    /// HTTP/2 only.
    Http2,
    /// Either of them, decided by the first bytes: the client preface of HTTP/2 (RFC 9113 3.4) or anything
    /// else.
    Either,
    /// HTTP/3 only, on a QUIC connection.
    Http3,
}

/// One exchange on a connection. HTTP/1: its ordinal, from 1. HTTP/2, HTTP/3: the stream's identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Byte counts of the HEADERS, CONTINUATION and DATA frames of one stream, frame headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Bytes put into the send buffer.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// When body bytes that had been queued (for a window, for buffer space or for their turn) were last put
    /// into the send buffer.
    pub last_sent: Option<Instant>,
}

/// An event. Heads borrow from the receive buffer: copy what must outlive the borrow.
#[derive(Debug)]
pub enum Event<'a> {
    /// Server: a request. Client: the final response.
    Head {
        /// The exchange it belongs to.
        stream: StreamId,
        /// Borrowed from the receive buffer.
        head: HeadRef<'a>,
        /// No body follows.
        end: bool,
    },
    /// Client: an interim (1xx) response other than 101.
    Informational {
        /// The exchange it belongs to.
        stream: StreamId,
        /// Borrowed from the receive buffer.
        head: HeadRef<'a>,
    },
    /// Body bytes, the end or the failure can be read now. Delivered once after each [`StreamRead::Pending`].
    Readable(StreamId),
    /// Less than half of the send window, or little of the connection's bound, is queued again. Delivered once after
    /// `send_capacity()` was 0. Also when the peer does not need the rest: `is_body_unwanted()`.
    Writable(StreamId),
    /// The peer sent its FIN while its exchange is open, or ended a stream on which it requested a tunnel
    /// (CONNECT) before the response; the response can still be sent.
    HalfClosed(StreamId),
    /// After 101 or a 2xx to CONNECT: the stream now carries raw bytes, beginning with those received
    /// already.
    Switched {
        /// The exchange that switched.
        stream: StreamId,
    },
    /// This exchange can no longer complete. On a server the stream counts as being processed by the
    /// application until the program calls `reset` or `finish`: a peer that resets its streams cannot have
    /// more requests processed at once than the limit of streams.
    Failed(StreamId, StreamError),
    /// HTTP/2: streams above `last` will not be processed, and no new ones can be opened.
    GoingAway {
        /// The last stream that may be processed.
        last: StreamId,
    },
    /// The last event. Bytes may still have to be sent: drop the socket when `interest().closed`.
    Closed(Arc<ConnectionError>),
}

/// The I/O that the connection waits for.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent answers, not a state"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Read when readable. When false the receive buffer is full: a FIN or reset should still be noticed.
    pub read: bool,
    /// Bytes are waiting in `send_slices`.
    pub write: bool,
    /// Everything has been sent and nothing more will be: send FIN (once) and continue reading.
    pub shutdown: bool,
    /// Drop the socket.
    pub closed: bool,
    /// With `closed`: drop it by reset (`SO_LINGER` 0), since a FIN would look like a valid end.
    pub abort: bool,
}

/// Result of reading a stream. Reading bytes is what lets the peer send more.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamRead<'a> {
    /// The next bytes of the body, never empty.
    Data(&'a [u8]),
    /// Nothing now; [`Event::Readable`] follows.
    Pending,
    /// End of the body; trailers can be read.
    End,
    /// The body will never be complete; [`Event::Failed`] says why.
    Failed,
}
