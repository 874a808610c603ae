//! Properties of HTTP/2 for any input and any calls of two programs: bounded memory, the same events at every
//! cut, both ends close, and neither of two own ends breaks a rule.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{
    BodySize, BufferPool, CloseReason, Connection, Event, Field, Limits, Protocol, ProtocolPolicy,
    RequestHead, ResponseHead, Side, StreamId, StreamRead,
};

use crate::Random;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HOST: Field<'_> = Field {
    name: b"host",
    value: b"a",
};
/// Maximum size of one write.
const MAX_WRITE_BYTES: usize = 20_000;
/// The high-water mark, the bytes that a peer may cause, a write over both, and heads.
const MAX_PENDING_BYTES: usize = 2 * 64 * 1024 + MAX_WRITE_BYTES + 64 * 1024;

/// A connection, its program and its log.
struct End {
    conn: Connection,
    buffers: BufferPool,
    now: Instant,
    side: Side,
    log: Vec<String>,
    /// Streams that are open to the program, in order.
    open: Vec<StreamId>,
    /// Body bytes of each stream: read, and written.
    seen: BTreeMap<StreamId, usize>,
    written: BTreeMap<StreamId, usize>,
    closed: bool,
}

/// The events that matter to the programs here.
enum EventKind {
    /// A head, or bytes, have arrived.
    Readable(StreamId),
    Other,
}

/// Byte `at` of every body.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

impl End {
    fn new(side: Side) -> Self {
        let now = Instant::now();
        let limits = Arc::new(Limits::server());
        Self {
            conn: match side {
                Side::Server => Connection::server_with_policy(limits, ProtocolPolicy::Http2, now),
                Side::Client => Connection::client_with_protocol(limits, Protocol::Http2, now),
            },
            buffers: BufferPool::new(64 * 1024, 2),
            now,
            side,
            log: Vec::new(),
            open: Vec::new(),
            seen: BTreeMap::new(),
            written: BTreeMap::new(),
            closed: false,
        }
    }

    /// Takes up to `max` bytes to send, as sent.
    fn take_output(&mut self, max: usize) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = self.conn.send_slices(&mut slices);
        let mut bytes: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
        bytes.truncate(max);
        if !bytes.is_empty() {
            self.conn.sent(self.now, bytes.len());
        }
        bytes
    }

    /// Feeds `data` as far as it is accepted; returns the number of bytes.
    fn feed(&mut self, data: &[u8]) -> usize {
        let space = self.conn.recv_space(&mut self.buffers);
        let n = data.len().min(space.len());
        space[..n].copy_from_slice(&data[..n]);
        if n > 0 {
            self.conn.received(self.now, n);
        }
        n
    }

    /// Logs an event, if there is one.
    fn event(&mut self) -> Option<EventKind> {
        let announced = self.conn.has_events();
        let event = self.conn.next_event()?;
        assert!(announced, "{event:?} was not promised");
        assert!(!self.closed, "{event:?} after Closed");
        let mut kind = EventKind::Other;
        let line = match event {
            Event::Head { stream, head, end } => {
                kind = EventKind::Readable(stream);
                let fields: Vec<_> = head.fields().collect();
                format!("head {} {fields:?} {end}", stream.0)
            }
            Event::Readable(stream) => {
                kind = EventKind::Readable(stream);
                String::new()
            }
            Event::Writable(_) => String::new(),
            Event::Closed(error) => {
                self.closed = true;
                format!("closed {error}")
            }
            event => format!("{event:?}"),
        };
        if !line.is_empty() {
            self.log.push(line);
        }
        Some(kind)
    }

    /// Reads everything available; returns whether the end was reached.
    fn read(&mut self, id: StreamId) -> bool {
        loop {
            let Ok(mut stream) = self.conn.stream(id) else {
                return false;
            };
            match stream.read(3000) {
                StreamRead::Data(data) => *self.seen.entry(id).or_default() += data.len(),
                StreamRead::Pending | StreamRead::Failed => return false,
                StreamRead::End => return true,
            }
        }
    }

    fn respond(&mut self, id: StreamId, size: BodySize) -> bool {
        let head = ResponseHead {
            status: 200,
            reason: b"",
            fields: &[],
        };
        self.conn.respond(id, &head, size).is_ok()
    }

    fn assert_bounded(&mut self) {
        let pending = self.conn.pending_bytes();
        assert!(pending <= MAX_PENDING_BYTES, "{pending} bytes pending");
        let window = Limits::server().http2.stream_window_bytes as usize;
        for id in self.open.clone() {
            if let Ok(stream) = self.conn.stream(id) {
                assert!(stream.buffered() <= window, "{} held", stream.buffered());
            }
        }
    }

    /// Asserts that the end closes after `close`, resets by its program and enough time.
    fn assert_closes(&mut self) {
        self.conn.close();
        for id in 0..=self.last_id() {
            if let Ok(mut stream) = self.conn.stream(StreamId(id)) {
                stream.reset();
            }
        }
        for _ in 0..8 {
            self.take_output(usize::MAX);
            while self.event().is_some() {}
            assert!(!self.conn.has_events(), "announced, and none comes");
            self.now += Duration::from_secs(600);
            self.conn.handle_timeout(self.now);
        }
        assert!(self.conn.interest().closed, "{:?}", self.conn.interest());
        assert!(self.closed && self.conn.deadline().is_none());
    }

    fn last_id(&self) -> u64 {
        self.open.iter().map(|id| id.0).max().unwrap_or(0) + 64
    }
}

/// Frames from the bytes of a script: type, flags, stream and length precede each payload.
pub fn frames(side: Side, script: &[u8]) -> Vec<u8> {
    let mut wire = match side {
        Side::Server => PREFACE.to_vec(),
        Side::Client => Vec::new(),
    };
    wire.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0");
    let mut rest = script;
    while let [kind, flags, stream, len, behind @ ..] = rest {
        let kind = if *kind % 12 == 10 { 0x10 } else { *kind % 12 };
        let (payload, next) = behind.split_at(behind.len().min(usize::from(*len)));
        wire.extend_from_slice(&[0, 0, *len, kind, *flags, 0, 0, 0, stream % 16]);
        wire.extend_from_slice(payload);
        rest = next;
    }
    wire
}

/// The log of an end for a wire in pieces of these sizes: each request gets a response when it was read.
fn log(side: Side, wire: &[u8], pieces: &[usize]) -> (Vec<String>, BTreeMap<StreamId, usize>) {
    let mut end = End::new(side);
    if side == Side::Client {
        for method in [&b"GET"[..], b"POST", b"HEAD", b"GET"] {
            let head = RequestHead {
                method,
                target: b"/",
                fields: &[HOST],
            };
            let id = end.conn.request(&head, BodySize::Empty).expect("room");
            end.open.push(id);
        }
    }
    let mut rest = wire;
    for piece in pieces {
        let (mut piece, behind) = rest.split_at(*piece);
        rest = behind;
        while !piece.is_empty() && !end.conn.interest().closed {
            let n = end.feed(piece);
            if n == 0 {
                break;
            }
            piece = &piece[n..];
            while let Some(kind) = end.event() {
                let EventKind::Readable(id) = kind else {
                    continue;
                };
                end.open.push(id);
                if end.read(id) && side == Side::Server {
                    end.respond(id, BodySize::Empty);
                }
                end.take_output(usize::MAX);
            }
            end.assert_bounded();
            end.take_output(usize::MAX);
            end.conn.release(&mut end.buffers);
        }
    }
    let seen = (std::mem::take(&mut end.log), end.seen.clone());
    end.assert_closes();
    seen
}

/// Checks any bytes after a valid start.
pub fn check_frames(wire: &[u8], side: Side, seed: u64) {
    let whole = log(side, wire, &[wire.len()]);
    let cut = Random::new(seed).pieces(wire.len());
    let pieces = log(side, wire, &cut);
    assert!(whole == pieces, "cut {cut:?}: {whole:?} or {pieces:?}");
    let slowly = log(side, wire, &vec![1; wire.len()]);
    assert!(whole == slowly, "byte by byte: {whole:?} or {slowly:?}");
}

/// Interprets `script` as operations (two bytes each: which, and how) of two programs.
pub fn check_pair(script: &[u8]) {
    let mut ends = [End::new(Side::Client), End::new(Side::Server)];
    let mut pipes = [Vec::new(), Vec::new()];
    for operation in script.chunks_exact(2) {
        let (what, how) = (operation[0] % 8, usize::from(operation[1]));
        operate(&mut ends, &mut pipes, what, how);
        for end in &mut ends {
            end.assert_bounded();
        }
    }
    for _ in 0..200 {
        transfer(&mut ends, &mut pipes, 0, usize::MAX);
        transfer(&mut ends, &mut pipes, 1, usize::MAX);
    }
    let [client, server] = &mut ends;
    for (from, to) in [(&*client, &*server), (server, client)] {
        for (id, seen) in &to.seen {
            assert!(Some(seen) <= from.written.get(id), "{id:?}: {seen} bytes");
        }
    }
    for end in &mut ends {
        let broken = end.conn.error().map(|error| error.reason);
        assert!(
            !matches!(broken, Some(CloseReason::Protocol | CloseReason::Limit)),
            "{:?}: {:?}",
            end.side,
            end.conn.error()
        );
        end.assert_closes();
    }
}

fn operate(ends: &mut [End; 2], pipes: &mut [Vec<u8>; 2], what: u8, how: usize) {
    let end = &mut ends[how & 1];
    let chosen = match end.open.len() {
        0 => None,
        open => Some(end.open[how / 2 % open]),
    };
    match (what, chosen) {
        (0, _) if end.side == Side::Client => request(end, how),
        (0, Some(id)) => {
            let size = [BodySize::Unknown, BodySize::Known(how as u64 * 300)][how / 2 % 2];
            end.respond(id, size);
        }
        (1, Some(id)) => write(end, id, how * (MAX_WRITE_BYTES / 256)),
        (2, Some(id)) => {
            if let Ok(mut stream) = end.conn.stream(id) {
                // Any result may be right.
                let _ = stream.finish();
            }
        }
        (3, Some(id)) => drop(end.read(id)),
        (4, Some(id)) if how < 32 => {
            if let Ok(mut stream) = end.conn.stream(id) {
                stream.reset();
            }
        }
        (5, _) if how < 4 => end.conn.close(),
        _ => transfer(ends, pipes, how & 1, 1 << (how % 18)),
    }
}

fn request(end: &mut End, how: usize) {
    let method: &[u8] = [&b"GET"[..], b"POST", b"HEAD"][how % 3];
    let size = [
        BodySize::Empty,
        BodySize::Unknown,
        BodySize::Known(how as u64 * 200),
    ][how / 2 % 3];
    let head = RequestHead {
        method,
        target: b"/",
        fields: &[HOST],
    };
    if let Ok(id) = end.conn.request(&head, size) {
        end.open.push(id);
    }
}

fn write(end: &mut End, id: StreamId, n: usize) {
    let at = end.written.get(&id).copied().unwrap_or(0);
    let data: Vec<u8> = (at..at + n).map(byte).collect();
    let Ok(mut stream) = end.conn.stream(id) else {
        return;
    };
    if stream.send_capacity() > 0 && stream.write(&data).is_ok() {
        *end.written.entry(id).or_default() += n;
    }
}

/// Transfers bytes from one end to the other, whose program takes the events.
fn transfer(ends: &mut [End; 2], pipes: &mut [Vec<u8>; 2], from: usize, max: usize) {
    let pipe = &mut pipes[from];
    pipe.extend(ends[from].take_output(max));
    let to = &mut ends[1 - from];
    let n = to.feed(pipe);
    pipe.drain(..n);
    while let Some(kind) = to.event() {
        if let EventKind::Readable(id) = kind
            && !to.open.contains(&id)
        {
            to.open.push(id);
        }
    }
    to.conn.release(&mut to.buffers);
    ends[from].conn.release(&mut ends[from].buffers);
}
