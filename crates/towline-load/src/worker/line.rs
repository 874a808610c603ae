//! What a worker keeps beside each connection: requests in flight and the answer in hand.

use std::collections::VecDeque;
use std::time::Instant;

use towline_io::Peer;
use towline_proto::{CloseReason, ConnectionError, Event, Read};

use crate::check::Check;
use crate::stats::Failure;
use crate::target::Target;

/// A request whose answer is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) target: u32,
    pub(super) intended: Instant,
    pub(super) sent: Instant,
}

/// The state of one connection.
#[derive(Default)]
pub(super) struct Line {
    /// `None`: its slot has been told of its end.
    pub(super) slot: Option<u32>,
    /// In the order of sending, which is that of the answers.
    pub(super) flights: VecDeque<Flight>,
    pub(super) check: Check,
    pub(super) head_at: Option<Instant>,
    /// Received bytes that have been counted.
    pub(super) counted_bytes: u64,
}

/// What a look at a connection gave.
pub(super) enum Step {
    /// Nothing more for now.
    Wait,
    /// The answer to the oldest request is complete.
    Answered,
    /// The connection is over.
    Closed(Failure, &'static str),
    /// An answer that no request of ours asks for: an upgrade.
    Unasked,
}

/// Goes on to the next end of something.
pub(super) fn advance(peer: &mut Peer<Line>, targets: &[Target], now: Instant) -> Step {
    loop {
        let stream = match peer.conn.next_event() {
            None => return Step::Wait,
            Some(Event::Head { stream, head, end }) => {
                let line = &mut peer.state;
                if let Some(flight) = line.flights.front() {
                    let expect = &targets[flight.target as usize].expect;
                    line.check.begin(head.status(), expect);
                }
                line.head_at = Some(now);
                if end {
                    return Step::Answered;
                }
                stream
            }
            Some(Event::Readable(stream)) => stream,
            Some(Event::Switched { .. }) => return Step::Unasked,
            Some(Event::Closed(error)) => return Step::Closed(failure_of(&error), error.rule),
            // What failed, `Closed` says after it; the others mean nothing to us.
            Some(_) => continue,
        };
        if take_body(peer, stream, targets) {
            return Step::Answered;
        }
    }
}

/// Checks what is here of the body; true at its end.
fn take_body(peer: &mut Peer<Line>, stream: towline_proto::StreamId, targets: &[Target]) -> bool {
    let line = &mut peer.state;
    let Some(flight) = line.flights.front() else {
        return false;
    };
    let expect = &targets[flight.target as usize].expect;
    let Ok(mut stream) = peer.conn.stream(stream) else {
        return false;
    };
    loop {
        match stream.read(usize::MAX) {
            Read::Data(data) => line.check.data(data, expect),
            Read::End => return true,
            Read::Pending | Read::Failed => return false,
        }
    }
}

/// How the end of a connection counts for the requests that it leaves without an answer.
pub(super) fn failure_of(error: &ConnectionError) -> Failure {
    match error.reason {
        CloseReason::Protocol | CloseReason::Limit => Failure::Protocol,
        CloseReason::Timeout => Failure::Timeout,
        CloseReason::Done | CloseReason::Truncated | CloseReason::Aborted | CloseReason::Reset => {
            Failure::Reset
        }
    }
}
