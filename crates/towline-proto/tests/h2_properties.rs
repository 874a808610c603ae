//! Any sequence of requests, responses, reads, resets, changed windows and closes, cut at random bytes: written
//! bytes are read in order, both ends agree on how each exchange ended, no event is lost or repeated, memory is
//! bounded.
//!
//! Each end's program is strict: after `Pending` it reads only after `Readable`, and without send capacity it
//! writes only after `Writable`. A lost event would leave its exchange unfinished.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use towline_proto::{
    BodySize, BufferPool, CloseReason, Connection, Event, Field, Limits, Protocol, ProtocolPolicy,
    RequestHead, ResponseHead, Side, StreamError, StreamId, StreamRead,
};
use towline_testkit::h2;

/// Maximum size of one write.
const MAX_WRITE_BYTES: usize = 20_000;
/// Heads, frame headers and responses to control frames.
const OTHER_BYTES: usize = 80 * 1024;

/// One direction of an exchange, on its writer's side.
#[derive(Debug, Default)]
struct BodyWriter {
    len: usize,
    written: usize,
    /// The send capacity was 0, and `Writable` has not come.
    waits: bool,
    finished: bool,
}

/// One direction of an exchange, on its reader's side.
#[derive(Debug, Default)]
struct BodyReader {
    head: bool,
    read: usize,
    /// A read returned `Pending`, and `Readable` has not come.
    waits: bool,
    ended: bool,
}

/// A program's state of an exchange.
#[derive(Debug, Default)]
struct Exchange {
    writing: Option<BodyWriter>,
    reading: BodyReader,
    failed: Option<StreamError>,
    reset: bool,
}

struct Program {
    side: Side,
    conn: Connection,
    buffers: BufferPool,
    /// Bytes on their way to the other end.
    pipe: VecDeque<u8>,
    exchanges: BTreeMap<u64, Exchange>,
    closed: Option<CloseReason>,
}

/// The byte at a position of a body.
fn byte(side: Side, id: u64, at: usize) -> u8 {
    let side = if side == Side::Client { 3 } else { 101 };
    (at * 7 + id as usize * 13 + side + at / 256) as u8
}

impl Program {
    fn new(side: Side, limits: &Arc<Limits>, now: Instant) -> Self {
        let limits = Arc::clone(limits);
        Self {
            side,
            conn: match side {
                Side::Client => Connection::client_with_protocol(limits, Protocol::Http2, now),
                Side::Server => Connection::server_with_policy(limits, ProtocolPolicy::Either, now),
            },
            buffers: BufferPool::new(32 * 1024, 2),
            pipe: VecDeque::new(),
            exchanges: BTreeMap::new(),
            closed: None,
        }
    }

    /// The `how`-th of the unfinished exchanges.
    fn pick(&self, how: usize) -> Option<u64> {
        let open = self
            .exchanges
            .iter()
            .filter(|(_, exchange)| !exchange.is_finished());
        let open: Vec<u64> = open.map(|(id, _)| *id).collect();
        (!open.is_empty()).then(|| open[how % open.len()])
    }

    fn events(&mut self) {
        loop {
            let promised = self.conn.has_events();
            let Some(event) = self.conn.next_event() else {
                assert!(
                    !self.conn.has_events(),
                    "an event is promised and none comes"
                );
                return;
            };
            assert!(promised, "{event:?} was not promised");
            assert!(self.closed.is_none(), "{event:?} behind Closed");
            match event {
                Event::Head { stream, end, .. } => {
                    let exchange = self.exchanges.entry(stream.0).or_default();
                    let reading = &mut exchange.reading;
                    assert!(!std::mem::replace(&mut reading.head, true), "two heads");
                    reading.ended = end;
                    assert!(exchange.failed.is_none());
                }
                Event::Readable(stream) => {
                    let exchange = self.exchanges.get_mut(&stream.0).expect("known");
                    assert!(exchange.failed.is_none());
                    assert!(
                        std::mem::take(&mut exchange.reading.waits),
                        "nobody waits to read"
                    );
                }
                Event::Writable(stream) => {
                    let exchange = self.exchanges.get_mut(&stream.0).expect("known");
                    let writing = exchange.writing.as_mut().expect("writes");
                    assert!(std::mem::take(&mut writing.waits), "nobody waits to write");
                }
                Event::Failed(stream, error) => {
                    let exchange = self.exchanges.get_mut(&stream.0).expect("known");
                    assert!(exchange.failed.is_none() && !exchange.reset, "failed twice");
                    exchange.failed = Some(error);
                    // The program is done with it.
                    if let Ok(mut stream) = self.conn.stream(stream) {
                        stream.reset();
                    }
                }
                Event::Closed(error) => self.closed = Some(error.reason),
                Event::GoingAway { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn request(&mut self, how: usize) {
        if self.conn.stream_capacity() == 0 {
            return;
        }
        let (size, len) = size(how);
        let host = Field {
            name: b"host",
            value: b"a",
        };
        let head = RequestHead {
            method: b"POST",
            target: b"/",
            fields: &[host],
        };
        let id = self.conn.request(&head, size).expect("room");
        let exchange = self.exchanges.entry(id.0).or_default();
        assert!(exchange.writing.is_none(), "an identifier twice");
        exchange.writing = Some(BodyWriter::of(size, len));
    }

    fn respond(&mut self, how: usize) {
        let due = |exchange: &Exchange| exchange.writing.is_none() && !exchange.is_finished();
        let Some((&id, _)) = self.exchanges.iter().find(|(_, exchange)| due(exchange)) else {
            return;
        };
        let (size, len) = size(how);
        let (status, reason, fields) = (200, &b""[..], &[][..]);
        let head = ResponseHead {
            status,
            reason,
            fields,
        };
        self.conn
            .respond(StreamId(id), &head, size)
            .expect("unanswered");
        self.exchanges.get_mut(&id).expect("known").writing = Some(BodyWriter::of(size, len));
    }

    fn write(&mut self, id: u64, how: usize) {
        let (side, exchange) = (self.side, self.exchanges.get_mut(&id).expect("known"));
        if exchange.failed.is_some() || exchange.reset {
            return;
        }
        let Some(writing) = exchange
            .writing
            .as_mut()
            .filter(|w| !w.finished && !w.waits)
        else {
            return;
        };
        let Ok(mut stream) = self.conn.stream(StreamId(id)) else {
            // The response came, and the rest of the request is not needed.
            assert!(
                side == Side::Client && exchange.reading.ended,
                "gone: {exchange:?}"
            );
            writing.finished = true;
            return;
        };
        // Other streams can have taken the room of the connection since the last write.
        writing.waits = stream.send_capacity() == 0;
        if writing.waits {
            return;
        }
        let n = (writing.len - writing.written).min(1 + how % MAX_WRITE_BYTES);
        let data: Vec<u8> = (writing.written..writing.written + n)
            .map(|at| byte(side, id, at))
            .collect();
        if how.is_multiple_of(2) {
            stream.write(&data).expect("open");
        } else {
            stream.write_shared(data.into()).expect("open");
        }
        writing.written += n;
        writing.waits = stream.send_capacity() == 0;
        if writing.written == writing.len {
            writing.finished = true;
            let sum = Field {
                name: b"x-sum",
                value: b"1",
            };
            if how.is_multiple_of(3) && stream.body_left().is_none() {
                stream.finish_with(&[sum]).expect("complete");
            } else {
                stream.finish().expect("complete");
            }
        }
    }

    fn read(&mut self, id: u64, how: usize) {
        let (side, exchange) = (self.side, self.exchanges.get_mut(&id).expect("known"));
        let reading = &mut exchange.reading;
        if !reading.head || reading.ended || exchange.failed.is_some() || exchange.reset {
            return;
        }
        let Ok(mut stream) = self.conn.stream(StreamId(id)) else {
            // A server that has responded gets no events of the rest.
            let writing = exchange.writing.as_ref();
            let answered = writing.is_some_and(|writing| writing.finished);
            assert!(side == Side::Server && answered, "gone: {exchange:?}");
            reading.ended = true;
            return;
        };
        if reading.waits {
            return;
        }
        let other = match side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        match stream.read(1 + how) {
            StreamRead::Data(data) => {
                assert!(data.len() <= 1 + how);
                for (at, found) in data.iter().enumerate() {
                    assert_eq!(*found, byte(other, id, reading.read + at), "{id} at {at}");
                }
                reading.read += data.len();
            }
            StreamRead::End => reading.ended = true,
            // After `Failed` its event follows.
            StreamRead::Pending | StreamRead::Failed => reading.waits = true,
        }
    }

    fn reset(&mut self, id: u64) {
        let exchange = self.exchanges.get_mut(&id).expect("known");
        if exchange.failed.is_none()
            && let Ok(mut stream) = self.conn.stream(StreamId(id))
        {
            stream.reset();
            exchange.reset = true;
        }
    }

    /// Moves the output of this end to its pipe, which then ends with a whole frame.
    fn flush(&mut self, now: Instant) {
        while self.conn.pending_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = self.conn.send_slices(&mut slices);
            let n = slices[..count].iter().map(|slice| slice.len()).sum();
            for slice in &slices[..count] {
                self.pipe.extend(slice.iter());
            }
            self.conn.sent(now, n);
        }
    }

    /// Takes up to `max` bytes of the other end's pipe.
    fn receive(&mut self, from: &mut VecDeque<u8>, now: Instant, max: usize) -> bool {
        let interest = self.conn.interest();
        if from.is_empty() || !interest.read || interest.closed {
            return false;
        }
        let space = self.conn.recv_space(&mut self.buffers);
        let n = space.len().min(from.len()).min(max);
        for (place, byte) in space.iter_mut().zip(from.drain(..n)) {
            *place = byte;
        }
        self.conn.received(now, n);
        n > 0
    }

    fn assert_bounded(&mut self, limits: &Limits) {
        let max = limits.send_window_bytes + MAX_WRITE_BYTES + OTHER_BYTES;
        assert!(self.conn.pending_bytes() <= max);
        let window = limits.http2.stream_window_bytes.max(65_535) as usize;
        for id in self.exchanges.keys() {
            if let Ok(stream) = self.conn.stream(StreamId(*id)) {
                assert!(stream.buffered() <= window, "{} bytes", stream.buffered());
            }
        }
    }
}

impl Exchange {
    /// Both directions are done.
    fn is_finished(&self) -> bool {
        let is_written = self
            .writing
            .as_ref()
            .is_some_and(|writing| writing.finished);
        self.failed.is_some() || self.reset || (self.reading.ended && is_written)
    }
}

impl BodyWriter {
    fn of(size: BodySize, len: usize) -> Self {
        Self {
            len,
            finished: size == BodySize::Empty,
            ..Self::default()
        }
    }
}

fn size(how: usize) -> (BodySize, usize) {
    let len = [0, 1, 700, 20_000, 90_000][how % 5] + how % 97;
    match how % 3 {
        0 => (BodySize::Empty, 0),
        1 => (BodySize::Known(len as u64), len),
        _ => (BodySize::Unknown, len),
    }
}

struct Harness {
    client: Program,
    server: Program,
    limits: [Arc<Limits>; 2],
    now: Instant,
}

impl Harness {
    fn new(client: Limits, server: Limits) -> Self {
        let now = Instant::now();
        let limits = [Arc::new(client), Arc::new(server)];
        Self {
            client: Program::new(Side::Client, &limits[0], now),
            server: Program::new(Side::Server, &limits[1], now),
            limits,
            now,
        }
    }

    fn program(&mut self, how: usize) -> &mut Program {
        if how.is_multiple_of(2) {
            &mut self.client
        } else {
            &mut self.server
        }
    }

    fn apply(&mut self, what: u8, how: usize) {
        let half = how / 2;
        match what % 16 {
            0 | 1 => self.client.request(how),
            2 | 3 => self.server.respond(how),
            4..=6 => {
                let program = self.program(how);
                if let Some(id) = program.pick(half) {
                    program.write(id, how * 31);
                }
            }
            7..=9 => {
                let program = self.program(how);
                if let Some(id) = program.pick(half) {
                    program.read(id, half);
                }
            }
            10 | 11 => drop(self.deliver(1 << (how % 16), true)),
            12 | 13 => drop(self.deliver(1 << (how % 16), false)),
            14 if how.is_multiple_of(9) => {
                let program = self.program(half);
                if let Some(id) = program.pick(half) {
                    program.reset(id);
                }
            }
            14 => self.change_window(how),
            _ if how.is_multiple_of(50) => {
                self.program(half).conn.close();
            }
            _ => {
                self.client.conn.release(&mut self.client.buffers);
                self.server.conn.release(&mut self.server.buffers);
            }
        }
        self.client.events();
        self.server.events();
        self.client.assert_bounded(&self.limits[0]);
        self.server.assert_bounded(&self.limits[1]);
    }

    fn deliver(&mut self, max: usize, up: bool) -> bool {
        let Self { client, server, .. } = self;
        let (from, to) = if up {
            (client, server)
        } else {
            (server, client)
        };
        from.flush(self.now);
        to.receive(&mut from.pipe, self.now, max)
    }

    /// The client changes the initial window of its streams, between two of its frames.
    fn change_window(&mut self, how: usize) {
        // Never more than its limit.
        let max = self.limits[0].http2.stream_window_bytes;
        self.send_initial_window([0, 1, 500, max / 2, max][how % 5]);
    }

    fn send_initial_window(&mut self, size: u32) {
        self.client.flush(self.now);
        let settings = h2::settings(&[(h2::INITIAL_WINDOW_SIZE, size)]);
        // Not before the preface.
        if self.client.conn.error().is_none() {
            self.client.pipe.extend(settings);
        }
    }

    /// Delivers, reads, responds and writes until nothing changes.
    fn finish(&mut self) {
        self.send_initial_window(self.limits[0].http2.stream_window_bytes);
        for _ in 0..100_000 {
            let mut moved = self.deliver(usize::MAX, true) | self.deliver(usize::MAX, false);
            for program in [&mut self.client, &mut self.server] {
                program.events();
                let open: Vec<u64> = program.exchanges.keys().copied().collect();
                for id in open {
                    let before = program.progress(id);
                    program.read(id, 100_000);
                    program.write(id, 2 * MAX_WRITE_BYTES - 1);
                    moved |= program.progress(id) != before;
                }
                let unanswered = program
                    .exchanges
                    .values()
                    .any(|e| e.writing.is_none() && !e.is_finished());
                if program.side == Side::Server && unanswered && program.closed.is_none() {
                    program.respond(7);
                    moved = true;
                }
                program.events();
            }
            moved |= self.client.conn.pending_bytes() + self.server.conn.pending_bytes() > 0;
            if !moved {
                return;
            }
        }
        panic!("no end");
    }

    fn check(&self) {
        for (id, asked) in &self.client.exchanges {
            let served = self.server.exchanges.get(id);
            assert!(
                asked.is_finished(),
                "client, {id}: {asked:?}; server: {served:?}"
            );
            let Some(served) = served else {
                let error = asked.failed.as_ref();
                let unseen = asked.reset || error.is_some_and(StreamError::is_unprocessed);
                assert!(unseen, "{id} never came: {asked:?}");
                continue;
            };
            let is_refused = asked
                .failed
                .as_ref()
                .is_some_and(StreamError::is_unprocessed);
            assert!(!is_refused, "{id} is served and refused");
            assert!(
                served.is_finished(),
                "server, {id}: {served:?}; client: {asked:?}"
            );
            let is_whole = asked.failed.is_none() && !asked.reset;
            let (request, response) = (asked.writing.as_ref(), served.writing.as_ref());
            if is_whole {
                let response = response.expect("answered");
                assert_eq!(
                    asked.reading.read, response.len,
                    "{id}: an answer that is not whole"
                );
            }
            let request = request.expect("a request");
            assert!(served.reading.read <= request.written, "{id}");
            if !is_whole {
                let blamed = asked.reset || served.reset;
                assert!(
                    blamed,
                    "{id} failed and nobody gave it up: {asked:?} {served:?}"
                );
            }
        }
        assert!(self.server.exchanges.len() <= self.client.exchanges.len());
    }

    /// Closes both ends gracefully.
    fn close(&mut self) {
        self.client.conn.close();
        self.server.conn.close();
        self.finish_closing();
        for program in [&mut self.client, &mut self.server] {
            assert_eq!(
                program.closed,
                Some(CloseReason::Done),
                "{:?}",
                program.side
            );
            program.conn.received_eof(self.now);
            program
                .conn
                .handle_timeout(self.now + Duration::from_secs(60));
            assert!(program.conn.interest().closed && program.conn.deadline().is_none());
        }
    }

    fn finish_closing(&mut self) {
        while self.deliver(usize::MAX, true) | self.deliver(usize::MAX, false) {
            self.client.events();
            self.server.events();
        }
        self.client.events();
        self.server.events();
    }
}

impl Program {
    fn progress(&self, id: u64) -> (usize, bool, usize, bool) {
        let exchange = &self.exchanges[&id];
        let (read, ended) = (exchange.reading.read, exchange.reading.ended);
        let written = exchange.writing.as_ref();
        (
            read,
            ended,
            written.map_or(0, |w| w.written),
            written.is_some_and(|w| w.finished),
        )
    }
}

fn limits(side: Side) -> impl Strategy<Value = Limits> {
    let sizes = (
        select(vec![1_000_u32, 65_535, 262_144]),
        select(vec![1_000_usize, 65_536]),
        select(vec![65_535_u32, 1_048_576]),
        select(vec![1_u32, 3, 128]),
        select(vec![1_000_usize, 60_000, usize::MAX]),
    );
    sizes.prop_map(move |(stream, send, connection, streams, unsent)| {
        let mut limits = match side {
            Side::Client => Limits::client(),
            Side::Server => Limits::server(),
        };
        limits.send_window_bytes = send;
        limits.http2.stream_window_bytes = stream;
        limits.http2.connection_window_bytes = connection;
        limits.http2.max_concurrent_streams = streams;
        limits.http2.max_unsent_bytes = unsent;
        limits
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_agree_on_every_exchange(
        client in limits(Side::Client),
        server in limits(Side::Server),
        script in vec((any::<u8>(), any::<u16>()), 0..300),
    ) {
        let mut world = Harness::new(client, server);
        for (what, how) in script {
            world.apply(what, usize::from(how));
        }
        world.finish();
        world.check();
        world.close();
    }
}
