//! Calls that share a connection: HTTP/2 through the asynchronous client, against our own server and
//! against one that says exactly what it is told.

mod support;

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use support::calls::{DriverHarness, Scripted, get, request, route};
use support::frames::{
    DATA, END_HEADERS, Frames, GOAWAY, HEADERS, OK, RESET, answer, frame, goaway,
};
use support::{MAX_WAIT, Server};
use towline_io::client::{
    Body, CallErrorKind, CallEvent, CallOptions, CallPhase, CallRead, DialConfig, FlushPolicy,
    StaleRetry, Timeouts,
};
use towline_io::{ConnConfig, EngineConfig};
use towline_proto::{Limits, ProtocolPolicy};

/// Speaks HTTP/2 without asking.
fn harness() -> DriverHarness {
    hand_with(Limits::client())
}

fn hand_with(limits: Limits) -> DriverHarness {
    DriverHarness::new(|config| {
        config.dial = Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2));
        config.limits = Arc::new(limits);
    })
}

fn server() -> Server {
    Server::start(ConnConfig {
        protocols: ProtocolPolicy::Either,
        ..ConnConfig::default()
    })
}

fn server_with(streams: u32) -> Server {
    let mut limits = Limits::server();
    limits.http2.max_concurrent_streams = streams;
    Server::start(ConnConfig {
        protocols: ProtocolPolicy::Http2,
        ..ConnConfig::plain(limits)
    })
}

#[test]
fn one_connection_carries_a_thousand_calls_at_once() {
    for flush in [
        FlushPolicy::Immediate,
        FlushPolicy::TurnEnd,
        FlushPolicy::Manual,
    ] {
        let server = server_with(1000);
        let route = route(server.addr);
        let mut harness = DriverHarness::new(|config| {
            config.dial = Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2));
            config.flush = flush;
        });
        assert_eq!(harness.get(&route, "/").answer().1, b"alive\r\n");
        let calls: Vec<_> = (0..1000)
            .map(|n| {
                let body = Body::Bytes(Bytes::from(n.to_string()));
                harness.begin(request(&route, "POST", "/echo", body))
            })
            .collect();
        assert_eq!(harness.driver.status().waiting, 0);
        for (n, call) in calls.into_iter().enumerate() {
            let (status, body) = harness.finish(call).answer();
            assert_eq!((status, body), (200, n.to_string().into_bytes()));
        }
        assert_eq!(server.accepted.load(Relaxed), 1);
        assert_eq!(harness.driver.calls(), 0);
        let status = harness.driver.status();
        assert_eq!((status.idle, status.active), (1, 0));
    }
}

#[test]
fn calls_beyond_the_servers_limit_wait_or_take_another_connection() {
    for (per_host, connections) in [(1, 1), (5, 5)] {
        let server = server_with(10);
        let route = route(server.addr);
        let mut harness = DriverHarness::new(|config| {
            config.dial = Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2));
            config.pool.max_connections_per_host = per_host;
        });
        assert_eq!(harness.get(&route, "/").answer().0, 200);
        let calls: Vec<_> = (0..200)
            .map(|_| harness.begin(get(&route, "/delay?ms=5")))
            .collect();
        for call in calls {
            assert_eq!(harness.finish(call).answer().0, 200);
        }
        let accepted = server.accepted.load(Relaxed);
        assert!(accepted <= connections, "{accepted}");
    }
}

#[test]
fn a_first_burst_waits_for_one_connection_and_refused_calls_are_sent_again() {
    // Before its SETTINGS are here the server is taken to allow a hundred; it allows three.
    let server = server_with(3);
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| {
        config.dial = Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2));
        config.pool.max_connections_per_host = 1;
    });
    let calls: Vec<_> = (0..60)
        .map(|_| harness.begin(request(&route, "POST", "/echo", Body::Bytes("x".into()))))
        .collect();
    for call in calls {
        assert_eq!(harness.finish(call).answer(), (200, b"x".to_vec()));
    }
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn bodies_pass_both_ways_at_the_pace_of_the_program() {
    let server = server();
    let route = route(server.addr);
    let mut limits = Limits::client();
    limits.http2.stream_window_bytes = 64 * 1024;
    let mut harness = hand_with(limits);
    let slow = harness.begin(get(&route, "/bytes?n=3000000"));
    harness.until("a full window", |harness| {
        harness.driver.buffered(slow) >= 64 * 1024 - 1
    });
    // Nobody reads it, and the others are not held up by that.
    for _ in 0..20 {
        assert_eq!(
            harness.get(&route, "/bytes?n=300000").answer().1.len(),
            300_000
        );
        let body = Body::Bytes(Bytes::from(vec![b'x'; 300_000]));
        let call = harness.begin(request(&route, "POST", "/upload", body));
        assert_eq!(harness.finish(call).answer().1, b"300000");
        assert!(harness.driver.buffered(slow) <= 64 * 1024);
    }
    assert_eq!(harness.finish(slow).answer().1.len(), 3_000_000);
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn a_streamed_upload_comes_back_while_it_goes() {
    let server = server();
    let route = route(server.addr);
    let mut harness = harness();
    let call = harness.begin(request(&route, "POST", "/echo", Body::Unknown));
    let (mut written, mut read) = (0_usize, Vec::new());
    let mut head = false;
    let piece = Bytes::from((0..=255_u8).cycle().take(50_000).collect::<Vec<_>>());
    loop {
        match harness.event(call) {
            CallEvent::Writable => {
                while written < 20 * piece.len() {
                    written += piece.len();
                    if harness.driver.write(call, piece.clone()).unwrap() == 0 {
                        break;
                    }
                }
                if written == 20 * piece.len() {
                    harness.driver.finish(call, &[]).unwrap();
                    written += 1;
                }
            }
            CallEvent::Head { .. } => head = true,
            CallEvent::Failed(error) => panic!("{error:?}"),
            _ => {}
        }
        let over = loop {
            if !head {
                break false;
            }
            match harness.driver.read(call, 4000) {
                CallRead::Data(data) => read.extend_from_slice(data),
                CallRead::Pending => break false,
                CallRead::End => break true,
                CallRead::Failed(error) => panic!("{error:?}"),
            }
        };
        if over {
            break;
        }
    }
    assert_eq!(read.len(), 20 * piece.len());
    assert!(read.chunks(piece.len()).all(|chunk| chunk == piece));
}

#[test]
fn a_cancelled_call_ends_its_stream_only() {
    let server = server();
    let route = route(server.addr);
    let mut harness = harness();
    let kept = harness.begin(get(&route, "/delay?ms=50"));
    // Fewer than a server takes for a flood of resets (CVE-2023-44487).
    for round in 0..90 {
        let target = ["/delay?ms=10000", "/endless", "/"][round % 3];
        let call = harness.begin(get(&route, target));
        if round % 2 == 0 {
            harness.turn(Duration::ZERO);
        }
        harness.driver.cancel(call);
        harness.events.retain(|(of, _)| *of != call);
    }
    assert_eq!(harness.finish(kept).answer().0, 200);
    let status = harness.driver.status();
    assert_eq!((status.idle, status.active), (1, 0));
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn a_call_that_times_out_leaves_the_others_alone() {
    let server = server();
    let route = route(server.addr);
    let mut harness = harness();
    let kept = harness.begin(get(&route, "/delay?ms=150"));
    let options = CallOptions {
        timeouts: Timeouts {
            read: Some(Duration::from_millis(50)),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    };
    let late = harness
        .driver
        .begin(get(&route, "/delay?ms=10000"), options)
        .unwrap();
    let error = harness.finish(late).failed();
    assert_eq!(
        (error.kind, error.phase),
        (CallErrorKind::ReadTimeout, CallPhase::Head)
    );
    assert_eq!(harness.finish(kept).answer().0, 200);
    assert_eq!(server.accepted.load(Relaxed), 1);
}

// Against a server of frames.

#[test]
fn goaway_drains_the_connection_and_what_was_not_begun_goes_elsewhere() {
    let server = Scripted::new(|number, stream| {
        let mut frames = Frames::accept(stream);
        if number == 0 {
            let all = [(); 4].map(|()| frames.request().unwrap());
            // The first two will be served, the others not; a POST is among them.
            frames.send(&goaway(all[1], 0));
            frames.send(&answer(all[0], b"old"));
            std::thread::sleep(Duration::from_millis(30));
            frames.send(&answer(all[1], b"old"));
            assert!(
                frames.until(HEADERS).is_none(),
                "a call on a connection that ends"
            );
            return;
        }
        while let Some(stream) = frames.request() {
            frames.send(&answer(stream, b"new"));
        }
    });
    let route = route(server.addr);
    let mut harness = harness();
    let calls = [(); 4].map(|()| {
        let body = Body::Bytes("body".into());
        harness.begin(request(&route, "POST", "/", body))
    });
    let bodies = calls.map(|call| harness.finish(call).answer().1);
    assert_eq!(bodies, [&b"old"[..], b"old", b"new", b"new"]);
    assert_eq!(harness.get(&route, "/").answer().1, b"new");
    assert_eq!(harness.driver.status().idle, 1);
}

#[test]
fn a_connection_that_breaks_fails_its_own_calls_and_no_others() {
    let server = Scripted::new(|number, stream| {
        let mut frames = Frames::accept(stream);
        let first = frames.request().unwrap();
        if number == 0 {
            frames.send(&answer(first, b"whole"));
            let half = frames.request().unwrap();
            let silent = frames.request().unwrap();
            assert!(half < silent);
            frames.send(&frame(HEADERS, END_HEADERS, half, OK));
            frames.send(&frame(DATA, 0, half, b"ha"));
            std::thread::sleep(Duration::from_millis(20));
            let _ = frames.0.shutdown(Shutdown::Both);
            return;
        }
        frames.send(&answer(first, b"again"));
        while let Some(stream) = frames.request() {
            frames.send(&answer(stream, b"again"));
        }
    });
    let route = route(server.addr);
    let mut harness = harness();
    assert_eq!(harness.get(&route, "/").answer().1, b"whole");
    let half = harness.begin(get(&route, "/"));
    let silent = harness.begin(get(&route, "/"));
    let error = harness.finish(half).failed();
    assert_eq!(
        (error.kind, error.phase),
        (CallErrorKind::ServerDisconnected, CallPhase::Body)
    );
    // Idempotent, and not a byte of its answer has come on a connection that had been used.
    assert_eq!(harness.finish(silent).answer().1, b"again");
    assert_eq!(harness.get(&route, "/").answer().1, b"again");
}

#[test]
fn answers_that_came_before_the_end_of_the_connection_can_be_read_after_it() {
    let server = Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        let all = [(); 3].map(|()| frames.request().unwrap());
        for stream in all {
            frames.send(&answer(stream, &[b'x'; 9000]));
        }
        let _ = frames.0.shutdown(Shutdown::Write);
        while frames.next().is_some() {}
    });
    let route = route(server.addr);
    let mut harness = harness();
    let calls = [(); 3].map(|()| harness.begin(get(&route, "/")));
    for call in calls {
        assert!(matches!(harness.event(call), CallEvent::Head { .. }));
    }
    for _ in 0..10 {
        harness.turn(Duration::from_millis(5));
    }
    for call in calls {
        match harness.body(call, 200) {
            support::calls::Outcome::Answer(_, body) => assert_eq!(body.len(), 9000),
            support::calls::Outcome::Failed(error) => panic!("{error:?}"),
        }
        harness.driver.cancel(call);
    }
    let status = harness.driver.status();
    assert_eq!((status.active, status.idle), (0, 0));
}

#[test]
fn a_reset_fails_its_call_with_the_error_code() {
    let server = Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        for code in [2_u32, 0xd, 1] {
            let stream = frames.request().unwrap();
            frames.send(&frame(RESET, 0, stream, &code.to_be_bytes()));
        }
        // A request body that is not needed is no failure (RFC 9113 8.1).
        let stream = frames.request().unwrap();
        frames.send(&answer(stream, b"enough"));
        frames.send(&frame(RESET, 0, stream, &0_u32.to_be_bytes()));
        while let Some(stream) = frames.request() {
            frames.send(&answer(stream, b"ok"));
        }
    });
    let route = route(server.addr);
    let mut harness = harness();
    for code in ["INTERNAL_ERROR", "HTTP_1_1_REQUIRED", "PROTOCOL_ERROR"] {
        let error = harness.get(&route, "/").failed();
        assert_eq!(error.kind, CallErrorKind::RemoteProtocol);
        assert!(error.rule.contains(code), "{error}");
        assert!(error.rule.contains("RFC 9113"), "{error}");
    }
    let upload = harness.begin(request(&route, "POST", "/", Body::Unknown));
    assert!(matches!(harness.event(upload), CallEvent::Writable));
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    harness.driver.write(upload, piece).unwrap();
    assert_eq!(harness.finish(upload).answer().1, b"enough");
    assert_eq!(harness.get(&route, "/").answer().1, b"ok");
}

#[test]
fn refused_calls_are_given_up_after_a_few_attempts_and_at_once_where_nothing_is_sent_again() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        while let Some(stream) = frames.request() {
            counted.fetch_add(1, Relaxed);
            frames.send(&frame(RESET, 0, stream, &7_u32.to_be_bytes()));
        }
    });
    let route = route(server.addr);
    let mut harness = harness();
    for (stale, most) in [(StaleRetry::Idempotent, 9), (StaleRetry::Never, 1)] {
        let options = CallOptions {
            stale,
            ..CallOptions::default()
        };
        let call = harness.driver.begin(get(&route, "/"), options).unwrap();
        let error = harness.finish(call).failed();
        assert_eq!(error.kind, CallErrorKind::RemoteProtocol);
        assert!(error.retryable);
        assert!(error.rule.contains("REFUSED_STREAM"), "{error}");
        assert_eq!(attempts.swap(0, Relaxed), most);
    }
}

#[test]
fn a_connection_on_which_nothing_comes_takes_no_further_call() {
    let server = Scripted::new(|number, stream| {
        let mut frames = Frames::accept(stream);
        while let Some(stream) = frames.request() {
            if number > 0 {
                frames.send(&answer(stream, b"alive"));
            }
        }
    });
    let route = route(server.addr);
    let mut harness = harness();
    let options = CallOptions {
        timeouts: Timeouts {
            read: Some(Duration::from_secs(1)),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    };
    let first = harness.driver.begin(get(&route, "/"), options).unwrap();
    // Its SETTINGS come before the wait begins to count.
    assert_eq!(
        harness.finish(first).failed().kind,
        CallErrorKind::ReadTimeout
    );
    let second = harness.driver.begin(get(&route, "/"), options).unwrap();
    let outcome = harness.finish(second);
    if let support::calls::Outcome::Failed(error) = outcome {
        // The SETTINGS had come a little after the request: one call more finds out.
        assert_eq!(error.kind, CallErrorKind::ReadTimeout);
    }
    let third = harness.driver.begin(get(&route, "/"), options).unwrap();
    assert_eq!(harness.finish(third).answer().1, b"alive");
}

#[test]
fn an_idle_connection_is_left_with_a_word() {
    let (told, heard) = mpsc::channel();
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        let stream = frames.request().unwrap();
        frames.send(&answer(stream, b"ok"));
        told.send(frames.until(GOAWAY).is_some()).unwrap();
    });
    let route = route(server.addr);
    let mut harness = harness();
    assert_eq!(harness.get(&route, "/").answer().1, b"ok");
    harness.driver.close();
    assert!(heard.recv_timeout(MAX_WAIT).unwrap());
}

#[test]
fn a_dead_peer_is_found_by_asking() {
    let (told, heard) = mpsc::channel();
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        frames.request().unwrap();
        // PING, which nobody answers.
        told.send(frames.until(6).is_some()).unwrap();
        while frames.next().is_some() {}
    });
    let route = route(server.addr);
    let mut limits = Limits::client();
    // Long enough for the server to say its SETTINGS.
    limits.http2.ping_interval = Some(Duration::from_millis(500));
    limits.http2.ping_timeout = Duration::from_millis(500);
    let mut harness = hand_with(limits);
    let call = harness.begin(get(&route, "/"));
    let error = harness.finish(call).failed();
    assert!(heard.recv_timeout(MAX_WAIT).unwrap());
    assert_eq!(error.kind, CallErrorKind::ReadTimeout, "{error}");
    assert_eq!(harness.driver.status().active, 0);
}

#[test]
fn many_servers_of_one_connection_each() {
    let servers: Vec<_> = (0..5).map(|_| server()).collect();
    let routes: Vec<_> = servers.iter().map(|server| route(server.addr)).collect();
    let mut harness = DriverHarness::new(|config| {
        config.engine = EngineConfig {
            max_ready_per_turn: 2,
            ..EngineConfig::default()
        };
        config.dial = Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2));
    });
    let calls: Vec<_> = (0..500)
        .map(|n| {
            let target = ["/", "/large", "/delay?ms=3", "/chunked"][n % 4];
            harness.begin(get(&routes[n % 5], target))
        })
        .collect();
    for call in calls {
        assert_eq!(harness.finish(call).answer().0, 200);
    }
    for server in servers {
        // More only when the first burst was beyond what the server allows.
        assert!(server.accepted.load(Relaxed) <= 2);
    }
}
