//! The properties of an emulated network.

use std::time::Duration;

/// Bytes that a connection may hold in one direction beyond a bandwidth-delay product.
const SPARE_BYTES: usize = 256 * 1024;
/// Bytes that a connection may hold in one direction when there is no rate limit.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkConditions {
    pub rtt: Duration,
    /// Largest deviation of a round trip from `rtt`, in either direction.
    pub jitter: Duration,
    /// Bytes per second in each direction, for all connections together.
    pub rate: Option<f64>,
    /// Share of segments that are lost. TCP retransmits them: the model is the delay of a retransmission. Datagrams
    /// of UDP are really lost.
    pub loss: f64,
    /// Share of datagrams that arrive after later ones.
    pub reorder: f64,
    /// Share of datagrams that arrive twice.
    pub duplicates: f64,
    /// Time that datagrams may wait for the link. `None`: a round trip, as routers have, and at least 10 ms.
    pub queue: Option<Duration>,
    pub seed: u64,
}

impl NetworkConditions {
    /// Bytes that a connection may hold in one direction.
    pub fn window_bytes(&self) -> usize {
        self.rate.map_or(WINDOW_BYTES, |rate| {
            bytes_in(rate, self.rtt.as_secs_f64()) + SPARE_BYTES
        })
    }
}

/// Bytes that pass in `seconds` at `rate`.
#[expect(clippy::cast_sign_loss, reason = "neither is negative")]
pub fn bytes_in(rate: f64, seconds: f64) -> usize {
    (rate * seconds) as usize
}
