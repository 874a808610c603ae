//! Request and response bodies of the asynchronous client, and the timeouts of every phase.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::support::calls::{DriverHarness, Scripted, get, head, ok, request, route, send};
use crate::support::{MAX_WAIT, Server};
use bytes::Bytes;
use towline_io::client::{
    Body, CallErrorKind, CallEvent, CallId, CallOptions, CallPhase, CallRead, PoolStatus, Timeouts,
};

const SHORT: Duration = Duration::from_millis(100);
/// Long enough not to expire on a busy machine.
const LONGER: Duration = Duration::from_millis(1500);

/// Timeouts that do not expire, as the base of each test.
fn with_timeouts() -> Timeouts {
    Timeouts {
        connect: Some(MAX_WAIT),
        read: Some(MAX_WAIT),
        write: Some(MAX_WAIT),
        pool: None,
        total: None,
    }
}

fn with(timeouts: Timeouts) -> CallOptions {
    CallOptions {
        timeouts,
        ..CallOptions::default()
    }
}

/// Writes `chunk` this number of times, waiting for room; returns whether it had to wait.
fn upload(harness: &mut DriverHarness, call: CallId, chunk: &Bytes, times: usize) -> bool {
    let mut waited = false;
    assert!(matches!(harness.event(call), CallEvent::Writable));
    for _ in 0..times {
        if harness.driver.write(call, chunk.clone()).unwrap() == 0 {
            waited = true;
            let event = harness.event(call);
            if !matches!(event, CallEvent::Writable) {
                // Everything was sent and the response arrived before the `Writable` event.
                harness.events.push((call, event));
            }
        }
    }
    harness.driver.finish(call, &[]).unwrap();
    waited
}

#[test]
fn every_kind_of_upload_arrives_completely() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let file = tempfile(&data);
    let bodies = [
        Body::Bytes(Bytes::from(data.clone())),
        Body::File {
            file,
            offset: 0,
            len: data.len() as u64,
        },
        Body::Known(data.len() as u64),
        Body::Unknown,
    ];
    for body in bodies {
        let streamed = body.is_streamed();
        let call = harness.begin(request(&route, "POST", "/upload", body));
        if streamed {
            let chunk = Bytes::from(data[..100_000].to_vec());
            assert!(upload(&mut harness, call, &chunk, 30), "never had to wait");
        }
        let (status, response) = harness.finish(call).response();
        assert_eq!((status, response), (200, b"3000000".to_vec()));
    }
    assert_eq!(server.accepted.load(Relaxed), 1);
}

fn tempfile(data: &[u8]) -> std::fs::File {
    let path = std::env::temp_dir().join(format!("towline-upload-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).unwrap();
    file.write_all_at(data, 0).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

#[test]
fn an_upload_waits_for_a_server_that_does_not_read() {
    let server = Scripted::new(|_, mut stream| {
        head(&mut stream);
        std::thread::sleep(Duration::from_millis(100));
        let mut rest = Vec::new();
        while !rest.ends_with(b"0\r\n\r\n") {
            let mut some = [0; 16384];
            let n = stream.read(&mut some).unwrap();
            rest.extend_from_slice(&some[..n]);
        }
        send(&mut stream, &ok("got it"));
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let call = harness.begin(request(&route, "POST", "/", Body::Unknown));
    assert!(matches!(harness.event(call), CallEvent::Writable));
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    // The socket buffers and one window fill up: then there is no room.
    let mut written = 0;
    while harness.driver.write(call, chunk.clone()).unwrap() > 0 {
        written += chunk.len();
        assert!(written < 64 << 20, "no backpressure");
    }
    while !matches!(harness.event(call), CallEvent::Writable) {}
    harness.driver.finish(call, &[]).unwrap();
    assert_eq!(harness.finish(call).response().1, b"got it");
}

#[test]
fn an_early_response_to_an_upload_is_read() {
    // Refused and closed with most of the upload unread, which resets the connection.
    let server = Scripted::new(|_, mut stream| {
        head(&mut stream);
        let response =
            "HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig";
        send(&mut stream, response);
    });
    let route = route(server.addr);
    for _ in 0..20 {
        let mut harness = DriverHarness::new(|_| {});
        let body = Body::Bytes(Bytes::from(vec![0; 30_000_000]));
        let call = harness.begin(request(&route, "POST", "/", body));
        let (status, response) = harness.finish(call).response();
        assert_eq!((status, response), (413, b"big".to_vec()));
        assert_eq!(harness.driver.status(), PoolStatus::default());
    }
}

#[test]
fn a_refusal_before_the_request_is_complete_ends_the_upload() {
    let server = Scripted::new(|_, mut stream| {
        head(&mut stream);
        let refusal = "HTTP/1.1 413 No\r\ncontent-length: 6\r\n\r\nenough";
        send(&mut stream, refusal);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let call = harness.begin(request(&route, "POST", "/", Body::Unknown));
    assert!(matches!(harness.event(call), CallEvent::Writable));
    harness
        .driver
        .write(call, Bytes::from_static(b"some"))
        .unwrap();
    assert!(matches!(harness.event(call), CallEvent::Head { .. }));
    assert_eq!(harness.body(call, 413).response().1, b"enough");
    // The data is discarded, and the write does not wait.
    assert!(
        harness
            .driver
            .write(call, Bytes::from_static(b"more"))
            .unwrap()
            > 0
    );
    harness.driver.finish(call, &[]).unwrap();
    harness.driver.cancel(call);
    assert_eq!(
        harness.driver.status(),
        PoolStatus::default(),
        "the connection was kept although the request is incomplete"
    );
}

#[test]
fn a_slow_reader_holds_no_more_than_its_window() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = Scripted::new(move |number, mut stream| {
        head(&mut stream);
        let chunked = number == 1;
        let framing = if chunked {
            "transfer-encoding: chunked"
        } else {
            "content-length: 99999999"
        };
        send(
            &mut stream,
            &format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n"),
        );
        let data = vec![b'x'; 0x2000];
        loop {
            let sent = if chunked {
                stream.write_all(&[b"2000\r\n", &data[..], b"\r\n"].concat())
            } else {
                stream.write_all(&data)
            };
            if sent.is_err() {
                return;
            }
            counter.fetch_add(data.len(), Relaxed);
        }
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for _ in 0..2 {
        let call = harness.begin(get(&route, "/"));
        assert!(matches!(harness.event(call), CallEvent::Head { .. }));
        for _ in 0..50 {
            match harness.driver.read(call, 16 * 1024) {
                CallRead::Data(data) => assert!(data.len() <= 16 * 1024),
                CallRead::Pending => {}
                other => panic!("{other:?}"),
            }
            harness.turn(Duration::from_millis(1));
            let buffered = harness.driver.buffered(call);
            assert!(buffered <= 64 * 1024, "{buffered} bytes buffered");
        }
        harness.driver.cancel(call);
        harness.events.clear();
    }
    // The socket buffers are full; the client did not buffer the rest.
    assert!(sent.load(Relaxed) < 80 << 20);
}

#[test]
fn every_phase_has_its_own_timeout() {
    let server = Scripted::new(|number, mut stream| {
        if number == 2 {
            // Does not read the upload.
            std::thread::sleep(MAX_WAIT);
        }
        head(&mut stream);
        if number == 1 {
            send(
                &mut stream,
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
            );
        }
        std::thread::sleep(MAX_WAIT);
    });
    let route = route(server.addr);
    let read = |timeout| {
        with(Timeouts {
            read: Some(timeout),
            ..with_timeouts()
        })
    };
    let write = with(Timeouts {
        write: Some(SHORT),
        ..with_timeouts()
    });
    let big = || Body::Bytes(Bytes::from(vec![0; 64 << 20]));
    let cases = [
        (
            read(SHORT),
            Body::Empty,
            CallErrorKind::ReadTimeout,
            CallPhase::Head,
        ),
        // The head must arrive first.
        (
            read(LONGER),
            Body::Empty,
            CallErrorKind::ReadTimeout,
            CallPhase::Body,
        ),
        (write, big(), CallErrorKind::WriteTimeout, CallPhase::Send),
    ];
    let mut harness = DriverHarness::new(|_| {});
    for (options, body, kind, phase) in cases {
        let start = Instant::now();
        let call = harness
            .driver
            .begin(request(&route, "PUT", "/", body), options)
            .unwrap();
        let error = harness.finish(call).failed();
        assert_eq!((error.kind, error.phase), (kind, phase));
        assert!(start.elapsed() >= SHORT && start.elapsed() < MAX_WAIT);
        assert_eq!(harness.driver.status(), PoolStatus::default());
    }
}

#[test]
fn the_pool_wait_and_the_total_call_have_timeouts() {
    let (allow, allowed) = mpsc::channel::<()>();
    let allowed = Mutex::new(allowed);
    let server = Scripted::new(move |_, mut stream| {
        head(&mut stream);
        let _ = allowed.lock().unwrap().recv();
        send(&mut stream, &ok("slow"));
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| config.pool.max_connections_per_host = 1);
    let slow = harness.begin(get(&route, "/"));
    let pool = with(Timeouts {
        pool: Some(SHORT),
        ..with_timeouts()
    });
    let total = with(Timeouts {
        total: Some(SHORT),
        ..with_timeouts()
    });
    for (options, kind) in [
        (pool, CallErrorKind::PoolTimeout),
        (total, CallErrorKind::TotalTimeout),
    ] {
        let call = harness.driver.begin(get(&route, "/"), options).unwrap();
        let error = harness.finish(call).failed();
        assert_eq!((error.kind, error.phase), (kind, CallPhase::Pool));
        assert!(error.retryable);
    }
    allow.send(()).unwrap();
    assert_eq!(harness.finish(slow).response().0, 200);
    // Regular small pieces restart the read timeout; the total timeout still expires.
    let drip = Scripted::new(|_, mut stream| {
        head(&mut stream);
        send(&mut stream, "HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(b".").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let options = with(Timeouts {
        read: Some(LONGER),
        total: Some(2 * LONGER),
        ..with_timeouts()
    });
    let drip = crate::support::calls::route(drip.addr);
    let call = harness.driver.begin(get(&drip, "/"), options).unwrap();
    let error = harness.finish(call).failed();
    assert_eq!(error.kind, CallErrorKind::TotalTimeout);
    assert!(error.bytes_received > 20);
}

#[test]
fn the_read_timeout_does_not_run_while_the_program_does_not_read() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let options = with(Timeouts {
        read: Some(LONGER),
        ..with_timeouts()
    });
    let call = harness
        .driver
        .begin(get(&route, "/large"), options)
        .unwrap();
    assert!(matches!(harness.event(call), CallEvent::Head { .. }));
    let start = Instant::now();
    while start.elapsed() < LONGER + 4 * SHORT {
        harness.turn(Duration::from_millis(10));
    }
    assert_eq!(harness.body(call, 200).response().1.len(), 64 * 1024);
}

#[test]
fn the_read_timeout_counts_from_the_last_read() {
    let (tell, sender) = mpsc::channel::<()>();
    let sender = Mutex::new(sender);
    let server = Scripted::new(move |_, mut stream| {
        head(&mut stream);
        send(
            &mut stream,
            "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf",
        );
        let _ = sender.lock().unwrap().recv();
        // The client is reading by now.
        std::thread::sleep(SHORT);
        send(&mut stream, "half");
        std::thread::sleep(MAX_WAIT);
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let options = with(Timeouts {
        read: Some(LONGER),
        ..with_timeouts()
    });
    let call = harness.driver.begin(get(&route, "/"), options).unwrap();
    assert!(matches!(harness.event(call), CallEvent::Head { .. }));
    // For longer than the timeout, no turn runs and the program does not read.
    std::thread::sleep(LONGER + SHORT);
    tell.send(()).unwrap();
    assert_eq!(harness.body(call, 200).response().1, b"halfhalf");
}

#[test]
fn a_malformed_response_is_an_error_that_cites_the_rule() {
    let cases = [
        ("", CallErrorKind::ServerDisconnected),
        ("HTTP/1.1 200", CallErrorKind::ServerDisconnected),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
            CallErrorKind::ServerDisconnected,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
            CallErrorKind::ServerDisconnected,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            CallErrorKind::RemoteProtocol,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            CallErrorKind::RemoteProtocol,
        ),
        ("SSH-2.0-OpenSSH\r\n", CallErrorKind::RemoteProtocol),
        (
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            CallErrorKind::RemoteProtocol,
        ),
    ];
    let server = Scripted::new(move |number, mut stream| {
        head(&mut stream);
        send(&mut stream, cases[number].0);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for (text, kind) in cases {
        let error = harness.get(&route, "/").failed();
        assert_eq!(error.kind, kind, "{text:?}: {error}");
        assert_eq!(error.bytes_received, text.len() as u64, "{text:?}");
        assert_eq!(harness.driver.status(), PoolStatus::default());
    }
}
