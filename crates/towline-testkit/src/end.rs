//! One end of a connection: a `Connection`, a scripted program above it and buffers in place of the socket.

mod program;

use std::collections::VecDeque;
use std::io::{IoSlice, Read as _};
use std::sync::Arc;
use std::time::Duration;

use towline_proto::{BufferPool, Connection, Limits, Protocol, ProtocolPolicy, Side, StreamId};

use crate::h3::{Arrival, QuicSide};
use crate::{Clock, Log};

pub use program::App;
use program::Exchange;

/// Request streams that QUIC allows.
const MAX_STREAMS: u64 = 100;

/// More rounds than any input of these tests needs: a loop that reaches it is endless.
const MAX_ROUNDS: usize = 10_000_000;

/// Whether [`End::pump`] delivered anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Moved,
    Idle,
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
        Self::client_of(Protocol::Http1, limits, requests)
    }

    /// A client over HTTP/2 that sends `requests` without bodies.
    pub fn h2_client_with_requests(limits: &Arc<Limits>, requests: &[(&str, &str)]) -> Self {
        Self::client_of(Protocol::Http2, limits, requests)
    }

    /// A client of this protocol that sends these requests.
    pub(crate) fn client_of(
        protocol: Protocol,
        limits: &Arc<Limits>,
        requests: &[(&str, &str)],
    ) -> Self {
        let mut end = Self::manual_client_of(protocol, limits);
        end.app = App::Read;
        end.conn.set_stream_credit(end.clock.now(), MAX_STREAMS);
        end.requests = requests
            .iter()
            .map(|(method, target)| ((*method).to_owned(), (*target).to_owned()))
            .collect();
        end.next_request();
        end.pump();
        end
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

    /// A server for HTTP/2 only.
    pub fn h2_server(limits: &Arc<Limits>, app: App) -> Self {
        Self::server_of(Protocol::Http2, limits, app)
    }

    /// A client whose test writes the requests.
    pub fn manual_client(limits: &Arc<Limits>) -> Self {
        Self::manual_client_of(Protocol::Http1, limits)
    }

    /// A client of HTTP/2 whose test writes the requests.
    pub fn h2_client(limits: &Arc<Limits>) -> Self {
        Self::manual_client_of(Protocol::Http2, limits)
    }

    /// A client of HTTP/3 whose test writes the requests.
    pub fn h3_client(limits: &Arc<Limits>) -> Self {
        let mut end = Self::manual_client_of(Protocol::Http3, limits);
        end.conn.set_stream_credit(end.clock.now(), MAX_STREAMS);
        end.pump();
        end
    }

    fn manual_client_of(protocol: Protocol, limits: &Arc<Limits>) -> Self {
        let clock = Clock::default();
        let conn = Connection::client_with_protocol(Arc::clone(limits), protocol, clock.now());
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
