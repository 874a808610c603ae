//! HTTP/3: streams, bodies, fresh connections, an open loop, losses. The server is the native responder, in a process
//! of its own.

use std::time::Duration;

use crate::responder::{Responder, probe};
use crate::scripted::{all_answered, load};
use bytes::Bytes;
use serde_json::json;
use towline_load::netem::{Netem, NetworkConditions};
use towline_load::{Arrivals, Config, LoopMode, Rate, Target, Trust, Until};
use towline_proto::Protocol;

/// `n` requests with `streams` concurrent streams on one connection, the body being expected.
fn config(server: &Responder, url: &str, streams: usize, n: u64, body: Vec<u8>) -> Config {
    let mut target = Target::get(url).unwrap();
    target.expect.body = Some(body.into());
    let mut config = Config::new(vec![target]);
    config.protocol = Protocol::Http3;
    config.connections = 1;
    config.streams = streams;
    config.until = Until::Requests(n);
    config.timeout = Duration::from_secs(30);
    config.trust = Trust::Path(server.authority());
    config
}

#[test]
fn every_byte_of_many_streams_is_verified() {
    let server = Responder::http3();
    for (path, body) in [
        ("/", b"alive\r\n".to_vec()),
        ("/large", vec![b'x'; 64 * 1024]),
        ("/bytes?n=300000", vec![b'x'; 300_000]),
        ("/small", vec![b'x'; 6400]),
    ] {
        let mut config = config(&server, &server.url(path), 16, 200, body.clone());
        let report = all_answered(&config, 200);
        let quic = report.quic.unwrap();
        assert!(quic.sent_packets > 1 && quic.received_datagrams > 1);
        assert_eq!(report.setup.protocol, "h3");
        let mut wrong = body;
        *wrong.last_mut().unwrap() ^= 1;
        config.targets[0].expect.body = Some(wrong.into());
        let report = load(&config).report;
        assert_eq!((report.answered, report.errors.content), (0, 200), "{path}");
    }
}

#[test]
fn bodies_are_sent_and_echoed() {
    let server = Responder::http3();
    let body: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let mut config = config(&server, &server.url("/echo"), 8, 40, body.clone());
    config.targets[0].method = "POST".into();
    config.targets[0].body = Some(Bytes::from(body));
    all_answered(&config, 40);
}

#[test]
fn each_fresh_connection_has_a_handshake() {
    let server = Responder::http3();
    let mut config = config(&server, &server.url("/"), 1, 50, b"alive\r\n".to_vec());
    config.connections = 4;
    config.requests_per_connection = Some(1);
    let report = all_answered(&config, 50);
    assert!(report.connect.count >= 50, "{report}");
}

#[test]
fn fresh_connections_begin_with_early_data_and_are_counted() {
    for (accepts, method) in [(true, "GET"), (true, "POST"), (false, "GET")] {
        let server = Responder::http3_with(if accepts { &["--early-data"] } else { &[] });
        let is_post = method == "POST";
        let (path, body) = if is_post {
            ("/echo", &b"body"[..])
        } else {
            ("/", &b"alive\r\n"[..])
        };
        let mut config = config(&server, &server.url(path), 1, 60, body.to_vec());
        config.targets[0].method = method.into();
        config.targets[0].body = is_post.then(|| Bytes::from_static(b"body"));
        config.requests_per_connection = Some(1);
        config.early_data = true;
        let report = all_answered(&config, 60);
        let quic = report.quic.unwrap();
        let (sent, accepted) = (quic.early_sent, quic.early_accepted);
        assert!(quic.connections >= 60, "{report}");
        if accepts {
            // Two tickets with each whole handshake, or with one whose response comes after it.
            assert!(sent >= 30 && accepted == sent, "{report}");
            assert!(quic.early_share() >= 0.5);
            assert!(report.to_string().contains("early data   accepted in"));
        } else {
            assert_eq!((sent, accepted), (0, 0), "{report}");
        }
    }
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let server = Responder::http3();
    let mut config = config(&server, &server.url("/"), 4, 200, b"alive\r\n".to_vec());
    config.loop_mode = LoopMode::Open(Rate {
        per_s: 200.0,
        arrivals: Arrivals::Constant,
        ramp: Duration::ZERO,
    });
    all_answered(&config, 200);
}

#[test]
fn losses_are_repaired_and_counted() {
    let server = Responder::http3();
    let port: u16 = server.url("").rsplit(':').next().unwrap().parse().unwrap();
    let conditions = NetworkConditions {
        rtt: Duration::from_millis(4),
        loss: 0.05,
        seed: 9,
        ..NetworkConditions::default()
    };
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut netem = Netem::new(listen, ([127, 0, 0, 1], port).into(), &conditions).unwrap();
    let url = format!("https://{}/large", netem.local_addr().unwrap());
    std::thread::spawn(move || while netem.turn().is_ok() {});
    let config = config(&server, &url, 8, 60, vec![b'x'; 64 * 1024]);
    let report = all_answered(&config, 60);
    assert!(report.quic.unwrap().lost_packets > 0, "{report}");
}

#[test]
fn a_probe_returns_the_whole_response_and_its_protocol() {
    let server = Responder::http3();
    let trust = json!({"path": server.authority()});
    let one = &probe(&[server.url("/")], "h3", &trust)[0];
    assert_eq!(
        (&one["failure"], &one["status"]),
        (&json!(null), &json!(200)),
        "{one}"
    );
    assert_eq!(
        (&one["version"], &one["alpn"], &one["tls"]),
        (&json!("HTTP/3"), &json!("h3"), &json!("TLSv1.3"))
    );
    assert_eq!(
        (&one["body_base64"], &one["closed"]),
        (&json!("YWxpdmUNCg=="), &json!(false))
    );
}

#[test]
fn websockets_and_plain_urls_are_refused() {
    for (url, why) in [
        ("http://127.0.0.1:1/", "the URL begins with https"),
        ("wss://127.0.0.1:1/", "WebSockets over HTTP/3"),
    ] {
        let mut config = Config::new(vec![Target::get(url).unwrap()]);
        config.protocol = Protocol::Http3;
        let error = towline_load::Session::open(config).err().unwrap();
        assert!(error.to_string().contains(why), "{error}");
    }
}
