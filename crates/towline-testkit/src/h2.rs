//! HTTP/2 on the wire: builders of frames, which validate nothing, so that they can build invalid ones too; and a
//! parser of the frames that an end has sent.

pub mod notation;

use std::fmt;

use towline_proto::ErrorCode;

/// The client preface (RFC 9113 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0x0;
pub const HEADERS: u8 = 0x1;
pub const PRIORITY: u8 = 0x2;
pub const RST_STREAM: u8 = 0x3;
pub const SETTINGS: u8 = 0x4;
pub const PUSH_PROMISE: u8 = 0x5;
pub const PING: u8 = 0x6;
pub const GOAWAY: u8 = 0x7;
pub const WINDOW_UPDATE: u8 = 0x8;
pub const CONTINUATION: u8 = 0x9;
pub const PRIORITY_UPDATE: u8 = 0x10;
/// An unregistered frame type.
pub const UNKNOWN: u8 = 0xbe;

/// Flags. `END` is `END_STREAM`, `ACK` the same bit of SETTINGS and PING.
pub const END: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const WITH_PRIORITY: u8 = 0x20;

/// Names of settings.
pub const HEADER_TABLE_SIZE: u16 = 0x1;
pub const ENABLE_PUSH: u16 = 0x2;
pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
pub const MAX_FRAME_SIZE: u16 = 0x5;
pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;

/// A frame of any type.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut out = vec![a, b, c, kind, flags];
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// The client's preface with empty SETTINGS, and the acknowledgement of the server's.
pub fn client_preface() -> Vec<u8> {
    client_preface_with(&[])
}

pub fn client_preface_with(pairs: &[(u16, u32)]) -> Vec<u8> {
    [PREFACE, &settings(pairs), &settings_ack()].concat()
}

/// The server's empty SETTINGS, and the acknowledgement of the client's.
pub fn server_preface() -> Vec<u8> {
    server_preface_with(&[])
}

pub fn server_preface_with(pairs: &[(u16, u32)]) -> Vec<u8> {
    [settings(pairs), settings_ack()].concat()
}

pub fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (name, value) in pairs {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

pub fn settings_ack() -> Vec<u8> {
    frame(SETTINGS, ACK, 0, b"")
}

pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"a peer's")
}

pub fn go_away(last: u32, code: ErrorCode) -> Vec<u8> {
    let payload = [last.to_be_bytes(), (code.0 as u32).to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

pub fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &(code.0 as u32).to_be_bytes())
}

pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// Depends on `on` with the usual weight.
pub fn priority(stream: u32, on: u32) -> Vec<u8> {
    let [a, b, c, d] = on.to_be_bytes();
    frame(PRIORITY, 0, stream, &[a, b, c, d, 15])
}

pub fn priority_update(stream: u32, value: &str) -> Vec<u8> {
    let payload = [&stream.to_be_bytes(), value.as_bytes()].concat();
    frame(PRIORITY_UPDATE, 0, 0, &payload)
}

pub fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, bytes)
}

pub fn last_data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END, stream, bytes)
}

/// A whole head; `flags` are added to `END_HEADERS`.
pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// The pseudo-header fields of a request to `/` of `a`.
pub const fn pseudo(method: &str) -> [(&str, &str); 4] {
    [
        (":method", method),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
    ]
}

/// A request without a body.
pub fn get(stream: u32) -> Vec<u8> {
    headers(stream, END, &pseudo("GET"))
}

/// A request whose body follows, with further fields.
pub fn post(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    headers(stream, 0, &[&pseudo("POST"), fields].concat())
}

/// Fields as literals, without tables and without Huffman.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        text(&mut out, name.as_bytes());
        text(&mut out, value.as_bytes());
    }
    out
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    integer(out, 0, 7, bytes.len());
    out.extend_from_slice(bytes);
}

/// An integer with a prefix of `bits` bits, whose first byte contains `first` above it (RFC 7541 5.1).
pub fn integer(out: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let max = (1_usize << bits) - 1;
    if value < max {
        out.push(first | value as u8);
        return;
    }
    out.push(first | max as u8);
    let mut rest = value - max;
    while rest >= 128 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A parsed frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END != 0
    }

    /// The 32-bit number at word `at` of the payload.
    pub fn word(&self, at: usize) -> u32 {
        let bytes = self.payload[at * 4..].first_chunk::<4>();
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// The code of `RST_STREAM` or GOAWAY.
    pub fn code(&self) -> Option<ErrorCode> {
        match self.kind {
            RST_STREAM => Some(ErrorCode(self.word(0).into())),
            GOAWAY => Some(ErrorCode(self.word(1).into())),
            _ => None,
        }
    }
}

/// One line: `HEADERS 1 end`, `DATA 1 5 bytes end`, `RST_STREAM 1 CANCEL`, `GOAWAY last 1 NO_ERROR`.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stream, len) = (self.stream, self.payload.len());
        let end = if self.ends_stream() { " end" } else { "" };
        let ack = if self.flags & ACK == 0 { "" } else { " ack" };
        match self.kind {
            DATA => write!(f, "DATA {stream} {len} bytes{end}"),
            HEADERS => write!(f, "HEADERS {stream}{end}"),
            RST_STREAM => write!(f, "RST_STREAM {stream} {}", ErrorCode(self.word(0).into())),
            SETTINGS => write!(f, "SETTINGS{ack}"),
            PING => write!(f, "PING{ack}"),
            GOAWAY => write!(
                f,
                "GOAWAY last {} {}",
                self.word(0),
                ErrorCode(self.word(1).into())
            ),
            WINDOW_UPDATE => write!(f, "WINDOW_UPDATE {stream} by {}", self.word(0)),
            CONTINUATION => write!(f, "CONTINUATION {stream}"),
            kind => write!(f, "kind {kind:#x} on {stream}, {len} bytes"),
        }
    }
}

/// The complete frames in the bytes sent by an end, without the client preface.
pub fn frames(sent: &[u8]) -> Vec<Frame> {
    let mut rest = sent.strip_prefix(PREFACE).unwrap_or(sent);
    let mut frames = Vec::new();
    while let [a, b, c, kind, flags, s0, s1, s2, s3, behind @ ..] = rest {
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(len) else {
            break;
        };
        frames.push(Frame {
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes([*s0, *s1, *s2, *s3]),
            payload: payload.to_vec(),
        });
        rest = behind;
    }
    frames
}

/// The frames sent by an end, one line each.
pub fn lines(sent: &[u8]) -> Vec<String> {
    frames(sent).iter().map(Frame::to_string).collect()
}

/// The code of a GOAWAY with an error.
pub fn connection_error(sent: &[u8]) -> Option<ErrorCode> {
    let codes = frames(sent)
        .into_iter()
        .filter(|frame| frame.kind == GOAWAY);
    codes
        .filter_map(|frame| frame.code())
        .find(|code| *code != ErrorCode::NO_ERROR)
}

/// The codes of the resets of a stream.
pub fn stream_errors(sent: &[u8], stream: u32) -> Vec<ErrorCode> {
    let frames = frames(sent).into_iter();
    let resets = frames.filter(|frame| frame.kind == RST_STREAM && frame.stream == stream);
    resets.filter_map(|frame| frame.code()).collect()
}
