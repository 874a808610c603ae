//! Failures of the pool: its timeout, its full queue, its stale connections.

use std::sync::Arc;

use towline_io::client::{
    BlockingClient, BlockingConfig, Body, CallError, CallErrorKind, CallEvent, CallOptions,
    CallPhase, PoolLimits, Route,
};

use super::case::{
    Case, Client, SHORT, Verdict, Version, drain, failed, http1, http2, route_to, verdict,
};
use crate::support::blocking::uninterrupted;
use crate::support::calls::{DriverHarness, Scripted, get, head, ok, request, send};
use crate::support::frames::{END_HEADERS, HEADERS, OK, SETTINGS, frame};

/// `MAX_CONCURRENT_STREAMS` of 1 (RFC 9113 6.5.2).
const ONE_STREAM: &[u8] = &[0, 3, 0, 0, 0, 1];

/// Makes a call whose response does not end, and then one with `options` for which there is no connection. Returns the
/// error of the second.
fn second_call(
    client: Client,
    version: Version,
    route: &Arc<Route>,
    pool: PoolLimits,
    options: CallOptions,
) -> Verdict {
    let dial = version.dial();
    let post = request(route, "POST", "/", Body::Empty);
    let error = match client {
        Client::Asynchronous => {
            let mut harness = DriverHarness::new(|config| {
                config.dial = dial;
                config.pool = pool;
            });
            let first = harness.begin(get(route, "/"));
            assert!(matches!(
                harness.event(first),
                CallEvent::Head { end: false }
            ));
            match harness.driver.begin(post, options) {
                Ok(second) => harness.finish(second).failed(),
                Err(error) => *error,
            }
        }
        Client::Blocking => {
            let client = BlockingClient::new(BlockingConfig {
                dial,
                pool,
                ..BlockingConfig::default()
            });
            let result = uninterrupted(|policy| {
                let mut first = client.begin(get(route, "/"), CallOptions::default(), policy)?;
                first.await_head(policy)?;
                let second = client.begin(post, options, policy).map(drop);
                drop(first);
                second
            });
            failed(result).expect_err("a connection was found")
        }
    };
    Verdict::of(error)
}

/// Runs `second_call` on the four paths and asserts that they agree.
fn on_every_path(pool: PoolLimits, options: CallOptions) -> Verdict {
    let server1 = http1(|mut stream| {
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        drain(&stream);
    });
    let server2 = http2(|mut frames, stream| {
        frames.send(&frame(SETTINGS, 0, 0, ONE_STREAM));
        frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
        drain(&frames.0);
    });
    let mut found = Vec::new();
    for (version, server) in [(Version::Http1, &server1), (Version::Http2, &server2)] {
        for client in [Client::Asynchronous, Client::Blocking] {
            found.push(second_call(
                client,
                version,
                &route_to(server),
                pool,
                options,
            ));
        }
    }
    assert!(found.iter().all(|one| *one == found[0]), "{found:#?}");
    found.swap_remove(0)
}

fn one_connection() -> PoolLimits {
    PoolLimits {
        max_connections: 1,
        ..PoolLimits::default()
    }
}

#[test]
fn the_pool_timeout_is_the_same_error_on_every_path() {
    let case = Case::new("POST").with_timeouts(|timeouts| timeouts.pool = Some(SHORT));
    let found = on_every_path(one_connection(), case.options);
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::PoolTimeout, CallPhase::Pool, true)
    );
}

#[test]
fn a_full_queue_is_the_same_error_on_every_path() {
    let pool = PoolLimits {
        max_queue: Some(0),
        ..one_connection()
    };
    let found = on_every_path(pool, Case::new("POST").options);
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::QueueFull, CallPhase::Pool, true)
    );
}

#[test]
fn a_stale_connection_is_replaced_for_an_idempotent_request() {
    // Each connection sends one response and closes when the next request arrives.
    let server = Scripted::new(|_, mut stream| {
        if head(&mut stream).is_some() {
            send(&mut stream, &ok("first"));
            let _ = head(&mut stream);
        }
    });
    let route = route_to(&server);
    let options = CallOptions::default();
    let mut harness = DriverHarness::new(|_| {});
    assert_eq!(harness.get(&route, "/").response().1, b"first");
    assert_eq!(harness.get(&route, "/").response().1, b"first");
    let post = request(&route, "POST", "/", Body::Empty);
    let call = harness.driver.begin(post, options).unwrap();
    let asynchronous = harness.finish(call).failed();

    let client = BlockingClient::new(BlockingConfig::default());
    let call = |method| {
        let request = request(&route, method, "/", Body::Empty);
        let result = uninterrupted(|policy| {
            let mut call = client.begin(request, options, policy)?;
            call.await_head(policy)?;
            call.read_all(&mut Vec::new(), policy)
        });
        failed(result)
    };
    call("GET").unwrap();
    call("GET").unwrap();
    let blocking: CallError =
        call("POST").expect_err("a request that may have been processed was sent again");
    for error in [&asynchronous, &blocking] {
        assert_eq!(error.kind, CallErrorKind::ServerDisconnected);
        assert_eq!(
            (error.phase, error.retryable, error.reused),
            (CallPhase::Head, false, true)
        );
    }
    assert_eq!(asynchronous.message, blocking.message);
}
