//! Frame heads (RFC 6455 5.2): parsing and encoding.
//!
//! ```text
//!   fin rsv1-3 opcode | mask len7 | 0, 2 or 8 bytes of length | 0 or 4 bytes of masking key | payload
//! ```

use super::{Violation, rules};
use crate::Side;

/// The longest head: two bytes, a length of eight, a masking key.
pub(super) const MAX_HEAD_BYTES: usize = 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    pub fn is_control(self) -> bool {
        self as u8 & 8 != 0
    }
}

/// The first two bytes of a frame. Every check of a frame but its length is made on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub fin: bool,
    pub compressed: bool,
    pub opcode: Opcode,
    masked: bool,
    len7: u8,
}

impl Start {
    /// Parses the first two bytes of a frame received by `receiver`; `deflate`: the compression bit is
    /// allowed.
    pub fn parse(bytes: [u8; 2], receiver: Side, deflate: bool) -> Result<Self, Violation> {
        let [first, second] = bytes;
        let compressed = first & 0x40 != 0;
        if first & 0x30 != 0 || (compressed && !deflate) {
            return Err(rules::RESERVED_BITS);
        }
        let start = Self {
            fin: first & 0x80 != 0,
            compressed,
            opcode: Opcode::from_bits(first & 0x0f).ok_or(rules::RESERVED_OPCODE)?,
            masked: second & 0x80 != 0,
            len7: second & 0x7f,
        };
        match (receiver, start.masked) {
            (Side::Server, false) => return Err(rules::UNMASKED),
            (Side::Client, true) => return Err(rules::MASKED),
            _ => {}
        }
        start.check_control()?;
        Ok(start)
    }

    fn check_control(self) -> Result<(), Violation> {
        if self.compressed && !matches!(self.opcode, Opcode::Text | Opcode::Binary) {
            return Err(rules::COMPRESSED_CONTINUATION);
        }
        if self.opcode.is_control() && !self.fin {
            return Err(rules::FRAGMENTED_CONTROL);
        }
        if self.opcode.is_control() && self.len7 > 125 {
            return Err(rules::LONG_CONTROL);
        }
        Ok(())
    }

    /// Length of the whole head.
    pub fn head_bytes(self) -> usize {
        2 + self.length_bytes() + if self.masked { 4 } else { 0 }
    }

    fn length_bytes(self) -> usize {
        match self.len7 {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    /// The length of the payload and the masking key, from the rest of the head.
    pub fn rest(self, head: &[u8]) -> Result<(u64, [u8; 4]), Violation> {
        let (length, key) = head[2..self.head_bytes()].split_at(self.length_bytes());
        let length = match length {
            [] => u64::from(self.len7),
            _ => length
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        };
        match self.len7 {
            126 if length < 126 => Err(rules::LONG_LENGTH),
            127 if length <= 0xffff => Err(rules::LONG_LENGTH),
            127 if length >> 63 != 0 => Err(rules::HUGE_LENGTH),
            _ => Ok((length, key.try_into().unwrap_or_default())),
        }
    }
}

/// A frame's head, ready to be sent.
#[derive(Debug, Clone, Copy)]
pub struct FrameHead {
    bytes: [u8; MAX_HEAD_BYTES],
    len: u8,
}

impl FrameHead {
    pub(super) fn new(
        opcode: Opcode,
        fin: bool,
        compressed: bool,
        len: usize,
        key: Option<[u8; 4]>,
    ) -> Self {
        let mut head = Self {
            bytes: [0; MAX_HEAD_BYTES],
            len: 0,
        };
        let masked = if key.is_some() { 0x80 } else { 0 };
        head.push(&[opcode as u8 | u8::from(fin) << 7 | u8::from(compressed) << 6]);
        match len {
            0..126 => head.push(&[masked + len as u8]),
            126..=0xffff => {
                head.push(&[masked + 126]);
                head.push(&(len as u16).to_be_bytes());
            }
            _ => {
                head.push(&[masked + 127]);
                head.push(&(len as u64).to_be_bytes());
            }
        }
        head.push(key.as_ref().map_or(&[], |key| key));
        head
    }

    /// The encoded head.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn push(&mut self, bytes: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}
