//! Timer of a connection between two exchanges: the idle (keep-alive) timeout, and the timeout of the next head.

use std::time::Instant;

use crate::Limits;

/// Timer that runs from the end of an exchange until the next head is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleTimer {
    /// A head is being received, or awaited since accept. No byte resets it.
    Head(Instant),
    /// Kept alive between two exchanges.
    Idle(Instant),
    /// Accepted at that time; `close` was called before its first byte, which may be on its way.
    Closing(Instant),
    /// Idle since that time, and told to drain: the next response will be the last.
    Draining(Instant),
    /// No head is due.
    Off,
}

impl IdleTimer {
    pub fn deadline(self, limits: &Limits) -> Option<Instant> {
        match self {
            Self::Head(since) => Some(since + limits.header_timeout?),
            Self::Idle(since) => Some(since + limits.keep_alive_timeout?),
            Self::Closing(since) => Some(since + limits.first_request_timeout),
            Self::Draining(since) => Some(since + limits.drain_idle_timeout),
            Self::Off => None,
        }
    }

    /// The state after `close` on a server: a first head may be on its way. `None`: no head is expected.
    pub fn closing(self) -> Option<Self> {
        match self {
            Self::Head(since) | Self::Closing(since) => Some(Self::Closing(since)),
            Self::Idle(_) | Self::Draining(_) | Self::Off => None,
        }
    }
}
