//! Cost of a kept-alive exchange in the protocol core, in memory.
//!
//! `cargo bench -p towline-proto --bench exchange`

use std::hint::black_box;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use towline_proto::{BodySize, BufferPool, Connection, Event, Field, Limits, ResponseHead};

const REQUEST: &[u8] =
    b"GET /plaintext HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n";
const ROUNDS: usize = 601;
const PER_ROUND: u32 = 1_000;

fn main() {
    println!(
        "a connection takes {} bytes of its own",
        size_of::<Connection>()
    );
    let now = Instant::now();
    let mut buffers = BufferPool::new(64 * 1024, 4);
    let mut conn = Connection::server(Arc::new(Limits::server()), now);
    let mut samples: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..PER_ROUND {
                exchange(&mut conn, &mut buffers, now);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(PER_ROUND)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!(
        "server exchange, hello world: {:.0} ns",
        samples[ROUNDS / 2]
    );
}

fn exchange(conn: &mut Connection, buffers: &mut BufferPool, now: Instant) {
    conn.recv_space(buffers)[..REQUEST.len()].copy_from_slice(REQUEST);
    conn.received(now, REQUEST.len());
    let Some(Event::Head { stream, head, .. }) = conn.next_event() else {
        panic!("no request")
    };
    for field in head.fields() {
        black_box(field);
    }
    let fields = [
        Field {
            name: b"server",
            value: b"towline",
        },
        Field {
            name: b"date",
            value: b"Sat, 01 Aug 2026 10:00:00 GMT",
        },
        Field {
            name: b"content-type",
            value: b"text/plain",
        },
    ];
    let head = ResponseHead {
        status: 200,
        reason: b"",
        fields: &fields,
    };
    conn.respond(stream, &head, BodySize::Known(13))
        .expect("a good head");
    let mut body = conn.stream(stream).expect("open");
    body.write(b"Hello, world!").expect("room");
    body.finish().expect("complete");
    assert!(conn.next_event().is_none());
    let mut slices = [IoSlice::new(&[]); 4];
    let count = conn.send_slices(&mut slices);
    let n = slices[..count].iter().map(|slice| slice.len()).sum();
    conn.sent(now, n);
    black_box(conn.deadline());
    black_box(conn.interest());
    conn.release(buffers);
}
