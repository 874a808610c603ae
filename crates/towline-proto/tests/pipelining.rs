//! A client that pipelines requests (RFC 9112 9.3.2).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{
    BufferPool, CloseReason, Connection, Event, Field, Limits, PreparedRequest, RequestHead,
    StreamId, StreamRead, UserError,
};

struct Client {
    conn: Connection,
    buffers: BufferPool,
    now: Instant,
}

impl Client {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            conn: Connection::client(Arc::new(Limits::client()), now),
            buffers: BufferPool::new(64 * 1024, 1),
            now,
        }
    }

    fn pipeline(&mut self, method: &[u8], body: Option<Bytes>) -> Result<StreamId, UserError> {
        let fields = [Field {
            name: b"host",
            value: b"a",
        }];
        let head = RequestHead {
            method,
            target: b"/",
            fields: &fields,
        };
        self.conn.request_pipelined(&head, body)
    }

    fn sent(&mut self) -> Vec<u8> {
        let mut out = [std::io::IoSlice::new(&[]); 16];
        let count = self.conn.send_slices(&mut out);
        let bytes: Vec<u8> = out[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        self.conn.sent(self.now, bytes.len());
        bytes
    }

    /// Feeds `wire` and logs the events.
    fn receive(&mut self, wire: &[u8]) -> Vec<String> {
        let mut log = Vec::new();
        if !wire.is_empty() {
            let space = self.conn.recv_space(&mut self.buffers);
            space[..wire.len()].copy_from_slice(wire);
            self.conn.received(self.now, wire.len());
        }
        while let Some(event) = self.conn.next_event() {
            let stream = match event {
                Event::Head { stream, head, end } => {
                    log.push(format!("{} {}", stream.0, head.status()));
                    if end {
                        continue;
                    }
                    stream
                }
                Event::Readable(stream) => stream,
                Event::Failed(stream, _) => {
                    log.push(format!("{} failed", stream.0));
                    continue;
                }
                Event::Closed(error) => {
                    log.push(format!("closed {:?}", error.reason));
                    continue;
                }
                other => panic!("{other:?}"),
            };
            while let StreamRead::Data(data) = self.conn.stream(stream).unwrap().read(usize::MAX) {
                log.push(format!("{} {}", stream.0, String::from_utf8_lossy(data)));
            }
        }
        log
    }
}

const TWO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabHTTP/1.1 204 No Content\r\n\r\n";

#[test]
fn responses_come_in_order_at_every_cut() {
    for cut in 0..=TWO.len() {
        let mut client = Client::new();
        assert_eq!(client.pipeline(b"GET", None), Ok(StreamId(1)));
        assert_eq!(
            client.pipeline(b"POST", Some(Bytes::from_static(b"xyz"))),
            Ok(StreamId(2))
        );
        let wire = "GET / HTTP/1.1\r\nhost: a\r\n\r\n\
                    POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nxyz";
        assert_eq!(String::from_utf8_lossy(&client.sent()), wire);
        let mut log = client.receive(&TWO[..cut]);
        log.extend(client.receive(&TWO[cut..]));
        assert_eq!(
            log.concat(),
            "1 2001 ab2 204".replace("1 ab", &log_of_body(&log)),
            "{cut}"
        );
        assert!(client.conn.is_reusable());
    }
}

/// The log with a body that was read in two pieces as one.
fn log_of_body(log: &[String]) -> String {
    let is_cut = log.iter().any(|line| line == "1 a");
    if is_cut { "1 a1 b" } else { "1 ab" }.into()
}

#[test]
fn each_request_method_frames_its_own_response() {
    let mut client = Client::new();
    client.pipeline(b"HEAD", None).unwrap();
    client.pipeline(b"GET", None).unwrap();
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    let log = client.receive(&[&head[..], head, b"hi"].concat());
    assert_eq!(log, ["1 200", "2 200", "2 hi"]);
}

#[test]
fn a_surplus_response_is_a_violation() {
    let mut client = Client::new();
    client.pipeline(b"GET", None).unwrap();
    client.pipeline(b"GET", None).unwrap();
    let log = client.receive(&[TWO, b"HTTP/1.1 204 No Content\r\n\r\n"].concat());
    assert_eq!(log, ["1 200", "1 ab", "2 204", "closed Protocol"]);
}

#[test]
fn a_close_between_responses_fails_pipelined_requests() {
    let mut client = Client::new();
    client.pipeline(b"GET", None).unwrap();
    client.pipeline(b"GET", None).unwrap();
    let closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let log = client.receive(closing);
    assert_eq!(
        log,
        ["1 200", format!("closed {:?}", CloseReason::Done).as_str()]
    );
    assert_eq!(client.pipeline(b"GET", None), Err(UserError::NotIdle));

    let mut client = Client::new();
    client.pipeline(b"GET", None).unwrap();
    client.pipeline(b"GET", None).unwrap();
    client.receive(&TWO[..TWO.len() - 27]);
    client.conn.received_eof(client.now);
    assert_eq!(client.receive(b""), ["2 failed", "closed Truncated"]);
}

#[test]
fn no_request_is_pipelined_behind_an_unfinished_body() {
    let mut client = Client::new();
    let fields = [Field {
        name: b"host",
        value: b"a",
    }];
    let head = RequestHead {
        method: b"POST",
        target: b"/",
        fields: &fields,
    };
    let size = towline_proto::BodySize::Known(3);
    client.conn.request(&head, size).unwrap();
    assert_eq!(client.pipeline(b"GET", None), Err(UserError::NotIdle));
}

/// Prepared or not: the same bytes, the same exchanges, the same errors.
#[test]
fn a_prepared_request_equals_the_request() {
    let host = Field {
        name: b"host",
        value: b"a",
    };
    let close = Field {
        name: b"connection",
        value: b"close",
    };
    let long = Bytes::from(vec![b'x'; 100_000]);
    let cases = [
        (&b"GET"[..], &[host][..], None),
        (b"HEAD", &[host], None),
        (b"POST", &[host], Some(Bytes::from_static(b"12345"))),
        (b"POST", &[host], Some(long)),
        (b"GET", &[host, close], None),
    ];
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    for (method, fields, body) in cases {
        let head = RequestHead {
            method,
            target: b"/",
            fields,
        };
        let prepared = PreparedRequest::new(&head, body.clone()).unwrap();
        let (mut one, mut other) = (Client::new(), Client::new());
        for _ in 0..2 {
            let each_time = one.conn.request_pipelined(&head, body.clone());
            assert_eq!(other.conn.request_prepared(&prepared), each_time);
        }
        assert_eq!(other.sent(), one.sent());
        assert_eq!(other.receive(answer), one.receive(answer));
        // The response to HEAD ends with its head; the others have a body.
        let rest: &[u8] = if method == b"HEAD" { answer } else { b"ok" };
        assert_eq!(other.receive(rest), one.receive(rest));
        assert_eq!(
            other.conn.request_prepared(&prepared),
            one.conn.request_pipelined(&head, body)
        );
    }
    let no_host = RequestHead {
        method: b"GET",
        target: b"/",
        fields: &[],
    };
    let refused = PreparedRequest::new(&no_host, None).map(|_| ());
    assert_eq!(refused, Err(UserError::InvalidHost));
}
