//! The client's end.

use crate::common::End;
use towline_proto::{BodySize, Event, Limits, StreamId, UserError};

const HOST: &[(&str, &str)] = &[("host", "a")];

/// A client that has sent `method /`.
fn client_with_request(method: &str) -> End {
    let mut end = End::client();
    end.request(method, "/", HOST, BodySize::Empty)
        .expect("an idle connection");
    end.sent();
    end
}

#[test]
fn requests_follow_one_another_on_a_connection() {
    let mut end = End::client();
    for id in 1..=3 {
        assert!(end.conn.is_reusable());
        assert_eq!(
            end.request("GET", "/x", HOST, BodySize::Empty),
            Ok(StreamId(id))
        );
        assert_eq!(
            end.request("GET", "/x", HOST, BodySize::Empty),
            Err(UserError::NotIdle)
        );
        assert_eq!(end.sent(), "GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(!end.conn.response_started());
        end.push(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        assert_eq!(end.events(), ["200"]);
        assert_eq!(end.read(id), ("hello".into(), "end"));
        end.conn.release(&mut end.buffers);
    }
    assert!(end.conn.is_reusable());
}

#[test]
fn request_bodies() {
    let mut end = End::client();
    end.request("POST", "/", HOST, BodySize::Known(2)).unwrap();
    end.conn.stream(StreamId(1)).unwrap().write(b"hi").unwrap();
    end.conn.stream(StreamId(1)).unwrap().finish().unwrap();
    assert_eq!(
        end.sent(),
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi"
    );

    let mut end = End::client();
    end.request("POST", "/", HOST, BodySize::Unknown).unwrap();
    end.conn.stream(StreamId(1)).unwrap().write(b"hi").unwrap();
    end.conn.stream(StreamId(1)).unwrap().finish().unwrap();
    assert_eq!(
        end.sent(),
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    );
    let mut end = End::client();
    end.request("POST", "/", HOST, BodySize::Empty).unwrap();
    assert_eq!(
        end.sent(),
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    );
}

#[test]
fn fields_are_sent_as_given() {
    let known = BodySize::Known(2);
    let lines = [
        (
            &[
                "Connection: keep-alive, X",
                "Host: a",
                "CONTENT-length: 2",
                "B: c",
            ][..],
            known,
            "",
        ),
        (
            &["Transfer-Encoding: Chunked", "host: a"],
            BodySize::Unknown,
            "",
        ),
        (&["Content-Length: 2", "host: a"], BodySize::Unknown, ""),
        (&["Content-Length: 0", "host: a"], BodySize::Empty, ""),
        (
            &["Connection: Upgrade", "upgrade: x", "host: a"],
            BodySize::Empty,
            "content-length: 0",
        ),
        // Missing fields are appended.
        (
            &["Connection: close", "host: a"],
            known,
            "content-length: 2",
        ),
        (
            &["host: a"],
            BodySize::Unknown,
            "transfer-encoding: chunked",
        ),
    ];
    for (given, size, added) in lines {
        let fields: Vec<_> = given
            .iter()
            .filter_map(|line| line.split_once(": "))
            .collect();
        let mut end = End::client();
        end.request("POST", "/", &fields, size).unwrap();
        let mut expected = vec!["POST / HTTP/1.1"];
        expected.extend(
            given
                .iter()
                .chain([&added].into_iter().filter(|added| !added.is_empty())),
        );
        assert_eq!(end.sent(), expected.join("\r\n") + "\r\n\r\n");
    }
}

#[test]
fn mismatched_framing_fields_are_corrected_or_refused() {
    for (field, size, expected) in [
        (
            ("Content-Length", "02"),
            BodySize::Known(2),
            Ok("Content-Length: 2\r\n"),
        ),
        (
            ("Connection", ""),
            BodySize::Known(2),
            Ok("content-length: 2\r\n"),
        ),
        (
            ("Transfer-Encoding", "chunked"),
            BodySize::Empty,
            Ok("content-length: 0\r\n"),
        ),
        (
            ("Content-Length", "3"),
            BodySize::Known(2),
            Err(UserError::InvalidContentLength),
        ),
        (
            ("Content-Length", "3"),
            BodySize::Empty,
            Err(UserError::InvalidContentLength),
        ),
        (
            ("Transfer-Encoding", "chunked"),
            BodySize::Known(2),
            Err(UserError::InvalidTransferEncoding),
        ),
        (
            ("Transfer-Encoding", "gzip, chunked"),
            BodySize::Unknown,
            Err(UserError::InvalidTransferEncoding),
        ),
    ] {
        let mut end = End::client();
        let done = end.request("POST", "/", &[("host", "a"), field], size);
        match expected {
            Ok(line) => assert_eq!(
                end.sent(),
                format!("POST / HTTP/1.1\r\nhost: a\r\n{line}\r\n")
            ),
            Err(error) => assert_eq!(done, Err(error)),
        }
    }
    let mut end = End::client();
    let fields = [
        ("host", "a"),
        ("Content-Length", "2"),
        ("Transfer-Encoding", "chunked"),
    ];
    let done = end.request("POST", "/", &fields, BodySize::Unknown);
    assert_eq!(done, Err(UserError::InvalidTransferEncoding));
}

#[test]
fn malformed_requests_are_refused() {
    let cases = [
        ("G T", "/", HOST, UserError::InvalidMethod),
        ("GET", "/a b", HOST, UserError::InvalidTarget),
        ("GET", "/\r\nx: y", HOST, UserError::InvalidTarget),
        ("GET", "x", HOST, UserError::InvalidTarget),
        ("GET", "/", &[], UserError::InvalidHost),
        (
            "GET",
            "/",
            &[("host", "a"), ("host", "a")],
            UserError::InvalidHost,
        ),
        ("GET", "/", &[("host", "a b")], UserError::InvalidHost),
        (
            "GET",
            "/",
            &[("host", "a"), ("x", "\r\ny: z")],
            UserError::InvalidFieldValue,
        ),
    ];
    let mut end = End::client();
    for (method, target, fields, error) in cases {
        assert_eq!(
            end.request(method, target, fields, BodySize::Empty),
            Err(error)
        );
        assert!(end.conn.is_reusable());
    }
}

#[test]
fn responses_without_a_body() {
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
        ),
        ("GET", "HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let mut end = client_with_request(method);
        end.push(response.as_bytes());
        assert!(end.events()[0].ends_with(" end"));
        assert!(end.conn.is_reusable(), "{response}");
    }
}

#[test]
fn surplus_bytes_close_the_connection_but_keep_the_response() {
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"),
        (
            "GET",
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        ),
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nx"),
    ] {
        let mut end = client_with_request(method);
        end.push(response.as_bytes());
        let events = end.events();
        assert!(
            events[0].ends_with(" end") && events[1].contains("RFC 9112 6.3"),
            "{events:?}"
        );
        assert!(!end.conn.is_reusable() && end.conn.interest().closed);
    }
    let mut end = End::client();
    end.push(b"HTTP/1.1 200 OK\r\n\r\n");
    assert!(end.events()[0].contains("response bytes without a request"));
    assert!(!end.conn.is_reusable());
}

#[test]
fn interim_responses_are_events_and_bounded() {
    let mut end = client_with_request("GET");
    end.push(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n");
    end.push(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(end.events(), ["interim 100", "interim 103", "200 end"]);
    let mut end = client_with_request("GET");
    end.push(&b"HTTP/1.1 102 Processing\r\n\r\n".repeat(101));
    let events = end.events();
    assert_eq!(events.len(), 102);
    assert!(events[100].contains("too many interim"), "{events:?}");
}

#[test]
fn bodies_until_close_and_truncated_ones() {
    let mut end = client_with_request("GET");
    end.push(b"HTTP/1.1 200 OK\r\n\r\nhello");
    assert_eq!(end.events(), ["200"]);
    assert_eq!(end.read(1), ("hello".into(), "pending"));
    end.eof();
    assert_eq!(end.events(), ["readable", "closed: closed in order"]);
    assert_eq!(end.read(1).1, "end");

    for (wire, rule) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            "inside a body",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "inside a body",
        ),
        ("HTTP/1.1 200 OK\r\ncont", "inside a head"),
        ("", "before a response"),
    ] {
        let mut end = client_with_request("GET");
        end.push(wire.as_bytes());
        if end.events() == ["200"] {
            assert_eq!(end.read(1), ("hello".into(), "pending"));
        }
        end.eof();
        let events = end.events();
        assert!(
            events[0].starts_with("failed") && events[0].contains(rule),
            "{events:?}"
        );
        assert_eq!(end.conn.response_started(), !wire.is_empty());
    }
    // Truncation of TLS is not an end, with any framing.
    let mut end = client_with_request("GET");
    end.push(b"HTTP/1.1 200 OK\r\n\r\nhello");
    end.events();
    end.read(1);
    end.conn
        .received_abort(end.now, "TLS closed without close_notify");
    assert!(end.events()[0].starts_with("failed"));
}

#[test]
fn bodies_over_the_limit_fail_with_every_framing() {
    for wire in [
        "content-length: 5\r\n\r\nhello",
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "\r\nhello",
    ] {
        let limits = Limits {
            max_body_bytes: Some(4),
            ..Limits::client()
        };
        let mut end = End::client_with(limits);
        end.request("GET", "/", HOST, BodySize::Empty).unwrap();
        end.push(format!("HTTP/1.1 200 OK\r\n{wire}").as_bytes());
        if end.events() == ["200"] {
            assert_eq!(end.read(1), (String::new(), "failed"));
        }
        let error = end.conn.error().expect("closed");
        assert_eq!(error.to_string(), "peer: body too large");
    }
}

#[test]
fn smuggling_responses_end_the_connection() {
    for fields in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: +5\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
    ] {
        let mut end = client_with_request("GET");
        end.push(format!("HTTP/1.1 200 OK\r\n{fields}\r\nhello").as_bytes());
        let events = end.events();
        assert!(events[0].starts_with("failed: peer: "), "{events:?}");
        assert!(end.conn.interest().closed);
    }
}

#[test]
fn switching_requires_an_upgrade_request() {
    let mut end = client_with_request("GET");
    end.push(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
    assert!(end.events()[0].contains("101 without an upgrade"));

    let mut end = End::client();
    let fields = [("host", "a"), ("connection", "upgrade"), ("upgrade", "x")];
    end.request("GET", "/", &fields, BodySize::Empty).unwrap();
    assert_eq!(
        end.sent(),
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    );
    end.push(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw");
    assert_eq!(end.events(), ["101", "switched"]);
    assert_eq!(end.read(1), ("raw".into(), "pending"));

    let mut end = End::client();
    end.request("CONNECT", "a:443", HOST, BodySize::Empty)
        .unwrap();
    end.push(b"HTTP/1.1 200 OK\r\n\r\nraw");
    assert_eq!(end.events(), ["200", "switched"]);
    assert_eq!(end.read(1), ("raw".into(), "pending"));
}

#[test]
fn close_and_keep_alive_of_the_peer() {
    for (response, reusable) in [
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            false,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false),
        (
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n",
            true,
        ),
    ] {
        let mut end = client_with_request("GET");
        end.push(response.as_bytes());
        end.events();
        assert_eq!(end.conn.is_reusable(), reusable, "{response}");
        assert_eq!(end.conn.interest().closed, !reusable);
    }
    let mut end = End::client();
    end.eof();
    assert!(!end.conn.is_reusable() && end.conn.interest().closed);
}

#[test]
fn an_owned_head_outlives_its_buffer() {
    let mut end = client_with_request("GET");
    end.push(b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nX-A:  b \r\n\r\nhi");
    let Some(Event::Head { head, .. }) = end.conn.next_event() else {
        panic!("no head");
    };
    let kept = head.to_owned_head();
    assert_eq!(end.read(1), ("hi".into(), "end"));
    end.conn.release(&mut end.buffers);
    let head = kept.view();
    assert_eq!((head.status(), head.reason()), (200, &b"Fine"[..]));
    assert_eq!(head.field(b"x-a"), Some(&b"b"[..]));
    assert_eq!(head.fields().len(), 2);
}

#[test]
fn bytes_received_before_a_reset_can_be_read() {
    let abort = |end: &mut End| {
        end.conn.received_abort(std::time::Instant::now(), "reset");
    };
    // Complete: the reset came after the end.
    let mut end = client_with_request("GET");
    end.push(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno");
    abort(&mut end);
    assert_eq!(end.events()[0], "413");
    assert_eq!(end.read(1), ("no".into(), "end"));
    // Truncated: the received bytes, then the failure, and never an end, with any framing.
    for head in [
        "content-length: 9",
        "transfer-encoding: chunked",
        "x: until-close",
    ] {
        let mut end = client_with_request("GET");
        let body = if head.starts_with('t') {
            "2\r\nno\r\n"
        } else {
            "no"
        };
        end.push(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes());
        abort(&mut end);
        assert_eq!(end.events()[0], "200");
        assert_eq!(end.read(1), ("no".into(), "failed"), "{head}");
    }
}
