//! Compressed messages: the examples of RFC 7692 7.2.3, bombs, and streams that end too early.

use std::time::Instant;

use towline_proto::Side;
use towline_proto::ws::deflate::{Direction, Params};
use towline_proto::ws::{Kind, Limits, WebSocket};

use super::support::*;

fn params(takeover: bool, window_bits: u8) -> Params {
    let direction = Direction {
        takeover,
        window_bits,
    };
    Params {
        server: direction,
        client: direction,
    }
}

fn server() -> WebSocket {
    deflating(Side::Server, Limits::default(), params(true, 15))
}

const HELLO: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

#[test]
fn the_examples_of_the_rfc() {
    let cases: [(&str, Vec<u8>, &[&str]); 6] = [
        ("7.2.3.1", masked(FIN | RSV1 | TEXT, HELLO), &["text Hello"]),
        (
            "7.2.3.1, fragments",
            [
                masked(RSV1 | TEXT, &HELLO[..3]),
                masked(FIN | CONT, &HELLO[3..]),
            ]
            .concat(),
            &["text Hello"],
        ),
        (
            "7.2.3.2, takeover",
            [
                masked(FIN | RSV1 | TEXT, HELLO),
                masked(FIN | RSV1 | TEXT, &[0xf2, 0, 0x11, 0, 0]),
            ]
            .concat(),
            &["text Hello", "text Hello"],
        ),
        (
            "7.2.3.3, stored",
            masked(
                FIN | RSV1 | TEXT,
                &[0, 5, 0, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0],
            ),
            &["text Hello"],
        ),
        (
            "7.2.3.4, a final block",
            [
                masked(
                    FIN | RSV1 | TEXT,
                    &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0, 0],
                ),
                masked(FIN | RSV1 | TEXT, &[0xf2, 0, 0x11, 0, 0]),
            ]
            .concat(),
            &["text Hello", "text Hello"],
        ),
        (
            "7.2.3.5, two blocks",
            masked(
                FIN | RSV1 | TEXT,
                &[0xf2, 0x48, 5, 0, 0, 0, 0xff, 0xff, 0xca, 0xc9, 0xc9, 7, 0],
            ),
            &["text Hello"],
        ),
    ];
    for (section, wire, events) in cases {
        assert_eq!(log_of(server, &wire), events, "{section}");
    }
    assert_eq!(
        log_of(server, &masked(FIN | RSV1 | TEXT, &[0])),
        ["text"].map(|text| format!("{text} "))
    );
    assert_eq!(
        log_of(server, &masked(FIN | TEXT, b"plain")),
        ["text plain"]
    );
}

#[test]
fn violations_fail_with_their_code() {
    let none = || deflating(Side::Server, Limits::default(), params(false, 15));
    let hello_again = [
        masked(FIN | RSV1 | TEXT, HELLO),
        masked(FIN | RSV1 | TEXT, &[0xf2, 0, 0x11, 0, 0]),
    ]
    .concat();
    assert_eq!(
        log_of(none, &hello_again),
        ["text Hello", "failed 1007"],
        "the context is gone"
    );
    let cases: [(Vec<u8>, u16); 7] = [
        (masked(FIN | RSV1 | TEXT, &[0xff; 10]), 1007),
        (masked(FIN | RSV1 | TEXT, b""), 1007),
        (masked(FIN | RSV1 | TEXT, &HELLO[..4]), 1007),
        // A stored block that would contain the tail of the message.
        (
            masked(FIN | RSV1 | BINARY, &[0, 9, 0, 0xf6, 0xff, 1, 2]),
            1007,
        ),
        (masked(FIN | RSV1 | PING, b""), 1002),
        (
            [masked(TEXT, b"a"), masked(FIN | RSV1 | CONT, HELLO)].concat(),
            1002,
        ),
        // Text that is invalid only after inflation: a stored block with 0xff.
        (
            masked(FIN | RSV1 | TEXT, &[0, 1, 0, 0xfe, 0xff, 0xff, 0]),
            1007,
        ),
    ];
    for (wire, code) in cases {
        assert_eq!(
            log_of(server, &wire),
            [format!("failed {code}")],
            "{wire:x?}"
        );
    }
}

#[test]
fn a_bomb_costs_at_most_the_limit() {
    let limits = Limits {
        max_message_bytes: 1 << 20,
        ..Limits::default()
    };
    let scratch = &mut scratch();
    let mut client = deflating(Side::Client, Limits::default(), params(true, 15));
    let mut wire = Vec::new();
    client
        .send(Kind::Binary, &vec![0; 64 << 20], true, scratch, &mut wire)
        .unwrap();
    assert!(wire.len() < 1 << 20, "{}", wire.len());
    let mut server = deflating(Side::Server, limits, params(true, 15));
    assert_eq!(
        feed(&mut server, wire.chunks(100), scratch),
        ["failed 1009"]
    );
}

/// The largest number as the limit must not overflow.
#[test]
fn messages_without_a_limit() {
    let limits = Limits {
        max_message_bytes: usize::MAX,
        ..Limits::default()
    };
    let make = || deflating(Side::Server, limits.clone(), params(true, 15));
    let log = log_of(make, &masked(FIN | RSV1 | TEXT, HELLO));
    assert_eq!(log, ["text Hello"]);
}

#[test]
fn contexts_survive_release_and_use_by_others() {
    let scratch = &mut scratch();
    for bits in [8, 9, 12, 15] {
        let mut pairs: Vec<_> = (0..20)
            .map(|_| {
                [Side::Server, Side::Client]
                    .map(|side| deflating(side, Limits::default(), params(true, bits)))
            })
            .collect();
        let mut sizes = Vec::new();
        for round in 0..5 {
            for (n, [server, client]) in pairs.iter_mut().enumerate() {
                let text = format!(
                    "{{\"socket\":{n},\"round\":{round},\"text\":\"what was said before, again\"}}"
                );
                let mut wire = Vec::new();
                server
                    .send(Kind::Text, text.as_bytes(), true, scratch, &mut wire)
                    .unwrap();
                sizes.push(wire.len());
                client.receive(Instant::now(), &wire, scratch);
                client.next_event().unwrap();
                assert_eq!(client.take_message().as_deref(), Some(text.as_bytes()));
                server.release(scratch);
                client.release(scratch);
            }
        }
        let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
        assert!(
            bits == 8 || last * 2 < first,
            "{bits} bits: {first}, then {last}"
        );
    }
}

#[test]
fn incompressible_messages_are_sent_uncompressed() {
    let scratch = &mut scratch();
    let [mut server, mut client] = [Side::Server, Side::Client]
        .map(|side| deflating(side, Limits::default(), params(false, 12)));
    for text in [
        &b"\x8f\x01\xe3"[..],
        b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        b"\x77\x03\x9a",
        b"aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        let mut wire = Vec::new();
        server
            .send(Kind::Binary, text, true, scratch, &mut wire)
            .unwrap();
        assert_eq!(wire[0] & RSV1 != 0, text.len() > 3);
        client.receive(Instant::now(), &wire, scratch);
        client.next_event().unwrap();
        assert_eq!(client.take_message().as_deref(), Some(text));
    }
}
