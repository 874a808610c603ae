//! What the responder answers, on any engine: the example runs it in a process of its own, the tests on
//! a thread.

#[path = "delayed.rs"]
mod delayed;
#[path = "sse.rs"]
mod sse;
#[path = "work.rs"]
mod work;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use delayed::{Delayed, Due, answer_delayed};
use towline_io::{Engine, Peer};
use towline_proto::{BodySize, Event, HeadRef, StreamId, UserError};

/// What a body is called endless at: a tebibyte.
const ENDLESS_BYTES: u64 = 1 << 40;
const REQ_DELAY: Duration = Duration::from_millis(10);

/// What a connection does with the bodies of its present exchange.
#[derive(Default)]
pub enum Job {
    #[default]
    None,
    Echo(StreamId),
    Drain(StreamId, u64),
    /// The whole body first: a client that sends everything before it reads never waits for us.
    Collect(StreamId, Vec<u8>),
    Fill(StreamId, u64),
    Events(sse::Events),
}

/// What a request asks for.
enum Route {
    Hello,
    Bytes(u64, BodySize),
    Echo,
    Json,
    Drain,
    Delay(Duration, Due),
    Chunked,
    Gzip,
    Events(u64, u64, usize),
    File(PathBuf),
}

/// One turn: waits for work, and answers it.
pub fn turn(engine: &mut Engine<Job>, delayed: &mut Delayed) -> io::Result<()> {
    let wait = delayed.wait(engine);
    engine.turn_start(wait)?;
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
    let query = std::str::from_utf8(query).unwrap_or_default();
    let value = |name: &str| {
        let mut pairs = query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let number = |name: &str| value(name).and_then(|value| value.parse::<u64>().ok());
    match path {
        b"/req" => Route::Delay(
            number("ms").map_or(REQ_DELAY, Duration::from_millis),
            Due::Req,
        ),
        b"/delay" => Route::Delay(Duration::from_millis(number("ms").unwrap_or(0)), Due::Hello),
        b"/large" => Route::Bytes(64 * 1024, BodySize::Known(64 * 1024)),
        b"/bytes" | b"/endless" => {
            let bytes = number("n").unwrap_or(ENDLESS_BYTES);
            let chunked = value("chunked").is_some();
            Route::Bytes(
                bytes,
                if chunked {
                    BodySize::Unknown
                } else {
                    BodySize::Known(bytes)
                },
            )
        }
        b"/echo" => Route::Echo,
        b"/json" => Route::Json,
        b"/drain" | b"/upload" => Route::Drain,
        b"/chunked" => Route::Chunked,
        b"/gzip" => Route::Gzip,
        b"/sse" => Route::Events(
            number("per_s").unwrap_or(500),
            number("n").unwrap_or(0),
            number("bytes")
                .and_then(|bytes| usize::try_from(bytes).ok())
                .unwrap_or(0),
        ),
        b"/file" => Route::File(value("path").unwrap_or_default().into()),
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
            Event::Readable(_) | Event::Writable(_) => work::work(peer),
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
        Route::Hello => work::hello(peer, stream),
        Route::Bytes(bytes, size) => work::fill(peer, stream, bytes, size),
        Route::Echo => work::echo(peer, stream, length),
        Route::Json => {
            let expected = length.unwrap_or(0).min(16 << 20);
            let room = usize::try_from(expected).unwrap_or(0);
            begin(peer, Job::Collect(stream, Vec::with_capacity(room)));
            Ok(())
        }
        Route::Drain => {
            begin(peer, Job::Drain(stream, 0));
            Ok(())
        }
        Route::Delay(delay, due) => {
            delayed.push(Instant::now() + delay, peer.id(), stream, due);
            Ok(())
        }
        Route::Chunked => work::chunked_hello(peer, stream),
        Route::Gzip => work::gzip(peer, stream),
        Route::Events(per_s, count, data_bytes) => {
            sse::start(peer, delayed, stream, (per_s, count, data_bytes))
        }
        Route::File(path) => file(peer, stream, path),
    }
}

fn begin(peer: &mut Peer<Job>, job: Job) {
    peer.state = job;
    work::work(peer);
}

fn file(peer: &mut Peer<Job>, stream: StreamId, path: PathBuf) -> Result<(), UserError> {
    let opened = std::fs::File::open(path).and_then(|file| {
        let len = file.metadata()?.len();
        Ok((file, len))
    });
    let Ok((file, len)) = opened else {
        return peer
            .conn
            .respond(stream, &work::status(404), BodySize::Known(0));
    };
    peer.conn
        .respond(stream, &work::status(200), BodySize::Known(len))?;
    peer.send_file(stream, file, 0, len)
}
