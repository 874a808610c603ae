//! Properties: messages are read back at every cut; any input and any sequence of calls is handled.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use towline_proto::{BodySize, Field, Limits, RequestHead, ResponseHead, Side, StreamId};
use towline_testkit::{App, End, Log, Pair, Random, operations, oracle, wire};

// ---- what we write, we read back ----

#[derive(Clone, Debug)]
enum Body {
    Empty,
    Known(Vec<u8>),
    Chunked {
        pieces: Vec<Vec<u8>>,
        trailers: Vec<(String, String)>,
    },
}

#[derive(Clone, Debug)]
struct Exchange {
    method: &'static str,
    target: String,
    request: Message,
    status: u16,
    response: Message,
}

#[derive(Clone, Debug)]
struct Message {
    fields: Vec<(String, String)>,
    body: Body,
}

fn field() -> impl Strategy<Value = (String, String)> {
    (
        "X-[a-zA-Z0-9!#$%&'*+.^_`|~-]{0,12}",
        "([!-~]([ -~]{0,30}[!-~])?)?",
    )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        1 => Just(Body::Empty),
        2 => vec(any::<u8>(), 0..2000).prop_map(Body::Known),
        1 => (100_000_usize..300_000).prop_map(|n| Body::Known(vec![b'k'; n])),
        2 => (vec(vec(any::<u8>(), 0..3000), 0..8), vec(field(), 0..3))
            .prop_map(|(pieces, trailers)| Body::Chunked { pieces, trailers }),
        1 => Just(Body::Chunked { pieces: vec![vec![b'c'; 30_000]; 6], trailers: vec![] }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    (vec(field(), 0..6), body()).prop_map(|(fields, body)| Message { fields, body })
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let head = (
        select(vec!["GET", "POST", "HEAD", "PUT", "M-SEARCH"]),
        "/[a-z0-9/?=&%._~-]{0,40}",
    );
    let status = select(vec![200_u16, 200, 200, 404, 500, 204, 304]);
    (head, message(), status, message()).prop_map(
        |((method, target), request, status, response)| Exchange {
            method,
            target,
            request,
            status,
            response,
        },
    )
}

impl Message {
    fn size(&self) -> BodySize {
        match &self.body {
            Body::Empty => BodySize::Empty,
            Body::Known(data) => BodySize::Known(data.len() as u64),
            Body::Chunked { .. } => BodySize::Unknown,
        }
    }

    fn pieces(&self) -> Vec<&[u8]> {
        match &self.body {
            Body::Empty => vec![],
            Body::Known(data) => data.chunks(7001).collect(),
            Body::Chunked { pieces, .. } => pieces.iter().map(Vec::as_slice).collect(),
        }
    }

    fn trailers(&self) -> &[(String, String)] {
        match &self.body {
            Body::Chunked { trailers, .. } => trailers,
            _ => &[],
        }
    }

    /// The log of this message after its first line.
    fn expect(&self, log: &mut Log, stream: StreamId, head_only: bool) {
        for (name, value) in &self.fields {
            log.field(name.as_bytes(), value.as_bytes());
        }
        if head_only {
            return;
        }
        for piece in self.pieces().into_iter().filter(|piece| !piece.is_empty()) {
            log.body(stream, piece);
        }
        log.line(&format!("end {}", stream.0));
        for (name, value) in self.trailers() {
            log.field(name.as_bytes(), value.as_bytes());
        }
    }

    fn ends_with_head(&self) -> bool {
        matches!(self.size(), BodySize::Empty | BodySize::Known(0))
    }
}

fn fields(pairs: &[(String, String)]) -> Vec<Field<'_>> {
    pairs
        .iter()
        .map(|(name, value)| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
        })
        .collect()
}

/// Writes a body as a program does: only while there is send capacity.
fn write_body(pair: &mut Pair, side: Side, id: StreamId, message: &Message, random: &mut Random) {
    if message.size() == BodySize::Empty {
        return;
    }
    for piece in message.pieces() {
        for _ in 0..10_000 {
            let end = if side == Side::Client {
                &mut pair.client
            } else {
                &mut pair.server
            };
            if end.conn.stream(id).expect("open").send_capacity() > 0 {
                break;
            }
            pair.run_cut(random);
        }
        let end = if side == Side::Client {
            &mut pair.client
        } else {
            &mut pair.server
        };
        end.conn
            .stream(id)
            .expect("open")
            .write(piece)
            .expect("within the length");
    }
    let end = if side == Side::Client {
        &mut pair.client
    } else {
        &mut pair.server
    };
    let mut stream = end.conn.stream(id).expect("open");
    match message.trailers() {
        [] => stream.finish().expect("complete"),
        trailers => stream.finish_with(&fields(trailers)).expect("complete"),
    }
}

/// The log without the added framing fields.
fn without_framing(log: &Log) -> String {
    let added = |line: &&str| {
        let line = line.to_ascii_lowercase();
        ["  content-length:", "  transfer-encoding:"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    log.text()
        .lines()
        .filter(|line| !added(line))
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn round_trip(exchanges: &[Exchange], seed: u64, pipe_bytes: usize) {
    let mut random = Random::new(seed);
    let mut pair = Pair::new(&Arc::new(Limits::server()));
    pair.pipe_bytes = pipe_bytes;
    let (mut requests, mut responses) = (Log::default(), Log::default());
    for exchange in exchanges {
        let mut all = vec![("Host".to_owned(), "a".to_owned())];
        all.extend(exchange.request.fields.iter().cloned());
        let (method, target) = (exchange.method.as_bytes(), exchange.target.as_bytes());
        let head = RequestHead {
            method,
            target,
            fields: &fields(&all),
        };
        let id = pair
            .client
            .conn
            .request(&head, exchange.request.size())
            .expect("idle");
        write_body(&mut pair, Side::Client, id, &exchange.request, &mut random);
        pair.run_cut(&mut random);
        let served = pair.server.last_stream().expect("a request arrived");
        let end = if exchange.request.ends_with_head() {
            " end"
        } else {
            ""
        };
        requests.line(&format!(
            "request {} {} {} HTTP/1.1{end}",
            served.0, exchange.method, exchange.target
        ));
        requests.field(b"Host", b"a");
        exchange
            .request
            .expect(&mut requests, served, exchange.request.ends_with_head());

        let head = ResponseHead {
            status: exchange.status,
            reason: b"Why",
            fields: &fields(&exchange.response.fields),
        };
        pair.server
            .conn
            .respond(served, &head, exchange.response.size())
            .expect("an open exchange");
        write_body(
            &mut pair,
            Side::Server,
            served,
            &exchange.response,
            &mut random,
        );
        pair.run_cut(&mut random);
        let bodiless = exchange.method == "HEAD" || matches!(exchange.status, 204 | 304);
        let bodiless = bodiless || exchange.response.ends_with_head();
        let end = if bodiless { " end" } else { "" };
        responses.line(&format!(
            "response {} {} Why HTTP/1.1{end}",
            id.0, exchange.status
        ));
        exchange.response.expect(&mut responses, id, bodiless);
    }
    assert_eq!(without_framing(&pair.server.log), requests.text());
    assert_eq!(without_framing(&pair.client.log), responses.text());
    assert!(pair.client.conn.is_reusable() && pair.server.conn.is_idle());
}

// ---- hostile input ----

/// Fragments of requests and attacks.
const FRAGMENTS: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "POST /x HTTP/1.1\r\n",
    "GET / HTTP/1.0\r\n",
    "HEAD http://a/ HTTP/1.1\r\n",
    "CONNECT a:1 HTTP/1.1\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 204 \r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 X\r\n",
    "HTTP/1.0 304 X\r\n",
    "Host: a\r\n",
    "Host: b\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: +5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive, Upgrade\r\n",
    "Upgrade: test\r\n",
    "Expect: 100-continue\r\n",
    "X: y\r\n",
    " folded\r\n",
    "X : y\r\n",
    "\r\n",
    "\n",
    "\r",
    "\0",
    " ",
    "\t",
    ":",
    "hello",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "0\r\n",
    "5;a=b\r\nhello\r\n",
    "1",
    ";",
    "ffffffffffffffff\r\n",
];

fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let pieces = vec(select(FRAGMENTS), 0..16);
    let flips = vec((any::<Index>(), any::<u8>()), 0..3);
    let good = any::<bool>();
    (pieces, flips, good).prop_map(|(pieces, flips, good)| {
        let mut wire = if good {
            wire::get("/first")
        } else {
            Vec::new()
        };
        wire.extend(pieces.concat().into_bytes());
        for (at, byte) in flips {
            if !wire.is_empty() {
                let at = at.index(wire.len());
                wire[at] = byte;
            }
        }
        wire
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_are_read_back(
        exchanges in vec(exchange(), 1..4),
        seed: u64,
        pipe_bytes in select(vec![usize::MAX, 100_000, 1000, 100]),
    ) {
        round_trip(&exchanges, seed, pipe_bytes);
    }

    #[test]
    fn hostile_requests_are_handled(wire in hostile(), seed: u64) {
        oracle::check_requests(&wire, seed);
    }

    #[test]
    fn hostile_responses_are_handled(wire in hostile(), seed: u64) {
        oracle::check_responses(&wire, seed);
    }

    #[test]
    fn hostile_chunks_are_handled(wire in hostile(), seed: u64) {
        oracle::check_chunked(&wire, seed);
    }

    #[test]
    fn random_bytes_are_handled(wire in vec(any::<u8>(), 0..300), seed: u64) {
        oracle::check_requests(&wire, seed);
        oracle::check_responses(&wire, seed);
    }

    #[test]
    fn any_sequence_of_calls_is_handled(script in vec(any::<u8>(), 0..200)) {
        operations::check(&script);
    }
}

// ---- bounds ----

/// Bytes accepted by a connection whose program does not read: the window and the capacity of a buffer.
const READ_AHEAD_BYTES: usize = 3 * 64 * 1024;

#[test]
fn an_unread_body_stops_reading() {
    for head in ["Content-Length: 10000000", "Transfer-Encoding: chunked"] {
        let mut end = End::server(&Arc::new(Limits::server()), App::Silent);
        end.feed(&wire::request("POST", "/", &[head], b""));
        let piece = if head.starts_with('T') {
            wire::chunked(&[[b'x'; 4096]], &[])
        } else {
            vec![b'x'; 4104]
        };
        let piece = piece.strip_suffix(b"0\r\n\r\n").unwrap_or(&piece);
        for _ in 0..2000 {
            end.feed(piece);
        }
        let taken = 2000 * piece.len() - end.unread_bytes();
        assert!(
            taken <= READ_AHEAD_BYTES,
            "{head}: {taken} bytes taken without being read"
        );
        assert!(!end.conn.interest().read, "{head}: still reading");
    }
}

#[test]
fn pipelined_requests_wait_for_the_response_before_them() {
    let mut end = End::server(&Arc::new(Limits::server()), App::Manual);
    let flood = wire::get("/").repeat(20_000);
    end.feed(&flood);
    assert_eq!(end.log.text().matches("request ").count(), 1);
    assert!(flood.len() - end.unread_bytes() <= READ_AHEAD_BYTES);
}

#[test]
fn reading_stops_for_a_peer_that_never_reads() {
    let mut end = End::server(&Arc::new(Limits::server()), App::Read);
    end.send_room = 0;
    let flood = wire::get("/").repeat(20_000);
    end.feed(&flood);
    assert!(
        end.conn.pending_bytes() <= 128 * 1024,
        "{} bytes pending",
        end.conn.pending_bytes()
    );
    assert!(
        end.unread_bytes() > 0,
        "everything was read although nothing could be written"
    );
    let before = end.written().len();
    end.send_room = usize::MAX;
    end.run_until_idle();
    assert!(end.written().len() > before);
    let log = end.log_text();
    assert_eq!(
        log.matches("wrote 200").count(),
        20_000,
        "every request is answered once the peer reads"
    );
}
