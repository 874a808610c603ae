//! HTTP/2 exchanges between two ends in memory, from the program's side.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{
    BodySize, BufferPool, Connection, Event, Field, Limits, Protocol, ProtocolPolicy, RequestHead,
    ResponseHead, StreamId, StreamRead,
};

struct EndPair {
    client: Connection,
    server: Connection,
    buffers: BufferPool,
    now: Instant,
}

const HOST: Field<'_> = Field {
    name: b"Host",
    value: b"localhost:8000",
};

fn transfer(
    from: &mut Connection,
    to: &mut Connection,
    buffers: &mut BufferPool,
    now: Instant,
) -> bool {
    let mut slices = [IoSlice::new(&[]); 64];
    let count = from.send_slices(&mut slices);
    let space = to.recv_space(buffers);
    let mut n = 0;
    for slice in &slices[..count] {
        let take = slice.len().min(space.len() - n);
        space[n..n + take].copy_from_slice(&slice[..take]);
        n += take;
    }
    if n > 0 {
        to.received(now, n);
        from.sent(now, n);
    }
    n > 0
}

impl EndPair {
    fn new() -> Self {
        Self::with(Limits::client(), Limits::server())
    }

    fn with(client: Limits, server: Limits) -> Self {
        let now = Instant::now();
        Self {
            client: Connection::client_with_protocol(Arc::new(client), Protocol::Http2, now),
            server: Connection::server_with_policy(Arc::new(server), ProtocolPolicy::Either, now),
            buffers: BufferPool::new(64 * 1024, 4),
            now,
        }
    }

    fn get(&mut self, target: &[u8]) -> StreamId {
        self.client
            .request(
                &RequestHead {
                    method: b"GET",
                    target,
                    fields: &[HOST],
                },
                BodySize::Empty,
            )
            .expect("a request")
    }

    fn deliver_up(&mut self) -> bool {
        transfer(
            &mut self.client,
            &mut self.server,
            &mut self.buffers,
            self.now,
        )
    }

    fn deliver_down(&mut self) -> bool {
        transfer(
            &mut self.server,
            &mut self.client,
            &mut self.buffers,
            self.now,
        )
    }
}

fn ok<'a>(fields: &'a [Field<'a>]) -> ResponseHead<'a> {
    ResponseHead {
        status: 200,
        reason: b"",
        fields,
    }
}

fn read_now(conn: &mut Connection, id: StreamId) -> (Vec<u8>, bool) {
    let mut seen = Vec::new();
    loop {
        match conn.stream(id).expect("open").read(64 * 1024) {
            StreamRead::Data(data) => seen.extend_from_slice(data),
            StreamRead::Pending => return (seen, false),
            StreamRead::End => return (seen, true),
            StreamRead::Failed => panic!("failed"),
        }
    }
}

#[test]
fn a_small_exchange() {
    let mut ends = EndPair::new();
    let id = ends.get(b"/x?y");
    assert!(ends.deliver_up());
    match ends.server.next_event() {
        Some(Event::Head { stream, head, end }) => {
            assert_eq!(stream, id);
            assert!(end);
            assert_eq!((head.method(), head.target()), (&b"GET"[..], &b"/x?y"[..]));
            let fields: Vec<_> = head.fields().map(|f| (f.name, f.value)).collect();
            assert_eq!(fields, [(&b"host"[..], &b"localhost:8000"[..])]);
        }
        other => panic!("{other:?}"),
    }
    assert!(ends.server.next_event().is_none());
    ends.server
        .respond(id, &ok(&[]), BodySize::Known(13))
        .expect("a response");
    let mut stream = ends.server.stream(id).expect("open");
    stream.write(b"Hello, world!").expect("room");
    stream.finish().expect("complete");
    assert!(ends.deliver_down());
    match ends.client.next_event() {
        Some(Event::Head { stream, head, end }) => {
            assert_eq!((stream, head.status(), end), (id, 200, false));
            assert_eq!(head.field(b"content-length"), Some(&b"13"[..]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        read_now(&mut ends.client, id),
        (b"Hello, world!".to_vec(), true)
    );
    assert!(ends.client.next_event().is_none());
    assert!(ends.server.next_event().is_none());
    ends.deliver_up();
    assert!(ends.server.next_event().is_none());
    assert!(ends.client.is_idle() && ends.server.is_idle());
}

#[test]
fn a_large_body_both_ways_and_trailers() {
    let mut ends = EndPair::new();
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let id = ends
        .client
        .request(
            &RequestHead {
                method: b"POST",
                target: b"/",
                fields: &[HOST],
            },
            BodySize::Unknown,
        )
        .expect("a request");
    let mut sent = 0;
    let mut seen = Vec::new();
    let mut ended = false;
    let mut begun = false;
    for _ in 0..10_000 {
        let mut stream = ends.client.stream(id).expect("open");
        while sent < body.len() && stream.send_capacity() > 0 {
            let n = stream.send_capacity().min(body.len() - sent).min(50_000);
            stream
                .write_shared(Bytes::copy_from_slice(&body[sent..sent + n]))
                .expect("room");
            sent += n;
            if sent == body.len() {
                let sum = Field {
                    name: b"X-Sum",
                    value: b"1",
                };
                stream.finish_with(&[sum]).expect("complete");
            }
        }
        let moved = ends.deliver_up() | ends.deliver_down();
        while let Some(event) = ends.server.next_event() {
            begun |= matches!(event, Event::Head { .. });
        }
        while ends.client.next_event().is_some() {}
        if begun {
            let (data, end) = read_now(&mut ends.server, id);
            seen.extend_from_slice(&data);
            ended = end;
        }
        if ended || !moved {
            break;
        }
    }
    assert!(ended, "{} of {}, {sent} sent", seen.len(), body.len());
    assert!(seen == body);
    let stream = ends.server.stream(id).expect("open");
    let trailers: Vec<_> = stream.trailers().map(|f| (f.name, f.value)).collect();
    assert_eq!(trailers, [(&b"x-sum"[..], &b"1"[..])]);
}

/// Bytes of a hand-written peer.
fn feed(conn: &mut Connection, buffers: &mut BufferPool, now: Instant, bytes: &[u8]) {
    let space = conn.recv_space(buffers);
    space[..bytes.len()].copy_from_slice(bytes);
    conn.received(now, bytes.len());
}

fn take(conn: &mut Connection, now: Instant) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 64];
    let count = conn.send_slices(&mut slices);
    let bytes: Vec<u8> = slices[..count]
        .iter()
        .flat_map(|s| s.iter().copied())
        .collect();
    conn.sent(now, bytes.len());
    bytes
}

#[test]
fn a_raised_initial_window_resumes_a_body() {
    let now = Instant::now();
    let mut buffers = BufferPool::new(64 * 1024, 1);
    let mut conn =
        Connection::server_with_policy(Arc::new(Limits::server()), ProtocolPolicy::Http2, now);
    feed(
        &mut conn,
        &mut buffers,
        now,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0",
    );
    assert!(conn.next_event().is_none());
    feed(
        &mut conn,
        &mut buffers,
        now,
        b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a",
    );
    let Some(Event::Head { stream, .. }) = conn.next_event() else {
        panic!("no request")
    };
    conn.respond(stream, &ok(&[]), BodySize::Known(5))
        .expect("good");
    let mut body = conn.stream(stream).expect("open");
    body.write(b"hello").expect("room");
    body.finish().expect("complete");
    take(&mut conn, now);
    feed(
        &mut conn,
        &mut buffers,
        now,
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\x01",
    );
    assert!(conn.next_event().is_none());
    let sent = take(&mut conn, now);
    assert!(
        sent.ends_with(b"\0\0\0\x04\x01\0\0\0\0\0\0\x01\0\0\0\0\0\x01h"),
        "{sent:?}"
    );
}
