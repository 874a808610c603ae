//! What the responder answers, on any engine: the example runs it in a process of its own, the tests on
//! a thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towline_io::{ConnId, Engine, Peer};
use towline_proto::{BodySize, Event, Field, HeadRef, Read, ResponseHead, StreamId, UserError};

const HELLO: &[u8] = b"Hello, World!";
static LARGE: [u8; 64 * 1024] = [b'x'; 64 * 1024];

/// What a connection does with the body of its present request.
#[derive(Default)]
pub enum Job {
    #[default]
    None,
    Echo(StreamId),
    Drain(StreamId, u64),
}

/// What a request asks for.
enum Route {
    Hello,
    Large,
    Echo,
    Drain,
    Delay(Duration),
    Chunked,
    File(PathBuf),
}

pub type Delayed = BinaryHeap<Reverse<(Instant, ConnId, StreamId)>>;

/// One turn: waits for work, and answers it.
pub fn turn(engine: &mut Engine<Job>, delayed: &mut Delayed) -> io::Result<()> {
    let next = delayed.peek().map(|Reverse((at, ..))| *at);
    engine.turn_start(next.map(|at| at.saturating_duration_since(Instant::now())))?;
    while let Some(id) = engine.next_ready() {
        if let Some(peer) = engine.peer(id) {
            serve(peer, delayed);
        }
        engine.settle(id);
    }
    answer_delayed(engine, delayed);
    engine.turn_end();
    Ok(())
}

fn route(head: &HeadRef<'_>) -> Route {
    let target = head.target();
    let (path, query) = match target.iter().position(|&byte| byte == b'?') {
        Some(at) => (&target[..at], &target[at + 1..]),
        None => (target, &b""[..]),
    };
    let value = |name: &str| std::str::from_utf8(query).ok()?.strip_prefix(name);
    match path {
        b"/large" => Route::Large,
        b"/echo" => Route::Echo,
        b"/drain" => Route::Drain,
        b"/delay" => {
            let millis = value("ms=").and_then(|ms| ms.parse().ok()).unwrap_or(0);
            Route::Delay(Duration::from_millis(millis))
        }
        b"/chunked" => Route::Chunked,
        b"/file" => Route::File(value("path=").unwrap_or_default().into()),
        _ => Route::Hello,
    }
}

/// Everything that a connection has to say, and the answers to it.
pub fn serve(peer: &mut Peer<Job>, delayed: &mut Delayed) {
    while let Some(event) = peer.conn.next_event() {
        match event {
            Event::Head { stream, head, .. } => {
                let length = head.field(b"content-length");
                let length = length.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
                let route = route(&head);
                // A mistake of ours would show as a missing answer in every test.
                let _ = answer(peer, delayed, stream, route, length);
            }
            Event::Readable(_) | Event::Writable(_) => work(peer),
            Event::Failed(..) | Event::Closed(_) => peer.state = Job::None,
            _ => {}
        }
    }
}

fn answer(
    peer: &mut Peer<Job>,
    delayed: &mut Delayed,
    stream: StreamId,
    route: Route,
    length: Option<u64>,
) -> Result<(), UserError> {
    match route {
        Route::Hello => hello(peer, stream)?,
        Route::Large => {
            peer.conn
                .respond(stream, &ok(), BodySize::Known(LARGE.len() as u64))?;
            let mut body = peer.conn.stream(stream)?;
            body.write_shared(Bytes::from_static(&LARGE))?;
            body.finish()?;
        }
        Route::Echo => {
            peer.conn.respond(
                stream,
                &ok(),
                length.map_or(BodySize::Unknown, BodySize::Known),
            )?;
            peer.state = Job::Echo(stream);
            work(peer);
        }
        Route::Drain => {
            peer.state = Job::Drain(stream, 0);
            work(peer);
        }
        Route::Delay(delay) => delayed.push(Reverse((Instant::now() + delay, peer.id(), stream))),
        Route::Chunked => {
            peer.conn.respond(stream, &ok(), BodySize::Unknown)?;
            let mut body = peer.conn.stream(stream)?;
            body.write(b"Hello, ")?;
            body.write(b"World!")?;
            body.finish()?;
        }
        Route::File(path) => {
            let opened = std::fs::File::open(path).and_then(|file| {
                let len = file.metadata()?.len();
                Ok((file, len))
            });
            let Ok((file, len)) = opened else {
                return peer.conn.respond(stream, &status(404), BodySize::Known(0));
            };
            peer.conn.respond(stream, &ok(), BodySize::Known(len))?;
            peer.send_file(stream, file, 0, len)?;
        }
    }
    Ok(())
}

fn hello(peer: &mut Peer<Job>, stream: StreamId) -> Result<(), UserError> {
    peer.conn
        .respond(stream, &ok(), BodySize::Known(HELLO.len() as u64))?;
    let mut body = peer.conn.stream(stream)?;
    body.write(HELLO)?;
    body.finish()
}

fn ok() -> ResponseHead<'static> {
    status(200)
}

fn status(status: u16) -> ResponseHead<'static> {
    const FIELDS: &[Field<'static>] = &[
        Field {
            name: b"server",
            value: b"towline",
        },
        Field {
            name: b"content-type",
            value: b"text/plain",
        },
    ];
    ResponseHead {
        status,
        reason: b"",
        fields: FIELDS,
    }
}

/// Goes on with a body as far as both sides allow.
fn work(peer: &mut Peer<Job>) {
    let mut copy = Vec::new();
    loop {
        let (id, room) = match peer.state {
            Job::None => return,
            Job::Drain(id, _) => (id, usize::MAX),
            Job::Echo(id) => (id, peer.conn.stream(id).map_or(0, |stream| stream.room())),
        };
        let Ok(mut stream) = peer.conn.stream(id) else {
            return;
        };
        if room == 0 {
            return;
        }
        match (stream.read(room), &mut peer.state) {
            (Read::Data(data), Job::Drain(_, bytes)) => *bytes += data.len() as u64,
            (Read::Data(data), _) => {
                copy.clear();
                copy.extend_from_slice(data);
                if stream.write(&copy).is_err() {
                    return;
                }
            }
            (Read::Pending, _) => return,
            (Read::End, Job::Drain(_, bytes)) => {
                let text = bytes.to_string();
                peer.state = Job::None;
                let size = BodySize::Known(text.len() as u64);
                if peer.conn.respond(id, &ok(), size).is_ok()
                    && let Ok(mut stream) = peer.conn.stream(id)
                {
                    let _ = stream.write(text.as_bytes()).and_then(|()| stream.finish());
                }
                return;
            }
            (Read::End, _) => {
                peer.state = Job::None;
                let _ = stream.finish();
                return;
            }
            (Read::Failed, _) => {
                peer.state = Job::None;
                return;
            }
        }
    }
}

pub fn answer_delayed(engine: &mut Engine<Job>, delayed: &mut Delayed) {
    let now = Instant::now();
    while delayed.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
        let Some(Reverse((_, id, stream))) = delayed.pop() else {
            return;
        };
        let Some(peer) = engine.peer(id) else {
            continue;
        };
        let _ = hello(peer, stream);
        // What was pipelined behind it is an event now.
        serve(peer, delayed);
        engine.settle(id);
    }
}
