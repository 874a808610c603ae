//! Streams that come to nothing.

use towline_proto::{ErrorCode, Limits};
use towline_testkit::App;
use towline_testkit::h2::{self, END};

use super::{CALM, SECOND, Step, assert_closes, frames_until_closed, server, server_with};

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
