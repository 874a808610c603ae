//! The allocation budget: in steady state a kept-alive connection allocates nothing.
//!
//! A counting allocator needs `unsafe impl GlobalAlloc`; it is in this test binary because the library forbids
//! `unsafe`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::bench::HpackScratch;
use towline_proto::{
    BodySize, BufferPool, Connection, Event, Field, Limits, Protocol, ProtocolPolicy, RequestHead,
    ResponseHead, StreamId, StreamRead,
};
use towline_testkit::h2;
use towline_testkit::h3::frames;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn grow(bytes: usize) {
    LIVE_BYTES.with(|live| live.set(live.get().wrapping_add(bytes)));
}

// Memory of another thread may be freed here, so the figure wraps rather than panics.
fn shrink(bytes: usize) {
    LIVE_BYTES.with(|live| live.set(live.get().wrapping_sub(bytes)));
}

// SAFETY: every call goes to `System` unchanged; the counter is a thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        grow(layout.size());
        // SAFETY: the caller's contract is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: `block` came from `System` through `alloc` above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        shrink(layout.size());
        grow(size);
        // SAFETY: `block` came from `System` through `alloc` above.
        unsafe { System.realloc(block, layout, size) }
    }
}

const OK: ResponseHead<'static> = ResponseHead {
    status: 200,
    reason: b"",
    fields: &[],
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Both ends of a connection and the pool, without allocations of the test itself.
struct EndPair {
    client: Connection,
    server: Connection,
    buffers: BufferPool,
    now: Instant,
}

fn transfer(from: &mut Connection, to: &mut Connection, buffers: &mut BufferPool, now: Instant) {
    loop {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = from.send_slices(&mut slices);
        let space = to.recv_space(buffers);
        let mut n = 0;
        for slice in &slices[..count] {
            let take = slice.len().min(space.len() - n);
            space[n..n + take].copy_from_slice(&slice[..take]);
            n += take;
        }
        if n == 0 {
            return;
        }
        to.received(now, n);
        from.sent(now, n);
    }
}

fn read_all(conn: &mut Connection, id: StreamId) -> usize {
    let mut total = 0;
    loop {
        match conn.stream(id).expect("open").read(64 * 1024) {
            StreamRead::Data(data) => total += data.len(),
            StreamRead::Pending | StreamRead::End => return total,
            StreamRead::Failed => panic!("failed"),
        }
    }
}

#[derive(Clone, Copy)]
struct Shape {
    method: &'static [u8],
    request: &'static [u8],
    response: &'static [u8],
    size: BodySize,
}

impl EndPair {
    fn new(protocol: Protocol) -> Self {
        let now = Instant::now();
        let (client, server) = (Arc::new(Limits::client()), Arc::new(Limits::server()));
        Self {
            client: Connection::client_with_protocol(client, protocol, now),
            server: Connection::server_with_policy(server, ProtocolPolicy::Either, now),
            buffers: BufferPool::new(64 * 1024, 4),
            now,
        }
    }

    fn exchange(&mut self, shape: Shape) {
        let fields = [
            Field {
                name: b"Host",
                value: b"localhost:8000",
            },
            Field {
                name: b"User-Agent",
                value: b"towline-test/1.0",
            },
            Field {
                name: b"Accept",
                value: b"*/*",
            },
        ];
        let size = if shape.request.is_empty() {
            BodySize::Empty
        } else {
            BodySize::Known(shape.request.len() as u64)
        };
        let head = RequestHead {
            method: shape.method,
            target: b"/hello?x=y",
            fields: &fields,
        };
        let asked = self.client.request(&head, size).expect("idle");
        if !shape.request.is_empty() {
            let mut stream = self.client.stream(asked).expect("open");
            stream.write(shape.request).expect("room");
            stream.finish().expect("complete");
        }
        transfer(
            &mut self.client,
            &mut self.server,
            &mut self.buffers,
            self.now,
        );
        let id = self.next_head(false);
        assert_eq!(read_all(&mut self.server, id), shape.request.len());
        self.respond(id, shape);
        transfer(
            &mut self.server,
            &mut self.client,
            &mut self.buffers,
            self.now,
        );
        let id = self.next_head(true);
        assert_eq!(read_all(&mut self.client, id), shape.response.len());
        self.client.release(&mut self.buffers);
        self.server.release(&mut self.buffers);
    }

    fn respond(&mut self, id: StreamId, shape: Shape) {
        let fields = [
            Field {
                name: b"Content-Type",
                value: b"text/plain; charset=utf-8",
            },
            Field {
                name: b"Server",
                value: b"towline",
            },
        ];
        let head = ResponseHead {
            status: 200,
            reason: b"",
            fields: &fields,
        };
        self.server.respond(id, &head, shape.size).expect("open");
        if shape.size == BodySize::Empty {
            return;
        }
        let mut stream = self.server.stream(id).expect("open");
        stream.write(shape.response).expect("room");
        stream.finish().expect("complete");
    }

    fn next_head(&mut self, client: bool) -> StreamId {
        let conn = if client {
            &mut self.client
        } else {
            &mut self.server
        };
        loop {
            match conn.next_event() {
                Some(Event::Head { stream, .. }) => return stream,
                Some(_) => {}
                None => panic!("no head"),
            }
        }
    }
}

fn allocations_per_thousand(protocol: Protocol, shape: Shape) -> u64 {
    let mut ends = EndPair::new(protocol);
    for _ in 0..10 {
        ends.exchange(shape);
    }
    let before = COUNT.get();
    for _ in 0..1000 {
        ends.exchange(shape);
    }
    COUNT.get() - before
}

#[test]
fn a_kept_alive_exchange_allocates_nothing_on_either_side() {
    let body = b"Hello, world!";
    let get = Shape {
        method: b"GET",
        request: b"",
        response: body,
        size: BodySize::Known(body.len() as u64),
    };
    let post = Shape {
        method: b"POST",
        request: &[b'x'; 4096],
        ..get
    };
    let chunked = Shape {
        size: BodySize::Unknown,
        ..get
    };
    let empty = Shape {
        response: b"",
        size: BodySize::Empty,
        ..get
    };
    for (name, shape) in [
        ("get", get),
        ("post 4 KiB", post),
        ("chunked", chunked),
        ("empty", empty),
    ] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            assert_eq!(
                allocations_per_thousand(protocol, shape),
                0,
                "{protocol:?}, {name}: allocations in 1000 exchanges"
            );
        }
    }
}

/// Concurrently, so that they share the tables of streams, the send queue and the pending events.
#[test]
fn streams_at_once_allocate_nothing_on_either_side() {
    const AT_ONCE: usize = 16;
    let shape = Shape {
        method: b"GET",
        request: b"",
        response: &[b'x'; 4096],
        size: BodySize::Known(4096),
    };
    let mut ends = EndPair::new(Protocol::Http2);
    let mut before = 0;
    for round in 0..100 {
        if round == 10 {
            before = COUNT.get();
        }
        for _ in 0..AT_ONCE {
            let fields = [Field {
                name: b"Host",
                value: b"a",
            }];
            let head = RequestHead {
                method: shape.method,
                target: b"/",
                fields: &fields,
            };
            ends.client.request(&head, BodySize::Empty).expect("room");
        }
        let EndPair {
            client,
            server,
            buffers,
            now,
        } = &mut ends;
        transfer(client, server, buffers, *now);
        for _ in 0..AT_ONCE {
            let id = ends.next_head(false);
            ends.respond(id, shape);
        }
        let EndPair {
            client,
            server,
            buffers,
            now,
        } = &mut ends;
        let mut seen = 0;
        while server.pending_bytes() > 0 {
            transfer(server, client, buffers, *now);
            while let Some(event) = client.next_event() {
                if let Event::Head { stream, .. } | Event::Readable(stream) = event {
                    seen += read_all(client, stream);
                }
            }
            transfer(client, server, buffers, *now);
            assert!(server.next_event().is_none());
        }
        assert_eq!(seen, AT_ONCE * shape.response.len());
        client.release(buffers);
        server.release(buffers);
    }
    assert_eq!(COUNT.get() - before, 0, "allocations in 90 rounds");
}

#[test]
fn a_repeated_head_passes_hpack_without_an_allocation() {
    let mut numbers = (0..).map(|n: u32| format!("/{n:08}").into_bytes());
    let paths: Vec<_> = numbers.by_ref().take(2000).collect();
    let mut sender = HpackScratch::new(64 * 1024, 128);
    let mut receiver = HpackScratch::new(64 * 1024, 128);
    let mut before = 0;
    // The table is replaced many times: the path is new in each block, the last name returns.
    for (n, path) in paths.iter().enumerate() {
        if n == 1000 {
            before = COUNT.get();
        }
        let fields: [(&[u8], &[u8]); 4] = [
            (b":method", b"GET"),
            (b":path", path),
            (b"user-agent", path),
            (b"x-trace", path),
        ];
        let fields = fields.map(|(name, value)| Field { name, value });
        let block = sender.encode(&fields);
        let (decoded, good) = receiver.decode(block).expect("a good block");
        assert!(good && decoded.len() == 4);
    }
    assert_eq!(COUNT.get() - before, 0);
}

/// Bytes held by each of a thousand server connections, after `wire` was received and every request got a
/// response.
fn live_bytes_each(wire: &[u8]) -> usize {
    const CONNECTIONS: usize = 1000;
    let limits = Arc::new(Limits::server());
    let now = Instant::now();
    let mut buffers = BufferPool::new(64 * 1024, 4);
    let mut kept: Vec<Connection> = Vec::with_capacity(CONNECTIONS);
    let before = LIVE_BYTES.get();
    for _ in 0..CONNECTIONS {
        let mut conn =
            Connection::server_with_policy(Arc::clone(&limits), ProtocolPolicy::Either, now);
        conn.recv_space(&mut buffers)[..wire.len()].copy_from_slice(wire);
        conn.received(now, wire.len());
        while let Some(event) = conn.next_event() {
            if let Event::Head { stream, .. } = event {
                conn.respond(stream, &OK, BodySize::Empty).expect("open");
            }
        }
        let pending = conn.pending_bytes();
        conn.sent(now, pending);
        conn.release(&mut buffers);
        kept.push(conn);
    }
    drop(buffers);
    LIVE_BYTES.get().wrapping_sub(before) / CONNECTIONS + size_of::<Connection>()
}

#[test]
fn an_idle_connection_holds_next_to_nothing() {
    let answered = live_bytes_each(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        answered <= 384,
        "{answered} bytes for a kept-alive connection"
    );
    let slow = [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ".to_vec(),
        vec![b'y'; 1000],
    ]
    .concat();
    let waiting = live_bytes_each(&slow);
    assert!(
        waiting <= 2048 + slow.len(),
        "{waiting} bytes for half a head of {}",
        slow.len()
    );
}

/// The state of the connection with both tables of header compression, which are empty here: nothing else remains
/// of closed streams.
#[test]
fn an_idle_connection_of_http2_holds_little() {
    let asked = [
        h2::client_preface(),
        h2::get(1),
        h2::headers(3, h2::END, &h2::pseudo("HEAD")),
    ];
    let answered = live_bytes_each(&asked.concat());
    assert!(answered <= 2368, "{answered} bytes for an idle connection");
}

/// A server of HTTP/3 receives and sends whole streams.
fn serve_h3(conn: &mut Connection, buffers: &mut BufferPool, id: u64, bytes: &Bytes, now: Instant) {
    conn.prepare(buffers);
    conn.stream_readable(now, id);
    while let Some(recv) = conn.next_stream_recv() {
        conn.stream_received(now, recv.id, bytes.clone());
        if id.is_multiple_of(4) {
            conn.stream_end(now, recv.id);
        } else {
            conn.stream_drained(recv.id);
        }
    }
    while let Some(event) = conn.next_event() {
        if let Event::Head { stream, .. } = event {
            conn.respond(stream, &OK, BodySize::Known(5)).expect("open");
            let mut body = conn.stream(stream).expect("open");
            body.write(b"hello").expect("room");
            body.finish().expect("whole");
        }
    }
    while conn.next_quic_command().is_some() {}
    while let Some(send) = conn.next_stream_send() {
        conn.stream_sent(now, send.id, send.data.len(), send.end);
        if send.end {
            conn.stream_acknowledged(now, send.id);
        }
    }
    assert!(conn.next_event().is_none());
    conn.release(buffers);
}

fn h3_server(limits: &Arc<Limits>, now: Instant) -> Connection {
    Connection::server_with_policy(Arc::clone(limits), ProtocolPolicy::Http3, now)
}

fn h3_control() -> Bytes {
    [frames::varint(0), frames::frame(frames::SETTINGS, &[])]
        .concat()
        .into()
}

#[test]
fn an_idle_connection_of_http3_holds_little() {
    const CONNECTIONS: usize = 1000;
    let now = Instant::now();
    let mut buffers = BufferPool::new(64 * 1024, 4);
    let mut kept: Vec<Connection> = Vec::with_capacity(CONNECTIONS);
    let (control, get) = (h3_control(), Bytes::from(frames::get()));
    let limits = Arc::new(Limits::server());
    let before = LIVE_BYTES.get();
    for _ in 0..CONNECTIONS {
        let mut conn = h3_server(&limits, now);
        serve_h3(&mut conn, &mut buffers, 2, &control, now);
        for request in 0..3 {
            serve_h3(&mut conn, &mut buffers, request * 4, &get, now);
        }
        kept.push(conn);
    }
    drop(buffers);
    let each = LIVE_BYTES.get().wrapping_sub(before) / CONNECTIONS + size_of::<Connection>();
    assert!(each <= 2896, "{each} bytes for an idle connection");
}

/// The buffer of a response is used again because it is acknowledged before the next response.
#[test]
fn a_response_of_http3_allocates_nothing() {
    let now = Instant::now();
    let mut buffers = BufferPool::new(64 * 1024, 4);
    let mut conn = h3_server(&Arc::new(Limits::server()), now);
    let get = Bytes::from(frames::get());
    serve_h3(&mut conn, &mut buffers, 2, &h3_control(), now);
    let mut before = 0;
    for request in 0..1100 {
        if request == 100 {
            before = COUNT.get();
        }
        serve_h3(&mut conn, &mut buffers, request * 4, &get, now);
    }
    assert_eq!(COUNT.get() - before, 0, "allocations in 1000 exchanges");
}
