//! Opening handshakes, over real heads: both ends of an HTTP/1.1 connection in memory.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::ws::deflate::{
    Config, Direction, Params, client_accept, client_offer, server_accept,
};
use towline_proto::ws::handshake::{Acceptance, Offer, Refusal, Request, is_upgrade};
use towline_proto::{BufferPool, Connection, Event, Limits, OwnedHead};

const GOOD: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

fn request(text: &str) -> OwnedHead {
    let (mut buffers, now) = (BufferPool::new(16 * 1024, 1), Instant::now());
    let mut conn = Connection::server(Arc::new(Limits::server()), now);
    let wire = format!("{text}\r\n");
    conn.recv_space(&mut buffers)[..wire.len()].copy_from_slice(wire.as_bytes());
    conn.received(now, wire.len());
    match conn.next_event() {
        Some(Event::Head { head, .. }) => head.to_owned_head(),
        other => panic!("no request: {other:?}"),
    }
}

/// The head of a response to a request that offered an upgrade.
fn response(text: &str) -> OwnedHead {
    let (mut buffers, now) = (BufferPool::new(16 * 1024, 1), Instant::now());
    let mut conn = Connection::client(Arc::new(Limits::client()), now);
    let fields = [
        (&b"host"[..], &b"a"[..]),
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
    ]
    .map(|(name, value)| towline_proto::Field { name, value });
    let head = towline_proto::RequestHead {
        method: b"GET",
        target: b"/",
        fields: &fields,
    };
    conn.request(&head, towline_proto::BodySize::Empty).unwrap();
    conn.sent(now, conn.pending_bytes());
    let wire = format!("{text}\r\n");
    conn.recv_space(&mut buffers)[..wire.len()].copy_from_slice(wire.as_bytes());
    conn.received(now, wire.len());
    match conn.next_event() {
        Some(Event::Head { head, .. }) => head.to_owned_head(),
        other => panic!("no response: {other:?}"),
    }
}

fn refusal(text: &str) -> Option<u16> {
    Request::read(request(text).view())
        .err()
        .map(|refusal| refusal.status)
}

fn text(fields: &[(&'static [u8], Vec<u8>)]) -> String {
    let line = |(name, value): &(&[u8], Vec<u8>)| {
        format!(
            "{}: {}\r\n",
            String::from_utf8_lossy(name),
            String::from_utf8_lossy(value)
        )
    };
    fields.iter().map(line).collect()
}

#[test]
fn a_valid_request_is_accepted() {
    let head = request(&format!(
        "{GOOD}Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Protocol: c\r\n"
    ));
    assert!(is_upgrade(&head.view()));
    let wanted = Request::read(head.view()).unwrap();
    assert_eq!(wanted.protocols().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    let Acceptance {
        status,
        fields,
        deflate,
    } = wanted.accept(Some(b"b"), Some(&Config::server()));
    assert_eq!((status, deflate), (101, None));
    assert_eq!(
        text(&fields),
        "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
         sec-websocket-protocol: b\r\n"
    );
}

#[test]
fn an_invalid_request_is_refused_with_its_status() {
    let without = |line: &str| GOOD.replace(line, "");
    let cases = [
        (GOOD.replace("GET", "POST"), Some(400)),
        (without("Upgrade: websocket\r\n"), Some(400)),
        (GOOD.replace("keep-alive, Upgrade", "keep-alive"), Some(400)),
        (
            without("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
            Some(400),
        ),
        (GOOD.replace("ZQ==", "ZR=="), Some(400)),
        (
            format!("{GOOD}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
            Some(400),
        ),
        (GOOD.replace("Version: 13", "Version: 8"), Some(426)),
        (without("Sec-WebSocket-Version: 13\r\n"), Some(426)),
        (format!("{GOOD}Sec-WebSocket-Protocol: a b\r\n"), Some(400)),
        (
            format!("{GOOD}Sec-WebSocket-Extensions: x;=1\r\n"),
            Some(400),
        ),
        (GOOD.replace("websocket\r", "h2c, WebSocket\r"), None),
        (
            format!("{GOOD}Sec-WebSocket-Extensions: unknown; a=\"b\"\r\n"),
            None,
        ),
    ];
    for (text, status) in cases {
        assert_eq!(refusal(&text), status, "{text}");
    }
    let old = Refusal {
        status: 426,
        rule: "",
    };
    assert!(text(&old.fields()).ends_with("sec-websocket-version: 13\r\n"));
    let plain = request("GET / HTTP/1.1\r\nHost: a\r\n");
    assert!(!is_upgrade(&plain.view()));
}

#[test]
fn an_extended_connect_needs_no_key() {
    // The fields of the request without those that only HTTP/1.1 needs (RFC 8441 5).
    let head = request("GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Version: 13\r\n");
    let accepted = Request::read_extended(head.view())
        .unwrap()
        .accept(None, None);
    assert_eq!((accepted.status, accepted.fields), (200, vec![]));
    let fields = Offer::extended(&[b"a"], None).fields();
    assert_eq!(
        text(&fields),
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: a\r\n"
    );
}

#[test]
fn a_client_verifies_the_response() {
    let offer = Offer::new(*b"the sample nonce", &[b"a", b"b"], Some(Config::client()));
    assert!(text(&offer.fields()).contains("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"));
    let good = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    let cases = [
        (good.to_owned(), true),
        (format!("{good}Sec-WebSocket-Protocol: b\r\n"), true),
        (format!("{good}Sec-WebSocket-Protocol: c\r\n"), false),
        (
            format!("{good}Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: b\r\n"),
            false,
        ),
        (good.replace("xOo=", "xOo"), false),
        (
            good.replace("Connection: Upgrade", "Connection: close"),
            false,
        ),
        (good.replace("Upgrade: WebSocket", "Upgrade: h2c"), false),
        (
            format!("{good}Sec-WebSocket-Extensions: permessage-deflate\r\n"),
            true,
        ),
        (
            format!("{good}Sec-WebSocket-Extensions: permessage-deflate, permessage-deflate\r\n"),
            false,
        ),
        (format!("{good}Sec-WebSocket-Extensions: bzip\r\n"), false),
        ("HTTP/1.1 200 OK\r\n".to_owned(), false),
    ];
    for (answer, good) in cases {
        assert_eq!(
            offer.verify(&response(&answer).view()).is_ok(),
            good,
            "{answer}"
        );
    }
}

type DeflateTuple = (bool, u8, bool, u8);

/// The negotiated parameters: takeover and bits of the server, takeover and bits of the client.
fn terms(params: Params) -> DeflateTuple {
    let Params { server, client } = params;
    (
        server.takeover,
        server.window_bits,
        client.takeover,
        client.window_bits,
    )
}

#[test]
fn a_server_chooses_among_offers() {
    let cases: [(&str, Option<DeflateTuple>); 16] = [
        ("permessage-deflate", Some((true, 12, false, 15))),
        (
            "permessage-deflate; client_max_window_bits",
            Some((true, 12, true, 12)),
        ),
        (
            "permessage-deflate; client_max_window_bits=10",
            Some((true, 12, true, 10)),
        ),
        (
            "permessage-deflate; client_max_window_bits=\"10\"",
            Some((true, 12, true, 10)),
        ),
        (
            "permessage-deflate; server_max_window_bits=9; client_max_window_bits=15",
            Some((true, 9, true, 12)),
        ),
        (
            "permessage-deflate; server_no_context_takeover",
            Some((false, 12, false, 15)),
        ),
        (
            "permessage-deflate; client_no_context_takeover; client_max_window_bits",
            Some((true, 12, false, 12)),
        ),
        (
            "PERMESSAGE-DEFLATE ;server_max_window_bits = 8",
            Some((true, 8, false, 15)),
        ),
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; server_max_window_bits=7", None),
        ("permessage-deflate; server_max_window_bits=016", None),
        ("permessage-deflate; client_max_window_bits=16", None),
        ("permessage-deflate; server_no_context_takeover=1", None),
        (
            "permessage-deflate; client_max_window_bits; client_max_window_bits",
            None,
        ),
        ("permessage-deflate; other", None),
        (
            "x-webkit, permessage-deflate; other, permessage-deflate; server_max_window_bits=11, permessage-deflate",
            Some((true, 11, false, 15)),
        ),
    ];
    for (offer, agreed) in cases {
        let params = server_accept([offer.as_bytes()].into_iter(), &Config::server());
        assert_eq!(params.unwrap().map(terms), agreed, "{offer}");
    }
    for malformed in [
        "permessage-deflate;",
        "a=b",
        "a; b=",
        "a; b=\"",
        "a; b=\"\"",
        "a b",
        "a; b c",
        "\"a\"",
    ] {
        let params = server_accept([malformed.as_bytes()].into_iter(), &Config::server());
        assert!(params.is_err(), "{malformed}");
    }
}

#[test]
fn a_client_refuses_more_than_it_offered() {
    let mut asks = Config::client();
    asks.server = Direction {
        takeover: false,
        window_bits: 11,
    };
    asks.client.window_bits = 10;
    assert_eq!(
        client_offer(&asks),
        b"permessage-deflate; server_no_context_takeover; server_max_window_bits=11; client_max_window_bits=10"
    );
    let cases = [
        (
            Config::client(),
            "permessage-deflate",
            Some((true, 15, true, 15)),
        ),
        (
            Config::client(),
            "permessage-deflate; client_max_window_bits=9",
            Some((true, 15, true, 9)),
        ),
        (
            Config::client(),
            "permessage-deflate; client_max_window_bits",
            None,
        ),
        (
            Config::client(),
            "permessage-deflate; client_no_context_takeover",
            Some((true, 15, false, 15)),
        ),
        (asks, "permessage-deflate", None),
        (asks, "permessage-deflate; server_no_context_takeover", None),
        (
            asks,
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=12",
            None,
        ),
        (
            asks,
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=9",
            Some((false, 9, true, 10)),
        ),
    ];
    for (config, answer, agreed) in cases {
        let params = client_accept([answer.as_bytes()].into_iter(), Some(&config));
        assert_eq!(params.ok().flatten().map(terms), agreed, "{answer}");
    }
    assert!(client_accept([&b"permessage-deflate"[..]].into_iter(), None).is_err());
}

#[test]
fn a_servers_response_is_accepted_by_its_client() {
    let directions = [(false, 8), (false, 15), (true, 9), (true, 12), (true, 15)].map(
        |(takeover, window_bits)| Direction {
            takeover,
            window_bits,
        },
    );
    for server in directions {
        for client in directions {
            let (mut ours, mut theirs) = (Config::server(), Config::client());
            (ours.server, ours.client) = (server, client);
            (theirs.server, theirs.client) = (client, server);
            let offer = client_offer(&theirs);
            let agreed = server_accept([&offer[..]].into_iter(), &ours)
                .unwrap()
                .unwrap();
            let answer = agreed.response_value();
            let taken = client_accept([&answer[..]].into_iter(), Some(&theirs))
                .unwrap()
                .unwrap();
            assert_eq!(taken.server, agreed.server);
            // A client may use less than the allowed window.
            assert!(taken.client.takeover <= agreed.client.takeover);
            assert!(taken.client.window_bits <= agreed.client.window_bits);
        }
    }
}
