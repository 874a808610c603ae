//! The codec as a whole: the examples of RFC 9204 appendix B, what must be refused, eviction.

use crate::field_compression::{Bounds, DecodedFields, FieldDecoder, FieldEncoder, FieldError};

use super::{Decoder, Encoder, QpackError};

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

type Pairs = Vec<(String, String)>;

fn decode_within(
    decoder: &mut Decoder,
    section: &[u8],
    bounds: Bounds,
) -> Result<(Pairs, DecodedFields, Vec<FieldError>), QpackError> {
    let mut bytes = Vec::new();
    let (mut pairs, mut errors) = (Vec::new(), Vec::new());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let outcome = decoder.decode(section, bounds, &mut bytes, |line, bytes| {
        let spans = [line.span];
        let field = crate::Fields::new(bytes, &spans).next().expect("one");
        pairs.push((text(field.name), text(field.value)));
        errors.extend(line.error);
    })?;
    Ok((pairs, outcome, errors))
}

fn decode(decoder: &mut Decoder, section: &str) -> Result<Pairs, QpackError> {
    decode_within(decoder, &hex(section), WIDE).map(|(pairs, ..)| pairs)
}

fn pairs(pairs: &[(&str, &str)]) -> Pairs {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    pairs.iter().map(owned).collect()
}

/// Inserts and decodes as in the appendix, up to its last example.
#[test]
fn the_examples_of_appendix_b() {
    let mut decoder = Decoder::new(220);
    let mut out = Vec::new();
    let section = "0000 510b 2f69 6e64 6578 2e68 746d 6c";
    let expected = pairs(&[(":path", "/index.html")]);
    assert_eq!(decode(&mut decoder, section), Ok(expected));

    let instructions = hex("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d
         c10c 2f73 616d 706c 652f 7061 7468");
    // In pieces of one byte, as from a slow stream.
    for byte in &instructions {
        decoder.receive(&[*byte]).expect("valid");
    }
    assert_eq!(decoder.inserted(), 2);
    assert_eq!(decoder.required(&hex("0381")), Ok(2));
    let expected = pairs(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(decode(&mut decoder, "0381 10 11"), Ok(expected));
    decoder.acknowledge_section(4, 2, &mut out);
    decoder.acknowledge_entries(&mut out);
    assert_eq!(out, hex("84"));

    let insert = hex("4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565");
    decoder.receive(&insert).expect("valid");
    out.clear();
    decoder.acknowledge_entries(&mut out);
    assert_eq!(out, hex("01"));

    assert_eq!(decoder.required(&hex("0500 80 c1 81")), Ok(4));
    assert_eq!(decoder.inserted(), 3, "it is blocked");
    decoder.receive(&hex("02")).expect("valid");
    let expected = pairs(&[
        (":authority", "www.example.com"),
        (":path", "/"),
        ("custom-key", "custom-value"),
    ]);
    assert_eq!(decode(&mut decoder, "0500 80 c1 81"), Ok(expected));
    out.clear();
    super::instructions::stream_cancellation(8, &mut out);
    assert_eq!(out, hex("48"));

    decoder
        .receive(&hex("810d 6375 7374 6f6d 2d76 616c 7565 32"))
        .expect("valid");
    // The oldest entry is evicted, and an index of it an error.
    let expected = pairs(&[("custom-key", "custom-value2")]);
    assert_eq!(decode(&mut decoder, "0600 80"), Ok(expected));
    assert_eq!(decode(&mut decoder, "0600 84"), Err(QpackError::Index));
}

#[test]
fn sections_that_no_encoder_sends_are_errors() {
    let mut decoder = Decoder::new(220);
    decoder
        .receive(&hex("3fbd01 c10161 c10162"))
        .expect("valid");
    for (section, error) in [
        ("", QpackError::Truncated),
        ("00", QpackError::Truncated),
        ("0000 51", QpackError::Truncated),
        ("0000 5102 61", QpackError::Truncated),
        ("0000 ff24", QpackError::Index),
        ("0000 80", QpackError::Index),
        ("0000 10", QpackError::Index),
        ("0000 00 0161", QpackError::Index),
        ("0000 40 0161", QpackError::Index),
        // More entries than there can be, and the encoding of 0.
        ("0d00", QpackError::InsertCount),
        ("0100", QpackError::InsertCount),
        // A Base below 0.
        ("0382", QpackError::Base),
        // An entry above the Required Insert Count.
        ("0200 10", QpackError::Index),
        ("0300 82", QpackError::Index),
        ("0000 5181 00", QpackError::Padding),
        ("0000 5184 ffffffff", QpackError::EndOfString),
        ("0000 5fffffffffff01", QpackError::Integer),
    ] {
        let required = decoder.required(&hex(section));
        let error_found = required
            .err()
            .or_else(|| decode(&mut decoder, section).err());
        assert_eq!(error_found, Some(error), "{section}");
    }
}

#[test]
fn instructions_that_no_encoder_sends_are_errors() {
    for (instructions, error) in [
        ("3fbe01", QpackError::Capacity),
        (
            "3f01 c1206100000000000000000000000000000000000000000000000000000000000000",
            QpackError::Entry,
        ),
        ("c0", QpackError::Entry),
        ("3fbd01 00", QpackError::Index),
        ("3fbd01 800161", QpackError::Index),
        ("3fbd01 ff24 00", QpackError::Index),
        ("3fbd01 c18100", QpackError::Padding),
        ("3fffffffffff01", QpackError::Integer),
    ] {
        let mut decoder = Decoder::new(220);
        let bytes = hex(instructions);
        let error_found = match instructions {
            // An entry into a table of no bytes.
            "c0" => decoder.receive(&hex("c10161")),
            _ => decoder.receive(&bytes),
        };
        assert_eq!(error_found.err(), Some(error), "{instructions}");
    }
    // A string that is never complete.
    let mut decoder = Decoder::new(220);
    decoder
        .receive(&hex("3fbd01 c17fffff7f"))
        .expect("incomplete");
    let mut received = Ok(0);
    for _ in 0..100 {
        received = decoder.receive(&[b'a'; 20]).map(|cost| cost.copied_bytes);
        if received.is_err() {
            break;
        }
    }
    assert_eq!(received, Err(QpackError::Instruction));
}

#[test]
fn acknowledgements_that_no_decoder_sends_are_errors() {
    let mut encoder = Encoder::new();
    encoder.set_max_table_bytes(4096);
    let (mut lines, mut section) = (Vec::new(), Vec::new());
    encoder.start();
    encoder.encode(b"server", b"x", &mut lines);
    encoder.end(0, &lines, &mut section);
    assert!(encoder.has_unsent());
    assert_eq!(
        encoder.receive(&hex("80")),
        Err(QpackError::Acknowledgement)
    );
    assert_eq!(encoder.receive(&hex("00")), Err(QpackError::Increment));
    assert_eq!(encoder.receive(&hex("02")), Err(QpackError::Increment));
    assert_eq!(encoder.receive(&hex("44")), Ok(()));
    assert_eq!(encoder.receive(&hex("01")), Ok(()));
    assert_eq!(encoder.receive(&hex("01")), Err(QpackError::Increment));
    assert_eq!(
        encoder.receive(&hex("7fffffffffffffffffff01")),
        Err(QpackError::Integer)
    );
}

#[test]
fn a_section_over_the_bounds_is_truncated() {
    let mut decoder = Decoder::new(0);
    let section = hex("0000 d1 d7 c1 c1 c1 c1");
    let bounds = Bounds {
        max_bytes: 3 * 45,
        max_fields: 100,
    };
    let (found, outcome, _) = decode_within(&mut decoder, &section, bounds).expect("valid");
    assert_eq!((found.len(), outcome), (3, DecodedFields::Truncated));
    let bounds = Bounds {
        max_fields: 2,
        ..WIDE
    };
    let (found, outcome, _) = decode_within(&mut decoder, &section, bounds).expect("valid");
    assert_eq!((found.len(), outcome), (2, DecodedFields::Truncated));
}

#[test]
fn malformed_fields_are_reported() {
    let mut decoder = Decoder::new(0);
    for (section, error) in [
        ("0000 21 41 00", FieldError::Name),
        ("0000 21 61 02 6120", FieldError::Value),
        ("0000 27 03 636f6e6e656374696f6e 00", FieldError::Connection),
    ] {
        let (_, _, errors) = decode_within(&mut decoder, &hex(section), WIDE).expect("valid");
        assert_eq!(errors, [error], "{section}");
    }
}

/// Both ends over many sections: the encoder never refers to an entry that is evicted or not there.
#[test]
fn entries_are_evicted_only_when_nothing_refers_to_them() {
    for table in [64, 100, 220, 4096] {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(table));
        encoder.set_max_blocked_streams(1);
        encoder.set_max_table_bytes(u64::from(table));
        let mut late: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut acknowledgements = Vec::new();
        let (mut dynamic, mut sent) = (0, 0);
        for number in 0..3000_u64 {
            let value = |n: u64| format!("value-{n}");
            let fields = [
                ("server", "towline".to_owned()),
                ("x-often", value(number / 100)),
                ("x-sometimes", value(number / 7)),
                ("x-new", value(number)),
            ];
            let (mut lines, mut section) = (Vec::new(), Vec::new());
            encoder.start();
            for (name, value) in &fields {
                encoder.encode(name.as_bytes(), value.as_bytes(), &mut lines);
            }
            encoder.end(number, &lines, &mut section);
            dynamic += usize::from(section[0] != 0);
            sent += section.len();
            decoder.receive(&encoder.take_unsent()).expect("valid");
            late.push((number, section));
            // Sections arrive up to eight late, in any order.
            while late.len() > (number % 8) as usize {
                let place = (number as usize * 7) % late.len();
                let (stream, section) = late.swap_remove(place);
                let required = decoder.required(&section).expect("valid");
                assert!(required <= decoder.inserted());
                let (found, ..) = decode_within(&mut decoder, &section, WIDE).expect("valid");
                assert_eq!(found[0].1, "towline");
                assert_eq!(found[3].1, value(stream));
                decoder.acknowledge_section(stream, required, &mut acknowledgements);
            }
            if number % 3 == 0 {
                decoder.acknowledge_entries(&mut acknowledgements);
            }
            if number % 5 == 0 {
                encoder
                    .receive(&std::mem::take(&mut acknowledgements))
                    .expect("valid");
            }
        }
        assert!(dynamic > 2000, "{table}: {dynamic} sections, {sent} bytes");
    }
}
