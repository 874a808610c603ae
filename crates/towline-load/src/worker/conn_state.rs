//! The worker's state of a connection: requests in flight and the progress of their responses.
//!
//! HTTP/1.1 responds in the order of the requests, HTTP/2 in any order: a request is found by its
//! stream.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use towline_io::generator::{Generated, GeneratorState};
use towline_proto::StreamId;
use towline_proto::ws::WebSocket;

use crate::check::Check;
use crate::stats::ResponseTimes;
use crate::websocket::Handshake;

/// A request that waits for its response.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) stream: StreamId,
    pub(super) target: u32,
    pub(super) intended: Instant,
    pub(super) sent: Instant,
    pub(super) head_at: Option<Instant>,
    pub(super) check: Check,
}

impl InFlight {
    /// The times of a response that completes `now`. `response` counts from the intended start, which corrects for
    /// coordinated omission: a request that had to wait for a connection is late, and its latency says so.
    pub(super) fn response_times(&self, now: Instant, body_bytes: u64) -> ResponseTimes {
        let since = |begin: Instant, end: Instant| end.saturating_duration_since(begin);
        let service = since(self.sent, now);
        // In a closed loop, for a response that arrives in one piece, the three times are equal; extra
        // clock reads would cost more than the difference.
        ResponseTimes {
            response: if self.intended == self.sent {
                service
            } else {
                since(self.intended, now)
            },
            service,
            first_byte: match self.head_at {
                Some(head_at) if head_at != now => since(self.sent, head_at),
                _ => service,
            },
            body_bytes,
        }
    }
}

/// The state of one connection.
#[derive(Default)]
pub(super) struct ConnState {
    /// `None`: the slot has recorded the end of the connection.
    pub(super) slot: Option<u32>,
    /// In the order of sending, so sorted by stream.
    pub(super) pending: VecDeque<InFlight>,
    /// Permits that found no stream free: the server allows fewer streams than configured.
    pub(super) deferred_permits: usize,
    /// Since when the connection is barred, as far as it has been noticed.
    pub(super) barred_since: Option<Instant>,
    /// When bytes were last received.
    pub(super) last_received_at: Option<Instant>,
    /// The unsent part of the current request.
    pub(super) pending_send: PendingSend,
    /// The server has refused a request on this connection.
    pub(super) refused: bool,
    /// Received bytes that are already counted.
    pub(super) counted_bytes: u64,
    /// `None`: the connection carries requests.
    pub(super) socket: Option<Box<WsState>>,
    generated: Generated,
}

impl GeneratorState for ConnState {
    fn generated(&self) -> &Generated {
        &self.generated
    }

    fn generated_mut(&mut self) -> &mut Generated {
        &mut self.generated
    }
}

/// The unsent part of the current request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PendingSend {
    #[default]
    Nothing,
    Pieces(Pieces),
    /// The body, when the server sends 100.
    Body,
    /// Close the connection when all output is sent.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) gap: Duration,
    of: u64,
    sent: u64,
    bytes: u64,
}

/// The WebSocket of a connection.
pub(super) struct WsState {
    pub(super) stage: WsStage,
    /// Messages in flight when bytes were last received: the limit of replies among those bytes.
    pub(super) replies_expected: usize,
}

pub(super) enum WsStage {
    /// The opening handshake; with the negotiated WebSocket between the head of the response and the switch.
    Handshaking(Handshake, Option<WebSocket>),
    Open(WebSocket, StreamId),
}

impl ConnState {
    /// Whether the server allows no request, although none is in flight.
    pub(super) fn is_barred(&self) -> bool {
        self.pending.is_empty() && self.deferred_permits > 0
    }

    /// Index of the request on `stream`.
    pub(super) fn index(&self, stream: StreamId) -> Option<usize> {
        if self.pending.front()?.stream == stream {
            return Some(0);
        }
        self.pending
            .binary_search_by_key(&stream, |request| request.stream)
            .ok()
    }
}

impl Pieces {
    /// `bytes` in this number of pieces, with `gap` between them; `None`: there is only one.
    pub(super) fn new(pieces: u32, gap: Duration, bytes: u64) -> Option<Self> {
        let of = u64::from(pieces).min(bytes);
        (of > 1).then_some(Self {
            gap,
            of,
            sent: 0,
            bytes,
        })
    }

    /// Size of the next piece; the sizes differ by one byte at most.
    pub(super) fn next(&mut self) -> u64 {
        let upto = |pieces: u64| self.bytes * pieces / self.of;
        let bytes = upto(self.sent + 1) - upto(self.sent);
        self.sent += 1;
        bytes
    }

    pub(super) fn is_last(self) -> bool {
        self.sent + 1 >= self.of
    }
}

impl WsState {
    /// Bytes were received while this many messages were in flight.
    pub(super) fn on_received(&mut self, under_way: usize) {
        self.replies_expected = under_way;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_about_the_same_size_and_add_up() {
        let mut pieces = Pieces::new(5, Duration::ZERO, 27).unwrap();
        let mut sizes = Vec::new();
        while !pieces.is_last() {
            sizes.push(pieces.next());
        }
        sizes.push(pieces.next());
        assert_eq!(sizes, [5, 5, 6, 5, 6]);
    }
}
