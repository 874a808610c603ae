//! Integers with a prefix (RFC 7541 5.1), and the cursor over a header block.

use super::HpackError;

/// Maximum number of continuation bytes of an integer: 2^28 is more than any index or length can be, and
/// redundant zeros are refused too (RFC 7541 5.1, last paragraph).
const MAX_CONTINUATION_BYTES: u32 = 4;

/// The rest of a header block.
pub(super) struct Input<'a> {
    pub rest: &'a [u8],
}

impl<'a> Input<'a> {
    #[inline]
    pub fn first(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Reads an integer whose first `prefix_bits` are the low bits of the next byte.
    #[inline]
    pub fn integer(&mut self, prefix_bits: u32) -> Result<u32, HpackError> {
        let (&first, rest) = self.rest.split_first().ok_or(HpackError::Truncated)?;
        self.rest = rest;
        let mask = (1_u32 << prefix_bits) - 1;
        let value = u32::from(first) & mask;
        if value < mask {
            return Ok(value);
        }
        self.continued(value)
    }

    fn continued(&mut self, mut value: u32) -> Result<u32, HpackError> {
        for place in 0..MAX_CONTINUATION_BYTES {
            let (&byte, rest) = self.rest.split_first().ok_or(HpackError::Truncated)?;
            self.rest = rest;
            value += u32::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(HpackError::Integer)
    }

    #[inline]
    pub fn take(&mut self, len: u32) -> Result<&'a [u8], HpackError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len as usize)
            .ok_or(HpackError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Appends `value` with `flags` in the bits above its prefix.
#[inline]
pub(super) fn write(value: usize, prefix_bits: u32, flags: u8, out: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
    } else {
        out.push(flags | mask as u8);
        write_continued(value - mask, out);
    }
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

    fn read(bytes: &[u8], prefix_bits: u32) -> Result<u32, HpackError> {
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
    fn long_and_cut_integers_are_errors() {
        for (bytes, error) in [
            (&b""[..], HpackError::Truncated),
            (b"\x7f", HpackError::Truncated),
            (b"\x7f\x80\x80", HpackError::Truncated),
            (b"\x7f\x80\x80\x80\x80\x00", HpackError::Integer),
            (
                b"\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                HpackError::Integer,
            ),
        ] {
            assert_eq!(read(bytes, 7), Err(error));
        }
    }
}
