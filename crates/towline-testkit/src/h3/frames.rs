//! Frames of HTTP/3 as bytes and as text.

use towline_proto::bench::QpackScratch;

pub const DATA: u64 = 0x0;
pub const HEADERS: u64 = 0x1;
pub const SETTINGS: u64 = 0x4;
pub const GOAWAY: u64 = 0x7;

/// Settings with a name (RFC 9114 7.2.4.1, RFC 9204 5, RFC 9220 5).
pub(super) const SETTINGS_NAMES: [(u64, &str); 4] = [
    (0x1, "QPACK_MAX_TABLE_CAPACITY"),
    (0x6, "MAX_FIELD_SECTION_SIZE"),
    (0x7, "QPACK_BLOCKED_STREAMS"),
    (0x8, "ENABLE_CONNECT_PROTOCOL"),
];

/// A variable-length integer (RFC 9000 16).
pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (0x4000 | value as u16).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
        _ => (0xc000_0000_0000_0000 | value).to_be_bytes().to_vec(),
    }
}

/// The integer at the start, and its length.
pub fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let &first = bytes.first()?;
    let len = 1 << (first >> 6);
    let value = bytes.get(1..len)?.iter();
    let value = value.fold(u64::from(first & 0x3f), |value, &byte| {
        value << 8 | u64::from(byte)
    });
    Some((value, len))
}

/// A frame of any type.
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [varint(kind), varint(payload.len() as u64), payload.to_vec()].concat()
}

/// HEADERS with literal fields.
pub fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        field(name.as_bytes(), value.as_bytes(), &mut section);
    }
    frame(HEADERS, &section)
}

/// A request without a body.
pub fn get() -> Vec<u8> {
    headers(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ])
}

/// Appends a field as a literal with a literal name (RFC 9204 4.5.6).
pub fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    integer(name.len(), 3, 0x20, out);
    out.extend_from_slice(name);
    integer(value.len(), 7, 0, out);
    out.extend_from_slice(value);
}

/// An integer with a prefix (RFC 7541 5.1).
fn integer(value: usize, prefix_bits: u32, flags: u8, out: &mut Vec<u8>) {
    let mask = (1 << prefix_bits) - 1;
    if value < mask {
        return out.push(flags | value as u8);
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The frames of a stream, one line each. The last line is what is left of an incomplete one.
pub fn lines(bytes: &[u8]) -> Vec<String> {
    let mut rest = bytes;
    let mut lines = Vec::new();
    while !rest.is_empty() {
        let Some((kind, len, payload, behind)) = split(rest) else {
            lines.push(format!("{} bytes of a frame", rest.len()));
            break;
        };
        lines.push(line(kind, len, payload));
        rest = behind;
    }
    lines
}

/// Type, length, payload and what is behind it.
fn split(bytes: &[u8]) -> Option<(u64, u64, &[u8], &[u8])> {
    let (kind, n) = read_varint(bytes)?;
    let (len, m) = read_varint(&bytes[n..])?;
    let (payload, behind) = bytes[n + m..].split_at_checked(len as usize)?;
    Some((kind, len, payload, behind))
}

fn line(kind: u64, len: u64, payload: &[u8]) -> String {
    let id = || read_varint(payload).map_or(0, |(id, _)| id);
    match kind {
        DATA => format!("DATA {len} bytes"),
        HEADERS => format!("HEADERS{}", status(payload)),
        SETTINGS => {
            let mut words = vec!["SETTINGS".to_owned()];
            let mut rest = payload;
            while let Some((name, n)) = read_varint(rest)
                && let Some((value, m)) = read_varint(&rest[n..])
            {
                rest = &rest[n + m..];
                let known = SETTINGS_NAMES.iter().find(|known| known.0 == name);
                let name = known.map_or(format!("{name:#x}"), |known| known.1.into());
                words.push(format!("{name}={value}"));
            }
            words.join(" ")
        }
        GOAWAY => format!("GOAWAY {}", id()),
        kind => format!("frame {kind:#x} {len} bytes"),
    }
}

/// The status of a response, where it needs no dynamic table.
fn status(section: &[u8]) -> String {
    let mut codec = QpackScratch::new(0, 1 << 16, 1 << 8);
    let Ok(Some((mut fields, _))) = codec.decode(0, section) else {
        return " with entries".into();
    };
    let status = fields.find(|field| field.name == b":status");
    status.map_or(String::new(), |field| {
        format!(" {}", String::from_utf8_lossy(field.value))
    })
}
