//! The worker's state of a connection: requests in flight and the progress of their responses.
//!
//! HTTP/1.1 responds in the order of the requests, HTTP/2 in any order: a request is found by its
//! stream.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Instant;

use towline_io::Conn;
use towline_proto::{CloseReason, ConnectionError, Event, StreamError, StreamId, StreamRead};

use super::send_modes::{PendingSend, send_after_continue};
use super::websocket::WsState;
use crate::check::{Check, VerifiedBody};
use crate::stats::{Failure, ResponseTimes};
use crate::target::Target;
use crate::websocket::{WsFailure, WsRefused};

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
}

/// The next event of a connection.
pub(super) enum ConnEvent {
    /// Nothing more for now.
    Idle,
    /// The response to the request at this index is complete.
    Completed(usize),
    /// HTTP/2: the request at this index has failed; the others continue.
    StreamFailed(usize, Failure, String),
    /// The connection has ended.
    Closed(Failure, Cow<'static, str>),
    /// The connection has become a WebSocket.
    WsOpened,
    /// The WebSocket handshake was refused.
    WsRefused(WsRefused),
    /// The WebSocket has ended.
    WsFailed(Box<WsFailure>),
    /// An upgrade that was not requested.
    UnexpectedUpgrade,
}

impl ConnState {
    /// Whether the server allows no request, although none is in flight.
    pub(super) fn is_barred(&self) -> bool {
        self.pending.is_empty() && self.deferred_permits > 0
    }

    /// Index of the request on `stream`.
    fn index(&self, stream: StreamId) -> Option<usize> {
        if self.pending.front()?.stream == stream {
            return Some(0);
        }
        self.pending
            .binary_search_by_key(&stream, |request| request.stream)
            .ok()
    }
}

/// Advances to the next event.
pub(super) fn advance(
    conn: &mut Conn<ConnState>,
    targets: &[Target],
    verified: &mut [VerifiedBody],
    now: Instant,
) -> ConnEvent {
    loop {
        let stream = match conn.proto.next_event() {
            None => return ConnEvent::Idle,
            Some(Event::Head { stream, head, end }) => {
                let conn_state = &mut conn.state;
                let Some(index) = conn_state.index(stream) else {
                    continue;
                };
                let request = &mut conn_state.pending[index];
                let expect = &targets[request.target as usize].expect;
                request.check.begin(head.status(), head.fields(), expect);
                request.head_at = Some(now);
                if end {
                    return ConnEvent::Completed(index);
                }
                stream
            }
            Some(Event::Informational { stream, head }) if head.status() == 100 => {
                send_after_continue(conn, stream, targets);
                continue;
            }
            Some(Event::Readable(stream)) => stream,
            Some(Event::Switched { .. }) => return ConnEvent::UnexpectedUpgrade,
            Some(Event::Closed(error)) => {
                return ConnEvent::Closed(failure_of(&error), error.rule.into());
            }
            Some(Event::Failed(stream, error)) => {
                match (failure_on_stream(&error), conn.state.index(stream)) {
                    (Some(failure), Some(index)) => {
                        return ConnEvent::StreamFailed(index, failure, error.to_string());
                    }
                    // The connection has ended: `Closed` reports it.
                    _ => continue,
                }
            }
            // Other events are not relevant here.
            Some(_) => continue,
        };
        if let Some(index) = take_body(conn, stream, targets, verified) {
            return ConnEvent::Completed(index);
        }
    }
}

/// Checks the received part of the body; returns the index of the request at its end.
fn take_body(
    conn: &mut Conn<ConnState>,
    stream: StreamId,
    targets: &[Target],
    verified: &mut [VerifiedBody],
) -> Option<usize> {
    let conn_state = &mut conn.state;
    let index = conn_state.index(stream)?;
    let request = &mut conn_state.pending[index];
    let expect = &targets[request.target as usize].expect;
    let verified = &verified[request.target as usize];
    let mut stream = conn.proto.stream(stream).ok()?;
    loop {
        match stream.read(usize::MAX) {
            StreamRead::Data(data) => request.check.data(data, expect, verified),
            StreamRead::End => return Some(index),
            StreamRead::Pending | StreamRead::Failed => return None,
        }
    }
}

/// The failure class of requests that remain without a response when a connection ends.
pub(crate) fn failure_of(error: &ConnectionError) -> Failure {
    match error.reason {
        CloseReason::Protocol | CloseReason::Limit => Failure::Protocol,
        CloseReason::Timeout => Failure::Timeout,
        CloseReason::Done | CloseReason::Truncated | CloseReason::Aborted | CloseReason::Reset => {
            Failure::Reset
        }
    }
}

/// The failure class of a request whose stream ends alone.
pub(crate) fn failure_on_stream(error: &StreamError) -> Option<Failure> {
    match error {
        StreamError::ResetByPeer(_) => Some(Failure::StreamReset),
        StreamError::Refused(_)
        | StreamError::ClosedByPeer {
            unprocessed: true, ..
        }
        | StreamError::Http1Required { .. } => Some(Failure::Unprocessed),
        StreamError::Broken { reason, .. } => Some(match reason {
            CloseReason::Timeout => Failure::Timeout,
            _ => Failure::Protocol,
        }),
        StreamError::Connection(_) | StreamError::ClosedByPeer { .. } | StreamError::Reset => None,
    }
}
