//! Masking (RFC 6455 5.3): an XOR with four repeated bytes, in loops over whole words, which the compiler
//! vectorises.

/// A masking key, rotated so that its first byte applies to the next byte of payload. Zeros (no mask) cost
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mask([u8; 4]);

const WORD: usize = 8;

impl Mask {
    pub fn new(key: [u8; 4]) -> Self {
        Self(key)
    }

    /// Appends `data` to `out`, masked or unmasked, in one pass.
    pub fn append(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(data);
        self.apply(&mut out[start..]);
    }

    /// Masks or unmasks in place.
    pub fn apply(&mut self, data: &mut [u8]) {
        if self.0 == [0; 4] {
            return;
        }
        let word = u64::from_ne_bytes(self.twice());
        let (words, rest) = data.as_chunks_mut::<WORD>();
        for bytes in words {
            *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(self.twice()) {
            *byte ^= key;
        }
        self.0.rotate_left(rest.len() % 4);
    }

    fn twice(self) -> [u8; WORD] {
        let [a, b, c, d] = self.0;
        [a, b, c, d, a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_length_equals_masking_byte_by_byte() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        let data: Vec<u8> = (0..100).collect();
        for len in 0..data.len() {
            let expected: Vec<u8> = (0..len).map(|i| data[i] ^ key[i % 4]).collect();
            for cut in 0..=len {
                let mut mask = Mask::new(key);
                let mut out = Vec::new();
                mask.append(&data[..cut], &mut out);
                mask.append(&data[cut..len], &mut out);
                assert_eq!(out, expected, "cut {cut} of {len}");
            }
        }
    }
}
