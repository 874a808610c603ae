//! Ends of connections and streams of HTTP/2: GOAWAY both ways, refusals, changing limits, end of input.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BodySize, ErrorCode, Event, Limits, StreamError, StreamId, UserError};
use towline_testkit::h2::{self, END};
use towline_testkit::{App, End, Pair};

use crate::h2::{client_with, log, request, sent_by, server};

const SECOND: Duration = Duration::from_secs(1);
const GO_AWAY_DELAY: Duration = Limits::server().http2.go_away_delay;

fn client() -> End {
    client_with(Limits::client())
}

/// The acknowledgement of the PING after the first GOAWAY.
fn pong() -> Vec<u8> {
    h2::frame(h2::PING, h2::ACK, 0, b"leaving\0")
}

// ---- a server closes ----

/// RFC 9113 6.8: an announcement, and a final GOAWAY when requests on their way have arrived.
#[test]
fn a_server_closes_in_two_steps() {
    let mut end = server(App::Manual);
    end.feed(&h2::get(1));
    let told = sent_by(&mut end, |end| end.conn.close());
    assert_eq!(told, ["GOAWAY last 2147483647 NO_ERROR", "PING"]);
    // Two requests that were on their way, one of them written by another thread than the acknowledgement.
    end.feed(&h2::get(3));
    assert!(sent_by(&mut end, |end| end.feed(&pong())).is_empty());
    end.advance(GO_AWAY_DELAY / 2);
    end.feed(&h2::get(5));
    assert!(sent_by(&mut end, |end| end.feed(&pong())).is_empty());
    let left = sent_by(&mut end, |end| end.advance(GO_AWAY_DELAY / 2));
    assert_eq!(left, ["GOAWAY last 5 NO_ERROR"]);
    // A request after the final GOAWAY.
    assert!(sent_by(&mut end, |end| end.feed(&h2::get(7))).is_empty());
    assert!(!log(&end).contains("request 7"));
    let second = sent_by(&mut end, |end| {
        end.send_response(204, &[], BodySize::Empty).expect("open");
    });
    assert_eq!(second, ["HEADERS 5 end"]);
    let head = towline_proto::ResponseHead {
        status: 204,
        reason: b"",
        fields: &[],
    };
    for stream in [3, 1] {
        assert!(!end.is_closed());
        end.conn
            .respond(StreamId(stream), &head, BodySize::Empty)
            .expect("open");
        end.run_until_idle();
    }
    assert!(end.is_closed() && end.conn.interest().shutdown);
    assert!(log(&end).ends_with("closed closed in order\n"));
}

#[test]
fn a_client_without_a_ping_ack_gets_the_final_goaway_after_a_second() {
    let mut end = server(App::Manual);
    end.feed(&h2::get(1));
    end.conn.close();
    let left = sent_by(&mut end, |end| end.advance(SECOND));
    assert_eq!(
        left,
        [
            "GOAWAY last 2147483647 NO_ERROR",
            "PING",
            "GOAWAY last 1 NO_ERROR"
        ]
    );
    end.send_response(204, &[], BodySize::Empty).expect("open");
    end.run_until_idle();
    assert!(end.is_closed());
}

/// A request that is on its way when a server begins to stop gets a response.
#[test]
fn a_request_on_its_way_at_close_is_served() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
    end.conn.close();
    end.feed(&[h2::client_preface(), h2::get(1)].concat());
    assert!(log(&end).contains("request 1"));
    end.advance(GO_AWAY_DELAY);
    end.feed(&pong());
    end.advance(GO_AWAY_DELAY);
    assert!(end.is_closed());
    let mut silent = End::h2_server(&Arc::new(Limits::server()), App::Read);
    silent.conn.close();
    silent.advance(SECOND);
    assert!(silent.is_closed());
}

/// `HAProxy` waits for the server's SETTINGS before its first request, and fails it if GOAWAY comes with them.
#[test]
fn goaway_comes_after_the_first_request_of_a_new_connection() {
    for is_closed_before_settings in [true, false] {
        let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
        let first = sent_by(&mut end, |end| {
            if is_closed_before_settings {
                end.conn.close();
            }
            end.feed(&h2::client_preface());
            end.conn.close();
        });
        let is_goaway = |line: &String| line.starts_with("GOAWAY");
        assert!(!first.iter().any(is_goaway), "{first:?}");
        end.feed(&h2::get(1));
        let then = sent_by(&mut end, |end| end.advance(GO_AWAY_DELAY));
        assert_eq!(then, ["GOAWAY last 2147483647 NO_ERROR", "PING"]);
        assert!(log(&end).contains("request 1"));
        end.feed(&pong());
        let last = sent_by(&mut end, |end| end.advance(GO_AWAY_DELAY));
        assert_eq!(last, ["GOAWAY last 1 NO_ERROR"]);
        assert!(end.is_closed());
    }
}

/// The last stream of a closing connection is still reset if it is aborted.
#[test]
fn a_reset_is_sent_before_the_connection_closes() {
    let mut end = server(App::Manual);
    end.feed(&h2::get(1));
    end.conn.close();
    end.feed(&pong());
    end.advance(GO_AWAY_DELAY);
    let last = sent_by(&mut end, |end| {
        end.send_response(200, &[], BodySize::Known(100_000))
            .expect("open");
        let mut stream = end.conn.stream(StreamId(1)).expect("open");
        stream.write(&vec![b'x'; 100_000]).expect("room");
        stream.finish().expect("complete");
        stream.reset();
    });
    assert!(end.is_closed());
    assert_eq!(last.last().expect("sent"), "RST_STREAM 1 INTERNAL_ERROR");
}

#[test]
fn both_ends_close_simultaneously() {
    let mut pair = Pair::of(
        End::h2_client(&Arc::new(Limits::client())),
        End::h2_server(&Arc::new(Limits::server()), App::Read),
    );
    pair.run();
    request(&mut pair.client, BodySize::Empty).expect("room");
    pair.client.conn.close();
    pair.server.conn.close();
    pair.run();
    assert!(log(&pair.client).contains("response 1 200"));
    assert!(pair.client.is_closed() && pair.server.is_closed());
    assert!(pair.client.conn.interest().closed);
    pair.advance(5 * SECOND);
    assert!(pair.server.conn.interest().closed);
}

// ---- a client, on either side's GOAWAY ----

#[test]
fn requests_above_the_last_stream_may_be_sent_again() {
    let mut end = client();
    for _ in 0..3 {
        request(&mut end, BodySize::Empty).expect("room");
    }
    end.feed(&h2::go_away(3, ErrorCode::NO_ERROR));
    assert_eq!(
        log(&end),
        "failed 5 peer: not processed: above the last stream of GOAWAY (RFC 9113 6.8)\ngoing away 3\n"
    );
    assert_eq!(end.conn.stream_capacity(), 0);
    assert_eq!(request(&mut end, BodySize::Empty), Err(UserError::NotIdle));
    let answer = |id| h2::headers(id, END, &[(":status", "204")]);
    end.feed(&answer(3));
    // A second GOAWAY lowers it.
    end.feed(&h2::go_away(0, ErrorCode::NO_ERROR));
    assert!(log(&end).contains("failed 1 peer: not processed"));
    assert!(end.is_closed());
}

#[test]
fn a_refused_request_is_certainly_not_processed() {
    let mut end = client();
    request(&mut end, BodySize::Empty).expect("room");
    request(&mut end, BodySize::Empty).expect("room");
    let space = end.conn.recv_space(&mut end.buffers);
    let wire = [
        h2::reset(1, ErrorCode::REFUSED_STREAM),
        h2::reset(3, ErrorCode::CANCEL),
    ]
    .concat();
    space[..wire.len()].copy_from_slice(&wire);
    end.conn.received(end.clock.now(), wire.len());
    let mut seen = Vec::new();
    while let Some(event) = end.conn.next_event() {
        if let Event::Failed(stream, error) = event {
            seen.push((stream.0, error.is_unprocessed(), error));
        }
    }
    assert_eq!((seen[0].0, seen[0].1), (1, true));
    assert_eq!(
        seen[1],
        (3, false, StreamError::ResetByPeer(ErrorCode::CANCEL))
    );
    assert_eq!(end.conn.stream_capacity(), 100);
}

#[test]
fn a_client_closes_after_its_last_response() {
    let mut end = client();
    request(&mut end, BodySize::Empty).expect("room");
    let told = sent_by(&mut end, |end| end.conn.close());
    assert_eq!(told, ["GOAWAY last 0 NO_ERROR"]);
    assert_eq!(request(&mut end, BodySize::Empty), Err(UserError::NotIdle));
    assert!(!end.is_closed());
    end.feed(&h2::headers(1, END, &[(":status", "204")]));
    assert!(end.is_closed() && end.conn.interest().closed);
}

/// A complete response is valid while the request body is still being sent (RFC 9113 8.1).
#[test]
fn a_no_error_reset_after_the_response_is_no_failure() {
    let mut end = client();
    let id = request(&mut end, BodySize::Unknown).expect("room");
    end.feed(
        &[
            h2::headers(1, 0, &[(":status", "200")]),
            h2::last_data(1, b"no"),
            h2::reset(1, ErrorCode::NO_ERROR),
            // For DATA that was on its way: the response stays complete.
            h2::reset(1, ErrorCode::STREAM_CLOSED),
        ]
        .concat(),
    );
    end.feed(&h2::reset(1, ErrorCode::STREAM_CLOSED));
    assert_eq!(log(&end), "response 1 200 HTTP/2\nbody 1 no\nend 1\n");
    if let Ok(mut stream) = end.conn.stream(id) {
        stream.write(b"goes nowhere").expect("swallowed");
        stream.finish().expect("complete");
    }
    end.run_until_idle();
    assert!(end.conn.is_idle());
}

/// Resets by a server are no attack on its client.
#[test]
fn a_client_accepts_any_number_of_resets() {
    let mut end = client();
    for id in (1..1001).step_by(2) {
        request(&mut end, BodySize::Empty).expect("room");
        end.feed(&h2::reset(id, ErrorCode::REFUSED_STREAM));
    }
    assert!(!end.is_closed());
}

// ---- limits that change ----

#[test]
fn stream_capacity_follows_the_peers_limit() {
    let mut end = End::h2_client(&Arc::new(Limits::client()));
    assert_eq!(end.conn.stream_capacity(), 100);
    end.feed(&h2::server_preface_with(&[(h2::MAX_CONCURRENT_STREAMS, 2)]));
    assert_eq!(end.conn.stream_capacity(), 2);
    for left in [1, 0] {
        request(&mut end, BodySize::Empty).expect("room");
        assert_eq!(end.conn.stream_capacity(), left);
    }
    assert_eq!(request(&mut end, BodySize::Empty), Err(UserError::NotIdle));
    // Fewer than are open.
    end.feed(&h2::settings(&[(h2::MAX_CONCURRENT_STREAMS, 1)]));
    end.feed(&h2::headers(1, END, &[(":status", "204")]));
    assert_eq!(end.conn.stream_capacity(), 0);
    end.feed(&h2::headers(3, END, &[(":status", "204")]));
    assert_eq!(end.conn.stream_capacity(), 1);
    end.feed(&h2::settings(&[(h2::MAX_CONCURRENT_STREAMS, u32::MAX)]));
    assert_eq!(end.conn.stream_capacity(), 1024);
}

/// RFC 9113 6.9.2.
#[test]
fn a_negative_window_is_paid_back_first() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 100)]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Known(300))
        .expect("open");
    let sent = sent_by(&mut end, |end| {
        let mut stream = end.conn.stream(StreamId(1)).expect("open");
        stream.write(&[b'x'; 300]).expect("room");
    });
    assert_eq!(sent.last().expect("sent"), "DATA 1 100 bytes");
    // 100 were sent and the window is 30 now: it is -70.
    let shrunk = sent_by(&mut end, |end| {
        end.feed(&h2::settings(&[(h2::INITIAL_WINDOW_SIZE, 30)]));
        end.feed(&h2::window_update(1, 70));
    });
    assert_eq!(shrunk, ["SETTINGS ack"]);
    let paid = sent_by(&mut end, |end| end.feed(&h2::window_update(1, 7)));
    assert_eq!(paid, ["DATA 1 7 bytes"]);
    let raised = sent_by(&mut end, |end| {
        end.feed(&h2::settings(&[(h2::INITIAL_WINDOW_SIZE, 1000)]));
    });
    assert_eq!(raised, ["SETTINGS ack", "DATA 1 193 bytes end"]);
}

/// The stream was queued while the connection's window was closed; when that opens, its own window is closed.
#[test]
fn a_queued_stream_with_a_closed_window_sends_nothing() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(
        h2::INITIAL_WINDOW_SIZE,
        100_000,
    )]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Known(100_000))
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(&vec![b'x'; 100_000]).expect("room");
    end.run_until_idle();
    let shut = sent_by(&mut end, |end| {
        end.feed(&h2::settings(&[(h2::INITIAL_WINDOW_SIZE, 0)]));
        end.feed(&h2::window_update(0, 100_000));
    });
    assert_eq!(shut, ["SETTINGS ack"]);
}

/// An initial window below the default of RFC 9113 makes the window of an earlier stream negative.
#[test]
fn a_body_may_end_with_a_negative_window() {
    let mut limits = Limits::server();
    limits.http2.stream_window_bytes = 1000;
    let mut end = End::h2_server(&Arc::new(limits), App::Silent);
    end.feed(&[h2::PREFACE, &h2::settings(&[]), &h2::post(1, &[])].concat());
    end.feed(&h2::data(1, &[0; 5000]));
    end.feed(&[h2::settings_ack(), h2::last_data(1, b"")].concat());
    assert_eq!(h2::stream_errors(end.written(), 1), []);
}

// ---- after our reset ----

/// As much as its window allowed when it was reset, by the program or because its head was invalid, and no more.
#[test]
fn data_on_a_reset_stream_is_bounded_by_its_window() {
    let give_up = |end: &mut End| {
        end.feed(&[h2::post(1, &[]), h2::data(1, &[0; 16_384])].concat());
        end.conn.stream(StreamId(1)).expect("open").reset();
        end.run_until_idle();
    };
    let refuse = |end: &mut End| {
        let wrong = [&h2::pseudo("POST")[..], &[("connection", "close")]].concat();
        end.feed(&h2::headers(1, 0, &wrong));
    };
    for (reset, frames) in [(&give_up as &dyn Fn(&mut End), 15), (&refuse, 16)] {
        let mut end = server(App::Manual);
        reset(&mut end);
        assert_eq!(h2::stream_errors(end.written(), 1).len(), 1);
        for _ in 0..frames {
            end.feed(&h2::data(1, &[0; 16_384]));
            assert!(!end.is_closed(), "the peer may not know yet");
        }
        let sent = sent_by(&mut end, |end| end.feed(&h2::data(1, b"x")));
        assert_eq!(sent, ["GOAWAY last 1 FLOW_CONTROL_ERROR"]);
    }
}

/// The peer applies our larger window before we receive its acknowledgement.
#[test]
fn a_stream_reset_before_the_settings_ack_has_the_larger_window() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&[h2::PREFACE, &h2::settings(&[]), &h2::post(1, &[])].concat());
    end.conn.stream(StreamId(1)).expect("open").reset();
    end.run_until_idle();
    end.feed(&h2::settings_ack());
    for _ in 0..16 {
        end.feed(&h2::data(1, &[0; 16_384]));
    }
    assert!(!end.is_closed(), "{}", log(&end));
    end.feed(&h2::data(1, b"x"));
    assert!(end.is_closed());
}

/// Empty frames need no window: they are charged as control frames.
#[test]
fn empty_data_on_a_reset_stream_is_charged() {
    let mut end = server(App::Manual);
    end.feed(&h2::post(1, &[]));
    end.conn.stream(StreamId(1)).expect("open").reset();
    end.run_until_idle();
    end.feed(&h2::last_data(1, b"").repeat(1001));
    let error = h2::connection_error(end.written());
    assert_eq!(error, Some(ErrorCode::ENHANCE_YOUR_CALM));
}

// ---- end of input ----

#[test]
fn end_of_input() {
    let begun = h2::client_preface();
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("idle", vec![], "closed closed in order"),
        (
            "inside a frame header",
            vec![0, 0],
            "closed peer: end of input",
        ),
        (
            "inside a frame",
            h2::ping()[..12].to_vec(),
            "closed peer: end of input",
        ),
        (
            "inside a header block",
            h2::frame(h2::HEADERS, END, 1, b""),
            "closed peer: end of input",
        ),
        (
            "inside a body",
            h2::post(1, &[]),
            "failed 1 peer: end of input",
        ),
        ("behind a request", h2::get(1), "half-closed 1"),
    ];
    for (name, wire, expected) in cases {
        let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
        end.feed(&[begun.clone(), wire.clone()].concat());
        end.feed_eof();
        assert!(log(&end).contains(expected), "{name}: {}", log(&end));
    }
}

#[test]
fn a_half_closed_peer_gets_its_responses() {
    let mut end = server(App::Manual);
    end.feed(&h2::get(1));
    end.feed_eof();
    assert!(!end.is_closed());
    let sent = sent_by(&mut end, |end| {
        end.send_response(204, &[], BodySize::Empty).expect("open");
    });
    assert_eq!(sent, ["HEADERS 1 end", "GOAWAY last 1 NO_ERROR"]);
    assert!(end.is_closed() && end.conn.interest().closed);
}

/// A server that responds to `requests` requests with 100,000 bytes each, to a peer with stream windows of
/// `window`.
fn server_with_responses(limits: Limits, requests: u32, window: u32) -> End {
    let mut end = End::h2_server(&Arc::new(limits), App::Manual);
    end.feed(&h2::client_preface_with(&[(
        h2::INITIAL_WINDOW_SIZE,
        window,
    )]));
    for id in (1..=2 * requests).step_by(2) {
        end.feed(&h2::get(id));
        end.send_response(200, &[], BodySize::Known(100_000))
            .expect("open");
    }
    end
}

fn write(end: &mut End, id: u64, n: usize) {
    let mut stream = end.conn.stream(StreamId(id)).expect("open");
    stream.write(&vec![b'x'; n]).expect("room");
    end.run_until_idle();
}

/// The window can never open: the program is notified now, not when the timer expires.
#[test]
fn end_of_input_fails_bodies_blocked_by_a_window() {
    let mut end = server_with_responses(Limits::server(), 2, 50_000);
    write(&mut end, 1, 60_000);
    write(&mut end, 3, 10_000);
    let sent = sent_by(&mut end, End::feed_eof);
    assert_eq!(sent, ["RST_STREAM 1 CANCEL"]);
    let told = log(&end);
    assert!(told.contains("failed 1 peer: end of input while a body waits"));
    assert!(told.contains("half-closed 3") && !end.is_closed());
}

/// Bodies written later, and the connection's window, end in the same way.
#[test]
fn after_the_end_of_input_only_bodies_within_the_windows_are_sent() {
    let mut end = server_with_responses(Limits::server(), 2, 50_000);
    end.feed_eof();
    let within = sent_by(&mut end, |end| write(end, 1, 50_000));
    assert_eq!(within.len(), 4, "{within:?}");
    let beyond = sent_by(&mut end, |end| write(end, 1, 1));
    assert_eq!(beyond, ["RST_STREAM 1 CANCEL"]);
    // 15,535 bytes of the connection's window are left.
    let shared = sent_by(&mut end, |end| write(end, 3, 15_536));
    assert_eq!(shared, ["RST_STREAM 3 CANCEL"]);
    let last = sent_by(&mut end, |end| {
        for id in [1, 3] {
            end.conn.stream(StreamId(id)).expect("failed").reset();
        }
    });
    assert_eq!(last, ["GOAWAY last 3 NO_ERROR"]);
    assert!(end.is_closed());
}

/// Two bodies that fit into the rest of the connection's window only individually.
#[test]
fn after_the_end_of_input_the_remaining_window_is_used() {
    let mut limits = Limits::server();
    limits.send_window_bytes = 10_000;
    let mut end = server_with_responses(limits, 3, 60_000);
    end.send_room = 0;
    write(&mut end, 1, 60_000);
    write(&mut end, 3, 4000);
    write(&mut end, 5, 4000);
    let sent = sent_by(&mut end, |end| {
        end.feed_eof();
        end.send_room = usize::MAX;
    });
    let last = [
        "DATA 3 4000 bytes",
        "DATA 5 1535 bytes",
        "RST_STREAM 5 CANCEL",
    ];
    assert_eq!(sent[sent.len() - 3..], last);
    assert!(log(&end).contains("half-closed 5\nfailed 5 peer: end of input while a body waits"));
}

/// A finished response that cannot be sent does not keep the connection open.
#[test]
fn end_of_input_removes_a_blocked_finished_response() {
    let mut end = server_with_responses(Limits::server(), 1, 50_000);
    write(&mut end, 1, 100_000);
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.finish().expect("complete");
    end.run_until_idle();
    let sent = sent_by(&mut end, End::feed_eof);
    assert_eq!(sent, ["RST_STREAM 1 CANCEL", "GOAWAY last 1 NO_ERROR"]);
    assert!(end.is_closed() && !log(&end).contains("failed"));
}

#[test]
fn end_of_input_fails_outstanding_responses() {
    let mut end = client();
    request(&mut end, BodySize::Empty).expect("room");
    end.feed_eof();
    assert!(
        log(&end).starts_with("failed 1 peer: end of input"),
        "{}",
        log(&end)
    );
    assert!(end.is_closed());
    let mut idle = client();
    idle.feed_eof();
    assert!(log(&idle).ends_with("closed closed in order\n"));
}

#[test]
fn a_transport_failure_fails_every_stream() {
    let mut end = client();
    request(&mut end, BodySize::Empty).expect("room");
    request(&mut end, BodySize::Unknown).expect("room");
    end.feed_abort();
    let text = log(&end);
    assert!(text.contains("failed 1 ") && text.contains("failed 3 ") && end.is_closed());
    assert!(end.conn.interest().closed && end.conn.deadline().is_none());
}

/// Everything received before a GOAWAY with an error can be read.
#[test]
fn a_complete_response_can_be_read_after_the_connection_failed() {
    let mut end = client();
    let id = request(&mut end, BodySize::Empty).expect("room");
    let wire = [
        h2::headers(1, 0, &[(":status", "200")]),
        h2::last_data(1, b"hello"),
        h2::frame(h2::SETTINGS, 0, 1, b""),
    ]
    .concat();
    end.feed(&wire);
    assert!(end.is_closed());
    end.read(id);
    assert!(log(&end).contains("body 1 hello"), "{}", log(&end));
    assert!(!log(&end).contains("failed"), "{}", log(&end));
}
