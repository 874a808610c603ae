//! Values of a request that the server changes before the application sees it.

use std::time::Duration;

use super::super::forwarded::{Authority, PeerIp};
use crate::conn::config::ConnConfig;

/// How a request has arrived.
pub struct Arrival<'a> {
    /// The configuration of the address that it was sent to.
    pub address: &'a ConnConfig,
    /// `None`: the client has not proven its address.
    pub peer: Option<PeerIp>,
    pub is_https: bool,
    /// Time for which the request has waited in this server.
    pub waited: Duration,
}

/// Values that take the place of those that were received.
#[derive(Debug, Default)]
pub struct Overrides {
    /// The name of a header, and the id (`--request-id-header`).
    pub request_id: Option<(Box<[u8]>, String)>,
    /// Host and port that the client has called.
    pub authority: Option<Authority>,
    /// The prefix that replaces `--root-path`.
    pub prefix: Option<String>,
    /// The body is decoded: it has neither the coding nor the length that the headers say.
    pub is_decoded: bool,
    /// The length of a decoded body; `None`: the rest is decoded as the application reads it.
    pub decoded_bytes: Option<u64>,
    /// From `X-Request-Start` to the arrival here.
    pub queue_time: Option<Duration>,
}
