//! A TCP relay that behaves like a network: round-trip time, jitter, a rate and losses, for kernels
//! without netem. One thread, thousands of connections.
//!
//! ```text
//! client ──read──► link (shared by all: rate, delay) ──► line (in order) ──write when due──► upstream
//!        ◄──write── line ◄── link ◄──read──
//! ```
//!
//! The kernel completes the client's handshake before we hear of it. The round trip that a handshake
//! takes is therefore charged to what follows: nothing a client sends leaves before a round trip has
//! passed since it connected, and the upstream is dialled then.

mod line;
mod link;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;
use socket2::SockRef;

use crate::engine::Remote;
use crate::engine::listener::Listener;
use crate::sys;
use line::{Arrival, Line};
use link::{Link, bytes_in};

const WAKE: Token = Token(0);
const ACCEPT: Token = Token(1);
const FIRST: usize = 2;
/// What a connection may hold in one direction beyond a bandwidth-delay product.
const SPARE_BYTES: usize = 256 * 1024;
/// ... and where there is no rate.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
const BACKLOG: u32 = 4096;
/// After descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pieces read in a turn before timers are looked at again.
const PIECES_PER_TURN: usize = 256;

/// What the network does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    pub rtt: Duration,
    /// A round trip takes up to so much less or more.
    pub jitter: Duration,
    /// Bytes a second in each direction, for all connections together.
    pub rate: Option<f64>,
    /// Share of segments that are lost. TCP repeats them: what is modelled is the delay of that.
    pub loss: f64,
    pub seed: u64,
}

impl Conditions {
    /// What a connection may hold in one direction.
    fn window_bytes(&self) -> usize {
        self.rate.map_or(WINDOW_BYTES, |rate| {
            bytes_in(rate, self.rtt.as_secs_f64()) + SPARE_BYTES
        })
    }
}

/// See the module's picture.
pub struct Relay {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    listener: TcpListener,
    accepts_at: Option<Instant>,
    to: SocketAddr,
    rtt: Duration,
    window_bytes: usize,
    links: [Link; 2],
    /// Connections with bytes to read, for each direction, in turn.
    readers: [VecDeque<usize>; 2],
    pairs: Slab<Pair>,
    timers: BinaryHeap<Reverse<(Instant, usize, Timer)>>,
    space: Box<[u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Dial,
    /// The line of this direction.
    Arrival(usize),
}

/// A connection through the relay. Side 0 is the client, side 1 the upstream; line 0 goes from 0 to 1.
struct Pair {
    sides: [Option<Side>; 2],
    lines: [Line; 2],
    /// When the handshake is over.
    open_at: Instant,
}

struct Side {
    stream: TcpStream,
    readable: bool,
    writable: bool,
    /// Stands in `readers`.
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

impl Relay {
    pub fn new(listen: SocketAddr, to: SocketAddr, conditions: &Conditions) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let listener = Listener::tcp(listen, BACKLOG)?.into_raw_fd();
        // SAFETY: the descriptor is ours alone from here on.
        let listener = unsafe { std::net::TcpListener::from_raw_fd(listener) };
        let mut listener = TcpListener::from_std(listener);
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
            links: [0, 1].map(|direction| Link::new(conditions, direction, now)),
            readers: Default::default(),
            pairs: Slab::new(),
            timers: BinaryHeap::new(),
            space: vec![0; 64 * 1024].into(),
        })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.waker))
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.pairs.len()
    }

    /// Bytes held for all of them.
    pub fn held_bytes(&self) -> usize {
        let lines = self.pairs.iter().flat_map(|(_, pair)| &pair.lines);
        lines.map(Line::held_bytes).sum()
    }

    /// Waits for something to do, and does it.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let waited = self.wait(&mut events);
        let now = Instant::now();
        for event in &events {
            match event.token() {
                WAKE => {}
                ACCEPT => self.accepts_at = Some(now),
                Token(token) => self.noticed(event, token - FIRST, now),
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
                        pair.lines[direction].armed = None;
                    }
                    self.deliver(key, direction, now);
                }
            }
        }
        self.read(0, now);
        self.read(1, now);
        Ok(())
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let now = Instant::now();
        let reading = (0..2).filter_map(|direction| {
            let waiting = !self.readers[direction].is_empty();
            waiting.then(|| self.links[direction].full_until(now).unwrap_or(now))
        });
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let next = reading.chain(timer).chain(self.accepts_at).min();
        let wait = next.map(|at| at.saturating_duration_since(now));
        let polled = match wait {
            // Exact to microseconds where the system can: mio knows milliseconds.
            Some(wait) if !wait.is_zero() && sys::await_readable(self.poll.as_raw_fd(), wait)? => {
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
                    let key = self.pairs.insert(Pair {
                        sides: [Some(Side::new(stream, true)), None],
                        lines: Default::default(),
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

    /// The handshake is over; the upstream learns of the connection.
    fn dial(&mut self, key: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        // The place may belong to another connection by now.
        if pair.sides[1].is_some() || pair.open_at > now {
            return;
        }
        let dialled = TcpStream::connect(self.to).map(|stream| {
            let _ = stream.set_nodelay(true);
            pair.sides[1] = Some(Side::new(stream, false));
        });
        if dialled.and_then(|()| self.register(key, 1)).is_err() {
            self.refused(key, now);
        }
    }

    /// There is no upstream: the client learns it as it would of a refusal.
    fn refused(&mut self, key: usize, now: Instant) {
        if let Some(pair) = self.pairs.get_mut(key) {
            pair.lines[0].cut();
            pair.lines[1].push(now, Arrival::Reset);
            self.deliver(key, 1, now);
        }
    }

    fn noticed(&mut self, event: &Event, number: usize, now: Instant) {
        let (key, side) = (number / 2, number % 2);
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let Some(found) = &mut pair.sides[side] else {
            return;
        };
        if event.is_error()
            && let Ok(Some(_)) = found.stream.take_error()
        {
            return self.broken(key, side, now);
        }
        if event.is_writable() {
            found.writable = true;
        }
        if event.is_readable() || event.is_read_closed() {
            found.readable = true;
        }
        self.queue(key, side);
        // What goes to this side comes by the line from the other one.
        self.deliver(key, 1 - side, now);
    }

    /// `side` has something to read and its line has room: it gets its turn.
    fn queue(&mut self, key: usize, side: usize) {
        let window_bytes = self.window_bytes;
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let line = &pair.lines[side];
        let wants = !line.has_ended() && line.held_bytes() < window_bytes;
        if let Some(found) = &mut pair.sides[side]
            && wants
            && found.readable
            && !std::mem::replace(&mut found.queued, true)
        {
            self.readers[side].push_back(key);
        }
    }

    /// Reads a piece each, in turn, as far as the link takes them.
    fn read(&mut self, direction: usize, now: Instant) {
        for _ in 0..PIECES_PER_TURN {
            if self.links[direction].full_until(now).is_some() {
                return;
            }
            let Some(key) = self.readers[direction].pop_front() else {
                return;
            };
            self.read_piece(key, direction, now);
            self.queue(key, direction);
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
        let (shared, line) = (&mut self.links[direction], &mut pair.lines[direction]);
        let most = shared.piece_bytes().min(self.space.len());
        match side.stream.read(&mut self.space[..most]) {
            Ok(0) => {
                side.readable = false;
                line.push(shared.pass(now.max(pair.open_at)), Arrival::Fin);
            }
            Ok(bytes) => {
                let due = shared.send(now.max(pair.open_at), bytes, line.held_bytes());
                let data = Bytes::copy_from_slice(&self.space[..bytes]);
                line.push(due, Arrival::Data(data));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => side.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.broken(key, direction, now),
        }
    }

    /// `side` is gone: the other one learns it when the news has arrived.
    fn broken(&mut self, key: usize, side: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        if let Some(found) = &mut pair.sides[side] {
            found.readable = false;
            found.writable = false;
        }
        pair.lines[1 - side].cut();
        let due = self.links[side].pass(now.max(pair.open_at));
        if pair.lines[side].is_over() {
            // It had said that it was done before: the other one is sending to nobody.
            self.abort(key, 1 - side);
            return;
        }
        pair.lines[side].push(due, Arrival::Reset);
        self.arm(key, side);
    }

    /// Ends the connection, for `side` by a reset.
    fn abort(&mut self, key: usize, side: usize) {
        let pair = self.pairs.try_remove(key);
        if let Some(side) = pair.and_then(|pair| pair.sides.into_iter().nth(side)?) {
            let _ = SockRef::from(&side.stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// Sets a timer for what arrives next.
    fn arm(&mut self, key: usize, direction: usize) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let line = &mut pair.lines[direction];
        if let Some(at) = line.next()
            && line.armed.is_none_or(|armed| at < armed)
        {
            line.armed = Some(at);
            self.timers
                .push(Reverse((at, key, Timer::Arrival(direction))));
        }
    }

    /// Hands over what has arrived, as far as its reader takes it.
    fn deliver(&mut self, key: usize, direction: usize, now: Instant) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let Some(side) = &mut pair.sides[1 - direction] else {
            return;
        };
        let line = &mut pair.lines[direction];
        while let Some(arrival) = line.front(now) {
            match arrival {
                Arrival::Reset => return self.abort(key, 1 - direction),
                _ if !side.writable => {
                    // The poll tells when it goes on; what was written has made room.
                    self.queue(key, direction);
                    return;
                }
                Arrival::Fin => {
                    let _ = side.stream.shutdown(Shutdown::Write);
                    line.passed();
                }
                Arrival::Data(data) => match side.stream.write(data) {
                    Ok(bytes) => line.written(bytes),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        side.writable = false;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return self.broken(key, 1 - direction, now),
                },
            }
        }
        if pair.lines.iter().all(Line::is_over) {
            self.pairs.remove(key);
            return;
        }
        self.queue(key, direction);
        self.arm(key, direction);
    }
}
