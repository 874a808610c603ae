//! States of the two directions of a stream.
//!
//! ```text
//!  receive    Head ─► Body ─► Ended ─► Done            (a request's head is there when the stream is)
//!           (client)                (client: read to the end)
//!  send       Head ─► Body/Discard ─► Complete
//!           (server)
//!
//!  either of them ──reset, broken rule──► Failed
//! ```

/// The message being received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RecvState {
    /// Client: the final response head is due.
    #[default]
    Head,
    /// DATA, or trailers.
    Body,
    /// `END_STREAM` was received; there may be unread bytes.
    Ended,
    /// Client: the program has read the end.
    Done,
    Failed,
}

/// The message being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SendState {
    /// Server: the final response head is due.
    #[default]
    Head,
    /// Number of announced bytes still to be sent; `None`: until `finish`.
    Body(Option<u64>),
    /// A body that must not be sent (HEAD, 204, 304), or that the peer no longer needs.
    Discard,
    /// The program has finished the message.
    Complete,
    Failed,
}

/// State of the `END_STREAM` to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EndStream {
    #[default]
    Open,
    /// To be sent with the last queued byte, or with the trailers.
    Pending,
    Sent,
}

/// CONNECT (RFC 9113 8.5, RFC 8441).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Tunnel {
    #[default]
    None,
    /// Requested. Bytes received belong to the tunnel and cannot be read before it is open.
    Requested,
    Open,
}
