//! Hanging requests are errors, with their age, in a load that ends before the timeout: requests of every protocol, bodies,
//! handshakes, and connections on which the server allows no request.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::responder::Responder;
use crate::scripted::{HELLO, Reply, Server, load, until};
use towline_load::{Config, Mix, Report, Stop, Target, Trust, Until, run};
use towline_proto::Protocol;

/// The shortest time after which a request is overdue at the end of a load.
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// A load of a fifth of a second, whose timeout is much longer.
fn short(targets: Vec<Target>, connections: usize) -> Config {
    Config {
        connections,
        until: Until::Time(Duration::from_millis(200)),
        timeout: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(60),
        ..Config::new(targets)
    }
}

fn get(url: &str) -> Vec<Target> {
    vec![Target::get(url).unwrap()]
}

/// Hung and no longer waited for than a few times the least time.
fn hung(config: &Config, overdue: u64) -> Report {
    let begun = Instant::now();
    let report = load(config).report;
    assert_eq!(report.errors.timeout, overdue, "{report}");
    assert_eq!(report.errors.total(), overdue, "{report}");
    assert_eq!(report.in_flight.overdue, overdue, "{report}");
    let waited = begun.elapsed();
    assert!(
        (MIN_PATIENCE..Duration::from_secs(20)).contains(&waited),
        "{waited:?}"
    );
    report
}

/// The one request that is never answered, as the fifth, and quick responses to all others.
fn one_hangs() -> Server {
    Server::new(|call| match call.number {
        4 => Reply::Silence,
        _ => Reply::Send(HELLO),
    })
}

#[test]
fn one_hanging_connection_of_several_is_an_error_with_its_age() {
    for mix in [Mix::InTurn, Mix::Session] {
        let server = one_hangs();
        let mut targets = get(&server.url());
        if mix == Mix::Session {
            targets.extend(get(&server.url()));
        }
        let config = Config {
            mix,
            ..short(targets, 2)
        };
        let report = hung(&config, 1);
        assert!(report.answered > 0, "{report}");
        let in_flight = &report.in_flight;
        assert_eq!(in_flight.age.count, 2, "{report}");
        assert!(in_flight.overdue_after_us >= 1e6, "{report}");
        let longest = report.with_timeouts.as_ref().unwrap().response.max_us;
        assert!(
            longest >= 1e6 && report.response.max_us < longest,
            "{report}"
        );
        let why = report.first_failure.as_deref().unwrap();
        assert!(why.starts_with("no response to GET / in 1."), "{why}");
        // In the series as well.
        let failed: u64 = report.series.iter().map(|second| second.failed).sum();
        assert_eq!(failed, 1);
    }
}

#[test]
fn a_server_that_never_responds_is_named() {
    let server = Server::new(|_| Reply::Silence);
    let report = hung(&short(get(&server.url()), 3), 3);
    assert_eq!((report.answered, report.in_flight.age.count), (0, 3));
    let named = "no request was answered; 3 of 3 in flight at the end";
    let is_named = |warning: &String| warning.starts_with(named);
    assert!(report.warnings.iter().any(is_named), "{report}");
}

#[test]
fn each_pipelined_request_behind_a_hanging_one_is_an_error() {
    let server = Server::new(|call| match call.number {
        0..4 => Reply::Send(HELLO),
        _ => Reply::Silence,
    });
    let config = Config {
        pipeline: 3,
        ..short(get(&server.url()), 1)
    };
    let report = hung(&config, 3);
    assert_eq!(report.answered, 4);
}

#[test]
fn a_body_that_stops_is_an_error() {
    const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe";
    let server = Server::new(|call| Reply::Send(if call.number == 4 { HALF } else { HELLO }));
    let report = hung(&short(get(&server.url()), 2), 1);
    let why = report.first_failure.as_deref().unwrap();
    assert!(why.ends_with("2 bytes of its body had come"), "{why}");
}

#[test]
fn streams_and_messages_that_hang_are_errors() {
    let few = "fault=hang&fault_share=0.01";
    let (plain, quic) = (Responder::plain(&[]), Responder::http3());
    let http2 = Config {
        protocol: Protocol::Http2,
        streams: 3,
        ..short(get(&plain.url(&format!("/?{few}"))), 1)
    };
    let http3 = Config {
        protocol: Protocol::Http3,
        streams: 3,
        trust: Trust::Path(quic.authority()),
        ..short(get(&quic.url(&format!("/?{few}"))), 1)
    };
    let messages = plain.url(&format!("/ws?{few}")).replacen("http", "ws", 1);
    let messages = Config {
        pipeline: 1,
        ..short(get(&messages), 3)
    };
    for config in [http2, http3, messages] {
        // All streams, or connections, are silent in the end.
        let report = hung(&config, 3);
        assert!(report.answered > 0, "{report}");
    }
}

#[test]
fn a_handshake_that_hangs_is_an_error() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    // Two requests that wait for connections of their own.
    let config = Config {
        requests_per_connection: Some(1),
        ..short(get(&url), 2)
    };
    let report = hung(&config, 2);
    assert_eq!(report.in_flight.age.count, 2);
    // Connections that are opened in the load: no request is sent on them.
    let config = Config {
        connects_in_slice: true,
        ..short(get(&url), 2)
    };
    let report = hung(&config, 2);
    assert_eq!(report.in_flight.connections, 2);
    let why = report.first_failure.as_deref().unwrap();
    assert!(why.starts_with("no connection in 1."), "{why}");
}

/// HTTP/2: a server that answers the first request, and then allows no stream.
fn barring() -> Server {
    // SETTINGS with SETTINGS_MAX_CONCURRENT_STREAMS 0; the response to the first stream: status 200, its end.
    const BARRED: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\0\0\0\x01\x01\x05\0\0\0\x01\x88";
    Server::new(|call| {
        if call.request.starts_with(b"PRI ") {
            Reply::Send(BARRED)
        } else {
            Reply::Silence
        }
    })
}

#[test]
fn a_connection_without_streams_is_an_error() {
    let server = barring();
    let config = Config {
        protocol: Protocol::Http2,
        ..short(get(&server.url()), 1)
    };
    let report = hung(&config, 1);
    assert_eq!((report.answered, report.in_flight.connections), (1, 1));
    let why = report.first_failure.as_deref().unwrap();
    assert!(why.contains("the server allowed no stream"), "{why}");
    // A load by count ends.
    let config = Config {
        until: Until::Requests(4),
        timeout: Duration::from_millis(100),
        ..config
    };
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.timeout), (2, 2), "{report}");
}

#[test]
fn slow_responses_at_the_end_are_no_errors() {
    let server = Server::new(|_| {
        thread::sleep(Duration::from_millis(150));
        Reply::Send(HELLO)
    });
    let report = load(&short(get(&server.url()), 2)).report;
    assert_eq!((report.answered, report.errors.total()), (2, 0), "{report}");
    let in_flight = &report.in_flight;
    assert_eq!((in_flight.age.count, in_flight.overdue), (2, 0), "{report}");
    assert!(report.with_timeouts.is_none(), "{report}");
}

#[test]
fn a_target_that_had_no_response_is_awaited_for_the_timeout() {
    let server = Server::new(|call| {
        if call.request.starts_with(b"GET /slow ") {
            thread::sleep(MIN_PATIENCE * 2);
        }
        Reply::Send(HELLO)
    });
    let mut targets = get(&server.url());
    targets.extend(get(&format!("{}slow", server.url())));
    let report = load(&short(targets, 1)).report;
    assert_eq!(report.errors.total(), 0, "{report}");
    assert!(report.in_flight.overdue_after_us >= 60e6, "{report}");
}

#[test]
fn an_interrupted_load_names_what_hangs() {
    let is_hanging = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_hanging);
    let server = Server::new(move |call| match call.number {
        4 => {
            seen.store(true, Ordering::Relaxed);
            Reply::Silence
        }
        _ => Reply::Send(HELLO),
    });
    let stop = Stop::default();
    let stopper = stop.clone();
    let stopping = thread::spawn(move || {
        until("a request hangs", || is_hanging.load(Ordering::Relaxed));
        thread::sleep(MIN_PATIENCE + Duration::from_millis(300));
        stopper.request();
    });
    let config = Config {
        until: Until::Time(Duration::from_secs(100)),
        ..short(get(&server.url()), 2)
    };
    let report = run(&config, &stop).unwrap().report;
    stopping.join().unwrap();
    assert_eq!(report.errors.timeout, 1, "{report}");
    assert!(report.measured_s < 50.0, "{report}");
}
