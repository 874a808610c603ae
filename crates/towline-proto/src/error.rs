//! Errors, by their source: the peer and the clock ([`ConnectionError`], [`StreamError`]) or the caller
//! ([`UserError`]).

use std::{error, fmt, sync::Arc};

/// The party that broke the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorSource {
    /// The other end of the connection.
    Peer,
    /// The program that drives this connection.
    Program,
    /// No violation: the connection ended in an orderly way.
    None,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// An orderly end: requested by either side, or end of input between two messages.
    Done,
    /// The peer broke the protocol.
    Protocol,
    /// The peer sent more than a limit allows.
    Limit,
    /// The peer was too slow; for a kept-alive connection without a request this is an orderly end too.
    Timeout,
    /// End of input inside a message.
    Truncated,
    /// The transport failed (reset, TLS alert, ...).
    Aborted,
    /// The program aborted an exchange whose end could not be signalled otherwise.
    Reset,
}

/// Why a connection ended, with the rule that was broken and the party that broke it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionError {
    /// The kind of end.
    pub reason: CloseReason,
    /// The rule, with its specification: `content-length differs (RFC 9112 6.3)`.
    pub rule: &'static str,
    /// The party that broke it.
    pub source: ErrorSource,
    /// The response status for it on the server side; 0 when no response is sent.
    pub status: u16,
}

impl ConnectionError {
    pub(crate) const fn new(
        reason: CloseReason,
        source: ErrorSource,
        status: u16,
        rule: &'static str,
    ) -> Self {
        Self {
            reason,
            rule,
            source,
            status,
        }
    }

    /// A protocol violation by the peer.
    pub(crate) const fn peer(status: u16, rule: &'static str) -> Self {
        Self::new(CloseReason::Protocol, ErrorSource::Peer, status, rule)
    }

    /// A limit passed by the peer.
    pub(crate) const fn limit(status: u16, rule: &'static str) -> Self {
        Self::new(CloseReason::Limit, ErrorSource::Peer, status, rule)
    }

    /// The peer was silent or too slow.
    pub(crate) const fn timeout(status: u16, rule: &'static str) -> Self {
        Self::new(CloseReason::Timeout, ErrorSource::Peer, status, rule)
    }

    /// The peer's input ended too early.
    pub(crate) const fn truncated(status: u16, rule: &'static str) -> Self {
        Self::new(CloseReason::Truncated, ErrorSource::Peer, status, rule)
    }

    /// The program has ended the connection in the middle of an exchange.
    pub(crate) const fn by_program(rule: &'static str) -> Self {
        Self::new(CloseReason::Reset, ErrorSource::Program, 0, rule)
    }

    /// An orderly end.
    pub(crate) const fn orderly(rule: &'static str) -> Self {
        Self::new(CloseReason::Done, ErrorSource::None, 0, rule)
    }

    /// An idle connection that nobody needs any longer.
    pub(crate) const fn idle(rule: &'static str) -> Self {
        Self::new(CloseReason::Timeout, ErrorSource::None, 0, rule)
    }

    /// True for an orderly end, about which nothing needs to be logged.
    pub fn is_clean(&self) -> bool {
        self.source == ErrorSource::None
    }
}

/// The end of a connection after its last exchange.
pub(crate) const DONE: ConnectionError = ConnectionError::orderly("closed in order");

/// The end of a connection that was idle for the keep-alive timeout.
pub(crate) const IDLE: ConnectionError = ConnectionError::idle("keep-alive timeout");

/// The peer or the network has aborted the connection.
pub(crate) const fn aborted(rule: &'static str) -> ConnectionError {
    ConnectionError::new(CloseReason::Aborted, ErrorSource::Peer, 0, rule)
}

/// The end of a connection whose peer does not read.
pub(crate) const SLOW_READER: ConnectionError =
    ConnectionError::timeout(0, "reading stalled or below the minimum rate");

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            ErrorSource::Peer => "peer: ",
            ErrorSource::Program => "program: ",
            ErrorSource::None => "",
        };
        write!(f, "{source}{}", self.rule)
    }
}

impl error::Error for ConnectionError {}

/// Why one exchange can no longer complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamError {
    /// The connection ended; the reason says how. On the client, a reason of `Done` or `Aborted` with no
    /// response byte received is the stale-connection race.
    Connection(Arc<ConnectionError>),
    /// The program reset the stream.
    Reset,
    /// The peer reset the stream.
    ResetByPeer(ErrorCode),
    /// The peer did not process the request and never will: `REFUSED_STREAM`, `H3_REQUEST_REJECTED`, or an HTTP/3
    /// GOAWAY excludes the stream. The request may be sent again elsewhere.
    Refused(&'static str),
    /// The peer ended the connection, and said why.
    ClosedByPeer {
        /// The request was not processed: its stream is above the last one of the GOAWAY.
        unprocessed: bool,
        /// The peer's reason.
        close: Arc<PeerClose>,
    },
    /// The server requires HTTP/1.1 for the request: it ended the stream, or over HTTP/2 the connection, with the
    /// code for that.
    Http1Required {
        /// The request was not processed: the stream was reset with this code, or is above the last one of
        /// the GOAWAY. Otherwise the connection ended without a response, and processing may have started.
        unprocessed: bool,
        /// The code, with its specification.
        code: &'static str,
    },
    /// The stream was reset because the peer broke a rule or was too slow on it. The connection continues.
    Broken {
        /// The kind of fault: `Protocol`, `Limit` or `Timeout`.
        reason: CloseReason,
        /// The rule, with its specification.
        rule: &'static str,
    },
}

impl StreamError {
    /// The request was certainly not processed: it may be sent again whatever its method.
    pub fn is_unprocessed(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::ClosedByPeer {
                    unprocessed: true,
                    ..
                }
                | Self::Http1Required {
                    unprocessed: true,
                    ..
                }
        )
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Reset => f.write_str("aborted by the program"),
            Self::ResetByPeer(code) => write!(f, "peer: stream reset: {code}"),
            Self::Refused(rule) => write!(f, "peer: not processed: {rule}"),
            Self::ClosedByPeer {
                unprocessed: true,
                close,
            } => write!(f, "peer: not processed: above the last stream of {close}"),
            Self::ClosedByPeer { close, .. } => write!(f, "peer: closed: {close}"),
            Self::Http1Required {
                unprocessed: true,
                code,
            } => write!(f, "peer: not processed: {code}"),
            Self::Http1Required {
                unprocessed: false,
                code,
            } => write!(f, "peer: closed with {code}"),
            Self::Broken { rule, .. } => write!(f, "peer: {rule}"),
        }
    }
}

/// Why the peer ended a connection, in its own words: GOAWAY of HTTP/2 (RFC 9113 6.8), `CONNECTION_CLOSE` of HTTP/3
/// (RFC 9114 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerClose {
    /// The code.
    pub code: ErrorCode,
    /// Debug data, or the reason phrase of QUIC: shortened, and only of printable ASCII characters.
    pub debug: Box<str>,
    /// GOAWAY says that no request of this connection was processed.
    pub processed_none: bool,
}

impl PeerClose {
    /// Bytes of debug data that are kept: enough for a sentence, too few for an attack on a log.
    pub const MAX_DEBUG_BYTES: usize = 256;

    pub(crate) fn new(code: ErrorCode, debug: &[u8], processed_none: bool) -> Self {
        let kept = &debug[..debug.len().min(Self::MAX_DEBUG_BYTES)];
        Self {
            code,
            debug: kept.escape_ascii().to_string().into(),
            processed_none,
        }
    }

    /// Whether the peer ended the connection because of an error.
    pub fn is_error(&self) -> bool {
        !matches!(self.code, ErrorCode::NO_ERROR | ErrorCode::H3_NO_ERROR)
    }

    /// Whether the peer wants fewer requests, or a safer connection: sending again at once can only make it worse.
    pub fn asks_for_less(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::ENHANCE_YOUR_CALM
                | ErrorCode::INADEQUATE_SECURITY
                | ErrorCode::H3_EXCESSIVE_LOAD
        )
    }
}

impl fmt::Display for PeerClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.code.is_http3() {
            "CONNECTION_CLOSE (RFC 9114 8)"
        } else {
            "GOAWAY (RFC 9113 6.8)"
        })?;
        if self.is_error() {
            write!(f, ", {}", self.code)?;
        }
        if !self.debug.is_empty() {
            write!(f, ": \"{}\"", self.debug)?;
        }
        Ok(())
    }
}

/// An error code of HTTP/2 (RFC 9113 7) or HTTP/3 (RFC 9114 8.1, RFC 9204 6), whose numbers do not overlap. Unknown
/// codes are kept as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u64);

impl ErrorCode {
    /// No error: an orderly end, or the rest of the request is not needed.
    pub const NO_ERROR: Self = Self(0x0);
    /// Unspecific protocol violation.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// Unexpected failure of the sender itself.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// A flow-control window was exceeded.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// SETTINGS were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    /// A frame on a stream that was closed.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame of the wrong size.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The stream was not processed.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The stream is no longer needed.
    pub const CANCEL: Self = Self(0x8);
    /// The header compression state cannot be maintained.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The tunnel's other connection failed.
    pub const CONNECT_ERROR: Self = Self(0xa);
    /// Excessive load.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    /// The transport is not safe enough.
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    /// The request must be made over HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);

    /// No error: an orderly end, or the rest of the request is not needed.
    pub const H3_NO_ERROR: Self = Self(0x100);
    /// Unspecific protocol violation.
    pub const H3_GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    /// Unexpected failure of the sender itself.
    pub const H3_INTERNAL_ERROR: Self = Self(0x102);
    /// A stream that the peer must not open, or of an unknown type.
    pub const H3_STREAM_CREATION_ERROR: Self = Self(0x103);
    /// A stream that the connection needs was closed.
    pub const H3_CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    /// A frame that is not permitted on its stream or in its state.
    pub const H3_FRAME_UNEXPECTED: Self = Self(0x105);
    /// A frame of a wrong layout or size.
    pub const H3_FRAME_ERROR: Self = Self(0x106);
    /// Excessive load.
    pub const H3_EXCESSIVE_LOAD: Self = Self(0x107);
    /// A stream or push identifier that is used incorrectly.
    pub const H3_ID_ERROR: Self = Self(0x108);
    /// An invalid setting.
    pub const H3_SETTINGS_ERROR: Self = Self(0x109);
    /// The control stream does not begin with SETTINGS.
    pub const H3_MISSING_SETTINGS: Self = Self(0x10a);
    /// The request was not processed.
    pub const H3_REQUEST_REJECTED: Self = Self(0x10b);
    /// The request or its response is no longer needed.
    pub const H3_REQUEST_CANCELLED: Self = Self(0x10c);
    /// The stream ended without a complete request.
    pub const H3_REQUEST_INCOMPLETE: Self = Self(0x10d);
    /// A malformed message.
    pub const H3_MESSAGE_ERROR: Self = Self(0x10e);
    /// The tunnel's other connection failed.
    pub const H3_CONNECT_ERROR: Self = Self(0x10f);
    /// The request must be made over HTTP/1.1.
    pub const H3_VERSION_FALLBACK: Self = Self(0x110);
    /// A field section that cannot be decoded.
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    /// An invalid instruction on the encoder stream.
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
    /// An invalid instruction on the decoder stream.
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);

    /// Whether it is in the range of HTTP/3, which begins behind the codes of HTTP/2.
    pub const fn is_http3(self) -> bool {
        self.0 >= Self::H3_NO_ERROR.0
    }

    /// The code's name in the registry; empty for an unknown code.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NO_ERROR => "NO_ERROR",
            Self::PROTOCOL_ERROR => "PROTOCOL_ERROR",
            Self::INTERNAL_ERROR => "INTERNAL_ERROR",
            Self::FLOW_CONTROL_ERROR => "FLOW_CONTROL_ERROR",
            Self::SETTINGS_TIMEOUT => "SETTINGS_TIMEOUT",
            Self::STREAM_CLOSED => "STREAM_CLOSED",
            Self::FRAME_SIZE_ERROR => "FRAME_SIZE_ERROR",
            Self::REFUSED_STREAM => "REFUSED_STREAM",
            Self::CANCEL => "CANCEL",
            Self::COMPRESSION_ERROR => "COMPRESSION_ERROR",
            Self::CONNECT_ERROR => "CONNECT_ERROR",
            Self::ENHANCE_YOUR_CALM => "ENHANCE_YOUR_CALM",
            Self::INADEQUATE_SECURITY => "INADEQUATE_SECURITY",
            Self::HTTP_1_1_REQUIRED => "HTTP_1_1_REQUIRED",
            Self::H3_NO_ERROR => "H3_NO_ERROR",
            Self::H3_GENERAL_PROTOCOL_ERROR => "H3_GENERAL_PROTOCOL_ERROR",
            Self::H3_INTERNAL_ERROR => "H3_INTERNAL_ERROR",
            Self::H3_STREAM_CREATION_ERROR => "H3_STREAM_CREATION_ERROR",
            Self::H3_CLOSED_CRITICAL_STREAM => "H3_CLOSED_CRITICAL_STREAM",
            Self::H3_FRAME_UNEXPECTED => "H3_FRAME_UNEXPECTED",
            Self::H3_FRAME_ERROR => "H3_FRAME_ERROR",
            Self::H3_EXCESSIVE_LOAD => "H3_EXCESSIVE_LOAD",
            Self::H3_ID_ERROR => "H3_ID_ERROR",
            Self::H3_SETTINGS_ERROR => "H3_SETTINGS_ERROR",
            Self::H3_MISSING_SETTINGS => "H3_MISSING_SETTINGS",
            Self::H3_REQUEST_REJECTED => "H3_REQUEST_REJECTED",
            Self::H3_REQUEST_CANCELLED => "H3_REQUEST_CANCELLED",
            Self::H3_REQUEST_INCOMPLETE => "H3_REQUEST_INCOMPLETE",
            Self::H3_MESSAGE_ERROR => "H3_MESSAGE_ERROR",
            Self::H3_CONNECT_ERROR => "H3_CONNECT_ERROR",
            Self::H3_VERSION_FALLBACK => "H3_VERSION_FALLBACK",
            Self::QPACK_DECOMPRESSION_FAILED => "QPACK_DECOMPRESSION_FAILED",
            Self::QPACK_ENCODER_STREAM_ERROR => "QPACK_ENCODER_STREAM_ERROR",
            Self::QPACK_DECODER_STREAM_ERROR => "QPACK_DECODER_STREAM_ERROR",
            _ => "",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "" => write!(f, "error {:#x}", self.0),
            name => f.write_str(name),
        }
    }
}

impl error::Error for StreamError {}

/// A mistake of the program. Nothing has been sent and the connection is unchanged, unless a variant says
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserError {
    /// No exchange of that id is open: it has ended and another has begun, or it never existed.
    UnknownStream,
    /// The exchange has failed or the connection is closed; nothing can be sent any more.
    StreamFailed,
    /// A client connection that is busy (HTTP/2: at its limit of streams), closing or unusable cannot take a
    /// request.
    NotIdle,
    /// A client called a server's method or the reverse.
    WrongSide,
    /// A second final response head, or data before any head.
    WrongOrder,
    /// Data after the end of the message.
    AlreadyFinished,
    /// Status outside 100..=599, or an interim status with a body.
    InvalidStatus,
    /// Reason phrase with a control character.
    InvalidReason,
    /// Method that is not a token (RFC 9110 9.1).
    InvalidMethod,
    /// Target with a space, control or non-ASCII byte, or not of a form its method allows (RFC 9112 3.2).
    InvalidTarget,
    /// A request without exactly one valid Host (RFC 9112 3.2).
    InvalidHost,
    /// Field name that is not a token (RFC 9110 5.1).
    InvalidFieldName,
    /// Field value with CR, LF, NUL or another control character (RFC 9110 5.5).
    InvalidFieldValue,
    /// Content-Length that is no number, is given twice, or contradicts the `BodySize`.
    InvalidContentLength,
    /// Transfer-Encoding other than `chunked`, or together with a known length.
    InvalidTransferEncoding,
    /// Framing or routing field in a trailer section (RFC 9110 6.5.1).
    ForbiddenTrailer,
    /// Trailers on a message that cannot carry them (known length, HTTP/1.0).
    TrailersNotPossible,
    /// More body bytes than announced; the surplus was not sent.
    BodyTooLong,
    /// Fewer body bytes than announced; the connection is aborted, since no valid end exists.
    BodyTooShort,
    /// 101 to a request that did not ask for an upgrade, whose body is not yet read, or on HTTP/2.
    UpgradeNotPossible,
    /// A method that the protocol of this connection does not support.
    WrongProtocol,
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownStream => "no exchange of this id is open",
            Self::StreamFailed => "the exchange has failed: nothing can be sent any more",
            Self::NotIdle => "the connection is busy or closing and takes no request",
            Self::WrongSide => "this method belongs to the other side",
            Self::WrongOrder => "data before the head, or a second final head",
            Self::AlreadyFinished => "data after the end of the message",
            Self::InvalidStatus => "status outside 100..=599, or interim status with a body",
            Self::InvalidReason => "control character in the reason phrase (RFC 9112 4)",
            Self::InvalidMethod => "method is not a token (RFC 9110 9.1)",
            Self::InvalidTarget => "malformed request target (RFC 9112 3.2)",
            Self::InvalidHost => "a request needs exactly one valid Host (RFC 9112 3.2)",
            Self::InvalidFieldName => "field name is not a token (RFC 9110 5.1)",
            Self::InvalidFieldValue => "control character in a field value (RFC 9110 5.5)",
            Self::InvalidContentLength => {
                "content-length is malformed, repeated or contradicts the body size (RFC 9110 8.6)"
            }
            Self::InvalidTransferEncoding => {
                "transfer-encoding other than chunked, or with a length (RFC 9112 6.1)"
            }
            Self::ForbiddenTrailer => "framing or routing field in trailers (RFC 9110 6.5.1)",
            Self::TrailersNotPossible => "this message cannot carry trailers (RFC 9112 7.1.2)",
            Self::BodyTooLong => "more body bytes than announced",
            Self::BodyTooShort => "fewer body bytes than announced",
            Self::UpgradeNotPossible => {
                "101 without an upgrade request, or before its body was read (RFC 9110 7.8)"
            }
            Self::WrongProtocol => "the protocol of this connection cannot do this",
        })
    }
}

impl error::Error for UserError {}
