//! Messages over HTTP/2, between two ends: interim responses, trailers, tunnels, and what a server answers by itself.

use std::sync::Arc;

use towline_proto::{BodySize, Field, Limits, RequestHead, StreamId, UserError};
use towline_testkit::h2::{self, END};
use towline_testkit::{App, End, Pair};

fn pair(app: App) -> Pair {
    pair_with(app, Limits::server())
}

fn pair_with(app: App, limits: Limits) -> Pair {
    let mut pair = Pair::of(
        End::h2_client(&Arc::new(Limits::client())),
        End::h2_server(&Arc::new(limits), app),
    );
    pair.run();
    pair
}

fn field(name: &'static str, value: &'static str) -> Field<'static> {
    Field {
        name: name.as_bytes(),
        value: value.as_bytes(),
    }
}

fn send_request(
    pair: &mut Pair,
    method: &str,
    target: &str,
    fields: &[Field<'_>],
    size: BodySize,
) -> Result<StreamId, UserError> {
    let fields = [&[field("Host", "a")], fields].concat();
    let head = RequestHead {
        method: method.as_bytes(),
        target: target.as_bytes(),
        fields: &fields,
    };
    let id = pair.client.conn.request(&head, size);
    pair.run();
    id
}

fn has(end: &End, line: &str) -> bool {
    end.log.text().lines().any(|found| found == line)
}

// ---- 100-continue and other interim responses ----

#[test]
fn the_first_read_sends_100_continue() {
    let mut pair = pair(App::Read);
    let expect = field("Expect", "100-continue");
    let id = send_request(&mut pair, "PUT", "/", &[expect], BodySize::Known(5)).expect("room");
    assert!(has(&pair.client, "interim 1 100 HTTP/2"));
    let mut stream = pair.client.conn.stream(id).expect("open");
    stream.write(b"hello").expect("room");
    stream.finish().expect("complete");
    pair.run();
    assert!(has(&pair.server, "body 1 hello") && has(&pair.client, "response 1 200 HTTP/2 end"));
}

#[test]
fn a_response_without_a_read_sends_no_100() {
    let mut pair = pair(App::Ignore);
    let expect = field("Expect", "100-continue");
    let id = send_request(&mut pair, "PUT", "/", &[expect], BodySize::Known(5)).expect("room");
    assert!(!pair.client.log.text().contains("interim"));
    assert!(has(&pair.client, "response 1 200 HTTP/2 end"));
    // The server wants no body, and nobody is told of an error.
    assert!(
        !pair.client.log.text().contains("failed"),
        "{}",
        pair.client.log.text()
    );
    assert!(
        pair.client.conn.stream(id).is_err()
            || pair
                .client
                .conn
                .stream(id)
                .expect("known")
                .write(b"hello")
                .is_ok()
    );
    assert!(pair.client.conn.is_reusable() && pair.server.conn.is_idle());
}

#[test]
fn a_body_received_with_its_head_gets_no_100() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
    let head = h2::post(1, &[("expect", "100-continue")]);
    end.feed(&[h2::client_preface(), head, h2::last_data(1, b"hello")].concat());
    assert!(has(&end, "body 1 hello"));
    let heads = h2::lines(end.written())
        .iter()
        .filter(|line| line.starts_with("HEADERS"))
        .count();
    assert_eq!(heads, 1);
}

#[test]
fn interim_responses_come_before_the_final_one() {
    let mut pair = pair(App::Manual);
    send_request(&mut pair, "GET", "/", &[], BodySize::Empty).expect("room");
    let link = field("Link", "</x>");
    pair.server
        .send_response(103, &[link], BodySize::Empty)
        .expect("open");
    pair.run();
    let late = pair.server.send_response(103, &[], BodySize::Known(1));
    assert_eq!(late, Err(UserError::InvalidStatus));
    assert_eq!(
        pair.server.send_response(101, &[], BodySize::Empty),
        Err(UserError::UpgradeNotPossible)
    );
    pair.server
        .send_response(200, &[], BodySize::Empty)
        .expect("open");
    pair.run();
    assert_eq!(
        pair.client.log.text(),
        "interim 1 103 HTTP/2\n  link: </x>\nresponse 1 200 HTTP/2 end\n  content-length: 0\n"
    );
}

// ---- trailers ----

#[test]
fn trailers_both_ways() {
    for body in [&b""[..], b"hello"] {
        let mut pair = pair(App::Manual);
        let id = send_request(&mut pair, "POST", "/", &[], BodySize::Unknown).expect("room");
        let mut stream = pair.client.conn.stream(id).expect("open");
        stream.write(body).expect("room");
        let sum = [field("X-Sum", "1")];
        stream.finish_with(&sum).expect("complete");
        pair.run();
        assert!(pair.server.log.text().ends_with("end 1\n  x-sum: 1\n"));
        pair.server
            .send_response(200, &[], BodySize::Unknown)
            .expect("open");
        let mut stream = pair.server.conn.stream(id).expect("open");
        stream.write(body).expect("room");
        stream.finish_with(&sum).expect("complete");
        pair.run();
        pair.client.read(id);
        assert!(
            pair.client.log.text().ends_with("end 1\n  x-sum: 1\n"),
            "{}",
            pair.client.log.text()
        );
        assert!(pair.client.conn.is_idle() && pair.server.conn.is_idle());
    }
}

/// Trailers wait behind a body that waits for its window.
#[test]
fn trailers_do_not_overtake_a_body() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    end.feed(&h2::client_preface_with(&[(h2::INITIAL_WINDOW_SIZE, 3)]));
    end.feed(&h2::get(1));
    end.send_response(200, &[], BodySize::Unknown)
        .expect("open");
    let mut stream = end.conn.stream(StreamId(1)).expect("open");
    stream.write(b"hello").expect("room");
    stream.finish_with(&[field("x", "y")]).expect("complete");
    end.run_until_idle();
    assert_eq!(
        h2::lines(end.written()).last().expect("sent"),
        "DATA 1 3 bytes"
    );
    end.feed(&h2::window_update(1, 2));
    let lines = h2::lines(end.written());
    assert_eq!(
        lines[lines.len() - 2..],
        ["DATA 1 2 bytes", "HEADERS 1 end"]
    );
}

#[test]
fn framing_and_routing_trailers_are_dropped() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Manual);
    let trailers = h2::headers(1, END, &[("content-length", "9"), ("x", "y")]);
    end.feed(&[h2::client_preface(), h2::post(1, &[]), trailers].concat());
    assert!(end.log.text().ends_with("end 1\n  x: y\n"));
}

// ---- heads ----

#[test]
fn split_cookies_are_joined() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
    let fields = [
        ("cookie", "a=1"),
        ("x", "y"),
        ("cookie", "b=2"),
        ("cookie", "c=3"),
    ];
    let head = h2::headers(1, END, &[&h2::pseudo("GET")[..], &fields].concat());
    end.feed(&[h2::client_preface(), head].concat());
    assert_eq!(
        end.log.text(),
        "request 1 GET / HTTP/2 end\n  host: a\n  cookie: a=1; b=2; c=3\n  x: y\n"
    );
}

#[test]
fn authority_is_the_host() {
    let mut end = End::h2_server(&Arc::new(Limits::server()), App::Read);
    let fields = [("x", "y"), ("host", "A")];
    let both = h2::headers(1, END, &[&h2::pseudo("GET")[..], &fields].concat());
    let alone = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        ("x", "y"),
        ("host", "b"),
    ];
    let wire = [h2::client_preface(), both, h2::headers(3, END, &alone)].concat();
    end.feed(&wire);
    assert_eq!(
        end.log.text(),
        "request 1 GET / HTTP/2 end\n  host: a\n  x: y\nrequest 3 GET / HTTP/2 end\n  x: y\n  host: b\n"
    );
}

#[test]
fn connection_fields_are_not_sent() {
    let mut pair = pair(App::Manual);
    let hops = [
        field("Connection", "close"),
        field("Keep-Alive", "1"),
        field("Proxy-Connection", "close"),
        field("Transfer-Encoding", "chunked"),
        field("Upgrade", "x"),
        field("X", "y"),
    ];
    send_request(&mut pair, "GET", "/", &hops, BodySize::Empty).expect("room");
    assert_eq!(
        pair.server.log.text(),
        "request 1 GET / HTTP/2 end\n  host: a\n  x: y\n"
    );
    pair.server
        .send_response(204, &hops, BodySize::Empty)
        .expect("open");
    pair.run();
    assert_eq!(
        pair.client.log.text(),
        "response 1 204 HTTP/2 end\n  x: y\n"
    );
}

/// Larger than a frame: HEADERS and CONTINUATION.
#[test]
fn a_long_head_is_sent_in_several_frames() {
    let long: &'static str = "z".repeat(50_000).leak();
    let mut pair = pair(App::Manual);
    send_request(&mut pair, "GET", "/", &[field("x", long)], BodySize::Empty).expect("room");
    let sent = h2::lines(pair.client.written());
    assert!(sent.contains(&"CONTINUATION 1".to_owned()), "{sent:?}");
    assert!(pair.server.log.text().contains("50000 bytes"));
    pair.server
        .send_response(200, &[field("x", long)], BodySize::Empty)
        .expect("open");
    pair.run();
    assert!(pair.client.log.text().contains("50000 bytes"));
}

#[test]
fn disallowed_bodies_are_discarded() {
    for (method, status) in [("HEAD", 200), ("GET", 204), ("GET", 304)] {
        let mut pair = pair(App::Manual);
        let id = send_request(&mut pair, method, "/", &[], BodySize::Empty).expect("room");
        pair.server
            .send_response(status, &[], BodySize::Known(5))
            .expect("open");
        let mut stream = pair.server.conn.stream(id).expect("open");
        stream.write(b"hello").expect("swallowed");
        stream.finish().expect("complete");
        pair.run();
        let head = format!("response 1 {status} HTTP/2 end");
        assert!(has(&pair.client, &head), "{method} {status}");
        assert_eq!(
            pair.client.log.text().contains("content-length: 5"),
            method == "HEAD"
        );
        assert!(pair.client.conn.is_idle() && pair.server.conn.is_idle());
    }
}

// ---- answers that no program gives ----

#[test]
fn responses_generated_by_the_server() {
    let mut limits = Limits::server();
    limits.max_body_bytes = Some(4);
    let mut pair = pair_with(App::Manual, limits);
    let expect = field("Expect", "money");
    send_request(&mut pair, "GET", "/", &[expect], BodySize::Empty).expect("room");
    assert!(has(&pair.client, "response 1 417 HTTP/2 end"));
    let many = vec![field("x", "y"); 130];
    send_request(&mut pair, "GET", "/", &many, BodySize::Empty).expect("room");
    assert!(has(&pair.client, "response 3 431 HTTP/2 end"));
    send_request(&mut pair, "PUT", "/", &[], BodySize::Known(5)).expect("room");
    assert!(has(&pair.client, "response 5 413 HTTP/2 end"));
    assert!(!pair.server.log.text().contains("request"));
    // A body that was not announced is found to be too long when it comes.
    let id = send_request(&mut pair, "PUT", "/", &[], BodySize::Unknown).expect("room");
    pair.client
        .conn
        .stream(id)
        .expect("open")
        .write(b"hello")
        .expect("room");
    pair.run();
    assert!(
        has(&pair.client, "response 7 413 HTTP/2 end"),
        "{}",
        pair.client.log.text()
    );
    assert!(
        has(&pair.server, "failed 7 peer: body too large"),
        "{}",
        pair.server.log.text()
    );
    send_request(&mut pair, "GET", "/", &[], BodySize::Empty).expect("room");
    assert!(has(&pair.server, "request 9 GET / HTTP/2 end"));
}

// ---- tunnels ----

fn write(end: &mut End, id: StreamId, what: &[u8]) {
    end.conn
        .stream(id)
        .expect("open")
        .write(what)
        .expect("room");
}

#[test]
fn connect() {
    let mut pair = pair(App::Switch);
    let id = send_request(&mut pair, "CONNECT", "a:443", &[], BodySize::Empty).expect("room");
    assert!(has(&pair.server, "request 1 CONNECT a:443 HTTP/2 end"));
    assert!(has(&pair.server, "switched 1") && has(&pair.client, "switched 1"));
    write(&mut pair.client, id, b"up");
    write(&mut pair.server, id, b"down");
    pair.run();
    assert!(has(&pair.server, "body 1 up") && has(&pair.client, "body 1 down"));
    // Each direction ends for itself.
    pair.client
        .conn
        .stream(id)
        .expect("open")
        .finish()
        .expect("a tunnel");
    pair.run();
    assert!(has(&pair.server, "end 1"), "{}", pair.server.log.text());
    write(&mut pair.server, id, b" and on");
    pair.server
        .conn
        .stream(id)
        .expect("open")
        .finish()
        .expect("a tunnel");
    pair.run();
    assert!(
        has(&pair.client, "body 1 down and on") && has(&pair.client, "end 1"),
        "{}",
        pair.client.log.text()
    );
    assert!(pair.client.conn.is_idle() && pair.server.conn.is_idle());
}

#[test]
fn a_refused_tunnel_is_an_ordinary_response() {
    let mut pair = pair(App::Manual);
    send_request(&mut pair, "CONNECT", "a:443", &[], BodySize::Empty).expect("room");
    pair.server
        .send_response(403, &[], BodySize::Known(2))
        .expect("open");
    let mut stream = pair.server.conn.stream(StreamId(1)).expect("open");
    stream.write(b"no").expect("room");
    stream.finish().expect("complete");
    pair.run();
    pair.client.read(StreamId(1));
    assert!(has(&pair.client, "response 1 403 HTTP/2") && has(&pair.client, "body 1 no"));
    assert!(!pair.client.log.text().contains("switched"));
    assert!(pair.client.conn.is_idle() && pair.server.conn.is_idle());
}

#[test]
fn a_tunnel_that_is_reset_fails_on_both_sides() {
    let mut pair = pair(App::Switch);
    let id = send_request(&mut pair, "CONNECT", "a:443", &[], BodySize::Empty).expect("room");
    pair.client.conn.stream(id).expect("open").reset();
    pair.run();
    assert!(has(&pair.server, "failed 1 peer: stream reset: CANCEL"));
}

/// RFC 8441: offered by the server's SETTINGS, used not before.
#[test]
fn extended_connect() {
    let protocol = field(":protocol", "websocket");
    let mut pair = Pair::of(
        End::h2_client(&Arc::new(Limits::client())),
        End::h2_server(&Arc::new(Limits::server()), App::Switch),
    );
    let fields = [field("host", "a"), protocol];
    let head = RequestHead {
        method: b"CONNECT",
        target: b"/chat",
        fields: &fields,
    };
    let early = pair.client.conn.request(&head, BodySize::Empty);
    assert_eq!(early, Err(UserError::WrongProtocol));
    pair.run();
    let id =
        send_request(&mut pair, "CONNECT", "/chat", &[protocol], BodySize::Empty).expect("offered");
    assert!(
        pair.server.log.text().starts_with(
            "request 1 CONNECT /chat HTTP/2 end\n  :protocol: websocket\n  host: a\nswitched 1\n"
        ),
        "{}",
        pair.server.log.text()
    );
    write(&mut pair.client, id, b"frames");
    pair.run();
    assert!(has(&pair.server, "body 1 frames"));
}

/// Whoever decides on a tunnel learns that the peer has gone: what RFC 8441 5 has for the end of a TCP connection.
#[test]
fn a_half_close_before_the_tunnel_opens_is_reported() {
    let extended = [
        (":method", "CONNECT"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
        (":protocol", "websocket"),
    ];
    let plain = [(":method", "CONNECT"), (":authority", "a:1")];
    for target in [&extended[..], &plain] {
        for (flags, rest) in [
            (END, vec![]),
            (0, h2::last_data(1, b"")),
            (0, h2::last_data(1, b"early")),
        ] {
            let mut end = End::h2_server(&Arc::new(Limits::server()), App::Silent);
            end.feed(&[h2::client_preface(), h2::headers(1, flags, target), rest].concat());
            assert!(
                end.log.text().ends_with("half-closed 1\n"),
                "{}",
                end.log.text()
            );
            end.send_response(403, &[], BodySize::Empty).expect("open");
        }
    }
}

#[test]
fn extended_connect_is_refused_unless_offered() {
    let mut limits = Limits::server();
    limits.http2.extended_connect = false;
    let mut pair = pair_with(App::Switch, limits);
    let protocol = field(":protocol", "websocket");
    let refused = send_request(&mut pair, "CONNECT", "/chat", &[protocol], BodySize::Empty);
    assert_eq!(refused, Err(UserError::WrongProtocol));
}
