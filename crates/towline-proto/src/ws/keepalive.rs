//! Keep-alive: a ping at each interval, and a timeout for its pong.
//!
//! ```text
//!             interval is over               pong
//!   Idle ─────────────────► AwaitingPong ──────────► Idle
//!                              └── no pong in time ──► failed
//! ```
//!
//! A pong after bytes that the program has not read cannot be seen, and none can come in the middle of a frame.
//! In both cases the timeout only starts again.

use std::time::Instant;

use super::Limits;

#[derive(Debug, Clone, Copy)]
pub(super) enum Keepalive {
    Idle { since: Instant },
    AwaitingPong { since: Instant, ping: u32 },
}

/// The action that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    None,
    Ping(u32),
    /// No pong came in time.
    Timeout,
}

impl Keepalive {
    pub fn deadline(self, limits: &Limits) -> Option<Instant> {
        let interval = limits.ping_interval?;
        Some(match self {
            Self::Idle { since } => since + interval,
            Self::AwaitingPong { since, .. } => since + limits.ping_timeout.unwrap_or(interval),
        })
    }

    /// `could_come`: a pong would have been seen if there had been one.
    pub fn check(&mut self, now: Instant, limits: &Limits, ping: u32, could_come: bool) -> Due {
        if self.deadline(limits).is_none_or(|deadline| now < deadline) {
            return Due::None;
        }
        match self {
            Self::AwaitingPong { since, .. } if limits.ping_timeout.is_some() => {
                if could_come {
                    return Due::Timeout;
                }
                *since = now;
                Due::None
            }
            // The second case: without a ping timeout, the next ping is sent when it is due.
            Self::Idle { .. } | Self::AwaitingPong { .. } => {
                *self = Self::AwaitingPong { since: now, ping };
                Due::Ping(ping)
            }
        }
    }

    /// Handles a pong. Only the one with the payload of our ping counts (RFC 6455 5.5.3 allows others).
    pub fn pong(&mut self, now: Instant, payload: &[u8]) {
        if let Self::AwaitingPong { ping, .. } = *self
            && payload == ping.to_be_bytes()
        {
            *self = Self::Idle { since: now };
        }
    }
}
