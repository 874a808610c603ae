//! The Huffman code of RFC 7541 appendix B.
//!
//! The code is canonical: codes of one length ascend with their symbols, so the lengths alone define it and all
//! tables are computed from them at compile time.
//!
//! Decoding looks up 12 bits at once. Most text has codes of 5 to 7 bits, so that one step often yields two
//! symbols; codes above 12 bits (control bytes, bytes above 0x7f) are found by comparison with the first code of
//! each length.

use super::CodingError;

/// Length in bits of the code of each byte, and of EOS.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const EOS: u16 = 256;
const MIN_LENGTH: usize = 5;
const MAX_LENGTH: usize = 30;
/// Padding is less than a byte (RFC 7541 5.2).
const MAX_PADDING_BITS: u32 = 7;

#[derive(Clone, Copy)]
struct Code {
    bits: u32,
    len: u8,
}

/// The code both ways: by symbol, and by length.
struct CanonicalCode {
    codes: [Code; 257],
    /// Symbols in the order of their codes.
    symbols: [u16; 257],
    /// For each length: codes below this, written from the top of 32 bits, are not longer.
    ends: [u64; MAX_LENGTH + 1],
    /// For each length: its first code, from the top of 32 bits, and the place of that in `symbols`.
    firsts: [(u32, u16); MAX_LENGTH + 1],
}

const CANONICAL: CanonicalCode = canonical_code();
static CODES: [Code; 257] = CANONICAL.codes;
static SYMBOLS: [u16; 257] = CANONICAL.symbols;
static ENDS: [u64; MAX_LENGTH + 1] = CANONICAL.ends;
static FIRSTS: [(u32, u16); MAX_LENGTH + 1] = CANONICAL.firsts;

const fn canonical_code() -> CanonicalCode {
    let mut code = CanonicalCode {
        codes: [Code { bits: 0, len: 0 }; 257],
        symbols: [0; 257],
        ends: [0; MAX_LENGTH + 1],
        firsts: [(0, 0); MAX_LENGTH + 1],
    };
    let mut next: u64 = 0;
    let mut place = 0;
    let mut len = MIN_LENGTH;
    while len <= MAX_LENGTH {
        code.firsts[len] = ((next << (32 - len)) as u32, place as u16);
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == len {
                code.codes[symbol] = Code {
                    bits: next as u32,
                    len: len as u8,
                };
                code.symbols[place] = symbol as u16;
                place += 1;
                next += 1;
            }
            symbol += 1;
        }
        code.ends[len] = next << (32 - len);
        next <<= 1;
        len += 1;
    }
    code
}

/// Number of bits of one look-up.
const STEP_BITS: usize = 12;

/// The symbols at the start of the next 12 bits.
#[derive(Clone, Copy)]
struct Step {
    symbols: [u8; 2],
    /// Length of the code of the first symbol.
    first_len: u8,
    /// The count of symbols (0: the first code is longer than 12 bits) above the length of all of them.
    count_and_len: u8,
}

impl Step {
    #[inline]
    fn count(self) -> usize {
        (self.count_and_len >> 4) as usize
    }

    #[inline]
    fn len(self) -> u32 {
        u32::from(self.count_and_len & 15)
    }
}

static STEPS: [Step; 1 << STEP_BITS] = steps();

const fn steps() -> [Step; 1 << STEP_BITS] {
    let none = Step {
        symbols: [0; 2],
        first_len: 0,
        count_and_len: 0,
    };
    let mut steps = [none; 1 << STEP_BITS];
    let mut first = 0;
    while first < 256 {
        let code = CANONICAL.codes[first];
        if code.len as usize <= STEP_BITS {
            let free = STEP_BITS - code.len as usize;
            let start = (code.bits as usize) << free;
            let mut step = none;
            step.symbols[0] = first as u8;
            step.first_len = code.len;
            step.count_and_len = 1 << 4 | code.len;
            let mut at = start;
            while at < start + (1 << free) {
                steps[at] = step;
                at += 1;
            }
            pair(&mut steps, step, start, free);
        }
        first += 1;
    }
    steps
}

/// Fills in the steps that begin with a whole second symbol after `first`.
const fn pair(steps: &mut [Step; 1 << STEP_BITS], first: Step, start: usize, free: usize) {
    let mut place = 0;
    while place < 257 {
        let second = CANONICAL.symbols[place] as usize;
        let code = CANONICAL.codes[second];
        if code.len as usize > free {
            return;
        }
        let rest = free - code.len as usize;
        let mut step = first;
        step.symbols[1] = second as u8;
        step.count_and_len = 2 << 4 | (first.first_len + code.len);
        let mut at = start + ((code.bits as usize) << rest);
        let end = at + (1 << rest);
        while at < end {
            steps[at] = step;
            at += 1;
        }
        place += 1;
    }
}

/// The next bits of a string, from the top of `bits`; the first `have` of them belong to the string.
struct Window<'a> {
    rest: &'a [u8],
    bits: u64,
    have: u32,
}

impl Window<'_> {
    /// Makes at least 56 bits available; false if fewer than eight bytes are left.
    #[inline]
    fn refill(&mut self) -> bool {
        let Some(word) = self.rest.first_chunk::<8>() else {
            return false;
        };
        self.bits |= u64::from_be_bytes(*word) >> self.have;
        let whole = (63 - self.have) / 8;
        self.rest = &self.rest[whole as usize..];
        self.have += whole * 8;
        true
    }

    /// Refills byte by byte, near the end of the input. The bits after the end are ones, like padding.
    fn refill_last(&mut self) {
        while self.have <= 56 {
            let Some((&byte, rest)) = self.rest.split_first() else {
                break;
            };
            self.bits &= !(u64::MAX >> self.have);
            self.bits |= u64::from(byte) << (56 - self.have);
            self.rest = rest;
            self.have += 8;
        }
        self.bits |= u64::MAX.checked_shr(self.have).unwrap_or(0);
    }

    #[inline]
    fn skip(&mut self, len: u32) {
        self.bits <<= len;
        self.have -= len;
    }

    #[inline]
    fn step(&self) -> Step {
        STEPS[(self.bits >> (64 - STEP_BITS)) as usize]
    }

    /// The first symbol and its length, found by its length.
    #[cold]
    fn long(&self) -> Result<(u8, u32), CodingError> {
        let top = self.bits >> 32;
        let mut len = STEP_BITS + 1;
        while top >= ENDS[len] {
            len += 1;
        }
        let (first, place) = FIRSTS[len];
        let symbol = SYMBOLS[usize::from(place) + ((top as u32 - first) >> (32 - len)) as usize];
        if symbol == EOS {
            return Err(CodingError::EndOfString);
        }
        Ok((symbol as u8, len as u32))
    }
}

/// The most bytes that a string of this encoded length can decode to, and one that a step may spoil.
fn most_bytes(encoded: usize) -> usize {
    encoded * 8 / MIN_LENGTH + 1
}

/// Appends the decoded text of `encoded`.
pub(crate) fn decode(encoded: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
    let start = out.len();
    out.resize(start + most_bytes(encoded.len()), 0);
    let result = decode_into(encoded, &mut out[start..]);
    out.truncate(start + result.unwrap_or(0));
    result.map(drop)
}

fn decode_into(encoded: &[u8], out: &mut [u8]) -> Result<usize, CodingError> {
    let mut input = Window {
        rest: encoded,
        bits: 0,
        have: 0,
    };
    let mut at = 0;
    // 56 bits are four steps.
    'refill: while input.refill() {
        for _ in 0..4 {
            let step = input.step();
            if step.count() == 0 {
                if (input.have as usize) < MAX_LENGTH {
                    continue 'refill;
                }
                let (symbol, len) = input.long()?;
                out[at] = symbol;
                at += 1;
                input.skip(len);
                continue 'refill;
            }
            out[at..at + 2].copy_from_slice(&step.symbols);
            at += step.count();
            input.skip(step.len());
        }
    }
    decode_last(&mut input, out, at)
}

/// The last bytes: symbol by symbol, since padding may follow each.
fn decode_last(
    input: &mut Window<'_>,
    out: &mut [u8],
    mut at: usize,
) -> Result<usize, CodingError> {
    loop {
        input.refill_last();
        if input.have <= MAX_PADDING_BITS && input.bits == u64::MAX {
            return Ok(at);
        }
        let step = input.step();
        let (symbol, len) = if step.count() == 0 {
            input.long_last()?
        } else {
            (step.symbols[0], u32::from(step.first_len))
        };
        if len > input.have {
            return Err(CodingError::Padding);
        }
        out[at] = symbol;
        at += 1;
        input.skip(len);
    }
}

impl Window<'_> {
    /// As `long`; ones up to the end of the string are padding that is too long, not an EOS.
    #[cold]
    fn long_last(&self) -> Result<(u8, u32), CodingError> {
        self.long().map_err(|error| {
            if (self.have as usize) < MAX_LENGTH {
                CodingError::Padding
            } else {
                error
            }
        })
    }
}

/// How many bytes `plain` takes when it is encoded.
#[inline]
pub(crate) fn encoded_len(plain: &[u8]) -> usize {
    let bits: usize = plain
        .iter()
        .map(|&byte| usize::from(LENGTHS[usize::from(byte)]))
        .sum();
    bits.div_ceil(8)
}

/// Appends the code of `plain`; `len` is its `encoded_len`.
pub(crate) fn encode(plain: &[u8], len: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + len, 0);
    let out = &mut out[start..];
    let (mut bits, mut have, mut at) = (0_u64, 0_u32, 0);
    for &byte in plain {
        let code = CODES[usize::from(byte)];
        bits = bits << code.len | u64::from(code.bits);
        have += u32::from(code.len);
        if have >= 32 {
            have -= 32;
            out[at..at + 4].copy_from_slice(&((bits >> have) as u32).to_be_bytes());
            at += 4;
        }
    }
    // The padding is a prefix of EOS: ones.
    let last = (bits << (32 - have)) as u32 | u32::MAX.checked_shr(have).unwrap_or(0);
    let rest = &mut out[at..];
    rest.copy_from_slice(&last.to_be_bytes()[..rest.len()]);
}
