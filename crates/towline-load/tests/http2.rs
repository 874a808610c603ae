//! HTTP/2: each stream has its own response, check and latency, and faulty servers are detected.
//! The server is the native responder, in a process of its own.

use std::io::Write;
use std::time::Duration;

use crate::responder::{Responder, probe};
use crate::scripted::{Server, all_answered, keeps_connections, load};
use bytes::Bytes;
use serde_json::json;
use towline_load::{Arrivals, Config, Expect, LoopMode, Rate, Target, Trust, Until};
use towline_proto::Protocol;

/// `n` requests with `streams` concurrent streams on one connection.
fn config(url: &str, streams: usize, n: u64) -> Config {
    let mut config = Config::new(vec![Target::get(url).unwrap()]);
    config.protocol = Protocol::Http2;
    config.connections = 1;
    config.streams = streams;
    config.until = Until::Requests(n);
    config.timeout = Duration::from_secs(30);
    config
}

fn expecting(mut config: Config, body: impl Into<Bytes>) -> Config {
    config.targets[0].expect = Expect {
        body: Some(body.into()),
        ..Expect::default()
    };
    config
}

#[test]
fn every_byte_of_many_streams_is_verified() {
    let server = Responder::plain(&[]);
    for (path, body) in [
        ("/", b"alive\r\n".to_vec()),
        ("/large", vec![b'x'; 64 * 1024]),
        ("/bytes?n=300000", vec![b'x'; 300_000]),
        ("/small", vec![b'x'; 6400]),
    ] {
        let config = expecting(config(&server.url(path), 16, 200), body.clone());
        all_answered(&config, 200);
        let mut wrong = body;
        *wrong.last_mut().unwrap() ^= 1;
        let report = load(&expecting(config, wrong)).report;
        assert_eq!((report.answered, report.errors.content), (0, 200), "{path}");
    }
}

#[test]
fn bodies_are_sent_and_echoed() {
    let server = Responder::plain(&[]);
    let body = Bytes::from(
        (0..200_000_u32)
            .map(|n| n.to_le_bytes()[0])
            .collect::<Vec<_>>(),
    );
    for chunk_bytes in [None, Some(10_000)] {
        let streams = if chunk_bytes.is_some() { 1 } else { 8 };
        let mut config = expecting(config(&server.url("/echo"), streams, 40), body.clone());
        config.targets[0].method = "POST".into();
        config.targets[0].body = Some(body.clone());
        config.targets[0].chunk_bytes = chunk_bytes;
        all_answered(&config, 40);
    }
}

#[test]
fn alpn_selects_http2_under_tls() {
    let server = Responder::tls();
    let mut config = expecting(config(&server.url("/"), 10, 100), &b"alive\r\n"[..]);
    config.trust = Trust::Path(server.authority());
    let report = all_answered(&config, 100);
    assert_eq!(report.live_connections.at_end, 1);
}

#[test]
fn a_probe_returns_the_whole_response_and_its_protocol() {
    let (plain, tls) = (Responder::plain(&[]), Responder::tls());
    let cases = [
        (plain.url("/"), json!("any"), json!(null), json!(null)),
        (
            tls.url("/"),
            json!({"path": tls.authority()}),
            json!("h2"),
            json!("TLSv1.3"),
        ),
    ];
    for (url, trust, alpn, version) in cases {
        let one = &probe(&[url], "h2", &trust)[0];
        assert_eq!(
            (&one["failure"], &one["status"]),
            (&json!(null), &json!(200)),
            "{one}"
        );
        assert_eq!(one["version"], "HTTP/2");
        assert_eq!((&one["alpn"], &one["tls"]), (&alpn, &version));
        assert_eq!(
            (&one["body_base64"], &one["closed"]),
            (&json!("YWxpdmUNCg=="), &json!(false))
        );
    }
}

#[test]
fn a_probe_reports_failed_streams() {
    let server = Responder::plain(&[]);
    let faults = [
        ("truncated", "stream_reset: "),
        ("early-close", "stream_reset: "),
        ("garbage", "protocol: "),
    ];
    let urls = faults.map(|(fault, _)| server.url(&format!("/?fault={fault}")));
    let answers = probe(&urls, "h2", &json!("any"));
    for ((fault, class), one) in faults.iter().zip(&answers) {
        let why = one["failure"].as_str().unwrap_or_default();
        assert!(why.starts_with(class), "{fault}: {one}");
    }
    let other = &probe(&[Server::hello().url()], "h2", &json!("any"))[0];
    assert!(other["failure"].is_string(), "{other}");
}

#[test]
fn responses_may_come_in_any_order() {
    let server = Responder::plain(&[]);
    let url = server.url("/?fast_ms=1&slow_ms=20&slow_share=0.3");
    let mut config = expecting(config(&url, 10, 0), &b"alive\r\n"[..]);
    config.loop_mode = LoopMode::Open(Rate {
        per_s: 400.0,
        arrivals: Arrivals::Poisson,
        ramp: Duration::ZERO,
    });
    config.until = Until::Requests(120);
    let report = all_answered(&config, 120);
    assert_eq!(report.reconnects, 0);
}

#[test]
fn wrong_responses_are_counted_by_class_and_fail_their_stream_only() {
    let server = Responder::plain(&[]);
    for (fault, class) in [
        ("one-byte", "content"),
        ("short", "content"),
        ("long", "content"),
        ("truncated", "stream reset"),
        ("early-close", "stream reset"),
    ] {
        let url = server.url(&format!("/?fault={fault}&fault_share=0.1"));
        let report = load(&expecting(config(&url, 10, 200), &b"alive\r\n"[..])).report;
        let of = match class {
            "content" => report.errors.content,
            _ => report.errors.stream_reset,
        };
        let all = (of, report.errors.total(), report.answered);
        assert_eq!(all, (20, 20, 180), "{fault}: {report}");
        assert_eq!(report.reconnects, 0, "{fault}");
    }
}

#[test]
fn invalid_http2_ends_the_connection_and_all_its_streams() {
    let server = Responder::plain(&[]);
    let url = server.url("/?fault=garbage&fault_share=0.05");
    let report = load(&expecting(config(&url, 4, 100), &b"alive\r\n"[..])).report;
    assert!(
        report.errors.protocol >= 5 && report.reconnects > 0,
        "{report}"
    );
    assert_eq!(report.errors.total(), report.errors.protocol, "{report}");
    assert_eq!(report.errors.total() + report.answered, 100);
}

#[test]
fn a_stream_without_a_response_times_out_alone() {
    let server = Responder::plain(&[]);
    let url = server.url("/?fault=hang&fault_share=0.1");
    let mut config = expecting(config(&url, 10, 100), &b"alive\r\n"[..]);
    // Other streams continue: the connection is alive.
    config
        .targets
        .push(Target::get(&server.url("/delay?ms=20")).unwrap());
    config.timeout = Duration::from_secs(3);
    let report = load(&config).report;
    assert_eq!(
        (report.errors.timeout, report.errors.total()),
        (5, 5),
        "{report}"
    );
    assert_eq!((report.answered, report.reconnects), (95, 0), "{report}");
}

#[test]
fn connections_are_replaced_after_their_limit() {
    let server = Responder::plain(&[]);
    for (per_connection, streams) in [(1, 1), (7, 1), (20, 5)] {
        let mut config = expecting(config(&server.url("/"), streams, 100), &b"alive\r\n"[..]);
        config.requests_per_connection = Some(per_connection);
        all_answered(&config, 100);
    }
}

#[test]
fn a_server_that_sends_goaway_is_dialled_again() {
    let server = Responder::plain(&["--requests-per-connection", "10"]);
    let config = expecting(config(&server.url("/"), 3, 200), &b"alive\r\n"[..]);
    let report = load(&config).report;
    // Requests after its GOAWAY were never processed, and are reported as such.
    let errors = report.errors;
    assert_eq!(errors.total(), errors.unprocessed, "{report}");
    assert_eq!(report.answered + errors.total(), 200, "{report}");
    assert!(report.reconnects >= 10, "{report}");
}

#[test]
fn the_stream_limit_of_the_server_is_kept() {
    let server = Responder::plain(&["--max-streams", "5"]);
    for connections in [1, 3] {
        let url = server.url("/delay?ms=2");
        let mut config = expecting(config(&url, 50, 300), &b"alive\r\n"[..]);
        config.connections = connections;
        all_answered(&config, 300);
    }
}

#[test]
fn sessions_keep_their_streams_from_slice_to_slice() {
    let server = Responder::plain(&[]);
    let mut config = expecting(config(&server.url("/delay?ms=1"), 8, 0), &b"alive\r\n"[..]);
    config.connections = 2;
    keeps_connections(config);
}

#[test]
fn a_server_of_http1_alone_is_an_error_and_no_success() {
    let server = Server::hello();
    let mut config = config(&server.url(), 4, 8);
    config.timeout = Duration::from_secs(2);
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (0, 8), "{report}");
}

#[test]
fn a_connection_reset_after_its_response_is_reopened() {
    // SETTINGS, and the head of a response on stream 1; the client's input remains unread.
    const WORDS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x88";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // The preface and a request are longer.
            while !matches!(stream.peek(&mut [0; 200]), Ok(0 | 60..) | Err(_)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = stream.write_all(WORDS);
        }
    });
    let report = load(&config(&url, 1, 200)).report;
    assert_eq!(
        (report.answered, report.errors.total()),
        (0, 200),
        "{report}"
    );
    assert_eq!(report.errors.timeout, 0, "{report}");
}
