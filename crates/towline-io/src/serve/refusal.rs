//! The reasons for which the server refuses requests and connections.

use towline_proto::{CloseReason, Protocol};

use super::labels::labelled;

labelled! {
/// Why a request or a connection was refused. The label is that of its counter, and its name in a JSON access log. The
/// set is fixed, which bounds the series.
pub enum Reason {
    /// 400: a violation of HTTP/1.
    Malformed: "malformed",
    /// 400: the end of input inside a request.
    Truncated: "truncated",
    /// 408, or a client that does not read.
    Timeout: "timeout",
    /// 413: `--limit-request-body`.
    BodyTooLarge: "body_too_large",
    /// 414: `--limit-request-line`.
    TargetTooLong: "target_too_long",
    /// 415 or 400: a content coding of a request that is not accepted, or does not fit the body (`--decompress-requests`).
    ContentCoding: "content_coding",
    /// 417: unknown Expect.
    Expectation: "expectation",
    /// 431: `--limit-request-fields`, `--limit-request-field-size`, `--limit-request-head`.
    HeadersTooLarge: "headers_too_large",
    /// 501: CONNECT, an unknown transfer coding.
    NotImplemented: "not_implemented",
    /// 503: `--limit-concurrency`.
    Overloaded: "overloaded",
    /// 429: `--limit-rate`.
    Rate: "rate_limit",
    /// `--limit-connections`: the connection is closed.
    Connections: "connection_limit",
    /// `--limit-connections-per-client`: the connection is closed.
    ClientConnections: "client_connection_limit",
    /// 505: a version that the server does not support.
    Version: "version",
    /// 400 or 426: a WebSocket handshake that violates RFC 6455.
    WebSocket: "websocket",
    /// A violation of HTTP/2: the stream or the connection ends.
    Http2Protocol: "http2_protocol",
    /// A limit of HTTP/2: too many streams, resets or control frames.
    Http2Limit: "http2_limit",
    /// The handshake fails: `--ssl-ca-certs`, `--ssl-cert-reqs`.
    ClientCertificate: "client_certificate",
    /// 400: HTTP without TLS, sent to an address with TLS.
    PlainHttp: "plain_http",
}
}

impl Reason {
    /// The reason of a fault that the protocol core has found.
    pub fn of(status: u16, reason: CloseReason, protocol: Protocol) -> Self {
        match (status, reason, protocol) {
            (413, ..) => Self::BodyTooLarge,
            (414, ..) => Self::TargetTooLong,
            (417, ..) => Self::Expectation,
            (431, ..) => Self::HeadersTooLarge,
            (501, ..) => Self::NotImplemented,
            (505, ..) => Self::Version,
            (_, CloseReason::Timeout, _) => Self::Timeout,
            (_, CloseReason::Truncated, _) => Self::Truncated,
            (_, CloseReason::Limit, Protocol::Http2) => Self::Http2Limit,
            (_, _, Protocol::Http2) => Self::Http2Protocol,
            _ => Self::Malformed,
        }
    }

    /// Whether it is written to the server log. A client that disconnects in the middle of a request is not.
    pub(super) fn is_logged(self) -> bool {
        self != Self::Truncated
    }
}

/// A refusal, in the record of its exchange, for the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedFor {
    pub reason: Reason,
    /// The rule, with its specification.
    pub rule: &'static str,
}

/// A body that cannot be decoded: the status of the response, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undecodable {
    pub status: u16,
    pub refused: RefusedFor,
}

impl Undecodable {
    pub(super) const fn new(status: u16, reason: Reason, rule: &'static str) -> Self {
        let refused = RefusedFor { reason, rule };
        Self { status, refused }
    }
}
