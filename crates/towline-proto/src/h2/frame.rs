//! Frames (RFC 9113 4 and 6): their headers, and encoders of the frames that we send.

use crate::ErrorCode;

/// Length of a frame header (RFC 9113 4.1).
pub(super) const HEADER_BYTES: usize = 9;

/// The client preface (RFC 9113 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Flags; their meaning depends on the frame type.
pub(super) mod flag {
    pub const END_STREAM: u8 = 0x1;
    pub const ACK: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameType {
    Data,
    Headers,
    Priority,
    Reset,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// RFC 9218 7.1.
    PriorityUpdate,
    Unknown,
}

impl FrameType {
    const fn of(byte: u8) -> Self {
        match byte {
            0x0 => Self::Data,
            0x1 => Self::Headers,
            0x2 => Self::Priority,
            0x3 => Self::Reset,
            0x4 => Self::Settings,
            0x5 => Self::PushPromise,
            0x6 => Self::Ping,
            0x7 => Self::GoAway,
            0x8 => Self::WindowUpdate,
            0x9 => Self::Continuation,
            0x10 => Self::PriorityUpdate,
            _ => Self::Unknown,
        }
    }

    const fn byte(self) -> u8 {
        match self {
            Self::Data => 0x0,
            Self::Headers => 0x1,
            Self::Priority => 0x2,
            Self::Reset => 0x3,
            Self::Settings => 0x4,
            Self::PushPromise => 0x5,
            Self::Ping => 0x6,
            Self::GoAway => 0x7,
            Self::WindowUpdate => 0x8,
            Self::Continuation => 0x9,
            Self::PriorityUpdate => 0x10,
            Self::Unknown => 0xff,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Length of the payload.
    pub len: u32,
    pub frame_type: FrameType,
    pub flags: u8,
    /// 0: the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// `None`: incomplete.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, frame_type, flags, s0, s1, s2, s3] =
            bytes.first_chunk::<HEADER_BYTES>()?;
        Some(Self {
            len: u32::from_be_bytes([0, l0, l1, l2]),
            frame_type: FrameType::of(frame_type),
            flags,
            // The reserved bit means nothing (RFC 9113 4.1).
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        })
    }

    #[inline]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub fn bytes(self) -> [u8; HEADER_BYTES] {
        let [_, l0, l1, l2] = self.len.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [
            l0,
            l1,
            l2,
            self.frame_type.byte(),
            self.flags,
            s0,
            s1,
            s2,
            s3,
        ]
    }
}

#[inline]
pub(super) fn header(out: &mut Vec<u8>, frame_type: FrameType, flags: u8, stream: u32, len: usize) {
    let header = FrameHeader {
        len: len as u32,
        frame_type,
        flags,
        stream,
    };
    out.extend_from_slice(&header.bytes());
}

/// Writes a head whose block fits into one frame.
#[inline]
pub(super) fn headers(out: &mut Vec<u8>, stream: u32, end: bool, block: &[u8]) {
    let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
    header(out, FrameType::Headers, flags, stream, block.len());
    out.extend_from_slice(block);
}

/// Reads a 31-bit number without its reserved bit. `at` must be within `payload`.
#[inline]
pub(super) fn number(payload: &[u8], at: usize) -> u32 {
    word(payload, at) & 0x7fff_ffff
}

#[inline]
pub(super) fn word(payload: &[u8], at: usize) -> u32 {
    payload
        .get(at..)
        .and_then(|bytes| bytes.first_chunk::<4>())
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

pub(super) fn reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    header(out, FrameType::Reset, 0, stream, 4);
    out.extend_from_slice(&(code.0 as u32).to_be_bytes());
}

pub(super) fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    header(out, FrameType::WindowUpdate, 0, stream, 4);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(super) fn ping(out: &mut Vec<u8>, flags: u8, data: [u8; 8]) {
    header(out, FrameType::Ping, flags, 0, 8);
    out.extend_from_slice(&data);
}

pub(super) fn go_away(out: &mut Vec<u8>, last: u32, code: ErrorCode, text: &str) {
    header(out, FrameType::GoAway, 0, 0, 8 + text.len());
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(code.0 as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn settings(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    header(out, FrameType::Settings, 0, 0, pairs.len() * 6);
    for (name, value) in pairs {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(super) fn settings_ack(out: &mut Vec<u8>) {
    header(out, FrameType::Settings, flag::ACK, 0, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back() {
        for byte in 0..=255 {
            let frame_type = FrameType::of(byte);
            assert!(frame_type == FrameType::Unknown || frame_type.byte() == byte);
            let frame = FrameHeader {
                len: 0x00ab_cdef,
                frame_type,
                flags: byte,
                stream: 0x7fff_fffe,
            };
            assert_eq!(FrameHeader::parse(&frame.bytes()), Some(frame));
            assert_eq!(FrameHeader::parse(&frame.bytes()[..8]), None);
        }
    }

    #[test]
    fn the_reserved_bit_is_ignored() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[5] = 0x80;
        bytes[8] = 1;
        assert_eq!(
            FrameHeader::parse(&bytes).map(|frame| frame.stream),
            Some(1)
        );
    }
}
