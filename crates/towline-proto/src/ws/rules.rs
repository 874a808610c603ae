//! Errors: rules that a peer breaks, and mistakes of the program.

use std::{error, fmt};

/// The longest payload of a control frame (RFC 6455 5.5).
pub(super) const MAX_CONTROL_BYTES: usize = 125;
/// The longest reason in a close frame, beside the two bytes of the close code.
pub(super) const MAX_REASON_BYTES: usize = MAX_CONTROL_BYTES - 2;

/// Why a WebSocket failed: the peer broke a rule or was silent. The close frame with the code is queued already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// A code of RFC 6455 7.4.1; 1006: the connection ended, and no close frame can be sent.
    pub code: u16,
    /// The rule, with its specification.
    pub rule: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.rule, self.code)
    }
}

impl error::Error for Violation {}

/// The rule becomes the reason of the close frame.
const fn violation(code: u16, rule: &'static str) -> Violation {
    assert!(rule.len() <= MAX_REASON_BYTES);
    Violation { code, rule }
}

const fn protocol(rule: &'static str) -> Violation {
    violation(1002, rule)
}

const fn data(rule: &'static str) -> Violation {
    violation(1007, rule)
}

const fn too_big(rule: &'static str) -> Violation {
    violation(1009, rule)
}

pub(super) const RESERVED_BITS: Violation =
    protocol("reserved bits without an extension that gives them a meaning (RFC 6455 5.2)");
pub(super) const RESERVED_OPCODE: Violation = protocol("reserved opcode (RFC 6455 5.2)");
pub(super) const UNMASKED: Violation =
    protocol("a frame of a client that is not masked (RFC 6455 5.1)");
pub(super) const MASKED: Violation = protocol("a frame of a server that is masked (RFC 6455 5.1)");
pub(super) const FRAGMENTED_CONTROL: Violation =
    protocol("a control frame in fragments (RFC 6455 5.5)");
pub(super) const LONG_CONTROL: Violation =
    protocol("a control frame of more than 125 bytes (RFC 6455 5.5)");
pub(super) const COMPRESSED_CONTINUATION: Violation =
    protocol("the compression bit on a frame that does not begin a message (RFC 7692 6.1)");
pub(super) const LONG_LENGTH: Violation =
    protocol("a length not written in the fewest bytes (RFC 6455 5.2)");
pub(super) const HUGE_LENGTH: Violation = protocol("a length of more than 63 bits (RFC 6455 5.2)");
pub(super) const NOTHING_TO_CONTINUE: Violation =
    protocol("a continuation without a message to continue (RFC 6455 5.4)");
pub(super) const MESSAGE_IN_MESSAGE: Violation =
    protocol("a new message before the end of the one in fragments (RFC 6455 5.4)");
pub(super) const SHORT_CLOSE: Violation = protocol("a close frame of one byte (RFC 6455 5.5.1)");
pub(super) const CLOSE_CODE: Violation =
    protocol("a close code that may not be sent (RFC 6455 7.4)");
pub(super) const CLOSE_REASON: Violation =
    data("a close reason that is not UTF-8 (RFC 6455 5.5.1)");
pub(super) const TEXT: Violation = data("a text message that is not UTF-8 (RFC 6455 8.1)");
pub(super) const COMPRESSION: Violation = data("malformed compressed data (RFC 7692 7.2.2)");
pub(super) const MESSAGE_SIZE: Violation = too_big("a message over the limit");
pub(super) const FRAGMENTS: Violation = too_big("fragments that cost more than the limit");
pub(super) const NO_PONG: Violation = violation(1011, "no pong in time (RFC 6455 5.5.2)");
pub(super) const NO_CLOSE: Violation =
    violation(1006, "no close frame in time after ours (RFC 6455 7.1.2)");
pub(super) const TRUNCATED: Violation = violation(
    1006,
    "the connection ended without a close frame (RFC 6455 7.1.5)",
);

/// A mistake of the program. Nothing has been sent and the WebSocket is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The WebSocket is closing or closed.
    Closing,
    /// A fragment of another type than the message in progress.
    OtherKind,
    /// A code that may not be sent: 1004 to 1006, 1015, outside 1000..=1014 and 3000..=4999 (RFC 6455 7.4).
    InvalidCode,
    /// More than 125 bytes in a ping or pong, or 123 in a close reason (RFC 6455 5.5).
    TooLong,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closing => "the WebSocket is closing: nothing can be sent any more",
            Self::OtherKind => "a fragment of another kind than its message (RFC 6455 5.4)",
            Self::InvalidCode => "a close code that may not be sent (RFC 6455 7.4)",
            Self::TooLong => "a control frame holds 125 bytes, a close reason 123 (RFC 6455 5.5)",
        })
    }
}

impl error::Error for SendError {}
