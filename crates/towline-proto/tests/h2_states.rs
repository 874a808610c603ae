//! The states of a stream and everything that can arrive in them (RFC 9113 5.1), as tables.
//!
//! `+`: accepted, with an event. `-`: accepted or ignored, without an event. `S1`: a stream reset, code 1.
//! `C1`: the connection ends with code 1. Codes: 1 `PROTOCOL_ERROR`, 3 `FLOW_CONTROL_ERROR`, 5
//! `STREAM_CLOSED`, 6 `FRAME_SIZE_ERROR`. Every cell is tested in one piece and byte by byte.

use std::sync::Arc;

use towline_proto::{BodySize, ErrorCode, Field, Limits, RequestHead, StreamId};
use towline_testkit::h2::{self, END, END_HEADERS, PADDED, WITH_PRIORITY};
use towline_testkit::{App, End};

/// The stream in question.
const ID: u32 = 3;

/// A server. `remote` and `local` are the half-closed states; `ended` is closed by `END_STREAM` in both
/// directions, `reset` by our reset; `failed` by the peer's, with the program not done, and `gone` when it is
/// done.
const SERVER: &str = "
                        idle  open  remote  local  ended  reset  failed  gone
DATA                    C1    +     S5      +      C5     -      C5      C5
DATA end                C1    +     S5      +      C5     -      C5      C5
DATA of nothing end     C1    +     S5      +      C5     -      C5      C5
DATA without padding    C6    C6    C6      C6     C6     C6     C6      C6
DATA wrongly padded     C1    C1    C1      C1     C1     C1     C1      C1
DATA too long           C6    C6    C6      C6     C6     C6     C6      C6
request                 +     S1    S5      S1     C5     -      C5      C5
request end             +     S1    S5      S1     C5     -      C5      C5
fields                  S1    S1    S5      S1     C5     -      C5      C5
fields end              S1    +     S5      +      C5     -      C5      C5
HEADERS wrongly padded  C1    C1    C1      C1     C1     C1     C1      C1
HEADERS too short       C6    C6    C6      C6     C6     C6     C6      C6
HEADERS, then DATA      C1    C1    C1      C1     C1     C1     C1      C1
PRIORITY                -     -     -       -      -      -      -       -
PRIORITY too short      C6    S6    S6      S6     C6     C6     C6      C6
RST_STREAM              C1    +     +       +      -      -      -       -
RST_STREAM too short    C6    C6    C6      C6     C6     C6     C6      C6
SETTINGS                C1    C1    C1      C1     C1     C1     C1      C1
PUSH_PROMISE            C1    C1    C1      C1     C1     C1     C1      C1
PING                    C1    C1    C1      C1     C1     C1     C1      C1
GOAWAY                  C1    C1    C1      C1     C1     C1     C1      C1
WINDOW_UPDATE           C1    -     -       -      -      -      -       -
WINDOW_UPDATE by 0      C1    S1    S1      S1     C1     C1     C1      C1
WINDOW_UPDATE by max    C1    S3    S3      S3     -      -      -       -
WINDOW_UPDATE too short C6    C6    C6      C6     C6     C6     C6      C6
CONTINUATION            C1    C1    C1      C1     C1     C1     C1      C1
PRIORITY_UPDATE         -     -     -       -      -      -      -       -
unknown                 -     -     -       -      -      -      -       -
";

/// A client. `open`: the request's body is being sent; `sent`: the request is complete; `body`: the head of the
/// response has arrived too; `complete`: the whole response has, and the request's body is still being sent.
const CLIENT: &str = "
                        idle  open  sent   body  complete  ended  reset  gone
DATA                    C1    S1    S1     +     S5        C5     -      C5
DATA end                C1    S1    S1     +     S5        C5     -      C5
DATA of nothing end     C1    S1    S1     +     S5        C5     -      C5
DATA too long           C6    C6    C6     C6    C6        C6     C6     C6
response                C1    +     +      S1    S5        C5     -      C5
response end            C1    +     +      S1    S5        C5     -      C5
interim                 C1    +     +      S1    S5        C5     -      C5
fields                  C1    S1    S1     S1    S5        C5     -      C5
fields end              C1    S1    S1     +     S5        C5     -      C5
HEADERS wrongly padded  C1    C1    C1     C1    C1        C1     C1     C1
HEADERS too short       C6    C6    C6     C6    C6        C6     C6     C6
HEADERS, then DATA      C1    C1    C1     C1    C1        C1     C1     C1
PRIORITY                -     -     -      -     -         -      -      -
PRIORITY too short      C6    S6    S6     S6    S6        C6     C6     C6
RST_STREAM              C1    +     +      +     +         -      -      -
RST_STREAM too short    C6    C6    C6     C6    C6        C6     C6     C6
SETTINGS                C1    C1    C1     C1    C1        C1     C1     C1
PUSH_PROMISE            C1    C1    C1     C1    C1        C1     C1     C1
PING                    C1    C1    C1     C1    C1        C1     C1     C1
GOAWAY                  C1    C1    C1     C1    C1        C1     C1     C1
WINDOW_UPDATE           C1    -     -      -     -         -      -      -
WINDOW_UPDATE by 0      C1    S1    S1     S1    S1        C1     C1     C1
WINDOW_UPDATE by max    C1    S3    S3     S3    S3        -      -      -
CONTINUATION            C1    C1    C1     C1    C1        C1     C1     C1
PRIORITY_UPDATE         C1    C1    C1     C1    C1        C1     C1     C1
unknown                 -     -     -      -     -         -      -      -
";

#[test]
fn every_input_in_every_state_of_a_server() {
    check(SERVER, server);
}

#[test]
fn every_input_in_every_state_of_a_client() {
    check(CLIENT, client);
}

/// The input with this name in the tables.
fn input(name: &str) -> Vec<u8> {
    let response = [(":status", "200")];
    let cancelled = h2::reset(ID, ErrorCode::CANCEL);
    match name {
        "DATA" => h2::data(ID, b"x"),
        "DATA end" => h2::last_data(ID, b"x"),
        "DATA of nothing end" => h2::last_data(ID, b""),
        "DATA without padding" => h2::frame(h2::DATA, PADDED, ID, b""),
        "DATA wrongly padded" => h2::frame(h2::DATA, PADDED, ID, b"\x03\0\0"),
        "DATA too long" => h2::data(ID, &vec![0; 16_385]),
        "request" => h2::post(ID, &[]),
        "request end" => h2::get(ID),
        "response" => h2::headers(ID, 0, &response),
        "response end" => h2::headers(ID, END, &response),
        "interim" => h2::headers(ID, 0, &[(":status", "103")]),
        "fields" => h2::headers(ID, 0, &[("x", "y")]),
        "fields end" => h2::headers(ID, END, &[("x", "y")]),
        "HEADERS wrongly padded" => h2::frame(h2::HEADERS, END_HEADERS | PADDED, ID, b"\x02\0"),
        "HEADERS too short" => h2::frame(h2::HEADERS, END_HEADERS | WITH_PRIORITY, ID, b"1234"),
        "HEADERS, then DATA" => [h2::frame(h2::HEADERS, 0, ID, b""), h2::data(ID, b"")].concat(),
        "PRIORITY" => h2::priority(ID, 0),
        "PRIORITY too short" => h2::frame(h2::PRIORITY, 0, ID, b"1234"),
        "RST_STREAM" => cancelled,
        "RST_STREAM too short" => h2::frame(h2::RST_STREAM, 0, ID, b"123"),
        "SETTINGS" => h2::frame(h2::SETTINGS, 0, ID, b""),
        "PUSH_PROMISE" => h2::frame(h2::PUSH_PROMISE, END_HEADERS, ID, b"\0\0\0\x02"),
        "PING" => h2::frame(h2::PING, 0, ID, b"12345678"),
        "GOAWAY" => h2::frame(h2::GOAWAY, 0, ID, &[0; 8]),
        "WINDOW_UPDATE" => h2::window_update(ID, 1),
        "WINDOW_UPDATE by 0" => h2::window_update(ID, 0),
        "WINDOW_UPDATE by max" => h2::window_update(ID, 0x7fff_ffff),
        "WINDOW_UPDATE too short" => h2::frame(h2::WINDOW_UPDATE, 0, ID, b"123"),
        "CONTINUATION" => h2::frame(h2::CONTINUATION, END_HEADERS, ID, b""),
        "PRIORITY_UPDATE" => h2::priority_update(ID, "u=1"),
        "unknown" => h2::frame(h2::UNKNOWN, 0xff, ID, b"x"),
        other => panic!("no such input: {other}"),
    }
}

/// A server with the stream in a state.
fn server(state: &str) -> End {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&[h2::client_preface(), h2::get(1)].concat());
    end.send_response(204, &[], BodySize::Empty).expect("open");
    let stream = StreamId(u64::from(ID));
    match state {
        "idle" => {}
        "open" => end.feed(&h2::post(ID, &[])),
        "remote" => end.feed(&h2::get(ID)),
        "local" => {
            let target = [(":method", "CONNECT"), (":authority", "a:1")];
            end.feed(&h2::headers(ID, 0, &target));
            end.send_response(200, &[], BodySize::Unknown)
                .expect("open");
            end.run_until_idle();
            end.conn
                .stream(stream)
                .expect("open")
                .finish()
                .expect("a tunnel");
        }
        "ended" => {
            end.feed(&h2::get(ID));
            end.send_response(204, &[], BodySize::Empty).expect("open");
        }
        "reset" => {
            end.feed(&h2::post(ID, &[]));
            end.conn.stream(stream).expect("open").reset();
        }
        "failed" | "gone" => {
            end.feed(&h2::post(ID, &[]));
            end.feed(&h2::reset(ID, ErrorCode::CANCEL));
            if state == "gone" {
                end.conn.stream(stream).expect("known").reset();
            }
        }
        other => panic!("no such state: {other}"),
    }
    end.run_until_idle();
    end
}

/// A client with the stream in a state.
fn client(state: &str) -> End {
    let mut end = End::h2_client(&Arc::new(Limits::client()));
    request(&mut end, BodySize::Empty);
    end.feed(&h2::server_preface());
    end.feed(&h2::headers(1, END, &[(":status", "204")]));
    let response = |flags| h2::headers(ID, flags, &[(":status", "200")]);
    match state {
        "idle" => {}
        "open" => request(&mut end, BodySize::Unknown),
        "sent" => request(&mut end, BodySize::Empty),
        "body" => {
            request(&mut end, BodySize::Empty);
            end.feed(&response(0));
        }
        "complete" => {
            request(&mut end, BodySize::Unknown);
            end.feed(&response(END));
        }
        "ended" => {
            request(&mut end, BodySize::Empty);
            end.feed(&response(END));
        }
        "reset" => {
            request(&mut end, BodySize::Empty);
            let stream = StreamId(u64::from(ID));
            end.conn.stream(stream).expect("open").reset();
        }
        "gone" => {
            request(&mut end, BodySize::Empty);
            end.feed(&h2::reset(ID, ErrorCode::CANCEL));
        }
        other => panic!("no such state: {other}"),
    }
    end.run_until_idle();
    end
}

fn request(end: &mut End, size: BodySize) {
    let host = Field {
        name: b"host",
        value: b"a",
    };
    let head = RequestHead {
        method: b"PUT",
        target: b"/",
        fields: &[host],
    };
    end.conn.request(&head, size).expect("room");
    end.run_until_idle();
}

fn verdict(mut end: End, pieces: &[&[u8]]) -> String {
    let (log, sent) = (end.log.text(), end.written().len());
    for piece in pieces {
        end.feed(piece);
    }
    let sent = &end.written()[sent..];
    let resets = h2::stream_errors(sent, ID);
    match (h2::connection_error(sent), resets.as_slice()) {
        (Some(code), _) => format!("C{}", code.0),
        (None, [code]) => format!("S{}", code.0),
        (None, []) if end.log.text() == log => "-".into(),
        (None, []) => "+".into(),
        (None, codes) => format!("{codes:?}"),
    }
}

fn check(table: &str, make: fn(&str) -> End) {
    let mut lines = table.lines().filter(|line| !line.is_empty());
    let states: Vec<&str> = lines.next().expect("states").split_whitespace().collect();
    let mut differences = Vec::new();
    for line in lines {
        let (name, expected) = line.split_at(24);
        let wire = input(name.trim_end());
        let bytes: Vec<&[u8]> = wire.chunks(1).collect();
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(expected.len(), states.len(), "{line}");
        for (state, expected) in states.iter().zip(expected) {
            for pieces in [&[wire.as_slice()][..], &bytes] {
                let found = verdict(make(state), pieces);
                if found != expected {
                    let n = pieces.len();
                    differences.push(format!("{name}in {state}: {found}, not {expected} ({n})"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Identifiers of the wrong side, and skipped ones (RFC 9113 5.1.1).
#[test]
fn identifiers() {
    let code = |end: &End| h2::connection_error(end.written());
    let mut even = server("idle");
    even.feed(&h2::get(4));
    assert_eq!(code(&even), Some(ErrorCode::PROTOCOL_ERROR));
    for head in [h2::get(3), h2::get(1), h2::post(5, &[])] {
        let mut passed = server("idle");
        passed.feed(&[h2::get(7), head].concat());
        assert_eq!(code(&passed), Some(ErrorCode::STREAM_CLOSED));
    }
    let mut pushed = client("idle");
    pushed.feed(&h2::headers(2, END, &[(":status", "200")]));
    assert_eq!(code(&pushed), Some(ErrorCode::PROTOCOL_ERROR));
    for frame in [
        h2::data(0, b""),
        h2::get(0),
        h2::reset(0, ErrorCode::CANCEL),
    ] {
        let mut end = server("idle");
        end.feed(&frame);
        assert_eq!(code(&end), Some(ErrorCode::PROTOCOL_ERROR));
    }
}

/// The first frame is SETTINGS, on both sides (RFC 9113 3.4).
#[test]
fn the_first_frame() {
    let limits = Arc::new(Limits::server());
    for first in [
        h2::ping(),
        h2::settings_ack(),
        h2::get(1),
        h2::window_update(0, 1),
    ] {
        let mut end = End::h2_server(&limits, App::Read);
        end.feed(&[h2::PREFACE, &first].concat());
        let code = h2::connection_error(end.written());
        assert_eq!(code, Some(ErrorCode::PROTOCOL_ERROR));
        let mut end = End::h2_client(&limits);
        end.feed(&first);
        let code = h2::connection_error(end.written());
        assert_eq!(code, Some(ErrorCode::PROTOCOL_ERROR));
    }
    let mut end = End::h2_server(&limits, App::Read);
    end.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(end.is_closed());
}

/// Settings out of range (RFC 9113 6.5.2).
#[test]
fn settings_out_of_range() {
    let bad = [
        ((h2::ENABLE_PUSH, 2), ErrorCode::PROTOCOL_ERROR),
        (
            (h2::INITIAL_WINDOW_SIZE, 1 << 31),
            ErrorCode::FLOW_CONTROL_ERROR,
        ),
        ((h2::MAX_FRAME_SIZE, 16_383), ErrorCode::PROTOCOL_ERROR),
        ((h2::MAX_FRAME_SIZE, 1 << 24), ErrorCode::PROTOCOL_ERROR),
        ((h2::ENABLE_CONNECT_PROTOCOL, 2), ErrorCode::PROTOCOL_ERROR),
    ];
    for (pair, code) in bad {
        let mut end = server("open");
        end.feed(&h2::settings(&[pair]));
        assert_eq!(h2::connection_error(end.written()), Some(code), "{pair:?}");
    }
    let sizes = [
        h2::frame(h2::SETTINGS, 0, 0, b"12345"),
        h2::frame(h2::SETTINGS, h2::ACK, 0, b"123456"),
        h2::frame(h2::PING, 0, 0, b"1234567"),
        h2::frame(h2::GOAWAY, 0, 0, b"1234567"),
        h2::frame(h2::WINDOW_UPDATE, 0, 0, b"12345"),
        h2::frame(h2::PRIORITY_UPDATE, 0, 0, b"123"),
    ];
    for frame in sizes {
        let mut end = server("open");
        end.feed(&frame);
        let code = h2::connection_error(end.written());
        assert_eq!(code, Some(ErrorCode::FRAME_SIZE_ERROR), "{frame:?}");
    }
    let mut end = client("open");
    end.feed(&h2::settings(&[(h2::ENABLE_PUSH, 1)]));
    let code = h2::connection_error(end.written());
    assert_eq!(code, Some(ErrorCode::PROTOCOL_ERROR));
}
