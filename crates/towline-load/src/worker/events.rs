//! The events of a connection that carries requests.

use std::borrow::Cow;
use std::time::Instant;

use towline_io::Conn;
use towline_proto::{CloseReason, ConnectionError, Event, StreamError, StreamId, StreamRead};

use super::conn_state::ConnState;
use super::send_modes::send_after_continue;
use crate::check::VerifiedBody;
use crate::stats::Failure;
use crate::target::Target;
use crate::websocket::{WsFailure, WsRefused};

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

/// Advances to the next event.
pub(super) fn advance(
    conn: &mut Conn<ConnState>,
    targets: &[Target],
    verified: &[VerifiedBody],
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
    verified: &[VerifiedBody],
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
            StreamRead::End => {
                if !expect.trailers.is_empty() {
                    request.check.trailers(&stream.trailers(), expect);
                }
                return Some(index);
            }
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
