//! How connections end: gracefully, by time, by the peer.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BodySize, Limits, StreamId};
use towline_testkit::{App, End, wire};

const FIRST: StreamId = StreamId(1);

// ---- closing ----

#[test]
fn close_finishes_what_is_in_flight_and_nothing_else() {
    let mut end = End::asked(&[wire::get("/1"), wire::get("/2")].concat());
    end.conn.close();
    end.answer(200, &[], BodySize::Empty).expect("in flight");
    end.settle();
    let text = String::from_utf8_lossy(end.written()).into_owned();
    assert!(text.contains("connection: close"), "{text}");
    assert_eq!(
        end.log_text().matches("request ").count(),
        1,
        "{}",
        end.log_text()
    );
    assert!(end.conn.interest().shutdown || end.conn.interest().closed);

    let mut idle = End::asked(&wire::get("/"));
    idle.answer(200, &[], BodySize::Empty).expect("in flight");
    idle.settle();
    idle.conn.close();
    idle.settle();
    assert!(idle.conn.interest().shutdown || idle.conn.interest().closed);
}

#[test]
fn a_half_closed_peer_still_gets_its_answer() {
    let mut end = End::asked(&wire::get("/"));
    end.feed_eof();
    assert!(
        end.log_text().contains("half-closed 1\n"),
        "{}",
        end.log_text()
    );
    end.answer(200, &[], BodySize::Known(2))
        .expect("still open");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"ok").expect("allowed");
    stream.finish().expect("complete");
    end.settle();
    assert!(end.written().ends_with(b"\r\n\r\nok"));
    let interest = end.conn.interest();
    assert!(interest.closed || interest.shutdown, "{interest:?}");
}

// ---- time ----

#[test]
fn a_reader_that_stands_still_is_given_up() {
    let mut end = End::asked(&wire::get("/"));
    end.send_room = 0;
    end.answer(200, &[], BodySize::Known(2)).expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(b"ok").expect("allowed");
    stream.finish().expect("complete");
    end.settle();
    end.advance(Duration::from_secs(29));
    assert!(!end.conn.interest().closed);
    end.advance(Duration::from_secs(2));
    assert!(end.conn.interest().closed, "{}", end.log_text());
}

#[test]
fn a_reader_that_takes_too_little_is_given_up() {
    let mut end = End::asked(&wire::get("/"));
    end.send_room = 0;
    end.answer(200, &[], BodySize::Known(60_000))
        .expect("allowed");
    let mut stream = end.conn.stream(FIRST).expect("open");
    stream.write(&vec![b'x'; 60_000]).expect("allowed");
    stream.finish().expect("complete");
    for _ in 0..100 {
        end.send_room = 10;
        end.settle();
        end.advance(Duration::from_secs(1));
    }
    assert!(
        end.conn.interest().closed,
        "10 bytes a second are under the minimum rate"
    );
}

#[test]
fn a_sender_that_gives_too_little_is_given_up_and_one_that_gives_enough_is_not() {
    for (bytes, closes) in [(10, true), (200, false)] {
        let mut end = End::asked(&wire::request(
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
fn a_body_that_the_program_does_not_want_yet_is_nobodys_fault() {
    let mut end = End::server(&Arc::new(Limits::server()), App::Silent);
    end.feed(&wire::request(
        "POST",
        "/",
        &["Content-Length: 1000000"],
        &vec![b'x'; 500_000],
    ));
    end.advance(Duration::from_secs(1000));
    assert!(
        !end.is_over(),
        "the peer is not slow, the program is: {}",
        end.log_text()
    );
}

#[test]
fn a_head_has_its_time_whatever_it_does_with_it() {
    let mut end = End::server(&Arc::new(Limits::server()), App::Manual);
    end.feed(b"GET / HTTP/1.1\r\n");
    for _ in 0..20 {
        end.feed(b"X: y\r\n");
        end.advance(Duration::from_secs(1));
    }
    assert!(end.log_text().contains("wrote 408"), "{}", end.log_text());
}
