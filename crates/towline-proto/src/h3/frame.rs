//! Frames (RFC 9114 7): variable-length integers, headers of frames, and encoders of the frames that we send.

use bytes::{BufMut, BytesMut};

/// The longest frame header: type and length of eight bytes each.
pub(super) const MAX_HEADER_BYTES: usize = 16;

/// Types of unidirectional streams (RFC 9114 6.2, RFC 9204 4.2).
pub(super) mod stream_type {
    pub const CONTROL: u64 = 0x0;
    pub const PUSH: u64 = 0x1;
    pub const QPACK_ENCODER: u64 = 0x2;
    pub const QPACK_DECODER: u64 = 0x3;
}

/// A frame of a reserved type (RFC 9114 7.2.8), which a peer must ignore: 0x1f * N + 0x21.
pub(super) const RESERVED_FRAME: u64 = 0x1f * 0x0b6f + 0x21;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameType {
    Data,
    Headers,
    CancelPush,
    Settings,
    PushPromise,
    GoAway,
    MaxPushId,
    /// RFC 9218 7.2.
    PriorityUpdateRequest,
    PriorityUpdatePush,
    /// A type of HTTP/2 that HTTP/3 forbids (RFC 9114 7.2.8).
    Http2,
    Unknown,
}

impl FrameType {
    pub const fn of(number: u64) -> Self {
        match number {
            0x0 => Self::Data,
            0x1 => Self::Headers,
            0x3 => Self::CancelPush,
            0x4 => Self::Settings,
            0x5 => Self::PushPromise,
            0x7 => Self::GoAway,
            0xd => Self::MaxPushId,
            0xf_0700 => Self::PriorityUpdateRequest,
            0xf_0701 => Self::PriorityUpdatePush,
            // PRIORITY, PING, WINDOW_UPDATE, CONTINUATION.
            0x2 | 0x6 | 0x8 | 0x9 => Self::Http2,
            _ => Self::Unknown,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub frame_type: FrameType,
    /// Length of the payload.
    pub len: u64,
}

impl FrameHeader {
    /// The header at the start of `bytes`, and its own length.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (number, type_len) = varint(bytes)?;
        let (len, len_len) = varint(&bytes[type_len..])?;
        let header = Self {
            frame_type: FrameType::of(number),
            len,
        };
        Some((header, type_len + len_len))
    }
}

/// Reads a variable-length integer (RFC 9000 16); returns its length too.
#[inline]
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let &first = bytes.first()?;
    let len = 1 << (first >> 6);
    let bytes = bytes.get(..len)?;
    let start = u64::from(first & 0x3f);
    let value = bytes[1..]
        .iter()
        .fold(start, |value, &byte| value << 8 | u64::from(byte));
    Some((value, len))
}

/// Reads one integer that is all of `bytes`.
pub(super) fn only_varint(bytes: &[u8]) -> Option<u64> {
    let (value, len) = varint(bytes)?;
    (len == bytes.len()).then_some(value)
}

/// Number of bytes of an integer.
#[inline]
pub(super) const fn varint_len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends a variable-length integer; `value` is below 2^62.
#[inline]
pub(super) fn put_varint(out: &mut BytesMut, value: u64) {
    match varint_len(value) {
        1 => out.put_u8(value as u8),
        2 => out.put_u16(0x4000 | value as u16),
        4 => out.put_u32(0x8000_0000 | value as u32),
        _ => out.put_u64(0xc000_0000_0000_0000 | value),
    }
}

/// Appends the header of a DATA frame.
#[inline]
pub(super) fn data_header(out: &mut BytesMut, len: u64) {
    out.put_u8(0x0);
    put_varint(out, len);
}

/// Appends a HEADERS frame.
#[inline]
pub(super) fn headers(out: &mut BytesMut, section: &[u8]) {
    out.put_u8(0x1);
    put_varint(out, section.len() as u64);
    out.extend_from_slice(section);
}

/// Appends a SETTINGS frame.
pub(super) fn settings(out: &mut BytesMut, pairs: &[(u64, u64)]) {
    let len: usize = pairs
        .iter()
        .map(|&(name, value)| varint_len(name) + varint_len(value))
        .sum();
    put_varint(out, 0x4);
    put_varint(out, len as u64);
    for &(name, value) in pairs {
        put_varint(out, name);
        put_varint(out, value);
    }
}

/// Appends a GOAWAY frame.
pub(super) fn go_away(out: &mut BytesMut, id: u64) {
    put_varint(out, 0x7);
    put_varint(out, varint_len(id) as u64);
    put_varint(out, id);
}

/// Appends an empty frame of a reserved type.
pub(super) fn reserved(out: &mut BytesMut) {
    put_varint(out, RESERVED_FRAME);
    put_varint(out, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 A.1.
    #[test]
    fn the_examples_of_the_specification_are_read() {
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(only_varint(bytes), Some(value));
            for cut in 0..bytes.len() {
                assert_eq!(varint(&bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn integers_are_read_back_in_their_shortest_form() {
        for bits in 0..62 {
            for value in [(1 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                let mut out = BytesMut::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value));
                assert_eq!(only_varint(&out), Some(value));
            }
        }
        assert_eq!(varint_len((1 << 62) - 1), 8);
    }

    #[test]
    fn reserved_types_have_the_form_that_peers_ignore() {
        assert_eq!((RESERVED_FRAME - 0x21) % 0x1f, 0);
        assert_eq!(FrameType::of(RESERVED_FRAME), FrameType::Unknown);
    }
}
