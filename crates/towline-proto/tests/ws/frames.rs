//! Frames and messages: the sections 1 to 6 and 9 of Autobahn's suite as tables, and known attacks.

use towline_proto::Side;
use towline_proto::ws::Limits;

use super::support::*;

const FIN_CLOSE: u8 = FIN | CLOSE;

fn server(wire: &[Vec<u8>]) -> Vec<String> {
    log_of(|| end(Side::Server, Limits::default()), &wire.concat())
}

#[test]
fn valid_frames_are_accepted() {
    let cases: [(&[Vec<u8>], &[&str]); 9] = [
        (&[masked(FIN | TEXT, b"")], &["text"]),
        (
            &[masked(FIN | TEXT, b"hello"), masked(FIN | BINARY, b"x")],
            &["text hello", "binary x"],
        ),
        (
            &[masked(FIN | PING, b""), masked(FIN | PONG, b"unasked")],
            &["ping", "pong unasked"],
        ),
        (
            &[masked(FIN | PING, &[b'p'; 125])],
            &[&format!("ping {}", "p".repeat(125))],
        ),
        (
            &[masked(TEXT, b"a"), masked(FIN | CONT, b"b")],
            &["text ab"],
        ),
        (
            &[
                masked(TEXT, b"a"),
                masked(FIN | PING, b"p"),
                masked(CONT, b"b"),
                masked(FIN | CONT, b"c"),
            ],
            &["ping p", "text abc"],
        ),
        (
            &[
                masked(TEXT, b""),
                masked(CONT, b""),
                masked(FIN | CONT, b""),
            ],
            &["text"],
        ),
        (
            &[
                masked(TEXT, b"\xce"),
                masked(CONT, b"\xba\xe1"),
                masked(FIN | CONT, b"\xbd\xb9"),
            ],
            &["text \u{3ba}\u{1f79}"],
        ),
        (
            &[masked(FIN | BINARY, &[0xff; 126])],
            &["binary of 126 bytes"],
        ),
    ];
    for (wire, events) in cases {
        let events: Vec<_> = events.iter().map(|event| event.trim_end()).collect();
        let log = server(wire);
        assert_eq!(
            log.iter().map(|event| event.trim_end()).collect::<Vec<_>>(),
            events
        );
    }
}

/// Wires with a violation, and its code.
fn violations() -> Vec<(Vec<Vec<u8>>, u16)> {
    let opcodes = [3, 4, 5, 6, 7, 11, 12, 13, 14, 15];
    let mut cases: Vec<(Vec<Vec<u8>>, u16)> = opcodes
        .iter()
        .map(|opcode| (vec![masked(FIN | opcode, b"x")], 1002))
        .collect();
    for rsv in [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70] {
        cases.push((vec![masked(FIN | rsv | TEXT, b"x")], 1002));
        cases.push((vec![masked(FIN | rsv | PING, b"x")], 1002));
    }
    for control in [CLOSE, PING, PONG] {
        cases.push((vec![masked(control, b"")], 1002));
        cases.push((vec![masked(FIN | control, &[0; 126])], 1002));
    }
    cases.extend([
        (vec![bare(FIN | TEXT, b"unmasked")], 1002),
        (vec![masked(FIN | CONT, b"nothing to continue")], 1002),
        (vec![masked(TEXT, b"a"), masked(FIN | TEXT, b"b")], 1002),
        (
            vec![
                masked(TEXT, b"a"),
                masked(FIN | CONT, b"b"),
                masked(CONT, b"c"),
            ],
            1002,
        ),
        (
            vec![vec![FIN | BINARY, 0x80 + 126, 0, 125, 0, 0, 0, 0]],
            1002,
        ),
        (
            vec![vec![
                FIN | BINARY,
                0x80 + 127,
                0,
                0,
                0,
                0,
                0,
                0,
                0xff,
                0xff,
                0,
                0,
                0,
                0,
            ]],
            1002,
        ),
        (
            vec![vec![
                FIN | BINARY,
                0x80 + 127,
                0x80,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ]],
            1002,
        ),
        (
            vec![vec![
                FIN | BINARY,
                0x80 + 127,
                0x7f,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                0,
                0,
                0,
                0,
            ]],
            1009,
        ),
        (vec![masked(FIN | TEXT, b"\xed\xa0\x80")], 1007),
        (vec![masked(FIN | TEXT, b"cut \xe2\x82")], 1007),
        (
            vec![masked(TEXT, b"\xe2\x82"), masked(FIN | CONT, b"")],
            1007,
        ),
        (vec![masked(FIN | CLOSE, b"\x03")], 1002),
        (vec![masked(FIN | CLOSE, b"\x03\xed")], 1002),
        (vec![masked(FIN | CLOSE, b"\x03\xe8\xff")], 1007),
    ]);
    cases
}

#[test]
fn violations_fail_with_their_code() {
    let cases = violations();
    for (wire, code) in cases {
        let log = server(&wire);
        assert_eq!(log.last(), Some(&format!("failed {code}")), "{wire:x?}");
        let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
        feed(&mut ws, [&wire.concat()[..]], scratch);
        // The close frame has the rule as its reason.
        let [(FIN_CLOSE, close)] = &sent(&mut ws, scratch)[..] else {
            panic!("{wire:x?}: one close frame");
        };
        assert_eq!(close[..2], code.to_be_bytes());
        assert!(close.len() > 2, "{wire:x?} breaks a rule with a name");
        assert_eq!(
            feed(&mut ws, [&masked(FIN | TEXT, b"late")[..]], scratch),
            [""; 0]
        );
    }
    let client = || end(Side::Client, Limits::default());
    assert_eq!(log_of(client, &masked(FIN | TEXT, b"x")), ["failed 1002"]);
    assert_eq!(log_of(client, &bare(FIN | TEXT, b"x")), ["text x"]);
}

#[test]
fn invalid_text_is_found_before_its_frame_is_complete() {
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    let wire = masked(TEXT, b"\xce\xba\xe1\xbd\xb9\xf4\x90\x80\x80 and more");
    // Two characters and the first byte of the third are fine; the byte after it is not.
    assert_eq!(feed(&mut ws, [&wire[..6 + 6]], scratch), [""; 0]);
    assert_eq!(
        feed(&mut ws, [&wire[6 + 6..][..1]], scratch),
        ["failed 1007"]
    );
}

#[test]
fn a_message_over_the_limit_is_refused_before_it_is_buffered() {
    let limits = || Limits {
        max_message_bytes: 1000,
        ..Limits::default()
    };
    let make = || end(Side::Server, limits());
    assert_eq!(
        log_of(make, &masked(FIN | BINARY, &[0xff; 1000])),
        ["binary of 1000 bytes"]
    );
    let over = masked(FIN | BINARY, &[0xff; 1001]);
    assert_eq!(
        log_of(make, &over[..8]),
        ["failed 1009"],
        "the head is enough"
    );
    let fragments = [
        masked(BINARY, &[0xff; 600]),
        masked(FIN | CONT, &[0xff; 401]),
    ]
    .concat();
    assert_eq!(
        log_of(make, &fragments[..fragments.len() - 401]),
        ["failed 1009"]
    );
    let fits = [
        masked(BINARY, &[0xff; 600]),
        masked(FIN | CONT, &[0xff; 400]),
    ]
    .concat();
    assert_eq!(log_of(make, &fits), ["binary of 1000 bytes"]);
}

#[test]
fn fragments_are_charged_by_bytes() {
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    let mut wire = masked(BINARY, b"x");
    for _ in 0..65_534 {
        wire.extend(masked(CONT, b"x"));
    }
    wire.extend(masked(FIN | CONT, b"x"));
    assert_eq!(
        feed(&mut ws, [&wire[..]], scratch),
        ["binary of 65536 bytes"]
    );

    let mut begun = feed(&mut ws, [&masked(BINARY, b"")[..]], scratch);
    let empty = masked(CONT, b"");
    let mut sent = 0;
    while begun.is_empty() && sent < 300_000 {
        begun = feed(&mut ws, [&empty[..]], scratch);
        sent += 1;
    }
    assert_eq!(begun, ["failed 1009"], "an endless message of nothing");
    assert!((200_000..300_000).contains(&sent), "{sent}");
}

#[test]
fn only_the_latest_ping_gets_a_pong() {
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    for n in 0..1000u32 {
        feed(
            &mut ws,
            [&masked(FIN | PING, n.to_string().as_bytes())[..]],
            scratch,
        );
    }
    assert_eq!(sent(&mut ws, scratch), [(FIN | PONG, b"999".to_vec())]);
    assert_eq!(sent(&mut ws, scratch), []);
}

#[test]
fn reading_stops_at_the_end_of_an_event() {
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    let first = masked(FIN | TEXT, b"first");
    let wire = [first.clone(), masked(FIN | TEXT, b"second")].concat();
    let now = std::time::Instant::now();
    assert_eq!(ws.receive(now, &wire, scratch), first.len());
    assert_eq!(
        ws.receive(now, &wire[first.len()..], scratch),
        0,
        "the first was not taken yet"
    );
    assert_eq!(
        ws.next_event().as_ref().map(line).as_deref(),
        Some("text first")
    );

    let mut reads = 0;
    let (mut rest, mut ws) = (&wire[..], end(Side::Server, Limits::default()));
    while !ws.has_event() {
        let wanted = ws.wanted_bytes();
        assert_eq!(ws.receive(now, &rest[..wanted], scratch), wanted);
        rest = &rest[wanted..];
        reads += 1;
    }
    assert_eq!(
        (wire.len() - rest.len(), reads),
        (first.len(), 2),
        "head, payload"
    );
}
