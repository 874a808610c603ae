//! Calls through the asynchronous client: reuse, retries, limits, cancelling.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::calls::{DriverHarness, Scripted, get, head, ok, request, route, send};
use crate::support::{MAX_WAIT, Server};
use bytes::Bytes;
use towline_io::client::{
    Body, CallErrorKind, CallEvent, CallOptions, CallPhase, CallRead, FlushPolicy, PoolStatus,
    Route, StaleRetry,
};

const SHORT: Duration = Duration::from_millis(5);

fn limits(harness: &mut towline_io::client::ClientDriverConfig, per_host: usize) {
    harness.pool.max_connections_per_host = per_host;
}

#[test]
fn one_connection_carries_call_after_call() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for round in 0..50 {
        let call = harness.begin(get(&route, "/"));
        let reused = harness.driver.is_reused(call);
        assert_eq!(reused, round > 0);
        let (status, body) = harness.finish(call).response();
        assert_eq!((status, &body[..]), (200, &b"alive\r\n"[..]));
    }
    assert_eq!(server.accepted.load(Relaxed), 1);
    let large = harness.get(&route, "/large").response();
    assert_eq!(large.1.len(), 64 * 1024);
    let chunked = harness.get(&route, "/chunked").response();
    assert_eq!(chunked.1, b"Hello, World!");
    assert_eq!(harness.driver.status().idle, 1);
}

#[test]
fn a_thousand_calls_over_ten_connections_get_their_responses_in_order() {
    for flush in [
        FlushPolicy::Immediate,
        FlushPolicy::TurnEnd,
        FlushPolicy::Manual,
    ] {
        let server = Server::plain();
        let route = route(server.addr);
        let mut harness = DriverHarness::new(|config| {
            limits(config, 10);
            config.flush = flush;
        });
        let calls: Vec<_> = (0..1000)
            .map(|n| {
                let body = Body::Bytes(Bytes::from(n.to_string()));
                harness.begin(request(&route, "POST", "/echo", body))
            })
            .collect();
        assert_eq!(harness.driver.status().waiting, 1000);
        for (n, call) in calls.into_iter().enumerate() {
            let (status, body) = harness.finish(call).response();
            assert_eq!((status, body), (200, n.to_string().into_bytes()));
        }
        assert!(server.accepted.load(Relaxed) <= 10);
        assert_eq!(harness.driver.calls(), 0);
    }
}

#[test]
fn timings_are_given_for_new_connections_only() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for reused in [false, true] {
        let call = harness.begin(get(&route, "/delay?ms=20"));
        let CallEvent::Head { .. } = harness.event(call) else {
            panic!("no head");
        };
        let _ = harness.body(call, 200).response();
        let timings = harness.driver.timings(call);
        assert_eq!(timings.connect.is_zero(), reused);
        assert!(
            timings.first_byte.unwrap() >= Duration::from_millis(15),
            "{timings:?}"
        );
        assert!(timings.total.unwrap() >= timings.first_byte.unwrap());
        harness.driver.cancel(call);
    }
}

#[test]
fn a_server_that_closes_after_a_few_requests_fails_no_get() {
    // A FIN races the next request on every connection.
    let server = Scripted::new(|number, mut stream| {
        for _ in 0..=number % 4 {
            if head(&mut stream).is_none() {
                return;
            }
            send(&mut stream, &ok("hi"));
        }
        if number % 2 == 0 {
            std::thread::sleep(Duration::from_micros(50 * (number as u64 % 7)));
        }
        let _ = stream.shutdown(Shutdown::Both);
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| limits(config, 4));
    let mut calls: Vec<_> = (0..8).map(|_| harness.begin(get(&route, "/"))).collect();
    for _ in 0..400 {
        let call = calls.remove(0);
        assert_eq!(harness.finish(call).response().1, b"hi");
        calls.push(harness.begin(get(&route, "/")));
    }
}

#[test]
fn a_post_is_sent_twice_only_with_the_policy_for_all_methods() {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    // The second request of a connection gets no response.
    let server = Scripted::new(move |number, mut stream| {
        head(&mut stream);
        send(&mut stream, &ok("first"));
        head(&mut stream);
        seen.fetch_add(1, Relaxed);
        if number >= 2 {
            send(&mut stream, &ok("second"));
        }
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| limits(config, 1));
    harness.get(&route, "/").response();
    let call = harness.begin(request(&route, "POST", "/", Body::Empty));
    let error = harness.finish(call).failed();
    assert_eq!(error.kind, CallErrorKind::ServerDisconnected);
    assert_eq!(
        (error.phase, error.reused, error.retryable),
        (CallPhase::Head, true, false)
    );
    assert!(error.bytes_sent > 0 && error.bytes_received == 0);
    assert_eq!(requests.load(Relaxed), 1);

    harness.get(&route, "/").response();
    let options = CallOptions {
        stale: StaleRetry::Any,
        ..CallOptions::default()
    };
    let again = request(&route, "POST", "/", Body::Bytes(Bytes::from_static(b"x")));
    let call = harness.driver.begin(again, options).unwrap();
    assert_eq!(harness.finish(call).response().1, b"first");
}

#[test]
fn an_idle_connection_with_unexpected_input_or_eof_is_closed_at_once() {
    for last_words in ["", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"] {
        let server = Scripted::new(move |number, mut stream| {
            head(&mut stream);
            send(&mut stream, &ok(&number.to_string()));
            std::thread::sleep(Duration::from_millis(20));
            send(&mut stream, last_words);
            if last_words.is_empty() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            std::thread::sleep(MAX_WAIT);
        });
        let route = route(server.addr);
        let mut harness = DriverHarness::new(|_| {});
        assert_eq!(harness.get(&route, "/").response().1, b"0");
        harness.until("not dropped", |harness| {
            harness.driver.status() == PoolStatus::default()
        });
        assert_eq!(harness.get(&route, "/").response().1, b"1");
    }
}

#[test]
fn a_post_is_not_sent_on_a_connection_whose_eof_has_arrived() {
    let (closed, receiver) = mpsc::channel();
    let server = Scripted::new(move |number, mut stream| {
        head(&mut stream);
        send(&mut stream, &ok(&number.to_string()));
        drop(stream);
        closed.send(()).unwrap();
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for round in 0..20 {
        let call = harness.begin(request(&route, "POST", "/", Body::Empty));
        let (_, body) = harness.finish(call).response();
        assert_eq!(body, round.to_string().as_bytes());
        // No turn runs in which the client could handle the EOF.
        receiver.recv_timeout(MAX_WAIT).unwrap();
    }
}

#[test]
fn bytes_after_a_response_are_not_taken_as_the_next_response() {
    let server = Scripted::new(|number, mut stream| {
        while head(&mut stream).is_some() {
            let mut response = ok(&number.to_string());
            response.push_str(&ok("poison"));
            send(&mut stream, &response);
        }
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for round in 0..20 {
        assert_eq!(
            harness.get(&route, "/").response().1,
            round.to_string().as_bytes()
        );
        assert_eq!(harness.driver.status().idle, 0);
    }
}

#[test]
fn cancelling_in_every_state_frees_all_slots() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| limits(config, 4));
    let targets = ["/", "/large", "/delay?ms=3", "/chunked"];
    for round in 0..2000 {
        let target = targets[round % targets.len()];
        let streamed = round % 5 == 0;
        let body = if streamed { Body::Unknown } else { Body::Empty };
        let method = if streamed { "POST" } else { "GET" };
        let call = harness.begin(request(&route, method, target, body));
        for _ in 0..round % 4 {
            harness.turn(if round % 3 == 0 {
                Duration::from_millis(1)
            } else {
                Duration::ZERO
            });
        }
        if round % 7 == 0 {
            let _ = harness.driver.read(call, 100);
        }
        harness.driver.cancel(call);
        harness.driver.cancel(call);
        assert!(matches!(harness.driver.read(call, 1), CallRead::End));
    }
    assert_eq!(harness.driver.calls(), 0);
    harness.events.clear();
    let calls: Vec<_> = (0..20).map(|_| harness.begin(get(&route, "/"))).collect();
    for call in calls {
        assert_eq!(harness.finish(call).response().0, 200);
    }
    let status = harness.driver.status();
    assert_eq!((status.active, status.waiting), (0, 0));
}

#[test]
fn a_small_rest_that_has_arrived_is_drained_and_the_connection_kept() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    for _ in 0..10 {
        let call = harness.begin(get(&route, "/"));
        let CallEvent::Head { .. } = harness.event(call) else {
            panic!("no head");
        };
        harness.driver.cancel(call);
    }
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn max_queue_bounds_the_queue() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| {
        limits(config, 1);
        config.pool.max_queue = Some(1);
    });
    let slow = harness.begin(get(&route, "/delay?ms=50"));
    let next = harness.begin(get(&route, "/"));
    let refused = harness
        .driver
        .begin(get(&route, "/"), CallOptions::default());
    assert_eq!(refused.unwrap_err().kind, CallErrorKind::QueueFull);
    assert_eq!(harness.finish(slow).response().0, 200);
    assert_eq!(harness.finish(next).response().0, 200);
}

#[test]
fn origins_share_the_limit_of_the_client() {
    let servers: Vec<_> = (0..6).map(|_| Server::plain()).collect();
    let mut harness = DriverHarness::new(|config| config.pool.max_connections = 2);
    let calls: Vec<_> = (0..60)
        .map(|n| harness.begin(get(&route(servers[n % 6].addr), "/")))
        .collect();
    for call in calls {
        assert_eq!(harness.finish(call).response().0, 200);
        let status = harness.driver.status();
        assert!(status.active + status.idle + status.dialling <= 2);
    }
}

#[test]
fn idle_connections_expire_and_old_ones_are_not_used() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| {
        config.pool.keepalive_expiry = Some(Duration::from_millis(60));
        config.pool.max_connection_age = Some(Duration::from_millis(150));
    });
    harness.get(&route, "/").response();
    assert_eq!(harness.driver.status().idle, 1);
    let start = Instant::now();
    harness.until("never expired", |harness| harness.driver.status().idle == 0);
    assert!(start.elapsed() >= Duration::from_millis(50));
    let start = Instant::now();
    while server.accepted.load(Relaxed) < 4 {
        assert!(
            start.elapsed() < MAX_WAIT,
            "a connection above the age limit is used"
        );
        harness.get(&route, "/delay?ms=10").response();
    }
    // The second and the third were each used until they were too old or idle for too long.
    assert!(start.elapsed() >= Duration::from_millis(100));
}

#[test]
fn connections_can_be_prewarmed() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    harness.driver.prewarm(&route, 5);
    harness.until("not opened", |harness| harness.driver.status().idle == 5);
    harness.driver.prewarm(&route, 5);
    assert_eq!(harness.driver.status().dialling, 0);
    harness.get(&route, "/").response();
    assert_eq!(harness.driver.status().idle, 5);
}

#[test]
fn all_calls_of_a_burst_get_their_responses() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| limits(config, 500));
    let calls: Vec<_> = (0..4000).map(|_| harness.begin(get(&route, "/"))).collect();
    for call in calls {
        assert_eq!(harness.finish(call).response().0, 200);
    }
    assert!(server.accepted.load(Relaxed) <= 500);
}

#[test]
fn closing_lets_running_calls_finish() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|config| limits(config, 1));
    harness.get(&route, "/").response();
    let under_way = harness.begin(get(&route, "/delay?ms=30"));
    let waiting = harness.begin(get(&route, "/"));
    harness.driver.close();
    assert_eq!(harness.finish(waiting).failed().kind, CallErrorKind::Closed);
    assert_eq!(harness.finish(under_way).response().0, 200);
    assert!(harness.driver.is_empty());
    let late = harness
        .driver
        .begin(get(&route, "/"), CallOptions::default());
    assert_eq!(late.unwrap_err().kind, CallErrorKind::Closed);
}

#[test]
fn a_refused_connection_is_an_error_after_the_retry() {
    let route = route(crate::support::refusing_addr());
    let mut harness = DriverHarness::new(|_| {});
    let calls: Vec<_> = (0..5).map(|_| harness.begin(get(&route, "/"))).collect();
    for call in calls {
        let error = harness.finish(call).failed();
        assert_eq!(error.kind, CallErrorKind::Connect);
        assert!(error.retryable && error.os_error.is_some(), "{error:?}");
    }
    assert_eq!(harness.driver.status(), PoolStatus::default());
}

#[test]
fn a_malformed_request_fails_and_its_connection_stays_usable() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let mut bad = get(&route, "/");
    Arc::make_mut(&mut bad.head).push(b"x", b"a\r\nb: c");
    // The first is checked when it gets a connection, the second at once.
    let call = harness.begin(bad);
    assert_eq!(
        harness.finish(call).failed().kind,
        CallErrorKind::LocalProtocol
    );
    let bad = request(&route, "G T", "/", Body::Empty);
    let error = harness
        .driver
        .begin(bad, CallOptions::default())
        .unwrap_err();
    assert_eq!(error.kind, CallErrorKind::LocalProtocol);
    assert_eq!(harness.get(&route, "/").response().0, 200);
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn interim_responses_come_first_and_are_bounded() {
    let server = Scripted::new(|number, mut stream| {
        head(&mut stream);
        let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        let count = if number == 0 { 3 } else { 101 };
        send(&mut stream, &(interim.repeat(count) + &ok("done")));
        head(&mut stream);
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let call = harness.begin(get(&route, "/"));
    for _ in 0..3 {
        let CallEvent::Informational(interim) = harness.event(call) else {
            panic!("no interim response");
        };
        assert_eq!(interim.view().status(), 103);
    }
    assert_eq!(harness.finish(call).response().1, b"done");
    harness
        .driver
        .prewarm(&Arc::new(Route::plain("127.0.0.1", server.addr.port())), 2);
    harness.until("not opened", |harness| harness.driver.status().idle == 2);
    let call = harness.begin(get(&route, "/"));
    assert_eq!(
        harness.finish(call).failed().kind,
        CallErrorKind::RemoteProtocol
    );
}

#[test]
fn a_switched_stream_carries_raw_bytes_both_ways() {
    let server = Scripted::new(|_, mut stream| {
        head(&mut stream);
        send(
            &mut stream,
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\nconnection: upgrade\r\n\r\nhello",
        );
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let route = route(server.addr);
    let mut harness = DriverHarness::new(|_| {});
    let mut upgrade = get(&route, "/");
    Arc::make_mut(&mut upgrade.head).push(b"upgrade", b"echo");
    Arc::make_mut(&mut upgrade.head).push(b"connection", b"upgrade");
    let call = harness.begin(upgrade);
    assert!(matches!(
        harness.event(call),
        CallEvent::Head { end: false }
    ));
    assert!(matches!(harness.event(call), CallEvent::Switched));
    harness
        .driver
        .write(call, Bytes::from_static(b"world"))
        .unwrap();
    let (_, body) = harness.body(call, 101).response();
    assert_eq!(body, b"helloworld");
    harness.driver.cancel(call);
    harness.turn(SHORT);
    assert_eq!(harness.driver.status(), PoolStatus::default());
}
