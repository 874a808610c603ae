//! One end of a connection: a `Connection`, a scripted program above it and buffers in place of the socket.

use std::collections::VecDeque;
use std::io::{IoSlice, Read as _};
use std::sync::Arc;
use std::time::Duration;

use towline_proto::{
    BodySize, BufferPool, Connection, Event, Field, Limits, Protocol, ProtocolPolicy, RequestHead,
    ResponseHead, Side, StreamId, StreamRead, UserError,
};

use crate::h3::{Arrival, QuicSide};
use crate::{Clock, Log};

/// Behaviour of the program above the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Reads each request's body to its end, then responds with 200 without a body. As a client: reads each
    /// response.
    Read,
    /// Responds with 200 as soon as the head has arrived and never reads the body.
    Ignore,
    /// Responds with 200 and `Connection: close` after the body.
    Close,
    /// Responds with 101 after the body, or 200 to CONNECT, and reads the raw bytes that follow.
    Switch,
    /// Reads bodies, never responds: the test does.
    Manual,
    /// Neither reads nor responds.
    Silent,
}

/// Request streams that QUIC allows.
const MAX_STREAMS: u64 = 100;

/// More rounds than any input of these tests needs: a loop that reaches it is endless.
const MAX_ROUNDS: usize = 10_000_000;

/// Result of a pump; see
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Moved,
    Idle,
}

/// An exchange as the scripted program sees it.
#[derive(Debug)]
struct Exchange {
    id: StreamId,
    connect: bool,
}

pub struct End {
    pub conn: Connection,
    pub buffers: BufferPool,
    pub clock: Clock,
    pub log: Log,
    /// Bytes the socket takes before it would block; `usize::MAX`: always all.
    pub send_room: usize,
    side: Side,
    app: App,
    /// Exchanges without a response.
    exchanges: Vec<Exchange>,
    requests: VecDeque<(String, String)>,
    output: VecDeque<u8>,
    written: Vec<u8>,
    unread: VecDeque<u8>,
    eof_given: bool,
    closed: bool,
    last_stream: Option<StreamId>,
    /// The transport of HTTP/3.
    pub quic: QuicSide,
    /// Streams to read when there are no more events: a program must handle `Switched` first.
    to_read: VecDeque<StreamId>,
}

impl End {
    pub fn server(limits: &Arc<Limits>, app: App) -> Self {
        let clock = Clock::default();
        let conn = Connection::server(Arc::clone(limits), clock.now());
        Self::new(conn, clock, Side::Server, app)
    }

    /// A server with the default limits that has received `wire` and whose program is the test.
    pub fn server_with_request(wire: &[u8]) -> Self {
        let mut end = Self::server(&Arc::new(Limits::server()), App::Manual);
        end.feed(wire);
        assert!(end.last_stream.is_some(), "{}", end.log_text());
        end
    }

    /// A client that sends `requests` (method, target) without bodies, each after the response to the one
    /// before. `GET+upgrade` offers an upgrade.
    pub fn client(limits: &Arc<Limits>, requests: &[(&str, &str)]) -> Self {
        Self::with_requests(Protocol::Http1, limits, requests)
    }

    /// The same over HTTP/2.
    pub fn h2_client_with_requests(limits: &Arc<Limits>, requests: &[(&str, &str)]) -> Self {
        Self::with_requests(Protocol::Http2, limits, requests)
    }

    fn with_requests(protocol: Protocol, limits: &Arc<Limits>, requests: &[(&str, &str)]) -> Self {
        let clock = Clock::default();
        let conn = Connection::client_with_protocol(Arc::clone(limits), protocol, clock.now());
        let mut end = Self::new(conn, clock, Side::Client, App::Read);
        end.conn.set_stream_credit(end.clock.now(), MAX_STREAMS);
        end.requests = requests
            .iter()
            .map(|(method, target)| ((*method).to_owned(), (*target).to_owned()))
            .collect();
        end.next_request();
        end.pump();
        end
    }

    /// A client of this protocol.
    pub(crate) fn client_of(
        protocol: Protocol,
        limits: &Arc<Limits>,
        requests: &[(&str, &str)],
    ) -> Self {
        Self::with_requests(protocol, limits, requests)
    }

    /// A server of this protocol.
    pub fn server_of(protocol: Protocol, limits: &Arc<Limits>, app: App) -> Self {
        let policy = match protocol {
            Protocol::Http1 => ProtocolPolicy::Http1,
            Protocol::Http2 => ProtocolPolicy::Http2,
            Protocol::Http3 => ProtocolPolicy::Http3,
        };
        let clock = Clock::default();
        let conn = Connection::server_with_policy(Arc::clone(limits), policy, clock.now());
        Self::new(conn, clock, Side::Server, app)
    }

    /// A client of HTTP/3 whose test writes the requests.
    pub fn h3_client(limits: &Arc<Limits>) -> Self {
        let mut end = Self::with_requests(Protocol::Http3, limits, &[]);
        end.app = App::Manual;
        end
    }

    /// A client whose test writes the requests.
    pub fn manual_client(limits: &Arc<Limits>) -> Self {
        let clock = Clock::default();
        let conn = Connection::client(Arc::clone(limits), clock.now());
        Self::new(conn, clock, Side::Client, App::Manual)
    }

    /// A server for HTTP/2 only.
    pub fn h2_server(limits: &Arc<Limits>, app: App) -> Self {
        let clock = Clock::default();
        let conn =
            Connection::server_with_policy(Arc::clone(limits), ProtocolPolicy::Http2, clock.now());
        Self::new(conn, clock, Side::Server, app)
    }

    /// A client of HTTP/2 whose test writes the requests.
    pub fn h2_client(limits: &Arc<Limits>) -> Self {
        let clock = Clock::default();
        let conn =
            Connection::client_with_protocol(Arc::clone(limits), Protocol::Http2, clock.now());
        Self::new(conn, clock, Side::Client, App::Manual)
    }

    fn new(conn: Connection, clock: Clock, side: Side, app: App) -> Self {
        Self {
            conn,
            buffers: BufferPool::new(64 * 1024, 2),
            clock,
            log: Log::default(),
            send_room: usize::MAX,
            side,
            app,
            exchanges: Vec::new(),
            requests: VecDeque::new(),
            output: VecDeque::new(),
            written: Vec::new(),
            unread: VecDeque::new(),
            eof_given: false,
            closed: false,
            last_stream: None,
            quic: QuicSide::default(),
            to_read: VecDeque::new(),
        }
    }

    /// Uses receive buffers of another size.
    #[must_use]
    pub fn with_buffers(mut self, buffer_bytes: usize) -> Self {
        self.buffers = BufferPool::new(buffer_bytes, 2);
        self
    }

    /// Feeds bytes. Bytes that the connection does not take yet wait in the receive buffer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.unread.extend(bytes);
        self.run_until_idle();
    }

    /// HTTP/3: something arrives from the peer.
    pub fn arrive(&mut self, arrival: Arrival) {
        self.arrive_together(vec![arrival]);
    }

    /// Several things arrive before anything is read.
    pub fn arrive_together(&mut self, arrivals: Vec<Arrival>) {
        let now = self.clock.now();
        for arrival in arrivals {
            self.quic.arrive(&mut self.conn, now, arrival);
        }
        self.run_until_idle();
    }

    fn is_h3(&self) -> bool {
        self.conn.protocol() == Some(Protocol::Http3)
    }

    /// The side of this end.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The exchange whose head was received last.
    pub fn last_stream(&self) -> Option<StreamId> {
        self.last_stream
    }

    /// True after `Event::Closed`.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The peer's FIN arrives after everything fed so far.
    pub fn feed_eof(&mut self) {
        self.eof_given = true;
        self.run_until_idle();
    }

    /// The transport fails: bytes in flight are lost.
    pub fn feed_abort(&mut self) {
        self.unread.clear();
        self.output.clear();
        self.conn
            .received_abort(self.clock.now(), "connection reset");
        self.run_until_idle();
    }

    /// Bytes fed that the connection has not taken: backpressure.
    pub fn unread_bytes(&self) -> usize {
        self.unread.len()
    }

    /// Advances the clock and handles every deadline that passes.
    pub fn advance(&mut self, by: Duration) {
        let target = self.clock.now() + by;
        while let Some(at) = self.conn.deadline().filter(|at| *at <= target) {
            self.clock.advance_to(at);
            self.conn.handle_timeout(self.clock.now());
            self.run_until_idle();
            assert!(
                self.conn.deadline() != Some(at),
                "a deadline that is due must go away when it is handled"
            );
        }
        self.clock.advance_to(target);
        self.run_until_idle();
    }

    /// Takes at most `max` of the bytes sent.
    pub fn take_output(&mut self, max: usize) -> Vec<u8> {
        let n = max.min(self.output.len());
        self.output.drain(..n).collect()
    }

    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Everything this end has ever sent.
    pub fn written(&self) -> &[u8] {
        &self.written
    }

    /// Event log, then the status of every response that a server of HTTP/1 sent or every frame of an end of
    /// HTTP/2, then the interest of the connection.
    pub fn log_text(&self) -> String {
        let mut log = self.log.clone();
        if self.side == Side::Server && self.conn.protocol() == Some(Protocol::Http1) {
            for line in crate::wire::status_lines(&self.written) {
                log.line(&format!("wrote {line}"));
            }
        }
        if self.conn.protocol() == Some(Protocol::Http2) {
            log_written(&mut log, &crate::h2::lines(&self.written));
        }
        if self.is_h3() {
            log_written(&mut log, &self.quic.lines());
        }
        let interest = self.conn.interest();
        log.line(match (interest.closed, interest.shutdown) {
            (true, _) if interest.abort => "then closed, reset",
            (true, _) => "then closed",
            (false, true) => "then fin",
            (false, false) => "then open",
        });
        log.text()
    }

    /// Runs reads, events, the program and writes until nothing changes any more.
    pub fn run_until_idle(&mut self) {
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "no end of reading and writing");
            let received = self.receive();
            let pumped = self.pump();
            if !received && pumped == Progress::Idle {
                break;
            }
        }
        // An engine that relies on it would loop forever.
        assert!(
            !self.conn.has_events(),
            "events are promised and none comes: {}",
            self.log_text()
        );
        self.conn.release(&mut self.buffers);
    }

    fn receive(&mut self) -> bool {
        if self.is_h3() {
            self.conn.prepare(&mut self.buffers);
            return self.quic.receive(&mut self.conn, self.clock.now());
        }
        let interest = self.conn.interest();
        if interest.closed || !interest.read {
            return false;
        }
        if self.unread.is_empty() {
            if std::mem::take(&mut self.eof_given) {
                self.conn.received_eof(self.clock.now());
                return true;
            }
            return false;
        }
        let space = self.conn.recv_space(&mut self.buffers);
        // Reading from memory cannot fail.
        let n = self.unread.read(space).unwrap_or(0);
        if n > 0 {
            self.conn.received(self.clock.now(), n);
        }
        n > 0
    }

    /// Delivers every event to the program and every byte to the socket.
    pub fn pump(&mut self) -> Progress {
        let mut progress = Progress::Idle;
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "no end of events");
            let mut moved = self.flush();
            if let Some(next) = self.event() {
                moved = true;
                self.act(next);
            } else if let Some(stream) = self.to_read.pop_front() {
                moved = true;
                self.read(stream);
            }
            if !moved {
                return progress;
            }
            progress = Progress::Moved;
        }
        progress
    }

    fn flush(&mut self) -> bool {
        if self.is_h3() {
            return self.quic.send(&mut self.conn, self.clock.now());
        }
        let mut moved = false;
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.conn.send_slices(&mut slices);
            let mut n = 0;
            for slice in &slices[..count] {
                let take = slice.len().min(self.send_room - n);
                self.output.extend(&slice[..take]);
                self.written.extend_from_slice(&slice[..take]);
                n += take;
            }
            if count == 0 {
                return moved;
            }
            if self.send_room != usize::MAX {
                self.send_room -= n;
            }
            self.conn.sent(self.clock.now(), n);
            if n == 0 {
                return moved;
            }
            moved = true;
        }
    }

    /// Takes one event, logs it and returns the program's reaction.
    fn event(&mut self) -> Option<Action> {
        let (announced, is_h3) = (self.conn.has_events(), self.is_h3());
        let event = self.conn.next_event()?;
        assert!(
            announced,
            "{event:?} was not promised: an engine that believes it would sleep"
        );
        assert!(!self.closed, "{event:?} after Closed");
        let action = match event {
            Event::Head { stream, head, end } => {
                // HTTP/3: the end may come after the head, and is a line of its own.
                self.log.head(self.side, stream, &head, end && !is_h3);
                let connect = self.side == Side::Server && head.method() == b"CONNECT";
                self.last_stream = Some(stream);
                self.exchanges.push(Exchange {
                    id: stream,
                    connect,
                });
                Action::Head(stream, end)
            }
            Event::Informational { stream, head } => {
                self.log.interim(stream, &head);
                Action::Nothing
            }
            Event::Readable(stream) => Action::Read(stream),
            Event::Writable(_) => Action::Nothing,
            Event::HalfClosed(stream) => {
                self.log.line(&format!("half-closed {}", stream.0));
                Action::Nothing
            }
            Event::Switched { stream } => {
                self.log.line(&format!("switched {}", stream.0));
                Action::Read(stream)
            }
            Event::Failed(stream, error) => {
                self.log.line(&format!("failed {} {error}", stream.0));
                self.exchanges.retain(|open| open.id != stream);
                Action::Nothing
            }
            Event::GoingAway { last } => {
                self.log.line(&format!("going away {}", last.0));
                Action::Nothing
            }
            Event::Closed(error) => {
                self.log.line(&format!("closed {error}"));
                self.closed = true;
                Action::Nothing
            }
        };
        Some(action)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Head(stream, end) => match (self.side, self.app) {
                (_, App::Silent) => {}
                (Side::Server, App::Ignore) => self.respond(stream),
                _ if end => {
                    if self.is_h3() && !self.is_tunnel(stream) {
                        self.log.line(&format!("end {}", stream.0));
                    }
                    self.body_ended(stream);
                }
                _ => self.to_read.push_back(stream),
            },
            Action::Read(stream) => {
                if self.app != App::Silent && self.app != App::Ignore {
                    self.read(stream);
                }
            }
        }
    }

    fn is_tunnel(&self, stream: StreamId) -> bool {
        let mut exchanges = self.exchanges.iter();
        exchanges.any(|exchange| exchange.id == stream && exchange.connect)
    }

    /// Reads until nothing more is available.
    pub fn read(&mut self, stream: StreamId) {
        loop {
            // A closed stream cannot be read any more; its `Failed` event gives the reason.
            let Ok(mut body) = self.conn.stream(stream) else {
                return;
            };
            match body.read(8 * 1024) {
                StreamRead::Data(data) => self.log.body(stream, data),
                StreamRead::Pending | StreamRead::Failed => return,
                StreamRead::End => break,
            }
        }
        self.log.line(&format!("end {}", stream.0));
        if let Ok(body) = self.conn.stream(stream) {
            for field in body.trailers() {
                self.log.field(field.name, field.value);
            }
        }
        self.body_ended(stream);
    }

    fn body_ended(&mut self, stream: StreamId) {
        match self.side {
            _ if self.app == App::Manual => {}
            Side::Server => self.respond(stream),
            Side::Client => self.next_request(),
        }
    }

    /// Responds to the exchange whose head was received last.
    ///
    /// # Errors
    /// Those of `Connection::respond`.
    pub fn send_response(
        &mut self,
        status: u16,
        fields: &[Field<'_>],
        body: BodySize,
    ) -> Result<(), UserError> {
        let head = ResponseHead {
            status,
            reason: b"",
            fields,
        };
        self.conn
            .respond(self.last_stream.unwrap_or(StreamId(1)), &head, body)
    }

    fn respond(&mut self, stream: StreamId) {
        let Some(at) = self.exchanges.iter().position(|open| open.id == stream) else {
            return;
        };
        let exchange = self.exchanges.swap_remove(at);
        let switching: &[Field<'_>] = &[
            Field {
                name: b"Connection",
                value: b"Upgrade",
            },
            Field {
                name: b"Upgrade",
                value: b"test",
            },
        ];
        let closing: &[Field<'_>] = &[Field {
            name: b"Connection",
            value: b"close",
        }];
        let (status, fields) = match self.app {
            App::Switch if !exchange.connect => (101, switching),
            App::Close => (200, closing),
            _ => (200, &[][..]),
        };
        let head = ResponseHead {
            status,
            reason: b"",
            fields,
        };
        if let Err(error) = self.conn.respond(stream, &head, BodySize::Empty) {
            self.log
                .line(&format!("respond {} refused: {error}", stream.0));
        }
    }

    fn next_request(&mut self) {
        let Some((method, target)) = self.requests.pop_front() else {
            return;
        };
        let fields = [
            Field {
                name: b"Host",
                value: b"a",
            },
            Field {
                name: b"Connection",
                value: b"Upgrade",
            },
            Field {
                name: b"Upgrade",
                value: b"test",
            },
        ];
        let (method, fields) = match method.strip_suffix("+upgrade") {
            Some(method) => (method, &fields[..]),
            None => (method.as_str(), &fields[..1]),
        };
        let head = RequestHead {
            method: method.as_bytes(),
            target: target.as_bytes(),
            fields,
        };
        if let Err(error) = self.conn.request(&head, BodySize::Empty) {
            self.log.line(&format!("request refused: {error}"));
        }
    }
}

/// Logs what was written, equal lines together.
fn log_written(log: &mut Log, lines: &[String]) {
    for same in lines.chunk_by(|one, next| one == next) {
        log.line(&match same.len() {
            1 => format!("wrote {}", same[0]),
            n => format!("wrote {n} x {}", same[0]),
        });
    }
}

#[derive(Clone, Copy)]
enum Action {
    Nothing,
    Head(StreamId, bool),
    Read(StreamId),
}
