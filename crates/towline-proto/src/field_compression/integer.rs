//! Integers with a prefix (RFC 7541 5.1), and the cursor over a header block.

use super::error::CodingError;

/// Maximum number of continuation bytes of an integer: 2^28 is more than any index or length can be, and
/// redundant zeros are refused too (RFC 7541 5.1, last paragraph).
const MAX_CONTINUATION_BYTES: u32 = 4;

/// Maximum number of continuation bytes of an integer of 62 bits.
const MAX_LONG_CONTINUATION_BYTES: u32 = 9;

/// The rest of a header block.
pub(crate) struct Input<'a> {
    pub rest: &'a [u8],
}

impl<'a> Input<'a> {
    #[inline]
    pub fn first(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Reads an integer whose first `prefix_bits` are the low bits of the next byte.
    #[inline]
    pub fn integer(&mut self, prefix_bits: u32) -> Result<u32, CodingError> {
        let (&first, rest) = self.rest.split_first().ok_or(CodingError::Truncated)?;
        self.rest = rest;
        let mask = (1_u32 << prefix_bits) - 1;
        let value = u32::from(first) & mask;
        if value < mask {
            return Ok(value);
        }
        self.continued(value)
    }

    fn continued(&mut self, mut value: u32) -> Result<u32, CodingError> {
        for place in 0..MAX_CONTINUATION_BYTES {
            let (&byte, rest) = self.rest.split_first().ok_or(CodingError::Truncated)?;
            self.rest = rest;
            value += u32::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(CodingError::Integer)
    }

    /// Reads an integer of up to 62 bits, as QPACK has them (RFC 9204 4.1.1): numbers of streams.
    pub fn long_integer(&mut self, prefix_bits: u32) -> Result<u64, CodingError> {
        let (&first, rest) = self.rest.split_first().ok_or(CodingError::Truncated)?;
        self.rest = rest;
        let mask = (1_u64 << prefix_bits) - 1;
        let mut value = u64::from(first) & mask;
        if value < mask {
            return Ok(value);
        }
        for place in 0..MAX_LONG_CONTINUATION_BYTES {
            let (&byte, rest) = self.rest.split_first().ok_or(CodingError::Truncated)?;
            self.rest = rest;
            value += u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Some(value)
                    .filter(|&value| value < 1 << 62)
                    .ok_or(CodingError::Integer);
            }
        }
        Err(CodingError::Integer)
    }

    #[inline]
    pub fn take(&mut self, len: u32) -> Result<&'a [u8], CodingError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len as usize)
            .ok_or(CodingError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Appends `value` with `flags` in the bits above its prefix.
#[inline]
pub(crate) fn write(value: usize, prefix_bits: u32, flags: u8, out: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
    } else {
        out.push(flags | mask as u8);
        write_continued(value - mask, out);
    }
}

/// Appends an integer of up to 62 bits.
pub(crate) fn write_long(value: u64, prefix_bits: u32, flags: u8, out: &mut Vec<u8>) {
    let mask = (1_u64 << prefix_bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn write_continued(mut rest: usize, out: &mut Vec<u8>) {
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], prefix_bits: u32) -> Result<u32, CodingError> {
        Input { rest: bytes }.integer(prefix_bits)
    }

    fn written(value: usize, prefix_bits: u32) -> Vec<u8> {
        let mut out = Vec::new();
        write(value, prefix_bits, 0, &mut out);
        out
    }

    #[test]
    fn the_examples_of_rfc_7541_c_1() {
        for (value, prefix_bits, bytes) in [
            (10, 5, &[0x0a][..]),
            (1337, 5, &[0x1f, 0x9a, 0x0a]),
            (42, 8, &[0x2a]),
        ] {
            assert_eq!(read(bytes, prefix_bits), Ok(value));
            assert_eq!(written(value as usize, prefix_bits), bytes);
        }
    }

    #[test]
    fn written_integers_are_read_back_at_every_prefix() {
        for prefix_bits in 4..=7 {
            for value in (0..70_000).chain([(1 << 28) - 1]) {
                assert_eq!(
                    read(&written(value as usize, prefix_bits), prefix_bits),
                    Ok(value)
                );
            }
        }
    }

    #[test]
    fn numbers_of_62_bits_are_read_back() {
        for prefix_bits in [6, 7] {
            for value in [0, 62, 63, 64, 126, 127, 128, 1 << 30, (1 << 62) - 1] {
                let mut out = Vec::new();
                write_long(value, prefix_bits, 0, &mut out);
                let mut input = Input { rest: &out };
                assert_eq!(input.long_integer(prefix_bits), Ok(value));
                assert!(input.rest.is_empty());
                let cut = &out[..out.len() - 1];
                let read = Input { rest: cut }.long_integer(prefix_bits);
                assert_eq!(read, Err(CodingError::Truncated));
            }
        }
        let long = [&[0x7f][..], &[0xff; 9], &[0]].concat();
        let read = Input { rest: &long }.long_integer(7);
        assert_eq!(read, Err(CodingError::Integer));
    }

    #[test]
    fn long_and_cut_integers_are_errors() {
        for (bytes, error) in [
            (&b""[..], CodingError::Truncated),
            (b"\x7f", CodingError::Truncated),
            (b"\x7f\x80\x80", CodingError::Truncated),
            (b"\x7f\x80\x80\x80\x80\x00", CodingError::Integer),
            (
                b"\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                CodingError::Integer,
            ),
        ] {
            assert_eq!(read(bytes, 7), Err(error));
        }
    }
}
