//! Keep-alive, on a virtual clock.

use std::time::{Duration, Instant};

use towline_proto::Side;
use towline_proto::ws::{Limits, Status, WebSocket};

use super::support::*;

const S: Duration = Duration::from_secs(1);

/// The time of its creation: the first ping is due an interval later.
fn began(ws: &WebSocket) -> Instant {
    ws.deadline().and_then(|at| at.checked_sub(20 * S)).unwrap()
}

#[test]
fn a_missing_pong_fails_the_websocket() {
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    let start = began(&ws);
    assert_eq!(feed(&mut ws, [&b""[..]], scratch), [""; 0]);
    ws.handle_timeout(start + 19 * S);
    assert!(!ws.has_output());
    ws.handle_timeout(start + 20 * S);
    assert_eq!(sent(&mut ws, scratch), [(FIN | PING, vec![0, 0, 0, 1])]);
    ws.handle_timeout(start + 39 * S);
    assert!(!ws.has_event());
    ws.handle_timeout(start + 40 * S);
    assert_eq!(
        ws.next_event().as_ref().map(line).as_deref(),
        Some("failed 1011")
    );
    let close = b"\x03\xf3no pong in time (RFC 6455 5.5.2)".to_vec();
    assert_eq!(sent(&mut ws, scratch), [(FIN | CLOSE, close)]);
    assert_eq!((ws.status(), ws.deadline()), (Status::Finished, None));
}

#[test]
fn only_the_pong_to_our_ping_counts() {
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    let start = began(&ws);
    ws.handle_timeout(start + 20 * S);
    assert_eq!(ws.deadline(), Some(start + 40 * S));
    let pong = |payload: &[u8]| masked(FIN | PONG, payload);
    let at = |ws: &mut towline_proto::ws::WebSocket, wire: &[u8], now: Instant, scratch: &mut _| {
        ws.receive(now, wire, scratch);
        ws.next_event().as_ref().map(line)
    };
    assert!(at(&mut ws, &pong(b"other"), start + 21 * S, scratch).is_some());
    assert_eq!(ws.deadline(), Some(start + 40 * S));
    assert!(at(&mut ws, &pong(&[0, 0, 0, 1]), start + 22 * S, scratch).is_some());
    assert_eq!(ws.deadline(), Some(start + 42 * S), "the next ping");
}

#[test]
fn a_paused_program_and_a_long_frame_hide_pongs() {
    // The program has not polled since the last event.
    let (mut ws, scratch) = (end(Side::Server, Limits::default()), &mut scratch());
    let start = began(&ws);
    ws.receive(start, &masked(FIN | TEXT, b"x"), scratch);
    ws.next_event();
    for second in [20, 40, 60, 80] {
        ws.handle_timeout(start + second * S);
        assert!(!ws.has_event());
    }
    // The program polls again, in the middle of a frame.
    let long = masked(FIN | BINARY, &[0; 1000]);
    ws.receive(start + 81 * S, &long[..500], scratch);
    assert!(ws.next_event().is_none());
    ws.handle_timeout(start + 100 * S);
    assert!(!ws.has_event());
    ws.receive(start + 101 * S, &long[500..], scratch);
    assert!(ws.next_event().is_some() && ws.next_event().is_none());
    ws.handle_timeout(start + 120 * S);
    assert_eq!(
        ws.next_event().as_ref().map(line).as_deref(),
        Some("failed 1011")
    );
}

#[test]
fn without_keepalive_there_is_no_deadline() {
    let limits = Limits {
        ping_interval: None,
        ..Limits::default()
    };
    assert_eq!(end(Side::Client, limits).deadline(), None);
}
