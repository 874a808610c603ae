//! Programs of both ends: many exchanges at once, whose bodies are known to both, so that each byte is checked where it
//! is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{
    BodySize, Connection, Event, Field, RequestHead, ResponseHead, StreamId, StreamRead,
};

use super::network::Random;
use crate::conn::Conn;

/// A body in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    pub(super) bytes: usize,
    /// The size of the body is announced.
    pub(super) is_known: bool,
    /// Only without announced size.
    pub(super) has_trailers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Complete,
    /// The client cancels after reading and writing this number of bytes.
    ClientCancels(usize),
    /// The server resets after writing this number of bytes of the response.
    ServerResets(usize),
}

/// Course of one exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) request: Body,
    pub(super) response: Body,
    /// The server responds before it has read the request.
    pub(super) is_early: bool,
    pub(super) ending: Ending,
    /// Number of reads in 1000 after which the reader pauses.
    pub(super) pauses_per_mille: u32,
    pub(super) pause: Duration,
}

impl Spec {
    pub(super) fn random(random: &mut Random, max_bytes: usize) -> Self {
        let mut body = || Body::random(random, max_bytes);
        let (request, response) = (body(), body());
        let ending = match random.below(8) {
            0 => Ending::ClientCancels(random.below(request.bytes + response.bytes + 1)),
            1 if response.bytes > 1 => Ending::ServerResets(random.below(response.bytes / 2 + 1)),
            _ => Ending::Complete,
        };
        Self {
            request,
            response,
            is_early: random.below(2) == 0,
            ending,
            pauses_per_mille: if random.below(4) == 0 { 100 } else { 0 },
            pause: Duration::from_millis(random.below(MAX_PAUSE_MS) as u64),
        }
    }

    /// Without bodies.
    pub(super) const fn complete() -> Self {
        Self {
            request: Body::known(0),
            response: Body::known(0),
            is_early: false,
            ending: Ending::Complete,
            pauses_per_mille: 0,
            pause: Duration::ZERO,
        }
    }
}

impl Body {
    pub(super) const fn known(bytes: usize) -> Self {
        Self {
            bytes,
            is_known: true,
            has_trailers: false,
        }
    }

    fn random(random: &mut Random, max_bytes: usize) -> Self {
        let scale = [1, 100, 5_000, 60_000, 300_000][random.below(5)].min(max_bytes);
        let is_known = random.below(2) == 0;
        Self {
            bytes: random.below(scale),
            is_known,
            has_trailers: !is_known && random.below(2) == 0,
        }
    }

    fn size(self) -> BodySize {
        match (self.is_known, self.bytes) {
            (true, 0) => BodySize::Empty,
            (true, bytes) => BodySize::Known(bytes as u64),
            (false, _) => BodySize::Unknown,
        }
    }
}

/// Byte `at` of a body. `key` is different for each.
fn byte(key: u8, at: usize) -> u8 {
    (at as u8) ^ ((at >> 8) as u8) ^ ((at >> 16) as u8).wrapping_mul(29) ^ key
}

/// Longest write.
pub(super) const MAX_WRITE_BYTES: usize = 20_000;
/// Longest pause of a reader.
const MAX_PAUSE_MS: usize = 400;

#[derive(Debug)]
struct Sending {
    body: Body,
    key: u8,
    written: usize,
    /// The connection has room, as far as is known.
    is_writable: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Receiving {
    body: Body,
    key: u8,
    read: usize,
    /// The connection has something to read, as far as is known.
    is_readable: bool,
    is_over: bool,
    paused_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    /// Reset by this end.
    Reset,
    /// [`Event::Failed`], or the end of the connection.
    Failed,
}

#[derive(Debug)]
struct Exchange {
    number: usize,
    spec: Spec,
    /// On a server `None` until it responds.
    sending: Option<Sending>,
    receiving: Receiving,
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// A program and the exchanges that it has had.
pub(super) struct Program {
    role: Role,
    specs: Arc<Vec<Spec>>,
    random: Random,
    /// Client: the next exchange to start, and how many may be open.
    next: usize,
    pub(super) max_open: usize,
    exchanges: BTreeMap<StreamId, Exchange>,
    /// Reason of the end of the connection.
    pub(super) closed: Option<&'static str>,
    /// Failures of exchanges, for the message of a failure of the test.
    pub(super) failures: Vec<String>,
}

impl Program {
    pub(super) fn new(role: Role, specs: &Arc<Vec<Spec>>, seed: u64) -> Self {
        Self {
            role,
            specs: Arc::clone(specs),
            random: Random(seed),
            next: 0,
            max_open: 32,
            exchanges: BTreeMap::new(),
            closed: None,
            failures: Vec::new(),
        }
    }

    /// Client: every exchange has ended.
    pub(super) fn is_done(&self) -> bool {
        self.next == self.specs.len() && self.is_idle()
    }

    /// Every exchange so far has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.open().next().is_none()
    }

    /// The outcomes, by number of the exchange.
    pub(super) fn outcomes(&self) -> BTreeMap<usize, Option<Outcome>> {
        let all = self.exchanges.values();
        all.map(|exchange| (exchange.number, exchange.outcome))
            .collect()
    }

    /// Bytes written and read, by number of the exchange.
    pub(super) fn progress(&self) -> BTreeMap<usize, (usize, usize)> {
        let all = self.exchanges.values();
        let progress = all.map(|exchange| {
            let written = exchange.sending.as_ref().map_or(0, |body| body.written);
            (exchange.number, (written, exchange.receiving.read))
        });
        progress.collect()
    }

    /// Exchanges that have not ended, for the message of a failure.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let all = self.exchanges.values();
        let open = all.filter(|exchange| exchange.outcome.is_none());
        open.map(|exchange| format!("{exchange:?}")).collect()
    }

    /// Handles the events, then reads and writes what is possible.
    pub(super) fn run(&mut self, conn: &mut Conn<()>, now: Instant) {
        conn.clear_wake_due();
        while self.handle_event(&mut conn.proto) {}
        if self.closed.is_some() {
            return;
        }
        if self.role == Role::Client {
            self.start(&mut conn.proto);
        }
        let streams: Vec<StreamId> = self.open().collect();
        for stream in streams {
            self.progress_of(conn, stream, now);
        }
    }

    fn open(&self) -> impl Iterator<Item = StreamId> {
        let all = self.exchanges.iter();
        all.filter(|(_, exchange)| exchange.outcome.is_none())
            .map(|(stream, _)| *stream)
    }

    fn handle_event(&mut self, proto: &mut Connection) -> bool {
        let Some(event) = proto.next_event() else {
            return false;
        };
        match event {
            Event::Head { stream, head, end } => {
                let number = head.field(b"x-number").expect("has its number");
                let number: usize = std::str::from_utf8(number).unwrap().parse().unwrap();
                match self.role {
                    Role::Client => {
                        assert_eq!(head.status(), status(number));
                        assert_eq!(self.exchanges[&stream].number, number);
                    }
                    Role::Server => {
                        assert_eq!(head.target(), format!("/{number}").as_bytes());
                        self.begin(stream, number);
                    }
                }
                self.exchange(stream).receiving.head(end);
            }
            Event::Readable(stream) => self.exchange(stream).receiving.is_readable = true,
            Event::Writable(stream) => {
                if let Some(sending) = &mut self.exchange(stream).sending {
                    sending.is_writable = true;
                }
            }
            Event::Failed(stream, error) => {
                self.failures.push(format!("{stream:?}: {error:?}"));
                let exchange = self.exchange(stream);
                exchange.outcome = exchange.outcome.or(Some(Outcome::Failed));
                if let Ok(mut stream) = proto.stream(stream) {
                    stream.reset();
                }
            }
            Event::Closed(error) => {
                self.closed = Some(error.rule);
                for exchange in self.exchanges.values_mut() {
                    exchange.outcome = exchange.outcome.or(Some(Outcome::Failed));
                }
            }
            Event::Informational { .. } | Event::Switched { .. } => panic!("unexpected {event:?}"),
            Event::HalfClosed(_) | Event::GoingAway { .. } => {}
        }
        true
    }

    fn exchange(&mut self, stream: StreamId) -> &mut Exchange {
        self.exchanges.get_mut(&stream).expect("known exchange")
    }

    /// Starts requests.
    fn start(&mut self, proto: &mut Connection) {
        while self.next < self.specs.len()
            && self.open().count() < self.max_open
            && proto.stream_capacity() > 0
        {
            let number = self.next;
            let (target, value) = (format!("/{number}"), number.to_string());
            let fields = [field(b"host", b"a"), field(b"x-number", value.as_bytes())];
            let head = RequestHead {
                method: b"POST",
                target: target.as_bytes(),
                fields: &fields,
            };
            let body = self.specs[number].request;
            let stream = proto.request(&head, body.size()).expect("has capacity");
            self.next += 1;
            self.begin(stream, number);
            self.exchange(stream).sending = Some(Sending::new(body, number, Role::Client));
        }
    }

    fn begin(&mut self, stream: StreamId, number: usize) {
        let spec = self.specs[number];
        let (body, from) = match self.role {
            Role::Client => (spec.response, Role::Server),
            Role::Server => (spec.request, Role::Client),
        };
        let exchange = Exchange {
            number,
            spec,
            sending: None,
            receiving: Receiving::new(body, number, from),
            outcome: None,
        };
        let before = self.exchanges.insert(stream, exchange);
        assert!(before.is_none(), "request {number} arrives once");
    }

    fn progress_of(&mut self, conn: &mut Conn<()>, stream: StreamId, now: Instant) {
        let role = self.role;
        let exchange = self.exchanges.get_mut(&stream).expect("known exchange");
        if let Some(pause) = exchange.read(conn, stream, now, &mut self.random) {
            conn.wake_at(pause);
        }
        let spec = exchange.spec;
        let responds = spec.is_early && spec.response.bytes > 0 || exchange.receiving.is_over;
        if role == Role::Server && exchange.sending.is_none() && responds {
            exchange.respond(&mut conn.proto, stream);
        }
        let max_written = match (role, spec.ending) {
            (Role::Server, Ending::ServerResets(bytes)) => Some(bytes),
            // The end of the response would end the exchange, and the rest of the request be discarded.
            (Role::Server, _) if !exchange.receiving.is_over => {
                Some(spec.response.bytes.saturating_sub(1))
            }
            _ => None,
        };
        if let Some(sending) = &mut exchange.sending {
            sending.write(&mut conn.proto, stream, max_written, &mut self.random);
        }
        exchange.end(&mut conn.proto, stream, role);
    }
}

impl Exchange {
    /// Reads what is there. Returns the end of the reader's pause.
    fn read(
        &mut self,
        conn: &mut Conn<()>,
        stream: StreamId,
        now: Instant,
        random: &mut Random,
    ) -> Option<Instant> {
        let receiving = &mut self.receiving;
        if let Some(until) = receiving.paused_until {
            if now < until {
                return Some(until);
            }
            receiving.paused_until = None;
        }
        while receiving.is_readable && !receiving.is_over {
            receiving.read_once(&mut conn.proto, stream, 1 + random.below(30_000));
            if random.happens(self.spec.pauses_per_mille) {
                receiving.paused_until = Some(now + self.spec.pause);
                return receiving.paused_until;
            }
        }
        None
    }

    fn respond(&mut self, proto: &mut Connection, stream: StreamId) {
        let value = self.number.to_string();
        let fields = [field(b"x-number", value.as_bytes())];
        let head = ResponseHead {
            status: status(self.number),
            reason: b"",
            fields: &fields,
        };
        let body = self.spec.response;
        proto.respond(stream, &head, body.size()).expect("is open");
        self.sending = Some(Sending::new(body, self.number, Role::Server));
    }

    /// Ends it, as its specification says, or because both messages are complete.
    fn end(&mut self, proto: &mut Connection, stream: StreamId, role: Role) {
        let written = self.sending.as_ref().map_or(0, |body| body.written);
        let resets = match (role, self.spec.ending) {
            (Role::Client, Ending::ClientCancels(bytes)) => written + self.receiving.read >= bytes,
            (Role::Server, Ending::ServerResets(bytes)) => {
                self.sending.is_some() && written >= bytes
            }
            _ => false,
        };
        let is_sent = self.sending.as_ref().is_some_and(|body| body.is_over);
        if is_sent && self.receiving.is_over {
            self.outcome = Some(Outcome::Complete);
        } else if resets {
            proto.stream(stream).expect("is open").reset();
            self.outcome = Some(Outcome::Reset);
        }
    }
}

impl Sending {
    fn new(body: Body, number: usize, from: Role) -> Self {
        Self {
            body,
            key: key(number, from),
            written: 0,
            is_writable: true,
            is_over: body.size() == BodySize::Empty,
        }
    }

    fn write(
        &mut self,
        proto: &mut Connection,
        stream: StreamId,
        max_written: Option<usize>,
        random: &mut Random,
    ) {
        let most = max_written.unwrap_or(usize::MAX).min(self.body.bytes);
        while self.is_writable && !self.is_over {
            let mut writer = proto.stream(stream).expect("is open");
            if self.written == self.body.bytes {
                let trailers = trailers(self.key);
                let trailers = [field(b"x-sum", trailers.as_bytes())];
                let trailers = if self.body.has_trailers {
                    &trailers[..]
                } else {
                    &[]
                };
                writer.finish_with(trailers).expect("is open");
                self.is_over = true;
            } else if self.written == most {
                return;
            } else if writer.send_capacity() == 0 {
                self.is_writable = false;
            } else {
                let bytes = (1 + random.below(MAX_WRITE_BYTES)).min(most - self.written);
                let piece: Vec<u8> = (self.written..self.written + bytes)
                    .map(|at| byte(self.key, at))
                    .collect();
                writer.write(&piece).expect("is open");
                self.written += bytes;
            }
        }
    }
}

impl Receiving {
    fn new(body: Body, number: usize, from: Role) -> Self {
        Self {
            body,
            key: key(number, from),
            read: 0,
            is_readable: false,
            is_over: false,
            paused_until: None,
        }
    }

    fn head(&mut self, end: bool) {
        self.is_readable = !end;
        if end {
            assert_eq!(self.body.bytes, 0);
            assert!(!self.body.has_trailers);
            self.is_over = true;
        }
    }

    fn read_once(&mut self, proto: &mut Connection, stream: StreamId, max: usize) {
        let mut reader = proto.stream(stream).expect("is open");
        match reader.read(max) {
            StreamRead::Data(data) => {
                for (index, &found) in data.iter().enumerate() {
                    let at = self.read + index;
                    assert_eq!(found, byte(self.key, at), "{stream:?}: byte {at}");
                }
                self.read += data.len();
            }
            // An event follows in both cases.
            StreamRead::Pending | StreamRead::Failed => self.is_readable = false,
            StreamRead::End => {
                assert_eq!(self.read, self.body.bytes, "{stream:?}: bytes of the body");
                let expected = self.body.has_trailers.then(|| trailers(self.key));
                let mut found = reader.trailers();
                let found = found.next().map(|field| field.value.to_vec());
                assert_eq!(found, expected.map(String::into_bytes));
                self.is_over = true;
            }
        }
    }
}

fn key(number: usize, from: Role) -> u8 {
    (number * 2 + usize::from(from == Role::Server)) as u8
}

/// Statuses that allow a body.
fn status(number: usize) -> u16 {
    [200, 201, 404, 500][number % 4]
}

fn trailers(key: u8) -> String {
    format!("sum of {key}")
}

fn field<'a>(name: &'a [u8], value: &'a [u8]) -> Field<'a> {
    Field { name, value }
}
