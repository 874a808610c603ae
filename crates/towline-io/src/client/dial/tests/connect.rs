//! Lookups and connection attempts.

use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::SockRef;

use super::*;
use crate::client::dial::resolve::LookupError;

/// An address that neither accepts nor refuses connections: a listener whose queue is full.
struct Blackhole {
    addr: SocketAddr,
    _sockets: Vec<Socket>,
}

impl Blackhole {
    fn new(at: &str) -> Self {
        let at: SocketAddr = at.parse().unwrap();
        let listener = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
        listener.bind(&at.into()).unwrap();
        listener.listen(1).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let mut sockets = vec![listener];
        for _ in 0..64 {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
            let full = socket
                .connect_timeout(&addr.into(), Duration::from_secs(1))
                .is_err();
            sockets.push(socket);
            if full {
                break;
            }
        }
        Self {
            addr,
            _sockets: sockets,
        }
    }
}

#[test]
fn both_address_families_connect_with_the_socket_options() {
    for client in CLIENTS {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (listener, addr) = listener(at);
            let established = dial(client, &plain(addr), &DialConfig::default()).unwrap();
            assert_eq!(established.remote, PeerAddr::Inet(addr));
            assert_eq!(
                (established.timings.dns, established.timings.tls),
                (None, None)
            );
            let (_, peer) = listener.accept().unwrap();
            let socket = SockRef::from(established.transport.socket().unwrap());
            assert_eq!(socket.local_addr().unwrap().as_socket(), Some(peer));
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(
                socket.tcp_keepalive_time().unwrap(),
                Duration::from_secs(60)
            );
            assert_eq!(
                socket.tcp_keepalive_interval().unwrap(),
                Duration::from_secs(30)
            );
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 5);
        }
    }
}

#[test]
fn a_name_is_looked_up() {
    for client in CLIENTS {
        let (listener, addr) = listener("127.0.0.1:0");
        let route = Route::plain("localhost", addr.port());
        let established = dial(client, &route, &DialConfig::default()).unwrap();
        assert_eq!(established.remote, PeerAddr::Inet(addr));
        assert!(established.timings.dns.is_some());
        listener.accept().unwrap();
    }
}

#[test]
fn a_refused_attempt_starts_the_next_at_once() {
    for client in CLIENTS {
        let (_listener, good) = listener("127.0.0.1:0");
        let mut config = with_overrides("host", &[closed_port("[::1]:0"), good]);
        config.happy_eyeballs_delay = Duration::from_secs(10);
        let start = Instant::now();
        let established = dial(client, &Route::plain("host", 1), &config).unwrap();
        assert_eq!(established.remote, PeerAddr::Inet(good));
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn the_next_address_wins_when_the_first_does_not_respond() {
    let hole = Blackhole::new("127.0.0.1:0");
    for client in CLIENTS {
        let (_listener, good) = listener("[::1]:0");
        let mut config = with_overrides("host", &[hole.addr, good]);
        config.happy_eyeballs_delay = Duration::from_millis(100);
        let start = Instant::now();
        let established = dial(client, &Route::plain("host", 1), &config).unwrap();
        assert_eq!(established.remote, PeerAddr::Inet(good));
        let spent = start.elapsed();
        assert!(spent >= Duration::from_millis(100), "{spent:?}");
        assert!(established.timings.connect >= Duration::from_millis(100));
    }
}

#[test]
fn the_error_names_every_address_that_failed() {
    let closed = [closed_port("[::1]:0"), closed_port("127.0.0.1:0")];
    let error = refused(&Route::plain("host", 80), &with_overrides("host", &closed));
    assert_eq!(
        (error.kind, error.phase),
        (DialErrorKind::Connect, DialPhase::Connect)
    );
    let [v6, v4] = closed;
    assert_eq!(
        error.message,
        format!("cannot connect to host:80: {v6}: Connection refused; {v4}: Connection refused")
    );
    assert_eq!(error.os_error, Some(libc::ECONNREFUSED));
    let error = refused(&plain(v4), &DialConfig::default());
    assert_eq!(
        error.message,
        format!("cannot connect to {v4}: Connection refused")
    );
}

#[test]
fn an_address_that_does_not_respond_is_a_timeout() {
    let hole = Blackhole::new("127.0.0.1:0");
    let closed = closed_port("[::1]:0");
    for client in CLIENTS {
        let mut config = with_overrides("host", &[closed, hole.addr]);
        config.connect_timeout = Some(Duration::from_millis(200));
        let start = Instant::now();
        let Err(error) = dial(client, &Route::plain("host", 80), &config) else {
            panic!("connected to a black hole");
        };
        let spent = start.elapsed();
        assert!(
            spent >= Duration::from_millis(200) && spent < MAX_WAIT / 2,
            "{spent:?}"
        );
        assert_eq!(
            (error.kind, error.phase),
            (DialErrorKind::Timeout, DialPhase::Connect)
        );
        let expected = format!(
            "no connection to host:80 within 0.2 s: no response from {}; {closed}: Connection refused",
            hole.addr
        );
        assert_eq!(error.message, expected);
    }
}

#[test]
fn dropping_a_dial_closes_its_sockets() {
    let hole = Blackhole::new("127.0.0.1:0");
    let config = Arc::new(with_overrides("host", &[hole.addr, hole.addr]));
    let route = Arc::new(Route::plain("host", 80));
    let start = Instant::now();
    let mut dial = Dial::start(route, &config, start);
    for millis in [0, 250] {
        assert!(matches!(
            dial.advance(start + Duration::from_millis(millis)),
            Progress::Pending
        ));
    }
    let mut watches = Vec::new();
    dial.fds(&mut watches);
    assert_eq!(watches.len(), 2);
    assert_ne!(watches[0].serial, watches[1].serial);
    let name = |fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    let before: Vec<_> = watches.iter().map(|watch| name(watch.fd)).collect();
    assert!(before.iter().all(Option::is_some));
    drop(dial);
    for (watch, before) in watches.iter().zip(before) {
        // Another test may reuse the descriptor number meanwhile, never the same socket.
        assert_ne!(name(watch.fd), before);
    }
}

#[test]
fn lookup_failures_and_timeouts_are_reported() {
    static SLOW: AtomicUsize = AtomicUsize::new(0);
    let with = |lookup| DialConfig {
        resolver: Arc::new(Resolver::with(lookup)),
        connect_timeout: Some(MAX_WAIT),
        ..DialConfig::default()
    };
    let route = Route::plain("exmaple.com", 80);
    let error = refused(&route, &with(|_| Err(LookupError::NoSuchHost)));
    assert_eq!(
        (error.kind, error.phase),
        (DialErrorKind::Dns, DialPhase::Resolve)
    );
    assert_eq!(
        error.message,
        "cannot resolve \"exmaple.com\": no such host"
    );
    let error = refused(&route, &with(|_| Err(LookupError::TryAgain)));
    let expected =
        "cannot resolve \"exmaple.com\": the name server did not answer; try again later";
    assert_eq!(error.message, expected);
    let error = refused(&route, &with(|_| panic!("on purpose")));
    assert_eq!(error.kind, DialErrorKind::Dns);
    let mut slow = with(|_| {
        thread::sleep(Duration::from_secs(5));
        SLOW.fetch_add(1, Ordering::Relaxed);
        Err(LookupError::NoSuchHost)
    });
    slow.connect_timeout = Some(Duration::from_millis(150));
    for client in CLIENTS {
        let Err(error) = dial(client, &route, &slow) else {
            panic!("resolved");
        };
        assert_eq!(
            (error.kind, error.phase),
            (DialErrorKind::Timeout, DialPhase::Resolve)
        );
        assert!(error.message.contains("within 0.15 s"), "{error}");
        assert_eq!(SLOW.load(Ordering::Relaxed), 0, "waited for the lookup");
    }
}

#[test]
fn a_dial_binds_to_the_local_address() {
    let (listener, addr) = listener("127.0.0.1:0");
    let mut route = plain(addr);
    route.local_address = Some("127.0.0.2".parse().unwrap());
    dial(Client::Blocking, &route, &DialConfig::default()).unwrap();
    assert_eq!(listener.accept().unwrap().1.ip().to_string(), "127.0.0.2");
    route.local_address = Some("::1".parse().unwrap());
    let error = refused(&route, &DialConfig::default());
    assert!(
        error
            .message
            .ends_with("the local address is of the other family"),
        "{error}"
    );
}

#[test]
fn unix_sockets_connect_and_missing_ones_are_reported() {
    let path = std::env::temp_dir().join(format!("towline-dial-{}", std::process::id()));
    let mut route = Route::plain("host", 80);
    route.uds = Some(path.clone());
    let error = refused(&route, &DialConfig::default());
    let expected = format!(
        "cannot connect to {}: No such file or directory",
        path.display()
    );
    assert_eq!(
        (error.kind, error.message),
        (DialErrorKind::Connect, expected)
    );
    let listener = UnixListener::bind(&path).unwrap();
    for client in CLIENTS {
        let mut established = dial(client, &route, &DialConfig::default()).unwrap();
        assert_eq!(established.remote, PeerAddr::Unix(path.as_path().into()));
        let mut server = listener.accept().unwrap().0;
        let server = thread::spawn(move || echo(&mut server));
        assert_echoes(&mut established);
        drop(established);
        server.join().unwrap();
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_accept_queue_is_retried() {
    let path = std::env::temp_dir().join(format!("towline-full-queue-{}", std::process::id()));
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener
        .bind(&socket2::SockAddr::unix(&path).unwrap())
        .unwrap();
    listener.listen(1).unwrap();
    let mut route = Route::plain("host", 80);
    route.uds = Some(path.clone());
    let mut config = DialConfig {
        connect_timeout: Some(Duration::from_millis(100)),
        ..DialConfig::default()
    };
    let mut queued = Vec::new();
    let error = loop {
        assert!(queued.len() < 512, "the queue is never full");
        match dial(Client::Async, &route, &config) {
            Ok(established) => queued.push(established),
            Err(error) => break error,
        }
    };
    assert_eq!(
        (error.kind, error.phase),
        (DialErrorKind::Timeout, DialPhase::Connect)
    );
    assert!(
        error.message.ends_with("within 0.1 s: its queue is full"),
        "{error}"
    );
    let server = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        listener.accept().unwrap();
        listener
    });
    config.connect_timeout = Some(MAX_WAIT);
    let established = dial(Client::Async, &route, &config).unwrap();
    assert!(established.transport.fd() >= 0);
    server.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}
