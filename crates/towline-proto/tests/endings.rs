//! Ends of connections: gracefully, by timeout, by the peer.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BodySize, Limits, StreamId};
use towline_testkit::{App, End, wire};

const FIRST: StreamId = StreamId(1);

// ---- closing ----

#[test]
fn close_finishes_only_exchanges_in_flight() {
    let mut end = End::server_with_request(&[wire::get("/1"), wire::get("/2")].concat());
    end.conn.close();
    end.send_response(200, &[], BodySize::Empty)
        .expect("in flight");
    end.run_until_idle();
    let text = String::from_utf8_lossy(end.written()).into_owned();
    assert!(text.contains("connection: close"), "{text}");
    assert_eq!(
        end.log_text().matches("request ").count(),
        1,
        "{}",
        end.log_text()
    );
    assert!(end.conn.interest().shutdown || end.conn.interest().closed);

    let mut idle = End::server_with_request(&wire::get("/"));
    idle.send_response(200, &[], BodySize::Empty)
        .expect("in flight");
    idle.run_until_idle();
    idle.conn.close();
    idle.run_until_idle();
    assert!(idle.conn.interest().shutdown || idle.conn.interest().closed);
}

#[test]
fn a_half_closed_peer_still_gets_its_response() {
    let mut end = End::server_with_request(&wire::get("/"));
    end.feed_eof();
    assert!(
        end.log_text().contains("half-closed 1\n"),
        "{}",
        end.log_text()
    );
    end.send_response(200, &[], BodySize::Known(2))
        .expect("still open");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"ok").expect("allowed");
    stream.finish().expect("complete");
    end.run_until_idle();
    assert!(end.written().ends_with(b"\r\n\r\nok"));
    let interest = end.conn.interest();
    assert!(interest.closed || interest.shutdown, "{interest:?}");
}

// ---- time ----

#[test]
fn a_stalled_reader_is_closed() {
    let mut end = End::server_with_request(&wire::get("/"));
    end.send_room = 0;
    end.send_response(200, &[], BodySize::Known(2))
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"ok").expect("allowed");
    stream.finish().expect("complete");
    end.run_until_idle();
    end.advance(Duration::from_secs(29));
    assert!(!end.conn.interest().closed);
    end.advance(Duration::from_secs(2));
    assert!(end.conn.interest().closed, "{}", end.log_text());
}

#[test]
fn a_reader_below_the_minimum_rate_is_closed() {
    let mut end = End::server_with_request(&wire::get("/"));
    end.send_room = 0;
    end.send_response(200, &[], BodySize::Known(60_000))
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(&vec![b'x'; 60_000]).expect("allowed");
    stream.finish().expect("complete");
    for _ in 0..100 {
        end.send_room = 10;
        end.run_until_idle();
        end.advance(Duration::from_secs(1));
    }
    assert!(
        end.conn.interest().closed,
        "10 bytes a second are under the minimum rate"
    );
}

#[test]
fn a_sender_below_the_minimum_rate_is_closed_a_steady_one_is_not() {
    for (bytes, closes) in [(10, true), (200, false)] {
        let mut end = End::server_with_request(&wire::request(
            "POST",
            "/",
            &["Content-Length: 1000000"],
            b"",
        ));
        for _ in 0..100 {
            end.feed(&vec![b'x'; bytes]);
            end.advance(Duration::from_secs(1));
        }
        let over = end.conn.interest().closed || end.conn.interest().shutdown;
        assert_eq!(over, closes, "{bytes} bytes a second: {}", end.log_text());
    }
}

#[test]
fn an_unread_body_is_no_timeout() {
    let mut end = End::server(&Arc::new(Limits::server()), App::Silent);
    end.feed(&wire::request(
        "POST",
        "/",
        &["Content-Length: 1000000"],
        &vec![b'x'; 500_000],
    ));
    end.advance(Duration::from_secs(1000));
    assert!(
        !end.is_closed(),
        "the peer is not slow, the program is: {}",
        end.log_text()
    );
}

#[test]
fn no_byte_of_a_head_extends_the_header_timeout() {
    let mut end = End::server(&Arc::new(Limits::server()), App::Manual);
    end.feed(b"GET / HTTP/1.1\r\n");
    for _ in 0..20 {
        end.feed(b"X: y\r\n");
        end.advance(Duration::from_secs(1));
    }
    assert!(end.log_text().contains("wrote 408"), "{}", end.log_text());
}
