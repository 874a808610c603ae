//! HPACK compared with `httlib-hpack`: the same heads over one connection, interleaved rounds, medians.
//!
//! `cargo bench -p towline-proto --bench hpack`. "again": every field has been sent before. "new path": one that
//! has not. Our decoder also identifies and validates the fields; theirs leaves that to its caller.

use std::hint::black_box;
use std::time::Instant;

use httlib_hpack::{Decoder, Encoder};
use towline_proto::Field;
use towline_proto::bench::HpackScratch;

type Head = &'static [(&'static str, &'static str)];

const BROWSER: Head = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.org"),
    (":path", "/articles/2026/the-wire?page=2&sort=new"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    ),
    (
        "accept",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    ),
    ("accept-language", "en-GB,en;q=0.7,de;q=0.3"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    (
        "referer",
        "https://www.example.org/articles/2026/index.html",
    ),
    (
        "cookie",
        "session=8f14e45fceea167a5a36dedd4bea2543; theme=dark; consent=necessary%2Cstatistics",
    ),
    ("upgrade-insecure-requests", "1"),
    ("sec-fetch-dest", "document"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-site", "same-origin"),
    ("priority", "u=0, i"),
    ("cache-control", "max-age=0"),
];
const CALL: Head = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "127.0.0.1:8080"),
    (":path", "/plaintext"),
    ("accept", "*/*"),
    ("user-agent", "towline/0.1"),
];
const ANSWER: Head = &[
    (":status", "200"),
    ("server", "towline"),
    ("date", "Sat, 01 Aug 2026 10:00:00 GMT"),
    ("content-type", "application/json"),
    ("content-length", "27"),
];

const ROUNDS: usize = 201;
const PER_ROUND: u32 = 200;
/// The most compact literals: added to the table, Huffman-coded.
const THEIR_FLAGS: u8 =
    Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE | Encoder::WITH_INDEXING | Encoder::BEST_FORMAT;

fn main() {
    println!(
        "{:>17}  fields bytes   encode (theirs)     decode (theirs)   ns a head",
        ""
    );
    for (name, head) in [("browser", BROWSER), ("call", CALL), ("answer", ANSWER)] {
        measure(&format!("{name} again"), head, false);
        measure(&format!("{name} new path"), head, true);
    }
}

/// Replaces the path, or the last value if there is none, by numbered text.
fn renew(fields: &mut [(Vec<u8>, Vec<u8>)], number: u32) {
    let at = fields.iter().position(|field| field.0 == b":path");
    let at = at.unwrap_or(fields.len() - 1);
    fields[at].1 = format!("{}{number}", if at == 3 { "/articles/2026/" } else { "" }).into_bytes();
}

fn measure(name: &str, head: Head, new: bool) {
    let mut fields: Vec<(Vec<u8>, Vec<u8>)> = head
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect();
    let mut sender = HpackScratch::new(1 << 20, 128);
    let mut receiver = HpackScratch::new(1 << 20, 128);
    let mut their_sender = Encoder::default();
    let mut their_receiver = Decoder::default();
    let mut times: [Vec<f64>; 4] = Default::default();
    let mut bytes = 0;
    let mut number = 1_000_000;
    for _ in 0..ROUNDS {
        let heads: Vec<_> = (0..PER_ROUND)
            .map(|_| {
                number += 1;
                if new {
                    renew(&mut fields, number);
                }
                fields.clone()
            })
            .collect();
        let mut buffers = vec![Vec::with_capacity(1024); heads.len()];
        let views: Vec<Vec<Field<'_>>> = heads.iter().map(|head| view(head)).collect();
        times[0].push(time(|| {
            for (view, block) in views.iter().zip(&mut buffers) {
                block.extend_from_slice(sender.encode(black_box(view)));
            }
        }));
        bytes = buffers.last().map_or(0, Vec::len);
        times[1].push(time(|| {
            for block in &buffers {
                black_box(receiver.decode(black_box(block)).expect("good"));
            }
        }));
        buffers.iter_mut().for_each(Vec::clear);
        times[2].push(time(|| {
            for (head, block) in heads.iter().zip(&mut buffers) {
                for (name, value) in head {
                    let field = (name.clone(), value.clone(), THEIR_FLAGS);
                    their_sender.encode(field, block).expect("good");
                }
            }
        }));
        times[3].push(time(|| {
            for block in &mut buffers {
                let mut out = Vec::with_capacity(32);
                their_receiver.decode(block, &mut out).expect("good");
                black_box(out);
            }
        }));
    }
    let [encode, decode, their_encode, their_decode] = times.map(median);
    println!(
        "{name:>17}  {:6} {bytes:5} {encode:8.0} ({their_encode:7.0}) {decode:9.0} ({their_decode:7.0})",
        fields.len()
    );
}

fn view(head: &[(Vec<u8>, Vec<u8>)]) -> Vec<Field<'_>> {
    head.iter()
        .map(|(name, value)| Field { name, value })
        .collect()
}

/// Nanoseconds per head.
fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e9 / f64::from(PER_ROUND)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
