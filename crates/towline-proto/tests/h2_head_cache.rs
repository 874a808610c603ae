//! Repeated heads, received and sent: the caches change nothing but the work.

use std::sync::Arc;

use crate::h2::{client_with, get, server};
use bytes::Bytes;
use towline_proto::{BodySize, Field, Limits, PreparedRequest, RequestHead, StreamId, UserError};
use towline_testkit::h2::{self as wire, END, END_HEADERS, HEADERS};
use towline_testkit::{App, End};

// ---- Received ----

/// A header block on a stream of its own, or as a further part of the message before.
struct Block {
    is_new: bool,
    flags: u8,
    fragment: Vec<u8>,
}

fn new(flags: u8, fragment: Vec<u8>) -> Block {
    Block {
        is_new: true,
        flags,
        fragment,
    }
}

fn more(flags: u8, fragment: Vec<u8>) -> Block {
    Block {
        is_new: false,
        flags,
        fragment,
    }
}

/// The result of each block: log lines without the stream's number, and the resets sent. `apart`: another head,
/// which leaves the table unchanged, follows each of them.
fn outcomes(mut end: End, is_server: bool, blocks: &[Block], apart: bool) -> Vec<String> {
    let mut next = 1;
    let mut stream = || {
        next += 2;
        next - 2
    };
    let between = if is_server {
        wire::block(&wire::pseudo("OPTIONS"))
    } else {
        wire::block(&[(":status", "404")])
    };
    let mut id = 0;
    let mut outcomes = Vec::new();
    for sent in blocks {
        if sent.is_new {
            id = stream();
        }
        let before = end.log.text().len();
        end.feed(&wire::frame(
            HEADERS,
            sent.flags | END_HEADERS,
            id,
            &sent.fragment,
        ));
        let log = end.log.text()[before..]
            .replace(&format!(" {id} "), " N ")
            .replace(&format!(" {id}\n"), " N\n");
        let resets = wire::stream_errors(end.written(), id);
        outcomes.push(format!("{log}{resets:?}"));
        if apart {
            end.feed(&wire::frame(HEADERS, END_HEADERS | END, stream(), &between));
        }
    }
    outcomes
}

fn three_times(each: impl Fn() -> Vec<Block>) -> Vec<Block> {
    (0..3).flat_map(|_| each()).collect()
}

/// The results of the blocks, which must not depend on heads between them.
fn check(make: impl Fn() -> End, is_server: bool, blocks: &[Block]) -> Vec<String> {
    let together = outcomes(make(), is_server, blocks, false);
    let apart = outcomes(make(), is_server, blocks, true);
    assert_eq!(together, apart);
    together
}

/// A server on which streams stay open, so that it is never idle.
fn open_server() -> End {
    server(App::Manual)
}

/// A client with requests in flight.
fn client_with_requests() -> End {
    let mut end = client_with(Limits::client());
    for _ in 0..70 {
        get(&mut end);
    }
    end
}

fn literal(bits: u8, name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![bits];
    for text in [name, value] {
        out.push(text.len() as u8);
        out.extend_from_slice(text.as_bytes());
    }
    out
}

#[test]
fn a_repeated_request_is_parsed_like_the_first() {
    let fields = [
        ("cookie", "a=1"),
        ("host", "a"),
        ("x", "y"),
        ("cookie", "b=2"),
    ];
    let whole = wire::block(&[&wire::pseudo("GET")[..], &fields].concat());
    let seen = check(
        open_server,
        true,
        &three_times(|| vec![new(END, whole.clone())]),
    );
    let expected =
        "request N GET / HTTP/2 end\n  host: a\n  cookie: a=1; b=2\n  x: y\n".to_owned() + "[]";
    assert_eq!(seen, [&expected[..]; 3]);
}

#[test]
fn a_refused_request_is_refused_again() {
    let with = |field| wire::block(&[&wire::pseudo("POST")[..], &[("host", "a"), field]].concat());
    let blocks = three_times(|| {
        vec![
            new(0, with(("expect", "wonders"))),
            new(0, with(("expect", "wonders"))),
            new(0, with((":path", "/"))),
            new(0, with((":path", "/"))),
            new(0, with(("content-length", "5"))),
            new(END, with(("content-length", "5"))),
            new(0, with(("content-length", "5"))),
        ]
    });
    let seen = check(open_server, true, &blocks);
    assert!(seen[4].starts_with("request N POST / HTTP/2\n"), "{seen:?}");
    assert!(
        seen[5].starts_with("[PROTOCOL_ERROR") || seen[5].contains("ErrorCode(1)"),
        "{seen:?}"
    );
}

#[test]
fn an_equal_block_with_another_table_is_another_head() {
    // The newest entry of the table, under four static ones.
    let newest = || [&[0x82, 0x86, 0x84][..], &literal(0, "host", "a"), &[0xbe]].concat();
    let adds = |value: &str| {
        [
            &[0x82, 0x86, 0x84][..],
            &literal(0, "host", "a"),
            &literal(0x40, "n", &format!("v{value}")),
        ]
        .concat()
    };
    // To nothing and back.
    let empties = || [&[0x20, 0x3f, 0xe1, 0x1f][..], &adds("3")].concat();
    let blocks = vec![
        new(END, adds("1")),
        new(END, newest()),
        new(END, newest()),
        new(END, adds("2")),
        new(END, newest()),
        new(END, newest()),
        new(END, adds("2")),
        new(END, adds("2")),
        new(END, empties()),
        new(END, empties()),
        new(END, newest()),
        new(END, newest()),
    ];
    let seen = check(open_server, true, &blocks);
    let values = ["1", "1", "1", "2", "2", "2", "2", "2", "3", "3", "3", "3"];
    for (seen, value) in seen.iter().zip(values) {
        assert!(seen.ends_with(&format!("  n: v{value}\n[]")), "{seen}");
    }
}

#[test]
fn trailers_equal_to_the_last_head_are_trailers() {
    let head = || wire::block(&wire::pseudo("POST"));
    // Too long to be cached.
    let long_name = "n".repeat(200);
    let long = || wire::block(&[&wire::pseudo("POST")[..], &[(&long_name, "v")]].concat());
    for head in [&head as &dyn Fn() -> Vec<u8>, &long] {
        let blocks = three_times(|| {
            vec![
                new(0, head()),
                more(END, Vec::new()),
                new(0, head()),
                more(END, head()),
                new(0, head()),
                more(END, wire::block(&[("t", "1")])),
            ]
        });
        let seen = check(open_server, true, &blocks);
        for seen in seen.chunks(6) {
            assert!(seen[0].starts_with("request") && seen[2].starts_with("request"));
            assert!(
                seen[1].ends_with("[]") && seen[5].ends_with("[]"),
                "{seen:?}"
            );
            assert!(!seen[3].ends_with("[]"), "{seen:?}");
        }
    }
}

#[test]
fn a_repeated_response_is_parsed_like_the_first() {
    let block = |status, fields: &[(&str, &str)]| {
        wire::block(&[&[(":status", status)][..], fields].concat())
    };
    let blocks = three_times(|| {
        vec![
            new(0, block("103", &[("link", "l")])),
            more(0, block("103", &[("link", "l")])),
            more(END, block("200", &[("x", "y")])),
            new(END, block("200", &[("x", "y")])),
            new(0, block("200", &[("x", "y")])),
            more(END, block("200", &[("x", "y")])),
            new(0, block("200", &[("content-length", "5")])),
            new(END, block("200", &[("content-length", "5")])),
            new(END, block("101", &[])),
            new(END, block("101", &[])),
        ]
    });
    let seen = check(client_with_requests, false, &blocks);
    for seen in seen.chunks(10) {
        assert!(
            seen[0].starts_with("interim N 103") && seen[1] == seen[0],
            "{seen:?}"
        );
        assert!(
            seen[2].starts_with("response N 200 HTTP/2 end\n  x: y\n"),
            "{seen:?}"
        );
        assert_eq!(seen[3], seen[2]);
        // A head in place of trailers; an announced body that does not come; and 101.
        for wrong in [5, 7, 8, 9] {
            assert!(seen[wrong].contains("failed"), "{wrong}: {seen:?}");
        }
    }
}

// ---- Block ----

fn field<'a>(name: &'a str, value: &'a str) -> Field<'a> {
    Field {
        name: name.as_bytes(),
        value: value.as_bytes(),
    }
}

/// Two clients with the same requests; only one of them with prepared ones.
struct Both {
    plain: End,
    prepared: End,
    requests: Vec<(String, Option<Bytes>, PreparedRequest)>,
}

impl Both {
    fn new(targets: usize) -> Self {
        let client = || End::h2_client(&Arc::new(Limits::client()));
        let requests = (0..targets).map(|n| {
            let (target, body) = (
                format!("/{n}"),
                (n % 3 == 1).then(|| Bytes::from(vec![b'x'; n - 1])),
            );
            let prepared = with_head(&target, |head| PreparedRequest::new(head, body.clone()));
            (target, body, prepared.expect("good"))
        });
        Self {
            plain: client(),
            prepared: client(),
            requests: requests.collect(),
        }
    }

    fn each(&mut self, what: impl Fn(&mut End)) {
        what(&mut self.plain);
        what(&mut self.prepared);
    }

    /// Sends the same request on both, and responds.
    fn exchange(&mut self, place: usize) {
        if let Ok(id) = self.begin(place) {
            self.each(|end| end.feed(&answer(id)));
        }
        assert_eq!(self.prepared.log.text(), self.plain.log.text());
    }

    fn begin(&mut self, place: usize) -> Result<StreamId, UserError> {
        let (target, body, prepared) = &self.requests[place];
        let id = with_head(target, |head| {
            self.plain.conn.request_pipelined(head, body.clone())
        });
        assert_eq!(self.prepared.conn.request_prepared(prepared), id);
        self.each(End::run_until_idle);
        assert_eq!(self.prepared.written(), self.plain.written());
        id
    }
}

fn answer(id: StreamId) -> Vec<u8> {
    wire::headers(id.0 as u32, END, &[(":status", "204")])
}

fn with_head<T>(target: &str, what: impl FnOnce(&RequestHead<'_>) -> T) -> T {
    what(&RequestHead {
        method: if target.len() == 2 { b"POST" } else { b"GET" },
        target: target.as_bytes(),
        fields: &[
            field("Host", "a"),
            field("Accept", "*/*"),
            field("Authorization", "secret"),
        ],
    })
}

#[test]
fn a_prepared_request_equals_the_request_at_every_table_state() {
    let mut both = Both::new(50);
    // Before the server's settings, and after them.
    let first = both.begin(0).expect("room");
    both.each(|end| end.feed(&[wire::server_preface(), answer(first)].concat()));
    for _ in 0..5 {
        both.exchange(0);
        both.exchange(1);
        both.exchange(2);
    }
    for size in [0, 4096, 200, 4096] {
        both.each(|end| end.feed(&wire::settings(&[(wire::HEADER_TABLE_SIZE, size)])));
        for place in [0, 0, 0, 1, 4, 1, 4, 1, 4] {
            both.exchange(place);
        }
    }
    // Others fill the table, so that its own entries move and are evicted.
    for round in 0..40 {
        let value = "v".repeat(300 + round / 2);
        both.each(|end| {
            let fields = [field("host", "a"), field("x", &value)];
            let head = RequestHead {
                method: b"GET",
                target: b"/",
                fields: &fields,
            };
            let id = end.conn.request(&head, BodySize::Empty).expect("room");
            end.run_until_idle();
            end.feed(&answer(id));
        });
        both.exchange(0);
        both.exchange(4);
    }
    // More than fit into the cache.
    for _ in 0..5 {
        (0..50).for_each(|place| both.exchange(place));
    }
    both.each(|end| end.feed(&wire::go_away(1, towline_proto::ErrorCode::NO_ERROR)));
    assert_eq!(both.begin(0), Err(UserError::NotIdle));
}
