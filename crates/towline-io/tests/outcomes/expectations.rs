//! `Expect: 100-continue` (RFC 9110 10.1.1) without a `100 Continue`.

use std::io::Read;
use std::sync::mpsc;

use towline_io::client::{CallErrorKind, CallPhase};

use super::case::{
    Case, Version, close, http1, http2, on_all, replies_on_both, reset, route_to, verdict,
};
use crate::support::MAX_WAIT;
use crate::support::calls::send;
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, frame};

/// `:status 417`: the name from the static table (RFC 7541 6.2.2), the value as text.
const EXPECTATION_FAILED: &[u8] = b"\x08\x03417";

#[test]
fn a_connection_that_ends_before_100_continue_has_sent_the_head() {
    let case = Case::new("PUT").with_body(100).expecting();
    let found = on_all(&case, |stream| close(&stream), |frames, _| close(&frames.0));
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::ServerDisconnected, CallPhase::Head, true)
    );
}

#[test]
fn expectation_failed_is_the_response_and_the_body_is_not_sent() {
    for case in [
        Case::new("PUT").with_body(100).expecting(),
        Case::new("PUT").streaming(b"body").expecting(),
    ] {
        let (sender1, bodies) = mpsc::channel();
        let sender2 = sender1.clone();
        let server1 = http1(move |mut stream| {
            send(
                &mut stream,
                "HTTP/1.1 417 No\r\ncontent-length: 2\r\n\r\nno",
            );
            let mut body = Vec::new();
            let _ = stream.read_to_end(&mut body);
            sender1.send(body).unwrap();
        });
        let server2 = http2(move |mut frames, stream| {
            frames.send(&frame(HEADERS, END_HEADERS, stream, EXPECTATION_FAILED));
            frames.send(&frame(DATA, END_STREAM, stream, b"no"));
            let mut body = Vec::new();
            while let Some((kind, _, payload)) = frames.next() {
                if kind == DATA {
                    body.extend(payload);
                }
            }
            sender2.send(body).unwrap();
        });
        for (version, server) in [(Version::Http1, &server1), (Version::Http2, &server2)] {
            let reply = replies_on_both(&case, version, &route_to(server));
            assert_eq!(reply, Ok((417, b"no".to_vec())), "{version:?}");
            for _ in 0..2 {
                assert_eq!(bodies.recv_timeout(MAX_WAIT).unwrap(), b"", "{version:?}");
            }
        }
    }
}

#[test]
fn an_end_within_the_body_of_expectation_failed_is_a_disconnect() {
    let case = Case::new("PUT").with_body(100).expecting();
    let found = on_all(
        &case,
        |mut stream| {
            send(&mut stream, "HTTP/1.1 417 No\r\ncontent-length: 2\r\n\r\nn");
            close(&stream);
        },
        |mut frames, stream| {
            frames.send(&frame(HEADERS, END_HEADERS, stream, EXPECTATION_FAILED));
            frames.send(&frame(DATA, 0, stream, b"n"));
            close(&frames.0);
        },
    );
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::ServerDisconnected, CallPhase::Body, true)
    );
}

#[test]
fn a_reset_instead_of_100_continue_may_be_retried_if_idempotent() {
    for (method, retryable) in [("PUT", true), ("POST", false)] {
        let case = Case::new(method).with_body(100).expecting();
        let found = on_all(&case, |stream| reset(&stream), |frames, _| reset(&frames.0));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::Read, CallPhase::Head, retryable)
        );
    }
}
