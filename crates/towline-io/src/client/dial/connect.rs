//! Connection attempts over real sockets: several for TCP, repeated ones for a Unix socket.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::config::Keepalive;
use super::error::os_message;
use super::happy_eyeballs::HappyEyeballs;
use super::{DialError, DialErrorKind, Watch};
use crate::conn::addr::PeerAddr;
use crate::sys::leave_port_to_connect;

/// Shortest value that tcp(7) takes: it counts in seconds.
const SHORTEST_KEEPALIVE: Duration = Duration::from_secs(1);

/// Socket options of every attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketOptions {
    pub(super) local_address: Option<IpAddr>,
    pub(super) keepalive: Option<Keepalive>,
}

/// Attempts to connect to the addresses of one server.
pub(super) struct Connecting {
    /// The server for messages: `host:port`, or the proxy.
    peer: String,
    options: SocketOptions,
    happy_eyeballs: HappyEyeballs,
    attempts: Vec<Attempt>,
    failures: Vec<(SocketAddr, io::Error)>,
}

/// The connection of the attempt that succeeded first.
pub(super) struct Connected {
    pub(super) socket: Socket,
    pub(super) remote: PeerAddr,
    pub(super) serial: u32,
}

struct Attempt {
    addr: SocketAddr,
    socket: Socket,
    serial: u32,
}

impl Connecting {
    pub(super) fn new(peer: String, options: SocketOptions, happy_eyeballs: HappyEyeballs) -> Self {
        Self {
            peer,
            options,
            happy_eyeballs,
            attempts: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Checks the attempts and starts those that are due. Returns the first connection; dropping this value
    /// then closes the other attempts.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        serial: &mut u32,
    ) -> Result<Option<Connected>, DialError> {
        let mut at = 0;
        while at < self.attempts.len() {
            match is_connected(&self.attempts[at]) {
                Ok(false) => at += 1,
                Ok(true) => {
                    let attempt = self.attempts.swap_remove(at);
                    return Ok(Some(Connected {
                        socket: attempt.socket,
                        remote: PeerAddr::Inet(attempt.addr),
                        serial: attempt.serial,
                    }));
                }
                Err(error) => {
                    let attempt = self.attempts.swap_remove(at);
                    self.on_failure(attempt.addr, error, now);
                }
            }
        }
        while let Some(addr) = self.happy_eyeballs.next_due(now) {
            match self.options.connect(addr) {
                Ok(socket) => {
                    *serial += 1;
                    self.attempts.push(Attempt {
                        addr,
                        socket,
                        serial: *serial,
                    });
                }
                Err(error) => self.on_failure(addr, error, now),
            }
        }
        if self.happy_eyeballs.all_failed() {
            return Err(self.connect_error());
        }
        Ok(None)
    }

    fn on_failure(&mut self, addr: SocketAddr, error: io::Error, now: Instant) {
        self.failures.push((addr, error));
        self.happy_eyeballs.on_failure(now);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.happy_eyeballs.deadline()
    }

    pub(super) fn fds(&self, watches: &mut Vec<Watch>) {
        watches.extend(self.attempts.iter().map(|attempt| Watch {
            fd: attempt.socket.as_raw_fd(),
            serial: attempt.serial,
            readable: false,
            writable: true,
        }));
    }

    fn connect_error(&self) -> DialError {
        let mut message = format!("cannot connect to {}", self.peer);
        for (index, (addr, error)) in self.failures.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            let _ = match addr.to_string() {
                addr if self.peer.contains(&addr) => {
                    write!(message, "{separator}{}", os_message(error))
                }
                addr => write!(message, "{separator}{addr}: {}", os_message(error)),
            };
        }
        let error = DialError::new(DialErrorKind::Connect, message);
        match self.failures.last() {
            Some((_, cause)) => error.because(cause),
            None => error,
        }
    }

    /// Lists the attempts made, for the message of a timeout.
    pub(super) fn attempts_text(&self) -> String {
        let mut text = String::new();
        for attempt in &self.attempts {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{separator}no response from {}", attempt.addr);
        }
        for (addr, error) in &self.failures {
            let _ = write!(text, "; {addr}: {}", os_message(error));
        }
        text
    }
}

impl SocketOptions {
    /// Starts to connect to `addr`.
    fn connect(self, addr: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(keepalive) = self.keepalive {
            let settings = TcpKeepalive::new()
                .with_time(keepalive.idle.max(SHORTEST_KEEPALIVE))
                .with_interval(keepalive.interval.max(SHORTEST_KEEPALIVE))
                .with_retries(keepalive.count.max(1));
            socket.set_tcp_keepalive(&settings)?;
        }
        if let Some(local) = self.local_address {
            if local.is_ipv4() != addr.is_ipv4() {
                return Err(io::Error::other("the local address is of the other family"));
            }
            leave_port_to_connect(&socket);
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        start_connect(&socket, &addr.into())?;
        Ok(socket)
    }
}

fn start_connect(socket: &Socket, addr: &SockAddr) -> io::Result<()> {
    match socket.connect(addr) {
        Err(error) if !is_in_progress(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the connect goes on in the background; a signal does not end it (connect(2), `EINTR`).
fn is_in_progress(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR))
}

/// Whether the attempt has succeeded; `Err` if it has failed.
fn is_connected(attempt: &Attempt) -> io::Result<bool> {
    if let Some(error) = attempt.socket.take_error()? {
        return Err(error);
    }
    match attempt.socket.peer_addr() {
        // A socket connected to its own port (RFC 9293 3.5, simultaneous open): nothing listens there.
        Ok(peer) if peer.as_socket() == attempt.socket.local_addr()?.as_socket() => {
            Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
        }
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Connects to a Unix socket, again after a pause when its queue is full: no event reports that the queue has
/// room (connect(2), `EAGAIN`).
pub(super) struct UnixRetry {
    path: PathBuf,
    pause: Duration,
    retry_at: Instant,
}

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl UnixRetry {
    pub(super) fn new(path: &Path, now: Instant) -> Self {
        Self {
            path: path.to_owned(),
            pause: FIRST_PAUSE,
            retry_at: now,
        }
    }

    pub(super) fn advance(
        &mut self,
        now: Instant,
        serial: &mut u32,
    ) -> Result<Option<Connected>, DialError> {
        if now < self.retry_at {
            return Ok(None);
        }
        match self.connect() {
            Ok(socket) => {
                *serial += 1;
                Ok(Some(Connected {
                    socket,
                    remote: PeerAddr::Unix(self.path.as_path().into()),
                    serial: *serial,
                }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.retry_at = now + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                Ok(None)
            }
            Err(error) => {
                let message = format!(
                    "cannot connect to {}: {}",
                    self.path.display(),
                    os_message(&error)
                );
                Err(DialError::new(DialErrorKind::Connect, message).because(&error))
            }
        }
    }

    fn connect(&self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(&self.path)?)?;
        Ok(socket)
    }

    pub(super) fn deadline(&self) -> Instant {
        self.retry_at
    }
}
