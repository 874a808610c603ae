//! Peers that do not read, and readers that do not read.

use std::sync::Arc;

use towline_proto::{BodySize, ErrorCode, Limits, RateLimit, StreamId};
use towline_testkit::h2;
use towline_testkit::{App, End};

use super::{SECOND, server, server_with};

/// Pings are acknowledged as long as the peer reads; then reading from it stops.
#[test]
fn reading_stops_for_a_peer_that_never_reads() {
    let mut limits = Limits::server();
    limits.http2.control_frames = RateLimit {
        burst: u32::MAX,
        per_s: 0,
    };
    let mut end = server_with(App::Read, limits);
    end.send_room = 0;
    let flood = h2::ping().repeat(20_000);
    end.feed(&flood);
    assert!(
        end.conn.pending_bytes() <= 66 * 1024,
        "{}",
        end.conn.pending_bytes()
    );
    assert!(end.unread_bytes() > flood.len() / 2);
    end.send_room = usize::MAX;
    end.run_until_idle();
    assert_eq!(end.unread_bytes(), 0);
    let pongs = h2::lines(end.written())
        .iter()
        .filter(|line| *line == "PING ack")
        .count();
    assert_eq!(pongs, 20_000);
}

#[test]
fn requests_of_a_peer_that_never_reads_are_not_parsed() {
    let mut end = server(App::Read);
    end.send_room = 0;
    let flood: Vec<u8> = (3..20_003).step_by(2).flat_map(h2::get).collect();
    end.feed(&flood);
    assert!(
        end.conn.pending_bytes() <= 66 * 1024,
        "{}",
        end.conn.pending_bytes()
    );
    assert!(end.unread_bytes() > 0 && !end.conn.interest().read);
    end.send_room = usize::MAX;
    end.run_until_idle();
    assert_eq!(end.log.text().matches("request ").count(), 10_001);
    // The wait is bounded by a timeout.
    end.send_room = 0;
    end.feed(&h2::get(20_003));
    end.advance(30 * SECOND);
    assert!(end.is_closed() && end.conn.interest().abort);
}

/// Responses blocked by the peer's window: as much as the program may queue, for 30 seconds.
#[test]
fn zero_window_stall() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 0)]));
    let ids: Vec<u32> = (1..101).step_by(2).collect();
    for &id in &ids {
        end.feed(&h2::get(id));
        end.send_response(200, &[], BodySize::Unknown)
            .expect("open");
        let mut stream = end.conn.stream(StreamId(u64::from(id))).expect("open");
        while stream.send_capacity() > 0 {
            stream.write(&[b'x'; 4096]).expect("room");
        }
        end.run_until_idle();
    }
    assert!(end.conn.pending_bytes() == 0 && !end.is_closed());
    // Together no more than the connection may hold, and something of each.
    let held = ids.iter().map(|&id| {
        let stream = end.conn.stream(StreamId(u64::from(id))).expect("open");
        stream.queued()
    });
    let held: Vec<usize> = held.collect();
    assert!(held.iter().all(|&bytes| bytes >= 16 * 1024), "{held:?}");
    let most = 1024 * 1024 + ids.len() * 20 * 1024;
    assert!(held.iter().sum::<usize>() < most, "{held:?}");
    end.advance(29 * SECOND);
    assert_eq!(h2::stream_errors(end.written(), 1), []);
    end.advance(2 * SECOND);
    for &id in &ids {
        assert_eq!(
            h2::stream_errors(end.written(), id),
            [ErrorCode::CANCEL],
            "{id}"
        );
    }
}

/// A window opened by a byte a second is a stall too.
#[test]
fn one_byte_windows() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 1)]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Unknown)
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(&[b'x'; 4096]).expect("room");
    for second in 0..30 {
        assert_eq!(h2::stream_errors(end.written(), 1), [], "{second}");
        end.advance(SECOND);
        end.feed(&h2::window_update(1, 1));
    }
    assert_eq!(h2::stream_errors(end.written(), 1), [ErrorCode::CANCEL]);
}

/// The connection's window is not reopened: no response can be sent.
#[test]
fn zero_connection_window_stall() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(
        h2::INITIAL_WINDOW_SIZE,
        1 << 20,
    )]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Unknown)
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(&vec![b'x'; 100_000]).expect("room");
    end.run_until_idle();
    end.advance(29 * SECOND);
    assert!(!end.is_closed());
    end.advance(2 * SECOND);
    assert!(end.is_closed());
    let sent: usize = h2::frames(end.written())
        .iter()
        .filter(|f| f.kind == h2::DATA)
        .map(|f| f.payload.len())
        .sum();
    assert_eq!(sent, 65_535);
}

/// An unread body: the window is buffered, and a peer that sends more gets its stream reset.
#[test]
fn an_unread_body_is_bounded_by_its_window() {
    let mut end = server(App::Silent);
    end.feed(&h2::post(3, &[]));
    for _ in 0..16 {
        end.feed(&h2::data(3, &[0; 16_384]));
    }
    let held = |end: &mut End| end.conn.stream(StreamId(3)).expect("open").buffered();
    assert_eq!(held(&mut end), 256 * 1024);
    end.feed(&h2::data(3, &[0; 1]));
    assert_eq!(held(&mut end), 0);
    let errors = h2::stream_errors(end.written(), 3);
    assert_eq!(errors, [ErrorCode::FLOW_CONTROL_ERROR]);
    assert!(!end.is_closed());
}

#[test]
fn an_overflow_of_the_connection_window_closes_it() {
    let mut end = server(App::Read);
    end.feed(&h2::window_update(0, 0x7fff_ffff));
    let code = h2::connection_error(end.written());
    assert_eq!(code, Some(ErrorCode::FLOW_CONTROL_ERROR));
}

/// RFC 9113 6.1: an empty padded frame has no padding length; the bytes after it belong to another frame.
#[test]
fn padding_is_not_read_beyond_its_frame() {
    let padded = h2::frame(h2::DATA, h2::PADDED, 3, b"");
    let wire = [h2::post(3, &[]), padded, h2::ping()].concat();
    for piece in [1, wire.len()] {
        let mut end = server(App::Read);
        for bytes in wire.chunks(piece) {
            end.feed(bytes);
        }
        let error = end.conn.error().expect("a broken connection");
        assert_eq!(error.rule, "frame of a wrong size (RFC 9113 6)");
    }
}

/// Some clients reset a stream again for every frame that still arrives on it; that is no rapid reset, and is
/// bounded like other frames without data.
#[test]
fn a_repeated_reset_is_charged_as_a_control_frame() {
    let mut end = server(App::Silent);
    end.feed(&[h2::get(3), h2::reset(3, ErrorCode::CANCEL)].concat());
    for _ in 0..300 {
        end.feed(&h2::reset(3, ErrorCode::CANCEL));
    }
    assert!(!end.is_closed());
    for _ in 0..1000 {
        end.feed(&h2::reset(3, ErrorCode::CANCEL));
    }
    let code = h2::connection_error(end.written());
    assert_eq!(code, Some(ErrorCode::ENHANCE_YOUR_CALM));
}
