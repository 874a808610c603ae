//! The codec as a whole: the examples of RFC 7541 appendix C, what must be refused, bounds.

use crate::field_compression::{
    Bounds, DecodedField, DecodedFields, FieldDecoder, FieldError, IndexingPolicy, Name,
};

use super::{Decoder, Encoder, HpackError};

type Pairs<'a> = &'a [(&'a str, &'a str)];

const WIDE: Bounds = Bounds {
    max_bytes: 64 * 1024,
    max_fields: 128,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).expect("hex") as u8;
    digits
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

/// Name, value, which name, flaw of each field that is delivered.
type Decoded = (Vec<u8>, Vec<u8>, Name, Option<FieldError>);

fn decode_within(
    decoder: &mut Decoder,
    block: &[u8],
    bounds: Bounds,
) -> Result<(Vec<Decoded>, DecodedFields), HpackError> {
    let mut bytes = b"before".to_vec();
    let mut got = Vec::new();
    let outcome = decoder.decode(block, bounds, &mut bytes, |line, bytes| {
        let spans = [line.span];
        let field = crate::Fields::new(bytes, &spans).next().expect("one");
        got.push((
            field.name.to_vec(),
            field.value.to_vec(),
            line.name,
            line.error,
        ));
    })?;
    assert!(bytes.starts_with(b"before"));
    Ok((got, outcome))
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
    let (got, outcome) = decode_within(decoder, block, WIDE)?;
    assert_eq!(outcome, DecodedFields::All);
    let text = |bytes| String::from_utf8(bytes).expect("ASCII");
    Ok(got
        .into_iter()
        .map(|(name, value, ..)| (text(name), text(value)))
        .collect())
}

fn owned(pairs: Pairs<'_>) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// One block of an example: without Huffman, with it, its fields, and the size of the table after it.
struct Example {
    plain: &'static str,
    coded: &'static str,
    fields: Pairs<'static>,
    table_bytes: u32,
}

const REQUESTS: [Example; 3] = [
    Example {
        plain: "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        coded: "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        fields: &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
        ],
        table_bytes: 57,
    },
    Example {
        plain: "8286 84be 5808 6e6f 2d63 6163 6865",
        coded: "8286 84be 5886 a8eb 1064 9cbf",
        fields: &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
            ("cache-control", "no-cache"),
        ],
        table_bytes: 110,
    },
    Example {
        plain: "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        coded: "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        fields: &[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ],
        table_bytes: 164,
    },
];

const RESPONSES: [Example; 3] = [
    Example {
        plain: "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
            2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
            6c65 2e63 6f6d",
        coded: "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
            2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        fields: &[
            (":status", "302"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ],
        table_bytes: 222,
    },
    Example {
        plain: "4803 3330 37c1 c0bf",
        coded: "48 83 640e ff c1 c0bf",
        fields: &[
            (":status", "307"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ],
        table_bytes: 222,
    },
    Example {
        plain: "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
            54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
            5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
            3d31",
        coded: "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
            77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
            9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        fields: &[
            (":status", "200"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
            ("location", "https://www.example.com"),
            ("content-encoding", "gzip"),
            (
                "set-cookie",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
        ],
        table_bytes: 215,
    },
];

#[test]
fn single_fields_of_rfc_7541_c_2() {
    for (block, name, value, table_bytes) in [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key",
            "custom-header",
            55,
        ),
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            ":path",
            "/sample/path",
            0,
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            "password",
            "secret",
            0,
        ),
        ("82", ":method", "GET", 0),
    ] {
        let mut decoder = Decoder::new();
        let fields = decode(&mut decoder, &hex(block)).expect("good");
        assert_eq!(fields, owned(&[(name, value)]));
        assert_eq!(decoder.table_bytes(), table_bytes);
    }
}

/// C.3 to C.6: decoded from both forms, and encoded to the coded one when every field is added to the table.
#[test]
fn messages_of_rfc_7541_c_3_to_c_6() {
    for (examples, max_table_bytes) in [(REQUESTS, 4096), (RESPONSES, 256)] {
        let mut plain = Decoder::new();
        let mut coded = Decoder::new();
        let mut encoder = Encoder::new();
        if max_table_bytes != 4096 {
            for decoder in [&mut plain, &mut coded] {
                decode(decoder, &hex("3fe101")).expect("an update to 256 bytes");
            }
            encoder.set_max_table_bytes(max_table_bytes);
            let mut out = Vec::new();
            encoder.start(&mut out);
            assert_eq!(out, hex("3fe101"));
        }
        for example in examples {
            for (decoder, block) in [(&mut plain, example.plain), (&mut coded, example.coded)] {
                let fields = decode(decoder, &hex(block)).expect("good");
                assert_eq!(fields, owned(example.fields));
                assert_eq!(decoder.table_bytes(), example.table_bytes);
            }
            let mut out = Vec::new();
            encoder.start(&mut out);
            for (name, value) in example.fields {
                encoder.encode_as(
                    IndexingPolicy::Always,
                    name.as_bytes(),
                    value.as_bytes(),
                    &mut out,
                );
            }
            // "307" is three bytes long in either form: the RFC codes it, we leave it plain.
            assert_eq!(out, hex(&example.coded.replace("83 640e ff", "03 3330 37")));
        }
    }
}

fn refusal(block: &str) -> HpackError {
    decode(&mut Decoder::new(), &hex(block)).expect_err("bad")
}

#[test]
fn bad_blocks_are_refused() {
    for (block, error) in [
        // Index 0; an index that neither table has, in each representation.
        ("80", HpackError::Index),
        ("be", HpackError::Index),
        ("ffff ffff 7f", HpackError::Index),
        ("7e 0161", HpackError::Index),
        ("0f 2f 0161", HpackError::Index),
        ("1f 2f 0161", HpackError::Index),
        // Cut at each kind of place.
        ("40", HpackError::Truncated),
        ("7f", HpackError::Truncated),
        ("41", HpackError::Truncated),
        ("41 02 61", HpackError::Truncated),
        ("40 01 61", HpackError::Truncated),
        ("41 82 61", HpackError::Truncated),
        ("ff", HpackError::Truncated),
        ("3f", HpackError::Truncated),
        // Integers: too large, too long.
        ("ff ffff ffff ffff ffff 7f", HpackError::Integer),
        ("ff 8080 8080 8000", HpackError::Integer),
        ("41 7f ffff ffff 7f", HpackError::Integer),
        ("3f ffff ffff ff01", HpackError::Integer),
        // Strings: EOS alone, after a symbol, before one; padding of 8, 9 and 31 ones, of zeros, mixed.
        ("41 84 ffff fffc", HpackError::EndOfString),
        ("41 84 ffff ffff", HpackError::EndOfString),
        ("41 85 1fff ffff ff", HpackError::EndOfString),
        ("41 89 ffff fffc ffff ffff ff", HpackError::EndOfString),
        ("41 81 ff", HpackError::Padding),
        ("41 82 1fff", HpackError::Padding),
        ("41 82 ffff", HpackError::Padding),
        ("41 83 ffff ff", HpackError::Padding),
        ("41 81 18", HpackError::Padding),
        ("41 81 1e", HpackError::Padding),
        (
            "41 8d f1e3 c2e5 f23a 6ba0 ab90 f4ff ff",
            HpackError::Padding,
        ),
        ("41 8c f1e3 c2e5 f23a 6ba0 ab90 f4fe", HpackError::Padding),
        ("40 81 ff 0161", HpackError::Padding),
        // Table sizes: above the setting, after a field, three of them.
        ("3f e2 1f", HpackError::SizeUpdate),
        ("82 20", HpackError::LateSizeUpdate),
        ("20 20 20", HpackError::ManySizeUpdates),
    ] {
        assert_eq!(refusal(block), error, "{block}");
    }
}

#[test]
fn good_padding_is_accepted() {
    // "a" is 00011, "1" is 00001: one symbol and three ones; "aa" and six; none at all; an empty string.
    for (block, value) in [
        ("41 81 1f", "a"),
        ("41 82 18ff", "aa"),
        ("41 85 18c6 318c 63", "aaaaaaaa"),
        ("41 80", ""),
        ("41 00", ""),
    ] {
        assert_eq!(
            decode(&mut Decoder::new(), &hex(block)).expect("good"),
            owned(&[(":authority", value)]),
            "{block}"
        );
    }
}

#[test]
fn a_lowered_setting_requires_a_size_update() {
    let filled = || {
        let mut decoder = Decoder::new();
        decode(&mut decoder, &hex("410161 410162")).expect("good");
        decoder
    };
    let mut decoder = filled();
    decoder.set_max_table_bytes(50);
    assert_eq!(
        decode(&mut decoder, &hex("82")),
        Err(HpackError::NoSizeUpdate)
    );
    let mut decoder = filled();
    decoder.set_max_table_bytes(50);
    assert_eq!(
        decode(&mut decoder, &hex("3f14")),
        Err(HpackError::SizeUpdate)
    );
    let mut decoder = filled();
    decoder.set_max_table_bytes(50);
    // Down to 0, then to 50: the table is empty.
    assert_eq!(decode(&mut decoder, &hex("20 3f13")), Ok(vec![]));
    assert_eq!(decode(&mut decoder, &hex("be")), Err(HpackError::Index));
    let mut decoder = filled();
    decoder.set_max_table_bytes(50);
    // To 50: the older of the two entries of 43 bytes has left.
    let newest = owned(&[(":authority", "b")]);
    assert_eq!(decode(&mut decoder, &hex("3f13 be")), Ok(newest));
    assert_eq!(decode(&mut decoder, &hex("bf")), Err(HpackError::Index));
    // A higher setting requires nothing.
    decoder.set_max_table_bytes(8192);
    assert_eq!(decode(&mut decoder, &hex("3fe13f")), Ok(vec![]));
}

#[test]
fn skipped_fields_are_validated() {
    let none = Bounds {
        max_bytes: 0,
        max_fields: 0,
    };
    let mut decoder = Decoder::new();
    // One entry of the dynamic table: 62.
    decode(&mut decoder, &hex("4001 6101 62")).unwrap();
    let bounded = |decoder: &mut Decoder, text: &str| {
        decode_within(decoder, &hex(text), none).map(|(got, decoded)| (got.len(), decoded))
    };
    let over = Ok((0, DecodedFields::Truncated));
    assert_eq!(bounded(&mut decoder, "82 82be be81"), over);
    // Fields behind a run still change the table, and the next block can refer to them.
    assert_eq!(bounded(&mut decoder, "82be 4001 6301 64 bfbe"), over);
    assert_eq!(
        decode(&mut decoder, &hex("bebf")).unwrap(),
        owned(&[("c", "d"), ("a", "b")])
    );
    for wrong in ["82be 80", "82be c0", "82ff 01", "82be ff"] {
        assert!(bounded(&mut decoder, wrong).is_err(), "{wrong}");
    }
}

/// A byte that repeats a field of a kilobyte allocates no further kilobyte.
#[test]
fn a_repeated_entry_is_copied_to_the_text_once() {
    let mut decoder = Decoder::new();
    let mut text = |block: &str| {
        let (mut bytes, mut got) = (Vec::new(), Vec::new());
        let each = |line: DecodedField, _: &[u8]| got.push(line.span);
        let outcome = decoder.decode(&hex(block), WIDE, &mut bytes, each);
        assert_eq!(outcome, Ok(DecodedFields::All));
        let fields =
            crate::Fields::new(&bytes, &got).map(|field| [field.name, field.value].concat());
        let lines: Vec<_> = fields
            .map(|line| String::from_utf8(line).expect("ASCII"))
            .collect();
        (String::from_utf8(bytes).expect("ASCII"), lines.join(" "))
    };
    let expected = |bytes: &str, lines: &str| (bytes.to_owned(), lines.to_owned());
    // A literal added to the table is in the output where it was read.
    assert_eq!(text("4001 6101 62 bebe"), expected("ab", "ab ab ab"));
    // The next block has a text of its own.
    assert_eq!(text("bebe"), expected("ab", "ab ab"));
    let between = text("be 4001 6301 64 bebf be 0001 6501 66 bf");
    assert_eq!(between, expected("abcdef", "ab cd cd ab cd ef ab"));
    // Another entry has the index of one that has left.
    assert_eq!(
        text("20 3fe11f 4001 6301 6a bebe"),
        expected("cj", "cj cj cj")
    );
}
