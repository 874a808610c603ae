//! Head parsing compared with `httparse`: the same heads, interleaved rounds, medians, ratio printed.
//!
//! `cargo bench -p towline-proto --bench head`. Our parser also recognises the fields that decide
//! framing; `httparse` leaves that to its caller, so the comparison favours it.

use std::hint::black_box;
use std::time::Instant;

use towline_proto::bench::HeadScratch;
use towline_proto::{Limits, Side};

const MINIMAL: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const WRK: &[u8] = b"GET /plaintext HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n";
const BROWSER: &[u8] = b"GET /articles/2026/the-wire?page=2&sort=new HTTP/1.1\r\n\
Host: www.example.org\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
Accept-Language: en-GB,en;q=0.7,de;q=0.3\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: https://www.example.org/articles/2026/index.html\r\n\
Connection: keep-alive\r\n\
Cookie: session=8f14e45fceea167a5a36dedd4bea2543; theme=dark; consent=necessary%2Cstatistics; _id=GA1.2.1234567890.1700000000\r\n\
Upgrade-Insecure-Requests: 1\r\n\
Sec-Fetch-Dest: document\r\n\
Sec-Fetch-Mode: navigate\r\n\
Sec-Fetch-Site: same-origin\r\n\
Sec-Fetch-User: ?1\r\n\
Priority: u=0, i\r\n\
Cache-Control: max-age=0\r\n\r\n";
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nserver: towline\r\ndate: Sat, 01 Aug 2026 10:00:00 GMT\r\n\
content-type: application/json\r\ncontent-length: 27\r\n\r\n";

const ROUNDS: usize = 601;
const PER_ROUND: u32 = 1_000;

fn main() {
    let cases = [
        ("minimal", MINIMAL, Side::Server),
        ("wrk", WRK, Side::Server),
        ("browser", BROWSER, Side::Server),
        ("response", RESPONSE, Side::Client),
    ];
    let mut slower = false;
    for (name, head, side) in cases {
        let (ours, theirs) = compare(head, side);
        println!(
            "{name:>9} {:>4} bytes: {ours:6.1} ns, httparse {theirs:6.1} ns, ratio {:.2}",
            head.len(),
            theirs / ours
        );
        slower |= theirs / ours < 0.9;
    }
    if slower {
        println!("slower than httparse on some head");
    }
}

/// Median nanoseconds per head, ours and theirs.
fn compare(head: &[u8], side: Side) -> (f64, f64) {
    let limits = Limits::server();
    let mut scratch = HeadScratch::default();
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        ours.push(time(|| {
            black_box(scratch.parse(black_box(head), &limits, side)).expect("a good head");
        }));
        theirs.push(time(|| {
            black_box(with_httparse(black_box(head), side));
        }));
    }
    (median(&mut ours), median(&mut theirs))
}

fn with_httparse(head: &[u8], side: Side) -> usize {
    let mut fields = [const { std::mem::MaybeUninit::uninit() }; 100];
    match side {
        Side::Server => {
            let mut request = httparse::Request::new(&mut []);
            request
                .parse_with_uninit_headers(head, &mut fields)
                .expect("a good head");
            request.headers.len()
        }
        Side::Client => {
            let mut response = httparse::Response::new(&mut []);
            httparse::ParserConfig::default()
                .parse_response_with_uninit_headers(&mut response, head, &mut fields)
                .expect("a good head");
            response.headers.len()
        }
    }
}

fn time(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..PER_ROUND {
        work();
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(PER_ROUND)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
