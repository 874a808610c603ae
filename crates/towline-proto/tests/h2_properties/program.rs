//! The program of one end: it makes requests, writes, reads and resets, and holds the connection to its promises.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use towline_proto::{
    BodySize, BufferPool, CloseReason, Connection, Event, Field, Limits, Protocol, ProtocolPolicy,
    RequestHead, ResponseHead, Side, StreamError, StreamId, StreamRead,
};

/// Maximum size of one write.
pub const MAX_WRITE_BYTES: usize = 20_000;
/// Heads, frame headers and responses to control frames.
pub const OTHER_BYTES: usize = 80 * 1024;

/// One direction of an exchange, on its writer's side.
#[derive(Debug, Default)]
pub struct BodyWriter {
    pub len: usize,
    pub written: usize,
    /// The send capacity was 0, and `Writable` has not come.
    pub waits: bool,
    pub finished: bool,
}

/// One direction of an exchange, on its reader's side.
#[derive(Debug, Default)]
pub struct BodyReader {
    pub head: bool,
    pub read: usize,
    /// A read returned `Pending`, and `Readable` has not come.
    pub waits: bool,
    pub ended: bool,
}

/// A program's state of an exchange.
#[derive(Debug, Default)]
pub struct Exchange {
    pub writing: Option<BodyWriter>,
    pub reading: BodyReader,
    pub failed: Option<StreamError>,
    pub reset: bool,
}

pub struct Program {
    pub side: Side,
    pub conn: Connection,
    pub buffers: BufferPool,
    /// Bytes on their way to the other end.
    pub pipe: VecDeque<u8>,
    pub exchanges: BTreeMap<u64, Exchange>,
    pub closed: Option<CloseReason>,
}

/// The byte at a position of a body.
pub fn byte(side: Side, id: u64, at: usize) -> u8 {
    let side = if side == Side::Client { 3 } else { 101 };
    (at * 7 + id as usize * 13 + side + at / 256) as u8
}

impl Program {
    pub fn new(side: Side, limits: &Arc<Limits>, now: Instant) -> Self {
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
    pub fn pick(&self, how: usize) -> Option<u64> {
        let open = self
            .exchanges
            .iter()
            .filter(|(_, exchange)| !exchange.is_finished());
        let open: Vec<u64> = open.map(|(id, _)| *id).collect();
        (!open.is_empty()).then(|| open[how % open.len()])
    }

    pub fn events(&mut self) {
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
                    let waited = std::mem::take(&mut writing.waits);
                    let is_unwanted = self.conn.stream(stream).is_ok_and(|s| s.is_body_unwanted());
                    assert!(waited || is_unwanted, "nobody waits to write");
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

    pub fn request(&mut self, how: usize) {
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

    pub fn respond(&mut self, how: usize) {
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

    pub fn write(&mut self, id: u64, how: usize) {
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

    pub fn read(&mut self, id: u64, how: usize) {
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

    pub fn reset(&mut self, id: u64) {
        let exchange = self.exchanges.get_mut(&id).expect("known");
        if exchange.failed.is_none()
            && let Ok(mut stream) = self.conn.stream(StreamId(id))
        {
            stream.reset();
            exchange.reset = true;
        }
    }

    /// Moves the output of this end to its pipe, which then ends with a whole frame.
    pub fn flush(&mut self, now: Instant) {
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
    pub fn receive(&mut self, from: &mut VecDeque<u8>, now: Instant, max: usize) -> bool {
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

    pub fn assert_bounded(&mut self, limits: &Limits) {
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
    pub fn is_finished(&self) -> bool {
        let is_written = self
            .writing
            .as_ref()
            .is_some_and(|writing| writing.finished);
        self.failed.is_some() || self.reset || (self.reading.ended && is_written)
    }
}

impl BodyWriter {
    pub fn of(size: BodySize, len: usize) -> Self {
        Self {
            len,
            finished: size == BodySize::Empty,
            ..Self::default()
        }
    }
}

pub fn size(how: usize) -> (BodySize, usize) {
    let len = [0, 1, 700, 20_000, 90_000][how % 5] + how % 97;
    match how % 3 {
        0 => (BodySize::Empty, 0),
        1 => (BodySize::Known(len as u64), len),
        _ => (BodySize::Unknown, len),
    }
}

impl Program {
    pub fn progress(&self, id: u64) -> (usize, bool, usize, bool) {
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
