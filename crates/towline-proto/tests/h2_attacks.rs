//! Attacks on HTTP/2: each ends the connection within 1,000 frames, with the right code, or is bounded by the
//! limits; an exchange before it is unaffected.

#[path = "h2/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BodySize, ErrorCode, Limits, RateLimit, StreamId};
use towline_testkit::h2::{self, END};
use towline_testkit::{App, End};

use common::{asking_client, get};

/// No attack lasts longer.
const MAX_FRAMES: usize = 1000;

const CALM: ErrorCode = ErrorCode::ENHANCE_YOUR_CALM;
const SECOND: Duration = Duration::from_secs(1);

/// A server that has served a valid request on stream 1.
fn server(app: App) -> End {
    server_with(app, Limits::server())
}

fn server_with(app: App, limits: Limits) -> End {
    let mut end = End::h2_server(&Arc::new(limits), app);
    end.feed(&[h2::client_preface(), h2::get(1)].concat());
    if matches!(app, App::Manual | App::Silent) {
        end.send_response(200, &[], BodySize::Empty)
            .expect("a request");
        end.run_until_idle();
    }
    assert!(h2::lines(end.written()).contains(&"HEADERS 1 end".to_owned()));
    end
}

/// Frames of one step of an attack; new streams are numbered from 3.
type Step = fn(u32) -> Vec<u8>;

/// Sends the frames of `step` until the connection ends; returns their number.
fn frames_until_closed(end: &mut End, name: &str, step: Step) -> usize {
    let mut frames = 0;
    for stream in (3..).step_by(2) {
        let wire = step(stream);
        frames += h2::frames(&wire).len();
        end.feed(&wire);
        if end.is_closed() {
            break;
        }
        assert!(frames < 2 * MAX_FRAMES, "{name}: never cut off");
    }
    frames
}

fn assert_closes(mut end: End, name: &str, step: Step) {
    let frames = frames_until_closed(&mut end, name, step);
    assert!(frames <= MAX_FRAMES, "{name}: {frames} frames");
    assert_eq!(h2::connection_error(end.written()), Some(CALM), "{name}");
}

// ---- streams that come to nothing ----

/// CVE-2023-44487.
#[test]
fn rapid_reset() {
    for app in [App::Read, App::Ignore, App::Silent, App::Manual] {
        assert_closes(server(app), "open streams", |id| {
            [h2::post(id, &[]), h2::reset(id, ErrorCode::CANCEL)].concat()
        });
        assert_closes(server(app), "complete requests", |id| {
            [h2::get(id), h2::reset(id, ErrorCode::CANCEL)].concat()
        });
    }
}

/// CVE-2025-8671: the peer makes us reset.
#[test]
fn made_you_reset() {
    let ways: &[(&str, Step)] = &[
        ("no increment", |id| {
            [h2::post(id, &[]), h2::window_update(id, 0)].concat()
        }),
        ("window overflow", |id| {
            [h2::post(id, &[]), h2::window_update(id, 0x7fff_ffff)].concat()
        }),
        ("data behind the end", |id| {
            [h2::get(id), h2::data(id, b"x")].concat()
        }),
        ("head behind the end", |id| {
            [h2::get(id), h2::get(id)].concat()
        }),
        ("depends on itself", |id| {
            [h2::post(id, &[]), h2::priority(id, id)].concat()
        }),
        ("head that depends on itself", |id| {
            let payload = [
                &id.to_be_bytes()[..],
                b"\x0f",
                &h2::block(&h2::pseudo("GET")),
            ];
            let flags = h2::WITH_PRIORITY | h2::END_HEADERS | END;
            h2::frame(h2::HEADERS, flags, id, &payload.concat())
        }),
        ("priority of a wrong size", |id| {
            let priority = h2::frame(h2::PRIORITY, 0, id, b"1234");
            [h2::post(id, &[]), priority].concat()
        }),
        ("more than announced", |id| {
            let head = h2::post(id, &[("content-length", "1")]);
            [head, h2::data(id, b"xy")].concat()
        }),
        ("less than announced", |id| {
            let head = h2::post(id, &[("content-length", "2")]);
            [head, h2::last_data(id, b"x")].concat()
        }),
        ("trailers that do not end", |id| {
            let trailers = h2::headers(id, 0, &[("x", "y")]);
            [h2::post(id, &[]), trailers].concat()
        }),
        ("malformed trailers", |id| {
            let trailers = h2::headers(id, END, &[(":path", "/")]);
            [h2::post(id, &[]), trailers].concat()
        }),
        ("malformed head", |id| {
            h2::headers(id, END, &h2::pseudo("GET")[..3])
        }),
        ("empty head", |id| h2::headers(id, END, &[])),
        ("417", |id| h2::post(id, &[("expect", "money")])),
        ("431", |id| h2::post(id, &vec![("x", "y"); 130])),
        ("data larger than its window", |id| {
            [h2::post(id, &[]), h2::data(id, &[0; 4097])].concat()
        }),
    ];
    for (name, step) in ways {
        let mut limits = Limits::server();
        limits.http2.stream_window_bytes = 4096;
        assert_closes(server_with(App::Manual, limits), name, *step);
    }
}

#[test]
fn a_body_over_the_limit_counts_as_a_reset() {
    let mut limits = Limits::server();
    limits.max_body_bytes = Some(4);
    assert_closes(
        server_with(App::Manual, limits.clone()),
        "announced",
        |id| h2::post(id, &[("content-length", "5")]),
    );
    assert_closes(server_with(App::Manual, limits), "found", |id| {
        [h2::post(id, &[]), h2::data(id, b"hello")].concat()
    });
}

/// Streams reset by the peer still count while the application processes them: it never processes more than the
/// limit.
#[test]
fn requests_in_processing_are_bounded_despite_resets() {
    let mut limits = Limits::server();
    limits.http2.resets.burst = 100_000;
    let max = limits.http2.max_concurrent_streams as usize;
    let mut end = server_with(App::Silent, limits);
    for id in (3..2003).step_by(2) {
        end.feed(&[h2::get(id), h2::reset(id, ErrorCode::CANCEL)].concat());
    }
    assert_eq!(end.log.text().matches("request ").count(), 1 + max);
    assert!(!end.is_closed());
}

#[test]
fn streams_over_the_limit_are_refused_then_the_connection_closes() {
    let mut end = server(App::Silent);
    let frames = frames_until_closed(&mut end, "streams", h2::get);
    assert_eq!(frames, 128 + 101);
    assert_eq!(
        h2::stream_errors(end.written(), 3 + 2 * 128),
        [ErrorCode::REFUSED_STREAM]
    );
    assert_eq!(h2::connection_error(end.written()), Some(CALM));
}

/// The rate, not the total, makes an attack.
#[test]
fn occasional_resets_are_allowed_indefinitely() {
    let mut end = server(App::Read);
    for id in (3..4003).step_by(2) {
        end.feed(&[h2::get(id), h2::reset(id, ErrorCode::CANCEL)].concat());
        end.advance(SECOND / 33);
    }
    assert!(!end.is_closed());
}

// ---- header blocks ----

/// CVE-2024-27316.
#[test]
fn continuation_flood() {
    let floods: &[(&str, usize)] = &[("empty", 0), ("small", 5), ("full", 16_384)];
    for (name, size) in floods {
        let mut end = server(App::Read);
        let block = h2::block(&h2::pseudo("GET"));
        end.feed(&h2::frame(h2::HEADERS, END, 3, &block));
        let mut frames = 0;
        while !end.is_closed() {
            frames += 1;
            assert!(frames <= 9, "{name}");
            end.feed(&h2::frame(h2::CONTINUATION, 0, 3, &vec![0; *size]));
        }
        assert_eq!(h2::connection_error(end.written()), Some(CALM), "{name}");
        assert_eq!(end.log.text().matches("request ").count(), 1, "{name}");
    }
}

#[test]
fn an_endless_header_block_ends_with_the_header_timeout() {
    let mut end = server(App::Read);
    end.feed(&h2::frame(h2::HEADERS, END, 3, b""));
    for _ in 0..15 {
        assert!(!end.is_closed());
        end.advance(SECOND);
    }
    assert_eq!(h2::connection_error(end.written()), Some(CALM));
}

/// A field of 4 KB, repeated 12,000 times in a byte each: 48 MB of fields.
fn bomb(id: u32) -> Vec<u8> {
    let mut block = h2::block(&h2::pseudo("GET"));
    // With incremental indexing.
    block.extend_from_slice(b"\x40\x01x");
    h2::integer(&mut block, 0, 7, 4000);
    block.extend(std::iter::repeat_n(b'y', 4000));
    block.extend(std::iter::repeat_n(0xbe, 12_000));
    h2::frame(h2::HEADERS, END | h2::END_HEADERS, id, &block)
}

#[test]
fn hpack_bomb() {
    let mut end = server(App::Read);
    end.feed(&[bomb(3), h2::get(5)].concat());
    let log = end.log.text();
    assert!(!log.contains("request 3") && log.contains("request 5"));
    let lines = h2::lines(end.written());
    assert!(lines.contains(&"HEADERS 3 end".to_owned()), "{lines:?}");
    assert_closes(end, "bombs", |id| bomb(id + 4));
}

/// Split cookies are counted one by one, as they are stored.
#[test]
fn split_cookies_are_counted_one_by_one() {
    let crumbs = |n| {
        h2::headers(
            3,
            END,
            &[&h2::pseudo("GET")[..], &vec![("cookie", "a"); n]].concat(),
        )
    };
    for (count, is_served) in [(124, true), (125, false)] {
        let mut end = server(App::Read);
        end.feed(&crumbs(count));
        assert_eq!(end.log.text().contains("request 3"), is_served, "{count}");
        assert!(!end.is_closed());
    }
}

/// A block that cannot be decoded ends the connection: the tables may differ.
#[test]
fn undecodable_blocks_close_the_connection() {
    let buffers: &[(&str, &[u8])] = &[
        ("table larger than allowed", b"\x3f\xe2\x1f"),
        ("three table sizes", b"\x20\x20\x20"),
        ("table size behind a field", b"\x82\x20"),
        ("index 0", b"\x80"),
        ("index without an entry", b"\xbe"),
        ("integer without end", b"\xff\xff\xff\xff\xff\xff\xff"),
        ("cut", b"\x00\x05x"),
        ("huffman: eight bits of padding", b"\x00\x82\x1f\xff\x01y"),
        ("huffman: padding of zeros", b"\x00\x81\x18\x01y"),
        ("huffman: EOS", b"\x00\x84\xff\xff\xff\xff\x01y"),
    ];
    for (name, block) in buffers {
        let mut end = server(App::Read);
        end.feed(&h2::frame(h2::HEADERS, END | h2::END_HEADERS, 3, block));
        let code = h2::connection_error(end.written());
        assert_eq!(code, Some(ErrorCode::COMPRESSION_ERROR), "{name}");
    }
}

/// Our table stays bounded whatever the peer offers; blocks stay valid however often it changes.
#[test]
fn table_size_changes_keep_blocks_valid() {
    let mut end = server(App::Read);
    for id in (3..403).step_by(2) {
        let size = [0, u32::MAX, 1, 4096][id as usize / 2 % 4];
        let settings = h2::settings(&[(h2::HEADER_TABLE_SIZE, size), (h2::HEADER_TABLE_SIZE, 0)]);
        end.feed(&[settings, h2::get(id)].concat());
    }
    assert_eq!(end.log.text().matches("request ").count(), 201);
    let heads = h2::frames(end.written());
    assert!(heads.iter().all(|frame| frame.payload.len() < 100));
}

// ---- frames that move nothing ----

/// CVE-2019-9511 to 9518.
#[test]
fn floods() {
    let floods: &[(&str, Step)] = &[
        ("SETTINGS", |_| h2::settings(&[])),
        ("SETTINGS that change the window", |id| {
            h2::settings(&[(h2::INITIAL_WINDOW_SIZE, id)])
        }),
        ("acknowledgements of SETTINGS", |_| h2::settings_ack()),
        ("PING", |_| h2::ping()),
        ("answers to PING", |_| {
            h2::frame(h2::PING, h2::ACK, 0, b"alive? \0")
        }),
        ("PRIORITY of idle streams", |id| h2::priority(id, 0)),
        ("PRIORITY of a closed stream", |_| h2::priority(1, 0)),
        ("PRIORITY_UPDATE", |id| h2::priority_update(id, "u=1")),
        ("unknown frames", |id| h2::frame(h2::UNKNOWN, 0, id, b"x")),
        ("WINDOW_UPDATE of one byte", |_| h2::window_update(0, 1)),
        ("WINDOW_UPDATE of a closed stream", |_| {
            h2::window_update(1, 1)
        }),
        ("large WINDOW_UPDATE of a closed stream", |_| {
            h2::window_update(1, 65_536)
        }),
    ];
    for (name, step) in floods {
        assert_closes(server(App::Read), name, *step);
    }
}

/// The same on a stream that is open.
#[test]
fn floods_on_a_stream() {
    let floods: &[(&str, Step)] = &[
        ("empty DATA", |_| h2::data(3, b"")),
        ("DATA of padding", |_| {
            h2::frame(h2::DATA, h2::PADDED, 3, b"\x02\0\0")
        }),
        ("WINDOW_UPDATE of one byte", |_| h2::window_update(3, 1)),
        ("PRIORITY", |_| h2::priority(3, 0)),
        ("PRIORITY_UPDATE", |_| h2::priority_update(3, "u=1")),
        ("GOAWAY", |_| h2::go_away(0, ErrorCode::NO_ERROR)),
    ];
    for (name, step) in floods {
        let mut end = server(App::Read);
        end.feed(&h2::post(3, &[]));
        assert_closes(end, name, *step);
    }
}

/// The same from a server to a client.
#[test]
fn floods_from_a_server() {
    let floods: &[(&str, Step)] = &[
        ("SETTINGS", |_| h2::settings(&[])),
        ("PING", |_| h2::ping()),
        ("empty DATA", |_| h2::data(1, b"")),
        ("unknown frames", |_| h2::frame(h2::UNKNOWN, 0, 0, b"x")),
        ("GOAWAY", |_| h2::go_away(1, ErrorCode::NO_ERROR)),
        ("WINDOW_UPDATE of one byte", |_| h2::window_update(0, 1)),
        ("PRIORITY", |_| h2::priority(1, 0)),
    ];
    for (name, step) in floods {
        let mut end = asking_client();
        end.feed(&h2::headers(1, 0, &[(":status", "200")]));
        assert!(end.log.text().contains("response 1 200"));
        assert_closes(end, name, *step);
    }
}

#[test]
fn endless_interim_responses_close_the_connection() {
    let mut end = asking_client();
    for _ in 0..17 {
        assert_eq!(h2::stream_errors(end.written(), 1), []);
        end.feed(&h2::headers(1, 0, &[(":status", "103")]));
    }
    assert_eq!(h2::stream_errors(end.written(), 1), [CALM]);
    assert!(end.log.text().contains("failed 1 peer: too many interim"));
    get(&mut end);
    end.feed(&h2::headers(3, END, &[(":status", "200")]));
    assert!(end.log.text().contains("response 3 200 HTTP/2 end"));
}

#[test]
fn a_server_push_closes_the_connection() {
    let mut end = asking_client();
    let promise = [&2_u32.to_be_bytes()[..], &h2::block(&h2::pseudo("GET"))].concat();
    end.feed(&h2::frame(h2::PUSH_PROMISE, h2::END_HEADERS, 1, &promise));
    let code = h2::connection_error(end.written());
    assert_eq!(code, Some(ErrorCode::PROTOCOL_ERROR));
}

/// One SETTINGS frame can change the window of every stream 2,730 times: the last value applies, and windows
/// change once.
#[test]
fn settings_that_change_many_windows_are_charged_as_many_frames() {
    let mut end = server(App::Silent);
    (3..195)
        .step_by(2)
        .for_each(|stream| end.feed(&h2::get(stream)));
    let change: Step = |id| h2::settings(&[(h2::INITIAL_WINDOW_SIZE, id)]);
    let frames = frames_until_closed(&mut end, "windows", change);
    // A client that changes its setting twenty times is far from the limit.
    assert!((50..100).contains(&frames), "{frames} frames");
}

#[test]
fn repeated_settings_in_one_frame_are_applied_once() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 0)]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Known(9))
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(b"9 bytes..").expect("room");
    let mut pairs = vec![(h2::INITIAL_WINDOW_SIZE, 0x7fff_ffff); 2729];
    pairs.push((h2::INITIAL_WINDOW_SIZE, 5));
    end.feed(&h2::settings(&pairs));
    let last = h2::lines(end.written()).pop();
    assert_eq!(last.as_deref(), Some("DATA 1 5 bytes"));
}

// ---- readers that do not read ----

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
