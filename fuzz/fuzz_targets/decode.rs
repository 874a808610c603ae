//! A coded body: no panic, the same result and bytes in one piece and in many, never more than the bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_io::coding::decode::{DecodeError, Decoder};

const CODINGS: [&[u8]; 8] = [
    b"gzip",
    b"deflate",
    b"br",
    b"zstd",
    b"gzip, gzip",
    b"br, gzip",
    b"zstd, deflate",
    b"gzip, zstd, br",
];
const MAX_SIZE: u64 = 1 << 20;

fn decode(
    codings: &[u8],
    wire: &[u8],
    piece: usize,
    room: usize,
) -> (Vec<u8>, Result<(), DecodeError>) {
    let mut decoder = Decoder::new(codings, Some(MAX_SIZE))
        .expect("few codings")
        .expect("known codings");
    let (mut out, mut buffer) = (Vec::new(), vec![0; room]);
    for mut rest in wire.chunks(piece) {
        loop {
            let step = match decoder.decode(rest, &mut buffer) {
                Ok(step) => step,
                Err(error) => return (out, Err(error)),
            };
            out.extend_from_slice(&buffer[..step.produced]);
            assert!(out.len() as u64 <= MAX_SIZE);
            rest = &rest[step.consumed..];
            if step.produced < room && rest.is_empty() {
                break;
            }
        }
    }
    (out, decoder.finish())
}

// The first byte chooses the codings and the cuts.
fuzz_target!(|data: &[u8]| {
    let [choice, wire @ ..] = data else { return };
    let codings = CODINGS[usize::from(choice & 7)];
    let (whole, end) = decode(codings, wire, usize::MAX, 1 << 16);
    let (cut, cut_end) = decode(codings, wire, usize::from(choice >> 3) + 1, 777);
    // The brotli crate has a faster path for large inputs, which misses some malformed streams.
    if !codings.ends_with(b"br") && !codings.starts_with(b"br") {
        assert_eq!(end.is_ok(), cut_end.is_ok());
    }
    if end.is_ok() && cut_end.is_ok() {
        assert!(whole == cut);
    }
});
