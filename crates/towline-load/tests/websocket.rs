//! WebSocket: every message is verified, and faulty servers are detected.
//! The server is the native responder in a process of its own, or a script without any of our code.

use std::time::Duration;

use crate::responder::Responder;
use crate::scripted::{Reply, Server, all_answered, keeps_connections, load};
use bytes::Bytes;
use serde_json::{Value, json};
use towline_load::agent;
use towline_load::{Arrivals, Config, Expect, LoopMode, Rate, Target, Trust, Until};
use towline_proto::ws::Kind;

/// `n` messages on one connection.
fn config(url: &str, n: u64) -> Config {
    let mut config = Config::new(vec![Target::get(url).unwrap()]);
    config.connections = 1;
    config.until = Until::Requests(n);
    config.timeout = Duration::from_secs(30);
    config
}

fn url(server: &Responder, query: &str) -> String {
    server.url(&format!("/ws{query}")).replacen("http", "ws", 1)
}

#[test]
fn messages_of_every_size_are_echoed() {
    let server = Responder::plain(&[]);
    for bytes in [0_u32, 1, 125, 126, 1024, 65_535, 65_536, 300_000] {
        for (kind, deflate, pipeline) in [
            (Kind::Text, false, 1),
            (Kind::Binary, false, 8),
            (Kind::Binary, true, 3),
        ] {
            let mut config = config(&url(&server, ""), 30);
            config.pipeline = pipeline;
            let letter = |n: u32| b'a' + (n.wrapping_mul(n) % 26) as u8;
            config.targets[0].body = Some((0..bytes).map(letter).collect());
            let messages = config.targets[0].messages.as_mut().unwrap();
            (messages.kind, messages.deflate) = (kind, deflate);
            let report = all_answered(&config, 30);
            assert_eq!(report.body_bytes, u64::from(bytes) * 30);
            assert_eq!(
                (report.statuses.len(), report.setup.protocol.as_str()),
                (0, "ws")
            );
        }
    }
}

#[test]
fn messages_over_the_default_limit_are_echoed() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, ""), 1);
    config.targets[0].body = Some(vec![b'x'; 16 << 20].into());
    config.timeout = Duration::from_secs(60);
    all_answered(&config, 1);
}

#[test]
fn messages_over_tls_are_echoed() {
    let server = Responder::tls();
    let mut config = config(&url(&server, ""), 50);
    config.trust = Trust::Path(server.authority());
    config.connections = 3;
    let report = all_answered(&config, 50);
    assert!(report.setup.targets[0].starts_with("wss://"), "{report}");
}

#[test]
fn received_bytes_include_frame_heads() {
    let server = Responder::plain(&[]);
    let report = all_answered(&config(&url(&server, ""), 10), 10);
    // The catalogue's figure: 1028 per frame.
    assert_eq!(report.received_bytes, 10 * 1028);
}

#[test]
fn wrong_messages_are_counted_by_class() {
    let server = Responder::plain(&[]);
    for (fault, class, ends) in [
        ("one-byte", "content", false),
        ("short", "content", false),
        ("long", "content", false),
        ("kind", "content", false),
        ("truncated", "reset", true),
        ("early-close", "reset", true),
        ("garbage", "protocol", true),
    ] {
        let query = format!("?fault={fault}&fault_share=0.1");
        let mut config = config(&url(&server, &query), 200);
        config.targets[0].body = Some(Bytes::from_static(b"hello"));
        let report = load(&config).report;
        let of = match class {
            "content" => report.errors.content,
            "reset" => report.errors.reset,
            _ => report.errors.protocol,
        };
        let all = (of, report.errors.total(), report.answered);
        assert_eq!(all, (20, 20, 180), "{fault}: {report}");
        assert_eq!(report.reconnects > 0, ends, "{fault}: {report}");
        let codes: Vec<_> = (report.statuses.iter())
            .map(|one| (one.status, one.count))
            .collect();
        let planned = if fault == "early-close" {
            vec![(1011, 20)]
        } else {
            vec![]
        };
        assert_eq!(codes, planned, "{fault}");
    }
}

#[test]
fn a_second_reply_does_not_count_for_the_next_message() {
    let server = Responder::plain(&[]);
    let report = load(&config(&url(&server, "?fault=twice&fault_share=0.1"), 100)).report;
    assert!(report.errors.protocol >= 9, "{report}");
    assert_eq!(report.errors.total(), report.errors.protocol, "{report}");
}

#[test]
fn a_message_without_a_reply_times_out_and_ends_its_connection() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, "?fault=hang&fault_share=0.1"), 20);
    config.timeout = Duration::from_secs(3);
    let report = load(&config).report;
    let all = (
        report.errors.timeout,
        report.errors.total(),
        report.answered,
    );
    assert_eq!(all, (2, 2, 18), "{report}");
}

#[test]
fn an_expected_message_replaces_the_echo() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, ""), 10);
    config.targets[0].body = Some(Bytes::from_static(b"ping"));
    config.targets[0].expect.body = Some(Bytes::from_static(b"pong"));
    let report = load(&config).report;
    assert_eq!(
        (report.errors.content, report.answered),
        (10, 0),
        "{report}"
    );
    config.targets[0].expect = Expect {
        length: Some(4),
        ..Expect::default()
    };
    all_answered(&config, 10);
}

#[test]
fn refused_handshakes_are_counted_by_class() {
    let server = Responder::plain(&[]);
    // 404: no such target.
    let nowhere = server.url("/nothing").replacen("http", "ws", 1);
    let report = load(&config(&nowhere, 3)).report;
    assert_eq!(
        (report.errors.status, report.errors.total()),
        (3, 3),
        "{report}"
    );
    assert_eq!(report.statuses[0].status, 404);
    for (answer, class) in [
        // The accept value of another key.
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            "protocol",
        ),
        ("SSH-2.0-OpenSSH_9.6\r\n\r\n", "protocol"),
        ("", "reset"),
    ] {
        let server = Server::new(move |_| Reply::Last(answer.as_bytes()));
        let url = server.url().replacen("http", "ws", 1);
        let report = load(&config(&url, 2)).report;
        let of = match class {
            "reset" => report.errors.reset,
            _ => report.errors.protocol,
        };
        assert_eq!((of, report.errors.total()), (2, 2), "{class}: {report}");
    }
}

#[test]
fn refusal_statuses_apply_to_handshakes() {
    let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let server = Server::new(move |_| Reply::Last(busy.as_bytes()));
    let mut config = config(&server.url().replacen("http", "ws", 1), 2);
    config.refusal_statuses = vec![503];
    let report = load(&config).report;
    assert_eq!((report.refused, report.errors.total()), (2, 0), "{report}");
}

#[test]
fn a_handshake_without_a_response_times_out() {
    let server = Server::new(|_| Reply::Silence);
    let mut config = config(&server.url().replacen("http", "ws", 1), 1);
    config.connect_timeout = Duration::from_secs(2);
    let report = load(&config).report;
    assert_eq!(
        (report.errors.timeout, report.errors.total()),
        (1, 1),
        "{report}"
    );
}

#[test]
fn compression_saves_bytes_on_the_wire() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, ""), 5);
    config.targets[0].messages.as_mut().unwrap().deflate = true;
    let report = all_answered(&config, 5);
    // The payload repeats the same letters, and contexts are kept.
    assert!(report.received_bytes < 1024, "{report}");
}

#[test]
fn connections_are_replaced_after_their_limit() {
    let server = Responder::plain(&[]);
    for (per_connection, pipeline) in [(1, 1), (7, 1), (20, 4)] {
        let mut config = config(&url(&server, ""), 100);
        config.requests_per_connection = Some(per_connection);
        config.pipeline = pipeline;
        all_answered(&config, 100);
    }
}

#[test]
fn an_open_loop_sends_messages_on_schedule() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, ""), 0);
    config.connections = 4;
    config.loop_mode = LoopMode::Open(Rate {
        per_s: 500.0,
        arrivals: Arrivals::Constant,
        ramp: Duration::ZERO,
    });
    config.until = Until::Time(Duration::from_millis(400));
    let report = load(&config).report;
    // All were due; on a busy machine a few may be unsent at the end.
    let unsent = report.open_loop.as_ref().unwrap().unsent;
    assert_eq!(
        (report.answered + unsent, report.errors.total()),
        (200, 0),
        "{report}"
    );
    assert!(report.answered > 0, "{report}");
}

#[test]
fn messages_of_one_path_share_a_connection_and_other_paths_have_their_own() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, ""), 60);
    let mut other = config.targets[0].clone();
    other.body = Some(Bytes::from_static(b"another"));
    config.targets.push(other);
    config
        .targets
        .push(Target::get(&url(&server, "?x=1")).unwrap());
    config.targets.push(Target::get(&server.url("/")).unwrap());
    config.connections = 3;
    let report = all_answered(&config, 60);
    assert_eq!(report.live_connections.wanted, 3);
}

#[test]
fn sessions_keep_their_websockets_from_slice_to_slice() {
    let server = Responder::plain(&[]);
    let mut config = config(&url(&server, ""), 0);
    config.connections = 2;
    keeps_connections(config);
}

#[test]
fn an_agent_probes_and_slices_messages() {
    let server = Responder::plain(&[]);
    let target = |query: &str, message: &str| {
        json!({"url": url(&server, query), "message": message,
            "body": {"repeat": "x", "count": 1024}})
    };
    let open = |session: &str, targets: &[Value]| {
        json!({"op": "open", "session": session,
            "config": {"targets": targets, "connections": 3, "timeout_s": 5}})
    };
    let right = [target("", "text"), target("?x", "binary")];
    let wrong = [
        target("?fault=kind", "text"),
        target("?fault=early-close", "text"),
    ];
    let nothing = json!({"url": server.url("/nothing").replacen("http", "ws", 1)});
    let lines = [
        open("a", &right),
        json!({"op":"probe", "session": "a"}),
        json!({"op": "slice", "session": "a", "requests": 10}),
        open("b", &[&wrong[..], &[nothing]].concat()),
        json!({"op":"probe", "session": "b"}),
    ];
    let lines: Vec<_> = lines.iter().map(Value::to_string).collect();
    let mut output = Vec::new();
    agent::serve(lines.join("\n").as_bytes(), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    let answers: Vec<Value> = (text.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (probed, kind) in answers[1]["responses"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["text", "binary"])
    {
        assert_eq!(probed["status"], 101, "{probed}");
        assert_eq!(
            (&probed["message"], &probed["body_bytes"]),
            (&json!(kind), &json!(1024))
        );
        assert_eq!(
            (&probed["failure"], &probed["closed"]),
            (&Value::Null, &json!(false))
        );
    }
    assert_eq!(answers[2]["slice"]["answered"], 10);
    assert_eq!(answers[2]["slice"]["setup"]["protocol"], "ws");
    let probed = &answers[4]["responses"];
    assert_eq!(
        (&probed[0]["message"], &probed[0]["failure"]),
        (&json!("binary"), &Value::Null)
    );
    let closed = probed[1]["failure"].as_str().unwrap();
    assert!(
        closed.starts_with("reset: ") && closed.contains("1011"),
        "{closed}"
    );
    assert_eq!(
        (&probed[2]["status"], &probed[2]["failure"]),
        (&json!(404), &Value::Null)
    );
}
