//! Errors of the state machine, each with its rule. Errors of the parsers are defined next to them.

use crate::ConnectionError;
pub(super) use crate::error::{DONE, IDLE, SLOW_READER, aborted};

pub(super) const SILENT: ConnectionError =
    ConnectionError::timeout(0, "no request within the header timeout");
pub(super) const SLOW_HEAD: ConnectionError =
    ConnectionError::timeout(408, "head not complete within the header timeout");
pub(super) const SLOW_BODY: ConnectionError =
    ConnectionError::timeout(408, "body stalled or below the minimum rate");
pub(super) const RESET: ConnectionError = ConnectionError::by_program("aborted by the program");
pub(super) const TOO_SHORT: ConnectionError =
    ConnectionError::by_program("fewer body bytes than announced (RFC 9112 6.2)");
pub(super) const TRUNCATED_HEAD: ConnectionError =
    ConnectionError::truncated(400, "end of input inside a head (RFC 9112 8)");
pub(super) const TRUNCATED_BODY: ConnectionError =
    ConnectionError::truncated(400, "end of input inside a body (RFC 9112 8)");
pub(super) const NO_RESPONSE: ConnectionError =
    ConnectionError::truncated(0, "closed before a response (RFC 9112 9.3.1)");
pub(super) const UNSOLICITED: ConnectionError =
    ConnectionError::peer(0, "response bytes without a request (RFC 9112 6.3)");
pub(super) const INTERIM: ConnectionError = ConnectionError::limit(0, "too many interim responses");
pub(super) const UNREQUESTED_SWITCH: ConnectionError =
    ConnectionError::peer(0, "101 without an upgrade request (RFC 9110 15.2.2)");
pub(super) const TLS: ConnectionError = ConnectionError::peer(
    400,
    "a TLS handshake, sent to an address without TLS (RFC 8446 4.1.2)",
);
pub(super) const NO_HOST: ConnectionError =
    ConnectionError::peer(400, "missing Host (RFC 9112 3.2)");
pub(super) const HOSTS: ConnectionError =
    ConnectionError::peer(400, "several Host lines (RFC 9112 3.2)");
pub(super) const EXPECT: ConnectionError =
    ConnectionError::peer(417, "unknown expectation (RFC 9110 10.1.1)");
pub(super) const CONNECT_BODY: ConnectionError =
    ConnectionError::peer(400, "content in a CONNECT request (RFC 9110 9.3.6)");
pub(super) const BODY: ConnectionError = ConnectionError::limit(413, "body too large");
pub(super) const TRAILERS: ConnectionError =
    ConnectionError::limit(431, "trailer section too long");
pub(super) const TRAILER: ConnectionError =
    ConnectionError::peer(400, "malformed trailer (RFC 9112 7.1.2)");
pub(super) const UNREAD_BODY: ConnectionError =
    ConnectionError::orderly("closed with the request body unread");
