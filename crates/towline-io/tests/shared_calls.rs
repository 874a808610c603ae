//! Calls that share an HTTP/2 connection in the asynchronous client, against Towline's server and
//! against scripted servers.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::calls::{DriverHarness, Scripted, get, request, route};
use crate::support::frames::{Frames, GOAWAY, response_frames};
use crate::support::scripted::{self, server_with};
use crate::support::{MAX_WAIT, Server};
use bytes::Bytes;
use towline_io::client::{
    Body, CallErrorKind, CallEvent, CallOptions, CallPhase, CallRead, DialConfig, FlushPolicy,
    StaleRetry, Timeouts,
};
use towline_io::{ConnConfig, EngineConfig};
use towline_proto::{Limits, ProtocolPolicy};

/// A driver that uses HTTP/2 with prior knowledge.
fn harness() -> DriverHarness {
    harness_with(Limits::client())
}

fn harness_with(limits: Limits) -> DriverHarness {
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
        assert_eq!(harness.get(&route, "/").response().1, b"alive\r\n");
        let calls: Vec<_> = (0..1000)
            .map(|n| {
                let body = Body::Bytes(Bytes::from(n.to_string()));
                harness.begin(request(&route, "POST", "/echo", body))
            })
            .collect();
        assert_eq!(harness.driver.status().waiting, 0);
        for (n, call) in calls.into_iter().enumerate() {
            let (status, body) = harness.finish(call).response();
            assert_eq!((status, body), (200, n.to_string().into_bytes()));
        }
        assert_eq!(server.accepted.load(Relaxed), 1);
        assert_eq!(harness.driver.calls(), 0);
        let status = harness.driver.status();
        assert_eq!((status.idle, status.active), (1, 0));
    }
}

#[test]
fn calls_above_the_servers_limit_wait_or_use_another_connection() {
    for (per_host, connections) in [(1, 1), (5, 5)] {
        let server = server_with(10);
        let route = route(server.addr);
        let mut harness = DriverHarness::new(|config| {
            config.dial = Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2));
            config.pool.max_connections_per_host = per_host;
        });
        assert_eq!(harness.get(&route, "/").response().0, 200);
        let calls: Vec<_> = (0..200)
            .map(|_| harness.begin(get(&route, "/delay?ms=5")))
            .collect();
        for call in calls {
            assert_eq!(harness.finish(call).response().0, 200);
        }
        let accepted = server.accepted.load(Relaxed);
        assert!(accepted <= connections, "{accepted}");
    }
}

#[test]
fn a_first_burst_waits_for_one_connection_and_refused_calls_are_sent_again() {
    // Until its SETTINGS arrive, the server is assumed to allow a hundred streams; it allows three.
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
        assert_eq!(harness.finish(call).response(), (200, b"x".to_vec()));
    }
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn a_body_that_is_not_read_does_not_block_other_streams() {
    let server = server();
    let route = route(server.addr);
    let mut limits = Limits::client();
    limits.http2.stream_window_bytes = 64 * 1024;
    let mut harness = harness_with(limits);
    let slow = harness.begin(get(&route, "/bytes?n=3000000"));
    harness.until("a full window", |harness| {
        harness.driver.buffered(slow) >= 64 * 1024 - 1
    });
    // The program does not read it, which does not delay the others.
    for _ in 0..20 {
        assert_eq!(
            harness.get(&route, "/bytes?n=300000").response().1.len(),
            300_000
        );
        let body = Body::Bytes(Bytes::from(vec![b'x'; 300_000]));
        let call = harness.begin(request(&route, "POST", "/upload", body));
        assert_eq!(harness.finish(call).response().1, b"300000");
        assert!(harness.driver.buffered(slow) <= 64 * 1024);
    }
    assert_eq!(harness.finish(slow).response().1.len(), 3_000_000);
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn a_streamed_upload_is_echoed_while_it_is_sent() {
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
    // Fewer than the server's limit on resets (CVE-2023-44487).
    for round in 0..90 {
        let target = ["/delay?ms=10000", "/endless", "/"][round % 3];
        let call = harness.begin(get(&route, target));
        if round % 2 == 0 {
            harness.turn(Duration::ZERO);
        }
        harness.driver.cancel(call);
        harness.events.retain(|(of, _)| *of != call);
    }
    assert_eq!(harness.finish(kept).response().0, 200);
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
    assert_eq!(harness.finish(kept).response().0, 200);
    assert_eq!(server.accepted.load(Relaxed), 1);
}

// Scripted servers.

#[test]
fn goaway_drains_the_connection_and_moves_unprocessed_calls() {
    let server = scripted::going_away();
    let route = route(server.addr);
    let mut harness = harness();
    let calls = [(); 4].map(|()| {
        let body = Body::Bytes("body".into());
        harness.begin(request(&route, "POST", "/", body))
    });
    let bodies = calls.map(|call| harness.finish(call).response().1);
    assert_eq!(bodies, [&b"old"[..], b"old", b"new", b"new"]);
    assert_eq!(harness.get(&route, "/").response().1, b"new");
    assert_eq!(harness.driver.status().idle, 1);
}

#[test]
fn a_broken_connection_fails_only_its_own_calls() {
    let server = scripted::breaking();
    let route = route(server.addr);
    let mut harness = harness();
    assert_eq!(harness.get(&route, "/").response().1, b"whole");
    let half = harness.begin(get(&route, "/"));
    let pending = harness.begin(get(&route, "/"));
    let error = harness.finish(half).failed();
    assert_eq!(
        (error.kind, error.phase),
        (CallErrorKind::ServerDisconnected, CallPhase::Body)
    );
    // The call is idempotent, and no byte of its response has arrived on the reused connection.
    assert_eq!(harness.finish(pending).response().1, b"again");
    assert_eq!(harness.get(&route, "/").response().1, b"again");
}

#[test]
fn responses_received_before_the_connection_ended_can_still_be_read() {
    let server = Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        let all = [(); 3].map(|()| frames.request().unwrap());
        for stream in all {
            frames.send(&response_frames(stream, &[b'x'; 9000]));
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
            crate::support::calls::Outcome::Response(_, body) => assert_eq!(body.len(), 9000),
            crate::support::calls::Outcome::Failed(error) => panic!("{error:?}"),
        }
        harness.driver.cancel(call);
    }
    let status = harness.driver.status();
    assert_eq!((status.active, status.idle), (0, 0));
}

#[test]
fn a_reset_fails_its_call_with_the_error_code() {
    let server = scripted::resetting();
    let route = route(server.addr);
    let mut harness = harness();
    for code in ["INTERNAL_ERROR", "HTTP_1_1_REQUIRED", "PROTOCOL_ERROR"] {
        let error = harness.get(&route, "/").failed();
        assert_eq!(error.kind, CallErrorKind::RemoteProtocol);
        assert!(error.message.contains(code), "{error}");
        assert!(error.message.contains("RFC 9113"), "{error}");
    }
    let upload = harness.begin(request(&route, "POST", "/", Body::Unknown));
    assert!(matches!(harness.event(upload), CallEvent::Writable));
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    harness.driver.write(upload, piece).unwrap();
    assert_eq!(harness.finish(upload).response().1, b"enough");
    assert_eq!(harness.get(&route, "/").response().1, b"ok");
}

#[test]
fn refused_calls_fail_after_a_few_attempts_or_at_once_without_retries() {
    let (server, attempts) = scripted::refusing();
    let route = route(server.addr);
    let mut harness = harness();
    for (stale, most) in [(StaleRetry::Idempotent, 7), (StaleRetry::Never, 1)] {
        let options = CallOptions {
            stale,
            ..CallOptions::default()
        };
        let call = harness.driver.begin(get(&route, "/"), options).unwrap();
        let error = harness.finish(call).failed();
        assert_eq!(error.kind, CallErrorKind::RemoteProtocol);
        assert!(error.retryable);
        assert!(error.message.contains("REFUSED_STREAM"), "{error}");
        assert_eq!(attempts.swap(0, Relaxed), most);
    }
}

#[test]
fn a_connection_without_input_takes_no_further_call() {
    let server = scripted::silent_at_first();
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
    // The SETTINGS arrive before the timeout starts.
    assert_eq!(
        harness.finish(first).failed().kind,
        CallErrorKind::ReadTimeout
    );
    let second = harness.driver.begin(get(&route, "/"), options).unwrap();
    let outcome = harness.finish(second);
    if let crate::support::calls::Outcome::Failed(error) = outcome {
        // The SETTINGS arrived after the request: it takes one more call.
        assert_eq!(error.kind, CallErrorKind::ReadTimeout);
    }
    let third = harness.driver.begin(get(&route, "/"), options).unwrap();
    assert_eq!(harness.finish(third).response().1, b"alive");
}

#[test]
fn closing_an_idle_connection_sends_goaway() {
    let (sender, receiver) = mpsc::channel();
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        let stream = frames.request().unwrap();
        frames.send(&response_frames(stream, b"ok"));
        sender.send(frames.until(GOAWAY).is_some()).unwrap();
    });
    let route = route(server.addr);
    let mut harness = harness();
    assert_eq!(harness.get(&route, "/").response().1, b"ok");
    harness.driver.close();
    assert!(receiver.recv_timeout(MAX_WAIT).unwrap());
}

#[test]
fn a_dead_peer_is_detected_by_ping() {
    let (server, receiver) = scripted::dead();
    let route = route(server.addr);
    let limits = scripted::pinging();
    let mut harness = harness_with(limits);
    let call = harness.begin(get(&route, "/"));
    let error = harness.finish(call).failed();
    assert!(receiver.recv_timeout(MAX_WAIT).unwrap());
    assert_eq!(error.kind, CallErrorKind::ReadTimeout, "{error}");
    assert_eq!(harness.driver.status().active, 0);
}

#[test]
fn calls_to_several_servers_share_one_connection_each() {
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
        assert_eq!(harness.finish(call).response().0, 200);
    }
    for server in servers {
        // A second one only if the first burst exceeded the server's limit.
        assert!(server.accepted.load(Relaxed) <= 2);
    }
}
