//! The responses: complete ones, and bodies that continue as flow control allows.

use bytes::Bytes;
use towline_io::Conn;
use towline_proto::{BodySize, Field, ResponseHead, StreamId, StreamRead, UserError};

use super::job::{CollectResponse, DrainResponse, Job, Jobs};
use super::query::decoded_pairs;

pub static LETTERS: [u8; 64 * 1024] = [b'x'; 64 * 1024];

pub const PLAIN: &[Field<'static>] = &[SERVER, field(b"content-type", b"text/plain")];
pub const OCTETS: &[Field<'static>] =
    &[SERVER, field(b"content-type", b"application/octet-stream")];
pub const HELLO: Fixed = Fixed::ok(PLAIN, b"alive\r\n");
const JSON: &[Field<'static>] = &[SERVER, field(b"content-type", b"application/json")];
pub const SERVER: Field<'static> = field(b"server", b"towline");

/// A constant response.
pub struct Fixed {
    status: u16,
    fields: &'static [Field<'static>],
    body: &'static [u8],
}

impl Fixed {
    pub const fn new(status: u16, fields: &'static [Field<'static>], body: &'static [u8]) -> Self {
        Self {
            status,
            fields,
            body,
        }
    }

    pub const fn ok(fields: &'static [Field<'static>], body: &'static [u8]) -> Self {
        Self::new(200, fields, body)
    }
}

pub const fn field(name: &'static [u8], value: &'static [u8]) -> Field<'static> {
    Field { name, value }
}

pub fn with_fields(status: u16, fields: &'static [Field<'static>]) -> ResponseHead<'static> {
    ResponseHead {
        status,
        reason: b"",
        fields,
    }
}

pub fn ok() -> ResponseHead<'static> {
    with_fields(200, PLAIN)
}

pub fn fixed(conn: &mut Conn<Jobs>, stream: StreamId, fixed: &Fixed) -> Result<(), UserError> {
    let head = with_fields(fixed.status, fixed.fields);
    respond_with(conn, stream, &head, Bytes::from_static(fixed.body))
}

pub fn text(conn: &mut Conn<Jobs>, stream: StreamId, text: String) -> Result<(), UserError> {
    respond_with(conn, stream, &ok(), text.into())
}

pub fn json(conn: &mut Conn<Jobs>, stream: StreamId, document: Bytes) -> Result<(), UserError> {
    respond_with(conn, stream, &with_fields(200, JSON), document)
}

/// The response of the client scenarios: 2,000 bytes in four chunks.
pub fn req(conn: &mut Conn<Jobs>, stream: StreamId) -> Result<(), UserError> {
    conn.proto.respond(stream, &ok(), BodySize::Unknown)?;
    let mut body = conn.proto.stream(stream)?;
    for _ in 0..4 {
        body.write(&LETTERS[..500])?;
    }
    body.finish()
}

pub fn chunked_hello(conn: &mut Conn<Jobs>, stream: StreamId) -> Result<(), UserError> {
    conn.proto.respond(stream, &ok(), BodySize::Unknown)?;
    let mut body = conn.proto.stream(stream)?;
    body.write(b"Hello, ")?;
    body.write(b"World!")?;
    body.finish()
}

/// `count` chunks of `bytes`.
pub fn pieces(
    conn: &mut Conn<Jobs>,
    stream: StreamId,
    count: usize,
    bytes: usize,
) -> Result<(), UserError> {
    let head = with_fields(200, OCTETS);
    conn.proto.respond(stream, &head, BodySize::Unknown)?;
    let mut body = conn.proto.stream(stream)?;
    for _ in 0..count {
        body.write(&LETTERS[..bytes])?;
    }
    body.finish()
}

pub fn respond_with(
    conn: &mut Conn<Jobs>,
    stream: StreamId,
    head: &ResponseHead<'_>,
    bytes: Bytes,
) -> Result<(), UserError> {
    conn.proto
        .respond(stream, head, BodySize::Known(bytes.len() as u64))?;
    let mut body = conn.proto.stream(stream)?;
    body.write_shared(bytes)?;
    body.finish()
}

/// `bytes` of the letter x, as fast as the client reads.
pub fn fill(
    conn: &mut Conn<Jobs>,
    stream: StreamId,
    bytes: u64,
    size: BodySize,
) -> Result<(), UserError> {
    let head = with_fields(200, OCTETS);
    conn.proto.respond(stream, &head, size)?;
    conn.state.insert(stream, Job::Fill(bytes));
    resume_body(conn, stream);
    Ok(())
}

pub fn echo(conn: &mut Conn<Jobs>, stream: StreamId, length: Option<u64>) -> Result<(), UserError> {
    let size = length.map_or(BodySize::Unknown, BodySize::Known);
    let head = with_fields(200, OCTETS);
    conn.proto.respond(stream, &head, size)?;
    conn.state.insert(stream, Job::Echo);
    resume_body(conn, stream);
    Ok(())
}

/// Continues the bodies of an exchange as flow control allows.
pub fn resume_body(conn: &mut Conn<Jobs>, id: StreamId) {
    match conn.state.get(id) {
        None | Some(Job::Events(_) | Job::Socket(_)) => {}
        Some(Job::Fill(_)) => resume_fill(conn, id),
        Some(Job::Echo | Job::Drain(..) | Job::Collect(..)) => while read_some(conn, id) {},
    }
}

fn resume_fill(conn: &mut Conn<Jobs>, id: StreamId) {
    let Some(Job::Fill(left)) = conn.state.get_mut(id) else {
        return;
    };
    let Ok(mut stream) = conn.proto.stream(id) else {
        return;
    };
    while *left > 0 && stream.send_capacity() > 0 {
        let size = usize::try_from(*left).map_or(LETTERS.len(), |left| left.min(LETTERS.len()));
        if stream
            .write_shared(Bytes::from_static(&LETTERS[..size]))
            .is_err()
        {
            return;
        }
        *left -= size as u64;
    }
    if *left == 0 {
        conn.state.remove(id);
        let _ = stream.finish();
    }
}

/// Reads a piece of the request body; false if there is none for now.
fn read_some(conn: &mut Conn<Jobs>, id: StreamId) -> bool {
    let (Ok(mut stream), Some(job)) = (conn.proto.stream(id), conn.state.get_mut(id)) else {
        return false;
    };
    let room = match job {
        Job::Echo => stream.send_capacity(),
        _ => usize::MAX,
    };
    if room == 0 {
        return false;
    }
    match (stream.read(room), job) {
        (StreamRead::Data(data), Job::Drain(bytes, _)) => *bytes += data.len() as u64,
        (StreamRead::Data(data), Job::Collect(all, _)) => all.extend_from_slice(data),
        (StreamRead::Data(data), _) => {
            let copy = Bytes::copy_from_slice(data);
            return stream.write_shared(copy).is_ok();
        }
        (StreamRead::Pending, _) => return false,
        (StreamRead::End, _) => {
            let _ = on_body_end(conn, id);
            return false;
        }
        (StreamRead::Failed, _) => {
            conn.state.remove(id);
            return false;
        }
    }
    true
}

fn on_body_end(conn: &mut Conn<Jobs>, id: StreamId) -> Result<(), UserError> {
    match conn.state.remove(id) {
        Some(Job::Drain(_, DrainResponse::Ok)) => text(conn, id, "ok".into()),
        Some(Job::Drain(_, DrainResponse::Hello)) => fixed(conn, id, &HELLO),
        Some(Job::Drain(bytes, DrainResponse::Bytes)) => text(conn, id, bytes.to_string()),
        Some(Job::Collect(all, CollectResponse::Json)) => json(conn, id, all.into()),
        Some(Job::Collect(all, CollectResponse::Octets)) => {
            respond_with(conn, id, &with_fields(200, OCTETS), all.into())
        }
        Some(Job::Collect(all, CollectResponse::Form)) => {
            text(conn, id, decoded_pairs(&all).to_string())
        }
        _ => conn.proto.stream(id)?.finish(),
    }
}
