//! The rules of HTTP/2 that a peer can break, each with its code and its source.

pub(super) use crate::error::SLOW_READER;
use crate::multiplexed::exchange::MessageRules;
pub(super) use crate::multiplexed::fault::Fault;
use crate::multiplexed::head::{BODY_TOO_LARGE, body_length};
use crate::{ConnectionError, ErrorCode, StreamError, Version};

/// A malformed message (RFC 9113 8.1.1).
pub(super) const fn malformed(rule: &'static str) -> Fault {
    protocol(rule)
}

/// A header block that cannot be decoded (RFC 9113 4.3).
pub(super) const fn compression(rule: &'static str) -> Fault {
    fault(ErrorCode::COMPRESSION_ERROR, rule)
}

const fn protocol(rule: &'static str) -> Fault {
    fault(ErrorCode::PROTOCOL_ERROR, rule)
}

const fn fault(code: ErrorCode, rule: &'static str) -> Fault {
    Fault::protocol(code, rule)
}

const fn limit(code: ErrorCode, rule: &'static str) -> Fault {
    Fault::limit(code, rule)
}

const fn timeout(code: ErrorCode, rule: &'static str) -> Fault {
    Fault::timeout(code, rule)
}

const CALM: ErrorCode = ErrorCode::ENHANCE_YOUR_CALM;
const SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;
const FLOW: ErrorCode = ErrorCode::FLOW_CONTROL_ERROR;

// Start of the connection.
pub(super) const PREFACE: Fault = protocol("no client preface (RFC 9113 3.4)");
pub(super) const NO_SETTINGS: Fault = protocol("the first frame is not SETTINGS (RFC 9113 3.4)");
pub(super) const SETTINGS_LATE: Fault = timeout(
    ErrorCode::SETTINGS_TIMEOUT,
    "SETTINGS not acknowledged in time (RFC 9113 6.5.3)",
);

// Frames.
pub(super) const TOO_LONG: Fault = fault(SIZE, "frame longer than allowed (RFC 9113 4.2)");
pub(super) const WRONG_SIZE: Fault = fault(SIZE, "frame of a wrong size (RFC 9113 6)");
pub(super) const PADDING: Fault = protocol("padding longer than the frame (RFC 9113 6.1)");
pub(super) const NEEDS_STREAM: Fault = protocol("frame of a stream on the connection (RFC 9113 6)");
pub(super) const NEEDS_CONNECTION: Fault =
    protocol("frame of the connection on a stream (RFC 9113 6)");
pub(super) const BLOCK_INTERRUPTED: Fault =
    protocol("another frame inside a header block (RFC 9113 6.10)");
pub(super) const NO_BLOCK: Fault = protocol("CONTINUATION without a header block (RFC 9113 6.10)");
pub(super) const PUSH: Fault = protocol("PUSH_PROMISE although push is off (RFC 9113 8.4)");
pub(super) const SELF_DEPENDENCY: Fault = protocol("stream depends on itself (RFC 7540 5.3.1)");
pub(super) const SETTING: Fault = protocol("value of a setting out of range (RFC 9113 6.5.2)");
pub(super) const SETTING_WINDOW: Fault =
    fault(FLOW, "initial window above 2^31 - 1 (RFC 9113 6.5.2)");
pub(super) const PRIORITY_UPDATE: Fault =
    protocol("PRIORITY_UPDATE to a client, or of no stream (RFC 9218 7.1)");

// Streams.
pub(super) const IDLE_STREAM: Fault = protocol("frame on an idle stream (RFC 9113 5.1)");
pub(super) const STREAM_ID: Fault =
    protocol("stream identifier of the wrong side (RFC 9113 5.1.1)");
pub(super) const CLOSED_STREAM: Fault = fault(
    ErrorCode::STREAM_CLOSED,
    "frame on a closed stream (RFC 9113 5.1)",
);
pub(super) const HALF_CLOSED: Fault = fault(
    ErrorCode::STREAM_CLOSED,
    "frame after the end of a message (RFC 9113 5.1)",
);
pub(super) const DATA_FIRST: Fault = protocol("DATA before a head (RFC 9113 8.1)");
pub(super) const TRAILERS_OPEN: Fault =
    protocol("trailers that do not end the stream (RFC 9113 8.1)");
pub(super) const REFUSED: Fault = limit(
    ErrorCode::REFUSED_STREAM,
    "more streams than allowed (RFC 9113 5.1.2)",
);

// Flow control.
pub(super) const WINDOW: Fault = fault(FLOW, "more bytes than the window (RFC 9113 6.9.1)");
pub(super) const WINDOW_OVERFLOW: Fault = fault(FLOW, "window above 2^31 - 1 (RFC 9113 6.9.1)");
pub(super) const NO_INCREMENT: Fault = protocol("WINDOW_UPDATE of 0 (RFC 9113 6.9)");

// Messages.
pub(super) const BODY_LENGTH: Fault = malformed(body_length(Version::Http2));
pub(super) const INTERIM_END: Fault =
    malformed("interim response that ends the stream (RFC 9113 8.1)");
pub(super) const BODY: Fault = limit(ErrorCode::CANCEL, BODY_TOO_LARGE);
const INTERIM: Fault = limit(CALM, "too many interim responses");
pub(super) const MESSAGES: MessageRules = MessageRules {
    interim: INTERIM,
    body_length: BODY_LENGTH,
    body: BODY,
};
pub(super) const HEADERS: Fault = limit(CALM, "header list too long");

// Attacks.
pub(super) const BLOCK: Fault = limit(CALM, "header block too long");
pub(super) const CONTINUATIONS: Fault = limit(CALM, "too many CONTINUATION frames");
pub(super) const RESETS: Fault = limit(CALM, "too many resets");
pub(super) const CONTROL: Fault = limit(CALM, "too many control frames");

// Time.
pub(super) const SLOW_HEAD: Fault = timeout(CALM, "head not complete within the header timeout");
pub(super) const SILENT: Fault =
    timeout(ErrorCode::NO_ERROR, "no request within the header timeout");
pub(super) const SLOW_BODY: Fault =
    timeout(ErrorCode::CANCEL, "body stalled or below the minimum rate");
pub(super) const SLOW_WINDOW: Fault = timeout(
    ErrorCode::CANCEL,
    "window stalled or opened below the minimum rate",
);
pub(super) const NO_PONG: Fault = timeout(ErrorCode::NO_ERROR, "PING not answered in time");

// Orderly ends, and failures of the transport.
pub(super) const TRUNCATED: ConnectionError =
    ConnectionError::truncated(0, "end of input inside a message (RFC 9113 9.1)");
pub(super) const NO_CREDIT: ConnectionError = ConnectionError::truncated(
    0,
    "end of input while a body waits for its window (RFC 9113 5.2)",
);

/// Why a stream was not processed.
pub(super) const BY_REFUSED_STREAM: &str = "REFUSED_STREAM (RFC 9113 8.7)";

/// The server requires HTTP/1.1.
pub(super) fn http1_required(unprocessed: bool) -> StreamError {
    StreamError::Http1Required {
        unprocessed,
        code: "HTTP_1_1_REQUIRED (RFC 9113 7)",
    }
}
