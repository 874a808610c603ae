//! Decoders for content codings, one interface for all of them and for chains (RFC 9110 8.4).
//!
//! Pull-based: [`Decoder::decode`] fills the reader's buffer and consumes only the input needed for that, so
//! a small body that inflates to gigabytes costs only as much as is read. Memory is bounded by the largest
//! accepted windows: 32 KiB for gzip and deflate, 8 MiB for zstd (RFC 9659), 16 MiB for brotli.
//!
//! Rules, each with a test:
//!
//! - Content-Encoding may list at most [`MAX_CODINGS`]; unknown names and `identity` are ignored, because
//!   servers write charsets there.
//! - A gzip body may have several members, a zstd body several frames. Other bytes after the end of the
//!   coded data are dropped.
//! - A body that ends inside its coding is an error, except an empty body.
//! - `deflate` is the zlib format, or the raw format that some servers send instead.
//! - In a chain, the bytes between two codings are bounded by those that go in and come out, so that no chain
//!   can cause unbounded work without output.

mod coding_decoder;
mod step;

use super::Coding;
use coding_decoder::CodingDecoder;

pub use step::{DecodeError, MAX_CODINGS, Step};

/// Size of the buffer between two codings of a chain.
const LINK_BUFFER_BYTES: usize = 8 * 1024;

/// Bound of the bytes between codings: these, plus [`WORK_FACTOR`] times the input and output.
const WORK_FREE_BYTES: u64 = 1 << 20;
const WORK_FACTOR: u64 = 16;

/// Decoder of one body. After an error it returns the same error again.
pub struct Decoder {
    /// In decoding order: the coding applied last comes first.
    links: Vec<ChainLink>,
    max_size: Option<u64>,
    produced: u64,
    consumed: u64,
    between: u64,
    limit_passed: bool,
}

/// One coding of a chain and its input buffer. The first of a chain reads the caller's input instead.
struct ChainLink {
    decoder: CodingDecoder,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Decoder {
    /// Creates the decoder for a Content-Encoding value (several headers joined by commas). `None` if there is
    /// nothing to decode.
    pub fn new(codings: &[u8], max_size: Option<u64>) -> Result<Option<Self>, DecodeError> {
        let mut links = Vec::new();
        for name in codings.split(|&byte| byte == b',').rev() {
            let Some(coding) = Coding::named(name.trim_ascii()) else {
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
                decoder: CodingDecoder::new(coding),
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

    /// Decodes until `out` is full or the input is consumed. An error is returned after the bytes before it.
    pub fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Step, DecodeError> {
        if self.limit_passed {
            return Err(self.too_large());
        }
        let room = self.allowed(out.len());
        let mut rest = input;
        let produced = self.pull(&mut rest, &mut out[..room])?;
        // The output is exactly at the bound: check whether there is one byte more.
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

    /// Decodes all of `input` and appends it to `out`.
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

    /// Checks at the end of the body that it was complete.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.limit_passed {
            return Err(self.too_large());
        }
        self.links.iter().try_for_each(|link| link.decoder.finish())
    }

    /// Number of decoded bytes so far.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// Number of bytes of a buffer of `wanted` bytes that may be filled.
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

/// Fills `out` from the last of `links`, which reads from those before it; the first reads `input`.
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
        // The decoder keeps its error and returns it after the bytes before it.
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
