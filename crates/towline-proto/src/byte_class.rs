//! Byte classes, and the search for the first byte outside of one.
#![allow(
    clippy::inline_always,
    reason = "a call per field costs more than the search; measured by benches/head.rs"
)]

/// `tchar` of RFC 9110 5.6.2.
const TOKEN: [bool; 256] =
    class(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");

/// Bytes of `reg-name` (RFC 3986 3.2.2), which an IPv4 address is made of too.
const REG_NAME: [bool; 256] =
    class(b"-._~%!$&'()*+,;=0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");

const fn class(members: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut i = 0;
    while i < members.len() {
        table[members[i] as usize] = true;
        i += 1;
    }
    table
}

#[inline]
pub(crate) const fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// A non-empty token.
#[inline]
pub fn is_token_bytes(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && (all_words(bytes, |word| letters_and_hyphens(word) == HIGHS)
            || bytes.iter().all(|&byte| is_token(byte)))
}

/// Bytes that a field value may hold (RFC 9110 5.5).
#[inline]
pub fn is_value_bytes(bytes: &[u8]) -> bool {
    all_words(bytes, |word| (below(word, b' ') | equal(word, 0x7f)) == 0)
        || value_end(bytes, 0) == bytes.len()
}

/// Visible ASCII only (`!` to `~`).
#[inline]
pub(crate) fn is_visible_bytes(bytes: &[u8]) -> bool {
    all_words(bytes, |word| other_than_visible(word) == 0) || not_visible(bytes, 0) == bytes.len()
}

/// Whether `byte` is in `bytes`, which are expected to be short.
#[inline]
pub(crate) fn has_byte(bytes: &[u8], byte: u8) -> bool {
    !all_words(bytes, |word| equal(word, byte) == 0) && bytes.contains(&byte)
}

/// High bit set in the first byte that is not visible ASCII, and perhaps in others; 0 if there is none.
#[inline]
const fn other_than_visible(word: u64) -> u64 {
    below(word, b'!') | equal(word, 0x7f) | (word & HIGHS)
}

/// Whether `good` holds for all of `bytes`, taken as words that may overlap: no tail is left to be checked byte
/// by byte. False also for fewer than four bytes.
#[inline(always)]
fn all_words(bytes: &[u8], good: impl Fn(u64) -> bool) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) else {
            return false;
        };
        let half = |half: [u8; 4]| u64::from(u32::from_le_bytes(half));
        return good(half(*first) | half(*last) << 32);
    };
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().all(|&bytes| good(word(bytes))) && good(word(*last))
}

#[inline]
pub(crate) fn is_reg_name_byte(byte: u8) -> bool {
    REG_NAME[byte as usize]
}

/// Index of the first byte that is not one of a `reg-name`; `bytes.len()` if there is none.
#[inline]
pub(crate) fn reg_name_end(bytes: &[u8]) -> usize {
    let mut at = 0;
    // Most names begin with letters and hyphens: those are skipped eight at a time.
    while let Some(chunk) = bytes[at..].first_chunk::<8>()
        && letters_and_hyphens(word(*chunk)) == HIGHS
    {
        at += 8;
    }
    while at < bytes.len() && is_reg_name_byte(bytes[at]) {
        at += 1;
    }
    at
}

/// Index of the first byte at or after `from` that is not a `tchar`; `bytes.len()` if there is none.
#[inline(always)]
pub(crate) fn token_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    // Nearly all names consist of letters and hyphens: those are skipped eight at a time.
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let other = !letters_and_hyphens(word(*chunk)) & HIGHS;
        if other != 0 {
            at += other.trailing_zeros() as usize / 8;
            if bytes[at] == b':' || bytes[at] == b' ' {
                return at;
            }
            break;
        }
        at += 8;
    }
    while at < bytes.len() && TOKEN[bytes[at] as usize] {
        at += 1;
    }
    at
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// High bit set in each byte below `n` (n <= 0x80). The lowest bit set is exact; higher ones may be
/// carried over from it.
#[inline]
const fn below(word: u64, n: u8) -> u64 {
    word.wrapping_sub(ONES * n as u64) & !word & HIGHS
}

/// High bit set in each byte that equals `byte`. The lowest bit set is exact, as in [`below`].
#[inline]
const fn equal(word: u64, byte: u8) -> u64 {
    let word = word ^ (ONES * byte as u64);
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// High bit set in each byte that is a letter or a hyphen, exactly.
#[inline]
const fn letters_and_hyphens(word: u64) -> u64 {
    let ascii = word & !HIGHS;
    let lower = ascii | (ONES * 0x20);
    let from_a = lower + ONES * (0x80 - b'a' as u64);
    let above_z = lower + ONES * (0x7f - b'z' as u64);
    let hyphen = !((ascii ^ (ONES * b'-' as u64)) + ONES * 0x7f);
    ((from_a & !above_z) | hyphen) & !word & HIGHS
}

#[inline]
fn word(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// Index of the first control byte (below SP, or DEL) at or after `from`; `bytes.len()` if none. HTAB counts as
/// one although a field value may contain it: the caller continues after it.
#[inline(always)]
pub(crate) fn control(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let found = below(word(*chunk), b' ') | equal(word(*chunk), 0x7f);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < bytes.len() && bytes[at] >= b' ' && bytes[at] != 0x7f {
        at += 1;
    }
    at
}

/// Index of the first byte at or after `from` that is not visible ASCII (`!` to `~`).
#[inline]
pub(crate) fn not_visible(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let found = other_than_visible(word(*chunk));
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < bytes.len() && bytes[at].is_ascii_graphic() {
        at += 1;
    }
    at
}

/// Index of the first byte that a field value must not contain (RFC 9110 5.5).
#[inline(always)]
pub(crate) fn value_end(bytes: &[u8], from: usize) -> usize {
    let mut at = control(bytes, from);
    while at < bytes.len() && bytes[at] == b'\t' {
        at = control(bytes, at + 1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte value at every place of a word and beyond it, against the definition.
    #[test]
    fn searches_agree_with_their_definition() {
        for place in 0..20 {
            for byte in 0..=255_u8 {
                let mut bytes = *b"abcdefghijklmnopqrst";
                bytes[place] = byte;
                let expect = |stop: bool| if stop { place } else { 20 };
                let is_control = byte < b' ' || byte == 0x7f;
                assert_eq!(control(&bytes, 0), expect(is_control));
                assert_eq!(value_end(&bytes, 0), expect(is_control && byte != b'\t'));
                assert_eq!(not_visible(&bytes, 0), expect(!byte.is_ascii_graphic()));
                assert_eq!(token_end(&bytes, 0), expect(!is_token(byte)));
                assert_eq!(reg_name_end(&bytes), expect(!is_reg_name_byte(byte)));
                assert!(has_byte(&bytes, byte));
                assert_eq!(has_byte(&bytes, b'~'), byte == b'~');
                for len in place + 1..=20 {
                    assert_eq!(is_token_bytes(&bytes[..len]), is_token(byte));
                    let is_value = !is_control || byte == b'\t';
                    assert_eq!(is_value_bytes(&bytes[..len]), is_value);
                    assert_eq!(is_visible_bytes(&bytes[..len]), byte.is_ascii_graphic());
                }
            }
        }
    }
}
