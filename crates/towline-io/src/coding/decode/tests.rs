use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::coding::Coding;
use crate::coding::encode::Encoder;

/// Encodes with one coding, named as in Content-Encoding; `raw` is deflate without its zlib header.
fn encode(name: &str, body: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::fast();
    let mut out = Vec::new();
    match name {
        "deflate" => {
            let mut stream = flate2::write::ZlibEncoder::new(&mut out, level);
            stream.write_all(body).unwrap();
            stream.finish().unwrap();
        }
        "raw" => {
            let mut stream = flate2::write::DeflateEncoder::new(&mut out, level);
            stream.write_all(body).unwrap();
            stream.finish().unwrap();
        }
        _ => {
            let mut encoder = Encoder::new(Coding::named(name.as_bytes()).unwrap()).unwrap();
            encoder.write(body, &mut out).unwrap();
            encoder.finish(&mut out).unwrap();
        }
    }
    out
}

fn encode_chain(names: &[&str], body: &[u8]) -> Vec<u8> {
    names
        .iter()
        .fold(body.to_vec(), |body, name| encode(name, &body))
}

fn field(names: &[&str]) -> String {
    names.join(", ").replace("raw", "deflate")
}

fn decoder(names: &[&str], max_size: Option<u64>) -> Decoder {
    Decoder::new(field(names).as_bytes(), max_size)
        .unwrap()
        .unwrap()
}

/// Decodes input that arrives in pieces of the sizes `cuts`, reading `room` bytes at a time.
fn decode_cut(
    mut decoder: Decoder,
    wire: &[u8],
    cuts: &[usize],
    room: usize,
) -> (Vec<u8>, Result<(), DecodeError>) {
    let (mut out, mut buffer) = (Vec::new(), vec![0; room]);
    let mut cuts = cuts.iter().copied().cycle();
    let mut rest = wire;
    while !rest.is_empty() {
        let (mut piece, later) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
        rest = later;
        loop {
            match decoder.decode(piece, &mut buffer) {
                Ok(step) => {
                    out.extend_from_slice(&buffer[..step.produced]);
                    piece = &piece[step.consumed..];
                    if step.produced < room && piece.is_empty() {
                        break;
                    }
                }
                Err(error) => return (out, Err(error)),
            }
        }
    }
    (out, decoder.finish())
}

fn text(bytes: usize) -> Vec<u8> {
    (0..)
        .flat_map(|n: u32| format!("{} ", n.wrapping_mul(2_654_435_761)).into_bytes())
        .take(bytes)
        .collect()
}

const SINGLE: [&str; 5] = ["gzip", "deflate", "raw", "br", "zstd"];

#[test]
fn every_cut_gives_the_same_bytes() {
    let body = text(300);
    for name in SINGLE {
        let wire = encode(name, &body);
        for cut in 0..=wire.len() {
            for room in [1, 7, 4096] {
                let sizes = [cut.max(1), wire.len() + 1];
                let (out, end) = decode_cut(decoder(&[name], None), &wire, &sizes, room);
                assert_eq!(
                    (out.as_slice(), end),
                    (body.as_slice(), Ok(())),
                    "{name} cut at {cut}"
                );
            }
        }
    }
}

#[test]
fn a_truncated_body_is_an_error_and_never_other_bytes() {
    let body = text(3000);
    for name in SINGLE {
        let wire = encode(name, &body);
        for end in 1..wire.len() {
            let (out, result) = decode_cut(decoder(&[name], None), &wire[..end], &[end], 512);
            assert!(
                matches!(result, Err(DecodeError::Truncated { .. })),
                "{name} {end}: {result:?}"
            );
            assert!(body.starts_with(&out), "{name} {end}");
        }
    }
}

#[test]
fn an_empty_body_is_complete() {
    for name in SINGLE {
        assert_eq!(
            decode_cut(decoder(&[name], None), b"", &[1], 10),
            (Vec::new(), Ok(()))
        );
    }
}

#[test]
fn chains_are_decoded_from_the_last() {
    let body = text(100_000);
    for names in [
        &["gzip", "br"][..],
        &["zstd", "gzip", "deflate"],
        &["gzip", "gzip", "br", "zstd", "raw"],
    ] {
        let wire = encode_chain(names, &body);
        for (cut, room) in [(1, 4096), (1000, 1), (wire.len(), 100_000)] {
            let (out, end) = decode_cut(decoder(names, None), &wire, &[cut], room);
            assert_eq!(end, Ok(()), "{names:?}");
            assert!(out == body, "{names:?}");
        }
        let (_, end) = decode_cut(decoder(names, None), &wire[..wire.len() - 1], &[100], 512);
        assert!(
            matches!(end, Err(DecodeError::Truncated { .. })),
            "{names:?}: {end:?}"
        );
    }
}

#[test]
fn names_are_case_insensitive_and_unknown_ones_are_ignored() {
    for nothing in [
        &b""[..],
        b"identity",
        b" , ,",
        b"utf-8",
        b"aws-chunked, identity",
    ] {
        assert!(
            Decoder::new(nothing, None).unwrap().is_none(),
            "{nothing:?}"
        );
    }
    let wire = encode("gzip", b"hello");
    for gzip in ["GZip", "x-gzip", "identity, gzip", "gzip, utf-8", " gzip ,"] {
        let decoder = Decoder::new(gzip.as_bytes(), None).unwrap().unwrap();
        assert_eq!(
            decode_cut(decoder, &wire, &[3], 100),
            (b"hello".to_vec(), Ok(())),
            "{gzip}"
        );
    }
    assert!(Decoder::new(b"gzip,gzip,gzip,gzip,gzip", None).is_ok());
    let six = Decoder::new(b"gzip,gzip,gzip,gzip,gzip,br", None);
    assert_eq!(six.err(), Some(DecodeError::TooManyCodings));
}

#[test]
fn several_members_are_one_body_and_garbage_is_dropped() {
    let skippable = b"\x53\x2a\x4d\x18\x03\x00\x00\x00abc".to_vec();
    for (name, padding) in [("gzip", Vec::new()), ("zstd", skippable)] {
        let mut wire = encode(name, b"one ");
        wire.extend_from_slice(&padding);
        wire.extend_from_slice(&encode(name, b"two"));
        for garbage in [&b""[..], b"\0\0\0\0", b"trailing", &wire[..1]] {
            let mut wire = wire.clone();
            wire.extend_from_slice(garbage);
            for cut in 1..=wire.len() {
                let given = decode_cut(decoder(&[name], None), &wire, &[cut], 64);
                assert_eq!(
                    given,
                    (b"one two".to_vec(), Ok(())),
                    "{name} {garbage:?} {cut}"
                );
            }
        }
        // Bytes that start like a member must be one.
        let (_, end) = decode_cut(decoder(&[name], None), &wire[..wire.len() - 1], &[5], 64);
        assert_eq!(end, Err(DecodeError::Truncated { coding: name }));
    }
    for name in ["deflate", "raw", "br"] {
        let mut wire = encode(name, b"body");
        wire.extend_from_slice(b"trailing");
        assert_eq!(
            decode_cut(decoder(&[name], None), &wire, &[1], 64),
            (b"body".to_vec(), Ok(()))
        );
    }
}

#[test]
fn corruption_is_reported_after_the_bytes_before_it_and_stays() {
    let mut wire = encode("gzip", &text(5000));
    let crc = wire.len() - 8;
    wire[crc] ^= 1;
    let mut decoder = decoder(&["gzip"], None);
    let mut out = vec![0; 10_000];
    let step = decoder.decode(&wire, &mut out).unwrap();
    assert!(out[..step.produced] == text(5000));
    for _ in 0..2 {
        let error = decoder.decode(b"", &mut out).unwrap_err();
        assert!(
            matches!(error, DecodeError::Corrupt { coding: "gzip", .. }),
            "{error}"
        );
    }
    for name in SINGLE {
        let decoder = self::decoder(&[name], None);
        let (out, end) = decode_cut(decoder, b"\xff\xff<html>plain text</html>", &[4], 64);
        assert!(out.is_empty(), "{name}");
        assert!(
            matches!(end, Err(DecodeError::Corrupt { .. })),
            "{name}: {end:?}"
        );
    }
}

#[test]
fn the_bound_is_exact() {
    let body = text(10_000);
    for name in SINGLE {
        let wire = encode(name, &body);
        for room in [1, 999, 20_000] {
            let whole = decode_cut(decoder(&[name], Some(10_000)), &wire, &[50], room);
            assert!(
                whole.0 == body && whole.1 == Ok(()),
                "{name} {room}: {:?}",
                whole.1
            );
            let (out, end) = decode_cut(decoder(&[name], Some(9_999)), &wire, &[50], room);
            assert!(out == body[..9_999], "{name}");
            assert_eq!(
                end,
                Err(DecodeError::TooLarge { max_size: 9_999 }),
                "{name} {room}"
            );
        }
    }
}

#[test]
fn a_bomb_costs_only_what_is_read() {
    let wire = encode("gzip", &vec![0; 16 << 20]);
    let mut decoder = decoder(&["gzip"], None);
    let mut out = [0; 1000];
    let step = decoder.decode(&wire, &mut out).unwrap();
    assert_eq!(step.produced, 1000);
    assert!(
        step.consumed < wire.len() / 100,
        "took {} of {}",
        step.consumed,
        wire.len()
    );
}

#[test]
fn a_chain_cannot_work_without_output() {
    // Empty members produce no output, and they compress a thousandfold.
    let silent = encode("gzip", b"").repeat(1 << 20);
    let wire = encode("gzip", &silent);
    let (out, end) = decode_cut(decoder(&["gzip", "gzip"], None), &wire, &[wire.len()], 64);
    assert_eq!((out.len(), end), (0, Err(DecodeError::Work)));
    // A body that is compressed twice and inflates as much is accepted.
    let body = vec![b'x'; 8 << 20];
    let wire = encode_chain(&["gzip", "gzip"], &body);
    let (out, end) = decode_cut(
        decoder(&["gzip", "gzip"], None),
        &wire,
        &[wire.len()],
        65_536,
    );
    assert!(out == body && end == Ok(()), "{end:?}");
}

#[test]
fn a_window_over_the_bound_is_refused() {
    use zstd::stream::raw::CParameter;
    let mut out = Vec::new();
    let mut stream = zstd::stream::write::Encoder::new(&mut out, 1).unwrap();
    stream.set_parameter(CParameter::WindowLog(24)).unwrap();
    stream.write_all(&text(100)).unwrap();
    stream.finish().unwrap();
    let (_, end) = decode_cut(decoder(&["zstd"], None), &out, &[9], 64);
    assert!(
        matches!(end, Err(DecodeError::Corrupt { coding: "zstd", .. })),
        "{end:?}"
    );
}

#[test]
fn calls_without_progress_are_harmless() {
    let body = text(5000);
    for name in SINGLE {
        let wire = encode(name, &body);
        let mut decoder = decoder(&[name], None);
        let mut out = Vec::new();
        for byte in &wire {
            decoder.decode_to_end(&[*byte], &mut out).unwrap();
            for _ in 0..40 {
                assert_eq!(
                    decoder.decode(b"", &mut [0; 16]),
                    Ok(Step::default()),
                    "{name}"
                );
            }
        }
        decoder.finish().unwrap();
        assert!(out == body, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_cuts_give_the_body(
        names in prop::collection::vec(prop::sample::select(&SINGLE[..]), 1..=MAX_CODINGS),
        body in prop::collection::vec(0_u8..4, 0..5000),
        cuts in prop::collection::vec(1_usize..700, 1..6),
        room in 1_usize..3000,
    ) {
        let wire = encode_chain(&names, &body);
        let (out, end) = decode_cut(decoder(&names, None), &wire, &cuts, room);
        prop_assert_eq!(end, Ok(()));
        prop_assert!(out == body);
    }

    /// Any input: no panic, and the same bytes and result however it is split.
    #[test]
    fn noise_is_judged_alike_in_any_cuts(
        name in prop::sample::select(&SINGLE[..]),
        body in prop::collection::vec(0_u8..4, 0..500),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cuts in prop::collection::vec(1_usize..50, 1..6),
    ) {
        let mut wire = encode(name, &body);
        for (index, byte) in flips {
            *index.get_mut(&mut wire) = byte;
        }
        let whole = decode_cut(decoder(&[name], None), &wire, &[wire.len()], 100_000);
        let cut = decode_cut(decoder(&[name], None), &wire, &cuts, 64);
        // The brotli crate reads faster where much input is at hand, and then misses some malformed streams.
        if name != "br" {
            prop_assert_eq!(whole.1.is_ok(), cut.1.is_ok());
        }
        if whole.1.is_ok() && cut.1.is_ok() {
            prop_assert!(whole.0 == cut.0);
        }
    }
}
