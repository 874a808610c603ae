//! Result of scanning one line of a head.

use crate::error::ConnectionError;

pub(super) const LINE_END: ConnectionError =
    ConnectionError::peer(400, "line not ended by CRLF (RFC 9112 2.2)");

/// Reason why a line ends the pass: more bytes are needed, or there is an error at some offset.
pub(super) enum Stop {
    Partial,
    Wrong(ConnectionError, usize),
}

pub(super) type Scan<T> = Result<T, Stop>;
