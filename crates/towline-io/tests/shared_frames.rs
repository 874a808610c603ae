//! Threads that share an HTTP/2 connection in the blocking client, against scripted
//! servers.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::MAX_WAIT;
use crate::support::blocking::{
    assert_all_idle, begin, begin_and_await_head, body_of, exchange, failed, fetch, h2_client,
    h2_client_of_one_conn, h2_client_with_limits, read_timeout, uninterrupted,
};
use crate::support::calls::{Scripted, get, request, route};
use crate::support::frames::{
    DATA, END_HEADERS, Frames, GOAWAY, HEADERS, OK, PING, RESET, SETTINGS, frame, goaway,
    response_frames,
};
use crate::support::scripted;
use bytes::Bytes;
use towline_io::client::{
    BlockingError, Body, CallErrorKind, CallOptions, CallPhase, StaleRetry, Timeouts, WriteOutcome,
};

const MS: Duration = Duration::from_millis(1);

#[test]
fn changed_stream_limits_are_respected_and_used() {
    // Highest number of open streams under each of the limits.
    let peaks = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let seen = Arc::clone(&peaks);
    let limit_of = |streams: u32| {
        let setting = [&[0, 3][..], &streams.to_be_bytes()].concat();
        frame(SETTINGS, 0, 0, &setting)
    };
    let server = Scripted::new(move |number, stream| {
        assert_eq!(number, 0, "one connection is enough");
        let mut frames = Frames::accept(stream);
        let first = frames.request().unwrap();
        frames.send(&limit_of(2));
        frames.send(&response_frames(first, b"x"));
        frames.0.set_read_timeout(Some(100 * MS)).unwrap();
        let (mut open, mut served) = (Vec::new(), 0);
        while served < 40 {
            if let Some(stream) = frames.request() {
                open.push(stream);
                seen[usize::from(served >= 20)].fetch_max(open.len(), Relaxed);
                continue;
            }
            // No further request: the client keeps the limit.
            served += open.len();
            if served >= 20 {
                frames.send(&limit_of(5));
            }
            for stream in open.drain(..) {
                frames.send(&response_frames(stream, b"x"));
            }
        }
        frames.0.set_read_timeout(Some(MAX_WAIT)).unwrap();
        while let Some(stream) = frames.request() {
            frames.send(&response_frames(stream, b"x"));
        }
    });
    let route = route(server.addr);
    let client = h2_client_of_one_conn();
    assert_eq!(fetch(&client, get(&route, "/")).1, b"x");
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(fetch(&client, get(&route, "/")).1, b"x");
                }
            });
        }
    });
    assert_eq!(
        [&peaks[0], &peaks[1]].map(|peak| peak.load(Relaxed)),
        [2, 5]
    );
    assert_all_idle(&client, 1);
}

#[test]
fn goaway_drains_the_connection_and_moves_unprocessed_calls() {
    let server = scripted::going_away();
    let route = route(server.addr);
    let client = h2_client();
    let mut bodies: Vec<_> = thread::scope(|scope| {
        let post = || {
            let body = Body::Bytes("body".into());
            fetch(&client, request(&route, "POST", "/", body)).1
        };
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(post)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    bodies.sort();
    assert_eq!(bodies, [&b"new"[..], b"new", b"old", b"old"]);
    assert_eq!(fetch(&client, get(&route, "/")).1, b"new");
    assert_all_idle(&client, 1);
}

#[test]
fn a_broken_connection_fails_only_its_own_calls() {
    let server = scripted::breaking();
    let route = route(server.addr);
    let client = h2_client();
    assert_eq!(fetch(&client, get(&route, "/")).1, b"whole");
    let (status, mut half) =
        begin_and_await_head(&client, get(&route, "/"), CallOptions::default()).unwrap();
    assert_eq!(status, 200);
    thread::scope(|scope| {
        let broken = scope.spawn(move || failed(body_of(&mut half)));
        // The call is idempotent, and no byte of its response has arrived on the reused connection.
        assert_eq!(fetch(&client, get(&route, "/")).1, b"again");
        let error = broken.join().unwrap();
        assert_eq!(
            (error.kind, error.phase),
            (CallErrorKind::ServerDisconnected, CallPhase::Body)
        );
        // A GET without a body: the program may send it again (RFC 9110 9.2.2), the client does not.
        assert!(error.reused && error.retryable);
    });
    assert_eq!(fetch(&client, get(&route, "/")).1, b"again");
    assert_all_idle(&client, 1);
}

#[test]
fn data_received_before_the_end_of_the_connection_can_be_read_after_it() {
    let server = Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        let all = [(); 3].map(|()| frames.request().unwrap());
        for stream in all {
            frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
        }
        for stream in all {
            frames.send(&frame(DATA, 1, stream, &[b'x'; 9000]));
        }
        let _ = frames.0.shutdown(Shutdown::Write);
        while frames.next().is_some() {}
    });
    let route = route(server.addr);
    let client = h2_client();
    let calls: Vec<_> = thread::scope(|scope| {
        let begin = || begin(&client, get(&route, "/"), CallOptions::default()).unwrap();
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(begin)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for mut call in calls {
        assert_eq!(body_of(&mut call).unwrap().len(), 9000);
    }
    assert_eq!(client.status().active, 0);
}

#[test]
fn a_reset_fails_its_call_with_the_error_code() {
    let server = scripted::resetting();
    let route = route(server.addr);
    let client = h2_client();
    for code in ["INTERNAL_ERROR", "HTTP_1_1_REQUIRED", "PROTOCOL_ERROR"] {
        let error = failed(exchange(&client, get(&route, "/")));
        assert_eq!(error.kind, CallErrorKind::RemoteProtocol);
        assert!(error.message.contains(code), "{error}");
        assert!(error.message.contains("RFC 9113"), "{error}");
    }
    uninterrupted(|policy| {
        let upload = request(&route, "POST", "/", Body::Unknown);
        let mut call = client.begin(upload, CallOptions::default(), policy)?;
        let piece = Bytes::from(vec![b'x'; 100_000]);
        // The server does not read it, and then resets the stream.
        while call.write(piece.clone(), policy)? == WriteOutcome::Continue && call.buffered() == 0 {
        }
        call.finish(&[], policy)?;
        assert_eq!(call.await_head(policy)?.view().status(), 200);
        let mut response = Vec::new();
        call.read_all(&mut response, policy)?;
        assert_eq!(response, b"enough");
        Ok::<_, BlockingError>(())
    })
    .unwrap();
    assert_eq!(fetch(&client, get(&route, "/")).1, b"ok");
    assert_all_idle(&client, 1);
}

#[test]
fn refused_calls_fail_after_a_few_attempts_or_at_once_without_retries() {
    let (server, attempts) = scripted::refusing();
    let route = route(server.addr);
    let client = h2_client();
    for (stale, most) in [(StaleRetry::Idempotent, 7), (StaleRetry::Never, 1)] {
        let options = CallOptions {
            stale,
            ..CallOptions::default()
        };
        let error = failed(begin(&client, get(&route, "/"), options));
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
    let client = h2_client();
    // The SETTINGS may arrive after the first request; then it takes one more call.
    let outcomes: Vec<_> = (0..3)
        .map(|_| begin(&client, get(&route, "/"), read_timeout(1000 * MS)).is_ok())
        .collect();
    assert!(matches!(outcomes[..], [false, _, true]), "{outcomes:?}");
}

#[test]
fn pings_do_not_extend_the_read_timeout_of_a_body() {
    let server = Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        let stream = frames.request().unwrap();
        frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
        frames.send(&frame(DATA, 0, stream, b"half"));
        let mut writer = frames.0.try_clone().unwrap();
        let pings = thread::spawn(move || {
            while writer.write_all(&frame(PING, 0, 0, &[0; 8])).is_ok() {
                thread::sleep(20 * MS);
            }
        });
        assert_eq!(frames.until(RESET).map(|(reset, _)| reset), Some(stream));
        let _ = frames.0.shutdown(Shutdown::Both);
        pings.join().unwrap();
    });
    let route = route(server.addr);
    let client = h2_client();
    let mut call = begin(&client, get(&route, "/"), read_timeout(300 * MS)).unwrap();
    let begun = Instant::now();
    let error = failed(body_of(&mut call));
    assert_eq!(error.kind, CallErrorKind::ReadTimeout);
    assert_eq!(error.phase, CallPhase::Body);
    assert!(begun.elapsed() < MAX_WAIT, "{:?}", begun.elapsed());
}

#[test]
fn an_idle_connection_that_ended_is_not_used_and_gets_a_goaway() {
    let (sender, receiver) = mpsc::channel();
    let server = Scripted::new(move |number, stream| {
        let mut frames = Frames::accept(stream);
        let stream = frames.request().unwrap();
        frames.send(&response_frames(stream, b"ok"));
        if number == 0 {
            frames.send(&goaway(stream, 0));
            let _ = frames.0.shutdown(Shutdown::Write);
        }
        sender.send(frames.until(GOAWAY).is_some()).unwrap();
    });
    let route = route(server.addr);
    let client = h2_client();
    let post = || request(&route, "POST", "/", Body::Bytes("x".into()));
    let never = CallOptions {
        stale: StaleRetry::Never,
        ..CallOptions::default()
    };
    assert_eq!(fetch(&client, post()).1, b"ok");
    let start = Instant::now();
    loop {
        // The EOF may not have arrived yet.
        match begin_and_await_head(&client, post(), never) {
            Ok((200, _)) => break,
            outcome => assert!(outcome.is_err() && start.elapsed() < MAX_WAIT),
        }
    }
    receiver.recv_timeout(MAX_WAIT).unwrap();
    client.close();
    assert!(receiver.recv_timeout(MAX_WAIT).unwrap());
}

#[test]
fn a_dead_peer_is_detected_by_ping() {
    let (server, receiver) = scripted::dead();
    let route = route(server.addr);
    let limits = scripted::pinging();
    let client = h2_client_with_limits(limits);
    thread::scope(|scope| {
        let dead = || failed(begin(&client, get(&route, "/"), CallOptions::default()));
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(dead)).collect();
        assert!(receiver.recv_timeout(MAX_WAIT).unwrap());
        for call in calls {
            let error = call.join().unwrap();
            assert_eq!(error.kind, CallErrorKind::ReadTimeout, "{error}");
        }
    });
    assert_eq!(client.status().active, 0);
}

#[test]
fn an_upload_that_is_not_read_ends_at_its_timeouts() {
    // The window stays at the first 64 KiB.
    let server = Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        while frames.next().is_some() {}
    });
    let route = route(server.addr);
    let client = h2_client();
    let body = || Body::Bytes(Bytes::from(vec![0; 1 << 20]));
    let upload = |timeouts| {
        let options = CallOptions {
            timeouts,
            ..CallOptions::default()
        };
        failed(begin(
            &client,
            request(&route, "POST", "/", body()),
            options,
        ))
    };
    let error = upload(Timeouts {
        write: Some(100 * MS),
        ..Timeouts::default()
    });
    assert_eq!(
        (error.kind, error.phase),
        (CallErrorKind::WriteTimeout, CallPhase::Send)
    );
    let error = upload(Timeouts {
        total: Some(100 * MS),
        ..Timeouts::default()
    });
    assert_eq!(error.kind, CallErrorKind::TotalTimeout);
}

#[test]
fn a_body_is_sent_after_100_continue_and_not_after_a_refusal() {
    let (sender, receiver) = mpsc::channel();
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        let stream = frames.request().unwrap();
        // :status 100, then the body, then the response.
        frames.send(&frame(
            HEADERS,
            END_HEADERS,
            stream,
            &[0x08, 3, b'1', b'0', b'0'],
        ));
        assert_eq!(frames.until(DATA).unwrap(), (stream, b"body".to_vec()));
        frames.send(&response_frames(stream, b"taken"));
        let stream = frames.request().unwrap();
        // :status 417 without 100 Continue.
        frames.send(&frame(
            HEADERS,
            END_HEADERS | 1,
            stream,
            &[0x08, 3, b'4', b'1', b'7'],
        ));
        // The second body must not be sent.
        sender.send(frames.until(DATA).is_none()).unwrap();
    });
    let route = route(server.addr);
    let client = h2_client();
    let expects = || {
        let mut prepared = request(&route, "POST", "/", Body::Bytes("body".into()));
        Arc::make_mut(&mut prepared.head).push(b"expect", b"100-continue");
        prepared
    };
    let (status, mut call) =
        begin_and_await_head(&client, expects(), CallOptions::default()).unwrap();
    assert_eq!((status, call.take_informational().len()), (200, 1));
    assert_eq!(body_of(&mut call).unwrap(), b"taken");
    let (status, call) = begin_and_await_head(&client, expects(), CallOptions::default()).unwrap();
    assert_eq!((status, call.is_over()), (417, true));
    client.close();
    assert!(receiver.recv_timeout(MAX_WAIT).unwrap());
}
