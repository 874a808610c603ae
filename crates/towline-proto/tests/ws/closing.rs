//! The closing handshake: every state with every input.

use std::time::{Duration, Instant};

use towline_proto::Side;
use towline_proto::ws::{Kind, Limits, Scratch, SendError, Status, WebSocket};

use super::support::*;

/// The states of an end.
const STATES: [&str; 4] = ["open", "closing", "closed", "failed"];

fn in_state(side: Side, state: &str, now: Instant, scratch: &mut Scratch) -> WebSocket {
    let mut ws = end(side, Limits::default());
    match state {
        "closing" => ws.close(now, 1000, "").unwrap(),
        "closed" => drop(feed(
            &mut ws,
            [&to_side(side, FIN | CLOSE, b"\x03\xe8")[..]],
            scratch,
        )),
        "failed" => drop(feed(&mut ws, [&to_side(side, FIN | 3, b"")[..]], scratch)),
        _ => {}
    }
    sent(&mut ws, scratch);
    ws
}

#[test]
fn every_state_with_every_input() {
    // Input; then for each state the events and the frames sent.
    let table: [(&str, [&str; 4]); 6] = [
        ("text", ["text hi", "", "", ""]),
        ("ping", ["ping hi / 8a hi", "ping hi", "", ""]),
        (
            "close",
            ["close 1001 / 88 \u{3}\u{e9}", "close 1001", "", ""],
        ),
        (
            "wrong",
            [
                "failed 1002 / 88 \u{3}\u{ea}reserved bits without an extension that gives them a meaning (RFC 6455 5.2)",
                "failed 1002",
                "",
                "",
            ],
        ),
        ("eof", ["failed 1006", "failed 1006", "", ""]),
        ("time", [" / 89 \0\0\0\u{1}", "failed 1006", "", ""]),
    ];
    for side in [Side::Server, Side::Client] {
        for (input, outcomes) in table {
            for (state, outcome) in STATES.into_iter().zip(outcomes) {
                assert_eq!(run(side, state, input), outcome, "{side:?} {state} {input}");
            }
        }
    }
}

fn run(side: Side, state: &str, input: &str) -> String {
    let (scratch, now) = (&mut scratch(), Instant::now());
    let mut ws = in_state(side, state, now, scratch);
    let wire = match input {
        "text" => to_side(side, FIN | TEXT, b"hi"),
        "ping" => to_side(side, FIN | PING, b"hi"),
        "close" => to_side(side, FIN | CLOSE, b"\x03\xe9"),
        "wrong" => to_side(side, FIN | 0x30, b"hi"),
        _ => Vec::new(),
    };
    let mut log = feed(&mut ws, [&wire[..]], scratch);
    match input {
        "eof" => ws.received_eof(now),
        "time" => ws.handle_timeout(now + Duration::from_secs(30)),
        _ => {}
    }
    log.extend(ws.next_event().as_ref().map(line));
    let frames: Vec<_> = sent(&mut ws, scratch)
        .into_iter()
        .map(|(first, payload)| {
            let payload: String = payload.into_iter().map(char::from).collect();
            format!(" / {first:x} {payload}")
        })
        .collect();
    log.join(", ") + &frames.concat()
}

#[test]
fn nothing_is_sent_after_a_close() {
    for side in [Side::Server, Side::Client] {
        for state in &STATES[1..] {
            let (scratch, now) = (&mut scratch(), Instant::now());
            let mut ws = in_state(side, state, now, scratch);
            let mut out = Vec::new();
            assert_eq!(
                ws.send(Kind::Text, b"x", true, scratch, &mut out),
                Err(SendError::Closing)
            );
            assert_eq!(ws.ping(b"", scratch, &mut out), Err(SendError::Closing));
            assert_eq!(ws.close(now, 1000, ""), Err(SendError::Closing));
            assert!(out.is_empty());
        }
    }
}

#[test]
fn mistakes_of_the_program_send_nothing() {
    let (scratch, now) = (&mut scratch(), Instant::now());
    let mut ws = end(Side::Server, Limits::default());
    let mut out = Vec::new();
    assert_eq!(ws.close(now, 1005, ""), Err(SendError::InvalidCode));
    assert_eq!(
        ws.close(now, 1000, &"x".repeat(124)),
        Err(SendError::TooLong)
    );
    assert_eq!(
        ws.ping(&[0; 126], scratch, &mut out),
        Err(SendError::TooLong)
    );
    ws.send(Kind::Text, b"a", false, scratch, &mut out).unwrap();
    let len = out.len();
    assert_eq!(
        ws.send(Kind::Binary, b"b", true, scratch, &mut out),
        Err(SendError::OtherKind)
    );
    assert_eq!(out.len(), len);
    ws.send(Kind::Text, b"b", true, scratch, &mut out).unwrap();
    assert_eq!(frames(&out), [(TEXT, b"a".to_vec()), (FIN, b"b".to_vec())]);
    assert_eq!(ws.status(), Status::Open);
}

#[test]
fn the_server_ends_the_connection_first() {
    let (scratch, now) = (&mut scratch(), Instant::now());
    assert_eq!(
        in_state(Side::Server, "closed", now, scratch).status(),
        Status::Finished
    );
    let mut client = in_state(Side::Client, "closed", now, scratch);
    assert_eq!(client.status(), Status::Closing);
    let deadline = client.deadline().unwrap();
    client.handle_timeout(deadline);
    assert_eq!(
        (client.status(), client.has_event()),
        (Status::Finished, false)
    );
}
