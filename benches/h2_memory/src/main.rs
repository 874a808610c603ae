//! Exchanges between an HTTP/2 client and server connected in memory: the cost of framing, header compression and
//! stream bookkeeping, without a socket. Towline compared with the `h2` crate and libnghttp2.
//!
//! ```text
//! cargo run --release --features nghttp2 --manifest-path benches/h2_memory/Cargo.toml [SUBJECT SHAPE EXCHANGES]
//! ```
//!
//! Without arguments every subject runs every shape in interleaved rounds; the table gives the median and the
//! fastest round. With arguments one subject runs one shape, for a profiler.

mod h2_crate;
#[cfg(feature = "nghttp2")]
mod nghttp2;
mod towline;

use std::hint::black_box;
use std::time::Instant;

/// The request's fields without pseudo-header fields, and the response's without its length.
const AUTHORITY: &str = "localhost:8000";
const PATH: &str = "/hello?x=y";
const REQUEST_FIELDS: [(&str, &str); 2] = [("user-agent", "towline-bench/1.0"), ("accept", "*/*")];
const RESPONSE_FIELDS: [(&str, &str); 3] = [
    ("server", "towline"),
    ("date", "Sun, 22 Nov 2026 08:49:37 GMT"),
    ("content-type", "text/plain; charset=utf-8"),
];

const ROUNDS: usize = 11;
const EXCHANGES: usize = 16_000;

/// Bytes of the response, and number of concurrent exchanges.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    body: &'static [u8],
    at_once: usize,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "GET, 13 bytes",
        body: b"Hello, world!",
        at_once: 1,
    },
    Shape {
        name: "GET, 1 KiB",
        body: &[b'x'; 1024],
        at_once: 1,
    },
    Shape {
        name: "16 at once, 13 bytes",
        body: b"Hello, world!",
        at_once: 16,
    },
    Shape {
        name: "16 at once, 1 KiB",
        body: &[b'x'; 1024],
        at_once: 16,
    },
];

/// Totals of both ends, which must be equal for all subjects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    requests: usize,
    responses: usize,
    /// Fields without pseudo-header fields, on both sides; including `content-length`.
    fields: usize,
    body_bytes: usize,
}

trait Subject {
    fn name(&self) -> &'static str;
    /// `shape.at_once` exchanges.
    fn exchange(&mut self, shape: Shape, totals: &mut Totals);
}

fn subjects() -> Vec<Box<dyn Subject>> {
    vec![
        Box::new(towline::EndPair::new()),
        #[cfg(feature = "nghttp2")]
        Box::new(nghttp2::EndPair::new()),
        Box::new(h2_crate::EndPair::new()),
    ]
}

fn run(subject: &mut dyn Subject, shape: Shape, exchanges: usize) -> f64 {
    let mut totals = Totals::default();
    let start = Instant::now();
    for _ in 0..exchanges / shape.at_once {
        subject.exchange(shape, black_box(&mut totals));
    }
    let ns = start.elapsed().as_nanos() as f64;
    let done = exchanges / shape.at_once * shape.at_once;
    let expected = Totals {
        requests: done,
        responses: done,
        fields: done * (REQUEST_FIELDS.len() + RESPONSE_FIELDS.len() + 1),
        body_bytes: done * shape.body.len(),
    };
    assert_eq!(totals, expected, "{}: {}", subject.name(), shape.name);
    ns / done as f64
}

fn compare() {
    println!("{:22} {:10} {:>9} {:>9}", "", "", "median", "fastest");
    for shape in SHAPES {
        let mut subjects = subjects();
        let mut figures = vec![Vec::new(); subjects.len()];
        for round in 0..=ROUNDS {
            for (subject, figures) in subjects.iter_mut().zip(&mut figures) {
                let ns = run(subject.as_mut(), shape, EXCHANGES);
                // The first round fills caches and tables.
                if round > 0 {
                    figures.push(ns);
                }
            }
        }
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            figures.sort_by(f64::total_cmp);
            let (median, fastest) = (figures[figures.len() / 2], figures[0]);
            let (name, shape) = (subject.name(), shape.name);
            println!("{shape:22} {name:10} {median:6.0} ns {fastest:6.0} ns");
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [subject, shape, exchanges] = args.as_slice() else {
        return compare();
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let shape = SHAPES[number(shape)];
    let mut subjects = subjects();
    let named = subjects.iter_mut().find(|named| named.name() == subject);
    let ns = run(named.expect("a subject").as_mut(), shape, number(exchanges));
    println!("{subject}, {}: {ns:.0} ns", shape.name);
}
