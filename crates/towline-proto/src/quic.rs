//! Commands and stream data between a connection of HTTP/3 and its QUIC transport. [`Connection`](crate::Connection) has the methods.

use bytes::Bytes;

/// A stream to read: call [`stream_received`](crate::Connection::stream_received) with at most `max_bytes` of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRecv {
    /// The stream's number.
    pub id: u64,
    /// Room for its bytes, above 0.
    pub max_bytes: usize,
}

/// The next bytes to send. Report what the transport took with [`stream_sent`](crate::Connection::stream_sent).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSend {
    /// The stream's number.
    pub id: u64,
    /// The next bytes of the stream; empty only with `end`.
    pub data: Bytes,
    /// The stream ends after these bytes.
    pub end: bool,
}

/// An order to the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuicCommand {
    /// Open the next stream of its kind, which has this number.
    Open {
        /// Unidirectional.
        uni: bool,
        /// The number that the stream has.
        id: u64,
    },
    /// Abandon sending on a stream (`RESET_STREAM`). Nothing more is sent on it.
    Reset {
        /// The stream's number.
        id: u64,
        /// Error code of the application (RFC 9114 8.1).
        code: u64,
    },
    /// Abandon reading of a stream (`STOP_SENDING`). Nothing more is asked from it.
    StopSending {
        /// The stream's number.
        id: u64,
        /// Error code of the application (RFC 9114 8.1).
        code: u64,
    },
    /// Bytes that the transport holds for this stream go before those of streams with a larger urgency.
    Priority {
        /// The stream's number.
        id: u64,
        /// 0 (first) to 7 (RFC 9218 4.1); 3 if no command says otherwise.
        urgency: u8,
    },
    /// Close the connection (`CONNECTION_CLOSE` of the application). The last command.
    Close {
        /// Error code of the application (RFC 9114 8.1).
        code: u64,
        /// Why, for the peer's log.
        reason: &'static str,
    },
}

/// How a QUIC connection ended that this end did not close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuicClose {
    /// The peer's program closed it.
    ByApplication {
        /// Error code of the application (RFC 9114 8.1).
        code: u64,
        /// Reason phrase, which may be empty.
        reason: Bytes,
    },
    /// The peer's transport, or our own, found an error, or the peer has forgotten the connection (stateless reset).
    ByTransport(&'static str),
    /// Nothing was received for the idle timeout of the transport (RFC 9000 10.1).
    IdleTimeout,
}
