//! The timeouts of HTTP/2, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BodySize, Limits, StreamId};
use towline_testkit::h2;
use towline_testkit::{App, End};

use crate::h2::{client_with, log, request, sent_by, server};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_server_waits_for_the_first_frames() {
    for wire in [&b""[..], b"PRI * HTTP/2.0\r\n", h2::PREFACE] {
        let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
        end.feed(wire);
        end.advance(14 * SECOND);
        assert!(!end.is_closed());
        end.advance(SECOND);
        assert!(end.is_closed(), "{wire:?}");
    }
}

#[test]
fn settings_must_be_acknowledged() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&[h2::PREFACE, &h2::settings(&[]), &h2::get(1)].concat());
    end.advance(14 * SECOND);
    assert!(!end.is_closed());
    let sent = sent_by(&mut end, |end| end.advance(SECOND));
    assert_eq!(sent, ["GOAWAY last 1 SETTINGS_TIMEOUT"]);
    assert!(log(&end).contains("failed 1 peer: SETTINGS not acknowledged"));
}

#[test]
fn an_idle_connection_closes_gracefully() {
    let mut end = server(App::Read);
    end.feed(&h2::get(1));
    end.advance(74 * SECOND);
    assert!(!end.is_closed());
    let sent = sent_by(&mut end, |end| end.advance(SECOND));
    assert_eq!(sent, ["GOAWAY last 1 NO_ERROR"]);
    assert!(log(&end).ends_with("closed keep-alive timeout\n"));
    assert!(end.conn.interest().shutdown);
    end.advance(5 * SECOND);
    assert!(end.conn.interest().closed && end.conn.deadline().is_none());
}

/// Control frames do not extend the timeout, nor do the responses to them.
#[test]
fn control_frames_do_not_extend_the_idle_timeout() {
    let frames = [
        h2::ping(),
        h2::settings(&[]),
        h2::window_update(0, 1),
        h2::priority(1, 0),
        h2::frame(h2::UNKNOWN, 0, 0, b""),
    ];
    for frame in frames {
        let mut end = server(App::Read);
        end.feed(&h2::get(1));
        for _ in 0..74 {
            end.advance(SECOND);
            end.feed(&frame);
        }
        assert!(!end.is_closed());
        end.advance(SECOND);
        assert!(log(&end).ends_with("closed keep-alive timeout\n"));
    }
}

/// A peer that reads the pongs so slowly that some are always pending.
#[test]
fn queued_pongs_do_not_extend_the_idle_timeout() {
    let mut end = server(App::Read);
    end.send_room = 0;
    for _ in 0..74 {
        end.feed(&h2::ping().repeat(12));
        end.advance(SECOND);
        end.send_room = 150;
    }
    assert!(!end.is_closed());
    end.advance(SECOND);
    assert!(log(&end).ends_with("closed keep-alive timeout\n"));
}

/// The idle timeout starts with the last byte of a response that is read slowly.
#[test]
fn the_idle_timeout_starts_when_the_response_was_sent() {
    let mut end = server(App::Manual);
    end.feed(&h2::get(1));
    end.send_room = 0;
    end.send_response(200, &[], BodySize::Known(60_000))
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(&vec![b'x'; 60_000]).expect("room");
    stream.finish().expect("complete");
    end.run_until_idle();
    for _ in 0..100 {
        end.send_room = 590;
        end.advance(SECOND);
        end.feed(&h2::ping());
    }
    end.send_room = usize::MAX;
    end.advance(SECOND);
    end.advance(73 * SECOND);
    assert!(!end.is_closed(), "{}", log(&end));
    end.advance(2 * SECOND);
    assert!(log(&end).ends_with("closed keep-alive timeout\n"));
}

#[test]
fn a_slow_body_resets_only_its_stream() {
    for drip in [0, 50] {
        let mut end = server(App::Manual);
        end.feed(&[h2::post(1, &[]), h2::get(3)].concat());
        let sent = sent_by(&mut end, |end| {
            for _ in 0..30 {
                end.advance(SECOND);
                end.feed(&h2::data(1, &vec![b'x'; drip]));
            }
        });
        assert!(
            sent.contains(&"RST_STREAM 1 CANCEL".to_owned()),
            "{drip}: {sent:?}"
        );
        assert!(log(&end).contains("failed 1 peer: body stalled"));
        let answer = sent_by(&mut end, |end| {
            end.send_response(204, &[], BodySize::Empty).expect("open");
        });
        assert_eq!(answer, ["HEADERS 3 end"]);
    }
}

#[test]
fn a_steady_body_is_no_timeout() {
    let mut end = server(App::Manual);
    end.feed(&h2::post(1, &[]));
    for _ in 0..100 {
        end.advance(SECOND);
        end.feed(&h2::data(1, &[b'x'; 200]));
    }
    assert!(!log(&end).contains("failed"));
}

/// The program is slow, not the peer.
#[test]
fn a_full_unread_window_is_no_timeout() {
    let mut end = server(App::Silent);
    end.feed(&h2::post(1, &[]));
    for _ in 0..16 {
        end.feed(&h2::data(1, &[0; 16_384]));
    }
    end.advance(600 * SECOND);
    assert!(!log(&end).contains("failed"), "{}", log(&end));
}

/// The peer gets a whole period after the program has read.
#[test]
fn a_reopened_window_restarts_the_timeout() {
    let mut end = server(App::Silent);
    end.feed(&h2::post(1, &[]));
    for _ in 0..16 {
        end.feed(&h2::data(1, &[0; 16_384]));
    }
    end.advance(29 * SECOND);
    end.read(StreamId(1));
    end.run_until_idle();
    end.advance(20 * SECOND);
    assert!(!log(&end).contains("failed"), "{}", log(&end));
    end.advance(15 * SECOND);
    assert!(log(&end).contains("failed 1 peer: body stalled"));
}

/// The time before the program reads the body is not charged to the peer.
#[test]
fn a_late_100_continue_restarts_the_body_timeout() {
    let mut end = server(App::Silent);
    end.feed(&h2::post(1, &[("expect", "100-continue")]));
    end.advance(60 * SECOND);
    end.read(StreamId(1));
    end.run_until_idle();
    end.advance(20 * SECOND);
    assert!(!log(&end).contains("failed"), "{}", log(&end));
    end.advance(60 * SECOND);
    assert!(log(&end).contains("failed 1 peer: body stalled"));
}

/// Nor is the time before it responds.
#[test]
fn a_window_blocked_late_restarts_the_timeout() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 0)]));
    end.feed(&h2::get(1));
    end.advance(60 * SECOND);
    end.send_response(200, &[], BodySize::Known(5))
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(b"hello").expect("room");
    end.run_until_idle();
    end.advance(29 * SECOND);
    assert!(!log(&end).contains("failed"), "{}", log(&end));
    end.advance(SECOND);
    assert!(log(&end).contains("failed 1 peer: window stalled"));
}

#[test]
fn a_client_sends_keepalive_pings() {
    let mut limits = Limits::client();
    limits.http2.ping_interval = Some(10 * SECOND);
    limits.http2.ping_timeout = 5 * SECOND;
    let mut end = client_with(limits);
    assert!(sent_by(&mut end, |end| end.advance(60 * SECOND)).is_empty());
    request(&mut end, BodySize::Empty).expect("room");
    let pong = h2::frame(h2::PING, h2::ACK, 0, b"alive? \0");
    for _ in 0..3 {
        let asked = sent_by(&mut end, |end| end.advance(10 * SECOND));
        assert_eq!(asked, ["PING"]);
        end.feed(&pong);
    }
    end.advance(14 * SECOND);
    assert!(!end.is_closed());
    end.advance(SECOND);
    assert!(end.is_closed());
    assert!(
        log(&end).starts_with("failed 1 peer: PING not answered"),
        "{}",
        log(&end)
    );
}

/// A connection that was idle before its request gets no immediate ping.
#[test]
fn the_ping_interval_starts_with_the_request() {
    let mut limits = Limits::client();
    limits.http2.ping_interval = Some(10 * SECOND);
    let mut end = client_with(limits);
    end.advance(60 * SECOND);
    request(&mut end, BodySize::Empty).expect("room");
    let asked = sent_by(&mut end, |end| end.advance(9 * SECOND));
    assert!(asked.is_empty(), "{asked:?}");
    assert_eq!(sent_by(&mut end, |end| end.advance(SECOND)), ["PING"]);
}
