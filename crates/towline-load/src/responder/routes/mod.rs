//! The responder's application, on any engine: `towline-responder` runs it in a process of its own, tests run
//! it on a thread (those of towline-io include this file by its path, since they are below this crate).
//!
//! ```text
//! head ─► route (resource) + injection (delay, fault) ─┬─ now ──► respond ─► tasks for long bodies
//!                                                      └─ later ─► delayed ─► respond
//! ```

pub mod behaviour;
mod catalogue;
mod delayed;
mod faults;
mod injection;
mod job;
mod query;
mod request;
mod responses;
mod route;
pub mod spin;
mod sse;
pub mod stall;
mod websocket;

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use towline_io::generator::PreciseWait;
use towline_io::{Conn, Engine};
use towline_proto::ws::Scratch;
use towline_proto::{BodySize, Event, Field, Protocol, ResponseHead, StreamId, UserError};

use behaviour::Behaviour;
use delayed::{Delayed, Due};
use injection::Injection;
pub use job::Jobs;
use job::{CollectResponse, Job};
use request::{PendingRequest, Route};

/// State of the responder: its behaviour and delayed responses.
pub struct State {
    behaviour: Behaviour,
    delayed: Delayed,
    /// Open connections.
    open: usize,
    /// State shared by all `WebSockets`.
    sockets: Scratch,
    precise_wait: PreciseWait,
}

impl Default for State {
    fn default() -> Self {
        Self::new(Behaviour::default())
    }
}

impl State {
    pub fn new(behaviour: Behaviour) -> Self {
        Self {
            behaviour,
            delayed: Delayed::default(),
            open: 0,
            // A server does not mask.
            sockets: Scratch::new([0; 32]),
            precise_wait: PreciseWait::default(),
        }
    }

    /// When a turn is due without input.
    pub fn next(&self) -> Option<Instant> {
        let delayed = self.delayed.next();
        let delayed = delayed.and_then(|at| at.checked_sub(self.behaviour.poll_before_due));
        [delayed, self.behaviour.next_stall()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// One turn: waits for events and handles them.
pub fn turn(engine: &mut Engine<Jobs>, state: &mut State) -> io::Result<()> {
    match state.next() {
        Some(at) => state.precise_wait.turn_start_by(engine, at)?,
        None => engine.turn_start(None)?,
    }
    state.behaviour.stall_if_due();
    state.open = engine.len();
    while let Some(id) = engine.next_ready() {
        if let Some(conn) = engine.conn(id) {
            serve(conn, state);
        }
        engine.flush_and_rearm(id);
    }
    respond_delayed(engine, state);
    engine.turn_end();
    state.behaviour.end_of_turn();
    Ok(())
}

/// Handles all events of a connection.
pub fn serve(conn: &mut Conn<Jobs>, state: &mut State) {
    while let Some(event) = conn.proto.next_event() {
        match event {
            Event::Head { stream, head, .. } => {
                let (route, injection) = route::route(&head, state.behaviour.app);
                let length = head.field(b"content-length");
                let length = length.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
                let expects = head.field(b"expect").is_some();
                let request = PendingRequest {
                    stream,
                    route,
                    length,
                    expects,
                };
                schedule_response(conn, state, request, injection);
            }
            Event::Readable(stream) | Event::Writable(stream) => resume(conn, state, stream),
            Event::Failed(stream, _) => cancel(conn, stream),
            Event::Closed(_) => drop(conn.state.take()),
            _ => {}
        }
    }
}

fn resume(conn: &mut Conn<Jobs>, state: &mut State, stream: StreamId) {
    if let Some(Job::Socket(_)) = conn.state.get(stream) {
        let means = (&mut state.sockets, &mut state.behaviour.injected);
        websocket::resume_body(conn, stream, means);
    } else {
        responses::resume_body(conn, stream);
    }
}

fn cancel(conn: &mut Conn<Jobs>, stream: StreamId) {
    conn.state.remove(stream);
    if let Ok(mut failed) = conn.proto.stream(stream) {
        failed.reset();
    }
}

/// The number of the request on its connection, from 1.
fn ordinal(conn: &Conn<Jobs>, stream: StreamId) -> u64 {
    match conn.proto.protocol() {
        // A client's streams have odd numbers (RFC 9113 5.1.1).
        Some(Protocol::Http2) => stream.0.div_ceil(2),
        // From 0, in steps of 4 (RFC 9000 2.1).
        Some(Protocol::Http3) => stream.0 / 4 + 1,
        _ => stream.0,
    }
}

/// Responds at once or later, as the injection and the server's behaviour require.
fn schedule_response(
    conn: &mut Conn<Jobs>,
    state: &mut State,
    mut request: PendingRequest,
    injection: Option<Box<Injection>>,
) {
    let behaviour = &mut state.behaviour;
    // Reading the log must not change the counts.
    if !matches!(request.route, Route::InjectedFaults) {
        behaviour.injected.requests += 1;
        behaviour.spin();
    }
    let ordinal = ordinal(conn, request.stream);
    if behaviour.is_last(ordinal) {
        conn.proto.close();
    }
    if behaviour.refuses(ordinal, state.open) {
        request.route = Route::Fixed(&catalogue::BUSY);
        conn.proto.close();
    }
    let mut delay = behaviour.delay + request.route.delay();
    if let Some(injection) = injection {
        delay += injection.apply(&mut request.route, &mut behaviour.injected);
    }
    if delay.is_zero() {
        // An error shows as a missing response in every test.
        let _ = respond(conn, state, request);
    } else {
        let due = Due::Response(Box::new(request));
        state.delayed.push(Instant::now() + delay, conn.id(), due);
    }
}

/// Sends the responses that are due.
pub fn respond_delayed(engine: &mut Engine<Jobs>, state: &mut State) {
    let now = Instant::now();
    while let Some((at, id, due)) = state.delayed.due(now) {
        let Some(conn) = engine.conn(id) else {
            continue;
        };
        match due {
            Due::Response(request) => {
                let _ = respond(conn, state, *request);
            }
            Due::Event(stream) => {
                if let Some(next) = sse::event(conn, stream, at) {
                    state.delayed.push(next, id, Due::Event(stream));
                }
            }
        }
        // A pipelined request is now an event.
        serve(conn, state);
        engine.flush_and_rearm(id);
    }
}

fn respond(
    conn: &mut Conn<Jobs>,
    state: &mut State,
    request: PendingRequest,
) -> Result<(), UserError> {
    let PendingRequest { stream, length, .. } = request;
    match request.route {
        Route::Fixed(fixed) => responses::fixed(conn, stream, fixed),
        Route::Text(text) => responses::text(conn, stream, text),
        Route::Gzip => catalogue::gzip(conn, stream),
        Route::Document(document) => responses::json(conn, stream, document),
        Route::Pieces(count, bytes) => responses::pieces(conn, stream, count, bytes),
        Route::Ticks => catalogue::ticks(conn, stream),
        Route::Bytes(bytes, size) => responses::fill(conn, stream, bytes, size),
        // An early response would replace the 100.
        Route::Echo if request.expects => collect(conn, stream, length, CollectResponse::Octets),
        Route::Echo => responses::echo(conn, stream, length),
        Route::Collect(then) => collect(conn, stream, length, then),
        Route::Drain(says) => begin(conn, stream, Job::Drain(0, says)),
        Route::Req(_) => responses::req(conn, stream),
        Route::Chunked => responses::chunked_hello(conn, stream),
        Route::Events(injection) => sse::start(conn, &mut state.delayed, stream, injection),
        Route::File(path) => file(conn, stream, path),
        Route::Fault(fault) => faults::respond(conn, stream, fault),
        Route::Socket(request) => {
            let means = (&mut state.sockets, &mut state.behaviour.injected);
            websocket::open(conn, stream, *request, means)
        }
        Route::WsRefused(refusal) => {
            let own = refusal.fields();
            let own = own.iter().map(|(name, value)| Field { name, value });
            let head = ResponseHead {
                status: refusal.status,
                reason: b"",
                fields: &own
                    .chain(responses::PLAIN.iter().copied())
                    .collect::<Vec<_>>(),
            };
            responses::respond_with(conn, stream, &head, refusal.rule.into())
        }
        Route::InjectedFaults => {
            let account = state.behaviour.injected.json();
            responses::json(conn, stream, account.into())
        }
        Route::Later(route, _) => {
            let route = *route;
            respond(conn, state, PendingRequest { route, ..request })
        }
    }
}

fn collect(
    conn: &mut Conn<Jobs>,
    stream: StreamId,
    length: Option<u64>,
    then: CollectResponse,
) -> Result<(), UserError> {
    let expected = length.unwrap_or(0).min(16 << 20);
    let room = usize::try_from(expected).unwrap_or(0);
    begin(conn, stream, Job::Collect(Vec::with_capacity(room), then))
}

/// Errors show later, as with every task.
#[expect(clippy::unnecessary_wraps, reason = "one of the ways to answer")]
fn begin(conn: &mut Conn<Jobs>, stream: StreamId, job: Job) -> Result<(), UserError> {
    conn.state.insert(stream, job);
    responses::resume_body(conn, stream);
    Ok(())
}

fn file(conn: &mut Conn<Jobs>, stream: StreamId, path: PathBuf) -> Result<(), UserError> {
    let opened = std::fs::File::open(path).and_then(|file| {
        let len = file.metadata()?.len();
        Ok((file, len))
    });
    let Ok((file, len)) = opened else {
        return responses::fixed(conn, stream, &catalogue::NOT_FOUND);
    };
    conn.proto
        .respond(stream, &responses::ok(), BodySize::Known(len))?;
    conn.send_file(stream, file, 0, len)
}
