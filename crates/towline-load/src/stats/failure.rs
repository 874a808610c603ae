//! Classes of failures.

/// The class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Connect,
    Timeout,
    /// The connection ended before the response was complete.
    Reset,
    Protocol,
    Status,
    /// Length or bytes differ from the expected ones.
    Content,
    /// HTTP/2: the server reset the stream.
    StreamReset,
    /// HTTP/2: the server did not process the request: `REFUSED_STREAM`, or GOAWAY with a lower id.
    Unprocessed,
    /// Not sent: its values make no valid request.
    Invalid,
}

impl Failure {
    /// The name of the class in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::Status => "status",
            Self::Content => "content",
            Self::StreamReset => "stream_reset",
            Self::Unprocessed => "unprocessed",
            Self::Invalid => "invalid",
        }
    }
}

/// The number of [`Failure`] classes.
pub(crate) const FAILURES: usize = 9;
