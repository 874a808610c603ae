//! Decoder of one coding: its members one after another, and the bytes that may follow them.
//!
//! ```text
//!            recognised              end of a member
//!  Prelude ───────────► Running ──────────────────────► Prelude (gzip, zstd: is there another?)
//!     │                    │    └─────────────────────► Done    (deflate, br)
//!     │ no member          └── violation ──► Failed
//!     └──────────────────────────────────────────────► Done    (the rest is dropped)
//! ```

use brotli::enc::StandardAlloc;
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState};
use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder as ZstdStream, InBuffer, Operation, OutBuffer};

use super::step::{DecodeError, Step};
use crate::coding::Coding;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// RFC 8878 3.1.1; little-endian on the wire.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Size of the longest magic number; a zlib header has two bytes.
const MAX_BUFFERED_BYTES: usize = 4;

const GZIP_WINDOW_BITS: u8 = 15;
/// RFC 9659: a decoder of the content coding need not support windows over 8 MiB.
const ZSTD_WINDOW_BITS: u32 = 23;

pub(super) struct CodingDecoder {
    coding: Coding,
    state: State,
    buffered: Buffered,
    /// The last run filled the output, so the stream may have more without further input.
    filled: bool,
}

enum State {
    /// Before a member: bytes are buffered until it is clear whether they start one.
    Prelude {
        first: bool,
    },
    Running(Stream),
    Done,
    Failed(String),
}

enum Stream {
    /// gzip, zlib or raw deflate.
    Inflate(Box<Decompress>),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    Zstd(Box<ZstdStream<'static>>),
}

/// First bytes of a possible member, consumed before it could be recognised.
#[derive(Default)]
struct Buffered {
    bytes: [u8; MAX_BUFFERED_BYTES],
    start: usize,
    end: usize,
}

impl Buffered {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

/// Progress of a stream in one run.
struct StreamProgress {
    consumed: usize,
    produced: usize,
    end: Option<End>,
}

enum End {
    Complete,
    /// The bytes produced before the violation are valid.
    Violation(String),
}

impl StreamProgress {
    fn violation(why: impl Into<String>) -> Self {
        Self {
            consumed: 0,
            produced: 0,
            end: Some(End::Violation(why.into())),
        }
    }
}

/// Classification of the buffered bytes.
enum Prelude {
    /// More of them are needed.
    Undecided,
    Member,
    NoMember,
}

impl CodingDecoder {
    pub fn new(coding: Coding) -> Self {
        Self {
            coding,
            state: State::Prelude { first: true },
            buffered: Buffered::default(),
            filled: false,
        }
    }

    /// See [`super::Decoder::decode`].
    pub fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<Step, DecodeError> {
        let mut step = Step::default();
        while step.produced < out.len() {
            match &mut self.state {
                State::Prelude { first } => {
                    let first = *first;
                    match self.read_prelude(first, input, &mut step.consumed) {
                        Prelude::Undecided => break,
                        Prelude::Member => {
                            self.state = Stream::new(self.coding, self.buffered.rest())
                                .map_or_else(State::Failed, State::Running);
                        }
                        Prelude::NoMember => self.state = State::Done,
                    }
                }
                State::Running(_) => {
                    if !self.run(input, out, &mut step) {
                        break;
                    }
                }
                State::Done => {
                    step.consumed = input.len();
                    break;
                }
                State::Failed(why) if step.produced == 0 => {
                    return Err(DecodeError::Corrupt {
                        coding: self.coding.name(),
                        why: why.clone(),
                    });
                }
                State::Failed(_) => break,
            }
        }
        Ok(step)
    }

    /// Checks that the body may end here: after a member, or before the first byte.
    pub fn finish(&self) -> Result<(), DecodeError> {
        let coding = self.coding.name();
        match &self.state {
            State::Prelude { first: false } | State::Done => Ok(()),
            State::Prelude { first: true } if self.buffered.rest().is_empty() => Ok(()),
            State::Failed(why) => Err(DecodeError::Corrupt {
                coding,
                why: why.clone(),
            }),
            State::Prelude { .. } | State::Running(_) => Err(DecodeError::Truncated { coding }),
        }
    }

    /// Buffers bytes of the input until it is clear whether they start a member.
    fn read_prelude(&mut self, first: bool, input: &[u8], consumed: &mut usize) -> Prelude {
        let buffered = &mut self.buffered;
        loop {
            let prelude = prelude(self.coding, first, buffered.rest());
            if !matches!(prelude, Prelude::Undecided) {
                return prelude;
            }
            let Some(&byte) = input.get(*consumed) else {
                return Prelude::Undecided;
            };
            buffered.bytes[buffered.end] = byte;
            buffered.end += 1;
            *consumed += 1;
        }
    }

    /// Runs the stream once and returns whether there was progress.
    fn run(&mut self, input: &[u8], out: &mut [u8], step: &mut Step) -> bool {
        let State::Running(stream) = &mut self.state else {
            return false;
        };
        let from_buffered = self.buffered.start < self.buffered.end;
        let source = if from_buffered {
            self.buffered.rest()
        } else {
            &input[step.consumed..]
        };
        // zstd counts calls without progress, and the sixteenth in a row is an error.
        if source.is_empty() && !self.filled {
            return false;
        }
        let room = &mut out[step.produced..];
        let run = stream.run(source, room);
        self.filled = run.produced == room.len();
        step.produced += run.produced;
        if from_buffered {
            self.buffered.start += run.consumed;
        } else {
            step.consumed += run.consumed;
        }
        match run.end {
            None => return run.produced > 0 || run.consumed > 0,
            Some(End::Violation(why)) => self.state = State::Failed(why),
            Some(End::Complete) => {
                self.buffered = Buffered::default();
                self.state = match self.coding {
                    Coding::Gzip | Coding::Zstd => State::Prelude { first: false },
                    Coding::Deflate | Coding::Brotli => State::Done,
                };
            }
        }
        true
    }
}

/// The first member is always passed to the codec, which then reports what is wrong with it.
fn prelude(coding: Coding, first: bool, buffered: &[u8]) -> Prelude {
    match coding {
        // At least one byte: an empty body has no member.
        _ if buffered.is_empty() => Prelude::Undecided,
        Coding::Deflate if buffered.len() < 2 => Prelude::Undecided,
        _ if first => Prelude::Member,
        Coding::Gzip => continues(buffered, GZIP_MAGIC),
        // Skippable frames (RFC 8878 3.1.2) begin with 50 to 5f 2a 4d 18.
        Coding::Zstd if buffered[0] & 0xf0 == 0x50 => {
            continues(buffered, &[buffered[0], 0x2a, 0x4d, 0x18])
        }
        Coding::Zstd => continues(buffered, ZSTD_MAGIC),
        Coding::Deflate | Coding::Brotli => Prelude::NoMember,
    }
}

fn continues(buffered: &[u8], magic: &[u8]) -> Prelude {
    if buffered == magic {
        Prelude::Member
    } else if magic.starts_with(buffered) {
        Prelude::Undecided
    } else {
        Prelude::NoMember
    }
}

/// RFC 1950 2.2: method 8, and the two bytes are a multiple of 31.
fn is_zlib(buffered: &[u8]) -> bool {
    matches!(buffered, [cmf, flg, ..]
        if cmf & 0x0f == 8 && (u16::from(*cmf) << 8 | u16::from(*flg)).is_multiple_of(31))
}

impl Stream {
    fn new(coding: Coding, buffered: &[u8]) -> Result<Self, String> {
        Ok(match coding {
            Coding::Gzip => Self::Inflate(Box::new(Decompress::new_gzip(GZIP_WINDOW_BITS))),
            Coding::Deflate => Self::Inflate(Box::new(Decompress::new(is_zlib(buffered)))),
            Coding::Brotli => {
                let alloc = StandardAlloc::default;
                // Strict: without the "large window" variant, which no RFC describes.
                Self::Brotli(Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())))
            }
            Coding::Zstd => {
                let mut stream = ZstdStream::new().map_err(|error| error.to_string())?;
                stream
                    .set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_BITS))
                    .map_err(|error| error.to_string())?;
                Self::Zstd(Box::new(stream))
            }
        })
    }

    fn run(&mut self, input: &[u8], out: &mut [u8]) -> StreamProgress {
        match self {
            Self::Inflate(stream) => decode_deflate(stream, input, out),
            Self::Brotli(state) => decode_brotli(state, input, out),
            Self::Zstd(stream) => decode_zstd(stream, input, out),
        }
    }
}

fn decode_deflate(stream: &mut Decompress, input: &[u8], out: &mut [u8]) -> StreamProgress {
    let (taken, given) = (stream.total_in(), stream.total_out());
    let end = match stream.decompress(input, out, FlushDecompress::None) {
        Ok(Status::StreamEnd) => Some(End::Complete),
        Ok(_) => None,
        Err(error) => {
            let why = error.message().unwrap_or("malformed");
            Some(End::Violation(why.to_owned()))
        }
    };
    StreamProgress {
        consumed: (stream.total_in() - taken) as usize,
        produced: (stream.total_out() - given) as usize,
        end,
    }
}

fn decode_brotli(
    state: &mut BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    input: &[u8],
    out: &mut [u8],
) -> StreamProgress {
    let (mut left, mut consumed) = (input.len(), 0);
    let (mut room, mut produced) = (out.len(), 0);
    let result = BrotliDecompressStream(
        &mut left,
        &mut consumed,
        input,
        &mut room,
        &mut produced,
        out,
        &mut 0,
        state,
    );
    StreamProgress {
        consumed,
        produced,
        end: match result {
            BrotliResult::ResultSuccess => Some(End::Complete),
            BrotliResult::ResultFailure => Some(End::Violation("malformed".to_owned())),
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => None,
        },
    }
}

fn decode_zstd(stream: &mut ZstdStream<'static>, input: &[u8], out: &mut [u8]) -> StreamProgress {
    let mut from = InBuffer::around(input);
    let mut into = OutBuffer::around(out);
    match stream.run(&mut from, &mut into) {
        Ok(hint) => StreamProgress {
            consumed: from.pos(),
            produced: into.pos(),
            // The frame is complete and all of it has been output.
            end: (hint == 0).then_some(End::Complete),
        },
        Err(error) => StreamProgress::violation(error.to_string()),
    }
}
