//! Exchanges over a connection in memory, with each feature.

use std::io::{IoSlice, Read};
use std::time::Duration;

use towline_proto::{
    BodySize, BufferPool, Connection, Event, Field, Limits, ResponseHead, StreamId, UserError,
};

use super::super::access_log::Sink;
use super::super::compress::MIN_BYTES;
use super::super::files::testing::Directory;
use super::*;
use crate::coding::Coding;

/// A connection, its features, and the current exchange.
struct Fixture {
    features: Features,
    record: ExchangeRecord,
    conn: Connection,
    now: Instant,
}

impl Fixture {
    fn new(config: FeatureConfig) -> Self {
        Self::with(Arc::new(config))
    }

    fn with(config: Arc<FeatureConfig>) -> Self {
        let now = Instant::now();
        let conn = Connection::server(Arc::new(Limits::server()), now);
        Self {
            features: Features::new(config),
            record: ExchangeRecord::default(),
            conn,
            now,
        }
    }

    fn compressing() -> Self {
        let policy = Policy {
            codings: Coding::ENCODED.to_vec(),
            min_bytes: MIN_BYTES,
        };
        Self::new(FeatureConfig {
            compression: Some(policy),
            ..FeatureConfig::default()
        })
    }

    /// Receives a request without a body and begins its record.
    fn request(&mut self, line: &str, fields: &str) -> (StreamId, Option<BuiltinResponse>) {
        let wire = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut buffers = BufferPool::new(64 * 1024, 1);
        self.conn.recv_space(&mut buffers)[..wire.len()].copy_from_slice(wire.as_bytes());
        self.conn.received(self.now, wire.len());
        while let Some(event) = self.conn.next_event() {
            if let Event::Head { stream, head, .. } = event {
                let client = Some(IpAddr::from([192, 0, 2, 7]));
                let line = RequestLine::of(&head);
                self.features
                    .begin(&mut self.record, (&line, client, self.now), head.fields());
                let sender = Sender {
                    client,
                    role: Role::Application,
                    used_https: false,
                };
                let response = self.features.may_answer(sender.role).then(|| {
                    self.features
                        .builtin_response(&line, head.fields(), &sender)
                });
                return (stream, response.flatten());
            }
        }
        panic!("{wire} gave no head");
    }

    fn respond(
        &mut self,
        id: StreamId,
        fields: &[(&str, &str)],
        size: BodySize,
        payload: Payload<'_>,
    ) {
        let fields: Vec<Field<'_>> = fields
            .iter()
            .map(|(name, value)| Field {
                name: name.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let head = ResponseHead {
            status: 200,
            reason: b"",
            fields: &fields,
        };
        self.features
            .respond(&mut self.record, &mut self.conn, (id, &head, size), payload)
            .unwrap();
    }

    fn write(&mut self, id: StreamId, data: &[u8]) -> Result<(), UserError> {
        self.features
            .write(&mut self.record, &mut self.conn.stream(id)?, data)
    }

    fn finish(&mut self, id: StreamId) -> Result<(), UserError> {
        self.features
            .finish(&mut self.record, &mut self.conn.stream(id)?, &[])
    }

    /// Takes the pending output: the head as text, and the body.
    fn sent(&mut self) -> (String, Vec<u8>) {
        let mut bytes = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = self.conn.send_slices(&mut slices);
            let n: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            for slice in &slices[..count] {
                bytes.extend_from_slice(slice);
            }
            if n == 0 {
                break;
            }
            self.conn.sent(self.now, n);
        }
        let end = bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head")
            + 4;
        let body = bytes.split_off(end);
        (String::from_utf8(bytes).unwrap().to_ascii_lowercase(), body)
    }
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut out)
        .unwrap();
    out
}

/// The content of a chunked body.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let line = bytes
            .windows(2)
            .position(|two| two == b"\r\n")
            .expect("a chunk's size");
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            assert_eq!(&bytes[line..], b"\r\n\r\n");
            return out;
        }
        out.extend_from_slice(&bytes[line + 2..line + 2 + size]);
        bytes = &bytes[line + 4 + size..];
    }
}

const TEXT: (&str, &str) = ("Content-Type", "text/plain");

#[test]
fn a_whole_body_is_compressed_with_its_length() {
    let mut fixture = Fixture::compressing();
    let (id, _) = fixture.request("GET /", "Accept-Encoding: gzip\r\n");
    let body = b"hello ".repeat(500);
    fixture.respond(id, &[TEXT], BodySize::Known(3000), Payload::Whole(&body));
    fixture.write(id, &body).unwrap();
    fixture.finish(id).unwrap();
    let (head, sent) = fixture.sent();
    assert!(
        head.contains("content-encoding: gzip\r\n") && head.contains("vary: accept-encoding\r\n")
    );
    assert!(
        head.contains(&format!("content-length: {}\r\n", sent.len())),
        "{head}"
    );
    assert_eq!(gunzip(&sent), body);
    assert_eq!(fixture.record.body_bytes, sent.len() as u64);
}

#[test]
fn a_stream_is_flushed_piece_by_piece() {
    let mut fixture = Fixture::compressing();
    let (id, _) = fixture.request("GET /", "Accept-Encoding: gzip\r\n");
    fixture.respond(
        id,
        &[("Content-Type", "text/event-stream")],
        BodySize::Unknown,
        Payload::Pieces,
    );
    let (head, _) = fixture.sent();
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    for _ in 0..3 {
        let before = fixture.conn.pending_bytes();
        fixture.write(id, b"data: tick\n\n").unwrap();
        assert!(
            fixture.conn.pending_bytes() > before,
            "the piece waits in the encoder"
        );
    }
    fixture.finish(id).unwrap();
    let mut rest = vec![0; fixture.conn.pending_bytes()];
    let mut slices = [IoSlice::new(&[]); 16];
    let count = fixture.conn.send_slices(&mut slices);
    let bytes: Vec<u8> = slices[..count]
        .iter()
        .flat_map(|slice| slice.to_vec())
        .collect();
    rest.copy_from_slice(&bytes);
    assert_eq!(gunzip(&unchunked(&rest)), b"data: tick\n\n".repeat(3));
}

#[test]
fn a_body_must_have_its_announced_length() {
    for (given, error) in [
        (999, UserError::BodyTooShort),
        (1001, UserError::BodyTooLong),
    ] {
        let mut fixture = Fixture::compressing();
        let (id, _) = fixture.request("GET /", "Accept-Encoding: gzip\r\n");
        fixture.respond(id, &[TEXT], BodySize::Known(1000), Payload::Pieces);
        let result = fixture
            .write(id, &vec![b'x'; given])
            .and_then(|()| fixture.finish(id));
        assert_eq!(result, Err(error));
    }
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    let mut fixture = Fixture::compressing();
    let (id, _) = fixture.request("HEAD /", "Accept-Encoding: gzip\r\n");
    let body = vec![b'x'; 3000];
    fixture.respond(id, &[TEXT], BodySize::Known(3000), Payload::Whole(&body));
    fixture.write(id, &body).unwrap();
    fixture.finish(id).unwrap();
    let (head, sent) = fixture.sent();
    assert!(
        head.contains("content-encoding: gzip\r\n") && !head.contains("content-length"),
        "{head}"
    );
    assert!(sent.is_empty());
}

#[test]
fn an_uncompressed_body_is_sent_unchanged() {
    let mut fixture = Fixture::compressing();
    let (id, _) = fixture.request("GET /", "Accept-Encoding: gzip\r\n");
    fixture.respond(id, &[TEXT], BodySize::Known(5), Payload::Whole(b"hello"));
    fixture.write(id, b"hello").unwrap();
    fixture.finish(id).unwrap();
    let (head, sent) = fixture.sent();
    assert!(
        !head.contains("vary") && head.contains("content-length: 5\r\n"),
        "{head}"
    );
    assert_eq!(sent, b"hello");
    let mut fixture = Fixture::compressing();
    let (id, _) = fixture.request("GET /", "");
    fixture.respond(id, &[TEXT], BodySize::Known(3000), Payload::Pieces);
    fixture.write(id, &[b'x'; 3000]).unwrap();
    fixture.finish(id).unwrap();
    let (head, sent) = fixture.sent();
    assert!(
        head.contains("vary: accept-encoding\r\n") && sent.len() == 3000,
        "{head}"
    );
}

#[test]
fn exchanges_are_counted_once() {
    let slots = Slots::private(1);
    let config = FeatureConfig {
        slot: slots.handle(0),
        metrics: true,
        ..FeatureConfig::default()
    };
    let mut fixture = Fixture::new(config);
    let (id, own) = fixture.request("GET /", "");
    assert!(own.is_none());
    let slot = slots.slot(0).unwrap();
    slot.started.store(1, Relaxed);
    assert_eq!(slot.in_flight.load(Relaxed), 1);
    fixture.respond(id, &[TEXT], BodySize::Known(0), Payload::Whole(b""));
    fixture.finish(id).unwrap();
    for _ in 0..2 {
        fixture
            .features
            .end(&mut fixture.record, fixture.now + Duration::from_millis(3));
    }
    assert_eq!(slot.in_flight.load(Relaxed), 0);
    let page = metrics::render(&slots, &[], PageFormat::Text, 0);
    assert!(
        page.contains("towline_requests_total{method=\"GET\",version=\"1.1\",status=\"200\"} 1\n"),
        "{page}"
    );
    assert!(
        page.contains("towline_request_duration_seconds_sum 0.003\n"),
        "{page}"
    );
}

#[test]
fn the_metrics_page_has_its_path_and_methods() {
    let config = || FeatureConfig {
        slot: Slots::private(1).handle(0),
        metrics: true,
        ..FeatureConfig::default()
    };
    for (line, status) in [
        ("GET /metrics", 200),
        ("HEAD /metrics?x", 200),
        ("POST /metrics", 405),
    ] {
        let (_, own) = Fixture::new(config()).request(line, "");
        assert_eq!(own.unwrap().status(), status, "{line}");
    }
    let (_, own) = Fixture::new(config()).request("GET /metricsx", "");
    assert!(own.is_none());
    let (_, own) = Fixture::new(FeatureConfig::default()).request("GET /metrics", "");
    assert!(own.is_none(), "switched off");
}

#[test]
fn the_longest_mount_wins() {
    let directory = Directory::new("mounts");
    directory.write("outer/a", "outer");
    directory.write("inner/b", "inner");
    let mount = |prefix: &str, path: &str| {
        Mount::open(
            prefix,
            &directory.path().join(path),
            super::super::files::Options::default(),
        )
        .unwrap()
    };
    let mounts = || vec![mount("/s", "outer"), mount("/s/inner", "inner")];
    for (line, status) in [
        ("GET /s/a", Some(200)),
        ("GET /s/inner/b", Some(200)),
        ("GET /s/inner/a", Some(404)),
        ("GET /x", None),
    ] {
        let (_, own) = Fixture::new(FeatureConfig {
            mounts: mounts(),
            ..FeatureConfig::default()
        })
        .request(line, "");
        assert_eq!(own.map(|own| own.status()), status, "{line}");
    }
}

#[test]
fn the_access_log_has_a_line_for_each_exchange() {
    let directory = Directory::new("log");
    let path = directory.path().join("access.log");
    let format = Format::compile("%(h)s \"%(r)s\" %(s)s %(B)s %({x-id}o)s %(D)s %(st)s").unwrap();
    let writer = Writer::new(Sink::File(path.clone()), 10_000).unwrap();
    let mut fixture = Fixture::new(FeatureConfig {
        access_log: Some((Arc::new(format), writer.clone())),
        ..FeatureConfig::default()
    });
    let (id, _) = fixture.request("GET /a?b", "");
    fixture.respond(
        id,
        &[TEXT, ("X-Id", "7")],
        BodySize::Known(5),
        Payload::Pieces,
    );
    fixture.write(id, b"hello").unwrap();
    fixture.finish(id).unwrap();
    fixture
        .features
        .end(&mut fixture.record, fixture.now + Duration::from_micros(42));
    assert!(writer.close(Duration::from_secs(20)));
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text, "192.0.2.7 \"GET /a?b HTTP/1.1\" 200 5 7 42 OK\n");
}

#[test]
fn lost_lines_reach_the_counter_once() {
    let slots = Slots::private(1);
    let format = Arc::new(Format::compile("%(U)s").unwrap());
    let directory = Directory::new("lost");
    // A buffer without fixture for a line.
    let writer = Writer::new(Sink::File(directory.path().join("access.log")), 1).unwrap();
    let slot = slots.handle(0);
    let config = Arc::new(FeatureConfig {
        access_log: Some((format, writer)),
        slot,
        ..FeatureConfig::default()
    });
    for mut fixture in [Fixture::with(Arc::clone(&config)), Fixture::with(config)] {
        fixture.request("GET /", "");
        fixture.features.end(&mut fixture.record, fixture.now);
    }
    assert_eq!(slots.slot(0).unwrap().dropped_log_lines.load(Relaxed), 2);
}

#[test]
fn a_worker_is_ready_while_any_accepts_unless_the_server_stops() {
    let slots = Slots::private(2);
    let accepting = |index: usize, number| {
        let slot = slots.slot(index).expect("a slot");
        slot.started.store(1, Relaxed);
        slot.accepting.store(number, Relaxed);
    };
    accepting(0, 1);
    accepting(1, 1);
    let config = FeatureConfig {
        slot: slots.handle(1),
        ..FeatureConfig::default()
    };
    assert!(config.is_ready());
    config.begin_draining();
    accepting(1, 0);
    assert!(config.is_ready(), "the other one accepts");
    accepting(0, 0);
    assert!(!config.is_ready());
    accepting(0, 1);
    slots.slot(0).expect("a slot").stopping.store(1, Relaxed);
    assert!(!config.is_ready(), "the server stops");

    let alone = FeatureConfig::default();
    assert!(alone.is_ready());
    alone.begin_draining();
    assert!(!alone.is_ready());
}
