//! Responses that are compared with a verified one are counted as if each were parsed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::scripted::{HELLO, Reply, Server, expect_hello, load};
use bytes::Bytes;
use towline_load::{Arrivals, Config, LoopMode, Rate, SendMode, Target, Until};

const OTHER_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nX-Number: 2\r\nContent-Length: 5\r\n\r\nhello";
const OTHER_BODY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellO";
const ERROR: &[u8] = b"HTTP/1.1 500 No Entry\r\nContent-Length: 5\r\n\r\nhello";
const TWICE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const INTERIM: &[u8] =
    b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const CLOSING: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn a_response_that_differs_is_checked_wherever_it_comes() {
    let server = Server::new(|call| {
        Reply::Send(match call.number % 100 {
            17 | 18 | 60 => OTHER_BODY,
            31 => ERROR,
            // Right, but different.
            40..50 => OTHER_HEAD,
            55 => INTERIM,
            _ => HELLO,
        })
    });
    let mut config = server.config(3000);
    config.connections = 7;
    config.targets[0].expect = expect_hello();
    let report = load(&config).report;
    assert_eq!((report.errors.content, report.errors.status), (90, 30));
    assert_eq!(report.answered, 3000 - 120);
    assert_eq!(report.errors.total(), 120);
    assert_eq!(server.request_count.load(Ordering::Relaxed), 3000);
    assert_eq!(report.body_bytes, 5 * 2880);
    assert_eq!(report.reconnects, 0);
    let statuses: Vec<_> = (report.statuses.iter())
        .map(|s| (s.status, s.count))
        .collect();
    assert_eq!(statuses, [(200, 2970), (500, 30)]);
}

#[test]
fn every_request_is_the_whole_one() {
    let wrong = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&wrong);
    let server = Server::new(move |call| {
        let text = String::from_utf8_lossy(call.request);
        let is_right = text.starts_with("POST / HTTP/1.1\r\n") && text.ends_with("\r\n\r\na=1");
        count.fetch_add(u64::from(!is_right), Ordering::Relaxed);
        Reply::Send(HELLO)
    });
    let mut config = server.config(500);
    config.connections = 3;
    config.targets[0].method = "POST".into();
    config.targets[0].body = Some(Bytes::from_static(b"a=1"));
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (500, 0));
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
}

#[test]
fn a_request_larger_than_the_buffer_of_a_socket_is_sent_whole_each_time() {
    const BYTES: usize = 12 << 20;
    let server = Server::new(|call| {
        let body = &call.request[call.request.len() - BYTES..];
        let is_right = body.iter().zip((0..251_u8).cycle()).all(|(a, b)| *a == b);
        Reply::Send(if is_right { HELLO } else { ERROR })
    });
    let mut config = server.config(6);
    config.targets[0].method = "POST".into();
    config.targets[0].body = Some((0..251_u8).cycle().take(BYTES).collect());
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (6, 0));
    assert_eq!(server.request_count.load(Ordering::Relaxed), 6);
}

#[test]
fn a_response_longer_than_the_known_one_is_parsed_whole() {
    // More than the generator receives at once where it knows the response; a byte too many or too few breaks a chunk.
    let chunk = format!("fa0\r\n{}\r\n", "x".repeat(4000));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = format!("{chunked}{}0\r\n\r\n", chunk.repeat(10));
    let long: &[u8] = Box::leak(long.into_boxed_str()).as_bytes();
    let server = Server::new(move |call| match call.number % 10 {
        7 => Reply::Send(long),
        _ => Reply::Send(HELLO),
    });
    let mut config = server.config(500);
    config.connections = 3;
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (500, 0));
    assert_eq!((report.reconnects, report.changed), (0, 50));
    assert_eq!(report.body_bytes, 450 * 5 + 50 * 40_000);
}

#[test]
fn the_end_of_a_connection_is_noticed() {
    let server = Server::new(|call| match call.number % 50 {
        10 => Reply::Reset,
        20 => Reply::Last(HELLO),
        30 => Reply::Send(CLOSING),
        _ => Reply::Send(HELLO),
    });
    let mut config = server.config(500);
    config.targets[0].expect = expect_hello();
    let report = load(&config).report;
    // A request that is sent before the end of the connection is noticed fails with it.
    let errors = report.errors.total();
    assert_eq!(report.errors.reset, errors);
    assert_eq!(report.answered + errors, 500);
    assert!((5..=30).contains(&errors), "{:?}", report.errors);
    assert!(report.reconnects >= 20);
}

#[test]
fn a_response_too_many_is_a_failure() {
    let server = Server::new(|call| Reply::Send(if call.number == 50 { TWICE } else { HELLO }));
    let report = load(&server.config(100)).report;
    assert_eq!((report.answered, report.errors.protocol), (100, 1));
}

#[test]
fn an_open_loop_repeats_too_and_notices_bytes_between_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    // The thread ends with the process.
    thread::spawn(move || {
        let mut count = 0;
        for mut socket in listener.incoming().flatten() {
            let mut request = [0; 4096];
            while socket.read(&mut request).is_ok_and(|n| n > 0) {
                count += 1;
                socket.write_all(HELLO).unwrap();
                if count == 4 {
                    // No request is outstanding: the next one is due later.
                    thread::sleep(Duration::from_millis(20));
                    let _ = socket.write_all(HELLO);
                }
            }
        }
    });
    let mut config = Config::new(vec![Target::get(&url).unwrap()]);
    config.connections = 1;
    config.until = Until::Requests(8);
    config.loop_mode = LoopMode::Open(Rate {
        per_s: 4.0,
        arrivals: Arrivals::Constant,
        ramp: Duration::ZERO,
    });
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.protocol), (8, 1));
    assert_eq!(report.errors.total(), 1);
}

#[test]
fn requests_that_take_several_steps_are_not_repeated() {
    let server = Server::hello();
    let mut config = server.config(40);
    config.targets[0].send_mode = SendMode::Pieces {
        pieces: 3,
        gap: Duration::from_millis(1),
    };
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (40, 0));
}
