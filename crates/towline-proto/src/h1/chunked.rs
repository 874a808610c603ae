//! The chunked coding, received (RFC 9112 7.1): framing is parsed byte by byte, in linear time however the input
//! is cut, and as strictly as the grammar. In a response, whitespace may follow a size, and an extension may be any
//! text: it is ignored, and cannot change the size.
//!
//! ```text
//!  Size ─;─► Extension ─┐
//!   │ CR                │ CR
//!   ▼                   ▼
//!  SizeLf ──size 0──► Trailers (lines, parsed by the head parser) ──► end
//!   │ size n              ▲
//!   ▼                     │
//!  Data(n) ─► DataCr ─► DataLf ─► Size
//! ```

use crate::{ConnectionError, Limits, Side};

const SIZE: ConnectionError = ConnectionError::peer(400, "malformed chunk size (RFC 9112 7.1)");
const SIZE_END: ConnectionError =
    ConnectionError::peer(400, "chunk size not ended by CRLF (RFC 9112 7.1)");
const SIZE_OVER: ConnectionError =
    ConnectionError::peer(400, "chunk size over 2^63 - 1 (RFC 9112 7.1)");
const EXTENSION: ConnectionError =
    ConnectionError::peer(400, "malformed chunk extension (RFC 9112 7.1.1)");
const EXTENSIONS: ConnectionError =
    ConnectionError::limit(400, "too many bytes of chunk extensions");
const OVERHEAD: ConnectionError =
    ConnectionError::limit(400, "too much chunk framing for its data");
const DATA_END: ConnectionError =
    ConnectionError::peer(400, "chunk data not ended by CRLF (RFC 9112 7.1)");

/// Overhead from which the ratio is checked.
const FREE_OVERHEAD_BYTES: u64 = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size { digits: u8 },
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
}

/// Inside `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )` (RFC 9112 7.1.1). Whitespace is accepted
/// only there, never before the CRLF, where parsers disagree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extension {
    NameStart,
    Name,
    /// Whitespace after a name.
    NameEnd,
    ValueStart,
    Value,
    Quoted,
    Escaped,
    QuotedEnd,
    /// Whitespace after the size or a value: only another extension may follow.
    End,
}

/// Decoder state of a chunked body.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    state: State,
    /// Accepts what `lenient` allows: in responses only.
    is_lenient: bool,
    /// The size being parsed, then the remaining bytes of the chunk.
    left: u64,
    extension_bytes: u32,
    overhead_bytes: u64,
    data_bytes: u64,
}

/// Next part of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Remaining bytes of the chunk, of which some may not have arrived.
    Data(u64),
    /// The trailer section.
    Trailers,
    /// More bytes are needed first.
    Pending,
}

impl Decoder {
    pub fn new(side: Side) -> Self {
        Self {
            state: State::Size { digits: 0 },
            is_lenient: side == Side::Client,
            left: 0,
            extension_bytes: 0,
            overhead_bytes: 0,
            data_bytes: 0,
        }
    }

    /// Parses framing up to the next data; returns the number of bytes consumed from `input`.
    pub fn advance(
        &mut self,
        input: &[u8],
        limits: &Limits,
    ) -> Result<(usize, Next), ConnectionError> {
        let mut used = 0;
        loop {
            match self.state {
                State::Data => return Ok((used, Next::Data(self.left))),
                State::Trailers => return Ok((used, Next::Trailers)),
                _ => {}
            }
            let Some(&byte) = input.get(used) else {
                return Ok((used, Next::Pending));
            };
            self.state = self.step(byte, limits)?;
            used += 1;
            self.overhead_bytes += 1;
        }
    }

    /// Consumes `n` bytes of data.
    pub fn consume(&mut self, n: u64) {
        self.left -= n;
        self.data_bytes += n;
        if self.left == 0 {
            self.state = State::DataCr;
        }
    }

    pub fn in_trailers(&self) -> bool {
        self.state == State::Trailers
    }

    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    fn step(&mut self, byte: u8, limits: &Limits) -> Result<State, ConnectionError> {
        match self.state {
            State::Size { digits } => self.size(byte, digits),
            State::Extension(at) => self.extension(byte, at, limits),
            State::SizeLf if byte == b'\n' => self.end_size_line(limits),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataLf if byte == b'\n' => {
                self.left = 0;
                Ok(State::Size { digits: 0 })
            }
            State::SizeLf => Err(SIZE_END),
            State::DataCr | State::DataLf => Err(DATA_END),
            state @ (State::Data | State::Trailers) => Ok(state),
        }
    }

    fn size(&mut self, byte: u8, digits: u8) -> Result<State, ConnectionError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if digits > 0 => return Ok(State::SizeLf),
            b';' if digits > 0 => return Ok(State::Extension(Extension::NameStart)),
            b' ' | b'\t' if digits > 0 => return Ok(State::Extension(Extension::End)),
            b'\n' if digits > 0 => return Err(SIZE_END),
            _ => return Err(SIZE),
        };
        if digits == 16 || self.left > u64::MAX >> 5 {
            return Err(SIZE_OVER);
        }
        self.left = self.left << 4 | u64::from(digit);
        Ok(State::Size { digits: digits + 1 })
    }

    fn end_size_line(&mut self, limits: &Limits) -> Result<State, ConnectionError> {
        let allowed = self
            .data_bytes
            .saturating_mul(u64::from(limits.max_chunk_overhead_ratio));
        if self.overhead_bytes > FREE_OVERHEAD_BYTES && self.overhead_bytes > allowed {
            return Err(OVERHEAD);
        }
        Ok(if self.left == 0 {
            State::Trailers
        } else {
            State::Data
        })
    }

    fn extension(
        &mut self,
        byte: u8,
        at: Extension,
        limits: &Limits,
    ) -> Result<State, ConnectionError> {
        self.extension_bytes += 1;
        if self.extension_bytes > limits.max_chunk_extension_bytes {
            return Err(EXTENSIONS);
        }
        let token = crate::byte_class::is_token(byte);
        let text = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        if self.is_lenient {
            return match (at, byte) {
                (_, b'\r') => Ok(State::SizeLf),
                (_, b';') => Ok(State::Extension(Extension::Name)),
                (Extension::End, b' ' | b'\t') => Ok(State::Extension(at)),
                (Extension::End, _) => Err(EXTENSION),
                _ if text => Ok(State::Extension(at)),
                _ => Err(EXTENSION),
            };
        }
        Ok(State::Extension(match (at, byte) {
            (Extension::Name | Extension::Value | Extension::QuotedEnd, b'\r') => {
                return Ok(State::SizeLf);
            }
            (
                Extension::Name
                | Extension::NameEnd
                | Extension::Value
                | Extension::QuotedEnd
                | Extension::End,
                b';',
            ) => Extension::NameStart,
            (Extension::Name | Extension::NameEnd, b'=') => Extension::ValueStart,
            (Extension::Name | Extension::NameEnd, b' ' | b'\t') => Extension::NameEnd,
            (Extension::Value | Extension::QuotedEnd | Extension::End, b' ' | b'\t') => {
                Extension::End
            }
            (at @ (Extension::NameStart | Extension::ValueStart), b' ' | b'\t') => at,
            (Extension::NameStart | Extension::Name, _) if token => Extension::Name,
            (Extension::ValueStart, b'"') | (Extension::Escaped, _) if text => Extension::Quoted,
            (Extension::ValueStart | Extension::Value, _) if token => Extension::Value,
            (Extension::Quoted, b'"') => Extension::QuotedEnd,
            (Extension::Quoted, b'\\') => Extension::Escaped,
            (Extension::Quoted, _) if text => Extension::Quoted,
            _ => return Err(EXTENSION),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes as far as possible; true when the last chunk was seen.
    fn decode(input: &[u8], step: usize) -> Result<(Vec<u8>, bool), &'static str> {
        decode_by(Side::Server, input, step)
    }

    fn decode_by(side: Side, input: &[u8], step: usize) -> Result<(Vec<u8>, bool), &'static str> {
        let limits = Limits::server();
        let mut decoder = Decoder::new(side);
        let mut data = Vec::new();
        for piece in input.chunks(step) {
            let mut rest = piece;
            loop {
                let (used, next) = decoder.advance(rest, &limits).map_err(|error| error.rule)?;
                rest = &rest[used..];
                match next {
                    Next::Trailers => return Ok((data, true)),
                    Next::Pending => break,
                    Next::Data(_) if rest.is_empty() => break,
                    Next::Data(n) => {
                        let n = rest.len().min(n as usize);
                        data.extend_from_slice(&rest[..n]);
                        decoder.consume(n as u64);
                        rest = &rest[n..];
                    }
                }
            }
        }
        Ok((data, false))
    }

    #[test]
    fn good_bodies_decode_the_same_at_every_cut() {
        let good: &[(&[u8], &[u8])] = &[
            (b"0\r\n", b""),
            (b"5\r\nhello\r\n0\r\n", b"hello"),
            (b"000005\r\nhello\r\n00\r\n", b"hello"),
            (b"A\r\n0123456789\r\n1\r\nx\r\n0\r\n", b"0123456789x"),
            (b"5; some; parameters=stuff\r\nhello\r\n0\r\n", b"hello"),
            (b"5 \t;a = b\t; c = \"d\" ;e\r\nhello\r\n0 ;x\r\n", b"hello"),
            (b"5;a=b;c=\"d;\\\"\t e\";f\r\nhello\r\n0;x\r\n", b"hello"),
        ];
        for (wire, body) in good {
            for step in 1..=wire.len() {
                assert_eq!(
                    decode(wire, step),
                    Ok((body.to_vec(), true)),
                    "{}",
                    wire.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn bad_bodies_are_refused_at_every_cut() {
        let bad: &[(&[u8], &ConnectionError)] = &[
            (b"+5\r\nhello", &SIZE),
            (b"-0\r\n", &SIZE),
            (b"0x5\r\nhello", &SIZE),
            (b"0_5\r\nhello", &SIZE),
            (b" 5\r\nhello", &SIZE),
            (b"5 \r\nhello", &EXTENSION),
            (b"5;a \r\nhello", &EXTENSION),
            (b"5;a=b \r\nhello", &EXTENSION),
            (b"5;a= \r\nhello", &EXTENSION),
            (b" 5\r\nhello", &SIZE),
            (b"5\t\r\nhello", &EXTENSION),
            (b"\r\nhello", &SIZE),
            (b";a\r\nhello", &SIZE),
            (b"5\nhello", &SIZE_END),
            (b"5\r\rhello", &SIZE_END),
            (b"00000000000000005\r\n", &SIZE_OVER),
            (b"ffffffffffffffff\r\n", &SIZE_OVER),
            (b"8000000000000000\r\n", &SIZE_OVER),
            (b"10000000000000005\r\n", &SIZE_OVER),
            (b"5;\r\nhello", &EXTENSION),
            (b"5;a=\r\nhello", &EXTENSION),
            (b"5;a=\"b\r\nhello", &EXTENSION),
            (b"5;a=b\nhello", &EXTENSION),
            (b"5;a b\r\nhello", &EXTENSION),
            (b"5\r\nhelloXX", &DATA_END),
            (b"5\r\nhello\n0", &DATA_END),
            (b"5\r\nhello\r0", &DATA_END),
        ];
        for (wire, error) in bad {
            for step in 1..=wire.len() {
                assert_eq!(
                    decode(wire, step),
                    Err(error.rule),
                    "{}",
                    wire.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn whitespace_after_a_size_and_any_extension_are_good_in_a_response() {
        for wire in [
            &b"5 \r\nhello\r\n0\r\n"[..],
            b"5 \t  \r\nhello\r\n0 \r\n",
            b"5;a=b \r\nhello\r\n0\r\n",
            b"5;\r\nhello\r\n0;\r\n",
            b"5 ; a b \"c\r\nhello\r\n0\r\n",
        ] {
            for step in 1..=wire.len() {
                let expected = Ok((b"hello".to_vec(), true));
                assert_eq!(
                    decode_by(Side::Client, wire, step),
                    expected,
                    "{}",
                    wire.escape_ascii()
                );
            }
        }
        // Bytes that could change the size, or the end of the size's line, stay an error.
        for (wire, error) in [
            (&b"5 5\r\nhello"[..], &EXTENSION),
            (b" 5\r\nhello", &SIZE),
            (b"+5\r\nhello", &SIZE),
            (b"5\nhello", &SIZE_END),
            (b"5 \nhello", &EXTENSION),
            (b"5;a\nhello", &EXTENSION),
            (b"5;a\r\rhello", &SIZE_END),
            (b"5;\0\r\nhello", &EXTENSION),
            (b"5\r\nhello\n0", &DATA_END),
        ] {
            for step in 1..=wire.len() {
                let result = decode_by(Side::Client, wire, step);
                assert_eq!(result, Err(error.rule), "{}", wire.escape_ascii());
            }
        }
    }

    #[test]
    fn floods_are_bounded_and_small_chunks_are_legal() {
        let endless = [b"5;".to_vec(), vec![b'a'; 20_000]].concat();
        assert_eq!(decode(&endless, 1000), Err(EXTENSIONS.rule));
        let tiny = b"1\r\nx\r\n".repeat(100_000);
        assert!(decode(&tiny, 1000).is_ok());
        let padded = b"0000000000000001\r\nx\r\n".repeat(10_000);
        assert_eq!(decode(&padded, 1000), Err(OVERHEAD.rule));
    }
}
