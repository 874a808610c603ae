//! Locks and wake-ups of threads, with random schedules (`support/schedule.rs`). `tests/loom` has what needs no lock.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::MAX_WAIT;
use crate::support::blocking::{
    assert_all_idle, begin, body_of, exchange, h2_client, h2_client_of_one_conn, with_pool,
};
use crate::support::calls::{get, request, route};
use crate::support::schedule::{Chance, with_seeds};
use crate::support::scripted::server_with;
use bytes::Bytes;
use towline_io::client::{BlockingClient, Body, CallOptions, PoolLimits, Route, Timeouts};
use towline_io::serve::access_log::{Sink, Writer};
use towline_io::{Engine, EngineConfig};

/// Every line that the writer has taken is in a file, whole, once and in the order of its thread, while others rotate the
/// file and close the writer; the rest is counted as lost.
#[test]
fn lines_of_the_access_log_are_written_or_counted() {
    with_seeds(20, |seed| {
        let folder =
            std::env::temp_dir().join(format!("towline-stress-{}-{seed}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        let small = 64 << Chance::new(seed, 9).below(8);
        let writer = Writer::new(Sink::File(path.clone()), small).unwrap();
        let mut taken: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let reported = AtomicU64::new(0);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let (writer, reported) = (&writer, &reported);
                    scope.spawn(move || {
                        let mut chance = Chance::new(seed, thread);
                        let push =
                            |number: &u64| writer.push(format!("{thread} {number}\n").as_bytes());
                        let mut taken = Vec::new();
                        for number in 0..40 {
                            chance.pause();
                            taken.extend(Some(number).filter(push));
                            reported.fetch_add(writer.take_unreported(), SeqCst);
                        }
                        taken
                    })
                })
                .collect();
            let mut chance = Chance::new(seed, 4);
            for turn in 0..chance.below(4) {
                chance.pause();
                let _ = fs::rename(&path, folder.join(format!("log.{turn}")));
                writer.reopen();
            }
            if chance.below(2) == 0 {
                writer.close(MAX_WAIT);
            }
            for (thread, number) in (0..).zip(threads) {
                taken.insert(thread, number.join().unwrap());
            }
        });
        writer.close(MAX_WAIT);
        let mut written: BTreeMap<u64, Vec<u64>> =
            (0..3).map(|thread| (thread, Vec::new())).collect();
        for file in fs::read_dir(&folder).unwrap() {
            for line in fs::read_to_string(file.unwrap().path()).unwrap().lines() {
                let (thread, number) = line.split_once(' ').expect("a torn line");
                written
                    .get_mut(&thread.parse().unwrap())
                    .unwrap()
                    .push(number.parse().unwrap());
            }
        }
        for numbers in written.values_mut() {
            // The files of a rotation come in any order.
            numbers.sort_unstable();
        }
        assert_eq!(written, taken);
        reported.fetch_add(writer.take_unreported(), SeqCst);
        let lost = 120 - taken.values().map(Vec::len).sum::<usize>() as u64;
        assert_eq!((writer.dropped(), reported.into_inner()), (lost, lost));
        fs::remove_dir_all(&folder).unwrap();
    });
}

/// No wake-up of an engine that blocks is lost.
#[test]
fn wake_ups_of_an_engine_arrive() {
    with_seeds(20, |seed| {
        let mut engine = Engine::<()>::new(EngineConfig::default()).unwrap();
        let waker = engine.waker();
        let [asked, seen] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let turns = {
            let (asked, seen, stop) = (Arc::clone(&asked), Arc::clone(&seen), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    engine.turn_start(None).unwrap();
                    seen.store(asked.load(SeqCst), SeqCst);
                    engine.turn_end();
                }
            })
        };
        thread::scope(|scope| {
            for thread in 0..3 {
                let (waker, asked, seen) = (&waker, &asked, &seen);
                scope.spawn(move || {
                    let mut chance = Chance::new(seed, thread);
                    for _ in 0..100 {
                        let mine = asked.fetch_add(1, SeqCst) + 1;
                        chance.pause();
                        waker.wake().unwrap();
                        let started = Instant::now();
                        while seen.load(SeqCst) < mine {
                            assert!(started.elapsed() < 10 * MAX_WAIT, "the engine sleeps");
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        stop.store(true, SeqCst);
        waker.wake().unwrap();
        turns.join().unwrap();
    });
}

/// A server over HTTP/1 that closes connections at random: at once, instead of a response, or after one.
struct CarelessServer {
    route: Arc<Route>,
    stop: Arc<AtomicBool>,
    port: u16,
}

impl CarelessServer {
    fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                if is_stopped.load(SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    thread::spawn(move || {
                        serve_carelessly(stream, Chance::new(seed, 100 + number));
                    });
                }
            }
        });
        Self {
            route: Arc::new(Route::plain("127.0.0.1", port)),
            stop,
            port,
        }
    }
}

impl Drop for CarelessServer {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve_carelessly(mut stream: TcpStream, mut chance: Chance) {
    let mut bytes = [0; 4096];
    while chance.below(12) > 0 && stream.read(&mut bytes).is_ok_and(|n| n > 0) {
        chance.pause();
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        if chance.below(12) == 0 || stream.write_all(response).is_err() {
            return;
        }
    }
}

fn random_timeouts(chance: &mut Chance) -> CallOptions {
    let total = (chance.below(4) == 0).then(|| Duration::from_micros(chance.below(3000)));
    CallOptions {
        timeouts: Timeouts {
            total,
            ..Timeouts::default()
        },
        ..CallOptions::default()
    }
}

fn small_pool() -> BlockingClient {
    with_pool(PoolLimits {
        max_connections_per_host: 2,
        max_keepalive: 1,
        ..PoolLimits::default()
    })
}

/// Calls end, by a response, a failure or their timeout, and give back what they had.
#[test]
fn calls_over_http1_end_and_leave_nothing() {
    with_seeds(20, |seed| {
        let server = CarelessServer::start(seed);
        let client = small_pool();
        thread::scope(|scope| {
            for thread in 0..6 {
                let (client, route) = (&client, &server.route);
                scope.spawn(move || {
                    let mut chance = Chance::new(seed, thread);
                    for _ in 0..15 {
                        let options = random_timeouts(&mut chance);
                        if let Ok(mut call) = begin(client, get(route, "/"), options) {
                            chance.pause();
                            if chance.below(3) > 0
                                && let Ok(body) = body_of(&mut call)
                            {
                                assert_eq!(body, b"ok");
                            }
                        }
                    }
                });
            }
            let mut chance = Chance::new(seed, 7);
            if chance.below(3) == 0 {
                (0..20).for_each(|_| chance.pause());
                client.close();
            }
        });
        let status = client.status();
        assert_eq!((status.active, status.waiting, status.dialling), (0, 0, 0));
        assert!(status.idle <= 1, "{status:?}");
    });
}

/// Calls over a connection that threads share, one of which polls for all, end as well.
#[test]
fn calls_over_http2_end_and_leave_nothing() {
    with_seeds(20, |seed| {
        let server = server_with(3);
        let route = route(server.addr);
        let is_one = seed % 2 == 0;
        let client = if is_one {
            h2_client_of_one_conn()
        } else {
            h2_client()
        };
        thread::scope(|scope| {
            for thread in 0..6 {
                let (client, route) = (&client, &route);
                scope.spawn(move || {
                    let mut chance = Chance::new(seed, thread);
                    for number in 0..15 {
                        let text = format!("{thread}/{number}");
                        let body = Body::Bytes(Bytes::from(text.clone()));
                        let (call, expected) = match chance.below(3) {
                            0 => (get(route, "/bytes?n=100000"), None),
                            1 => (get(route, "/delay?ms=1"), None),
                            _ => (request(route, "POST", "/echo", body), Some(text)),
                        };
                        let Ok(mut call) = begin(client, call, random_timeouts(&mut chance)) else {
                            continue;
                        };
                        chance.pause();
                        if chance.below(3) > 0
                            && let Ok(body) = body_of(&mut call)
                            && let Some(text) = expected
                        {
                            assert_eq!(body, text.into_bytes());
                        }
                    }
                });
            }
        });
        let (status, body, _) = exchange(&client, get(&route, "/")).unwrap();
        assert_eq!((status, &body[..]), (200, &b"alive\r\n"[..]));
        if is_one {
            assert_all_idle(&client, 1);
        }
    });
}
