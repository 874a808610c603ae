//! Accepting: a few connections of every listener per turn, and patience when the system has no more
//! descriptors to give.
//!
//! Without a free descriptor a waiting connection keeps its listener readable for ever; a loop that
//! tries again at once burns a core. Here the listeners leave the poll for a while, and a reserve
//! descriptor is spent on closing one waiting connection, so that its client learns where it stands.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::addr::PeerAddr;
use crate::listener::Listener;
use crate::service::Service;

/// Connections accepted per listener and turn: those that are open already want their turn too.
pub(crate) const ACCEPTS_PER_TURN: usize = 32;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Listening {
    pub(crate) listener: Listener,
    pub(crate) service: Arc<Service>,
    /// The poll has said that connections wait, and `accept` has not yet said that none does.
    pub(crate) pending: bool,
    pub(crate) is_tcp: bool,
}

impl Listening {
    pub(crate) fn accept(&self) -> io::Result<Option<(Socket, PeerAddr)>> {
        loop {
            return match accept(self.listener.socket()) {
                Ok((socket, addr)) => {
                    // Elsewhere than on Linux the listener's setting is not inherited.
                    if self.is_tcp && cfg!(not(target_os = "linux")) {
                        socket.set_tcp_nodelay(true)?;
                    }
                    Ok(Some((socket, PeerAddr::from_sock_addr(&addr))))
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    // A connection that died in the queue is not the listener's trouble.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => Err(error),
                },
            };
        }
    }
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

/// What went wrong since the last notice; for one line of log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Attempts to accept that failed for want of descriptors or memory.
    pub accept_failures: u64,
    /// Waiting connections closed by means of the reserve descriptor.
    pub shed: u64,
    /// TLS handshakes given up for newer ones.
    pub handshakes_evicted: u64,
    /// What the system said last.
    pub error: String,
}

/// The reserve descriptor, the pause, and the account of both.
pub(crate) struct Shortage {
    reserve: Option<File>,
    pause: Duration,
    pub(crate) until: Option<Instant>,
    notice: Notice,
    last_notice: Option<Instant>,
}

impl Shortage {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            reserve: Some(reserve()?),
            pause: FIRST_PAUSE,
            until: None,
            notice: Notice::default(),
            last_notice: None,
        })
    }

    /// An accept failed: sheds one connection of `listening` and says until when to pause.
    pub(crate) fn begin(&mut self, listening: &Listening, error: &io::Error, now: Instant) {
        self.notice.accept_failures += 1;
        self.notice.error = error.to_string();
        if self.reserve.take().is_some() && matches!(listening.accept(), Ok(Some(_))) {
            self.notice.shed += 1;
        }
        self.reserve = reserve().ok();
        self.until = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// The pause is over; whether the shortage is, the next accept will show.
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

    /// At most once a second, and only when there is something to say.
    pub(crate) fn take_notice(&mut self, now: Instant) -> Option<Notice> {
        let said_lately = self
            .last_notice
            .is_some_and(|last| now < last + NOTICE_INTERVAL);
        if said_lately || self.notice == Notice::default() {
            return None;
        }
        self.last_notice = Some(now);
        Some(std::mem::take(&mut self.notice))
    }
}

fn reserve() -> io::Result<File> {
    File::open("/dev/null")
}
