//! The engine: one poll, its listeners, its connections, and the turn that serves them.
//!
//! ```text
//! turn_start ─ poll, accept, timers ─► ready list ─ next_ready (reads) ─► face: next_event, respond
//!      ▲                                   ▲                                   │
//!      └── turn_end (re-arms itself) ◄─────┴────────── settle (flushes) ◄──────┘
//! ```
//!
//! The poll is edge-triggered and a turn is bounded, in connections and in time. What a turn leaves
//! stays in the ready list, and the engine wakes itself, so that nobody starves on either side.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Waker};
use towline_proto::Blocks;

use crate::accept::{ACCEPTS_PER_TURN, Listening, Notice, Shortage};
use crate::alarm::Alarm;
use crate::deadlines::Deadlines;
use crate::flush::Flushed;
use crate::id::{ConnId, Source};
use crate::listener::Listener;
use crate::peer::{Output, Peer};
use crate::service::Service;
use crate::sys;
use crate::table::{News, Place, Table};

/// The bounds of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Connections handed out per turn. 16 keeps a foreign loop's other callbacks on time; a face
    /// that owns its thread may take more.
    pub max_ready_per_turn: usize,
    /// No further connection is handed out after this time in a turn.
    pub turn_time: Duration,
    /// Bytes written per connection before others get their turn.
    pub settle_bytes: usize,
    /// Size of one receive block.
    pub block_bytes: usize,
    /// Spare blocks kept.
    pub spare_blocks: usize,
    /// TLS handshakes under way; the oldest makes room for a new one.
    pub max_handshakes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_ready_per_turn: 16,
            turn_time: Duration::from_micros(500),
            settle_bytes: 1024 * 1024,
            block_bytes: 64 * 1024,
            spare_blocks: 16,
            max_handshakes: 1024,
        }
    }
}

/// Wakes an engine from any thread or from a signal handler: its next turn starts at once.
#[derive(Clone, Debug)]
pub struct Remote(Arc<Waker>);

impl Remote {
    pub fn wake(&self) -> io::Result<()> {
        self.0.wake()
    }
}

/// See the module's picture. `S` is what a face keeps per connection.
pub struct Engine<S> {
    config: EngineConfig,
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    listeners: Vec<Listening>,
    shortage: Shortage,
    table: Table<S>,
    handshakes: VecDeque<ConnId>,
    blocks: Blocks,
    deadlines: Deadlines,
    alarm: Alarm,
    alarm_at: Option<Instant>,
    ready: VecDeque<ConnId>,
    turn: Turn,
    draining: bool,
    accepted: u64,
}

/// The turn under way, or the last one.
struct Turn {
    running: bool,
    /// Started from a foreign loop, which must be told when work is left.
    foreign: bool,
    /// The engine's descriptor is readable because we made it so.
    rearmed: bool,
    started: Instant,
    now: Instant,
    served: usize,
}

impl<S: Default> Engine<S> {
    pub fn new(config: EngineConfig) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), Source::Wake.token())?);
        let alarm = Alarm::new(poll.registry(), &waker)?;
        let now = Instant::now();
        Ok(Self {
            // What does not fit stays in the kernel, which keeps our descriptor readable for free.
            events: Events::with_capacity(config.max_ready_per_turn.max(4)),
            blocks: Blocks::new(config.block_bytes, config.spare_blocks),
            poll,
            waker,
            listeners: Vec::new(),
            shortage: Shortage::new()?,
            table: Table::new(),
            handshakes: VecDeque::new(),
            deadlines: Deadlines::default(),
            alarm,
            alarm_at: None,
            ready: VecDeque::new(),
            turn: Turn {
                running: false,
                foreign: false,
                rearmed: false,
                started: now,
                now,
                served: 0,
            },
            draining: false,
            accepted: 0,
            config,
        })
    }

    /// Readable whenever `turn_start` has something to do. For another poll; never read from it.
    pub fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.waker))
    }

    /// Accepts from `listener` from the next turn on.
    pub fn add_listener(&mut self, listener: Listener, service: Arc<Service>) -> io::Result<()> {
        let source = Source::Listener(self.listeners.len());
        let fd = listener.socket().as_raw_fd();
        sys::register_listener(self.poll.registry(), fd, source)?;
        self.listeners.push(Listening {
            is_tcp: listener.is_tcp()?,
            listener,
            service,
            pending: true,
        });
        self.rearm();
        Ok(())
    }

    /// Where the listeners listen.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().map(|listening| &listening.listener)
    }

    /// Closes the listeners. Connections that are open stay.
    pub fn stop_listening(&mut self) {
        for listening in self.listeners.drain(..) {
            // Explicitly, since another process may hold the same socket open.
            let fd = listening.listener.socket().as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
    }

    /// Polls, accepts and looks at the deadlines. `Some(0)` never blocks and is what a foreign loop
    /// calls; a face with its own thread waits with `None` (until there is work) or up to a time.
    pub fn turn_start(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.turn.foreign = wait == Some(Duration::ZERO);
        let backlog = !self.ready.is_empty() || self.accept_pending();
        let wait = if backlog { Some(Duration::ZERO) } else { wait };
        // Enough is ready for a whole turn: the kernel keeps the rest.
        let polled = self.ready.len() < self.config.max_ready_per_turn;
        if polled {
            match self.poll.poll(&mut self.events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Err(_) => self.events.clear(),
                Ok(()) => {}
            }
        }
        let now = Instant::now();
        self.turn = Turn {
            running: true,
            rearmed: false,
            started: now,
            now,
            served: 0,
            foreign: self.turn.foreign,
        };
        if polled {
            self.take_events();
        }
        self.expire(now);
        self.accept(now);
        Ok(())
    }

    fn take_events(&mut self) {
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            match Source::from_token(event.token()) {
                Source::Wake => {}
                Source::Alarm => self.alarm_at = None,
                Source::Listener(index) => {
                    if let Some(listening) = self.listeners.get_mut(index) {
                        listening.pending = true;
                    }
                }
                Source::Connection(id) => {
                    let news = News {
                        readable: event.is_readable() || event.is_error(),
                        closed: event.is_read_closed() || event.is_error(),
                        writable: event.is_writable() || event.is_error(),
                    };
                    self.noticed(id, news);
                }
            }
        }
        self.events = events;
    }

    /// Notes what the poll, or a check-in, says about a connection.
    fn noticed(&mut self, id: ConnId, news: News) {
        match self.table.place(id) {
            Some(Place::Here(peer)) => {
                peer.input.readable |= news.readable || news.closed;
                peer.input.closed |= news.closed;
                let unblocked = news.writable && peer.output == Output::Blocked;
                if unblocked {
                    peer.output = Output::Open;
                }
                if unblocked || peer.input.readable {
                    self.enqueue(id);
                }
            }
            Some(Place::Away { news: missed, .. }) => {
                missed.readable |= news.readable;
                missed.closed |= news.closed;
                missed.writable |= news.writable;
            }
            None => {}
        }
    }

    fn enqueue(&mut self, id: ConnId) {
        if let Some(peer) = self.table.peer(id)
            && !std::mem::replace(&mut peer.queued, true)
        {
            self.ready.push_back(id);
            if !self.turn.running {
                self.rearm();
            }
        }
    }

    /// Makes our own descriptor readable: there is work that no socket will announce.
    fn rearm(&mut self) {
        if !std::mem::replace(&mut self.turn.rearmed, true) {
            // A counter that is full keeps the descriptor readable just as well.
            let _ = self.waker.wake();
        }
    }

    /// The next connection to look at, its socket read. Drain its events, then `settle` it. `None`
    /// when nothing is ready or this turn has taken its share.
    pub fn next_ready(&mut self) -> Option<ConnId> {
        if self.turn.served > 0 && !self.ready.is_empty() {
            if self.turn.served >= self.config.max_ready_per_turn {
                return None;
            }
            self.turn.now = Instant::now();
            if self.turn.now.duration_since(self.turn.started) >= self.config.turn_time {
                return None;
            }
        }
        let now = self.turn.now;
        while let Some(id) = self.ready.pop_front() {
            let Some(peer) = self.table.peer(id) else {
                continue;
            };
            peer.queued = false;
            if peer.output == Output::Open && peer.conn.pending_bytes() > 0 {
                // First, so that the face learns at once of the room that it gave.
                peer.flush(now, self.config.settle_bytes);
            }
            peer.receive(&mut self.blocks, now);
            self.turn.served += 1;
            return Some(id);
        }
        None
    }

    /// Ends the turn. When work is left, the next one is announced.
    pub fn turn_end(&mut self) {
        self.turn.running = false;
        self.set_alarm(self.turn.now);
        if self.turn.foreign && (!self.ready.is_empty() || self.accept_pending()) {
            self.rearm();
        }
    }

    pub fn peer(&mut self, id: ConnId) -> Option<&mut Peer<S>> {
        self.table.peer(id)
    }

    fn now(&self) -> Instant {
        if self.turn.running {
            self.turn.now
        } else {
            Instant::now()
        }
    }

    /// To be called after anything was done with a connection: sends what waits, watches what must be
    /// watched, keeps the clock, gives the receive block back, and closes what is over. New events that
    /// come of it are announced by `next_ready`.
    pub fn settle(&mut self, id: ConnId) {
        let now = self.now();
        let Some(peer) = self.table.peer(id) else {
            return;
        };
        if peer.conn.interest().closed {
            self.close(id, now);
            return;
        }
        let mut again = false;
        if peer.output != Output::Blocked {
            let before = peer.conn.pending_bytes();
            let had_file = peer.file.is_some();
            let flushed = peer.flush(now, self.config.settle_bytes);
            if flushed == Flushed::Blocked && !peer.write_armed {
                peer.write_armed = true;
                arm_write(&self.poll, peer);
            }
            let room_again = before >= peer.service().limits.send_window_bytes;
            again = flushed == Flushed::Budget || room_again || had_file || peer.input.over;
        }
        let interest = peer.conn.interest();
        if interest.shutdown && peer.output == Output::Open {
            peer.finish_output(now);
        }
        // The face has not seen the event of this end: once more, and then it is closed.
        again |= interest.closed;
        again |= peer.input.readable && !peer.input.over && interest.read;
        peer.conn.release(&mut self.blocks);
        if let Some(deadline) = peer.conn.deadline() {
            self.deadlines.promise(id, &mut peer.looked, deadline);
        }
        if again {
            self.enqueue(id);
        }
        if !self.turn.running {
            self.set_alarm(now);
        }
    }

    fn close(&mut self, id: ConnId, now: Instant) {
        if let Some(Place::Here(mut peer)) = self.table.remove(id) {
            peer.conn.release(&mut self.blocks);
            peer.part(now);
        }
    }

    /// Drops a connection at once: its socket is reset, its state is dropped.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(Place::Here(peer)) = self.table.remove(id) {
            let _ = peer.io.socket.set_linger(Some(Duration::ZERO));
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.pop_due(now) {
            let Some(peer) = self.table.peer(id) else {
                continue;
            };
            if peer.looked != Some(at) {
                continue;
            }
            peer.looked = None;
            match peer.conn.deadline() {
                Some(deadline) if deadline <= now => {
                    peer.conn.handle_timeout(now);
                    self.enqueue(id);
                }
                Some(later) => self.deadlines.promise(id, &mut peer.looked, later),
                None => {}
            }
        }
    }

    fn set_alarm(&mut self, now: Instant) {
        let next = [self.deadlines.next(), self.shortage.until];
        let Some(next) = next.into_iter().flatten().min() else {
            return;
        };
        if self.alarm_at.is_none_or(|at| next < at) {
            self.alarm.set(next, now);
            self.alarm_at = Some(next);
        }
    }

    fn accept_pending(&self) -> bool {
        self.shortage.until.is_none() && self.listeners.iter().any(|listening| listening.pending)
    }

    fn accept(&mut self, now: Instant) {
        if self.shortage.is_over(now) {
            self.shortage.resume();
            self.register_listeners();
        }
        for index in 0..self.listeners.len() {
            let mut left = ACCEPTS_PER_TURN;
            while self.shortage.until.is_none() && self.listeners[index].pending && left > 0 {
                left -= 1;
                self.accept_one(index, now);
            }
        }
    }

    fn accept_one(&mut self, index: usize, now: Instant) {
        let listening = &mut self.listeners[index];
        match listening.accept() {
            Ok(None) => listening.pending = false,
            Ok(Some((socket, remote))) => {
                self.shortage.accepted();
                let service = Arc::clone(&listening.service);
                let id = self.table.next_id();
                let fd = socket.as_raw_fd();
                let registry = self.poll.registry();
                let registered =
                    registry.register(&mut SourceFd(&fd), id.token(), Interest::READABLE);
                let peer = Peer::accepted(id, socket, remote, &service, now);
                if let (Ok(()), Ok(peer)) = (registered, peer) {
                    self.add(id, peer, now);
                }
            }
            Err(error) => {
                self.shortage.begin(&self.listeners[index], &error, now);
                for listening in &self.listeners {
                    let fd = listening.listener.socket().as_raw_fd();
                    let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
                }
            }
        }
    }

    fn add(&mut self, id: ConnId, mut peer: Peer<S>, now: Instant) {
        self.accepted += 1;
        if let Some(deadline) = peer.conn.deadline() {
            self.deadlines.promise(id, &mut peer.looked, deadline);
        }
        if peer.is_tls() {
            self.handshakes.push_back(id);
        }
        self.table.insert(Box::new(peer));
        if self.handshakes.len() > self.config.max_handshakes
            && let Some(oldest) = self.handshakes.pop_front()
            && self
                .table
                .peer(oldest)
                .is_some_and(|peer| peer.io.is_handshaking())
        {
            self.shortage.evicted_handshake();
            self.close(oldest, now);
        }
    }

    fn register_listeners(&mut self) {
        for (index, listening) in self.listeners.iter_mut().enumerate() {
            let fd = listening.listener.socket().as_raw_fd();
            // It was registered before: what could fail now failed then.
            let _ = sys::register_listener(self.poll.registry(), fd, Source::Listener(index));
            listening.pending = true;
        }
    }

    /// Lends a connection to another thread. Until `check_in`, the engine only remembers what happens.
    pub fn check_out(&mut self, id: ConnId) -> Option<Box<Peer<S>>> {
        let place = self.table.place(id)?;
        if matches!(place, Place::Away { .. }) {
            return None;
        }
        let away = Place::Away {
            news: News::default(),
            close_asked: false,
        };
        match std::mem::replace(place, away) {
            Place::Here(mut peer) => {
                // A look at its deadline now falls on a connection that is away.
                peer.looked = None;
                Some(peer)
            }
            Place::Away { .. } => None,
        }
    }

    /// Takes a connection back and settles it.
    pub fn check_in(&mut self, id: ConnId, mut peer: Box<Peer<S>>) {
        let Some(place) = self.table.place(id) else {
            return;
        };
        let Place::Away { news, close_asked } = *place else {
            return;
        };
        // The ready list may have dropped it while it was away.
        peer.queued = false;
        if close_asked {
            peer.conn.close();
        }
        if news.writable && peer.output == Output::Blocked {
            peer.output = Output::Open;
        }
        *place = Place::Here(peer);
        self.noticed(id, news);
        self.settle(id);
    }

    /// Closes every connection as soon as it has nothing in flight; new requests are not taken.
    pub fn drain(&mut self) {
        self.draining = true;
        for id in self.connection_ids() {
            match self.table.place(id) {
                Some(Place::Here(peer)) => peer.conn.close(),
                Some(Place::Away { close_asked, .. }) => *close_asked = true,
                None => {}
            }
            self.enqueue(id);
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining
    }

    pub fn connection_ids(&self) -> Vec<ConnId> {
        self.table.ids().collect()
    }

    /// Connections open now, checked-out ones included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Connections accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Trouble to log, at most once a second.
    pub fn take_notice(&mut self) -> Option<Notice> {
        let now = self.now();
        self.shortage.take_notice(now)
    }

    /// The engine's pool, for reading on a peer by hand.
    pub fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }
}

fn arm_write<S>(poll: &Poll, peer: &Peer<S>) {
    let (fd, token) = (peer.as_raw_fd(), peer.id().token());
    let interest = Interest::READABLE | Interest::WRITABLE;
    // It is registered; without the news of room the write timeout ends the connection.
    let _ = poll
        .registry()
        .reregister(&mut SourceFd(&fd), token, interest);
}
