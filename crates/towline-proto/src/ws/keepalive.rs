//! Whether the peer is still there: a ping at each interval, and a clock over its pong.
//!
//! ```text
//!             interval is over                pong
//!   Quiet ────────────────────► Asked ─────────────────► Quiet
//!                                 └── no pong in time ──► failed
//! ```
//!
//! A pong that stands behind bytes which the program does not read cannot be seen, and one cannot come in the middle
//! of a frame. In both cases the clock only starts anew.

use std::time::Instant;

use super::Limits;

#[derive(Debug, Clone, Copy)]
pub(super) enum Keepalive {
    Idle { since: Instant },
    AwaitingPong { since: Instant, ping: u32 },
}

/// What is due now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    None,
    Ping(u32),
    /// The time for the pong is over.
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

    /// `could_come`: a pong would have been seen, had there been one.
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
            // The second: without a time for the pong, the next ping goes out when it is due.
            Self::Idle { .. } | Self::AwaitingPong { .. } => {
                *self = Self::AwaitingPong { since: now, ping };
                Due::Ping(ping)
            }
        }
    }

    /// A pong came. Only the one to our ping counts (RFC 6455 5.5.3 allows others).
    pub fn pong(&mut self, now: Instant, payload: &[u8]) {
        if let Self::AwaitingPong { ping, .. } = *self
            && payload == ping.to_be_bytes()
        {
            *self = Self::Idle { since: now };
        }
    }
}
