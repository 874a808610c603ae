//! Send modes on the wire: in pieces, in chunks, after 100, cut off, with a barrier.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::scripted::{HELLO, Reply, Server, load, refusing_port, until};
use bytes::Bytes;
use towline_load::{Config, Expect, Mix, SendMode, Target, Until};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const TOO_LARGE: &[u8] = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n";

/// Calls `serve` on a thread for each connection, with its number.
fn raw(serve: impl Fn(u64, TcpStream) + Send + Sync + 'static) -> Config {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for (number, socket) in (0..).zip(listener.incoming().flatten()) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(number, socket));
        }
    });
    let mut target = Target::get(&url).unwrap();
    target.fields.push(("Host".into(), b"x"[..].into()));
    let mut config = Config::new(vec![target]);
    config.connections = 1;
    config.timeout = Duration::from_secs(5);
    config
}

fn post(config: &mut Config, body: impl Into<Bytes>, send_mode: SendMode) {
    config.targets[0].method = "POST".into();
    config.targets[0].body = Some(body.into());
    config.targets[0].send_mode = send_mode;
}

/// Reads up to and including the empty line.
fn head(mut socket: &TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if socket.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    Some(String::from_utf8(bytes).unwrap())
}

#[test]
fn pieces_are_sent_in_sequence_and_delay_no_other_connection() {
    const GAP: Duration = Duration::from_millis(100);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let mut config = raw(move |_, mut socket| {
        let mut pieces = Vec::new();
        let mut space = [0; 1024];
        while let Ok(n @ 1..) = socket.read(&mut space) {
            pieces.push((Instant::now(), space[..n].to_vec()));
            if pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>() == 27 {
                noted.lock().unwrap().push(std::mem::take(&mut pieces));
                let _ = socket.write_all(HELLO);
            }
        }
    });
    config.targets[0].send_mode = SendMode::Pieces {
        pieces: 5,
        gap: GAP,
    };
    // Forty in sequence would each wait for the earlier ones.
    config.connections = 20;
    config.until = Until::Requests(40);
    let begun = Instant::now();
    let report = load(&config).report;
    assert_eq!(
        (report.answered, report.errors.total()),
        (40, 0),
        "{report}"
    );
    assert!(begun.elapsed() < GAP * 4 * 40, "{:?}", begun.elapsed());
    // From the start, not from the last piece.
    assert!(report.response.min_us >= 400_000.0, "{report}");
    let seen = seen.lock().unwrap();
    for pieces in seen.iter() {
        let whole: Vec<u8> = pieces.iter().flat_map(|(_, piece)| piece.clone()).collect();
        assert_eq!(whole, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(pieces.len() < 5 || pieces[4].0 - pieces[0].0 >= GAP * 2);
    }
    // A busy machine may receive a few pieces together.
    let apart = seen.iter().filter(|pieces| pieces.len() == 5).count();
    assert!(apart > seen.len() / 2, "{apart} of {}", seen.len());
}

#[test]
fn a_response_before_the_last_piece_ends_the_connection() {
    let mut config = raw(|_, mut socket| {
        let mut byte = [0];
        if socket.read(&mut byte).is_ok() {
            let _ = socket.write_all(HELLO);
            let _ = std::io::copy(&mut socket, &mut std::io::sink());
        }
    });
    config.targets[0].send_mode = SendMode::Pieces {
        pieces: 3,
        gap: Duration::from_secs(2),
    };
    config.until = Until::Requests(4);
    let report = load(&config).report;
    assert_eq!((report.answered, report.reconnects), (4, 3), "{report}");
}

#[test]
fn a_response_before_the_body_is_read_does_not_end_the_load() {
    let mut config = raw(|_, mut socket| {
        let _ = head(&socket);
        let _ = socket.write_all(TOO_LARGE);
        // A close with unread bytes would reset the connection and lose the response.
        std::mem::forget(socket);
    });
    post(&mut config, vec![b'x'; 32 << 20], SendMode::Whole);
    config.until = Until::Requests(4);
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.status), (0, 4), "{report}");
}

#[test]
fn chunks_are_framed() {
    let seen = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&seen);
    let mut config = raw(move |_, mut socket| {
        let mut bytes = Vec::new();
        let mut space = [0; 4096];
        while let Ok(n @ 1..) = socket.read(&mut space) {
            bytes.extend_from_slice(&space[..n]);
            if bytes.ends_with(b"0\r\n\r\n") {
                *noted.lock().unwrap() = String::from_utf8(std::mem::take(&mut bytes)).unwrap();
                let _ = socket.write_all(HELLO);
            }
        }
    });
    post(&mut config, "abcdefgh12345678!", SendMode::Whole);
    config.targets[0].chunk_bytes = Some(8);
    config.until = Until::Requests(3);
    let report = load(&config).report;
    assert_eq!((report.answered, report.reconnects), (3, 0), "{report}");
    let seen = seen.lock().unwrap();
    let (head, body) = seen.split_once("\r\n\r\n").unwrap();
    assert!(
        head.to_ascii_lowercase()
            .contains("\r\ntransfer-encoding: chunked")
    );
    assert_eq!(
        body,
        "8\r\nabcdefgh\r\n8\r\n12345678\r\n1\r\n!\r\n0\r\n\r\n"
    );
}

/// Whether nothing is received for a while.
fn is_silent(socket: &TcpStream) -> bool {
    socket
        .set_read_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    let got = socket.peek(&mut [0]);
    socket.set_read_timeout(None).unwrap();
    got.is_err()
}

#[test]
fn the_body_waits_for_100() {
    let accepted = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&accepted);
    let mut config = raw(move |_, mut socket| {
        counted.fetch_add(1, Ordering::Relaxed);
        while let Some(head) = head(&socket) {
            let asks = head.contains("\r\nExpect: 100-continue\r\n");
            let reply = if asks && is_silent(&socket) {
                socket.write_all(CONTINUE).unwrap();
                let mut body = [0; 5];
                socket.read_exact(&mut body).unwrap();
                if body == *b"hello" { HELLO } else { TOO_LARGE }
            } else {
                TOO_LARGE
            };
            let _ = socket.write_all(reply);
        }
    });
    post(&mut config, "hello", SendMode::AwaitContinue);
    config.until = Until::Requests(5);
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (5, 0), "{report}");
    assert!(report.response.min_us >= 30_000.0, "{report}");
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_final_answer_instead_of_100_is_the_answer() {
    let mut config = raw(|_, mut socket| {
        let _ = head(&socket);
        let _ = socket.write_all(TOO_LARGE);
        // Further input would be taken for the body: the connection must not be reused.
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    });
    post(&mut config, "hello", SendMode::AwaitContinue);
    config.targets[0].expect.status = Some(413);
    config.until = Until::Requests(5);
    let report = load(&config).report;
    assert_eq!((report.answered, report.reconnects), (5, 4), "{report}");
}

#[test]
fn a_dropped_body_is_cut_at_its_length_and_the_whole_request_follows() {
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&cuts);
    let serve = move |number: u64, mut socket: TcpStream| {
        // The first connection receives no whole request.
        let mut is_whole = number > 0;
        while head(&socket).is_some() {
            let mut body = vec![0; if is_whole { 256 } else { 1024 }];
            if is_whole {
                socket.read_exact(&mut body).unwrap();
                let _ = socket.write_all(if number == 3 { TOO_LARGE } else { HELLO });
                is_whole = false;
                continue;
            }
            let mut bytes = 0;
            while let Ok(n @ 1..) = socket.read(&mut body) {
                bytes += n;
            }
            noted.lock().unwrap().push(bytes);
        }
    };
    let mut config = raw(serve);
    post(&mut config, "x".repeat(256), SendMode::DropAfterBytes(128));
    config.until = Until::Requests(6);
    let report = load(&config).report;
    // The repeated request of the third had a wrong response.
    assert_eq!((report.answered, report.errors.status), (5, 1), "{report}");
    assert_eq!(report.errors.total(), 1, "{report}");
    until("six cuts", || cuts.lock().unwrap().len() == 6);
    assert_eq!(*cuts.lock().unwrap(), [128; 6]);
}

#[test]
fn a_server_that_fails_after_a_dropped_body_is_detected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        drop(listener);
        let _ = std::io::copy(&mut socket, &mut std::io::sink());
    });
    let mut config = Config::new(vec![Target::get(&url).unwrap()]);
    config.connections = 1;
    post(&mut config, "hello", SendMode::DropAfterBytes(2));
    config.until = Until::Requests(1);
    let report = load(&config).report;
    // Connections accepted before the listener closed are reset.
    let found_out = report.errors.connect + report.errors.reset;
    assert_eq!((report.answered, found_out), (0, 1), "{report}");
}

#[test]
fn connections_at_the_barrier_wait_for_each_other() {
    for fresh in [true, false] {
        let answered = Arc::new(AtomicU64::new(0));
        let early = Arc::new(AtomicU64::new(0));
        let (counted, noted) = (Arc::clone(&answered), Arc::clone(&early));
        let server = Server::new(move |call| {
            let before = call.number / 8 * 8;
            if counted.load(Ordering::SeqCst) < before {
                noted.fetch_add(1, Ordering::SeqCst);
            }
            if call.number % 8 == 3 {
                sleep(Duration::from_millis(30));
            }
            counted.fetch_add(1, Ordering::SeqCst);
            if fresh {
                Reply::Last(HELLO)
            } else {
                Reply::Send(HELLO)
            }
        });
        let mut config = server.config(40);
        config.connections = 8;
        config.barrier = true;
        config.requests_per_connection = fresh.then_some(1);
        let report = load(&config).report;
        assert_eq!(
            (report.answered, report.errors.total()),
            (40, 0),
            "{report}"
        );
        assert_eq!(early.load(Ordering::SeqCst), 0, "fresh: {fresh}");
    }
}

#[test]
fn the_barrier_releases_when_some_requests_fail() {
    let server = Server::new(|call| match call.number % 8 {
        3 => Reply::Reset,
        _ => Reply::Last(HELLO),
    });
    let mut config = server.config(32);
    config.connections = 8;
    config.barrier = true;
    config.requests_per_connection = Some(1);
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.reset), (28, 4), "{report}");
}

#[test]
fn refusals_are_counted_apart() {
    const BUSY: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let server = || {
        Server::new(|call| match call.number % 10 {
            2 => Reply::Last(BUSY),
            // On a new connection, since the last one was closed.
            3 => Reply::Reset,
            _ => Reply::Send(HELLO),
        })
    };
    let mut config = server().config(40);
    config.refusal_statuses = vec![503];
    let report = load(&config).report;
    assert_eq!((report.answered, report.refused), (32, 8), "{report}");
    assert_eq!(report.errors.total(), 0, "{report}");
    let report = load(&server().config(40)).report;
    assert_eq!((report.refused, report.errors.total()), (0, 8), "{report}");
    // Nothing listens.
    config.targets[0].port = refusing_port();
    config.requests_per_connection = Some(1);
    config.until = Until::Requests(5);
    let report = load(&config).report;
    assert_eq!((report.refused, report.errors.total()), (5, 0), "{report}");
}

#[test]
fn headers_and_coded_bodies_are_verified() {
    const MOVED: &[u8] = b"HTTP/1.1 302 Found\r\nLocation: /target\r\nContent-Length: 0\r\n\r\n";
    const ASTRAY: &[u8] = b"HTTP/1.1 302 Found\r\nLocation: /targets\r\nContent-Length: 0\r\n\r\n";
    let server = Server::new(|call| Reply::Send(if call.number == 3 { ASTRAY } else { MOVED }));
    let mut config = server.config(10);
    config.targets[0].expect = Expect {
        status: Some(302),
        fields: vec![("location".into(), b"/target"[..].into())],
        ..Expect::default()
    };
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.content), (9, 1), "{report}");
    assert!(report.first_failure.unwrap().contains("location"));
}

#[test]
fn a_connection_repeats_its_target_and_the_next_one_takes_the_next_target() {
    // The path of each request, and the bytes after it, by connection: a path is all that differs.
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&seen);
    let server = Server::new(move |call| {
        let text = String::from_utf8_lossy(call.request).into_owned();
        log.lock().unwrap().push(text);
        Reply::Send(HELLO)
    });
    let mut config = server.config(18);
    let target = |path: &str| Target::get(&format!("{}{path}", server.url())).unwrap();
    config.targets = ["a", "b", "c"].map(target).into();
    config.mix = Mix::PerConnection;
    config.requests_per_connection = Some(3);
    config.says_close = false;
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (18, 0));
    let paths = || -> String {
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert!(
            seen.iter().all(|text| !text.contains("onnection")),
            "{seen:?}"
        );
        seen.iter().filter_map(|text| text.chars().nth(5)).collect()
    };
    assert_eq!(paths(), "aaabbbcccaaabbbccc");
    assert_eq!(server.accepted.load(Ordering::SeqCst), 6);
    // Several connections begin with different targets, and keep them.
    config.connections = 3;
    config.requests_per_connection = None;
    let report = load(&config).report;
    assert_eq!((report.answered, report.reconnects), (18, 0));
    let paths = paths();
    assert!("abc".chars().all(|path| paths.contains(path)), "{paths}");
}
