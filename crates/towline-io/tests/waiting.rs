//! Waiting for a connection, in both clients: timeouts per call, and the pauses between
//! attempts to open one.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::MAX_WAIT;
use crate::support::calls::{DriverHarness, get, head, ok, route, send};
use towline_io::client::{
    Backoff, BlockingClient, BlockingConfig, BlockingError, CallError, CallErrorKind, CallId,
    CallOptions, Route, Timeouts, WaitPolicy,
};
use towline_io::{ClientTls, ClientTlsSettings, Trust};

const MS: Duration = Duration::from_millis(1);

/// Starts a server with which every TLS handshake stalls.
fn stalling_server() -> (TcpListener, Arc<Route>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = ClientTls::new(ClientTlsSettings {
        trust: Trust::Insecure,
        ..ClientTlsSettings::default()
    });
    (
        listener,
        Arc::new(Route::secure("127.0.0.1", port, Arc::new(tls))),
    )
}

fn within(connect: u64, pool: Option<u64>) -> CallOptions {
    CallOptions {
        timeouts: Timeouts {
            connect: Some(connect as u32 * MS),
            pool: pool.map(|pool| pool as u32 * MS),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    }
}

fn failure(harness: &mut DriverHarness, call: CallId, since: Instant) -> (CallErrorKind, Duration) {
    let error = harness.finish(call).failed();
    (error.kind, since.elapsed())
}

/// Whether a call ended at its own connect timeout: not before it, and less than 3.5 s later.
fn ended_at_own_timeout(connect: u64, after: Duration) -> bool {
    let connect = connect as u32 * MS;
    (connect..connect + 3500 * MS).contains(&after)
}

#[test]
fn each_call_waits_for_a_dial_by_its_own_connect_timeout() {
    for order in [[150, 4000], [4000, 150]] {
        let (_listener, route) = stalling_server();
        let mut harness = DriverHarness::new(|_| {});
        let start = Instant::now();
        let calls = order.map(|connect| {
            let options = within(connect, None);
            (
                connect,
                harness.driver.begin(get(&route, "/"), options).unwrap(),
            )
        });
        let mut by_time = calls.to_vec();
        by_time.sort_by_key(|(connect, _)| *connect);
        for (connect, call) in by_time {
            let (kind, after) = failure(&mut harness, call, start);
            assert_eq!(kind, CallErrorKind::ConnectTimeout);
            assert!(ended_at_own_timeout(connect, after), "{order:?}: {after:?}");
        }
        assert_eq!(
            harness.driver.status().dialling,
            0,
            "a dial without a waiter"
        );
    }
}

#[test]
fn a_call_without_a_dial_waits_for_the_pool_timeout() {
    let (_listener, route) = stalling_server();
    let mut harness = DriverHarness::new(|config| config.pool.max_connections_per_host = 1);
    let start = Instant::now();
    let first = harness
        .driver
        .begin(get(&route, "/"), within(1500, None))
        .unwrap();
    let queued = harness
        .driver
        .begin(get(&route, "/"), within(50, None))
        .unwrap();
    let with_pool_timeout = harness
        .driver
        .begin(get(&route, "/"), within(50, Some(200)))
        .unwrap();
    let (kind, after) = failure(&mut harness, with_pool_timeout, start);
    assert_eq!(kind, CallErrorKind::PoolTimeout);
    assert!(after >= 200 * MS, "{after:?}");
    assert_eq!(
        failure(&mut harness, first, start).0,
        CallErrorKind::ConnectTimeout
    );
    // The dial of this call starts only now.
    let (kind, after) = failure(&mut harness, queued, start);
    assert_eq!(kind, CallErrorKind::ConnectTimeout);
    assert!(after >= 1550 * MS, "{after:?}");
}

fn blocking(per_host: usize) -> BlockingClient {
    let mut config = BlockingConfig::default();
    config.pool.max_connections_per_host = per_host;
    BlockingClient::new(config)
}

fn begin_blocking(
    client: &BlockingClient,
    route: &Arc<Route>,
    options: CallOptions,
) -> Result<(), CallError> {
    let mut never = || false;
    let mut policy = WaitPolicy::new(&mut never, None);
    match client.begin(get(route, "/"), options, &mut policy) {
        Ok(_) => Ok(()),
        Err(BlockingError::Failed(error)) => Err(*error),
        Err(BlockingError::Interrupted) => panic!("interrupted"),
    }
}

#[test]
fn each_thread_waits_by_its_own_timeouts() {
    for order in [[150, 4000], [4000, 150]] {
        let (_listener, route) = stalling_server();
        let client = blocking(9);
        thread::scope(|scope| {
            for connect in order {
                let (client, route) = (&client, &route);
                scope.spawn(move || {
                    let start = Instant::now();
                    let error = begin_blocking(client, route, within(connect, None)).unwrap_err();
                    assert_eq!(error.kind, CallErrorKind::ConnectTimeout);
                    assert!(
                        ended_at_own_timeout(connect, start.elapsed()),
                        "{:?}",
                        start.elapsed()
                    );
                });
                thread::sleep(20 * MS);
            }
        });
        assert_eq!(client.status().dialling, 0);
    }
    let (_listener, route) = stalling_server();
    let client = blocking(1);
    thread::scope(|scope| {
        let first = within(5000, None);
        let (client, route) = (&client, &route);
        scope.spawn(move || begin_blocking(client, route, first).unwrap_err());
        let start = Instant::now();
        while client.status().dialling == 0 {
            assert!(start.elapsed() < MAX_WAIT, "no dial");
            thread::sleep(MS);
        }
        let start = Instant::now();
        let error = begin_blocking(client, route, within(50, Some(200))).unwrap_err();
        assert_eq!(error.kind, CallErrorKind::PoolTimeout);
        assert!(start.elapsed() >= 200 * MS);
    });
}

fn retrying(times: u8) -> CallOptions {
    CallOptions {
        connect_retries: times,
        backoff: Backoff {
            first: 60 * MS,
            jitter: false,
            ..Backoff::default()
        },
        // Per attempt, without the pauses.
        ..within(200, None)
    }
}

#[test]
fn pauses_between_connection_attempts_grow() {
    let route = route(crate::support::refusing_addr());
    let start = Instant::now();
    let mut harness = DriverHarness::new(|_| {});
    let call = harness.driver.begin(get(&route, "/"), retrying(3)).unwrap();
    assert_eq!(failure(&mut harness, call, start).0, CallErrorKind::Connect);
    let pauses = (60 + 120 + 240) * MS;
    assert!(start.elapsed() >= pauses, "{:?}", start.elapsed());
    assert_eq!(harness.driver.status().dialling, 0);

    let start = Instant::now();
    let error = begin_blocking(&blocking(9), &route, retrying(3)).unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Connect);
    assert!(start.elapsed() >= pauses, "{:?}", start.elapsed());
}

#[test]
fn a_call_between_attempts_uses_a_free_connection_and_can_be_cancelled() {
    let (socket, addr) = crate::support::bound_only();
    let route = route(addr);
    let mut harness = DriverHarness::new(|_| {});
    let long = CallOptions {
        backoff: Backoff {
            first: Duration::from_secs(60),
            jitter: false,
            ..Backoff::default()
        },
        ..CallOptions::default()
    };
    let resting = harness.driver.begin(get(&route, "/"), long).unwrap();
    let given_up = harness.driver.begin(get(&route, "/"), long).unwrap();
    harness.turn(20 * MS);
    harness.driver.cancel(given_up);
    assert_eq!(harness.driver.status().dialling, 1);
    socket.listen(16).unwrap();
    let listener = TcpListener::from(socket);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while head(&mut stream).is_some() {
            send(&mut stream, &ok("hi"));
        }
    });
    let other = harness.begin(get(&route, "/"));
    assert_eq!(harness.finish(resting).response().1, b"hi");
    assert_eq!(harness.finish(other).response().1, b"hi");
    drop(harness);
    server.join().unwrap();
}
