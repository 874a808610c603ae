//! Encoding the program's fields into a block.

use crate::Field;
use crate::body::trim_ows;

use crate::field_compression::{FieldEncoder, Name};

/// A longer name is lower-cased in an allocated buffer.
const SHORT_NAME_BYTES: usize = 64;

/// Compresses a validated field: its name in lower case, its value without surrounding whitespace.
/// Connection-specific fields are omitted (RFC 9113 8.2.2, RFC 9114 4.2).
pub(crate) fn field(encoder: &mut impl FieldEncoder, field: &Field<'_>, out: &mut Vec<u8>) {
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

pub(crate) fn content_length(encoder: &mut impl FieldEncoder, length: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let text = decimal(length, &mut digits);
    encoder.encode(b"content-length", text, out);
}

/// `status` has three digits.
pub(crate) fn status(encoder: &mut impl FieldEncoder, status: u16, out: &mut Vec<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_fields_are_omitted() {
        let mut out = Vec::new();
        let mut encoder = crate::h2::hpack::Encoder::new();
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
