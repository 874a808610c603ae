//! What a connection tells its two neighbours: events to the program, interest to the transport.

use std::sync::Arc;
use std::time::Instant;

use crate::{ConnectionError, HeadRef, StreamError};

/// Which end of the connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// We send requests.
    Client,
    /// We answer them.
    Server,
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// What a server speaks on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProtocolPolicy {
    /// HTTP/1.0 and 1.1 only.
    #[default]
    Http1,
    /// HTTP/2 only.
    Http2,
    /// Whichever the peer begins with: the client preface of HTTP/2 (RFC 9113 3.4) tells.
    Either,
}

/// One exchange on a connection. HTTP/1: its ordinal, from 1. HTTP/2: the stream's identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What HEADERS, CONTINUATION and DATA frames of one stream have carried so far, their own headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Bytes handed over to be sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// When body bytes that had waited for a window, for room or for their turn were handed over last.
    pub last_sent: Option<Instant>,
}

/// One thing that happened. Heads borrow from the receive block: copy what must outlive the borrow.
#[derive(Debug)]
pub enum Event<'a> {
    /// Server: a request. Client: the final response.
    Head {
        /// The exchange it belongs to.
        stream: StreamId,
        /// Borrowed from the receive block.
        head: HeadRef<'a>,
        /// No body follows.
        end: bool,
    },
    /// Client: an interim (1xx) response other than 101.
    Informational {
        /// The exchange it belongs to.
        stream: StreamId,
        /// Borrowed from the receive block.
        head: HeadRef<'a>,
    },
    /// Body bytes, the end or the failure can be read now. Comes once after each [`StreamRead::Pending`].
    Readable(StreamId),
    /// Fewer than half of the send window is queued again. Comes once after `send_capacity()` was 0.
    Writable(StreamId),
    /// The peer sent its FIN while its exchange is open, or ended a stream on which it asks for a tunnel
    /// (CONNECT) and has no answer yet; it still gets one.
    HalfClosed(StreamId),
    /// After 101 or a 2xx to CONNECT: the stream now carries raw bytes, leftovers included.
    Switched {
        /// The exchange that switched.
        stream: StreamId,
    },
    /// This exchange can no longer complete. On a server the stream counts as one that the application
    /// still works on until the program gives it up (`reset`) or ends it (`finish`): a peer that resets
    /// its streams cannot have more applications at work than the limit of streams.
    Failed(StreamId, StreamError),
    /// HTTP/2: streams above `last` will not be served, and no new ones.
    GoingAway {
        /// The last stream that is.
        last: StreamId,
    },
    /// No event follows. Bytes may still have to leave: drop the socket when `interest().closed`.
    Closed(Arc<ConnectionError>),
}

/// What the transport should do for this connection now.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent answers, not a state"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Read when readable. When false there is no room: a FIN or reset should still be noticed.
    pub read: bool,
    /// Bytes are waiting in `send_slices`.
    pub write: bool,
    /// Everything has been sent and no more will come: send FIN (once), go on reading.
    pub shutdown: bool,
    /// Drop the socket.
    pub closed: bool,
    /// With `closed`: drop it by reset (`SO_LINGER` 0), since a FIN would look like a valid end.
    pub abort: bool,
}

/// What reading a stream gave. Taking the bytes is what lets the peer send more.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamRead<'a> {
    /// The next bytes of the body, never empty.
    Data(&'a [u8]),
    /// Nothing now; [`Event::Readable`] follows.
    Pending,
    /// The body is complete; trailers can be read.
    End,
    /// The body will never be complete; [`Event::Failed`] says why.
    Failed,
}
