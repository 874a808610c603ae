//! The server's end under time, limits and closing.

use std::time::Duration;

use crate::common::End;
use towline_proto::{BodySize, Limits, StreamId};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn slow_and_silent_peers() {
    let mut end = End::server();
    end.wait(14);
    assert_eq!(end.events(), [""; 0]);
    end.wait(1);
    assert_eq!(
        end.events(),
        ["closed: peer: no request within the header timeout"]
    );
    assert!(end.conn.interest().closed);

    // One byte a second does not reset the header timer.
    let mut end = End::server();
    for byte in &GET[..15] {
        end.push(&[*byte]);
        end.wait(1);
    }
    assert!(end.sent().starts_with("HTTP/1.1 408 "));

    // A kept-alive connection closes silently 75 s after its last response.
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.wait(500);
    end.send_response(1);
    end.sent();
    end.wait(74);
    assert!(end.conn.is_idle());
    end.wait(1);
    assert_eq!(end.events(), ["closed: keep-alive timeout"]);
    assert_eq!(end.sent(), "");

    // A body below 100 bytes a second.
    let mut end = End::server();
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    end.events();
    for _ in 0..30 {
        end.push(b"x");
        end.read(1);
        end.wait(1);
    }
    assert!(end.events()[0].starts_with("failed: peer: body stalled"));
    assert!(end.sent().starts_with("HTTP/1.1 408 "));
}

#[test]
fn a_peer_that_never_reads_is_closed() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.respond(1, 200, &[], BodySize::Unknown);
    let mut stream = end.conn.stream(StreamId(1)).unwrap();
    stream.write(&vec![b'x'; 70_000]).unwrap();
    assert_eq!(stream.send_capacity(), 0);
    end.conn.sent(end.now, 1000);
    end.conn.sent(end.now, 0);
    assert_eq!(
        end.conn.deadline(),
        Some(end.now + std::time::Duration::from_secs(30))
    );
    end.wait(30);
    assert_eq!(end.events().len(), 2);
    assert!(end.conn.interest().closed && end.conn.interest().abort);
}

#[test]
fn a_long_response_outlives_the_keep_alive_timeout() {
    let mut end = End::server();
    end.push(&GET.repeat(2));
    end.events();
    end.respond(1, 200, &[], BodySize::Known(1_000_000));
    let mut stream = end.conn.stream(StreamId(1)).unwrap();
    stream.write_shared(vec![b'x'; 1_000_000].into()).unwrap();
    stream.finish().unwrap();
    for _ in 0..90 {
        end.conn.sent(end.now, 10_000);
        end.conn.sent(end.now, 0);
        end.wait(1);
        assert_eq!(end.events(), [""; 0]);
    }
    end.sent();
    assert_eq!(end.events(), ["GET / end"]);
    end.send_response(2);
    end.wait(100);
    assert_eq!(end.events(), [""; 0], "the answer has not left yet");
    end.sent();
    end.wait(75);
    assert_eq!(end.events(), ["closed: keep-alive timeout"]);
}

#[test]
fn a_connection_that_is_never_kept_alive_announces_its_close() {
    let mut end = End::server_with(Limits {
        keep_alive_timeout: Some(Duration::ZERO),
        ..Limits::server()
    });
    end.push(GET);
    end.events();
    end.send_response(1);
    assert!(end.sent().contains("connection: close"));
    assert_eq!(end.events(), ["closed: closed in order"]);
}

#[test]
fn close_does_not_wait_for_an_unread_body() {
    let mut end = End::server();
    end.push(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    end.events();
    end.send_response(1);
    end.conn.close();
    assert_eq!(end.sent(), OK);
    assert!(end.conn.interest().shutdown);
}

#[test]
fn writable_comes_once_below_the_low_water_mark() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.respond(1, 200, &[], BodySize::Unknown);
    end.conn
        .stream(StreamId(1))
        .unwrap()
        .write_shared(vec![b'x'; 100_000].into())
        .unwrap();
    end.conn.sent(end.now, 50_000);
    assert_eq!(end.events(), [""; 0]);
    end.sent();
    assert_eq!(end.events(), ["writable"]);
    assert_eq!(end.events(), [""; 0]);
}

#[test]
fn close_finishes_exchanges_in_flight() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.conn.close();
    end.send_response(1);
    assert_eq!(
        end.sent(),
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    );
    assert_eq!(end.events(), ["closed: closed in order"]);
    assert!(end.conn.interest().shutdown);
    end.eof();
    assert!(end.conn.interest().closed);

    // The first request may be on its way, however often `close` is called.
    let mut end = End::server();
    end.conn.close();
    end.conn.close();
    assert!(!end.conn.interest().closed);
    end.wait(1);
    assert!(end.conn.interest().closed);
}

#[test]
fn a_drained_connection_may_send_one_more_request() {
    // Idle after an exchange, and before the first one.
    for exchanges in [1, 0] {
        let mut end = End::server();
        for id in 1..=exchanges {
            end.push(GET);
            end.events();
            end.send_response(id);
            end.sent();
        }
        end.wait(10);
        end.conn.drain(end.now);
        end.wait(2);
        assert!(!end.conn.interest().closed);
        end.push(GET);
        assert_eq!(end.events(), ["GET / end"]);
        end.send_response(exchanges + 1);
        assert_eq!(
            end.sent(),
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
        );
        assert_eq!(end.events(), ["closed: closed in order"]);
    }
}

#[test]
fn a_drained_connection_closes_when_it_stays_idle() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.send_response(1);
    end.sent();
    end.wait(60);
    end.conn.drain(end.now);
    end.wait(2);
    assert!(!end.conn.interest().closed);
    end.wait(1);
    assert!(end.conn.interest().closed);
    assert_eq!(end.events(), ["closed: closed in order"]);
}

#[test]
fn an_announced_reuse_is_honoured_after_drain() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.respond(1, 200, &[], BodySize::Known(2));
    end.conn.drain(end.now);
    end.conn.stream(StreamId(1)).unwrap().write(b"ok").unwrap();
    end.conn.stream(StreamId(1)).unwrap().finish().unwrap();
    assert_eq!(end.sent(), OK);
    end.push(GET);
    assert_eq!(end.events(), ["GET / end"]);
    end.send_response(2);
    assert!(end.sent().contains("connection: close"));
    assert_eq!(end.events(), ["closed: closed in order"]);
}

#[test]
fn close_after_drain_does_not_wait() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.send_response(1);
    end.sent();
    end.conn.drain(end.now);
    end.conn.close();
    assert!(end.conn.interest().closed);
}

#[test]
fn a_draining_server_lingers_for_half_a_second() {
    for (drain, before, after) in [(true, 400, 200), (false, 4800, 400)] {
        let mut end = End::server();
        end.push(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        end.events();
        end.send_response(1);
        end.sent();
        if drain {
            end.conn.drain(end.now);
        }
        end.now += Duration::from_millis(before);
        end.conn.handle_timeout(end.now);
        assert!(!end.conn.interest().closed);
        end.now += Duration::from_millis(after);
        end.conn.handle_timeout(end.now);
        assert!(end.conn.interest().closed);
    }
}

#[test]
fn bodies_over_the_limit() {
    let limits = Limits {
        max_body_bytes: Some(4),
        ..Limits::server()
    };
    for body in [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n",
    ] {
        let mut end = End::server_with(limits.clone());
        end.push(format!("POST / HTTP/1.1\r\nHost: a\r\n{body}").as_bytes());
        if end.events() == ["POST /"] {
            assert_eq!(end.read(1), ("abc".into(), "failed"));
        }
        assert!(end.sent().starts_with("HTTP/1.1 413 "));
    }
}

#[test]
fn an_aborted_connection_fails_its_exchange() {
    let mut end = End::server();
    end.push(GET);
    end.events();
    end.conn.received_abort(end.now, "connection reset");
    assert_eq!(
        end.events(),
        [
            "failed: peer: connection reset",
            "closed: peer: connection reset"
        ]
    );
    assert!(end.conn.interest().closed);
    assert_eq!(end.conn.deadline(), None);
}

#[test]
fn an_idle_connection_is_small() {
    assert!(
        size_of::<towline_proto::Connection>() <= 640,
        "{}",
        size_of::<towline_proto::Connection>()
    );
}
