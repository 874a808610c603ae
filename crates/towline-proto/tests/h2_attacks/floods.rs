//! Frames that move nothing.

use std::sync::Arc;

use towline_proto::{BodySize, ErrorCode, Limits, StreamId};
use towline_testkit::h2::{self, END};
use towline_testkit::{App, End};

use super::{CALM, Step, assert_closes, frames_until_closed, server};
use crate::h2::{asking_client, get};

/// CVE-2019-9511 to 9518.
#[test]
fn floods() {
    let floods: &[(&str, Step)] = &[
        ("SETTINGS", |_| h2::settings(&[])),
        ("SETTINGS that change the window", |id| {
            h2::settings(&[(h2::INITIAL_WINDOW_SIZE, id)])
        }),
        ("acknowledgements of SETTINGS", |_| h2::settings_ack()),
        ("PING", |_| h2::ping()),
        ("answers to PING", |_| {
            h2::frame(h2::PING, h2::ACK, 0, b"alive? \0")
        }),
        ("PRIORITY of idle streams", |id| h2::priority(id, 0)),
        ("PRIORITY of a closed stream", |_| h2::priority(1, 0)),
        ("PRIORITY_UPDATE", |id| h2::priority_update(id, "u=1")),
        ("unknown frames", |id| h2::frame(h2::UNKNOWN, 0, id, b"x")),
        ("WINDOW_UPDATE of one byte", |_| h2::window_update(0, 1)),
        ("WINDOW_UPDATE of a closed stream", |_| {
            h2::window_update(1, 1)
        }),
        ("large WINDOW_UPDATE of a closed stream", |_| {
            h2::window_update(1, 65_536)
        }),
    ];
    for (name, step) in floods {
        assert_closes(server(App::Read), name, *step);
    }
}

/// A flood on a stream that is open.
#[test]
fn floods_on_a_stream() {
    let floods: &[(&str, Step)] = &[
        ("empty DATA", |_| h2::data(3, b"")),
        ("DATA of padding", |_| {
            h2::frame(h2::DATA, h2::PADDED, 3, b"\x02\0\0")
        }),
        ("WINDOW_UPDATE of one byte", |_| h2::window_update(3, 1)),
        ("PRIORITY", |_| h2::priority(3, 0)),
        ("PRIORITY_UPDATE", |_| h2::priority_update(3, "u=1")),
        ("GOAWAY", |_| h2::go_away(0, ErrorCode::NO_ERROR)),
    ];
    for (name, step) in floods {
        let mut end = server(App::Read);
        end.feed(&h2::post(3, &[]));
        assert_closes(end, name, *step);
    }
}

/// A flood from a server to a client.
#[test]
fn floods_from_a_server() {
    let floods: &[(&str, Step)] = &[
        ("SETTINGS", |_| h2::settings(&[])),
        ("PING", |_| h2::ping()),
        ("empty DATA", |_| h2::data(1, b"")),
        ("unknown frames", |_| h2::frame(h2::UNKNOWN, 0, 0, b"x")),
        ("GOAWAY", |_| h2::go_away(1, ErrorCode::NO_ERROR)),
        ("WINDOW_UPDATE of one byte", |_| h2::window_update(0, 1)),
        ("PRIORITY", |_| h2::priority(1, 0)),
    ];
    for (name, step) in floods {
        let mut end = asking_client();
        end.feed(&h2::headers(1, 0, &[(":status", "200")]));
        assert!(end.log.text().contains("response 1 200"));
        assert_closes(end, name, *step);
    }
}

#[test]
fn endless_interim_responses_close_the_connection() {
    let mut end = asking_client();
    for _ in 0..101 {
        assert_eq!(h2::stream_errors(end.written(), 1), []);
        end.feed(&h2::headers(1, 0, &[(":status", "103")]));
    }
    assert_eq!(h2::stream_errors(end.written(), 1), [CALM]);
    assert!(end.log.text().contains("failed 1 peer: too many interim"));
    get(&mut end);
    end.feed(&h2::headers(3, END, &[(":status", "200")]));
    assert!(end.log.text().contains("response 3 200 HTTP/2 end"));
}

#[test]
fn a_server_push_closes_the_connection() {
    let mut end = asking_client();
    let promise = [&2_u32.to_be_bytes()[..], &h2::block(&h2::pseudo("GET"))].concat();
    end.feed(&h2::frame(h2::PUSH_PROMISE, h2::END_HEADERS, 1, &promise));
    let code = h2::connection_error(end.written());
    assert_eq!(code, Some(ErrorCode::PROTOCOL_ERROR));
}

/// One SETTINGS frame can change the window of every stream 2,730 times: the last value applies, and windows
/// change once.
#[test]
fn settings_that_change_many_windows_are_charged_as_many_frames() {
    let mut end = server(App::Silent);
    (3..195)
        .step_by(2)
        .for_each(|stream| end.feed(&h2::get(stream)));
    let change: Step = |id| h2::settings(&[(h2::INITIAL_WINDOW_SIZE, id)]);
    let frames = frames_until_closed(&mut end, "windows", change);
    // A client that changes its setting twenty times is far from the limit.
    assert!((50..100).contains(&frames), "{frames} frames");
}

#[test]
fn repeated_settings_in_one_frame_are_applied_once() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 0)]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Known(9))
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(b"9 bytes..").expect("room");
    let mut pairs = vec![(h2::INITIAL_WINDOW_SIZE, 0x7fff_ffff); 2729];
    pairs.push((h2::INITIAL_WINDOW_SIZE, 5));
    end.feed(&h2::settings(&pairs));
    let last = h2::lines(end.written()).pop();
    assert_eq!(last.as_deref(), Some("DATA 1 5 bytes"));
}
