//! Encoding the program's fields into a header block.

use crate::Field;
use crate::body::trim_ows;

use super::frame::{self, FrameType, HEADER_BYTES, flag};
use super::hpack::{Encoder, Name};

/// A longer name is lower-cased in an allocated buffer.
const SHORT_NAME_BYTES: usize = 64;

/// Compresses a validated field: its name in lower case, its value without surrounding whitespace.
/// Connection-specific fields are omitted (RFC 9113 8.2.2).
pub(super) fn field(encoder: &mut Encoder, field: &Field<'_>, out: &mut Vec<u8>) {
    let value = trim_ows(field.value);
    if encoder.encode_repeated(field.name, value, out) {
        return;
    }
    let (mut short, long);
    let name: &[u8] = if !field.name.iter().any(u8::is_ascii_uppercase) {
        field.name
    } else if field.name.len() <= SHORT_NAME_BYTES {
        short = [0; SHORT_NAME_BYTES];
        let short = &mut short[..field.name.len()];
        short.copy_from_slice(field.name);
        short.make_ascii_lowercase();
        short
    } else {
        long = field.name.to_ascii_lowercase();
        &long
    };
    let is_allowed = match Name::of(name) {
        Name::Connection => false,
        Name::Te => value.eq_ignore_ascii_case(b"trailers"),
        _ => true,
    };
    if is_allowed {
        encoder.encode_new(name, value, out);
    }
}

pub(super) fn content_length(encoder: &mut Encoder, length: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let text = decimal(length, &mut digits);
    encoder.encode(b"content-length", text, out);
}

/// `status` has three digits.
pub(super) fn status(encoder: &mut Encoder, status: u16, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let text = decimal(u64::from(status), &mut digits);
    encoder.encode(b":status", text, out);
}

fn decimal(mut n: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &digits[at..];
        }
    }
}

/// Writes the length of the HEADERS frame that starts at `start` and ends with `out`; bytes over `most` go into
/// CONTINUATION frames (RFC 9113 6.10).
pub(super) fn end_block(out: &mut Vec<u8>, start: usize, max: usize, id: u32) {
    let block = start + HEADER_BYTES;
    let len = out.len() - block;
    let [_, l0, l1, l2] = (len.min(max) as u32).to_be_bytes();
    out[start..start + 3].copy_from_slice(&[l0, l1, l2]);
    if len <= max {
        return;
    }
    out[start + 4] &= !flag::END_HEADERS;
    let rest = out.split_off(block + max);
    let mut pieces = rest.chunks(max).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() {
            flag::END_HEADERS
        } else {
            0
        };
        frame::header(out, FrameType::Continuation, flags, id, piece.len());
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_block_is_cut_into_continuations() {
        let mut out = b"before".to_vec();
        frame::header(&mut out, FrameType::Headers, flag::END_HEADERS | 1, 5, 0);
        out.extend_from_slice(&[7; 25]);
        end_block(&mut out, 6, 10, 5);
        let mut at = 6;
        let mut seen = Vec::new();
        while let Some(header) = frame::FrameHeader::parse(&out[at..]) {
            seen.push((header.frame_type, header.flags, header.len, header.stream));
            at += HEADER_BYTES + header.len as usize;
        }
        assert_eq!(at, out.len());
        assert_eq!(
            seen,
            [
                (FrameType::Headers, 1, 10, 5),
                (FrameType::Continuation, 0, 10, 5),
                (FrameType::Continuation, flag::END_HEADERS, 5, 5),
            ]
        );
    }

    #[test]
    fn connection_fields_are_omitted() {
        let mut out = Vec::new();
        let mut encoder = Encoder::new();
        for (name, value) in [
            (&b"Connection"[..], &b"close"[..]),
            (b"keep-alive", b"1"),
            (b"Transfer-Encoding", b"chunked"),
            (b"upgrade", b"x"),
            (b"Proxy-Connection", b"x"),
            (b"TE", b"gzip"),
        ] {
            field(&mut encoder, &Field { name, value }, &mut out);
        }
        assert!(out.is_empty());
    }
}
