//! A broken rule of a multiplexed protocol.

use crate::error::{CloseReason, ErrorSource};
use crate::{ConnectionError, ErrorCode, StreamError};

/// A broken rule: ends a stream or the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub code: ErrorCode,
    pub reason: CloseReason,
    pub rule: &'static str,
}

impl Fault {
    pub fn error(self) -> ConnectionError {
        ConnectionError::new(self.reason, ErrorSource::Peer, 0, self.rule)
    }

    pub fn stream_error(self) -> StreamError {
        StreamError::Broken {
            reason: self.reason,
            rule: self.rule,
        }
    }
}

impl Fault {
    /// A broken rule of the protocol.
    pub const fn protocol(code: ErrorCode, rule: &'static str) -> Self {
        Self {
            code,
            reason: CloseReason::Protocol,
            rule,
        }
    }

    /// An exceeded limit.
    pub const fn limit(code: ErrorCode, rule: &'static str) -> Self {
        Self {
            code,
            reason: CloseReason::Limit,
            rule,
        }
    }

    /// A timeout.
    pub const fn timeout(code: ErrorCode, rule: &'static str) -> Self {
        Self {
            code,
            reason: CloseReason::Timeout,
            rule,
        }
    }
}
