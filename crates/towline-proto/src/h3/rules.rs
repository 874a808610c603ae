//! The rules of HTTP/3 that a peer can break, each with its code and its source.

use crate::error::aborted;
use crate::multiplexed::exchange::MessageRules;
pub(super) use crate::multiplexed::fault::Fault;
use crate::multiplexed::head::{BODY_TOO_LARGE, body_length};
use crate::{ConnectionError, ErrorCode, Version};

/// A malformed message (RFC 9114 4.1.2).
pub(super) const fn malformed(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::H3_MESSAGE_ERROR, rule)
}

const fn unexpected(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::H3_FRAME_UNEXPECTED, rule)
}

const fn identifier(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::H3_ID_ERROR, rule)
}

const fn creation(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::H3_STREAM_CREATION_ERROR, rule)
}

const fn load(rule: &'static str) -> Fault {
    Fault::limit(ErrorCode::H3_EXCESSIVE_LOAD, rule)
}

const fn timeout(code: ErrorCode, rule: &'static str) -> Fault {
    Fault::timeout(code, rule)
}

// Unidirectional streams.
pub(super) const NO_SETTINGS: Fault = Fault::protocol(
    ErrorCode::H3_MISSING_SETTINGS,
    "the control stream does not begin with SETTINGS (RFC 9114 6.2.1)",
);
pub(super) const SECOND_STREAM: Fault =
    creation("second stream of a type that exists once (RFC 9114 6.2.1, RFC 9204 4.2)");
pub(super) const CRITICAL_STREAM: Fault = Fault::protocol(
    ErrorCode::H3_CLOSED_CRITICAL_STREAM,
    "control or QPACK stream closed (RFC 9114 6.2.1, RFC 9204 4.2)",
);
pub(super) const PUSH_BY_CLIENT: Fault = creation("push stream of a client (RFC 9114 6.2.2)");
pub(super) const PUSH: Fault = identifier("push although no MAX_PUSH_ID was sent (RFC 9114 4.6)");
pub(super) const SERVER_BIDI: Fault = creation("bidirectional stream of a server (RFC 9114 6.1)");
pub(super) const STREAM_ID: Fault =
    creation("stream of a number that the peer cannot open (RFC 9000 2.1)");

// Frames.
pub(super) const TRUNCATED_FRAME: Fault = Fault::protocol(
    ErrorCode::H3_FRAME_ERROR,
    "stream ends inside a frame (RFC 9114 7.1)",
);
pub(super) const WRONG_SIZE: Fault = Fault::protocol(
    ErrorCode::H3_FRAME_ERROR,
    "frame of a wrong size (RFC 9114 7.1)",
);
pub(super) const TOO_LONG: Fault = load("frame of the control stream too long");
pub(super) const ON_REQUEST: Fault =
    unexpected("frame of the control stream on a request stream (RFC 9114 7.2)");
pub(super) const ON_CONTROL: Fault =
    unexpected("frame of a request stream on the control stream (RFC 9114 7.2)");
pub(super) const OF_HTTP2: Fault = unexpected("frame type of HTTP/2 (RFC 9114 7.2.8)");
pub(super) const SECOND_SETTINGS: Fault = unexpected("second SETTINGS (RFC 9114 7.2.4)");
pub(super) const OF_SERVER: Fault = unexpected("frame that a server must not send (RFC 9114 7.2)");
pub(super) const PROMISE_BY_CLIENT: Fault = unexpected("PUSH_PROMISE of a client (RFC 9114 7.2.5)");
pub(super) const DATA_FIRST: Fault = unexpected("DATA before a head (RFC 9114 4.1)");
pub(super) const AFTER_TRAILERS: Fault = unexpected("frame after trailers (RFC 9114 4.1)");
pub(super) const IN_TUNNEL: Fault = unexpected("HEADERS on a CONNECT stream (RFC 9114 4.4)");
pub(super) const SETTING: Fault = Fault::protocol(
    ErrorCode::H3_SETTINGS_ERROR,
    "value of a setting out of range (RFC 9114 7.2.4)",
);
pub(super) const SETTING_TWICE: Fault = Fault::protocol(
    ErrorCode::H3_SETTINGS_ERROR,
    "setting sent twice (RFC 9114 7.2.4)",
);
pub(super) const SETTING_OF_HTTP2: Fault = Fault::protocol(
    ErrorCode::H3_SETTINGS_ERROR,
    "setting of HTTP/2 (RFC 9114 7.2.4.1)",
);
pub(super) const PUSH_ID: Fault = identifier("push identifier out of range (RFC 9114 7.2)");
pub(super) const GO_AWAY_ID: Fault =
    identifier("GOAWAY with an identifier that is not a request or rises (RFC 9114 5.2)");
pub(super) const PRIORITY_ID: Fault =
    identifier("PRIORITY_UPDATE of no request stream (RFC 9218 7.2)");
pub(super) const PRIORITY_TO_CLIENT: Fault =
    unexpected("PRIORITY_UPDATE to a client (RFC 9218 7.2)");

// Compression.
pub(super) const BLOCKED_STREAMS: Fault = Fault::protocol(
    ErrorCode::QPACK_DECOMPRESSION_FAILED,
    "more blocked streams than allowed (RFC 9204 2.1.2)",
);

/// A field section that cannot be decoded (RFC 9204 2.2).
pub(super) const fn section(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::QPACK_DECOMPRESSION_FAILED, rule)
}

/// An instruction of the encoder stream that cannot be executed (RFC 9204 4.3).
pub(super) const fn encoder_stream(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::QPACK_ENCODER_STREAM_ERROR, rule)
}

/// An instruction of the decoder stream that cannot be executed (RFC 9204 4.4).
pub(super) const fn decoder_stream(rule: &'static str) -> Fault {
    Fault::protocol(ErrorCode::QPACK_DECODER_STREAM_ERROR, rule)
}

// Messages.
pub(super) const BODY_LENGTH: Fault = malformed(body_length(Version::Http3));
pub(super) const NO_REQUEST: Fault = Fault::protocol(
    ErrorCode::H3_REQUEST_INCOMPLETE,
    "stream ended without a request (RFC 9114 4.1)",
);
pub(super) const NO_RESPONSE: Fault = malformed("stream ended without a response (RFC 9114 4.1)");
pub(super) const REFUSED: Fault = Fault::limit(
    ErrorCode::H3_REQUEST_REJECTED,
    "more streams than allowed (RFC 9114 4.1.1)",
);
pub(super) const GOING_AWAY: Fault = Fault::limit(
    ErrorCode::H3_REQUEST_REJECTED,
    "request after the last one of GOAWAY (RFC 9114 5.2)",
);
pub(super) const BODY: Fault = Fault::limit(ErrorCode::H3_REQUEST_CANCELLED, BODY_TOO_LARGE);
/// The rest of a body after a 413.
pub(super) const BODY_REFUSED: Fault = Fault::limit(ErrorCode::H3_NO_ERROR, BODY.rule);
const INTERIM: Fault = load("too many interim responses");
pub(super) const MESSAGES: MessageRules = MessageRules {
    interim: INTERIM,
    body_length: BODY_LENGTH,
    body: BODY,
};
pub(super) const HEADERS: Fault = load("header list too long");
pub(super) const SECTION: Fault = load("field section too long");

// Attacks.
pub(super) const RESETS: Fault = load("too many resets");
pub(super) const CONTROL: Fault = load("too many frames without data");
pub(super) const UNREAD: Fault = load("control or QPACK stream not read");

// Time.
pub(super) const SLOW_HEAD: Fault = timeout(
    ErrorCode::H3_REQUEST_REJECTED,
    "head not complete within the header timeout",
);
pub(super) const SILENT: Fault = timeout(
    ErrorCode::H3_NO_ERROR,
    "no request within the header timeout",
);
pub(super) const SLOW_BODY: Fault = timeout(
    ErrorCode::H3_REQUEST_CANCELLED,
    "body stalled or below the minimum rate",
);
pub(super) const SLOW_READER: Fault = timeout(
    ErrorCode::H3_REQUEST_CANCELLED,
    "reading stalled or below the minimum rate",
);

// Orderly ends, and failures of the transport.
pub(super) const BY_PEER: ConnectionError =
    ConnectionError::orderly("closed by the peer (RFC 9114 5.3)");
pub(super) const QUIC_IDLE: ConnectionError =
    ConnectionError::idle("idle timeout of the transport (RFC 9000 10.1)");
/// The peer has closed with an error; the program's logs need which.
pub(super) const REFUSED_BY_PEER: ConnectionError =
    aborted("closed by the peer with an error (RFC 9114 8)");

/// Why a stream was not processed.
pub(super) const BY_REJECTION: &str = "H3_REQUEST_REJECTED (RFC 9114 4.1.1)";
pub(super) const BY_GOAWAY: &str = "at or above the stream of GOAWAY (RFC 9114 5.2)";
/// The connection carried nothing but early data.
pub(super) const IN_EARLY_DATA: &str =
    "the connection failed before its handshake was complete (RFC 9001 4.6)";
/// The code with which a server requires HTTP/1.1.
pub(super) const VERSION_FALLBACK: &str = "H3_VERSION_FALLBACK (RFC 9114 8.1)";
