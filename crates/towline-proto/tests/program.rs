//! The program's side: input that `respond`, `request` and streams accept or refuse, and the bytes they send.

use std::sync::Arc;

use towline_proto::{BodySize, Field, Limits, RequestHead, ResponseHead, StreamId, UserError};
use towline_testkit::{End, wire};

const FIRST: StreamId = StreamId(1);

fn field<'a>(name: &'a str, value: &'a str) -> Field<'a> {
    Field {
        name: name.as_bytes(),
        value: value.as_bytes(),
    }
}

/// Writes and ends the response, then returns the sent bytes, in lower case.
fn finished(end: &mut End, data: &[u8]) -> String {
    let id = end.last_stream().unwrap_or(FIRST);
    let mut stream = end.conn.stream(id).expect("open");
    stream.write(data).expect("allowed");
    stream.finish().expect("complete");
    on_wire(end)
}

fn on_wire(end: &mut End) -> String {
    end.run_until_idle();
    String::from_utf8_lossy(end.written()).to_lowercase()
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

// ---- heads ----

#[test]
fn a_response_has_exactly_one_framing() {
    let known = |n| BodySize::Known(n);
    for (fields, size, length, chunked) in [
        (vec![], known(2), 1, 0),
        (vec![field("Content-Length", "2")], known(2), 1, 0),
        (vec![field("Content-Length", "2")], BodySize::Unknown, 1, 0),
        (vec![], BodySize::Unknown, 0, 1),
        (
            vec![field("transfer-encoding", "Chunked")],
            BodySize::Unknown,
            0,
            1,
        ),
    ] {
        let mut end = End::server_with_request(&wire::get("/"));
        end.send_response(200, &fields, size)
            .unwrap_or_else(|e| panic!("{fields:?}: {e}"));
        let text = finished(&mut end, b"hi");
        let found = (
            count(&text, "\r\ncontent-length: 2\r\n"),
            count(&text, "\r\ntransfer-encoding: chunked\r\n"),
        );
        assert_eq!(found, (length, chunked), "{fields:?} {size:?}: {text}");
        assert!(end.conn.is_idle(), "{text}");
    }
}

#[test]
fn ambiguous_or_injected_heads_are_refused_and_nothing_is_sent() {
    let length = |value| vec![field("Content-Length", value)];
    let cases: Vec<(Vec<Field<'_>>, BodySize, UserError)> = vec![
        (
            length("3"),
            BodySize::Known(2),
            UserError::InvalidContentLength,
        ),
        (
            length("+2"),
            BodySize::Known(2),
            UserError::InvalidContentLength,
        ),
        (
            length(""),
            BodySize::Known(2),
            UserError::InvalidContentLength,
        ),
        (
            length("2, 2"),
            BodySize::Known(2),
            UserError::InvalidContentLength,
        ),
        (
            [length("2"), length("2")].concat(),
            BodySize::Known(2),
            UserError::InvalidContentLength,
        ),
        (
            vec![field("Transfer-Encoding", "chunked")],
            BodySize::Known(2),
            UserError::InvalidTransferEncoding,
        ),
        (
            vec![field("Transfer-Encoding", "gzip, chunked")],
            BodySize::Unknown,
            UserError::InvalidTransferEncoding,
        ),
        (
            vec![field("X Y", "z")],
            BodySize::Empty,
            UserError::InvalidFieldName,
        ),
        (
            vec![field("", "z")],
            BodySize::Empty,
            UserError::InvalidFieldName,
        ),
        (
            vec![field("X:", "z")],
            BodySize::Empty,
            UserError::InvalidFieldName,
        ),
        (
            vec![field("X\r\nY", "z")],
            BodySize::Empty,
            UserError::InvalidFieldName,
        ),
        (
            vec![field("X", "a\r\nSet-Cookie: b")],
            BodySize::Empty,
            UserError::InvalidFieldValue,
        ),
        (
            vec![field("X", "a\nb")],
            BodySize::Empty,
            UserError::InvalidFieldValue,
        ),
        (
            vec![field("X", "a\rb")],
            BodySize::Empty,
            UserError::InvalidFieldValue,
        ),
        (
            vec![field("X", "a\0b")],
            BodySize::Empty,
            UserError::InvalidFieldValue,
        ),
    ];
    for (fields, size, error) in cases {
        let mut end = End::server_with_request(&wire::get("/"));
        assert_eq!(
            end.send_response(200, &fields, size),
            Err(error),
            "{fields:?}"
        );
        assert_eq!(
            end.conn.pending_bytes(),
            0,
            "{fields:?}: something was queued"
        );
        end.send_response(500, &[], BodySize::Empty)
            .expect("the exchange is as it was");
        assert!(on_wire(&mut end).starts_with("http/1.1 500 "), "{fields:?}");
    }
}

#[test]
fn reasons_and_statuses_are_checked() {
    let mut end = End::server_with_request(&wire::get("/"));
    for (status, reason, error) in [
        (99, "", UserError::InvalidStatus),
        (600, "", UserError::InvalidStatus),
        (0, "", UserError::InvalidStatus),
        (200, "O\r\nX: y", UserError::InvalidReason),
        (200, "O\0", UserError::InvalidReason),
        (101, "", UserError::UpgradeNotPossible),
    ] {
        let head = ResponseHead {
            status,
            reason: reason.as_bytes(),
            fields: &[],
        };
        assert_eq!(
            end.conn.respond(FIRST, &head, BodySize::Empty),
            Err(error),
            "{status} {reason:?}"
        );
    }
    assert_eq!(end.conn.pending_bytes(), 0);
}

#[test]
fn a_request_is_checked_before_anything_is_sent() {
    let host = field("Host", "a");
    for (method, target, fields, error) in [
        ("G T", "/", vec![host], UserError::InvalidMethod),
        ("", "/", vec![host], UserError::InvalidMethod),
        ("GET", "/a b", vec![host], UserError::InvalidTarget),
        ("GET", "/\r\nX: y", vec![host], UserError::InvalidTarget),
        ("GET", "", vec![host], UserError::InvalidTarget),
        ("GET", "/\u{e9}", vec![host], UserError::InvalidTarget),
        ("GET", "/", vec![], UserError::InvalidHost),
        ("GET", "/", vec![host, host], UserError::InvalidHost),
        (
            "GET",
            "/",
            vec![field("Host", "a b")],
            UserError::InvalidHost,
        ),
        (
            "GET",
            "/",
            vec![host, field("X", "a\r\nb")],
            UserError::InvalidFieldValue,
        ),
    ] {
        let mut end = End::manual_client(&Arc::new(Limits::client()));
        let head = RequestHead {
            method: method.as_bytes(),
            target: target.as_bytes(),
            fields: &fields,
        };
        assert_eq!(
            end.conn.request(&head, BodySize::Empty),
            Err(error),
            "{method:?} {target:?} {fields:?}"
        );
        assert_eq!(end.conn.pending_bytes(), 0);
        let good = RequestHead {
            method: b"GET",
            target: b"/",
            fields: &[host],
        };
        end.conn
            .request(&good, BodySize::Empty)
            .expect("the connection is as it was");
    }
}

#[test]
fn one_request_at_a_time() {
    let mut end = End::client(&Arc::new(Limits::client()), &[("GET", "/")]);
    let head = RequestHead {
        method: b"GET",
        target: b"/",
        fields: &[field("Host", "a")],
    };
    assert_eq!(
        end.conn.request(&head, BodySize::Empty),
        Err(UserError::NotIdle)
    );
    end.feed(&wire::response(200, &["Content-Length: 0"], b""));
    assert!(end.conn.is_reusable());
    end.conn
        .request(&head, BodySize::Empty)
        .expect("idle again");
    assert_eq!(
        end.send_response(200, &[], BodySize::Empty),
        Err(UserError::WrongSide)
    );
}

// ---- order ----

#[test]
fn calls_out_of_order_are_errors() {
    let mut end = End::server_with_request(&wire::get("/"));
    assert_eq!(
        end.conn.stream(FIRST).expect("open").write(b"x"),
        Err(UserError::WrongOrder)
    );
    assert!(end.conn.stream(StreamId(7)).is_err());
    end.send_response(103, &[field("Link", "</a>")], BodySize::Empty)
        .expect("interim");
    end.send_response(200, &[], BodySize::Known(2))
        .expect("final");
    assert_eq!(
        end.send_response(103, &[], BodySize::Empty),
        Err(UserError::WrongOrder)
    );
    assert_eq!(
        end.send_response(200, &[], BodySize::Empty),
        Err(UserError::WrongOrder)
    );
    let text = finished(&mut end, b"hi");
    assert!(
        text.starts_with("http/1.1 103 ") && text.contains("\r\n\r\nhttp/1.1 200 "),
        "{text}"
    );
    assert!(
        end.conn
            .stream(FIRST)
            .is_ok_and(|mut s| s.write(b"x").is_err())
    );
}

#[test]
fn http_10_gets_no_interim_response_and_no_chunks() {
    let mut end = End::server_with_request(b"GET / HTTP/1.0\r\n\r\n");
    end.send_response(103, &[], BodySize::Empty)
        .expect("swallowed: 1.0 knows no 1xx (RFC 9110 15.2)");
    end.send_response(200, &[], BodySize::Unknown)
        .expect("until the close");
    let text = finished(&mut end, b"hello");
    assert!(
        text.starts_with("http/1.1 200 ") && text.ends_with("\r\n\r\nhello"),
        "{text}"
    );
    assert!(
        !text.contains("transfer-encoding") && text.contains("connection: close"),
        "{text}"
    );
    assert!(end.log_text().ends_with("then fin\n"), "{}", end.log_text());
}

// ---- bodies ----

#[test]
fn disallowed_bodies_are_discarded() {
    for (method, status) in [("HEAD", 200), ("GET", 204), ("GET", 304)] {
        for size in [BodySize::Known(5), BodySize::Unknown] {
            let mut end = End::server_with_request(&wire::request(method, "/", &[], b""));
            end.send_response(status, &[], size).expect("allowed");
            let text = finished(&mut end, b"hello");
            assert!(
                text.ends_with("\r\n\r\n") && count(&text, "\r\n\r\n") == 1,
                "{method} {status}: {text}"
            );
            let framed = text.contains("content-length") || text.contains("transfer-encoding");
            assert!(
                status != 204 || !framed,
                "204 must not be framed (RFC 9110 8.6): {text}"
            );
            assert!(end.conn.is_idle());
        }
    }
}

#[test]
fn a_body_too_long_is_refused_and_one_too_short_has_no_valid_end() {
    let mut end = End::server_with_request(&wire::get("/"));
    end.send_response(200, &[], BodySize::Known(4))
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"abc").expect("within");
    assert_eq!(stream.write(b"de"), Err(UserError::BodyTooLong));
    stream.write(b"d").expect("the surplus was not sent");
    stream.finish().expect("complete");
    assert!(on_wire(&mut end).ends_with("abcd"));
    assert!(end.conn.is_idle());

    let mut end = End::server_with_request(&wire::get("/"));
    end.send_response(200, &[], BodySize::Known(4))
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"abc").expect("within");
    assert_eq!(stream.finish(), Err(UserError::BodyTooShort));
    end.run_until_idle();
    let interest = end.conn.interest();
    // The missing bytes are visible by the length: no reset is needed, which could destroy what was sent.
    assert!(interest.shutdown, "{interest:?}");
}

#[test]
fn an_aborted_response_never_looks_complete() {
    // With a length or chunks, missing bytes are visible; a body delimited by closing needs a reset.
    let cases = [
        (wire::get("/"), BodySize::Known(9), false),
        (wire::get("/"), BodySize::Unknown, false),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), BodySize::Unknown, true),
    ];
    for (request, size, abort) in cases {
        let mut end = End::server_with_request(&request);
        end.send_response(200, &[], size).expect("allowed");
        let mut stream = end.conn.stream(FIRST).expect("open");
        stream.write(b"abc").expect("within");
        stream.reset();
        let text = on_wire(&mut end);
        assert!(!text.ends_with("0\r\n\r\n"), "{text}");
        let interest = end.conn.interest();
        assert_eq!(
            (interest.abort, interest.closed),
            (abort, abort),
            "{size:?}: {interest:?}"
        );
        assert!(abort || interest.shutdown, "{size:?}: {interest:?}");
    }
}

#[test]
fn trailers_are_sent_where_possible() {
    let sum = field("X-Sum", "1");
    let mut end = End::server_with_request(&wire::get("/"));
    end.send_response(200, &[], BodySize::Unknown)
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    for name in [
        "Content-Length",
        "transfer-encoding",
        "Host",
        "Trailer",
        "Connection",
    ] {
        assert_eq!(
            stream.finish_with(&[field(name, "1")]),
            Err(UserError::ForbiddenTrailer),
            "{name}"
        );
    }
    assert_eq!(
        stream.finish_with(&[field("X", "a\r\nb")]),
        Err(UserError::InvalidFieldValue)
    );
    stream.finish_with(&[sum]).expect("allowed");
    assert!(on_wire(&mut end).ends_with("0\r\nx-sum: 1\r\n\r\n"));

    let mut end = End::server_with_request(&wire::get("/"));
    end.send_response(200, &[], BodySize::Known(0))
        .expect("allowed");
    let refused = end
        .conn
        .stream(FIRST)
        .is_ok_and(|mut stream| stream.finish_with(&[sum]).is_err());
    assert!(
        refused,
        "no trailers behind a known length (RFC 9112 7.1.2)"
    );
}

#[test]
fn an_empty_write_is_no_last_chunk() {
    let mut end = End::server_with_request(&wire::get("/"));
    end.send_response(200, &[], BodySize::Unknown)
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"").expect("nothing");
    stream.write_shared(bytes::Bytes::new()).expect("nothing");
    assert!(finished(&mut end, b"x").ends_with("\r\n\r\n1\r\nx\r\n0\r\n\r\n"));
}

#[test]
fn large_bytes_are_sent_by_reference_and_unchanged() {
    let large: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    for size in [BodySize::Known(300_000), BodySize::Unknown] {
        let mut end = End::server_with_request(&wire::get("/"));
        end.send_response(200, &[], size).expect("allowed");
        let mut stream = end.conn.stream(FIRST).expect("open");
        stream.write_shared(large.clone().into()).expect("allowed");
        stream.finish().expect("complete");
        end.send_room = 1;
        for _ in 0..1000 {
            end.run_until_idle();
            end.send_room = 777;
        }
        let sent = end.written();
        let found = sent
            .windows(1000)
            .position(|w| w == &large[..1000])
            .expect("the beginning");
        assert_eq!(&sent[found..found + large.len()], &large[..], "{size:?}");
    }
}

#[test]
fn send_capacity_runs_out_and_returns() {
    let mut end = End::server_with_request(&wire::get("/"));
    end.send_room = 0;
    end.send_response(200, &[], BodySize::Unknown)
        .expect("allowed");
    let mut writes = 0;
    while end.conn.stream(FIRST).expect("open").send_capacity() > 0 {
        end.conn
            .stream(FIRST)
            .expect("open")
            .write(&[b'x'; 4096])
            .expect("room");
        end.run_until_idle();
        writes += 1;
        assert!(writes < 100, "no high-water mark");
    }
    assert!(writes >= 15, "{writes}");
    end.send_room = usize::MAX;
    end.run_until_idle();
    assert!(end.conn.stream(FIRST).expect("open").send_capacity() >= 32 * 1024);
}
