//! Result of scanning one line of a head, and the errors of field lines.

use crate::error::ConnectionError;

pub(super) const LINE_END: ConnectionError =
    ConnectionError::peer(400, "line not ended by CRLF (RFC 9112 2.2)");

pub(super) const NAME: ConnectionError =
    ConnectionError::peer(400, "field name is not a token (RFC 9110 5.1)");
pub(super) const COLON: ConnectionError =
    ConnectionError::peer(400, "whitespace before the colon (RFC 9112 5.1)");
pub(super) const FOLD: ConnectionError =
    ConnectionError::peer(400, "folded field line (RFC 9112 5.2)");
pub(super) const VALUE: ConnectionError =
    ConnectionError::peer(400, "control byte in a field value (RFC 9110 5.5)");

/// Reason why a line ends the pass: more bytes are needed, or there is an error at some offset.
pub(super) enum Stop {
    Partial,
    Wrong(ConnectionError, usize),
}

pub(super) type Scan<T> = Result<T, Stop>;

/// The error of a line whose field name ends at `end` before its colon.
#[cold]
pub(super) fn bad_name(bytes: &[u8], at: usize, end: usize) -> Stop {
    let error = match bytes.get(end) {
        None => return Stop::Partial,
        Some(b' ' | b'\t') if end == at => FOLD,
        Some(b' ' | b'\t') => COLON,
        Some(b'\n') if end == at => LINE_END,
        Some(_) => NAME,
    };
    Stop::Wrong(error, end)
}
