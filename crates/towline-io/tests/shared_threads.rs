//! Threads that share an HTTP/2 connection in the blocking client, against Towline's server.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::blocking::{
    assert_all_idle, begin, body_of, exchange, failed, fetch, h2_client, h2_client_of_one_conn,
    h2_client_with_limits, h2_config, read_timeout, uninterrupted,
};
use crate::support::calls::{get, request, route};
use crate::support::scripted::server_with;
use crate::support::{MAX_WAIT, Server};
use bytes::Bytes;
use towline_io::client::{
    BlockingClient, BlockingConfig, BlockingError, Body, CallErrorKind, CallOptions, CallPhase,
    PoolLimits, ReadOutcome, WaitPolicy, WriteOutcome,
};
use towline_proto::Limits;

const MS: Duration = Duration::from_millis(1);

fn server() -> Server {
    server_with(1000)
}

#[test]
fn many_threads_share_one_connection() {
    let server = server();
    let route = route(server.addr);
    let client = h2_client();
    assert_eq!(fetch(&client, get(&route, "/")).1, b"alive\r\n");
    thread::scope(|scope| {
        for thread in 0..32 {
            let (client, route) = (&client, &route);
            scope.spawn(move || {
                for n in 0..50 {
                    if n % 10 == 0 {
                        let (status, body) = fetch(client, get(route, "/bytes?n=200000"));
                        assert_eq!((status, body.len()), (200, 200_000));
                    }
                    let text = format!("{thread}/{n}");
                    let body = Body::Bytes(Bytes::from(text.clone()));
                    let echo = fetch(client, request(route, "POST", "/echo", body));
                    assert_eq!(echo, (200, text.into_bytes()));
                }
            });
        }
    });
    assert_eq!(server.accepted.load(Relaxed), 1);
    assert_all_idle(&client, 1);
}

#[test]
fn calls_above_the_servers_limit_wait_or_use_another_connection() {
    for (per_host, connections) in [(1, 1), (5, 5)] {
        let server = server_with(4);
        let route = route(server.addr);
        let client = BlockingClient::new(BlockingConfig {
            pool: PoolLimits {
                max_connections_per_host: per_host,
                ..PoolLimits::default()
            },
            ..h2_config()
        });
        assert_eq!(fetch(&client, get(&route, "/")).0, 200);
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        assert_eq!(fetch(&client, get(&route, "/delay?ms=2")).0, 200);
                    }
                });
            }
        });
        let accepted = server.accepted.load(Relaxed);
        assert!(accepted <= connections, "{accepted}");
        let status = client.status();
        assert_eq!((status.active, status.waiting), (0, 0));
    }
}

#[test]
fn a_first_burst_shares_one_connection_and_refused_calls_are_sent_again() {
    // Until its SETTINGS arrive, the server is assumed to allow a hundred streams; it allows three.
    let server = server_with(3);
    let route = route(server.addr);
    let client = h2_client_of_one_conn();
    let barrier = Barrier::new(30);
    thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| {
                barrier.wait();
                let post = request(&route, "POST", "/echo", Body::Bytes("x".into()));
                assert_eq!(fetch(&client, post), (200, b"x".to_vec()));
            });
        }
    });
    assert_eq!(server.accepted.load(Relaxed), 1);
}

#[test]
fn a_paused_reader_does_not_block_other_streams() {
    let server = server();
    let route = route(server.addr);
    let mut limits = Limits::client();
    limits.http2.stream_window_bytes = 64 * 1024;
    let client = h2_client_with_limits(limits);
    let mut slow = begin(
        &client,
        get(&route, "/bytes?n=3000000"),
        CallOptions::default(),
    )
    .unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let (_, body) = fetch(&client, get(&route, "/bytes?n=300000"));
                    assert_eq!(body.len(), 300_000);
                    let body = Body::Bytes(Bytes::from(vec![b'x'; 300_000]));
                    let upload = request(&route, "POST", "/upload", body);
                    assert_eq!(fetch(&client, upload).1, b"300000");
                }
            });
        }
    });
    assert!((1..=64 * 1024).contains(&slow.buffered()));
    // Only as much as the program reads is buffered.
    while let ReadOutcome::Pending = slow.take(10, |data| assert_eq!(data.len(), 10)).unwrap() {
        uninterrupted(|policy| slow.fill(policy)).unwrap();
    }
    assert!(slow.buffered() <= 64 * 1024);
    assert_eq!(body_of(&mut slow).unwrap().len(), 3_000_000 - 10);
    assert_eq!(server.accepted.load(Relaxed), 1);
    assert_all_idle(&client, 1);
}

#[test]
fn every_kind_of_upload_arrives_completely() {
    const LEN: usize = 3_000_000;
    let server = server();
    let route = route(server.addr);
    let client = h2_client();
    let body = Body::Bytes(Bytes::from(vec![7; LEN]));
    let whole_body = request(&route, "POST", "/upload", body);
    assert_eq!(fetch(&client, whole_body).1, b"3000000");

    let path = std::env::temp_dir().join(format!("towline-shared-{}", std::process::id()));
    std::fs::write(&path, vec![7; LEN + 5]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let body = Body::File {
        file,
        offset: 5,
        len: LEN as u64,
    };
    let with_file = request(&route, "POST", "/upload", body);
    assert_eq!(fetch(&client, with_file).1, b"3000000");

    for size in [Body::Unknown, Body::Known(LEN as u64)] {
        uninterrupted(|policy| {
            let streamed = request(&route, "POST", "/upload", size);
            let mut call = client.begin(streamed, CallOptions::default(), policy)?;
            for _ in 0..60 {
                let piece = Bytes::from(vec![7; LEN / 60]);
                assert_eq!(call.write(piece, policy)?, WriteOutcome::Continue);
            }
            call.finish(&[], policy)?;
            assert_eq!(call.await_head(policy)?.view().status(), 200);
            let mut response = Vec::new();
            call.read_all(&mut response, policy)?;
            assert_eq!(response, b"3000000");
            Ok::<_, BlockingError>(())
        })
        .unwrap();
    }
    assert_eq!(server.accepted.load(Relaxed), 1);
    assert_all_idle(&client, 1);
}

#[test]
fn a_cancelled_call_ends_only_its_stream() {
    let server = server();
    let route = route(server.addr);
    let client = h2_client();
    fetch(&client, get(&route, "/"));
    thread::scope(|scope| {
        let kept = scope.spawn(|| fetch(&client, get(&route, "/delay?ms=300")));
        // Fewer than the server's limit on resets (CVE-2023-44487).
        for round in 0..40 {
            let target = ["/endless", "/bytes?n=500000", "/"][round % 3];
            let call = begin(&client, get(&route, target), CallOptions::default()).unwrap();
            drop(call);
            uninterrupted(|policy| {
                let pending = get(&route, "/delay?ms=10000");
                drop(client.begin(pending, CallOptions::default(), policy));
            });
        }
        assert_eq!(kept.join().unwrap().0, 200);
    });
    assert_eq!(server.accepted.load(Relaxed), 1);
    assert_all_idle(&client, 1);
}

#[test]
fn a_leader_that_leaves_is_replaced() {
    // The thread that polls for all times out, is interrupted, or gets its response; the others go on.
    let server = server();
    let route = route(server.addr);
    let client = h2_client();
    fetch(&client, get(&route, "/"));
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let slow = get(&route, "/delay?ms=10000");
            failed(begin(&client, slow, read_timeout(1000 * MS)))
        });
        let interrupted = scope.spawn(|| {
            let since = Instant::now();
            let mut over = || since.elapsed() > 1200 * MS;
            let mut policy = WaitPolicy::new(&mut over, Some(20 * MS));
            let slow = get(&route, "/delay?ms=10000");
            let mut call = client.begin(slow, CallOptions::default(), &mut policy)?;
            call.await_head(&mut policy).map(drop)
        });
        let successful = scope.spawn(|| fetch(&client, get(&route, "/delay?ms=1400")));
        // A connection without any input would be marked as suspect.
        scope.spawn(|| {
            let since = Instant::now();
            while since.elapsed() < 1600 * MS {
                assert_eq!(fetch(&client, get(&route, "/delay?ms=10")).0, 200);
            }
        });
        let rest: Vec<_> = (0..8)
            .map(|n| {
                let (client, route) = (&client, &route);
                scope.spawn(move || {
                    fetch(client, get(route, &format!("/delay?ms={}", 1600 + 10 * n)))
                })
            })
            .collect();
        let error = late.join().unwrap();
        assert_eq!(
            (error.kind, error.phase),
            (CallErrorKind::ReadTimeout, CallPhase::Head)
        );
        assert!(matches!(
            interrupted.join().unwrap(),
            Err(BlockingError::Interrupted)
        ));
        assert_eq!(successful.join().unwrap().0, 200);
        for each in rest {
            assert_eq!(each.join().unwrap().0, 200);
        }
    });
    assert_eq!(server.accepted.load(Relaxed), 1);
    assert_all_idle(&client, 1);
}

#[test]
fn closing_lets_running_calls_finish() {
    let server = server();
    let route = route(server.addr);
    let client = h2_client();
    let (begun, is_begun) = mpsc::channel();
    thread::scope(|scope| {
        let (client, route) = (&client, &route);
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let begun = begun.clone();
                scope.spawn(move || {
                    uninterrupted(|policy| {
                        let slow = get(route, "/delay?ms=200");
                        let mut call = client.begin(slow, CallOptions::default(), policy)?;
                        begun.send(()).unwrap();
                        call.await_head(policy).map(|head| head.view().status())
                    })
                })
            })
            .collect();
        for _ in 0..4 {
            is_begun.recv_timeout(MAX_WAIT).unwrap();
        }
        client.close();
        let refused = failed(exchange(client, get(route, "/")));
        assert_eq!(refused.kind, CallErrorKind::Closed);
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap(), 200);
        }
    });
    assert_all_idle(&client, 0);
}
