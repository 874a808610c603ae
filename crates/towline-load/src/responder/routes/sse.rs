//! Server-sent events at a given rate, like the tokens of a language model.

use std::time::{Duration, Instant};

use towline_io::Conn;
use towline_proto::{BodySize, Field, ResponseHead, StreamId, UserError};

use super::delayed::{Delayed, Due};
use super::job::{Events, Job, Jobs};
use super::request::EventPlan;

pub const FIELDS: &[Field<'static>] = &[
    Field {
        name: b"content-type",
        value: b"text/event-stream",
    },
    Field {
        name: b"cache-control",
        value: b"no-store",
    },
];

pub fn start(
    conn: &mut Conn<Jobs>,
    delayed: &mut Delayed,
    stream: StreamId,
    plan: EventPlan,
) -> Result<(), UserError> {
    let head = ResponseHead {
        status: 200,
        reason: b"",
        fields: FIELDS,
    };
    conn.proto.respond(stream, &head, BodySize::Unknown)?;
    let events = Events {
        every: Duration::from_nanos(1_000_000_000 / plan.per_s.max(1)),
        sent: 0,
        left: (plan.count > 0).then_some(plan.count),
        data_bytes: plan.data_bytes,
    };
    conn.state.insert(stream, Job::Events(events));
    delayed.push(Instant::now(), conn.id(), Due::Event(stream));
    Ok(())
}

/// Sends one event; returns when the next is due. A slow reader misses events, as with a model server
/// that does not buffer: data in flight is bounded by the send window.
pub fn event(conn: &mut Conn<Jobs>, stream: StreamId, at: Instant) -> Option<Instant> {
    let Some(Job::Events(events)) = conn.state.get_mut(stream) else {
        return None;
    };
    let mut body = conn.proto.stream(stream).ok()?;
    if events.left == Some(0) {
        conn.state.remove(stream);
        let _ = body.finish();
        return None;
    }
    if body.send_capacity() > 0 {
        let number = events.sent;
        let width = events.data_bytes;
        let text = format!("id: {number}\ndata: {number:<width$}\n\n");
        body.write(text.as_bytes()).ok()?;
        events.sent += 1;
        events.left = events.left.map(|left| left - 1);
    }
    Some(at + events.every)
}
