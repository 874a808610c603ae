//! Accepting: a few connections of every listener per turn, and a back-off when the system has no free
//! descriptors.
//!
//! Without a free descriptor a pending connection keeps its listener readable, and a loop that
//! retries at once uses a whole core. Here the listeners leave the poll for a while, and a reserve
//! descriptor is used to accept and close one pending connection, so that its client does not wait.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::Interest;
use mio::unix::SourceFd;
use socket2::Socket;

use crate::conn::Conn;
use crate::conn::addr::PeerAddr;
use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::engine::Engine;
use crate::engine::balance::ACCEPTS_PER_TURN;
use crate::engine::listener::Listener;
use crate::sys;

/// Connections accepted per listener before it is closed.
const LAST_ACCEPTS: usize = 512;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct RegisteredListener {
    pub(crate) listener: Listener,
    pub(crate) service: Arc<ConnConfig>,
    /// Connections may be pending: set by the poll, cleared when `accept` finds none.
    pub(crate) pending: bool,
    pub(crate) is_tcp: bool,
}

impl RegisteredListener {
    pub(crate) fn accept(&self) -> io::Result<Option<(Socket, PeerAddr)>> {
        loop {
            return match accept(self.listener.socket()) {
                Ok((socket, addr)) => {
                    // Inherited from the listener only on Linux.
                    if self.is_tcp && cfg!(not(target_os = "linux")) {
                        socket.set_tcp_nodelay(true)?;
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

impl<S: Default> Engine<S> {
    /// Whether a listener may have pending connections and accepting is not paused.
    pub(crate) fn accept_pending(&self) -> bool {
        self.takes_connections() && self.listeners.iter().any(|registered| registered.pending)
    }

    fn takes_connections(&self) -> bool {
        self.fd_exhaustion.until.is_none() && self.balance.paused_until().is_none()
    }

    pub(crate) fn accept(&mut self, now: Instant) {
        if self.fd_exhaustion.is_over(now) {
            self.fd_exhaustion.resume();
            self.register_listeners();
        }
        if self.balance.resume(now) {
            self.register_listeners();
        }
        for index in 0..self.listeners.len() {
            let mut left = ACCEPTS_PER_TURN;
            while self.takes_connections() && self.listeners[index].pending && left > 0 {
                left -= 1;
                self.accept_one(index, now);
                if !self.listeners[index].pending {
                    self.balance.found_none();
                } else if let Some((mine, fewest)) = self.shares(index)
                    && self.balance.accepted(mine, fewest, now)
                {
                    self.deregister_listeners();
                }
            }
        }
    }

    /// The connections of this worker, and of the accepting one that has the fewest.
    fn shares(&self, index: usize) -> Option<(u64, u64)> {
        let meter = self.listeners[index].service.meter.as_ref()?;
        let accepting = meter
            .slots()
            .in_use()
            .filter(|slot| slot.accepting.load(Relaxed) != 0);
        let fewest = accepting
            .map(|slot| slot.connections_open.load(Relaxed))
            .min()?;
        Some((meter.connections_open.load(Relaxed), fewest))
    }

    /// Accepts the pending connections. Bounded, because clients may connect as fast as they are accepted.
    pub(crate) fn accept_waiting(&mut self, now: Instant) {
        for index in 0..self.listeners.len() {
            self.listeners[index].pending = true;
            let mut left = LAST_ACCEPTS;
            while self.fd_exhaustion.until.is_none() && self.listeners[index].pending && left > 0 {
                left -= 1;
                self.accept_one(index, now);
            }
        }
    }

    fn accept_one(&mut self, index: usize, now: Instant) {
        let registered = &mut self.listeners[index];
        match registered.accept() {
            Ok(None) => registered.pending = false,
            Ok(Some((socket, remote))) => {
                self.fd_exhaustion.accepted();
                let service = Arc::clone(&registered.service);
                let id = self.table.next_id();
                let fd = socket.as_raw_fd();
                let registry = self.poll.registry();
                let registered =
                    registry.register(&mut SourceFd(&fd), id.token(), Interest::READABLE);
                let conn = Conn::from_accept(id, socket, remote, &service, now);
                if let (Ok(()), Ok(conn)) = (registered, conn) {
                    self.add(id, conn, now);
                }
            }
            Err(error) => {
                self.fd_exhaustion
                    .begin(&self.listeners[index], &error, now);
                self.deregister_listeners();
            }
        }
    }

    pub(crate) fn add(&mut self, id: ConnId, mut conn: Conn<S>, now: Instant) {
        self.accepted += 1;
        if let Some(drain) = self.drain {
            conn.start_drain(drain, now);
        }
        if let Some(deadline) = conn.proto.deadline() {
            self.timers.schedule(id, &mut conn.scheduled_at, deadline);
        }
        // An endpoint bounds the handshakes of QUIC itself.
        if conn.io.tls().is_some() {
            self.handshakes.push_back(id);
        }
        self.table.insert(Box::new(conn));
        if self.handshakes.len() > self.config.max_handshakes
            && let Some(oldest) = self.handshakes.pop_front()
            && self
                .table
                .conn(oldest)
                .is_some_and(|conn| conn.io.is_handshaking())
        {
            self.fd_exhaustion.evicted_handshake();
            self.close_now(oldest, now);
        }
    }

    fn deregister_listeners(&self) {
        for registered in &self.listeners {
            let fd = registered.listener.socket().as_raw_fd();
            // The error of a listener that is not registered does not matter.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
    }

    fn register_listeners(&mut self) {
        for (index, registered) in self.listeners.iter_mut().enumerate() {
            let fd = registered.listener.socket().as_raw_fd();
            // It was registered before with the same arguments.
            let _ = sys::register_listener(self.poll.registry(), fd, Source::Listener(index));
            registered.pending = true;
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
pub(crate) struct FdExhaustion {
    reserve: Option<UnixDatagram>,
    pause: Duration,
    pub(crate) until: Option<Instant>,
    notice: Notice,
    last_notice: Option<Instant>,
}

impl FdExhaustion {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            reserve: Some(reserve()?),
            pause: FIRST_PAUSE,
            until: None,
            notice: Notice::default(),
            last_notice: None,
        })
    }

    /// Handles a failed accept: closes one pending connection of the listener and starts the pause.
    pub(crate) fn begin(
        &mut self,
        registered: &RegisteredListener,
        error: &io::Error,
        now: Instant,
    ) {
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

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Ends the pause. The next accept shows whether descriptors are available again.
    pub(crate) fn resume(&mut self) {
        self.until = None;
        if self.reserve.is_none() {
            self.reserve = reserve().ok();
        }
    }

    pub(crate) fn accepted(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    pub(crate) fn evicted_handshake(&mut self) {
        self.notice.handshakes_evicted += 1;
    }

    /// Takes the counters, at most once a second and only if they are not zero.
    pub(crate) fn take_notice(&mut self) -> Option<Notice> {
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

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn accept(listener: &Socket) -> io::Result<(Socket, socket2::SockAddr)> {
    listener.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn accept(listener: &Socket) -> io::Result<(Socket, socket2::SockAddr)> {
    let (socket, addr) = listener.accept()?;
    socket.set_nonblocking(true)?;
    Ok((socket, addr))
}
