//! HPACK compared with an independent implementation, over random fields, tables and blocks.

use httlib_hpack::{Decoder as TheirDecoder, Encoder as TheirEncoder};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use towline_proto::Field;
use towline_proto::bench::{HpackError, HpackScratch};

type Pair = (Vec<u8>, Vec<u8>);

const WIDE: u32 = 1 << 24;

/// Names and values that are repeated, so that tables are used, and some that are not.
fn pair() -> impl Strategy<Value = Pair> {
    let common: Vec<(&str, &str)> = vec![
        (":method", "GET"),
        (":path", "/"),
        (":path", "/a/path?with=a&query"),
        (":status", "200"),
        (":status", "418"),
        (":authority", "www.example.org"),
        ("accept-encoding", "gzip, deflate"),
        ("accept-encoding", "br"),
        ("authorization", "Bearer 0123456789"),
        ("cookie", "a=b"),
        ("cookie", "session=8f14e45fceea167a5a36dedd4bea2543"),
        ("set-cookie", "a=b; Path=/"),
        ("content-length", "42"),
        ("content-type", "text/html; charset=utf-8"),
        ("date", "Sat, 01 Aug 2026 10:00:00 GMT"),
        ("x-request-id", "1"),
        ("x-empty", ""),
    ];
    let common = select(common).prop_map(|(name, value)| (name.into(), value.into()));
    let name = "[a-z0-9-]{1,12}".prop_map(String::into_bytes);
    let few = select(vec!["x-a", "x-b", "server", "etag"]).prop_map(Vec::from);
    prop_oneof![
        4 => common,
        2 => (few, "[a-c]{0,2}".prop_map(String::into_bytes)),
        1 => (name.clone(), vec(any::<u8>(), 0..40)),
        1 => (name, vec(b' '..=b'~', 0..3000)),
    ]
}

/// Blocks, each with the table size set before it.
fn blocks() -> impl Strategy<Value = Vec<(Vec<Pair>, Option<u32>)>> {
    let size = prop_oneof![Just(0), 30_u32..100, 100_u32..4096, Just(4096)];
    vec(
        (vec(pair(), 0..12), prop::option::weighted(0.2, size)),
        1..12,
    )
}

fn fields(pairs: &[Pair]) -> Vec<Field<'_>> {
    pairs
        .iter()
        .map(|(name, value)| Field { name, value })
        .collect()
}

fn ours(scratch: &mut HpackScratch, block: &[u8]) -> Result<Vec<Pair>, HpackError> {
    let (fields, _) = scratch.decode(block)?;
    Ok(fields
        .map(|field| (field.name.to_vec(), field.value.to_vec()))
        .collect())
}

fn theirs(decoder: &mut TheirDecoder<'_>, block: &[u8]) -> Vec<Pair> {
    let mut fields = Vec::new();
    decoder
        .decode(&mut block.to_vec(), &mut fields)
        .expect("a good block");
    fields
        .into_iter()
        .map(|(name, value, _)| (name, value))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn our_blocks_are_decoded_by_both(blocks in blocks()) {
        let mut encoder = HpackScratch::new(WIDE, WIDE);
        let mut decoder = HpackScratch::new(WIDE, WIDE);
        let mut their_decoder = TheirDecoder::default();
        for (pairs, size) in blocks {
            if let Some(size) = size {
                encoder.set_encoder_table_bytes(size);
            }
            let block = encoder.encode(&fields(&pairs));
            prop_assert_eq!(&ours(&mut decoder, block).expect("a good block"), &pairs);
            prop_assert_eq!(&theirs(&mut their_decoder, block), &pairs);
        }
    }

    #[test]
    fn their_blocks_are_decoded_by_us(blocks in blocks(), flags in vec(any::<u8>(), 12)) {
        let mut encoder = TheirEncoder::default();
        let mut decoder = HpackScratch::new(WIDE, WIDE);
        for (pairs, size) in blocks {
            let mut block = Vec::new();
            if let Some(size) = size {
                encoder.update_max_dynamic_size(size, &mut block).expect("a size");
            }
            for ((name, value), flags) in pairs.iter().zip(&flags) {
                let field = (name.clone(), value.clone(), flags & 0x1f);
                encoder.encode(field, &mut block).expect("a field");
            }
            prop_assert_eq!(ours(&mut decoder, &block).expect("a good block"), pairs);
        }
    }

    /// A decoder with narrow bounds returns a prefix of the fields of one with wide bounds, within its
    /// bounds, and both tables stay the same.
    #[test]
    fn bounds_do_not_change_the_table(blocks in blocks(), max_bytes in 0_u32..600, max_fields in 0_u32..12) {
        let mut encoder = HpackScratch::new(WIDE, WIDE);
        let mut wide = HpackScratch::new(WIDE, WIDE);
        let mut narrow = HpackScratch::new(max_bytes, max_fields);
        for (pairs, _) in blocks {
            let block = encoder.encode(&fields(&pairs)).to_vec();
            let all = ours(&mut wide, &block).expect("a good block");
            let some = ours(&mut narrow, &block).expect("a good block");
            prop_assert!(all.starts_with(&some));
            let cost = |pairs: &[Pair]| pairs.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>();
            prop_assert!(cost(&some) <= max_bytes as usize && some.len() <= max_fields as usize);
            if some.len() < all.len() {
                let next = cost(&all[..=some.len()]);
                prop_assert!(next > max_bytes as usize || some.len() == max_fields as usize);
            }
        }
    }

    #[test]
    fn random_bytes_are_handled(blocks in vec(vec(any::<u8>(), 0..200), 1..10)) {
        let mut decoder = HpackScratch::new(10_000, 128);
        for block in blocks {
            if let Ok((fields, _)) = decoder.decode(&block) {
                prop_assert!(fields.map(|field| field.name.len() + field.value.len()).sum::<usize>() <= 10_000);
            }
        }
    }
}

#[test]
fn a_repeated_head_costs_a_byte_per_field() {
    let head = [
        (":status", "200"),
        ("server", "towline"),
        ("content-type", "application/json"),
        ("content-length", "27"),
        ("date", "Sat, 01 Aug 2026 10:00:00 GMT"),
        ("x-frame-options", "DENY"),
    ];
    let head: Vec<Pair> = head.map(|(name, value)| (name.into(), value.into())).into();
    let mut scratch = HpackScratch::new(WIDE, WIDE);
    let lengths: Vec<usize> = (0..4)
        .map(|_| scratch.encode(&fields(&head)).len())
        .collect();
    // Frequently changing values are added when they are repeated.
    assert!(
        lengths[0] > lengths[2] && lengths[1] > lengths[2],
        "{lengths:?}"
    );
    assert_eq!(lengths[2..], [head.len(); 2]);
}

#[test]
fn many_unknown_fields_all_reach_the_table() {
    let head: Vec<Pair> = (0..60)
        .map(|n| (format!("x-{n}").into(), b"v".to_vec()))
        .collect();
    let mut scratch = HpackScratch::new(WIDE, WIDE);
    let lengths: Vec<usize> = (0..3)
        .map(|_| scratch.encode(&fields(&head)).len())
        .collect();
    assert_eq!(lengths[2], head.len(), "{lengths:?}");
}

#[test]
fn secrets_are_never_indexed() {
    for (name, value, never) in [
        ("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", true),
        (
            "proxy-authorization",
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            true,
        ),
        (
            "set-cookie",
            "session=8f14e45fceea167a5a36dedd4bea2543",
            true,
        ),
        ("cookie", "pin=1234", true),
        ("cookie", "session=8f14e45fceea167a5a36dedd4bea2543", false),
    ] {
        let pair = (name.into(), value.into());
        let mut scratch = HpackScratch::new(WIDE, WIDE);
        for _ in 0..3 {
            let block = scratch.encode(&fields(std::slice::from_ref(&pair)));
            assert_eq!(block[0] & 0xf0 == 0x10, never, "{name}");
        }
    }
}

/// An entry of nearly 4 KiB, then an index to it in each byte: sixteen thousand times as much as was sent.
#[test]
fn a_bomb_stays_bounded() {
    let value = vec![b'v'; 4000];
    let mut block = vec![0x40, 0x01, b'n', 0x7f, 0xa1, 0x1e];
    block.extend_from_slice(&value);
    block.resize(64 * 1024, 0xbe);
    let mut scratch = HpackScratch::new(64 * 1024, 128);
    let (fields, whole) = scratch.decode(&block).expect("well formed");
    assert!(!whole);
    assert_eq!(fields.len(), 64 * 1024 / (4001 + 32));
    // The next block finds the entry.
    let (mut fields, whole) = scratch.decode(&[0xbe]).expect("well formed");
    assert!(whole);
    assert_eq!(fields.next().expect("one").value, value);
}

/// Fields after the skipped ones are decoded, however many are skipped.
#[test]
fn fields_after_a_bomb_are_checked() {
    const BLOCK: usize = 200;
    for run in 0..BLOCK {
        let decode = |rest: &[u8]| {
            let mut scratch = HpackScratch::new(64 * 1024, 1);
            let bomb = [&b"\x40\x01n\x01v"[..], &vec![0xbe; run], rest].concat();
            let decoded = scratch.decode(&bomb).map(|(fields, _)| fields.len());
            (decoded, scratch)
        };
        // An index past the table, of one byte and of two; index 0; a late size update; a truncated field.
        for (rest, error) in [
            (&b"\xbf"[..], HpackError::Index),
            (b"\xff\x00", HpackError::Index),
            (b"\x80", HpackError::Index),
            (b"\x20", HpackError::LateSizeUpdate),
            (b"\xff", HpackError::Truncated),
        ] {
            assert_eq!(decode(rest).0, Err(error), "{run} lines, {rest:x?}");
        }
        // An entry of the static table, and one that enters the dynamic one.
        let (decoded, mut scratch) = decode(b"\x82\x40\x01m\x01w");
        assert_eq!(decoded, Ok(1), "{run} lines");
        let (mut fields, _) = scratch.decode(b"\xbe").expect("well formed");
        assert_eq!(fields.next().expect("one").name, b"m", "{run} lines");
    }
}
