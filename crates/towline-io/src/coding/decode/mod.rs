//! Decoders for content codings, one interface for all of them and for chains (RFC 9110 8.4).
//!
//! Pull-based: [`Decoder::decode`] fills the reader's buffer and takes only the input that this needs, so a
//! small body that inflates to gigabytes costs what its reader asks for. Memory is bounded by the windows
//! that the formats allow here: 32 KiB for gzip and deflate, 8 MiB for zstd (RFC 9659), 16 MiB for brotli.
//!
//! Policies, each held by a test:
//!
//! - Content-Encoding may name at most [`MAX_CODINGS`]; names that are not known are passed over, as is
//!   `identity`: servers write charsets there, and no reader could decode it anyway.
//! - A gzip body may have several members, a zstd body several frames. Whatever else stands behind the end
//!   of the coded data is neither decoded nor delivered.
//! - A body that ends inside its coding is an error, except one without any byte.
//! - `deflate` is the zlib format, or the raw one that some servers send in its place.
//! - In a chain, what passes between two codings is bounded by what goes in and comes out, so that no chain
//!   can make work without end for a reader who sees nothing.

mod format_decoder;

use std::fmt;

use format_decoder::{Format, FormatDecoder};

/// How many codings a Content-Encoding may name.
pub const MAX_CODINGS: usize = 5;

/// What is kept between two codings of a chain.
const LINK_BUFFER_BYTES: usize = 8 * 1024;

/// Bytes between codings: these, and [`WORK_FACTOR`] times those that went in and came out.
const WORK_FREE_BYTES: u64 = 1 << 20;
const WORK_FACTOR: u64 = 16;

/// What one call did. `produced` short of the buffer means that all input is consumed and more is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    pub consumed: usize,
    pub produced: usize,
}

/// Why a body cannot be decoded. Bytes before the violation have been delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    Corrupt {
        coding: &'static str,
        why: String,
    },
    Truncated {
        coding: &'static str,
    },
    /// More than the program's `max_size`.
    TooLarge {
        max_size: u64,
    },
    /// A chain that inflates inside and gives next to nothing.
    Work,
    TooManyCodings,
}

impl DecodeError {
    /// Whether a bound was passed, rather than the body being malformed.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::Work | Self::TooManyCodings
        )
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt { coding, why } => write!(f, "the body is not valid {coding}: {why}"),
            Self::Truncated { coding } => write!(f, "the body ends inside its {coding} coding"),
            Self::TooLarge { max_size } => {
                write!(
                    f,
                    "the decoded body is larger than max_decompressed_size ({max_size} bytes)"
                )
            }
            Self::Work => f.write_str("the body's codings inflate far beyond what they deliver"),
            Self::TooManyCodings => {
                write!(f, "Content-Encoding names more than {MAX_CODINGS} codings")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// The decoder of one body. After an error it gives the same error again.
pub struct Decoder {
    /// In the order in which they are undone: the coding applied last comes first.
    links: Vec<ChainLink>,
    max_size: Option<u64>,
    produced: u64,
    consumed: u64,
    between: u64,
    limit_passed: bool,
}

/// A coding and what it has been given but not yet taken. The first of a chain takes the caller's input.
struct ChainLink {
    decoder: FormatDecoder,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Decoder {
    /// For the value of Content-Encoding, several fields joined by commas. `None`: nothing to undo.
    pub fn new(codings: &[u8], max_size: Option<u64>) -> Result<Option<Self>, DecodeError> {
        let mut links = Vec::new();
        for name in codings.split(|&byte| byte == b',').rev() {
            let Some(format) = Format::named(name.trim_ascii()) else {
                continue;
            };
            if links.len() == MAX_CODINGS {
                return Err(DecodeError::TooManyCodings);
            }
            let room = if links.is_empty() {
                0
            } else {
                LINK_BUFFER_BYTES
            };
            links.push(ChainLink {
                decoder: FormatDecoder::new(format),
                buffer: vec![0; room].into_boxed_slice(),
                start: 0,
                end: 0,
            });
        }
        if links.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            links,
            max_size,
            produced: 0,
            consumed: 0,
            between: 0,
            limit_passed: false,
        }))
    }

    /// Decodes until `out` is full or the input used up. An error waits until what came before it is taken.
    pub fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Step, DecodeError> {
        if self.limit_passed {
            return Err(self.too_large());
        }
        let room = self.allowed(out.len());
        let mut rest = input;
        let produced = self.pull(&mut rest, &mut out[..room])?;
        // At the bound exactly: one byte more would pass it.
        if produced == room && room < out.len() {
            self.limit_passed = self.pull(&mut rest, &mut [0])? > 0;
            if self.limit_passed && produced == 0 {
                return Err(self.too_large());
            }
        }
        let consumed = input.len() - rest.len();
        self.consumed += consumed as u64;
        self.produced += produced as u64;
        Ok(Step { consumed, produced })
    }

    /// Decodes the whole of `input` behind what `out` holds already.
    pub fn decode_to_end(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let mut rest = input;
        loop {
            let filled = out.len();
            let room = rest.len().saturating_mul(4).clamp(4096, 256 * 1024);
            out.resize(filled + room, 0);
            let step = self.decode(rest, &mut out[filled..]);
            out.truncate(filled + step.as_ref().map_or(0, |step| step.produced));
            let step = step?;
            rest = &rest[step.consumed..];
            if step.produced < room && rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// The body is over and `decode` has nothing more to give: was it whole?
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.limit_passed {
            return Err(self.too_large());
        }
        self.links.iter().try_for_each(|link| link.decoder.finish())
    }

    /// Decoded bytes so far.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// How much of a buffer of `wanted` bytes may be filled.
    fn allowed(&self, wanted: usize) -> usize {
        let left = self.max_size.map_or(u64::MAX, |most| most - self.produced);
        usize::try_from(left).map_or(wanted, |left| wanted.min(left))
    }

    fn too_large(&self) -> DecodeError {
        DecodeError::TooLarge {
            max_size: self.max_size.unwrap_or(u64::MAX),
        }
    }

    fn pull(&mut self, input: &mut &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let seen = self.consumed + self.produced + (input.len() + out.len()) as u64;
        let mut work_left = (WORK_FREE_BYTES + WORK_FACTOR * seen).saturating_sub(self.between);
        let before = work_left;
        let pulled = pull(&mut self.links, input, out, &mut work_left);
        self.between += before - work_left;
        pulled
    }
}

/// Fills `out` from the last of `links`, which draws on those before it; the first draws on `input`.
fn pull(
    links: &mut [ChainLink],
    input: &mut &[u8],
    out: &mut [u8],
    work_left: &mut u64,
) -> Result<usize, DecodeError> {
    let Some((last, before)) = links.split_last_mut() else {
        return Ok(0);
    };
    if before.is_empty() {
        let step = last.decoder.decode(input, out)?;
        *input = &input[step.consumed..];
        return Ok(step.produced);
    }
    let mut produced = 0;
    while produced < out.len() {
        let coded = &last.buffer[last.start..last.end];
        // A violation is remembered by its stage: it is told when what came before it is taken.
        let step = match last.decoder.decode(coded, &mut out[produced..]) {
            Ok(step) => step,
            Err(_) if produced > 0 => break,
            Err(error) => return Err(error),
        };
        last.start += step.consumed;
        produced += step.produced;
        if produced < out.len() && last.start == last.end {
            (last.start, last.end) = (0, 0);
            last.end = match pull(before, input, &mut last.buffer, work_left) {
                Ok(0) => break,
                Ok(filled) => filled,
                Err(_) if produced > 0 => break,
                Err(error) => return Err(error),
            };
            *work_left = work_left
                .checked_sub(last.end as u64)
                .ok_or(DecodeError::Work)?;
        }
    }
    Ok(produced)
}

#[cfg(test)]
mod tests;
