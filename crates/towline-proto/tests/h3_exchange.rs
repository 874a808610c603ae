//! Whole exchanges of HTTP/3 between our two ends, over streams that are cut and interleaved at random.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use towline_proto::{
    BodySize, Connection, Event, Field, Limits, PreparedRequest, RequestHead, ResponseHead, Side,
    StreamId, StreamRead, Version,
};
use towline_testkit::Random;
use towline_testkit::h3::QuicPair;

const HOST: Field<'_> = Field {
    name: b"host",
    value: b"example.org",
};

fn pair() -> QuicPair {
    QuicPair::new(&Arc::new(Limits::client()), &Arc::new(Limits::server()))
}

fn get(target: &[u8]) -> RequestHead<'_> {
    RequestHead {
        method: b"GET",
        target,
        fields: &[HOST],
    }
}

const OK: ResponseHead<'_> = ResponseHead {
    status: 200,
    reason: b"",
    fields: &[Field {
        name: b"content-type",
        value: b"text/plain",
    }],
};

/// Reads what is there; true at the end.
fn read(conn: &mut Connection, id: StreamId, into: &mut Vec<u8>) -> bool {
    loop {
        match conn.stream(id).expect("open").read(7000) {
            StreamRead::Data(data) => into.extend_from_slice(data),
            StreamRead::End => return true,
            StreamRead::Pending => return false,
            StreamRead::Failed => panic!("failed"),
        }
    }
}

#[test]
fn a_request_gets_its_response() {
    let mut pair = pair();
    let id = pair.client.request(&get(b"/"), BodySize::Empty).unwrap();
    assert_eq!(id, StreamId(0));
    pair.run();
    let Some(Event::Head { stream, head, end }) = pair.server.next_event() else {
        panic!("a request");
    };
    assert!(end);
    assert_eq!(
        (head.method(), head.target(), head.version()),
        (&b"GET"[..], &b"/"[..], Version::Http3)
    );
    assert_eq!(head.field(b"host"), Some(&b"example.org"[..]));
    pair.server
        .respond(stream, &OK, BodySize::Known(5))
        .unwrap();
    pair.server.stream(stream).unwrap().write(b"hello").unwrap();
    pair.server.stream(stream).unwrap().finish().unwrap();
    assert!(pair.server.next_event().is_none());
    pair.run();
    let Some(Event::Head { stream, head, end }) = pair.client.next_event() else {
        panic!("a response");
    };
    assert_eq!((stream, head.status(), end), (id, 200, false));
    assert_eq!(head.field(b"content-length"), Some(&b"5"[..]));
    let mut body = Vec::new();
    assert!(read(&mut pair.client, id, &mut body));
    assert_eq!(body, b"hello");
    assert!(pair.client.next_event().is_none());
    assert!(pair.client.stream(id).is_err());
    assert!(pair.server.next_event().is_none() && pair.server.stream(id).is_err());
    pair.run();
    assert!(pair.client.is_idle() && pair.server.is_idle());
}

/// Both programs of an exchange: a body up, the same body down with trailers.
struct Echo {
    pair: QuicPair,
    sent: BTreeMap<u64, Vec<u8>>,
    unsent: BTreeMap<u64, Vec<u8>>,
    echoed: BTreeMap<u64, Vec<u8>>,
    received: BTreeMap<u64, Vec<u8>>,
    ended: BTreeMap<u64, Vec<u8>>,
}

impl Echo {
    fn events(&mut self, side: Side) {
        loop {
            let conn = self.pair.end(side);
            let id = match conn.next_event() {
                None => return,
                Some(Event::Head { stream, .. }) => {
                    if side == Side::Server {
                        conn.respond(stream, &OK, BodySize::Unknown).unwrap();
                    }
                    stream
                }
                Some(Event::Readable(stream) | Event::Writable(stream)) => stream,
                Some(event) => panic!("{side:?}: {event:?}"),
            };
            match side {
                Side::Client => self.client(id),
                Side::Server => self.server(id),
            }
        }
    }

    fn client(&mut self, id: StreamId) {
        self.upload(id);
        let into = self.received.entry(id.0).or_default();
        if !self.ended.contains_key(&id.0) && read(&mut self.pair.client, id, into) {
            let stream = self.pair.client.stream(id).unwrap();
            let sum = stream.trailers().next().expect("a trailer").value.to_vec();
            self.ended.insert(id.0, sum);
        }
    }

    fn upload(&mut self, id: StreamId) {
        let rest = self.unsent.entry(id.0).or_default();
        let Ok(mut stream) = self.pair.client.stream(id) else {
            return;
        };
        while !rest.is_empty() {
            let n = stream.send_capacity().min(rest.len()).min(9000);
            if n == 0 {
                return;
            }
            let piece: Vec<u8> = rest.drain(..n).collect();
            if n % 2 == 0 {
                stream.write(&piece).unwrap();
            } else {
                stream.write_shared(Bytes::from(piece)).unwrap();
            }
        }
        stream.finish().unwrap();
    }

    fn server(&mut self, id: StreamId) {
        let server = &mut self.pair.server;
        let into = self.echoed.entry(id.0).or_default();
        loop {
            let Ok(mut stream) = server.stream(id) else {
                return;
            };
            let capacity = stream.send_capacity();
            if capacity == 0 {
                return;
            }
            match stream.read(capacity.min(5000)) {
                StreamRead::Data(data) => {
                    let data = data.to_vec();
                    into.extend_from_slice(&data);
                    stream.write(&data).unwrap();
                }
                StreamRead::Pending => return,
                StreamRead::End => break,
                StreamRead::Failed => panic!("failed"),
            }
        }
        let sum = into.len().to_string();
        let trailer = Field {
            name: b"X-Sum",
            value: sum.as_bytes(),
        };
        let mut stream = server.stream(id).unwrap();
        stream.finish_with(&[trailer]).unwrap();
    }
}

#[test]
fn bodies_arrive_whole_whatever_the_cuts() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut echo = Echo {
            pair: pair(),
            sent: BTreeMap::new(),
            unsent: BTreeMap::new(),
            echoed: BTreeMap::new(),
            received: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        echo.pair.window = 1 << (4 + random.below(14));
        for _ in 0..6 {
            let size = match random.below(3) {
                0 => BodySize::Unknown,
                1 => BodySize::Known(1 + random.below(200_000) as u64),
                _ => BodySize::Known(random.below(100) as u64),
            };
            let len = match size {
                BodySize::Known(n) => n as usize,
                _ => random.below(100_000),
            };
            let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let head = RequestHead {
                method: b"POST",
                ..get(b"/echo?some=query")
            };
            let id = echo.pair.client.request(&head, size).unwrap();
            echo.sent.insert(id.0, body.clone());
            echo.unsent.insert(id.0, body);
            echo.upload(id);
        }
        for round in 0_u32.. {
            assert!(round < 2_000_000, "seed {seed}: no end");
            let from = [Side::Client, Side::Server][random.below(2)];
            let max = 1 << random.below(17);
            let mut moved = echo.pair.send(from, max.max(1 << random.below(17)));
            moved |= echo.pair.deliver(from, &mut random, max);
            echo.events(Side::Client);
            echo.events(Side::Server);
            echo.pair.read(Side::Client);
            echo.pair.read(Side::Server);
            if echo.ended.len() == 6 {
                break;
            }
            let _ = moved;
        }
        for (id, body) in &echo.sent {
            assert!(echo.received[id] == *body, "seed {seed}: body of {id}");
            assert_eq!(echo.ended[id], body.len().to_string().as_bytes());
        }
        echo.pair.run();
        echo.events(Side::Client);
        echo.events(Side::Server);
        assert!(echo.pair.client.is_idle(), "seed {seed}");
        assert!(echo.pair.server.is_idle(), "seed {seed}");
    }
}

#[test]
fn prepared_requests_are_the_same_requests() {
    let mut pair = pair();
    let fields = [
        HOST,
        Field {
            name: b"X-Token",
            value: b"0123456789 0123456789",
        },
    ];
    let head = RequestHead {
        fields: &fields,
        ..get(b"/prepared/path?x=1")
    };
    let request = PreparedRequest::new(&head, Some(Bytes::from_static(b"body"))).unwrap();
    for round in 0..300_u64 {
        let id = pair.client.request_prepared(&request).unwrap();
        assert_eq!(id, StreamId(round * 4));
        pair.run();
        let Some(Event::Head { stream, head, .. }) = pair.server.next_event() else {
            panic!("a request");
        };
        assert_eq!(head.target(), b"/prepared/path?x=1");
        let fields: Vec<_> = head
            .fields()
            .map(|field| (field.name.to_vec(), field.value.to_vec()))
            .collect();
        let pair_of = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        assert_eq!(
            fields,
            [
                pair_of(b"host", b"example.org"),
                pair_of(b"x-token", b"0123456789 0123456789"),
                pair_of(b"content-length", b"4"),
            ]
        );
        let mut body = Vec::new();
        assert!(read(&mut pair.server, stream, &mut body));
        assert_eq!(body, b"body");
        pair.server.respond(stream, &OK, BodySize::Empty).unwrap();
        pair.run();
        assert!(matches!(
            pair.client.next_event(),
            Some(Event::Head { end: true, .. })
        ));
        assert!(pair.client.next_event().is_none());
        assert!(pair.server.next_event().is_none());
        pair.release();
    }
}

#[test]
fn a_stopped_server_finishes_its_requests_and_closes() {
    let mut pair = pair();
    let id = pair.client.request(&get(b"/"), BodySize::Empty).unwrap();
    pair.run();
    assert!(matches!(pair.server.next_event(), Some(Event::Head { .. })));
    let now = pair.clock.now();
    pair.server.drain(now);
    pair.run();
    assert!(matches!(
        pair.client.next_event(),
        Some(Event::GoingAway { .. })
    ));
    assert_eq!(pair.client.stream_capacity(), 0);
    pair.advance(std::time::Duration::from_secs(5));
    assert!(!pair.server.interest().closed && !pair.client.interest().closed);
    pair.server.respond(id, &OK, BodySize::Empty).unwrap();
    pair.run();
    while let Some(event) = pair.client.next_event() {
        assert!(
            !matches!(event, Event::Failed(..)),
            "the response is complete: {event:?}"
        );
    }
    while pair.server.next_event().is_some() {}
    pair.run();
    pair.advance(std::time::Duration::from_secs(5));
    while pair.server.next_event().is_some() {}
    assert!(
        pair.server.interest().closed,
        "{:?}",
        pair.server.interest()
    );
    assert!(pair.client.interest().closed);
    assert!(pair.server.error().is_some_and(|error| error.is_clean()));
}
