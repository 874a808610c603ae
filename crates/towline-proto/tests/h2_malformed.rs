//! Malformed messages of HTTP/2 (RFC 9113 8.1.1): each ends its stream with `PROTOCOL_ERROR` and is not passed to
//! the program; the connection continues.

use std::sync::Arc;

use towline_proto::{ErrorCode, Limits};
use towline_testkit::h2::{self, END};
use towline_testkit::{App, End};

use crate::h2::{asking_client, get};

type Fields = &'static [(&'static str, &'static str)];

/// A server that has served a valid request on stream 1.
fn server() -> End {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
    end.feed(&[h2::client_preface(), h2::get(1)].concat());
    end
}

/// Each ends its stream, is not passed to the program, and the next request is served.
#[test]
fn malformed_pseudo_fields() {
    let cases: &[(&str, &[Option<&str>; 5])] = &[
        (
            "no method",
            &[None, Some("http"), Some("a"), Some("/"), None],
        ),
        (
            "no scheme",
            &[Some("GET"), None, Some("a"), Some("/"), None],
        ),
        (
            "no authority",
            &[Some("GET"), Some("http"), None, Some("/"), None],
        ),
        (
            "no path",
            &[Some("GET"), Some("http"), Some("a"), None, None],
        ),
    ];
    for (name, values) in cases {
        is_malformed(name, &pseudo(values));
    }
    let values = [
        (0, "GET /"),
        (0, ""),
        (1, "ht tp"),
        (1, ""),
        (2, "a b"),
        (2, "a\r\nx: y"),
        (2, "u@a"),
        (3, ""),
        (3, "x"),
        (3, "/ HTTP/1.1"),
        (3, "/\r\nx: y"),
        (3, "/#x"),
        (3, "*"),
        (4, "websocket"),
    ];
    for (at, value) in values {
        let mut all = [Some("GET"), Some("http"), Some("a"), Some("/"), None];
        all[at] = Some(value);
        is_malformed(value, &pseudo(&all));
    }
    let connect = Some("CONNECT");
    for (name, values) in [
        (
            "with a path",
            [connect, Some("http"), Some("a:1"), Some("/"), None],
        ),
        ("without a port", [connect, None, Some("a"), None, None]),
        ("without a host", [connect, None, None, None, None]),
        (
            "extended, without a path",
            [connect, Some("http"), Some("a"), None, Some("x")],
        ),
    ] {
        is_malformed(name, &pseudo(&values));
    }
}

/// The given pseudo-header fields, in the usual order.
fn pseudo<'a>(values: &[Option<&'a str>; 5]) -> Vec<(&'static str, &'a str)> {
    let names = [":method", ":scheme", ":authority", ":path", ":protocol"];
    let pairs = names.into_iter().zip(values);
    pairs
        .filter_map(|(name, value)| Some((name, (*value)?)))
        .collect()
}

#[test]
fn malformed_fields() {
    let fields: &[(&str, (&str, &str))] = &[
        ("pseudo-field twice", (":path", "/")),
        ("pseudo-field of a response", (":status", "200")),
        ("unknown pseudo-field", (":x", "y")),
        ("upper case", ("X", "y")),
        ("empty name", ("", "y")),
        ("space in a name", ("x y", "z")),
        ("colon in a name", ("x:y", "z")),
        ("line end in a name", ("x\r\ny", "z")),
        ("CR", ("x", "y\rz")),
        ("LF", ("x", "y\nz")),
        ("NUL", ("x", "y\0z")),
        ("space before a value", ("x", " y")),
        ("space behind a value", ("x", "y ")),
        ("connection", ("connection", "close")),
        ("keep-alive", ("keep-alive", "1")),
        ("proxy-connection", ("proxy-connection", "close")),
        ("transfer-encoding", ("transfer-encoding", "chunked")),
        ("upgrade", ("upgrade", "x")),
        ("te", ("te", "gzip")),
        ("host differs", ("host", "b")),
        ("length of nothing", ("content-length", "1")),
        ("signed length", ("content-length", "+0")),
        ("two lengths", ("content-length", "0, 1")),
    ];
    for (name, field) in fields {
        is_malformed(name, &[&h2::pseudo("GET")[..], &[*field]].concat());
    }
    is_malformed(
        "pseudo-field after a field",
        &[&[("x", "y")][..], &h2::pseudo("GET")].concat(),
    );
    let twice = [("host", "a"), ("host", "a")];
    is_malformed("two hosts", &[&h2::pseudo("GET")[..], &twice].concat());
    let lengths = [("content-length", "0"), ("content-length", "1")];
    is_malformed(
        "two fields of length",
        &[&h2::pseudo("GET")[..], &lengths].concat(),
    );
}

fn is_malformed(name: &str, fields: &[(&str, &str)]) {
    let mut end = server();
    end.feed(&[h2::headers(3, END, fields), h2::get(5)].concat());
    let errors = h2::stream_errors(end.written(), 3);
    assert_eq!(errors, [ErrorCode::PROTOCOL_ERROR], "{name}");
    let log = end.log.text();
    assert!(
        !log.contains("request 3") && log.contains("request 5"),
        "{name}: {log}"
    );
}

/// Malformed responses of a server.
#[test]
fn malformed_responses() {
    let heads: &[(&str, u8, Fields)] = &[
        ("no status", END, &[("x", "y")]),
        (
            "two statuses",
            END,
            &[(":status", "200"), (":status", "200")],
        ),
        ("status of two digits", END, &[(":status", "20")]),
        ("status of a word", END, &[(":status", "abc")]),
        ("101", END, &[(":status", "101")]),
        ("interim that ends", END, &[(":status", "103")]),
        (
            "pseudo-field of a request",
            END,
            &[(":status", "200"), (":path", "/")],
        ),
        ("upper case", END, &[(":status", "200"), ("X", "y")]),
        (
            "connection",
            END,
            &[(":status", "200"), ("connection", "close")],
        ),
        (
            "line end in a value",
            END,
            &[(":status", "200"), ("x", "y\r\nz")],
        ),
        (
            "length of nothing",
            END,
            &[(":status", "200"), ("content-length", "1")],
        ),
        (
            "two lengths",
            0,
            &[(":status", "200"), ("content-length", "1, 2")],
        ),
    ];
    for (name, flags, fields) in heads {
        let mut end = asking_client();
        end.feed(&h2::headers(1, *flags, fields));
        let errors = h2::stream_errors(end.written(), 1);
        assert_eq!(errors, [ErrorCode::PROTOCOL_ERROR], "{name}");
        assert!(end.log.text().contains("failed 1 peer: "), "{name}");
        get(&mut end);
        end.feed(&h2::headers(3, END, &[(":status", "204")]));
        assert!(end.log.text().contains("response 3 204"), "{name}");
    }
}
