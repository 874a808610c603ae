//! Server-sent events at a given rate, as a language model sends its tokens.

use std::time::{Duration, Instant};

use towline_io::Peer;
use towline_proto::{BodySize, Field, ResponseHead, StreamId, UserError};

use super::{Delayed, Due, Job};

const FIELDS: &[Field<'static>] = &[
    Field {
        name: b"content-type",
        value: b"text/event-stream",
    },
    Field {
        name: b"cache-control",
        value: b"no-store",
    },
];

/// A stream of events under way.
pub struct Events {
    pub stream: StreamId,
    every: Duration,
    sent: u64,
    /// `None`: without end.
    left: Option<u64>,
    data_bytes: usize,
}

/// `count` of 0 is without end. Each event carries its number and `data_bytes` of text.
pub fn start(
    peer: &mut Peer<Job>,
    delayed: &mut Delayed,
    stream: StreamId,
    (per_s, count, data_bytes): (u64, u64, usize),
) -> Result<(), UserError> {
    let head = ResponseHead {
        status: 200,
        reason: b"",
        fields: FIELDS,
    };
    peer.conn.respond(stream, &head, BodySize::Unknown)?;
    peer.state = Job::Events(Events {
        stream,
        every: Duration::from_nanos(1_000_000_000 / per_s.max(1)),
        sent: 0,
        left: (count > 0).then_some(count),
        data_bytes,
    });
    delayed.push(Instant::now(), peer.id(), stream, Due::Event);
    Ok(())
}

/// Sends one event; returns when the next is due. A reader that is behind misses events, as with a model
/// whose server does not buffer: what is in flight is bounded by our own window.
pub fn event(peer: &mut Peer<Job>, stream: StreamId, at: Instant) -> Option<Instant> {
    let Job::Events(events) = &mut peer.state else {
        return None;
    };
    let mut body = peer.conn.stream(stream).ok()?;
    if events.stream != stream {
        return None;
    }
    if events.left == Some(0) {
        peer.state = Job::None;
        let _ = body.finish();
        return None;
    }
    if body.room() > 0 {
        let number = events.sent;
        let width = events.data_bytes;
        let text = format!("id: {number}\ndata: {number:<width$}\n\n");
        body.write(text.as_bytes()).ok()?;
        events.sent += 1;
        events.left = events.left.map(|left| left - 1);
    }
    Some(at + events.every)
}
