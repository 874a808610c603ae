//! The blocking client against small scripted servers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::MAX_WAIT;
use crate::support::blocking::{
    begin, body_of, client, exchange, failed, read_timeout, uninterrupted, with_pool,
};
use bytes::Bytes;
use towline_io::client::{
    BlockingError, Body, CallErrorKind, CallOptions, OutgoingRequest, PoolLimits, ReadOutcome,
    RequestText, Route, StaleRetry, Timeouts, WaitPolicy, WriteOutcome,
};

const MS: Duration = Duration::from_millis(1);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Starts a server that calls `serve` with the number of each connection and its stream.
fn server(serve: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> Arc<Route> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, stream) = (Arc::clone(&serve), stream.unwrap());
            thread::spawn(move || serve(number, stream));
        }
    });
    Arc::new(Route::plain("127.0.0.1", port))
}

/// Reads one head; `None` at the end of input.
fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// Sends `response` to every request until the client closes.
fn always_respond(response: &'static [u8]) -> impl Fn(usize, TcpStream) + Send + Sync + 'static {
    move |_, mut stream| {
        while read_head(&mut stream).is_some() {
            if stream.write_all(response).is_err() {
                return;
            }
        }
    }
}

fn request(route: &Arc<Route>, method: &str, body: Body) -> OutgoingRequest {
    let mut head = RequestText::new(method.as_bytes(), b"/");
    head.push(b"host", b"a");
    OutgoingRequest {
        route: Arc::clone(route),
        head: head.into(),
        body,
        idempotent: method == "GET",
    }
}

fn get(route: &Arc<Route>) -> OutgoingRequest {
    request(route, "GET", Body::Empty)
}

#[test]
fn one_connection_carries_request_after_request() {
    let route = server(always_respond(OK));
    let client = client();
    for reused in [false, true, true] {
        let (status, body, was_reused) = exchange(&client, get(&route)).unwrap();
        assert_eq!((status, &body[..], was_reused), (200, &b"ok"[..], reused));
        let status = client.status();
        assert_eq!((status.active, status.idle), (0, 1));
    }
}

#[test]
fn chunked_bodies_and_their_trailers() {
    let route = server(always_respond(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nx-sum: 5\r\n\r\n",
    ));
    let client = client();
    let mut call = begin(&client, get(&route), CallOptions::default()).unwrap();
    assert_eq!(body_of(&mut call).unwrap(), b"hello");
    assert_eq!(call.trailers(), [((*b"x-sum").into(), (*b"5").into())]);
    assert!(exchange(&client, get(&route)).unwrap().2);
}

#[test]
fn an_idle_connection_with_unexpected_input_or_eof_is_not_used() {
    for farewell in [
        &b""[..],
        b"HTTP/1.1 408 Too Late\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (said, receiver) = mpsc::channel();
        let said = std::sync::Mutex::new(said);
        let route = server(move |_, mut stream| {
            while read_head(&mut stream).is_some() {
                stream.write_all(OK).unwrap();
                thread::sleep(20 * MS);
                stream.write_all(farewell).unwrap();
                if farewell.is_empty() {
                    stream.shutdown(Shutdown::Write).unwrap();
                }
                said.lock().unwrap().send(()).unwrap();
            }
        });
        let client = client();
        for _ in 0..2 {
            // A POST would not be sent again.
            let post = request(&route, "POST", Body::Bytes(Bytes::from_static(b"")));
            let (status, _, reused) = exchange(&client, post).unwrap();
            assert_eq!((status, reused), (200, false));
            receiver.recv().unwrap();
            thread::sleep(5 * MS);
        }
    }
}

/// Serves one request per connection and closes when the second one arrives.
fn closes_on_second(requests: Arc<AtomicUsize>) -> Arc<Route> {
    server(move |_, mut stream| {
        read_head(&mut stream);
        requests.fetch_add(1, Ordering::SeqCst);
        stream.write_all(OK).unwrap();
        read_head(&mut stream);
        requests.fetch_add(1, Ordering::SeqCst);
    })
}

#[test]
fn a_get_on_a_stale_connection_is_sent_again_and_a_post_is_not() {
    let requests = Arc::new(AtomicUsize::new(0));
    let route = closes_on_second(Arc::clone(&requests));
    let client = client();
    exchange(&client, get(&route)).unwrap();
    let (status, _, reused) = exchange(&client, get(&route)).unwrap();
    assert_eq!((status, reused), (200, false));
    assert_eq!(requests.load(Ordering::SeqCst), 3);

    let error = failed(exchange(&client, request(&route, "POST", Body::Empty)));
    assert_eq!(error.kind, CallErrorKind::ServerDisconnected);
    assert!(error.reused && !error.retryable && error.bytes_sent > 0);
    assert_eq!(error.bytes_received, 0);

    exchange(&client, get(&route)).unwrap();
    let anything = CallOptions {
        stale: StaleRetry::Any,
        ..CallOptions::default()
    };
    let post = request(&route, "POST", Body::Bytes(Bytes::from_static(b"x")));
    assert!(begin(&client, post, anything).is_ok());
}

#[test]
fn a_large_upload_is_sent_completely() {
    const LEN: usize = 8 * 1024 * 1024;
    let route = server(|_, mut stream| {
        let head = read_head(&mut stream).unwrap();
        assert!(head.contains("content-length: 8388608"));
        let mut body = vec![0; LEN];
        thread::sleep(20 * MS);
        stream.read_exact(&mut body).unwrap();
        assert!(body.iter().all(|&byte| byte == 7));
        stream.write_all(OK).unwrap();
    });
    let body = Body::Bytes(Bytes::from(vec![7; LEN]));
    assert_eq!(
        exchange(&client(), request(&route, "POST", body))
            .unwrap()
            .0,
        200
    );
}

#[test]
fn a_file_is_sent_completely() {
    const LEN: usize = 3 * 1024 * 1024;
    let route = server(|_, mut stream| {
        read_head(&mut stream).unwrap();
        let mut body = vec![0; LEN - 5];
        stream.read_exact(&mut body).unwrap();
        assert!(body.iter().all(|&byte| byte == 7));
        stream.write_all(OK).unwrap();
    });
    let path = std::env::temp_dir().join(format!("towline-blocking-{}", std::process::id()));
    std::fs::write(&path, vec![7; LEN]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let body = Body::File {
        file,
        offset: 5,
        len: (LEN - 5) as u64,
    };
    assert_eq!(
        exchange(&client(), request(&route, "PUT", body)).unwrap().0,
        200
    );
}

#[test]
fn an_echo_larger_than_all_buffers_comes_back() {
    const LEN: usize = 16 * 1024 * 1024;
    let route = server(|_, mut stream| {
        read_head(&mut stream).unwrap();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {LEN}\r\n\r\n").unwrap();
        let (mut left, mut block) = (LEN, vec![0; 64 * 1024]);
        while left > 0 {
            let n = stream.read(&mut block).unwrap();
            stream.write_all(&block[..n]).unwrap();
            left -= n;
        }
    });
    let body = Body::Bytes(Bytes::from(vec![9; LEN]));
    let (_, echo, _) = exchange(&client(), request(&route, "POST", body)).unwrap();
    assert_eq!(echo.len(), LEN);
    assert!(echo.iter().all(|&byte| byte == 9));
}

#[test]
fn a_streamed_body_is_chunked_and_an_early_response_ends_it() {
    // no reuse: a stream is not sent again
    let route = server(|number, mut stream| {
        read_head(&mut stream).unwrap();
        if number == 0 {
            let mut body = [0; 12];
            stream.read_exact(&mut body).unwrap();
            assert_eq!(&body, b"2\r\nhi\r\n0\r\n\r\n");
            stream
                .write_all(b"HTTP/1.1 204 Done\r\nconnection: close\r\n\r\n")
                .unwrap();
        } else {
            let refusal = b"HTTP/1.1 413 Too Much\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(refusal).unwrap();
            thread::sleep(MAX_WAIT);
        }
    });
    let client = client();
    uninterrupted(|policy| {
        let prepared = request(&route, "POST", Body::Unknown);
        let mut call = client
            .begin(prepared, CallOptions::default(), policy)
            .unwrap();
        let piece = Bytes::from_static(b"hi");
        assert_eq!(call.write(piece, policy).unwrap(), WriteOutcome::Continue);
        call.finish(&[], policy).unwrap();
        let head = call.await_head(policy).unwrap();
        assert_eq!(head.view().status(), 204);
    });
    // The first server closes: its connection could be reused before the close is seen.
    let client = self::client();
    uninterrupted(|policy| {
        let prepared = request(&route, "POST", Body::Unknown);
        let mut call = client
            .begin(prepared, CallOptions::default(), policy)
            .unwrap();
        let piece = Bytes::from(vec![0; 256 * 1024]);
        let mut pieces = 0;
        while call.write(piece.clone(), policy).unwrap() == WriteOutcome::Continue {
            pieces += 1;
            assert!(pieces < 1000);
        }
        let head = call.await_head(policy).unwrap();
        assert_eq!(head.view().status(), 413);
    });
}

#[test]
fn every_phase_has_its_timeout() {
    // Accepts, but neither reads nor writes.
    let silent = server(|_, stream| {
        thread::sleep(MAX_WAIT);
        drop(stream);
    });
    let client = client();
    let begun = Instant::now();
    let error = failed(begin(&client, get(&silent), read_timeout(50 * MS)));
    assert_eq!(error.kind, CallErrorKind::ReadTimeout);
    assert!((50 * MS..MAX_WAIT / 2).contains(&begun.elapsed()));

    let total = Timeouts {
        total: Some(50 * MS),
        ..Timeouts::default()
    };
    let options = CallOptions {
        timeouts: total,
        ..CallOptions::default()
    };
    let error = failed(begin(&client, get(&silent), options));
    assert_eq!(error.kind, CallErrorKind::TotalTimeout);

    let write = Timeouts {
        write: Some(50 * MS),
        ..Timeouts::default()
    };
    let options = CallOptions {
        timeouts: write,
        ..CallOptions::default()
    };
    let body = Body::Bytes(Bytes::from(vec![0; 64 * 1024 * 1024]));
    let error = failed(begin(&client, request(&silent, "POST", body), options));
    assert_eq!(error.kind, CallErrorKind::WriteTimeout);
    assert!(error.bytes_sent > 0);
    let status = client.status();
    assert_eq!((status.active, status.idle), (0, 0));
}

#[test]
fn the_pool_timeout_and_the_queue_limit_apply() {
    let route = server(always_respond(OK));
    let client = with_pool(PoolLimits {
        max_connections: 1,
        max_queue: Some(1),
        ..PoolLimits::default()
    });
    let first = begin(&client, get(&route), CallOptions::default()).unwrap();
    let options = CallOptions {
        timeouts: Timeouts {
            pool: Some(50 * MS),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    };
    let error = failed(begin(&client, get(&route), options));
    assert_eq!(error.kind, CallErrorKind::PoolTimeout);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| exchange(&client, get(&route)).unwrap());
        while client.status().waiting == 0 {
            thread::sleep(MS);
        }
        let error = failed(begin(&client, get(&route), CallOptions::default()));
        assert_eq!(error.kind, CallErrorKind::QueueFull);
        drop(first);
        assert_eq!(waiting.join().unwrap().0, 200);
    });
}

#[test]
fn an_interruption_ends_every_wait() {
    let silent = server(|_, stream| {
        thread::sleep(MAX_WAIT);
        drop(stream);
    });
    let client = with_pool(PoolLimits {
        max_connections: 1,
        ..PoolLimits::default()
    });
    let mut asked = 0;
    let mut interrupted = || {
        asked += 1;
        asked >= 2
    };
    let mut policy = WaitPolicy::new(&mut interrupted, Some(20 * MS));
    let mut call = client
        .begin(get(&silent), CallOptions::default(), &mut policy)
        .unwrap();
    let begun = Instant::now();
    assert!(matches!(
        call.await_head(&mut policy),
        Err(BlockingError::Interrupted)
    ));
    assert!(begun.elapsed() < MAX_WAIT / 2);
    let mut no = || false;
    let mut policy = WaitPolicy::new(&mut no, None);
    let _held = client
        .begin(get(&silent), CallOptions::default(), &mut policy)
        .unwrap();
    let mut yes = || true;
    let mut policy = WaitPolicy::new(&mut yes, Some(20 * MS));
    let waited = client.begin(get(&silent), CallOptions::default(), &mut policy);
    assert!(matches!(waited, Err(BlockingError::Interrupted)));
    assert_eq!(client.status().waiting, 0);
}

#[test]
fn an_unread_response_holds_no_more_than_its_window() {
    let route = server(|_, mut stream| {
        read_head(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        while stream.write_all(&[0; 16 * 1024]).is_ok() {}
    });
    let client = client();
    let mut call = begin(&client, get(&route), CallOptions::default()).unwrap();
    for _ in 0..100 {
        uninterrupted(|policy| call.fill(policy)).unwrap();
        assert!(call.buffered() <= 64 * 1024);
        assert!(matches!(
            call.take(1000, <[u8]>::len),
            Ok(ReadOutcome::Data(1..=1000))
        ));
    }
    drop(call);
    assert_eq!(client.status().active, 0);
}

#[test]
fn a_dropped_call_drains_a_small_body_and_closes_on_a_large_one() {
    let route = server(|_, mut stream| {
        while read_head(&mut stream).is_some() {
            if stream.write_all(OK).is_err() {
                return;
            }
        }
    });
    let client = client();
    drop(begin(&client, get(&route), CallOptions::default()).unwrap());
    assert_eq!(client.status().idle, 1);
    let large = server(|_, mut stream| {
        read_head(&mut stream).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n")
            .unwrap();
        thread::sleep(Duration::from_secs(5));
    });
    drop(begin(&client, get(&large), CallOptions::default()).unwrap());
    assert_eq!((client.status().idle, client.status().active), (1, 0));
}

#[test]
fn protocol_errors_cite_the_rule() {
    for (response, kind, rule) in [
        (
            &b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"[..],
            CallErrorKind::RemoteProtocol,
            "content-length",
        ),
        (b"", CallErrorKind::ServerDisconnected, "before a response"),
        (
            b"HTTP/1.1 200",
            CallErrorKind::ServerDisconnected,
            "inside a head",
        ),
    ] {
        let route = server(move |_, mut stream| {
            read_head(&mut stream);
            stream.write_all(response).unwrap();
        });
        let error = failed(exchange(&client(), get(&route)));
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(rule), "{error}");
    }
    let route = server(|_, mut stream| {
        read_head(&mut stream);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab")
            .unwrap();
    });
    let client = client();
    let mut call = begin(&client, get(&route), CallOptions::default()).unwrap();
    let error = failed(body_of(&mut call));
    assert_eq!(error.kind, CallErrorKind::ServerDisconnected);
    assert_eq!(client.status().active, 0);
}

#[test]
fn forty_threads_share_five_connections() {
    let route = server(always_respond(OK));
    let client = with_pool(PoolLimits {
        max_connections: 5,
        ..PoolLimits::default()
    });
    thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(exchange(&client, get(&route)).unwrap().0, 200);
                }
            });
        }
    });
    let status = client.status();
    assert_eq!((status.active, status.waiting, status.dialling), (0, 0, 0));
    assert!((1..=5).contains(&status.idle));
}

#[test]
fn a_refused_connection_fails_every_waiter() {
    let route = Arc::new(Route::plain(
        "127.0.0.1",
        crate::support::refusing_addr().port(),
    ));
    let client = client();
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let error = failed(exchange(&client, get(&route)));
                assert_eq!(error.kind, CallErrorKind::Connect);
                assert!(error.retryable);
            });
        }
    });
    let status = client.status();
    assert_eq!((status.active, status.waiting, status.dialling), (0, 0, 0));
}

#[test]
fn closing_fails_waiting_calls_and_refuses_new_ones() {
    let route = server(always_respond(OK));
    let client = with_pool(PoolLimits {
        max_connections: 1,
        ..PoolLimits::default()
    });
    let held = begin(&client, get(&route), CallOptions::default()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| failed(exchange(&client, get(&route))));
        while client.status().waiting == 0 {
            thread::sleep(MS);
        }
        client.close();
        assert_eq!(waiting.join().unwrap().kind, CallErrorKind::Closed);
    });
    let error = failed(exchange(&client, get(&route)));
    assert_eq!(error.kind, CallErrorKind::Closed);
    drop(held);
    assert_eq!(client.status(), towline_io::client::PoolStatus::default());
}

#[test]
fn prewarmed_connections_are_used() {
    let route = server(always_respond(OK));
    let client = client();
    let opened = uninterrupted(|policy| client.prewarm(&route, 3, None, policy)).unwrap();
    assert_eq!((opened, client.status().idle), (3, 3));
    let opened = uninterrupted(|policy| client.prewarm(&route, 3, None, policy)).unwrap();
    assert_eq!(opened, 0);
    exchange(&client, get(&route)).unwrap();
    assert_eq!(client.status().idle, 3);
}
