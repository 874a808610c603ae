//! What a worker keeps beside each connection: requests in flight, and what has come of their answers.
//!
//! HTTP/1.1 answers in the order of the requests, HTTP/2 in any: a flight is found by its stream.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Instant;

use towline_io::Peer;
use towline_proto::{CloseReason, ConnectionError, Event, Read, StreamError, StreamId};

use super::send_modes::{Rest, go_on};
use super::websocket::Socket;
use crate::check::{Check, Known};
use crate::stats::{Answer, Failure};
use crate::target::Target;
use crate::websocket::{Denied, Parting};

/// A request whose answer is due.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) stream: StreamId,
    pub(super) target: u32,
    pub(super) intended: Instant,
    pub(super) sent: Instant,
    pub(super) head_at: Option<Instant>,
    pub(super) check: Check,
}

impl Flight {
    /// It is over `now`, and well.
    pub(super) fn answer(&self, now: Instant, body_bytes: u64) -> Answer {
        let since = |begin: Instant, end: Instant| end.saturating_duration_since(begin);
        let service = since(self.sent, now);
        // In a closed loop, and where an answer comes in one piece, the three are one: what of them differs is
        // told by less than it costs to take it.
        Answer {
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
pub(super) struct Line {
    /// `None`: its slot has been told of its end.
    pub(super) slot: Option<u32>,
    /// In the order of sending, so by stream.
    pub(super) flights: VecDeque<Flight>,
    /// Credits that found no stream free: the server allows fewer than we would open.
    pub(super) owed: usize,
    /// When bytes last came.
    pub(super) heard_at: Option<Instant>,
    /// Of the request in hand.
    pub(super) rest: Rest,
    /// The server has declined a request here.
    pub(super) refused: bool,
    /// Received bytes that have been counted.
    pub(super) counted_bytes: u64,
    /// `None`: the connection carries requests.
    pub(super) socket: Option<Box<Socket>>,
}

/// What a look at a connection gave.
pub(super) enum Step {
    /// Nothing more for now.
    Wait,
    /// The answer to the flight at this place is complete.
    Answered(usize),
    /// HTTP/2: the flight at this place has no answer to wait for; the others have.
    Failed(usize, Failure, String),
    /// The connection is over.
    Closed(Failure, Cow<'static, str>),
    /// It has become a WebSocket.
    Opened,
    /// ... or not.
    Denied(Denied),
    /// The WebSocket has ended.
    Parted(Box<Parting>),
    /// An answer that no request of ours asks for: an upgrade.
    Unasked,
}

impl Line {
    /// Where the flight of `stream` stands.
    fn place(&self, stream: StreamId) -> Option<usize> {
        if self.flights.front()?.stream == stream {
            return Some(0);
        }
        self.flights
            .binary_search_by_key(&stream, |flight| flight.stream)
            .ok()
    }
}

/// Goes on to the next end of something.
pub(super) fn advance(
    peer: &mut Peer<Line>,
    targets: &[Target],
    known: &mut [Known],
    now: Instant,
) -> Step {
    loop {
        let stream = match peer.conn.next_event() {
            None => return Step::Wait,
            Some(Event::Head { stream, head, end }) => {
                let line = &mut peer.state;
                let Some(place) = line.place(stream) else {
                    continue;
                };
                let flight = &mut line.flights[place];
                let expect = &targets[flight.target as usize].expect;
                flight.check.begin(head.status(), head.fields(), expect);
                flight.head_at = Some(now);
                if end {
                    return Step::Answered(place);
                }
                stream
            }
            Some(Event::Informational { stream, head }) if head.status() == 100 => {
                go_on(peer, stream, targets);
                continue;
            }
            Some(Event::Readable(stream)) => stream,
            Some(Event::Switched { .. }) => return Step::Unasked,
            Some(Event::Closed(error)) => {
                return Step::Closed(failure_of(&error), error.rule.into());
            }
            Some(Event::Failed(stream, error)) => {
                match (failure_on_stream(&error), peer.state.place(stream)) {
                    (Some(failure), Some(place)) => {
                        return Step::Failed(place, failure, error.to_string());
                    }
                    // Of all that stand on a connection that is over, `Closed` tells.
                    _ => continue,
                }
            }
            // The others mean nothing to us.
            Some(_) => continue,
        };
        if let Some(place) = take_body(peer, stream, targets, known) {
            return Step::Answered(place);
        }
    }
}

/// Checks what is here of the body; at its end, whose it was.
fn take_body(
    peer: &mut Peer<Line>,
    stream: StreamId,
    targets: &[Target],
    known: &mut [Known],
) -> Option<usize> {
    let line = &mut peer.state;
    let place = line.place(stream)?;
    let flight = &mut line.flights[place];
    let expect = &targets[flight.target as usize].expect;
    let known = &known[flight.target as usize];
    let mut stream = peer.conn.stream(stream).ok()?;
    loop {
        match stream.read(usize::MAX) {
            Read::Data(data) => flight.check.data(data, expect, known),
            Read::End => return Some(place),
            Read::Pending | Read::Failed => return None,
        }
    }
}

/// How the end of a connection counts for the requests that it leaves without an answer.
pub(crate) fn failure_of(error: &ConnectionError) -> Failure {
    match error.reason {
        CloseReason::Protocol | CloseReason::Limit => Failure::Protocol,
        CloseReason::Timeout => Failure::Timeout,
        CloseReason::Done | CloseReason::Truncated | CloseReason::Aborted | CloseReason::Reset => {
            Failure::Reset
        }
    }
}

/// How the end of a stream alone counts.
pub(crate) fn failure_on_stream(error: &StreamError) -> Option<Failure> {
    match error {
        StreamError::ResetByPeer(_) => Some(Failure::StreamReset),
        StreamError::Refused(_) | StreamError::Http1Required { .. } => Some(Failure::Unprocessed),
        StreamError::Broken { reason, .. } => Some(match reason {
            CloseReason::Timeout => Failure::Timeout,
            _ => Failure::Protocol,
        }),
        StreamError::Connection(_) | StreamError::Reset => None,
    }
}
