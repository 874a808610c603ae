//! The server's end: its events and its output.

use crate::common::End;
use bytes::Bytes;
use towline_proto::{BodySize, Interest, StreamId, UserError};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn pipelined_requests_are_served_one_after_the_other() {
    let mut end = End::server();
    end.push(&GET.repeat(3));
    for id in 1..=3 {
        assert_eq!(end.events(), ["GET / end"]);
        assert!(!end.conn.is_idle());
        end.send_response(id);
        assert_eq!(end.conn.has_events(), id < 3);
        assert_eq!(end.sent(), OK);
    }
    assert!(end.conn.is_idle());
    assert_eq!(end.events(), [""; 0]);
}

#[test]
fn a_flood_of_pipelined_requests_stops_reading() {
    let mut end = End::server();
    let flood = GET.repeat(10_000);
    let taken = end.push(&flood);
    assert!(taken <= 64 * 1024);
    assert_eq!(end.events(), ["GET / end"]);
    assert!(!end.conn.interest().read);
    let mut id = 0;
    let mut at = taken;
    while id < 10_000 {
        id += 1;
        end.send_response(id);
        end.sent();
        end.conn.release(&mut end.buffers);
        at += end.push(&flood[at..]);
        assert_eq!(end.events().len(), usize::from(id < 10_000));
    }
}

#[test]
fn bodies_come_as_they_are_read() {
    let mut end = End::server();
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n");
    assert_eq!(end.events(), ["POST /"]);
    assert_eq!(end.read(1), (String::new(), "pending"));
    end.push(b"01234");
    assert_eq!(end.events(), ["readable"]);
    assert_eq!(end.events(), [""; 0]);
    assert_eq!(end.read(1), ("01234".into(), "pending"));
    end.push(b"56789");
    assert_eq!(end.events(), ["readable"]);
    assert_eq!(end.read(1), ("56789".into(), "end"));
    end.send_response(1);
    assert_eq!(end.sent(), OK);
    assert!(end.conn.is_idle());
}

#[test]
fn chunked_bodies_and_their_trailers_at_every_cut() {
    let wire = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nA: b\r\nContent-Length: 5\r\nC:d \r\n\r\n";
    for step in 1..wire.len() {
        let mut end = End::server();
        let mut body = String::new();
        let mut last = "pending";
        for piece in wire.chunks(step) {
            end.push(piece);
            for event in end.events() {
                assert!(["POST /", "readable"].contains(&event.as_str()), "{event}");
                let (more, how) = end.read(1);
                body += &more;
                last = how;
            }
            end.conn.release(&mut end.buffers);
        }
        assert_eq!((body.as_str(), last), ("hello world", "end"), "step {step}");
        let mut stream = end.conn.stream(StreamId(1)).unwrap();
        let trailers: Vec<_> = stream
            .trailers()
            .map(|field| (field.name, field.value))
            .collect();
        assert_eq!(trailers, [(&b"A"[..], &b"b"[..]), (b"C", b"d")]);
        stream.reset();
    }
}

#[test]
fn an_unread_body_stops_reading() {
    let mut end = End::server();
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    assert_eq!(end.events(), ["POST /"]);
    let chunk = vec![b'x'; 200_000];
    let taken = end.push(&chunk);
    assert!((32 * 1024..=64 * 1024).contains(&taken), "{taken}");
    assert!(!end.conn.interest().read);
    assert_eq!(end.conn.deadline(), None, "the peer is not to blame");
    assert_eq!(end.read(1).0.len(), taken);
    assert!(end.conn.interest().read);
    // The timer was paused: its first expiry only restarts it.
    end.wait(100);
    assert_eq!(end.events(), [""; 0]);
    end.wait(30);
    assert!(end.events()[0].contains("body stalled"));
}

#[test]
fn an_unread_body_of_any_size_is_skipped_and_the_next_request_served() {
    const SIZE: usize = 8 * 1024 * 1024;
    for is_chunked in [false, true] {
        let mut end = End::server();
        let (framing, piece): (_, &[u8]) = if is_chunked {
            ("Transfer-Encoding: chunked".into(), b"8000\r\n")
        } else {
            (format!("Content-Length: {SIZE}"), b"")
        };
        end.push(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes());
        assert_eq!(end.events(), ["POST /"]);
        end.send_response(1);
        assert_eq!(end.sent(), OK, "no close is announced");
        for _ in 0..SIZE / 0x8000 {
            end.push(piece);
            assert_eq!(end.push(&vec![b'x'; 0x8000]), 0x8000);
            if is_chunked {
                end.push(b"\r\n");
            }
            end.wait(1);
        }
        if is_chunked {
            end.push(b"0\r\n\r\n");
        }
        end.push(GET);
        assert_eq!(end.events(), ["GET / end"]);
    }
}

/// A server whose response came before the body, and then one piece of it each second.
fn skipped_for(end: &mut End, seconds: u32, piece: &[u8]) {
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    end.events();
    end.send_response(1);
    end.sent();
    for _ in 0..seconds {
        end.push(piece);
        end.wait(1);
    }
}

#[test]
fn an_unread_body_is_bounded_in_silence_rate_and_time() {
    for (seconds, piece) in [(0, &b""[..]), (29, b"x"), (270, &[b'x'; 1000])] {
        let mut end = End::server();
        skipped_for(&mut end, seconds, piece);
        assert_eq!(end.events(), [""; 0], "{seconds}");
        assert!(end.conn.deadline().is_some());
        end.wait(30);
        assert_eq!(
            end.events(),
            ["closed: closed with the request body unread"]
        );
        assert!(end.conn.interest().shutdown);
        assert_eq!(end.push(b"more"), 4, "lingering swallows");
        end.wait(5);
        assert!(end.conn.interest().closed);
    }
}

#[test]
fn an_upload_after_an_announced_close_is_received_while_it_makes_progress() {
    let mut end = End::server();
    end.push(
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n",
    );
    end.events();
    end.send_response(1);
    assert!(end.sent().contains("connection: close"));
    for _ in 0..100 {
        assert!(end.conn.interest().shutdown);
        assert_eq!(end.push(&vec![b'x'; 0x8000]), 0x8000);
        end.wait(2);
    }
    end.wait(3);
    assert!(end.conn.interest().closed, "silence ends it");
}

#[test]
fn a_stop_leaves_little_time_to_an_unread_body() {
    let mut end = End::server();
    skipped_for(&mut end, 1, b"x");
    end.conn.drain(end.now);
    end.push(b"x");
    end.wait(2);
    assert_eq!(end.events(), [""; 0]);
    end.wait(1);
    assert_eq!(
        end.events(),
        ["closed: closed with the request body unread"]
    );
}

#[test]
fn a_chunked_body_is_drained_over_many_reads() {
    let mut end = End::server();
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(end.events(), ["POST /"]);
    end.send_response(1);
    for _ in 0..10 {
        end.push(b"3e8\r\n");
        end.push(&[b'x'; 1000]);
        end.push(b"\r\n");
    }
    end.push(b"0\r\n\r\n");
    end.push(GET);
    assert_eq!(end.events(), ["GET / end"]);
}

#[test]
fn continue_is_sent_on_the_first_read() {
    let wire = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let mut end = End::server();
    end.push(wire);
    assert_eq!(end.events(), ["POST /"]);
    assert_eq!((end.sent().as_str(), end.conn.deadline()), ("", None));
    assert_eq!(end.read(1).1, "pending");
    assert_eq!(end.sent(), "HTTP/1.1 100 Continue\r\n\r\n");
    end.push(b"hi");
    assert_eq!(end.read(1), ("hi".into(), "end"));
    end.send_response(1);
    assert_eq!(end.sent(), OK);

    // A body sent without waiting is allowed, and a response before it ends the connection.
    let mut end = End::server();
    end.push(&[&wire[..], b"hi"].concat());
    assert_eq!(end.events(), ["POST /"]);
    assert_eq!(end.read(1), ("hi".into(), "end"));
    assert_eq!(end.sent(), "");
    let mut end = End::server();
    end.push(wire);
    end.events();
    end.send_response(1);
    assert_eq!(
        end.sent(),
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    );
    assert!(end.conn.interest().shutdown);
}

#[test]
fn other_expectations_fail() {
    let mut end = End::server();
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: gold\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(
        end.events(),
        ["closed: peer: unknown expectation (RFC 9110 10.1.1)"]
    );
    assert!(
        end.sent()
            .starts_with("HTTP/1.1 417 Expectation Failed\r\n")
    );
    assert!(end.conn.interest().shutdown);
}

#[test]
fn a_truncated_body_is_never_an_end() {
    for body in [
        "Content-Length: 9\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let mut end = End::server();
        end.push(format!("POST / HTTP/1.1\r\nHost: a\r\n{body}").as_bytes());
        assert_eq!(end.events(), ["POST /"]);
        assert_eq!(end.read(1), ("abc".into(), "pending"));
        end.eof();
        let events = end.events().join("; ");
        assert!(
            events.starts_with("half closed; failed: peer: end of input inside a body"),
            "{events}"
        );
        assert_eq!(end.read(1), (String::new(), "failed"));
        assert_eq!(
            end.try_respond(1, 200, &[], BodySize::Empty),
            Err(UserError::StreamFailed)
        );
        assert!(end.sent().starts_with("HTTP/1.1 400 "));
        assert!(end.conn.interest().closed);
    }
}

#[test]
fn a_half_closed_peer_gets_its_responses() {
    let mut end = End::server();
    end.push(&GET.repeat(2));
    end.eof();
    assert_eq!(end.events(), ["GET / end", "half closed"]);
    end.send_response(1);
    assert_eq!(end.events(), ["GET / end", "half closed"]);
    end.send_response(2);
    assert_eq!(end.events(), ["closed: closed in order"]);
    assert_eq!(end.sent(), OK.repeat(2));
    assert!(end.conn.interest().closed);
}

#[test]
fn framing_follows_the_request_and_the_status() {
    let no_fields: &[(&str, &str)] = &[];
    let length: &[(&str, &str)] = &[("Content-Length", "5")];
    let chunked: &[(&str, &str)] = &[("Transfer-Encoding", "chunked")];
    let known = BodySize::Known(5);
    let cases = [
        (
            "GET",
            "1.1",
            200,
            no_fields,
            known,
            "content-length: 5\r\n\r\nhello",
        ),
        (
            "GET",
            "1.1",
            200,
            length,
            known,
            "content-length: 5\r\n\r\nhello",
        ),
        (
            "GET",
            "1.1",
            200,
            length,
            BodySize::Unknown,
            "content-length: 5\r\n\r\nhello",
        ),
        (
            "GET",
            "1.1",
            200,
            no_fields,
            BodySize::Unknown,
            "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "GET",
            "1.1",
            200,
            chunked,
            BodySize::Unknown,
            "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "GET",
            "1.0",
            200,
            no_fields,
            BodySize::Unknown,
            "connection: close\r\n\r\nhello",
        ),
        (
            "HEAD",
            "1.1",
            200,
            no_fields,
            known,
            "content-length: 5\r\n\r\n",
        ),
        ("HEAD", "1.1", 200, no_fields, BodySize::Unknown, "\r\n"),
        ("GET", "1.1", 204, length, known, "\r\n"),
        (
            "GET",
            "1.1",
            304,
            length,
            known,
            "content-length: 5\r\n\r\n",
        ),
        ("GET", "1.1", 304, no_fields, known, "\r\n"),
    ];
    for (method, version, status, fields, size, expected) in cases {
        let mut end = End::server();
        end.push(format!("{method} / HTTP/{version}\r\nHost: a\r\n\r\n").as_bytes());
        end.events();
        end.respond(1, status, fields, size);
        let mut stream = end.conn.stream(StreamId(1)).unwrap();
        stream.write(b"hello").unwrap();
        stream.finish().unwrap();
        let sent = end.sent();
        let (_, rest) = sent.split_once("\r\n").unwrap();
        assert_eq!(rest, expected, "{method} {version} {status} {size:?}");
        assert_eq!(end.conn.interest().shutdown, version == "1.0");
    }
}

#[test]
fn contradictory_heads_are_refused_and_nothing_is_sent() {
    let refused = [
        (
            &[("content-length", "4")][..],
            BodySize::Known(5),
            UserError::InvalidContentLength,
        ),
        (
            &[("content-length", "4")],
            BodySize::Empty,
            UserError::InvalidContentLength,
        ),
        (
            &[("transfer-encoding", "chunked")],
            BodySize::Known(5),
            UserError::InvalidTransferEncoding,
        ),
        (
            &[("transfer-encoding", "gzip")],
            BodySize::Unknown,
            UserError::InvalidTransferEncoding,
        ),
        (
            &[("x", "a\r\nb: c")],
            BodySize::Empty,
            UserError::InvalidFieldValue,
        ),
        (
            &[("x y", "a")],
            BodySize::Empty,
            UserError::InvalidFieldName,
        ),
    ];
    let mut end = End::server();
    end.push(GET);
    end.events();
    for (fields, size, error) in refused {
        assert_eq!(end.try_respond(1, 200, fields, size), Err(error));
        assert_eq!(end.conn.pending_bytes(), 0);
    }
    assert_eq!(
        end.try_respond(2, 200, &[], BodySize::Empty),
        Err(UserError::UnknownStream)
    );
    assert_eq!(
        end.try_respond(1, 101, &[], BodySize::Empty),
        Err(UserError::UpgradeNotPossible)
    );
    end.send_response(1);
    assert_eq!(
        end.try_respond(1, 200, &[], BodySize::Empty),
        Err(UserError::WrongOrder)
    );
    assert_eq!(end.sent(), OK);
}

#[test]
fn bodies_of_a_wrong_size_are_errors() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.respond(1, 200, &[], BodySize::Known(3));
    let mut stream = end.conn.stream(StreamId(1)).unwrap();
    assert_eq!(stream.write(b"four"), Err(UserError::BodyTooLong));
    stream.write(b"ab").unwrap();
    assert_eq!(stream.finish(), Err(UserError::BodyTooShort));
    assert_eq!(stream.write(b"c"), Err(UserError::StreamFailed));
    assert!(end.sent().ends_with("\r\n\r\nab"));
    assert!(end.conn.interest().shutdown);
}

#[test]
fn an_aborted_message_never_looks_complete() {
    let mut end = End::server();
    end.push(b"GET / HTTP/1.0\r\n\r\n");
    end.events();
    end.respond(1, 200, &[], BodySize::Unknown);
    let mut stream = end.conn.stream(StreamId(1)).unwrap();
    stream.write(b"half").unwrap();
    stream.reset();
    assert_eq!(
        end.conn.interest(),
        Interest {
            closed: true,
            abort: true,
            ..Interest::default()
        }
    );

    let mut end = End::server();
    end.push(GET);
    end.events();
    end.respond(1, 200, &[], BodySize::Unknown);
    let mut stream = end.conn.stream(StreamId(1)).unwrap();
    stream.write(b"half").unwrap();
    stream.reset();
    assert!(end.sent().ends_with("4\r\nhalf\r\n"));
    assert!(end.conn.interest().shutdown);
    assert_eq!(end.events(), ["closed: program: aborted by the program"]);
}

#[test]
fn interim_responses_and_trailers() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.respond(1, 103, &[("link", "</a>")], BodySize::Empty);
    end.respond(1, 200, &[], BodySize::Unknown);
    let mut stream = end.conn.stream(StreamId(1)).unwrap();
    stream.write_shared(Bytes::from_static(b"x")).unwrap();
    let bad = [towline_proto::Field {
        name: b"content-length",
        value: b"1",
    }];
    assert_eq!(stream.finish_with(&bad), Err(UserError::ForbiddenTrailer));
    stream
        .finish_with(&[towline_proto::Field {
            name: b"t",
            value: b"v",
        }])
        .unwrap();
    assert_eq!(
        end.sent(),
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\nt: v\r\n\r\n"
    );
}

#[test]
fn an_upgrade_keeps_the_unread_bytes() {
    let mut end = End::server();
    end.push(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nleft");
    assert_eq!(end.events(), ["GET / end"]);
    end.respond(1, 101, &[("upgrade", "x")], BodySize::Empty);
    assert_eq!(end.events(), ["switched"]);
    assert_eq!(end.read(1), ("left".into(), "pending"));
    end.conn.stream(StreamId(1)).unwrap().write(b"raw").unwrap();
    assert_eq!(
        end.sent(),
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw"
    );
    end.push(b"more");
    assert_eq!(end.events(), ["readable"]);
    assert_eq!(end.read(1), ("more".into(), "pending"));
    end.conn.stream(StreamId(1)).unwrap().finish().unwrap();
    assert!(end.conn.interest().shutdown && end.conn.interest().read);
    end.eof();
    assert_eq!(end.events(), ["readable", "closed: closed in order"]);
    assert_eq!(end.read(1), (String::new(), "end"));
    assert!(end.conn.interest().closed);
}

#[test]
fn a_refused_connect_closes() {
    let mut end = End::server();
    end.push(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(end.events(), ["CONNECT a:443 end"]);
    end.respond(1, 403, &[], BodySize::Empty);
    assert!(end.sent().contains("connection: close"));
    assert_eq!(end.events(), ["closed: closed in order"]);
}

#[test]
fn a_socket_may_be_taken_over_between_a_request_and_its_response() {
    const UPGRADE: &[u8] =
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut end = End::server();
    assert!(!end.conn.is_between_request_and_response());
    end.push(UPGRADE);
    assert_eq!(end.events(), ["GET / end"]);
    assert!(end.conn.offers_upgrade());
    assert!(end.conn.is_between_request_and_response());
    end.send_response(1);
    assert!(!end.conn.is_between_request_and_response());
    end.sent();
    // Bytes behind the request belong to the next one.
    end.push(&[UPGRADE, b"G"].concat());
    assert_eq!(end.events(), ["GET / end"]);
    assert!(!end.conn.is_between_request_and_response());
    end.send_response(2);
    end.sent();
    end.push(b"ET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(end.events(), ["GET / end"]);
    assert!(!end.conn.offers_upgrade());
}
