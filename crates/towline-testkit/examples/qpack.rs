//! Our QPACK codec as a process, for comparison with another one (`tests/http3/test_qpack.py`).
//!
//! A command on the standard input is a letter, a stream (8 bytes), a length (4 bytes) and so many bytes; the answer is a
//! letter, a length and so many bytes. Numbers are big-endian; fields are names and values with lengths of 4 bytes.
//!
//! | command | bytes | answer |
//! |---|---|---|
//! | `T` | the table, 8 bytes, and the blocked streams (the head's stream) that the peer allows | `+` |
//! | `E` | fields | `+` and the section |
//! | `I` | | `+` and the bytes of our encoder stream |
//! | `A` | bytes of the peer's decoder stream | `+`, or `-` and the rule |
//! | `R` | bytes of the peer's encoder stream | the same |
//! | `D` | a section | `+` and its fields, `?` if it is blocked, or `-` and the rule |
//! | `K` | | `+` and the bytes of our decoder stream |

use std::io::{self, Read, Write};

use towline_proto::Field;
use towline_proto::bench::QpackScratch;

const TABLE_BYTES: u32 = 4096;

fn main() -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut codec = QpackScratch::new(TABLE_BYTES, 1 << 20, 1 << 10);
    let mut head = [0; 13];
    while input.read_exact(&mut head).is_ok() {
        let stream = number(&head[1..9]);
        let mut bytes = vec![0; number(&head[9..]) as usize];
        input.read_exact(&mut bytes)?;
        let (letter, answer) = answer(&mut codec, head[0], stream, &bytes);
        output.write_all(&[letter])?;
        output.write_all(&(answer.len() as u32).to_be_bytes())?;
        output.write_all(&answer)?;
        output.flush()?;
    }
    Ok(())
}

fn answer(codec: &mut QpackScratch, command: u8, stream: u64, bytes: &[u8]) -> (u8, Vec<u8>) {
    let done = |result: Result<(), towline_proto::bench::QpackError>| match result {
        Ok(()) => (b'+', Vec::new()),
        Err(error) => (b'-', error.rule().as_bytes().to_vec()),
    };
    match command {
        b'T' => {
            codec.set_encoder_limits(number(bytes), stream);
            (b'+', Vec::new())
        }
        b'E' => {
            let pairs = pairs(bytes);
            let fields: Vec<_> = pairs
                .iter()
                .map(|(name, value)| Field { name, value })
                .collect();
            (b'+', codec.encode(stream, &fields).to_vec())
        }
        b'I' => (b'+', codec.take_instructions()),
        b'A' => done(codec.receive_acknowledgements(bytes)),
        b'R' => done(codec.receive_instructions(bytes)),
        b'K' => (b'+', codec.take_acknowledgements()),
        b'D' => match codec.decode(stream, bytes) {
            Ok(None) => (b'?', Vec::new()),
            Ok(Some((fields, _))) => {
                let mut out = Vec::new();
                for field in fields {
                    for text in [field.name, field.value] {
                        out.extend_from_slice(&(text.len() as u32).to_be_bytes());
                        out.extend_from_slice(text);
                    }
                }
                (b'+', out)
            }
            Err(error) => (b'-', error.rule().as_bytes().to_vec()),
        },
        _ => (b'-', b"no command".to_vec()),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn pairs(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rest = bytes;
    let mut text = || {
        let (len, behind) = rest.split_at_checked(4)?;
        let (text, behind) = behind.split_at_checked(number(len) as usize)?;
        rest = behind;
        Some(text.to_vec())
    };
    std::iter::from_fn(|| Some((text()?, text()?))).collect()
}
