//! Accepting: a few connections of every listener per turn, and a back-off when the system has no free
//! descriptors.
//!
//! Without a free descriptor a pending connection keeps its listener readable, and a loop that
//! retries at once uses a whole core. Here the listeners leave the poll for a while, and a reserve
//! descriptor is used to accept and close one pending connection, so that its client does not wait.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use socket2::Socket;
use towline_proto::ProtocolPolicy;

use crate::conn::addr::PeerAddr;
use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::conn::transport::send_last;
use crate::conn::{Conn, ConnectionCount};
use crate::engine::Engine;
use crate::engine::balance::{ACCEPTS_PER_TURN, Balance};
use crate::engine::listener::Listener;
use crate::engine::loop_poll::LoopPoll;
use crate::sys;

/// Connections accepted per listener before it is closed.
const LAST_ACCEPTS: usize = 512;

/// The answer to a connection over `--limit-connections`, where it needs no handshake.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\
    connection: close\r\n\r\n";

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

struct RegisteredListener {
    listener: Listener,
    service: Arc<ConnConfig>,
    /// Connections may be pending: set by the poll, cleared when `accept` finds none.
    pending: bool,
    is_tcp: bool,
}

impl RegisteredListener {
    /// The connections of this worker, and of the accepting one that has the fewest.
    fn shares(&self) -> Option<(u64, u64)> {
        let meter = self.service.meter.as_ref()?;
        let accepting = meter
            .slots()
            .in_use()
            .filter(|slot| slot.accepting.load(Relaxed) != 0);
        let fewest = accepting
            .map(|slot| slot.connections_open.load(Relaxed))
            .min()?;
        Some((meter.connections_open.load(Relaxed), fewest))
    }

    fn accept(&self) -> io::Result<Option<(Socket, PeerAddr)>> {
        loop {
            return match sys::accept(self.listener.socket()) {
                Ok((socket, addr)) => {
                    if self.is_tcp && !sys::INHERITS_NO_DELAY {
                        // A failure means that the client has left already.
                        let _ = socket.set_tcp_nodelay(true);
                    }
                    Ok(Some((socket, PeerAddr::from_sock_addr(&addr))))
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    // The connection failed while it was queued; try the next one.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => Err(error),
                },
            };
        }
    }
}

/// The listeners of an engine, and when connections are accepted from them.
pub(crate) struct Acceptor {
    listeners: Vec<RegisteredListener>,
    fd_exhaustion: FdExhaustion,
    /// Pauses in which new connections are left to workers that have fewer.
    balance: Balance,
    /// Reports the listeners in place of the engine's own poll.
    event_loop: Option<LoopPoll>,
    /// Connections with TLS, oldest first; the handshakes of some are complete.
    handshakes: VecDeque<ConnId>,
    accepted: u64,
}

/// A connection that has just been accepted.
struct Accepted {
    socket: Socket,
    remote: PeerAddr,
    service: Arc<ConnConfig>,
}

impl Acceptor {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            listeners: Vec::new(),
            fd_exhaustion: FdExhaustion::new()?,
            balance: Balance::default(),
            event_loop: None,
            handshakes: VecDeque::new(),
            accepted: 0,
        })
    }

    pub(crate) fn listen(
        &mut self,
        listener: Listener,
        service: Arc<ConnConfig>,
        registry: &Registry,
    ) -> io::Result<()> {
        let is_tcp = listener.is_tcp()?;
        self.register(listener.socket(), self.listeners.len(), registry)?;
        service.set_accepting(true);
        self.listeners.push(RegisteredListener {
            is_tcp,
            listener,
            service,
            pending: true,
        });
        Ok(())
    }

    fn register(&self, socket: &Socket, index: usize, registry: &Registry) -> io::Result<()> {
        let fd = socket.as_raw_fd();
        match self.event_loop {
            Some(event_loop) => event_loop.register(fd),
            None => sys::register_listener(registry, fd, Source::Listener(index)),
        }
    }

    fn register_all(&self, registry: &Registry) -> io::Result<()> {
        let mut listeners = self.listeners.iter().enumerate();
        listeners.try_for_each(|(index, registered)| {
            self.register(registered.listener.socket(), index, registry)
        })
    }

    pub(crate) fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().map(|registered| &registered.listener)
    }

    pub(crate) fn is_listening(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Number of connections accepted since the start.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    pub(crate) fn take_notice(&mut self) -> Option<Notice> {
        self.fd_exhaustion.take_notice()
    }

    /// Records that connections wait at a listener.
    pub(crate) fn on_ready(&mut self, index: usize) {
        if let Some(registered) = self.listeners.get_mut(index) {
            registered.pending = true;
        }
    }

    /// Records that connections may wait at each listener.
    fn expect_connections(&mut self) {
        for registered in &mut self.listeners {
            registered.pending = true;
        }
    }

    /// Whether a listener may have pending connections and accepting is not paused.
    pub(crate) fn is_pending(&self) -> bool {
        self.takes_connections() && self.listeners.iter().any(|registered| registered.pending)
    }

    /// The ends of the pauses.
    pub(crate) fn paused_until(&self) -> [Option<Instant>; 2] {
        [self.fd_exhaustion.until, self.balance.paused_until()]
    }

    fn takes_connections(&self) -> bool {
        self.fd_exhaustion.until.is_none() && self.balance.paused_until().is_none()
    }

    /// Ends the pauses that are over.
    fn resume(&mut self, registry: &Registry, now: Instant) {
        let mut is_resumed = self.balance.resume(now);
        if self.fd_exhaustion.is_over(now) {
            self.fd_exhaustion.resume();
            is_resumed = true;
        }
        if is_resumed {
            // The listeners were registered before with the same arguments.
            let _ = self.register_all(registry);
            self.expect_connections();
        }
    }

    fn deregister(&self, registry: &Registry) {
        for registered in &self.listeners {
            let fd = registered.listener.socket().as_raw_fd();
            // The error of a listener that is not registered does not matter.
            let _ = match self.event_loop {
                Some(event_loop) => event_loop.deregister(fd),
                None => registry.deregister(&mut SourceFd(&fd)),
            };
        }
    }

    /// Accepts a connection of a listener. A failure begins a pause.
    fn accept(&mut self, index: usize, registry: &Registry, now: Instant) -> Option<Accepted> {
        let registered = &mut self.listeners[index];
        match registered.accept() {
            Ok(Some((socket, remote))) => {
                self.fd_exhaustion.accepted();
                Some(Accepted {
                    socket,
                    remote,
                    service: Arc::clone(&registered.service),
                })
            }
            Ok(None) => {
                registered.pending = false;
                self.balance.found_none();
                None
            }
            Err(error) => {
                self.fd_exhaustion.begin(registered, &error, now);
                self.deregister(registry);
                None
            }
        }
    }

    /// Pauses if this worker is clearly ahead of the others.
    fn leave_share(&mut self, index: usize, registry: &Registry, now: Instant) {
        if let Some((mine, fewest)) = self.listeners[index].shares()
            && self.balance.accepted(mine, fewest, now)
        {
            self.deregister(registry);
        }
    }

    /// Counts a connection, with its handshake if it has TLS. Returns the oldest one if there are more than
    /// `max_handshakes`.
    fn count(&mut self, handshake: Option<ConnId>, max_handshakes: usize) -> Option<ConnId> {
        self.accepted += 1;
        self.handshakes.extend(handshake);
        if self.handshakes.len() <= max_handshakes {
            return None;
        }
        self.handshakes.pop_front()
    }

    /// Closes the listeners.
    pub(crate) fn close(&mut self, registry: &Registry) {
        // Explicitly, since another process may hold the same socket open.
        self.deregister(registry);
        for registered in self.listeners.drain(..) {
            registered.service.set_accepting(false);
        }
    }
}

impl<S: Default> Engine<S> {
    /// Has the epoll of an event loop report the listeners, as if descriptor `reported_as` were readable, whose reader calls
    /// [`accept_reported`](Self::accept_reported).
    pub fn accept_in(&mut self, epoll: RawFd, reported_as: RawFd) -> io::Result<()> {
        let registry = self.poller.registry();
        self.acceptor.deregister(registry);
        self.acceptor.event_loop = Some(LoopPoll { epoll, reported_as });
        self.acceptor.register_all(registry)
    }

    /// Accepts the connections that the event loop has reported, outside of a turn. What is left is reported again.
    pub fn accept_reported(&mut self) {
        let now = self.now();
        self.acceptor.expect_connections();
        self.accept(now);
        self.set_timer(now);
    }

    pub(crate) fn accept(&mut self, now: Instant) {
        self.acceptor.resume(self.poller.registry(), now);
        for index in 0..self.acceptor.listeners.len() {
            let mut left = ACCEPTS_PER_TURN;
            while self.acceptor.takes_connections()
                && self.acceptor.listeners[index].pending
                && left > 0
            {
                left -= 1;
                if self.accept_one(index, now) {
                    let registry = self.poller.registry();
                    self.acceptor.leave_share(index, registry, now);
                }
            }
        }
    }

    /// Accepts the pending connections. Bounded, because clients may connect as fast as they are accepted.
    pub(crate) fn accept_waiting(&mut self, now: Instant) {
        for index in 0..self.acceptor.listeners.len() {
            self.acceptor.on_ready(index);
            let mut left = LAST_ACCEPTS;
            while self.acceptor.fd_exhaustion.until.is_none()
                && self.acceptor.listeners[index].pending
                && left > 0
            {
                left -= 1;
                self.accept_one(index, now);
            }
        }
    }

    /// Accepts and adds one connection; false if there is none.
    fn accept_one(&mut self, index: usize, now: Instant) -> bool {
        let registry = self.poller.registry();
        let Some(accepted) = self.acceptor.accept(index, registry, now) else {
            return false;
        };
        let Accepted {
            socket,
            remote,
            service,
        } = accepted;
        let client = remote.inet().map(|address| address.ip());
        let client = client.filter(|_| !service.expects_proxy_header(&remote));
        let Some(count) = ConnectionCount::admit(&service, false, client) else {
            if service.tls.is_none() && service.protocols != ProtocolPolicy::Http2 {
                send_last(&socket, BUSY);
            }
            return true;
        };
        let id = self.table.next_id();
        let fd = socket.as_raw_fd();
        let registered = registry.register(&mut SourceFd(&fd), id.token(), Interest::READABLE);
        let conn = Conn::from_accept(id, socket, remote, (&service, count), now);
        if let (Ok(()), Ok(conn)) = (registered, conn) {
            self.add(id, conn, now);
        }
        true
    }

    pub(crate) fn add(&mut self, id: ConnId, mut conn: Conn<S>, now: Instant) {
        if let Some(drain) = self.drain {
            conn.start_drain(drain, now);
        }
        if let Some(deadline) = conn.proto.deadline() {
            conn.timers.schedule(&mut self.timers, id, deadline);
        }
        // An endpoint bounds the handshakes of QUIC itself.
        let handshake = conn.io.tls().is_some().then_some(id);
        self.table.insert(Box::new(conn));
        let oldest = self.acceptor.count(handshake, self.config.max_handshakes);
        let is_handshaking = |conn: &mut Conn<S>| conn.io.is_handshaking();
        if let Some(oldest) = oldest
            && self.table.conn(oldest).is_some_and(is_handshaking)
        {
            self.acceptor.fd_exhaustion.evicted_handshake();
            self.close_now(oldest, now);
        }
    }
}

/// Accept failures since the last notice, for one log line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Calls of `accept` that failed for lack of descriptors or memory.
    pub accept_failures: u64,
    /// Pending connections closed by means of the reserve descriptor.
    pub shed: u64,
    /// TLS handshakes closed in favour of newer ones.
    pub handshakes_evicted: u64,
    /// Last error of the system.
    pub error: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "short of descriptors or memory: accept failed {} times ({}), {} connections shed, \
             {} handshakes evicted",
            self.accept_failures, self.error, self.shed, self.handshakes_evicted
        )
    }
}

/// Back-off of accepting when descriptors or memory run out, with the reserve descriptor and the counters.
struct FdExhaustion {
    reserve: Option<UnixDatagram>,
    pause: Duration,
    until: Option<Instant>,
    notice: Notice,
    last_notice: Option<Instant>,
}

impl FdExhaustion {
    fn new() -> io::Result<Self> {
        Ok(Self {
            reserve: Some(reserve()?),
            pause: FIRST_PAUSE,
            until: None,
            notice: Notice::default(),
            last_notice: None,
        })
    }

    /// Handles a failed accept: closes one pending connection of the listener and starts the pause.
    fn begin(&mut self, registered: &RegisteredListener, error: &io::Error, now: Instant) {
        self.notice.accept_failures += 1;
        if let Some(meter) = &registered.service.meter {
            meter.accept_errors.fetch_add(1, Relaxed);
        }
        self.notice.error = error.to_string();
        if self.reserve.take().is_some() && matches!(registered.accept(), Ok(Some(_))) {
            self.notice.shed += 1;
        }
        self.reserve = reserve().ok();
        self.until = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Ends the pause. The next accept shows whether descriptors are available again.
    fn resume(&mut self) {
        self.until = None;
        if self.reserve.is_none() {
            self.reserve = reserve().ok();
        }
    }

    fn accepted(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    fn evicted_handshake(&mut self) {
        self.notice.handshakes_evicted += 1;
    }

    /// Takes the counters, at most once a second and only if they are not zero.
    fn take_notice(&mut self) -> Option<Notice> {
        if self.notice == Notice::default() {
            return None;
        }
        let now = Instant::now();
        let is_recent = self
            .last_notice
            .is_some_and(|last| now < last + NOTICE_INTERVAL);
        if is_recent {
            return None;
        }
        self.last_notice = Some(now);
        Some(std::mem::take(&mut self.notice))
    }
}

/// Opens a descriptor that needs no file system.
fn reserve() -> io::Result<UnixDatagram> {
    UnixDatagram::unbound()
}
