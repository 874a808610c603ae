//! HTTP/2: frames that cross each other, or arrive when they are no longer expected.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{
    BodySize, BufferPool, Connection, Event, Limits, ProtocolPolicy, ResponseHead, StreamId,
};

const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
const REQUEST: [u8; 6] = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
const INITIAL_WINDOW: u8 = 4;

struct Server {
    conn: Connection,
    buffers: BufferPool,
    now: Instant,
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [_, _, a, b] = (payload.len() as u32).to_be_bytes();
    [&[0, a, b, kind, flags, 0, 0, 0, stream], payload].concat()
}

fn window(size: u32) -> Vec<u8> {
    [&[0, INITIAL_WINDOW], &size.to_be_bytes()[..]].concat()
}

impl Server {
    fn new() -> Self {
        let now = Instant::now();
        let limits = Arc::new(Limits::server());
        let mut server = Self {
            conn: Connection::server_with_policy(limits, ProtocolPolicy::Http2, now),
            buffers: BufferPool::new(64 * 1024, 1),
            now,
        };
        assert!(server.feed(BEGIN).is_empty());
        server
    }

    /// Feeds bytes and returns the events, as text.
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let space = self.conn.recv_space(&mut self.buffers);
        space[..bytes.len()].copy_from_slice(bytes);
        self.conn.received(self.now, bytes.len());
        self.events()
    }

    fn events(&mut self) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(event) = self.conn.next_event() {
            seen.push(match event {
                Event::Head { stream, .. } => format!("head {}", stream.0),
                Event::Closed(error) => format!("closed {error}"),
                event => format!("{event:?}"),
            });
        }
        seen
    }

    fn take(&mut self) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = self.conn.send_slices(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
        self.conn.sent(self.now, bytes.len());
        bytes
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.conn.handle_timeout(self.now);
    }

    fn answer(&mut self, stream: u64, bytes: usize) {
        let head = ResponseHead {
            status: 200,
            reason: b"",
            fields: &[],
        };
        let id = StreamId(stream);
        self.conn
            .respond(id, &head, BodySize::Known(bytes as u64))
            .expect("open");
        let mut body = self.conn.stream(id).expect("open");
        body.write(&vec![b'x'; bytes]).expect("room");
        body.finish().expect("complete");
    }
}

#[test]
fn an_upload_that_crosses_our_goaway_is_ignored() {
    let mut server = Server::new();
    assert_eq!(server.feed(&frame(1, 5, 1, &REQUEST)), ["head 1"]);
    server.conn.close();
    // The client did not acknowledge in time: the final GOAWAY is sent without it.
    server.pass(2);
    server.take();
    let crossed = [
        frame(1, 4, 3, &REQUEST),
        frame(0, 0, 3, b"body"),
        frame(8, 0, 3, &[0, 0, 0x10, 0]),
        frame(0, 1, 3, b"end"),
        frame(3, 0, 3, &[0, 0, 0, 8]),
    ]
    .concat();
    assert!(server.feed(&crossed).is_empty());
    server.answer(1, 5);
    let written = server.take();
    assert!(written.windows(5).any(|bytes| bytes == b"xxxxx"));
    assert_eq!(server.events(), ["closed closed in order"]);
}

#[test]
fn a_window_without_waiting_streams_is_no_timeout() {
    let mut server = Server::new();
    let open = [frame(4, 0, 0, &window(1 << 20)), frame(1, 5, 1, &REQUEST)].concat();
    assert_eq!(server.feed(&open), ["head 1"]);
    assert_eq!(server.feed(&frame(1, 5, 3, &REQUEST)), ["head 3"]);
    // More than the connection's window.
    server.answer(1, 70_000);
    while !server.take().is_empty() {}
    assert_eq!(server.feed(&frame(3, 0, 1, &[0, 0, 0, 8])).len(), 0);
    for _ in 0..4 {
        server.pass(29);
        assert_eq!(server.events(), [""; 0]);
    }
    assert!(server.conn.error().is_none());
}

#[test]
fn a_setting_that_closes_an_open_window_sends_no_empty_frame() {
    let mut server = Server::new();
    assert_eq!(server.feed(&frame(1, 5, 1, &REQUEST)), ["head 1"]);
    assert_eq!(server.feed(&frame(1, 5, 3, &REQUEST)), ["head 3"]);
    // The first uses up the connection's window; the second waits although its own window is open.
    server.answer(1, 65_535);
    server.answer(3, 100);
    while !server.take().is_empty() {}
    assert!(server.feed(&frame(4, 0, 0, &window(0))).is_empty());
    assert!(server.feed(&frame(8, 0, 0, &[0, 1, 0, 0])).is_empty());
    let written = server.take();
    assert_eq!(written, frame(4, 1, 0, b""), "only the acknowledgement");
    assert!(server.feed(&frame(4, 0, 0, &window(65_535))).is_empty());
    let written = server.take();
    assert!(written.ends_with(&frame(0, 1, 3, &[b'x'; 100])));
}
