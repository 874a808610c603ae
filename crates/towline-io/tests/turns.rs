//! The engine inside another event loop, which watches only its descriptor.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::support::routes::{Jobs, State, serve};
use crate::support::{MAX_WAIT, get, post, read_response, read_to_end, with_timeouts};
use towline_io::serve::metrics::Slots;
use towline_io::{ConnConfig, ConnId, Drain, Engine, EngineConfig, Listener, WaitOutcome};
use towline_proto::{BufferPool, Limits};

const CLOSE: &str = "connection: close";

fn engine(config: EngineConfig, limits: Limits) -> (Engine<Jobs>, std::net::SocketAddr) {
    let mut engine = Engine::new(config).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 2048).unwrap();
    let addr = listener.local_addr().unwrap().inet().unwrap();
    engine
        .add_listener(listener, Arc::new(ConnConfig::plain(limits)))
        .unwrap();
    (engine, addr)
}

/// Whether the descriptor became readable within `time`.
fn readable(fd: RawFd, time: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: an initialized pollfd that outlives the call.
    let result = unsafe { libc::poll(&raw mut entry, 1, time.as_millis() as libc::c_int) };
    result == 1
}

/// Runs one turn as an event loop does; returns the number of connections served.
fn turn(engine: &mut Engine<Jobs>) -> usize {
    let mut served = 0;
    engine.turn_start(Some(Duration::ZERO)).unwrap();
    while let Some(id) = engine.next_ready() {
        serve(engine.conn(id).unwrap(), &mut State::default());
        engine.flush_and_rearm(id);
        served += 1;
    }
    engine.turn_end();
    served
}

/// Runs turns while the descriptor is readable; returns the number of connections that each served.
fn turns_until(
    engine: &mut Engine<Jobs>,
    mut done: impl FnMut(&Engine<Jobs>) -> bool,
) -> Vec<usize> {
    let (mut served, start) = (Vec::new(), Instant::now());
    while !done(engine) {
        assert!(
            start.elapsed() < MAX_WAIT,
            "the descriptor did not become readable: {served:?}"
        );
        if readable(engine.as_raw_fd(), Duration::from_millis(100)) {
            served.push(turn(engine));
        }
    }
    served
}

/// Whether a response can be read.
fn has_response(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let waits = matches!(stream.peek(&mut [0; 16]), Ok(n) if n > 0);
    stream.set_nonblocking(false).unwrap();
    waits
}

fn connections(addr: std::net::SocketAddr, n: usize) -> Vec<TcpStream> {
    (0..n)
        .map(|_| with_timeouts(TcpStream::connect(addr).unwrap()))
        .collect()
}

#[test]
fn a_turn_is_bounded_and_no_connection_starves() {
    let config = EngineConfig {
        turn_time: Duration::from_secs(5),
        ..EngineConfig::default()
    };
    let (mut engine, addr) = engine(config, Limits::server());
    let mut streams = connections(addr, 100);
    turns_until(&mut engine, |engine| engine.len() == 100);
    for stream in &mut streams {
        stream.write_all(&get("/")).unwrap();
    }
    let served = turns_until(&mut engine, |_| streams.iter().all(has_response));
    assert!(served.iter().all(|&n| n <= 64), "{served:?}");
    assert!(served.iter().sum::<usize>() == 100, "{served:?}");
}

#[test]
fn a_turn_that_ran_out_of_time_announces_the_rest() {
    let config = EngineConfig {
        turn_time: Duration::ZERO,
        ..EngineConfig::default()
    };
    let (mut engine, addr) = engine(config, Limits::server());
    let mut streams = connections(addr, 20);
    turns_until(&mut engine, |engine| engine.len() == 20);
    for stream in &mut streams {
        stream.write_all(&get("/")).unwrap();
    }
    let mut answered = 0;
    while answered < 20 {
        // There are no socket events: only the engine's own waker causes further turns.
        assert!(
            readable(engine.as_raw_fd(), MAX_WAIT),
            "{answered} answered"
        );
        let served = turn(&mut engine);
        assert!(served <= 1);
        answered += served;
    }
    for stream in &mut streams {
        assert_eq!(read_response(stream).status, 200);
    }
}

#[test]
fn an_idle_engine_does_not_make_the_descriptor_readable() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    let mut streams = connections(addr, 3);
    turns_until(&mut engine, |engine| engine.len() == 3);
    // Neither half a request nor a completed one causes a further turn.
    for (stream, wire) in streams
        .iter_mut()
        .zip([&get("/")[..], b"GET / HTTP/1.1\r\nho", b"\r"])
    {
        stream.write_all(wire).unwrap();
    }
    while readable(engine.as_raw_fd(), Duration::from_millis(50)) {
        turn(&mut engine);
    }
    assert!(!readable(engine.as_raw_fd(), Duration::from_millis(200)));
}

#[test]
fn deadlines_make_the_descriptor_readable() {
    let header_timeout = Some(Duration::from_millis(120));
    let limits = Limits {
        header_timeout,
        ..Limits::server()
    };
    let (mut engine, addr) = engine(EngineConfig::default(), limits);
    let mut stream = connections(addr, 1).remove(0);
    turns_until(&mut engine, |engine| engine.len() == 1);
    let start = Instant::now();
    turns_until(&mut engine, Engine::is_empty);
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert!(start.elapsed() < MAX_WAIT / 2);
    read_to_end(&mut stream);
}

#[test]
fn a_response_between_turns_is_sent_at_once() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    let mut stream = connections(addr, 1).remove(0);
    stream
        .write_all(&[get("/delay?us=1"), get("/")].concat())
        .unwrap();
    let mut state = State::default();
    let mut exchange: Option<ConnId> = None;
    while exchange.is_none() {
        assert!(readable(engine.as_raw_fd(), MAX_WAIT));
        engine.turn_start(Some(Duration::ZERO)).unwrap();
        while let Some(id) = engine.next_ready() {
            serve(engine.conn(id).unwrap(), &mut state);
            engine.flush_and_rearm(id);
            exchange = state.next().is_some().then_some(id);
        }
        engine.turn_end();
    }
    crate::support::routes::respond_delayed(&mut engine, &mut state);
    assert_eq!(read_response(&mut stream).status, 200);
    assert_eq!(read_response(&mut stream).status, 200);
}

#[test]
fn another_thread_can_wake_the_engine() {
    let (mut engine, _addr) = engine(EngineConfig::default(), Limits::server());
    while readable(engine.as_raw_fd(), Duration::from_millis(20)) {
        turn(&mut engine);
    }
    let remote = engine.waker();
    let thread = std::thread::spawn(move || remote.wake().unwrap());
    assert!(readable(engine.as_raw_fd(), MAX_WAIT));
    thread.join().unwrap();
    engine.turn_start(None).unwrap();
    engine.turn_end();
    assert!(!readable(engine.as_raw_fd(), Duration::from_millis(50)));
}

#[test]
fn draining_closes_idle_connections_and_lets_others_finish() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    let mut streams = connections(addr, 2);
    turns_until(&mut engine, |engine| engine.len() == 2);
    let mut busy = streams.remove(0);
    // A request with an incomplete body is in flight.
    let request = post("/echo", b"abcdef");
    let (first, second) = request.split_at(request.len() - 3);
    busy.write_all(first).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    while readable(engine.as_raw_fd(), Duration::from_millis(50)) {
        turn(&mut engine);
    }
    engine.stop_listening();
    engine.drain(Drain::CloseIdle);
    turns_until(&mut engine, |engine| engine.len() == 1);
    assert!(TcpStream::connect(addr).is_err(), "it still listens");
    busy.write_all(second).unwrap();
    let reading = std::thread::spawn(move || read_response(&mut busy).body);
    turns_until(&mut engine, |_| reading.is_finished());
    assert_eq!(reading.join().unwrap(), b"abcdef");
    turns_until(&mut engine, Engine::is_empty);
}

#[test]
fn an_idle_connection_may_send_one_more_request_while_draining() {
    let limits = Limits {
        drain_idle_timeout: Duration::from_millis(400),
        ..Limits::server()
    };
    let (mut engine, addr) = engine(EngineConfig::default(), limits);
    let mut streams = connections(addr, 3);
    turns_until(&mut engine, |engine| engine.len() == 3);
    for stream in &mut streams {
        stream.write_all(&get("/")).unwrap();
    }
    let reading: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            std::thread::spawn(move || {
                let response = read_response(&mut stream);
                assert!(!response.head.contains(CLOSE));
                stream
            })
        })
        .collect();
    turns_until(&mut engine, |_| {
        reading.iter().all(std::thread::JoinHandle::is_finished)
    });
    let mut streams: Vec<_> = reading
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    // One belongs to another thread when the drain begins.
    let id = engine.connection_ids()[2];
    let out = engine.check_out(id).unwrap();
    let start = Instant::now();
    engine.drain(Drain::Graceful);
    engine.check_in(id, out);
    let silent = streams.remove(1);
    let reading: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            stream.write_all(&get("/")).unwrap();
            std::thread::spawn(move || read_response(&mut stream).head)
        })
        .collect();
    turns_until(&mut engine, |engine| engine.len() == 1);
    assert!(start.elapsed() < Duration::from_millis(350));
    for thread in reading {
        assert!(thread.join().unwrap().contains(CLOSE));
    }
    turns_until(&mut engine, Engine::is_empty);
    assert!(start.elapsed() >= Duration::from_millis(350));
    drop(silent);
}

#[test]
fn a_connection_accepted_while_draining_ends_after_one_response() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    engine.drain(Drain::Graceful);
    let mut late = connections(addr, 1).remove(0);
    late.write_all(&get("/")).unwrap();
    let reading = std::thread::spawn(move || read_response(&mut late).head);
    turns_until(&mut engine, |_| reading.is_finished());
    assert!(reading.join().unwrap().contains(CLOSE));
    turns_until(&mut engine, Engine::is_empty);
}

#[test]
fn requests_sent_before_a_drain_get_responses() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    // One in the kernel's queue, one accepted, one persistent; no request has been read.
    let mut kept = connections(addr, 1).remove(0);
    kept.write_all(&get("/")).unwrap();
    turns_until(&mut engine, |engine| engine.len() == 1);
    kept.set_nonblocking(true).unwrap();
    turns_until(
        &mut engine,
        |_| matches!(kept.peek(&mut [0; 512]), Ok(n) if n > 0),
    );
    kept.set_nonblocking(false).unwrap();
    assert_eq!(read_response(&mut kept).status, 200);
    let accepted = connections(addr, 1).remove(0);
    turns_until(&mut engine, |engine| engine.len() == 2);
    let queued = connections(addr, 1).remove(0);
    let mut streams = [kept, accepted, queued];
    for stream in &mut streams {
        stream.write_all(&get("/")).unwrap();
    }
    std::thread::sleep(Duration::from_millis(30));
    engine.stop_listening();
    engine.drain(Drain::CloseIdle);
    turns_until(&mut engine, Engine::is_empty);
    for stream in &mut streams {
        assert_eq!(read_response(stream).status, 200);
    }
}

#[test]
fn workers_that_share_a_listener_share_its_connections() {
    let slots = Slots::private(2);
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 2048).unwrap();
    let addr = listener.local_addr().unwrap().inet().unwrap();
    let fd = listener.into_raw_fd();
    let mut engines: Vec<Engine<Jobs>> = (0..2)
        .map(|index| {
            let slot = slots.handle(index).unwrap();
            slot.begin(7, 1);
            let service = ConnConfig {
                meter: Some(slot),
                ..ConnConfig::plain(Limits::server())
            };
            // SAFETY: the descriptor stays open; each engine gets a copy.
            let own = unsafe { BorrowedFd::borrow_raw(fd) }
                .try_clone_to_owned()
                .unwrap();
            let listener = Listener::inherited(own.into_raw_fd(), 2048).unwrap();
            let mut engine = Engine::new(EngineConfig::default()).unwrap();
            engine.add_listener(listener, Arc::new(service)).unwrap();
            engine
        })
        .collect();
    let mut streams = Vec::new();
    for n in 1..=40 {
        streams.extend(connections(addr, 1));
        let start = Instant::now();
        // The first worker always runs first.
        while engines.iter().map(Engine::len).sum::<usize>() < n {
            assert!(start.elapsed() < MAX_WAIT, "{n} is parked");
            for engine in &mut engines {
                if readable(engine.as_raw_fd(), Duration::ZERO) {
                    turn(engine);
                }
            }
        }
    }
    let shares: Vec<usize> = engines.iter().map(Engine::len).collect();
    assert!(shares.iter().all(|&n| n >= 10), "{shares:?}");
    // A worker without turns must not delay the others for long.
    streams.extend(connections(addr, 20));
    turns_until(&mut engines[0], |engine| engine.len() == shares[0] + 20);
}

#[test]
fn a_new_connection_gets_a_short_time_to_send_while_draining() {
    let limits = Limits {
        first_request_timeout: Duration::from_millis(300),
        ..Limits::server()
    };
    let (mut engine, addr) = engine(EngineConfig::default(), limits);
    let mut streams = connections(addr, 2);
    turns_until(&mut engine, |engine| engine.len() == 2);
    let (start, mut sent) = (Instant::now(), false);
    engine.drain(Drain::CloseIdle);
    turns_until(&mut engine, |engine| {
        if !std::mem::replace(&mut sent, true) {
            streams[0].write_all(&get("/")).unwrap();
        }
        engine.is_empty()
    });
    assert_eq!(read_response(&mut streams[0]).status, 200);
    assert!(
        start.elapsed() >= Duration::from_millis(250),
        "the connection without a request was closed"
    );
}

#[test]
fn a_connection_works_on_another_thread_and_comes_back() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    let mut stream = connections(addr, 1).remove(0);
    let request = post("/upload", b"0123456789");
    let (first, second) = request.split_at(request.len() - 4);
    stream.write_all(first).unwrap();
    let mut out = None;
    while out.is_none() {
        assert!(readable(engine.as_raw_fd(), MAX_WAIT));
        engine.turn_start(Some(Duration::ZERO)).unwrap();
        while let Some(id) = engine.next_ready() {
            let conn = engine.check_out(id).unwrap();
            assert!(engine.conn(id).is_none() && engine.check_out(id).is_none());
            out = Some((id, conn));
        }
        engine.turn_end();
    }
    let (id, mut conn) = out.unwrap();
    let (sender, waited) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut buffers = BufferPool::new(64 * 1024, 1);
        let mut state = State::default();
        serve(&mut conn, &mut state);
        // There is no further input for now.
        let soon = Some(Instant::now() + Duration::from_millis(50));
        assert_eq!(
            conn.read_blocking(&mut buffers, soon).unwrap(),
            WaitOutcome::TimedOut
        );
        sender.send(()).unwrap();
        assert_eq!(
            conn.read_blocking(&mut buffers, None).unwrap(),
            WaitOutcome::Done
        );
        serve(&mut conn, &mut state);
        assert_eq!(conn.flush_blocking(None).unwrap(), WaitOutcome::Done);
        conn
    });
    waited.recv_timeout(MAX_WAIT).unwrap();
    stream.write_all(second).unwrap();
    assert_eq!(read_response(&mut stream).body, b"10");
    let conn = thread.join().unwrap();
    // Bytes that arrive while it is checked out are not lost.
    stream.write_all(&get("/")).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    while readable(engine.as_raw_fd(), Duration::from_millis(20)) {
        turn(&mut engine);
    }
    engine.check_in(id, conn);
    turns_until(&mut engine, |_| has_response(&stream));
    assert_eq!(read_response(&mut stream).status, 200);
}

#[test]
fn ids_of_closed_connections_are_invalid() {
    let (mut engine, addr) = engine(EngineConfig::default(), Limits::server());
    let first = connections(addr, 1).remove(0);
    turns_until(&mut engine, |engine| engine.len() == 1);
    let id = engine.connection_ids()[0];
    drop(first);
    turns_until(&mut engine, Engine::is_empty);
    let mut second = connections(addr, 1).remove(0);
    turns_until(&mut engine, |engine| engine.len() == 1);
    assert!(engine.conn(id).is_none());
    engine.flush_and_rearm(id);
    engine.abort(id);
    second.write_all(&get("/")).unwrap();
    turns_until(&mut engine, |_| has_response(&second));
    assert_eq!(read_response(&mut second).status, 200);
}

#[test]
fn a_connection_that_always_has_more_to_do_is_serviced_once_per_turn() {
    let config = EngineConfig {
        turn_time: Duration::from_secs(5),
        service_time: Duration::ZERO,
        ..EngineConfig::default()
    };
    let (mut engine, addr) = engine(config, Limits::server());
    let mut busy = connections(addr, 1).remove(0);
    turns_until(&mut engine, |engine| engine.len() == 1);
    let id = engine.connection_ids()[0];
    busy.write_all(&get("/")).unwrap();
    let mut others = connections(addr, 3);
    for other in &mut others {
        other.write_all(&get("/")).unwrap();
    }
    let mut visits = Vec::new();
    while !others.iter().all(has_response) {
        assert!(readable(engine.as_raw_fd(), MAX_WAIT), "{visits:?}");
        engine.turn_start(Some(Duration::ZERO)).unwrap();
        let mut served = Vec::new();
        while let Some(next) = engine.next_ready() {
            serve(engine.conn(next).unwrap(), &mut State::default());
            assert!(engine.is_service_over());
            if next == id {
                engine.requeue(id);
            }
            engine.flush_and_rearm(next);
            served.push(next);
        }
        engine.turn_end();
        assert!(
            served.iter().filter(|&&one| one == id).count() <= 1,
            "{served:?}"
        );
        visits.push(served.len());
    }
    assert!(visits.len() < 50, "{visits:?}");
}
