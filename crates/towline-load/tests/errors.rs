//! Failures are counted exactly, by class, and no wrong response counts as a success.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::scripted::{HELLO, Reply, Server, expect_hello, load, refusing_port};
use bytes::Bytes;
use towline_load::{Errors, Stop, Until, run};

const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
const WRONG_BYTE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhallo";
const SHORT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell";
const CUT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
const LEFTOVER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!";
const GARBAGE: &[u8] = b"SSH-2.0-OpenSSH_9.6\r\n\r\n";
const CLOSING: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn every_class_is_counted_exactly() {
    let server = Server::new(|call| match call.number % 20 {
        3 => Reply::Send(UNAVAILABLE),
        5 => Reply::Send(WRONG_BYTE),
        7 => Reply::Send(SHORT),
        9 => Reply::Reset,
        11 => Reply::Last(CUT),
        13 => Reply::Send(GARBAGE),
        15 if call.number < 20 => Reply::Silence,
        17 => Reply::Last(CLOSING),
        _ => Reply::Send(HELLO),
    });
    let mut config = server.config(200);
    // One request times out; no other may take as long.
    config.timeout = Duration::from_secs(4);
    config.targets[0].expect = expect_hello();
    let report = load(&config).report;
    let errors = Errors {
        connect: 0,
        timeout: 1,
        reset: 20,
        protocol: 10,
        status: 10,
        content: 20,
        ..Errors::default()
    };
    assert_eq!(report.errors, errors);
    assert_eq!(report.answered, 200 - errors.total());
    assert_eq!(server.request_count.load(Ordering::Relaxed), 200);
    let statuses: Vec<_> = report
        .statuses
        .iter()
        .map(|s| (s.status, s.count))
        .collect();
    assert_eq!(statuses, [(200, 159), (503, 10)]);
    // Each of those closed its connection: the load did not shrink.
    assert_eq!(report.reconnects, 41);
    assert_eq!(report.live_connections.at_end, 1);
}

#[test]
fn an_unsolicited_response_is_a_protocol_failure() {
    let server = Server::new(|call| Reply::Send(if call.number == 4 { LEFTOVER } else { HELLO }));
    let report = load(&server.config(10)).report;
    assert_eq!((report.answered, report.errors.protocol), (10, 1));
}

#[test]
fn a_refused_connection_is_a_connect_failure() {
    let mut config = Server::hello().config(5);
    config.targets[0].port = refusing_port();
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.connect), (0, 5));
    assert!(report.first_failure.unwrap().contains("refused"));
}

#[test]
fn a_silent_server_times_out_repeatedly() {
    let server = Server::new(|_| Reply::Silence);
    let mut config = server.config(1);
    config.connections = 4;
    config.timeout = Duration::from_millis(100);
    config.until = Until::Requests(12);
    let begun = Instant::now();
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.timeout), (0, 12));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn each_pipelined_response_is_checked() {
    let server = Server::new(|call| {
        Reply::Send(if call.number % 10 == 9 {
            WRONG_BYTE
        } else {
            HELLO
        })
    });
    let mut config = server.config(1000);
    config.targets[0].expect = expect_hello();
    config.pipeline = 16;
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.content), (900, 100));
    assert_eq!(report.errors.total(), 100);
    assert_eq!(server.accepted.load(Ordering::Relaxed), 1);
}

#[test]
fn connections_are_replaced_after_their_limit() {
    let server = Server::new(|call| {
        let closes = call.request.windows(17).any(|w| w == b"Connection: close");
        if closes {
            Reply::Last(HELLO)
        } else {
            Reply::Send(HELLO)
        }
    });
    for (most, connections) in [(1, 60), (10, 6)] {
        let before = server.accepted.load(Ordering::Relaxed);
        let mut config = server.config(60);
        config.requests_per_connection = Some(most);
        let report = load(&config).report;
        assert_eq!(
            (report.answered, report.errors.total()),
            (60, 0),
            "{:?}",
            report.first_failure
        );
        let accepted = server.accepted.load(Ordering::Relaxed) - before;
        assert!(
            accepted.abs_diff(connections) <= 1,
            "{accepted} for {connections}"
        );
    }
}

#[test]
fn a_body_arrives_and_a_mix_takes_turns() {
    let server = Server::new(|call| {
        let right = match call.number % 2 {
            0 => call.request.starts_with(b"GET / HTTP/1.1\r\nHost: "),
            _ => {
                call.request.starts_with(b"PUT /b HTTP/1.1\r\n")
                    && call.request.ends_with(b"\r\nxyz")
            }
        };
        Reply::Send(if right { HELLO } else { UNAVAILABLE })
    });
    let mut config = server.config(20);
    let mut put = config.targets[0].clone();
    (put.method, put.path, put.body) =
        ("PUT".into(), "/b".into(), Some(Bytes::from_static(b"xyz")));
    config.targets.push(put);
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (20, 0));
}

#[test]
fn a_stopped_run_keeps_its_measurements() {
    let stop = Stop::default();
    let stopper = stop.clone();
    let server = Server::new(move |request| {
        if request.number == 100 {
            stopper.request();
        }
        Reply::Send(HELLO)
    });
    let mut config = server.config(1);
    config.until = Until::Time(Duration::from_secs(60));
    let report = run(&config, &stop).unwrap().report;
    assert!(
        report.answered >= 100 && report.measured_s < 30.0,
        "{report}"
    );
}
