//! The peer stops at every byte of a message, by FIN or by reset: an incomplete message never looks complete.

use std::sync::Arc;

use towline_proto::{ErrorSource, Limits};
use towline_testkit::{App, End, wire};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    Eof,
    Reset,
}

fn stop(end: &mut End, how: Stop) {
    match how {
        Stop::Eof => end.feed_eof(),
        Stop::Reset => end.feed_abort(),
    }
}

#[test]
fn a_request_cut_short_is_never_complete() {
    let padding = format!("X: {}", "y".repeat(700));
    let requests = [
        wire::request("POST", "/", &["Content-Length: 5"], b"hello"),
        wire::request(
            "POST",
            "/",
            &["Transfer-Encoding: chunked", &padding],
            &wire::chunked(&["hello", "x"], &["A: b"]),
        ),
        wire::request("GET", "/", &[&padding], b""),
    ];
    for request in requests {
        for (len, how) in (1..request.len()).flat_map(|len| [(len, Stop::Eof), (len, Stop::Reset)])
        {
            let mut end = End::server(&Arc::new(Limits::server()), App::Read);
            end.feed(&request[..len]);
            stop(&mut end, how);
            let log = end.log_text();
            let shown = request[..len].escape_ascii();
            assert!(
                !log.contains("wrote 200") && !log.contains("end 1"),
                "{how:?} after {shown}:\n{log}"
            );
            assert!(
                end.is_closed() && end.conn.interest().closed,
                "{how:?} after {shown}:\n{log}"
            );
            assert_eq!(
                end.conn.error().map(|error| error.source),
                Some(ErrorSource::Peer),
                "{how:?} after {shown}:\n{log}"
            );
            assert_eq!(
                log.contains("request 1"),
                log.contains("failed 1"),
                "{how:?} after {shown}:\n{log}"
            );
        }
    }
}

#[test]
fn a_response_cut_short_is_never_complete() {
    let responses = [
        wire::response(200, &["Content-Length: 5"], b"hello"),
        wire::response(
            200,
            &["Transfer-Encoding: chunked"],
            &wire::chunked(&["hello", "x"], &["A: b"]),
        ),
        [
            &b"HTTP/1.1 103 Early Hints\r\n\r\n"[..],
            &wire::response(204, &[], b""),
        ]
        .concat(),
    ];
    for response in responses {
        for (len, how) in (0..response.len()).flat_map(|len| [(len, Stop::Eof), (len, Stop::Reset)])
        {
            let mut end = End::client(&Arc::new(Limits::client()), &[("GET", "/")]);
            end.feed(&response[..len]);
            stop(&mut end, how);
            let log = end.log_text();
            let shown = response[..len].escape_ascii();
            assert!(
                log.contains("failed 1") && !log.contains("end 1"),
                "{how:?} after {shown}:\n{log}"
            );
            assert!(
                end.conn.interest().closed && !end.conn.is_reusable(),
                "{how:?} after {shown}:\n{log}"
            );
        }
    }
}

/// A response delimited by closing: a FIN is the end, a reset is not.
#[test]
fn a_response_until_the_close_ends_with_a_fin_only() {
    for (how, complete) in [(Stop::Eof, true), (Stop::Reset, false)] {
        let mut end = End::client(&Arc::new(Limits::client()), &[("GET", "/")]);
        end.feed(&wire::response(200, &[], b"hello"));
        stop(&mut end, how);
        let log = end.log_text();
        assert_eq!(
            (log.contains("end 1"), log.contains("failed 1")),
            (complete, !complete),
            "{how:?}:\n{log}"
        );
    }
}

/// A peer that disconnects during processing: the program is notified, and its further calls are safe.
#[test]
fn calls_after_the_peer_disconnected_are_safe() {
    for how in [Stop::Eof, Stop::Reset] {
        let mut end = End::server_with_request(&wire::get("/"));
        stop(&mut end, how);
        let answered = end.send_response(200, &[], towline_proto::BodySize::Empty);
        end.run_until_idle();
        assert_eq!(answered.is_ok(), how == Stop::Eof, "{how:?}: {answered:?}");
        assert!(end.conn.interest().closed, "{how:?}: {}", end.log_text());
    }
}
