//! Instructions of the encoder stream (RFC 9204 4.3) and of the decoder stream (4.4).

use crate::field_compression::integer::{self, Input};
use crate::field_compression::{CodingError, huffman, write_string};

use super::QpackError;

/// The longest instruction of a decoder stream: an integer of 62 bits.
pub(super) const MAX_DECODER_INSTRUCTION_BYTES: usize = 11;

/// A string as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text<'a> {
    is_coded: bool,
    bytes: &'a [u8],
}

impl<'a> Text<'a> {
    fn read(input: &mut Input<'a>, prefix_bits: u32) -> Result<Self, CodingError> {
        let is_coded = input
            .first()
            .is_some_and(|first| first & 1 << prefix_bits != 0);
        let len = input.integer(prefix_bits)?;
        let bytes = input.take(len)?;
        Ok(Self { is_coded, bytes })
    }

    pub fn append_to(self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        if self.is_coded {
            return huffman::decode(self.bytes, out);
        }
        out.extend_from_slice(self.bytes);
        Ok(())
    }
}

/// The name of a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRef<'a> {
    Static(u32),
    /// Number of entries inserted after it.
    Dynamic(u32),
    Literal(Text<'a>),
}

/// An instruction of an encoder (RFC 9204 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncoderInstruction<'a> {
    Capacity(u32),
    Insert {
        name: NameRef<'a>,
        value: Text<'a>,
    },
    /// Number of entries inserted after the one to insert again.
    Duplicate(u32),
}

impl<'a> EncoderInstruction<'a> {
    /// Reads the next instruction; `None`, with nothing taken, if it is not complete.
    pub fn read(input: &mut Input<'a>) -> Result<Option<Self>, QpackError> {
        let mut ahead = Input { rest: input.rest };
        match Self::read_whole(&mut ahead) {
            Ok(instruction) => {
                input.rest = ahead.rest;
                Ok(Some(instruction))
            }
            Err(CodingError::Truncated) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_whole(input: &mut Input<'a>) -> Result<Self, CodingError> {
        let first = input.first().ok_or(CodingError::Truncated)?;
        if first >= 0x80 {
            let index = input.integer(6)?;
            let name = if first & 0x40 != 0 {
                NameRef::Static(index)
            } else {
                NameRef::Dynamic(index)
            };
            let value = Text::read(input, 7)?;
            return Ok(Self::Insert { name, value });
        }
        if first >= 0x40 {
            let name = NameRef::Literal(Text::read(input, 5)?);
            let value = Text::read(input, 7)?;
            return Ok(Self::Insert { name, value });
        }
        let number = input.integer(5)?;
        Ok(if first >= 0x20 {
            Self::Capacity(number)
        } else {
            Self::Duplicate(number)
        })
    }
}

/// Set Dynamic Table Capacity (RFC 9204 4.3.1).
pub(super) fn set_capacity(bytes: u32, out: &mut Vec<u8>) {
    integer::write(bytes as usize, 5, 0x20, out);
}

/// Insert with a name of the static table (RFC 9204 4.3.2).
pub(super) fn insert_with_static_name(index: u8, value: &[u8], out: &mut Vec<u8>) {
    integer::write(usize::from(index), 6, 0xc0, out);
    write_string(value, 7, 0, out);
}

/// Insert with Literal Name (RFC 9204 4.3.3).
pub(super) fn insert(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    write_string(name, 5, 0x40, out);
    write_string(value, 7, 0, out);
}

/// Duplicate (RFC 9204 4.3.4).
pub(super) fn duplicate(age: u32, out: &mut Vec<u8>) {
    integer::write(age as usize, 5, 0, out);
}

/// An instruction of a decoder (RFC 9204 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecoderInstruction {
    /// The oldest outstanding section of this stream was decoded.
    Acknowledge(u64),
    /// No section of this stream will be decoded.
    Cancel(u64),
    /// This number of further entries has arrived.
    Increment(u64),
}

impl DecoderInstruction {
    /// Reads the next instruction; `None`, with nothing taken, if it is not complete.
    pub fn read(input: &mut Input<'_>) -> Result<Option<Self>, QpackError> {
        let Some(first) = input.first() else {
            return Ok(None);
        };
        let mut ahead = Input { rest: input.rest };
        let number = |input: &mut Input<'_>, bits| match input.long_integer(bits) {
            Ok(number) => Ok(Some(number)),
            Err(CodingError::Truncated) => Ok(None),
            Err(error) => Err(QpackError::from(error)),
        };
        let instruction = match first {
            0x80.. => number(&mut ahead, 7)?.map(Self::Acknowledge),
            0x40.. => number(&mut ahead, 6)?.map(Self::Cancel),
            _ => number(&mut ahead, 6)?.map(Self::Increment),
        };
        if instruction.is_some() {
            input.rest = ahead.rest;
        }
        Ok(instruction)
    }
}

/// Section Acknowledgment (RFC 9204 4.4.1).
pub(super) fn section_acknowledgement(stream: u64, out: &mut Vec<u8>) {
    integer::write_long(stream, 7, 0x80, out);
}

/// Stream Cancellation (RFC 9204 4.4.2).
pub(crate) fn stream_cancellation(stream: u64, out: &mut Vec<u8>) {
    integer::write_long(stream, 6, 0x40, out);
}

/// Insert Count Increment (RFC 9204 4.4.3).
pub(super) fn insert_count_increment(increment: u64, out: &mut Vec<u8>) {
    integer::write_long(increment, 6, 0, out);
}
