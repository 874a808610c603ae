//! The bounds of one WebSocket, all in one place.

use std::time::Duration;

/// Bounds and times of a WebSocket. Shared by many through an `Arc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// A message after decompression, and a frame as announced. Over it: 1009, before anything of it is held.
    pub max_message_bytes: usize,
    /// What all fragments of one message may cost, each charged with at least 64 bytes; a message may always have
    /// `max_message_bytes`. Bytes and not a count: a legal message may come in 65,536 fragments. Over it: 1009.
    pub max_fragments_bytes: usize,
    /// How often a ping asks whether the peer is still there; `None`: never. Below the 60 s after which usual load
    /// balancers forget a silent connection.
    pub ping_interval: Option<Duration>,
    /// How long the pong may take. After it: 1011. `None`: for ever, and pings go on.
    pub ping_timeout: Option<Duration>,
    /// How long the peer's close frame, and after it the end of the connection, may take.
    pub close_timeout: Duration,
}

/// The least that a fragment is charged with.
pub(super) const FRAGMENT_CHARGE_BYTES: usize = 64;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message_bytes: 16 * 1024 * 1024,
            max_fragments_bytes: 16 * 1024 * 1024,
            ping_interval: Some(Duration::from_secs(20)),
            ping_timeout: Some(Duration::from_secs(20)),
            close_timeout: Duration::from_secs(10),
        }
    }
}
