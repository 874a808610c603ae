//! Network emulator: a proxy of TCP and UDP that adds round-trip time, jitter, a rate limit and losses, for
//! systems on which the kernel's netem is not available. One thread serves thousands of connections.
//! UDP has the port of TCP, and its datagrams are also reordered and repeated (`datagrams`).
//!
//! ```text
//! client ──read──► shaper (shared by all: rate, delay) ──► delay queue (in order) ──write when due──► upstream
//!        ◄──write── delay queue ◄── shaper ◄──read──
//! ```
//!
//! The kernel completes the client's handshake before the emulator accepts the connection. The round
//! trip of a handshake is therefore charged to the data that follows: nothing that a client sends leaves
//! before a round trip has passed since it connected, and the upstream is dialled at that time.

mod cli;
mod conditions;
mod datagrams;
mod delay_queue;
#[cfg(all(target_os = "linux", not(towline_portable)))]
mod packets;
mod poll_wait;
mod shaper;
mod transit;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
pub use mio::Waker;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use slab::Slab;
use socket2::SockRef;

pub use cli::netem_main;
pub use conditions::NetworkConditions;
use datagrams::Datagrams;
use delay_queue::{Arrival, DelayQueue};
use poll_wait::await_readable;
use shaper::Shaper;
use towline_io::Listener;

const WAKE: Token = Token(0);
const ACCEPT: Token = Token(1);
const DATAGRAMS: Token = Token(2);
const FIRST: usize = 3;
const BACKLOG: u32 = 4096;
/// Pause of accepting after descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pieces read in a turn before timers are checked again.
const PIECES_PER_TURN: usize = 256;

/// The network emulator; see the picture at the top of the module.
pub struct Netem {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    listener: TcpListener,
    accepts_at: Option<Instant>,
    to: SocketAddr,
    rtt: Duration,
    window_bytes: usize,
    shapers: [Shaper; 2],
    /// Connections with bytes to read, for each direction, in round-robin order.
    readers: [VecDeque<usize>; 2],
    pairs: Slab<ProxiedPair>,
    timers: BinaryHeap<Reverse<(Instant, usize, Timer)>>,
    space: Box<[u8]>,
    datagrams: Datagrams,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Dial,
    /// The first piece in the delay queue of this direction.
    Arrival(usize),
}

/// A connection through the emulator. Side 0 is the client, side 1 the upstream; queue 0 goes from 0 to 1.
struct ProxiedPair {
    sides: [Option<Side>; 2],
    queues: [DelayQueue; 2],
    /// Time at which the emulated handshake ends.
    open_at: Instant,
}

struct Side {
    stream: TcpStream,
    readable: bool,
    writable: bool,
    /// Whether it is in `readers`.
    queued: bool,
}

impl Side {
    fn new(stream: TcpStream, writable: bool) -> Self {
        Self {
            stream,
            readable: false,
            writable,
            queued: false,
        }
    }
}

impl Netem {
    pub fn new(
        listen: SocketAddr,
        to: SocketAddr,
        conditions: &NetworkConditions,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (mut listener, datagrams) = listeners(listen, to, poll.registry())?;
        poll.registry()
            .register(&mut listener, ACCEPT, Interest::READABLE)?;
        let now = Instant::now();
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            waker,
            listener,
            accepts_at: None,
            to,
            rtt: conditions.rtt,
            window_bytes: conditions.window_bytes(),
            shapers: [0, 1].map(|direction| Shaper::new(conditions, direction, now)),
            readers: Default::default(),
            pairs: Slab::new(),
            timers: BinaryHeap::new(),
            space: vec![0; 64 * 1024].into(),
            datagrams,
        })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Ends the wait of the current or the next `turn`, from any thread or from a signal handler.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes held for all connections and in datagrams.
    pub fn held_bytes(&self) -> usize {
        let queues = self.pairs.iter().flat_map(|(_, pair)| &pair.queues);
        self.datagrams.held_bytes() + queues.map(DelayQueue::held_bytes).sum::<usize>()
    }

    /// Waits for events and due timers, and handles them.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let waited = self.wait(&mut events);
        let now = Instant::now();
        for event in &events {
            match event.token() {
                WAKE => {}
                ACCEPT => self.accepts_at = Some(now),
                token if self.datagrams.on_event(token) => {}
                Token(token) => self.on_event(event, token - FIRST, now),
            }
        }
        self.events = events;
        waited?;
        if self.accepts_at.is_some_and(|at| at <= now) {
            self.accept(now);
        }
        while let Some(&Reverse((at, key, timer))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Dial => self.dial(key, now),
                Timer::Arrival(direction) => {
                    if let Some(pair) = self.pairs.get_mut(key) {
                        pair.queues[direction].armed = None;
                    }
                    self.deliver(key, direction, now);
                }
            }
        }
        self.read(0, now);
        self.read(1, now);
        let registry = self.poll.registry();
        self.datagrams.turn(registry, &mut self.shapers, now);
        Ok(())
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let now = Instant::now();
        let reading = (0..2).filter_map(|direction| {
            let has_readers = !self.readers[direction].is_empty();
            has_readers.then(|| self.shapers[direction].full_until(now).unwrap_or(now))
        });
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let datagrams = self.datagrams.next(now);
        let next = reading
            .chain(timer)
            .chain(self.accepts_at)
            .chain(datagrams)
            .min();
        let wait = next.map(|at| at.saturating_duration_since(now));
        let polled = match wait {
            // Precise to microseconds where the system supports it; mio rounds to milliseconds.
            Some(wait) if !wait.is_zero() && await_readable(self.poll.as_raw_fd(), wait)? => {
                self.poll.poll(events, Some(Duration::ZERO))
            }
            wait => self.poll.poll(events, wait),
        };
        match polled {
            Err(error) => {
                events.clear();
                let interrupted = error.kind() == io::ErrorKind::Interrupted;
                if interrupted { Ok(()) } else { Err(error) }
            }
            Ok(()) => Ok(()),
        }
    }

    fn accept(&mut self, now: Instant) {
        self.accepts_at = None;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let open_at = now + self.rtt;
                    let key = self.pairs.insert(ProxiedPair {
                        sides: [Some(Side::new(stream, true)), None],
                        queues: Default::default(),
                        open_at,
                    });
                    if self.register(key, 0).is_err() {
                        self.pairs.remove(key);
                    }
                    self.timers.push(Reverse((open_at, key, Timer::Dial)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.accepts_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn register(&mut self, key: usize, side: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        let token = Token(FIRST + 2 * key + side);
        match &mut self.pairs[key].sides[side] {
            Some(side) => self.poll.registry().register(&mut side.stream, token, both),
            None => Ok(()),
        }
    }

    /// Connects to the upstream once the handshake's round trip has passed.
    fn dial(&mut self, key: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        // The slab entry may have been reused for another connection.
        if pair.sides[1].is_some() || pair.open_at > now {
            return;
        }
        let connected = TcpStream::connect(self.to).map(|stream| {
            let _ = stream.set_nodelay(true);
            pair.sides[1] = Some(Side::new(stream, false));
        });
        if connected.and_then(|()| self.register(key, 1)).is_err() {
            self.on_refused(key, now);
        }
    }

    /// Resets the client's connection because the upstream cannot be reached.
    fn on_refused(&mut self, key: usize, now: Instant) {
        if let Some(pair) = self.pairs.get_mut(key) {
            pair.queues[0].cut();
            pair.queues[1].push(now, Arrival::Reset);
            self.deliver(key, 1, now);
        }
    }

    fn on_event(&mut self, event: &Event, number: usize, now: Instant) {
        let (key, side) = (number / 2, number % 2);
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let Some(end) = &mut pair.sides[side] else {
            return;
        };
        if event.is_error()
            && let Ok(Some(_)) = end.stream.take_error()
        {
            return self.on_broken(key, side, now);
        }
        if event.is_writable() {
            end.writable = true;
        }
        if event.is_readable() || event.is_read_closed() {
            end.readable = true;
        }
        self.enqueue_reader(key, side);
        // The bytes for this side are in the queue of the other direction.
        self.deliver(key, 1 - side, now);
    }

    /// Adds `side` to the readers if it has bytes to read and its delay queue has room.
    fn enqueue_reader(&mut self, key: usize, side: usize) {
        let window_bytes = self.window_bytes;
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let queue = &pair.queues[side];
        let has_room = !queue.has_ended() && queue.held_bytes() < window_bytes;
        if let Some(end) = &mut pair.sides[side]
            && has_room
            && end.readable
            && !std::mem::replace(&mut end.queued, true)
        {
            self.readers[side].push_back(key);
        }
    }

    /// Reads one piece from each reader in round-robin order, while the shaper has room.
    fn read(&mut self, direction: usize, now: Instant) {
        for _ in 0..PIECES_PER_TURN {
            if self.shapers[direction].full_until(now).is_some() {
                return;
            }
            let Some(key) = self.readers[direction].pop_front() else {
                return;
            };
            self.read_piece(key, direction, now);
            self.enqueue_reader(key, direction);
            self.arm(key, direction);
        }
    }

    fn read_piece(&mut self, key: usize, direction: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let Some(side) = &mut pair.sides[direction] else {
            return;
        };
        side.queued = false;
        let (shaper, queue) = (&mut self.shapers[direction], &mut pair.queues[direction]);
        let max_bytes = shaper.piece_bytes().min(self.space.len());
        match side.stream.read(&mut self.space[..max_bytes]) {
            Ok(0) => {
                side.readable = false;
                queue.push(shaper.pass(now.max(pair.open_at)), Arrival::Fin);
            }
            Ok(bytes) => {
                let due = shaper.send(now.max(pair.open_at), bytes, queue.held_bytes());
                let data = Bytes::copy_from_slice(&self.space[..bytes]);
                queue.push(due, Arrival::Data(data));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => side.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.on_broken(key, direction, now),
        }
    }

    /// `side` has failed: the other side is reset after the delay of the network.
    fn on_broken(&mut self, key: usize, side: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        if let Some(end) = &mut pair.sides[side] {
            end.readable = false;
            end.writable = false;
        }
        pair.queues[1 - side].cut();
        let due = self.shapers[side].pass(now.max(pair.open_at));
        if pair.queues[side].is_over() {
            // The FIN of this side has been delivered before: the other side sends to a closed connection.
            self.abort(key, 1 - side);
            return;
        }
        pair.queues[side].push(due, Arrival::Reset);
        self.arm(key, side);
    }

    /// Ends the connection, with a reset of `side`.
    fn abort(&mut self, key: usize, side: usize) {
        let pair = self.pairs.try_remove(key);
        if let Some(side) = pair.and_then(|pair| pair.sides.into_iter().nth(side)?) {
            let _ = SockRef::from(&side.stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// Sets a timer for the next arrival.
    fn arm(&mut self, key: usize, direction: usize) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let queue = &mut pair.queues[direction];
        if let Some(at) = queue.next()
            && queue.armed.is_none_or(|armed| at < armed)
        {
            queue.armed = Some(at);
            self.timers
                .push(Reverse((at, key, Timer::Arrival(direction))));
        }
    }

    /// Writes the pieces that are due, as far as the receiving side accepts them.
    fn deliver(&mut self, key: usize, direction: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let Some(side) = &mut pair.sides[1 - direction] else {
            return;
        };
        let queue = &mut pair.queues[direction];
        while let Some(arrival) = queue.front(now) {
            match arrival {
                Arrival::Reset => return self.abort(key, 1 - direction),
                _ if !side.writable => {
                    // The poll reports when it is writable again; the bytes already written have made room.
                    self.enqueue_reader(key, direction);
                    return;
                }
                Arrival::Fin => {
                    let _ = side.stream.shutdown(Shutdown::Write);
                    queue.pop_end();
                }
                Arrival::Data(data) => match side.stream.write(data) {
                    Ok(bytes) => queue.written(bytes),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        side.writable = false;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return self.on_broken(key, 1 - direction, now),
                },
            }
        }
        if pair.queues.iter().all(DelayQueue::is_over) {
            self.pairs.remove(key);
            return;
        }
        self.enqueue_reader(key, direction);
        self.arm(key, direction);
    }
}

/// Sockets of TCP and UDP on the same port; if it is to be any, on one that is free for both.
fn listeners(
    listen: SocketAddr,
    to: SocketAddr,
    registry: &Registry,
) -> io::Result<(TcpListener, Datagrams)> {
    let mut tries = if listen.port() == 0 { 16 } else { 1 };
    loop {
        tries -= 1;
        let listener = Listener::tcp(listen, BACKLOG)?.into_raw_fd();
        // SAFETY: `into_raw_fd` has given the open descriptor away, so it has no other owner.
        let listener = unsafe { std::net::TcpListener::from_raw_fd(listener) };
        match Datagrams::new(listener.local_addr()?, to, registry, DATAGRAMS) {
            Ok(datagrams) => return Ok((TcpListener::from_std(listener), datagrams)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {}
            Err(error) => return Err(error),
        }
    }
}
