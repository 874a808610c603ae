//! Responses of the scenario catalogue for servers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use towline_io::Conn;
use towline_proto::{BodySize, Field, HeadRef, StreamId, UserError};

use super::job::Jobs;
use super::responses::{Fixed, LETTERS, OCTETS, PLAIN, SERVER, field, respond_with, with_fields};

const JSON_FIELDS: &[Field<'static>] = &[SERVER, field(b"content-type", b"application/json")];
const PACKED_JSON: &[Field<'static>] = &[
    SERVER,
    field(b"content-type", b"application/json"),
    field(b"content-encoding", b"gzip"),
    field(b"vary", b"accept-encoding"),
];
const TAG: Field<'static> = field(b"etag", b"\"v1\"");
const CORS: &[Field<'static>] = &[
    SERVER,
    field(b"access-control-allow-origin", b"https://example.com"),
    field(b"access-control-allow-methods", b"GET, POST, OPTIONS"),
    field(
        b"access-control-allow-headers",
        b"Content-Type, Authorization",
    ),
];

pub const LARGE: Fixed = Fixed::ok(OCTETS, &LETTERS);
pub const JSON: Fixed = Fixed::ok(
    JSON_FIELDS,
    br#"{"id":"01J8X9Z3K7QFRBQ4PCVE5K8RNH","status":"ok","data":{"name":"roadrunner","version":2,"flags":["alpha","beta"]}}"#,
);
pub const TAGGED: Fixed = Fixed::ok(
    &[SERVER, field(b"content-type", b"text/plain"), TAG],
    b"first version",
);
pub const NOT_MODIFIED: Fixed = Fixed::new(304, &[SERVER, TAG], b"");
pub const PREFLIGHT: Fixed = Fixed::new(204, CORS, b"");
pub const REDIRECT: Fixed = Fixed::new(302, &[SERVER, field(b"location", b"/target")], b"");
pub const NOT_FOUND: Fixed = Fixed::new(404, PLAIN, b"not found");
pub const SERVER_ERROR: Fixed = Fixed::new(500, PLAIN, b"as planned\r\n");
pub const BUSY: Fixed = Fixed::new(503, PLAIN, b"too many connections");
pub const FILE: Fixed = Fixed::ok(
    PLAIN,
    b"A small file of text that the bench asks for as static data.\n",
);

/// Responses of the application `hello_world`.
pub const WORLD: Fixed = Fixed::ok(PLAIN, b"Hello, World!");
pub const LARGE_WORLD: Fixed = Fixed::ok(PLAIN, &[b'X'; 64 * 1024]);
pub const SLEPT: Fixed = Fixed::ok(PLAIN, b"slept");
/// The sum of ten squares.
pub const GATHERED: Fixed = Fixed::ok(PLAIN, b"285");

const RECORDS: usize = 180;
const ITEMS: u32 = 100;
const MAX_TOTALS: u64 = 50;

/// `/api/v1/items/0001` to `0100`.
pub fn is_item(path: &[u8]) -> bool {
    path.strip_prefix(b"/api/v1/items/")
        .filter(|number| number.len() == 4 && number.iter().all(u8::is_ascii_digit))
        .and_then(|number| std::str::from_utf8(number).ok()?.parse().ok())
        .is_some_and(|number: u32| (1..=ITEMS).contains(&number))
}

/// Pairs in the request's cookies (RFC 6265 4.2.1).
pub fn cookies(head: &HeadRef<'_>) -> usize {
    head.fields()
        .filter(|field| field.name.eq_ignore_ascii_case(b"cookie"))
        .flat_map(|field| field.value.split(|&byte| byte == b';'))
        .filter(|pair| pair.contains(&b'='))
        .count()
}

/// A JSON array of 180 records, compressed once.
pub fn gzip(conn: &mut Conn<Jobs>, stream: StreamId) -> Result<(), UserError> {
    static PACKED: OnceLock<Bytes> = OnceLock::new();
    let packed = PACKED.get_or_init(|| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let written = encoder.write_all(&records());
        debug_assert!(written.is_ok(), "a Vec takes everything");
        Bytes::from(encoder.finish().unwrap_or_default())
    });
    respond_with(conn, stream, &with_fields(200, PACKED_JSON), packed.clone())
}

fn records() -> Vec<u8> {
    const RECORD: &str = r#"{"id":"01J8X9Z3K7QFRBQ4PCVE5K8RNH","name":"item","status":"active","tags":["a","b","c"]}"#;
    format!("[{}]", [RECORD; RECORDS].join(",")).into_bytes()
}

/// `/httparena_json/N?m=F`: up to 50 items with a computed total.
pub fn items(number: &[u8], factor: u64) -> Option<Bytes> {
    let count = std::str::from_utf8(number).ok()?.parse::<u64>().ok()?;
    let count = count.min(MAX_TOTALS);
    let mut text = String::with_capacity(192 * 50);
    text.push_str(r#"{"items":["#);
    for n in 1..=count {
        let comma = if n > 1 { "," } else { "" };
        let total = 10 * n * factor;
        let _ = write!(
            text,
            r#"{comma}{{"id":{n},"name":"Item {n}","category":"electronics","price":10,"quantity":{n},"active":true,"tags":["sale","new","popular"],"rating":{{"score":42,"count":{n}}},"total":{total}}}"#
        );
    }
    let _ = write!(text, r#"],"count":{count}}}"#);
    Some(text.into())
}

/// A hundred server-sent events and a comment, one chunk each.
pub fn ticks(conn: &mut Conn<Jobs>, stream: StreamId) -> Result<(), UserError> {
    let head = with_fields(200, super::sse::FIELDS);
    conn.proto.respond(stream, &head, BodySize::Unknown)?;
    let mut body = conn.proto.stream(stream)?;
    for number in 1..=100 {
        body.write(format!("event: tick\ndata: {number}\n\n").as_bytes())?;
    }
    body.write(b": end\n\n")?;
    body.finish()
}
