//! Failures of an exchange: the end of its connection, violations, timeouts and resets.

use std::io::Read;
use std::net::Shutdown;

use towline_io::client::{CallErrorKind, CallPhase};

use super::case::{
    Case, SHORT, Version, close, drain, http1, http2, on_all, on_both, reset, route_to, verdict,
};
use crate::support::calls::send;
use crate::support::frames::{DATA, END_HEADERS, Frames, HEADERS, OK, RESET, frame, goaway};

#[test]
fn an_end_before_the_head_may_be_retried_if_idempotent() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method);
        let eof = on_all(&case, |stream| close(&stream), |frames, _| close(&frames.0));
        assert_eq!(
            eof.is(),
            verdict(
                CallErrorKind::ServerDisconnected,
                CallPhase::Head,
                retryable
            )
        );
        let rst = on_all(&case, |stream| reset(&stream), |frames, _| reset(&frames.0));
        assert_eq!(
            rst.is(),
            verdict(CallErrorKind::Read, CallPhase::Head, retryable)
        );
    }
}

#[test]
fn an_end_within_the_body_may_be_retried_if_idempotent() {
    const PART: &str = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
    fn part(frames: &mut Frames, stream: u32) {
        frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
        frames.send(&frame(DATA, 0, stream, b"abc"));
    }
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method);
        let eof = on_all(
            &case,
            |mut stream| {
                send(&mut stream, PART);
                let _ = stream.shutdown(Shutdown::Write);
                drain(&stream);
            },
            |mut frames, stream| {
                part(&mut frames, stream);
                let _ = frames.0.shutdown(Shutdown::Write);
                drain(&frames.0);
            },
        );
        assert_eq!(
            eof.is(),
            verdict(
                CallErrorKind::ServerDisconnected,
                CallPhase::Body,
                retryable
            )
        );
    }
}

#[test]
fn a_malformed_head_is_a_protocol_error() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method);
        let server = http1(|mut stream| {
            send(&mut stream, "HTTP/1.1 2x0 OK\r\n\r\n");
            drain(&stream);
        });
        let found = on_both(&case, Version::Http1, &route_to(&server));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::RemoteProtocol, CallPhase::Head, retryable)
        );
        let server = http2(|mut frames, stream| {
            // The index 0 is an error of HPACK (RFC 7541 6.1).
            frames.send(&frame(HEADERS, END_HEADERS, stream, &[0x80]));
            drain(&frames.0);
        });
        let found = on_both(&case, Version::Http2, &route_to(&server));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::RemoteProtocol, CallPhase::Head, retryable)
        );
    }
}

#[test]
fn an_end_within_the_head_is_a_disconnect() {
    let server = http1(|mut stream| {
        send(&mut stream, "HTTP/1.1 200 OK\r\nconte");
        let _ = stream.shutdown(Shutdown::Write);
        drain(&stream);
    });
    let found = on_both(&Case::new("GET"), Version::Http1, &route_to(&server));
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::ServerDisconnected, CallPhase::Head, true)
    );
}

#[test]
fn a_read_timeout_reports_head_or_body() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method).with_timeouts(|timeouts| timeouts.read = Some(SHORT));
        let timed_out = on_all(&case, |stream| drain(&stream), |frames, _| drain(&frames.0));
        assert_eq!(
            timed_out.is(),
            verdict(CallErrorKind::ReadTimeout, CallPhase::Head, retryable)
        );
        let stalled = on_all(
            &case,
            |mut stream| {
                send(
                    &mut stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
                );
                drain(&stream);
            },
            |mut frames, stream| {
                frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
                frames.send(&frame(DATA, 0, stream, b"abc"));
                drain(&frames.0);
            },
        );
        assert_eq!(
            stalled.is(),
            verdict(CallErrorKind::ReadTimeout, CallPhase::Body, retryable)
        );
    }
}

#[test]
fn the_total_timeout_reports_the_phase_it_ended() {
    let case = Case::new("GET").with_timeouts(|timeouts| timeouts.total = Some(SHORT));
    let timed_out = on_all(&case, |stream| drain(&stream), |frames, _| drain(&frames.0));
    assert_eq!(
        timed_out.is(),
        verdict(CallErrorKind::TotalTimeout, CallPhase::Head, true)
    );
}

#[test]
fn a_write_timeout_ends_an_upload_that_is_not_read() {
    // More than the buffers of both kernels hold.
    let case = Case::new("PUT")
        .with_body(32 << 20)
        .with_timeouts(|timeouts| timeouts.write = Some(SHORT));
    let found = on_all(
        &case,
        |stream| {
            std::thread::sleep(6 * SHORT);
            drop(stream);
        },
        |frames, _| {
            std::thread::sleep(6 * SHORT);
            drop(frames);
        },
    );
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::WriteTimeout, CallPhase::Send, true)
    );
}

#[test]
fn a_streamed_body_is_not_sent_again() {
    let case = Case::new("PUT").streaming(b"once");
    let found = on_all(
        &case,
        |mut stream| {
            let _ = stream.read(&mut [0; 1]);
            std::thread::sleep(SHORT);
            close(&stream);
        },
        |mut frames, _| {
            frames.until(DATA);
            std::thread::sleep(SHORT);
            close(&frames.0);
        },
    );
    assert!(!found.retryable, "{found:?}");
    assert_eq!(found.phase, CallPhase::Head);
}

#[test]
fn http2_resets_are_retryable_if_unprocessed_or_idempotent() {
    // REFUSED_STREAM, CANCEL, INTERNAL_ERROR (RFC 9113 7).
    for (method, code, retryable) in [
        ("GET", 7_u32, true),
        ("POST", 7, true),
        ("GET", 8, true),
        ("POST", 8, false),
        ("GET", 2, true),
        ("POST", 2, false),
    ] {
        let server = http2(move |mut frames, stream| {
            frames.send(&frame(RESET, 0, stream, &code.to_be_bytes()));
            drain(&frames.0);
        });
        let found = on_both(&Case::new(method), Version::Http2, &route_to(&server));
        let expected = verdict(CallErrorKind::RemoteProtocol, CallPhase::Head, retryable);
        assert_eq!(found.is(), expected, "{method} {code}");
    }
    for method in ["GET", "POST"] {
        let server = http2(|mut frames, _| {
            frames.send(&goaway(0, 0));
            drain(&frames.0);
        });
        let found = on_both(&Case::new(method), Version::Http2, &route_to(&server));
        assert!(found.retryable, "{found:?}");
        assert_eq!(found.phase, CallPhase::Head);
    }
}

#[test]
fn a_reset_within_the_body_may_be_retried_if_idempotent() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let found = on_all(
            &Case::new(method),
            |mut stream| {
                send(
                    &mut stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
                );
                // The client reads the head before the reset discards what is unread.
                std::thread::sleep(SHORT);
                reset(&stream);
            },
            |mut frames, stream| {
                frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
                frames.send(&frame(DATA, 0, stream, b"abc"));
                std::thread::sleep(SHORT);
                reset(&frames.0);
            },
        );
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::Read, CallPhase::Body, retryable)
        );
    }
}
