//! Repeated response heads: the cache changes nothing but the work.

use crate::h2::server;
use httlib_hpack::Decoder;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use towline_proto::{BodySize, Field, UserError};
use towline_testkit::h2 as wire;
use towline_testkit::{App, End};

/// A status and its fields.
type Head = (u16, &'static [(&'static str, &'static str)]);

/// Heads that differ in one respect each; some only in how the same text is split.
const HEADS: &[Head] = &[
    (200, &[("server", "a"), ("content-type", "text/plain")]),
    (200, &[("server", "a"), ("content-type", "text/other")]),
    (404, &[("server", "a"), ("content-type", "text/plain")]),
    (200, &[("server", "a")]),
    (200, &[]),
    (304, &[("server", "a")]),
    (204, &[("server", "a"), ("content-length", "5")]),
    (200, &[("server", "a"), ("Content-Length", "5")]),
    (200, &[("x-ab", "c"), ("x-d", "e")]),
    (200, &[("x-a", "bc"), ("x-d", "e")]),
    (200, &[("x-d", "e"), ("x-ab", "c")]),
    (200, &[("Connection", "close"), ("X-Upper", " value ")]),
    (200, &[("set-cookie", "pin=1234"), ("server", "a")]),
    (103, &[("link", "</a>")]),
];

#[derive(Clone, Debug)]
enum Step {
    /// An exchange: its head, whether the method is HEAD, and its body.
    Exchange(Head, bool, BodySize),
    /// One whose head fills much of the table, so that others are evicted.
    Fill(usize),
    /// A change of the client's table size.
    TableSize(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        Just(BodySize::Empty),
        Just(BodySize::Unknown),
        (0_u64..3).prop_map(BodySize::Known),
    ];
    prop_oneof![
        20 => (select(HEADS), any::<bool>(), size)
            .prop_map(|(head, by_head, size)| Step::Exchange(head, by_head, size)),
        1 => (200_usize..1200).prop_map(Step::Fill),
        1 => select(vec![0, 40, 100, 300, 4096, 65536]).prop_map(Step::TableSize),
    ]
}

/// A server, and an independent decoder of its output.
struct Harness {
    end: End,
    decoder: Decoder<'static>,
    next: u32,
    filled: u32,
}

impl Harness {
    fn new() -> Self {
        Self {
            end: server(App::Manual),
            decoder: Decoder::default(),
            next: 1,
            filled: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Exchange((status, fields), by_head, size) => {
                // A given length is used.
                let size = match (status, fields.last()) {
                    (204 | 103, _) => BodySize::Empty,
                    (_, Some(&("Content-Length", _))) => BodySize::Known(5),
                    _ => size,
                };
                self.exchange(status, fields, by_head, size);
            }
            Step::Fill(bytes) => {
                self.filled += 1;
                let value = format!("{:0>bytes$}", self.filled);
                // A field is added to the table when it is repeated.
                for _ in 0..3 {
                    self.exchange(200, &[("x-fill", &value)], false, BodySize::Empty);
                }
            }
            Step::TableSize(size) => {
                let settings = wire::settings(&[(wire::HEADER_TABLE_SIZE, size)]);
                self.end.feed(&settings);
            }
        }
    }

    fn exchange(&mut self, status: u16, fields: &[(&str, &str)], by_head: bool, size: BodySize) {
        let method = if by_head { "HEAD" } else { "GET" };
        self.send_request(method);
        let before = self.end.written().len();
        self.end
            .send_response(status, &fields_of(fields), size)
            .expect("a good head");
        self.end.run_until_idle();
        let frames = wire::frames(&self.end.written()[before..]);
        let (mut block, mut read) = (frames[0].payload.clone(), Vec::new());
        assert_eq!(frames[0].kind, wire::HEADERS);
        self.decoder
            .decode(&mut block, &mut read)
            .expect("a good block");
        for (name, _, flags) in &read {
            let is_secret = name == b"set-cookie";
            assert_eq!(flags & Decoder::NEVER_INDEXED > 0, is_secret, "{name:?}");
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let read: Vec<_> = read
            .into_iter()
            .map(|(name, value, _)| (text(name), text(value)))
            .collect();
        assert_eq!(read, expected(status, fields, by_head, size));
        let is_whole = by_head || matches!(status, 204 | 304) || is_empty(size);
        assert_eq!(frames[0].ends_stream(), is_whole && status >= 200);
        // Ends the stream, by its body or by a reset.
        let id = towline_proto::StreamId(u64::from(self.next - 2));
        if let Ok(mut stream) = self.end.conn.stream(id) {
            stream.reset();
        }
        self.end.run_until_idle();
    }

    fn send_request(&mut self, method: &str) {
        let request = wire::headers(self.next, wire::END, &wire::pseudo(method));
        self.end.feed(&request);
        self.next += 2;
    }

    fn answer(&mut self, fields: &[(&str, &str)], size: BodySize) -> Result<(), UserError> {
        self.end.send_response(200, &fields_of(fields), size)
    }
}

fn is_empty(size: BodySize) -> bool {
    matches!(size, BodySize::Empty | BodySize::Known(0))
}

fn fields_of<'a>(fields: &[(&'a str, &'a str)]) -> Vec<Field<'a>> {
    let field = |&(name, value): &(&'a str, &'a str)| Field {
        name: name.as_bytes(),
        value: value.as_bytes(),
    };
    fields.iter().map(field).collect()
}

/// The fields that the client must read.
fn expected(
    status: u16,
    fields: &[(&str, &str)],
    by_head: bool,
    size: BodySize,
) -> Vec<(String, String)> {
    let is_length = |name: &str| name.eq_ignore_ascii_case("content-length");
    let is_given = fields.iter().any(|(name, _)| is_length(name));
    let passes = |name: &str| name != "Connection" && !(status == 204 && is_length(name));
    let mut expected = vec![(":status".to_owned(), status.to_string())];
    for (name, value) in fields.iter().filter(|(name, _)| passes(name)) {
        expected.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let added = match size {
        _ if is_given || matches!(status, 103 | 204 | 304) => None,
        BodySize::Known(n) => Some(n),
        BodySize::Empty if !by_head => Some(0),
        _ => None,
    };
    expected.extend(added.map(|n| ("content-length".to_owned(), n.to_string())));
    expected
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_decoder_reads_the_given_fields(steps in vec((step(), 1_usize..6), 1..20)) {
        let mut watched = Harness::new();
        for (step, times) in steps {
            for _ in 0..times {
                watched.take(&step);
            }
        }
    }
}

#[test]
fn the_body_is_checked_with_a_cached_head_too() {
    let given = [("server", "a"), ("content-length", "5")];
    let mut watched = Harness::new();
    for _ in 0..4 {
        watched.exchange(200, &given, false, BodySize::Known(5));
    }
    let wrong = Err(UserError::InvalidContentLength);
    watched.send_request("GET");
    for size in [BodySize::Known(6), BodySize::Empty] {
        assert_eq!(watched.answer(&given, size), wrong);
    }
    assert_eq!(watched.answer(&given, BodySize::Known(5)), Ok(()));
    assert_eq!(
        watched.answer(&given, BodySize::Known(5)),
        Err(UserError::WrongOrder)
    );
    // A tunnel has no length.
    let connect = [(":method", "CONNECT"), (":authority", "a:1")];
    let request = wire::headers(watched.next, 0, &connect);
    watched.end.feed(&request);
    assert_eq!(watched.answer(&given, BodySize::Known(5)), wrong);
}

#[test]
fn an_invalid_head_is_refused_each_time() {
    let mut watched = Harness::new();
    watched.send_request("GET");
    for (field, error) in [
        (("bad name", "v"), UserError::InvalidFieldName),
        ((":protocol", "v"), UserError::InvalidFieldName),
        (("x", "v\n"), UserError::InvalidFieldValue),
        (("content-length", "+5"), UserError::InvalidContentLength),
    ] {
        for _ in 0..4 {
            let fields = [("server", "a"), field];
            assert_eq!(watched.answer(&fields, BodySize::Unknown), Err(error));
        }
    }
    assert_eq!(watched.answer(&[("server", "a")], BodySize::Empty), Ok(()));
}
