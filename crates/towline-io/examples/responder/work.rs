//! The answers: whole ones, and those that go on as far as both sides allow.

use std::io::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use towline_io::Peer;
use towline_proto::{BodySize, Field, Read, ResponseHead, StreamId, UserError};

use super::Job;

const HELLO: &[u8] = b"Hello, World!";
static LARGE: [u8; 64 * 1024] = [b'x'; 64 * 1024];
const RECORDS: usize = 180;

const PLAIN: &[Field<'static>] = &[SERVER, field(b"content-type", b"text/plain")];
const JSON: &[Field<'static>] = &[SERVER, field(b"content-type", b"application/json")];
const PACKED_JSON: &[Field<'static>] = &[
    SERVER,
    field(b"content-type", b"application/json"),
    field(b"content-encoding", b"gzip"),
];
const SERVER: Field<'static> = field(b"server", b"towline");

const fn field(name: &'static [u8], value: &'static [u8]) -> Field<'static> {
    Field { name, value }
}

pub fn status(status: u16) -> ResponseHead<'static> {
    with_fields(status, PLAIN)
}

fn with_fields(status: u16, fields: &'static [Field<'static>]) -> ResponseHead<'static> {
    ResponseHead {
        status,
        reason: b"",
        fields,
    }
}

fn ok() -> ResponseHead<'static> {
    status(200)
}

pub fn hello(peer: &mut Peer<Job>, stream: StreamId) -> Result<(), UserError> {
    whole(peer, stream, &ok(), Bytes::from_static(HELLO))
}

/// The answer of the client scenarios: 2,000 bytes, chunked.
pub fn req(peer: &mut Peer<Job>, stream: StreamId) -> Result<(), UserError> {
    peer.conn.respond(stream, &ok(), BodySize::Unknown)?;
    let mut body = peer.conn.stream(stream)?;
    body.write(&LARGE[..2000])?;
    body.finish()
}

pub fn chunked_hello(peer: &mut Peer<Job>, stream: StreamId) -> Result<(), UserError> {
    peer.conn.respond(stream, &ok(), BodySize::Unknown)?;
    let mut body = peer.conn.stream(stream)?;
    body.write(b"Hello, ")?;
    body.write(b"World!")?;
    body.finish()
}

/// A JSON array of 180 records, compressed once.
pub fn gzip(peer: &mut Peer<Job>, stream: StreamId) -> Result<(), UserError> {
    static PACKED: OnceLock<Bytes> = OnceLock::new();
    let packed = PACKED.get_or_init(|| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let written = encoder.write_all(&records());
        debug_assert!(written.is_ok(), "a Vec takes everything");
        Bytes::from(encoder.finish().unwrap_or_default())
    });
    let head = with_fields(200, PACKED_JSON);
    whole(peer, stream, &head, packed.clone())
}

fn records() -> Vec<u8> {
    let records: Vec<String> = (0..RECORDS)
        .map(|n| format!(r#"{{"id":{n:<4},"name":"record number {n:04}","tags":["alpha","beta","gamma"],"score":{n:<5}}}"#))
        .collect();
    format!("[{}]", records.join(",")).into_bytes()
}

fn whole(
    peer: &mut Peer<Job>,
    stream: StreamId,
    head: &ResponseHead<'_>,
    bytes: Bytes,
) -> Result<(), UserError> {
    peer.conn
        .respond(stream, head, BodySize::Known(bytes.len() as u64))?;
    let mut body = peer.conn.stream(stream)?;
    body.write_shared(bytes)?;
    body.finish()
}

/// `bytes` of the letter x, as fast as they are taken.
pub fn fill(
    peer: &mut Peer<Job>,
    stream: StreamId,
    bytes: u64,
    size: BodySize,
) -> Result<(), UserError> {
    peer.conn.respond(stream, &ok(), size)?;
    peer.state = Job::Fill(stream, bytes);
    work(peer);
    Ok(())
}

pub fn echo(peer: &mut Peer<Job>, stream: StreamId, length: Option<u64>) -> Result<(), UserError> {
    let size = length.map_or(BodySize::Unknown, BodySize::Known);
    peer.conn.respond(stream, &ok(), size)?;
    peer.state = Job::Echo(stream);
    work(peer);
    Ok(())
}

/// Goes on with a body as far as both sides allow.
pub fn work(peer: &mut Peer<Job>) {
    match peer.state {
        Job::None | Job::Events(_) => {}
        Job::Fill(stream, _) => go_on_filling(peer, stream),
        Job::Echo(stream) | Job::Drain(stream, _) | Job::Collect(stream, _) => {
            while read_some(peer, stream) {}
        }
    }
}

fn go_on_filling(peer: &mut Peer<Job>, id: StreamId) {
    let Job::Fill(_, left) = &mut peer.state else {
        return;
    };
    let Ok(mut stream) = peer.conn.stream(id) else {
        return;
    };
    while *left > 0 && stream.room() > 0 {
        let size = usize::try_from(*left).map_or(LARGE.len(), |left| left.min(LARGE.len()));
        if stream
            .write_shared(Bytes::from_static(&LARGE[..size]))
            .is_err()
        {
            return;
        }
        *left -= size as u64;
    }
    if *left == 0 {
        peer.state = Job::None;
        let _ = stream.finish();
    }
}

/// Reads a piece of the request's body; false where there is no more for now.
fn read_some(peer: &mut Peer<Job>, id: StreamId) -> bool {
    let Ok(mut stream) = peer.conn.stream(id) else {
        return false;
    };
    let room = match peer.state {
        Job::Echo(_) => stream.room(),
        _ => usize::MAX,
    };
    if room == 0 {
        return false;
    }
    match (stream.read(room), &mut peer.state) {
        (Read::Data(data), Job::Drain(_, bytes)) => *bytes += data.len() as u64,
        (Read::Data(data), Job::Collect(_, all)) => all.extend_from_slice(data),
        (Read::Data(data), _) => {
            let copy = Bytes::copy_from_slice(data);
            return stream.write_shared(copy).is_ok();
        }
        (Read::Pending, _) => return false,
        (Read::End, _) => {
            let _ = end_of_body(peer, id);
            return false;
        }
        (Read::Failed, _) => {
            peer.state = Job::None;
            return false;
        }
    }
    true
}

fn end_of_body(peer: &mut Peer<Job>, id: StreamId) -> Result<(), UserError> {
    match std::mem::take(&mut peer.state) {
        Job::Drain(_, bytes) => whole(peer, id, &ok(), Bytes::from(bytes.to_string())),
        Job::Collect(_, all) => {
            let head = with_fields(200, JSON);
            whole(peer, id, &head, Bytes::from(all))
        }
        _ => peer.conn.stream(id)?.finish(),
    }
}
