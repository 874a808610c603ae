//! A model of QUIC between two ends in memory: each stream keeps its order, streams overtake each other, and bytes
//! arrive in pieces of any size. Nothing is lost; the tests with real QUIC state machines lose datagrams.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towline_proto::{BufferPool, Connection, Limits, Protocol, ProtocolPolicy, QuicCommand, Side};

use crate::{Clock, Random};

/// One direction of a stream.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about the end of a stream"
)]
#[derive(Debug, Default)]
struct Pipe {
    /// Bytes on their way.
    bytes: VecDeque<u8>,
    /// Bytes that have arrived and were not read.
    arrived: VecDeque<u8>,
    end: bool,
    end_arrived: bool,
    end_read: bool,
    reset: Option<u64>,
    reset_arrived: bool,
    /// The receiver has abandoned reading.
    stopped: bool,
    /// The sender was refused room.
    is_blocked: bool,
}

impl Pipe {
    fn is_done(&self) -> bool {
        self.end_read || self.stopped
    }
}

/// The output of one end: the streams, by their numbers, and the orders.
#[derive(Debug, Default)]
pub struct QuicWire {
    pipes: BTreeMap<u64, Pipe>,
    /// `STOP_SENDING` on its way.
    stops: VecDeque<(u64, u64)>,
    close: Option<u64>,
    next: [u64; 2],
}

/// A client and a server.
pub struct QuicPair {
    pub client: Connection,
    pub server: Connection,
    pub clock: Clock,
    buffers: BufferPool,
    wires: [QuicWire; 2],
    /// Bytes of one stream that may be on their way: flow control.
    pub window: usize,
    /// Request streams that the server allows at once.
    pub max_streams: u64,
}

impl QuicPair {
    pub fn new(client: &Arc<Limits>, server: &Arc<Limits>) -> Self {
        let clock = Clock::default();
        let now = clock.now();
        let mut pair = Self {
            client: Connection::client_with_protocol(Arc::clone(client), Protocol::Http3, now),
            server: Connection::server_with_policy(Arc::clone(server), ProtocolPolicy::Http3, now),
            clock,
            buffers: BufferPool::new(64 * 1024, 2),
            wires: [QuicWire::default(), QuicWire::default()],
            window: 64 * 1024,
            max_streams: 100,
        };
        pair.client.set_stream_credit(now, pair.max_streams);
        pair
    }

    pub fn end(&mut self, side: Side) -> &mut Connection {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn parts(&mut self, from: Side) -> (&mut Connection, &mut Connection, &mut QuicWire) {
        let Self {
            client,
            server,
            wires: [up, down],
            ..
        } = self;
        match from {
            Side::Client => (client, server, up),
            Side::Server => (server, client, down),
        }
    }

    /// Takes the orders of an end, and up to `max` bytes of its streams.
    pub fn send(&mut self, from: Side, max: usize) -> bool {
        if from == Side::Client {
            self.offer_streams();
        }
        let (now, window) = (self.clock.now(), self.window);
        let (conn, _, wire) = self.parts(from);
        let mut moved = false;
        while let Some(command) = conn.next_quic_command() {
            moved = true;
            match command {
                QuicCommand::Open { uni, id } => {
                    let kind = u64::from(from == Side::Server) + 2 * u64::from(uni);
                    let place = &mut wire.next[usize::from(uni)];
                    assert_eq!(id, *place * 4 + kind, "streams are opened in order");
                    *place += 1;
                    wire.pipes.entry(id).or_default();
                }
                QuicCommand::Reset { id, code } => {
                    let pipe = wire.pipes.entry(id).or_default();
                    assert!(pipe.reset.is_none(), "stream {id} is reset twice");
                    assert!(!pipe.end, "stream {id} is reset after its end");
                    pipe.bytes.clear();
                    pipe.reset = Some(code);
                }
                QuicCommand::StopSending { id, code } => wire.stops.push_back((id, code)),
                QuicCommand::Priority { .. } => {}
                QuicCommand::Close { code, .. } => wire.close = Some(code),
            }
        }
        let mut left = max;
        while left > 0
            && let Some(send) = conn.next_stream_send()
        {
            let pipe = wire.pipes.entry(send.id).or_default();
            assert!(
                pipe.reset.is_none() && !pipe.end,
                "bytes of an ended stream"
            );
            let room = window.saturating_sub(pipe.bytes.len() + pipe.arrived.len());
            let n = send.data.len().min(room).min(left);
            left -= n;
            pipe.bytes.extend(&send.data[..n]);
            let is_whole = n == send.data.len();
            pipe.end = send.end && is_whole;
            pipe.is_blocked = !is_whole;
            moved |= n > 0 || pipe.end;
            conn.stream_sent(now, send.id, n, send.end && is_whole);
            if pipe.is_blocked && n < room {
                // Only `max` has stopped it.
                pipe.is_blocked = false;
                conn.stream_writable(now, send.id);
            }
        }
        moved
    }

    /// Tells the client how many requests it may start: QUIC's limit of streams.
    fn offer_streams(&mut self) {
        let now = self.clock.now();
        let is_open = |wire: &QuicWire, id: &u64| {
            let pipe = wire.pipes.get(id);
            !pipe.is_some_and(|pipe| pipe.is_done() || pipe.reset.is_some())
        };
        let [up, down] = &self.wires;
        let requests = up.pipes.keys().filter(|id| *id % 4 == 0);
        let open = requests.filter(|id| is_open(up, id) || is_open(down, id));
        let credit = self.max_streams.saturating_sub(open.count() as u64);
        self.client.set_stream_credit(now, credit);
    }

    /// Up to `max` bytes of one stream arrive, or what else is on its way.
    pub fn deliver(&mut self, from: Side, random: &mut Random, max: usize) -> bool {
        let now = self.clock.now();
        let window = self.window;
        let (sender, receiver, wire) = self.parts(from);
        if wire.stops.front().is_some() && random.below(2) == 0 {
            return self.deliver_stop(from);
        }
        let waiting: Vec<u64> = wire
            .pipes
            .iter()
            .filter(|(_, pipe)| !pipe.stopped && !pipe.end_read)
            .filter(|(_, pipe)| {
                let resets = pipe.reset.is_some() && !pipe.reset_arrived;
                !pipe.bytes.is_empty() || (pipe.end && !pipe.end_arrived) || resets
            })
            .map(|(id, _)| *id)
            .collect();
        if waiting.is_empty() {
            if wire.stops.front().is_some() {
                return self.deliver_stop(from);
            }
            if let Some(code) = wire.close.take() {
                receiver.quic_closed(now, &super::closed_with(code));
                return true;
            }
            return false;
        }
        let id = waiting[random.below(waiting.len())];
        let pipe = wire.pipes.entry(id).or_default();
        let n = max.max(1).min(pipe.bytes.len());
        pipe.arrived.extend(pipe.bytes.drain(..n));
        pipe.end_arrived = pipe.end && pipe.bytes.is_empty();
        pipe.reset_arrived = pipe.reset.is_some();
        if pipe.is_blocked && pipe.bytes.len() + pipe.arrived.len() < window {
            pipe.is_blocked = false;
            sender.stream_writable(now, id);
        }
        receiver.stream_readable(now, id);
        self.read(from);
        true
    }

    fn deliver_stop(&mut self, from: Side) -> bool {
        let now = self.clock.now();
        let Some((id, code)) = self.wires[usize::from(from == Side::Server)]
            .stops
            .pop_front()
        else {
            return false;
        };
        // The stream of the other end is stopped.
        let to = match from {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        let (conn, _, wire) = self.parts(to);
        let pipe = wire.pipes.entry(id).or_default();
        pipe.stopped = true;
        if pipe.reset.is_none() && !pipe.end_read {
            conn.stream_stop_received(now, id, code);
        }
        true
    }

    /// The receiver reads what it has room for.
    pub fn read(&mut self, from: Side) {
        let now = self.clock.now();
        let window = self.window;
        match from {
            Side::Client => self.server.prepare(&mut self.buffers),
            Side::Server => self.client.prepare(&mut self.buffers),
        }
        let (sender, receiver, wire) = self.parts(from);
        while let Some(recv) = receiver.next_stream_recv() {
            assert!(recv.max_bytes > 0);
            let pipe = wire.pipes.entry(recv.id).or_default();
            if let Some(code) = pipe.reset.filter(|_| pipe.reset_arrived) {
                pipe.end_read = true;
                receiver.stream_reset_received(now, recv.id, code);
                continue;
            }
            let n = recv.max_bytes.min(pipe.arrived.len());
            if n > 0 {
                let data: Vec<u8> = pipe.arrived.drain(..n).collect();
                receiver.stream_received(now, recv.id, Bytes::from(data));
                if pipe.is_blocked && pipe.bytes.len() + pipe.arrived.len() < window {
                    pipe.is_blocked = false;
                    sender.stream_writable(now, recv.id);
                }
                continue;
            }
            if pipe.end_arrived && !pipe.is_done() {
                pipe.end_read = true;
                receiver.stream_end(now, recv.id);
                sender.stream_acknowledged(now, recv.id);
            } else {
                receiver.stream_drained(recv.id);
            }
        }
    }

    /// Everything on its way arrives, and everything that can be sent is, until nothing changes. The programs are not
    /// called.
    pub fn run(&mut self) {
        let mut random = Random::new(1);
        loop {
            let mut moved = false;
            for side in [Side::Client, Side::Server] {
                moved |= self.send(side, usize::MAX);
                self.read(side);
                while self.deliver(side, &mut random, usize::MAX) {
                    moved = true;
                }
            }
            if !moved {
                return self.offer_streams();
            }
        }
    }

    /// Advances the clock and handles every deadline that passes.
    pub fn advance(&mut self, by: Duration) {
        let target = self.clock.now() + by;
        for _ in 0..10_000 {
            let due = [self.client.deadline(), self.server.deadline()];
            let Some(at) = due.into_iter().flatten().min().filter(|at| *at <= target) else {
                self.clock.advance_to(target);
                return;
            };
            self.clock.advance_to(at);
            let now = self.clock.now();
            self.client.handle_timeout(now);
            self.server.handle_timeout(now);
            self.run();
        }
        panic!("a deadline that is due must go away when it is handled");
    }

    /// Idle connections return their memory.
    pub fn release(&mut self) {
        self.client.release(&mut self.buffers);
        self.server.release(&mut self.buffers);
    }
}
