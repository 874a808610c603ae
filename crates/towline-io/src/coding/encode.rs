//! Streaming encoders for content codings, with one interface for all.
//!
//! Memory is bounded by small windows: about 0.3 MB for gzip, 1 MB for zstd, 2 MB for brotli while a
//! response is being encoded. Between responses only the encoders of an [`EncoderPool`] keep memory.

use std::io::{self, Write};

use flate2::{Compress, Compression, FlushCompress, Status};
use zstd::stream::raw::{CParameter, Encoder as ZstdStream, InBuffer, Operation, OutBuffer};

use super::Coding;

/// Compression levels for dynamic responses: higher ones cost more time than they save.
const GZIP_LEVEL: u32 = 5;
const ZSTD_LEVEL: i32 = 3;
const BROTLI_QUALITY: u32 = 4;

/// Windows of 256 KiB, and of 32 KiB for gzip, its maximum.
const WINDOW_BITS: u32 = 18;
const GZIP_WINDOW_BITS: u8 = 15;

/// Increment of the output buffer.
const STEP_BYTES: usize = 4096;

/// Encoder of one response. After an error or [`Encoder::finish`] it may only be dropped or pooled.
pub enum Encoder {
    Gzip(Box<Compress>),
    Zstd(Box<ZstdStream<'static>>),
    /// Writes into the inner vector, which is emptied after each call.
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
}

impl Encoder {
    pub fn new(coding: Coding) -> io::Result<Self> {
        Ok(match coding {
            Coding::Gzip => Self::Gzip(Box::new(Compress::new_gzip(
                Compression::new(GZIP_LEVEL),
                GZIP_WINDOW_BITS,
            ))),
            Coding::Zstd => {
                let mut stream = ZstdStream::new(ZSTD_LEVEL)?;
                stream.set_parameter(CParameter::WindowLog(WINDOW_BITS))?;
                Self::Zstd(Box::new(stream))
            }
            Coding::Brotli => {
                let writer = brotli::CompressorWriter::new(
                    Vec::new(),
                    STEP_BYTES,
                    BROTLI_QUALITY,
                    WINDOW_BITS,
                );
                Self::Brotli(Box::new(writer))
            }
            Coding::Deflate => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    pub fn coding(&self) -> Coding {
        match self {
            Self::Gzip(_) => Coding::Gzip,
            Self::Zstd(_) => Coding::Zstd,
            Self::Brotli(_) => Coding::Brotli,
        }
    }

    /// Encodes `piece` and appends the output so far, which may be empty.
    pub fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Gzip(stream) => gzip(stream, piece, FlushCompress::None, out),
            Self::Zstd(stream) => zstd_write(stream, piece, out),
            Self::Brotli(writer) => {
                writer.write_all(piece)?;
                out.append(writer.get_mut());
                Ok(())
            }
        }
    }

    /// Appends all output so far, so that a reader can decode every piece written before.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Gzip(stream) => gzip(stream, &[], FlushCompress::Sync, out),
            Self::Zstd(stream) => zstd_drain(out, |buffer| stream.flush(buffer)),
            Self::Brotli(writer) => {
                writer.flush()?;
                out.append(writer.get_mut());
                Ok(())
            }
        }
    }

    /// Appends the end of the stream.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Gzip(stream) => gzip(stream, &[], FlushCompress::Finish, out),
            Self::Zstd(stream) => zstd_drain(out, |buffer| stream.finish(buffer, true)),
            Self::Brotli(writer) => {
                // brotli writes the end only when the writer is consumed; a minimal one replaces it.
                let empty = brotli::CompressorWriter::new(Vec::new(), 1, 0, 10);
                out.append(&mut std::mem::replace(&mut **writer, empty).into_inner());
                Ok(())
            }
        }
    }
}

fn gzip(
    stream: &mut Compress,
    piece: &[u8],
    flush: FlushCompress,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut rest = piece;
    loop {
        out.reserve(STEP_BYTES);
        let before = stream.total_in();
        let status = stream
            .compress_vec(rest, out, flush)
            .map_err(io::Error::other)?;
        rest = &rest[usize::try_from(stream.total_in() - before).unwrap_or(rest.len())..];
        // Unused room means that there is no more output.
        let drained = rest.is_empty() && out.len() < out.capacity();
        match flush {
            FlushCompress::Finish if status == Status::StreamEnd => return Ok(()),
            FlushCompress::Finish => {}
            _ if drained => return Ok(()),
            _ => {}
        }
    }
}

fn zstd_write(stream: &mut ZstdStream<'static>, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut input = InBuffer::around(piece);
    while input.pos() < piece.len() {
        out.reserve(STEP_BYTES);
        let end = out.len();
        stream.run(&mut input, &mut OutBuffer::around_pos(out, end))?;
    }
    Ok(())
}

/// Calls `step`, which returns the number of bytes still buffered, until it is 0.
fn zstd_drain(
    out: &mut Vec<u8>,
    mut step: impl FnMut(&mut OutBuffer<'_, Vec<u8>>) -> io::Result<usize>,
) -> io::Result<()> {
    loop {
        out.reserve(STEP_BYTES);
        let end = out.len();
        if step(&mut OutBuffer::around_pos(out, end))? == 0 {
            return Ok(());
        }
    }
}

/// Pool of idle encoders. gzip and zstd streams are reset and reused, which saves the allocation of their
/// tables; brotli has no reset.
pub struct EncoderPool {
    idle: Vec<Encoder>,
    max_idle: usize,
}

impl EncoderPool {
    /// Creates a pool of at most `max_idle` encoders.
    pub fn new(max_idle: usize) -> Self {
        Self {
            idle: Vec::new(),
            max_idle,
        }
    }

    pub fn acquire(&mut self, coding: Coding) -> io::Result<Encoder> {
        match self
            .idle
            .iter()
            .position(|encoder| encoder.coding() == coding)
        {
            Some(index) => Ok(self.idle.swap_remove(index)),
            None => Encoder::new(coding),
        }
    }

    /// Returns an encoder to the pool, in any state; its history does not affect the next response.
    pub fn release(&mut self, mut encoder: Encoder) {
        if self.idle.len() >= self.max_idle {
            return;
        }
        let clean = match &mut encoder {
            Encoder::Gzip(stream) => {
                stream.reset();
                true
            }
            Encoder::Zstd(stream) => stream.reinit().is_ok(),
            Encoder::Brotli(_) => false,
        };
        if clean {
            self.idle.push(encoder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn decode(coding: Coding, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out)?,
            Coding::Zstd => zstd::stream::read::Decoder::new(bytes)?.read_to_end(&mut out)?,
            Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out)?,
            Coding::Deflate => unreachable!("not encoded"),
        };
        Ok(out)
    }

    /// Decodes as much as possible of an unfinished stream.
    fn decode_prefix(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut piece = [0; 4096];
        let mut reader: Box<dyn Read + '_> = match coding {
            Coding::Gzip => Box::new(flate2::read::GzDecoder::new(bytes)),
            Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
            Coding::Brotli => Box::new(brotli::Decompressor::new(bytes, 4096)),
            Coding::Deflate => unreachable!("not encoded"),
        };
        while let Ok(n) = reader.read(&mut piece)
            && n > 0
        {
            out.extend_from_slice(&piece[..n]);
        }
        out
    }

    /// Compressible text that is varied enough to fill windows.
    fn text(bytes: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut out = Vec::with_capacity(bytes + 16);
        while out.len() < bytes {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            write!(out, "word{} ", state >> 20).unwrap();
        }
        out.truncate(bytes);
        out
    }

    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let step = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        (0..bytes).map(step).collect()
    }

    #[test]
    fn encoded_bytes_decode_to_the_input() {
        for coding in Coding::ENCODED {
            for body in [
                Vec::new(),
                b"x".to_vec(),
                text(860),
                text(1_000_000),
                noise(300_000),
                vec![0; 500_000],
            ] {
                for piece_bytes in [1000, 65_536, 1_000_000] {
                    let mut encoder = Encoder::new(coding).unwrap();
                    let mut out = Vec::new();
                    for piece in body.chunks(piece_bytes) {
                        encoder.write(piece, &mut out).unwrap();
                    }
                    encoder.finish(&mut out).unwrap();
                    assert_eq!(
                        decode(coding, &out).unwrap(),
                        body,
                        "{coding:?} {piece_bytes}"
                    );
                    assert!(
                        body.len() < 1_000_000 || out.len() < body.len() / 2,
                        "{coding:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_flush_outputs_everything_written() {
        for coding in Coding::ENCODED {
            let mut encoder = Encoder::new(coding).unwrap();
            let (mut out, mut sent) = (Vec::new(), Vec::new());
            for size in [10, 1, 50_000, 0, 7, 4096, 8192] {
                let piece = text(size);
                encoder.write(&piece, &mut out).unwrap();
                encoder.flush(&mut out).unwrap();
                sent.extend_from_slice(&piece);
                assert_eq!(decode_prefix(coding, &out), sent, "{coding:?} after {size}");
            }
            encoder.finish(&mut out).unwrap();
            assert_eq!(decode(coding, &out).unwrap(), sent);
        }
    }

    #[test]
    fn a_truncated_stream_does_not_decode() {
        for coding in Coding::ENCODED {
            let mut encoder = Encoder::new(coding).unwrap();
            let mut out = Vec::new();
            encoder.write(&text(10_000), &mut out).unwrap();
            encoder.finish(&mut out).unwrap();
            assert!(decode(coding, &out[..out.len() - 1]).is_err(), "{coding:?}");
        }
    }

    #[test]
    fn a_pooled_encoder_has_no_history() {
        let mut pool = EncoderPool::new(2);
        for coding in Coding::ENCODED {
            let mut fresh = Vec::new();
            let mut encoder = Encoder::new(coding).unwrap();
            encoder.write(b"the same text", &mut fresh).unwrap();
            encoder.finish(&mut fresh).unwrap();
            // Released in the middle of a stream, as after a disconnect of the client.
            let mut encoder = pool.acquire(coding).unwrap();
            encoder.write(&text(5000), &mut Vec::new()).unwrap();
            pool.release(encoder);
            let mut again = Vec::new();
            let mut encoder = pool.acquire(coding).unwrap();
            encoder.write(b"the same text", &mut again).unwrap();
            encoder.finish(&mut again).unwrap();
            assert_eq!(again, fresh, "{coding:?}");
            pool.release(encoder);
        }
        for _ in 0..3 {
            pool.release(Encoder::new(Coding::Gzip).unwrap());
        }
        assert_eq!(pool.idle.len(), 2);
    }
}
