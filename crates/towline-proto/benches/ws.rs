//! Cost of a WebSocket echo, both ends in memory: framing, masking, validation, and with deflate.
//!
//! `cargo bench -p towline-proto --bench ws`

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use towline_proto::Side;
use towline_proto::ws::{Event, Kind, Scratch, WebSocket, deflate};

const ROUNDS: usize = 101;

fn main() {
    println!(
        "a WebSocket takes {} bytes of its own",
        size_of::<WebSocket>()
    );
    for len in [64, 1024, 65_536] {
        let text = session_text(len);
        for (name, level) in [
            ("plain", None),
            ("deflate", Some(deflate::Config::server().level)),
        ] {
            let (ns, wire) = echo(&text, level);
            println!("echo of {len} bytes, {name}: {ns:.0} ns, {wire} bytes on the wire");
        }
    }
    for level in [1, 2, 3, 4, 6] {
        let (ns, wire) = echo(&session_text(1024), Some(level));
        println!("echo of 1024 bytes at level {level}: {ns:.0} ns, {wire} bytes on the wire");
    }
    many_idle();
}

/// Text like the messages of an application: JSON with changing numbers.
fn session_text(len: usize) -> Vec<u8> {
    let mut text = String::new();
    let mut number: u64 = 88_172_645_463_325_252;
    while text.len() < len {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        let (id, price) = (number % 100_000, number % 9_973);
        let _ = write!(
            text,
            "{{\"id\":{id},\"symbol\":\"TWL{}\",\"price\":{price}.25}},",
            id % 7
        );
    }
    text.truncate(len);
    text.into_bytes()
}

fn end(side: Side, level: Option<u8>) -> WebSocket {
    let mut config = deflate::Config::server();
    let params = deflate::Params {
        server: config.server,
        client: config.client,
    };
    let deflate = level.map(|level| {
        config.level = level;
        (params, config)
    });
    WebSocket::new(side, Arc::default(), deflate, Instant::now())
}

/// Median nanoseconds of an echo, and the bytes of one message on the wire.
fn echo(text: &[u8], level: Option<u8>) -> (f64, usize) {
    let scratch = &mut Scratch::new([1; 32]);
    let (mut client, mut server) = (end(Side::Client, level), end(Side::Server, level));
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let per_round = (2_000_000 / (text.len() as u32 + 1_000)).max(10);
    let mut samples: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..per_round {
                there.clear();
                back.clear();
                client
                    .send(Kind::Text, text, true, scratch, &mut there)
                    .expect("open");
                server.receive(start, &there, scratch);
                let Some(Event::Message { .. }) = server.next_event() else {
                    panic!("no message")
                };
                let message = server.take_message().expect("a message");
                server
                    .send(Kind::Text, &message, true, scratch, &mut back)
                    .expect("open");
                client.receive(start, &back, scratch);
                black_box(client.next_event());
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(per_round)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    (samples[ROUNDS / 2], back.len())
}

/// Memory of ten thousand sockets with deflate, each after some traffic, and the cost of an echo when all are
/// used in rotation, so that no compressor ever has the right window loaded.
fn many_idle() {
    const SOCKETS: u32 = 10_000;
    let before = resident_bytes();
    let scratch = &mut Scratch::new([1; 32]);
    let level = Some(deflate::Config::server().level);
    // A message, compressed once, can be decompressed by every end.
    let mut client = end(Side::Client, level);
    let mut servers: Vec<_> = (0..SOCKETS).map(|_| end(Side::Server, level)).collect();
    let text = session_text(8_192);
    let (mut there, mut back) = (Vec::new(), Vec::new());
    client
        .send(Kind::Text, &text, true, scratch, &mut there)
        .expect("open");
    let start = Instant::now();
    for server in &mut servers {
        server.receive(start, &there, scratch);
        black_box(server.next_event());
        server.release(scratch);
        back.clear();
        server
            .send(Kind::Text, &text, true, scratch, &mut back)
            .expect("open");
    }
    let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(SOCKETS);
    let held = (resident_bytes() - before) / SOCKETS as usize;
    println!(
        "each of {SOCKETS} sockets in turn, 8 KiB in and out deflated: {each:.0} ns, holds {held} bytes after"
    );
}

/// Resident memory of this process; 0 where there is no such file.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
