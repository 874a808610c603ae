//! A connection over QUIC being established.
//!
//! ```text
//! (Backoff ─►) New ─► Resolving ─► LoadingTls ─► Connecting: one socket and handshake for each address (RFC 8305) ─► Done
//! ```
//!
//! With a ticket for early data the connection is done before its handshake (`conn/early_flight.rs`).

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::{ClientConfig, ConnectionError, Event, TransportErrorCode};

use super::clock::DialClock;
use super::error::os_message;
use super::happy_eyeballs::HappyEyeballs;
use super::resolve::{self, LookupResult, literal};
use super::{
    DialConfig, DialError, DialErrorKind, DialPhase, DialTimings, Established, Progress, Watch,
};
use crate::client::route::{Alternative, Route, authority};
use crate::conn::transport::Transport;
use crate::quic::{self, Connection, Endpoint, ReceiveOutcome, UdpSocket};
use crate::thread_pool::TaskHandle;
use crate::tls::{ClientTls, certificate_name, explain_text};

/// First serial number; those of the attempts over TCP are smaller.
const FIRST_SERIAL: u32 = 1 << 31;

/// Batches of datagrams that an attempt receives before the others get their turn.
const MAX_BATCHES: usize = 8;

/// State of the dial.
pub(super) struct QuicDial {
    route: Arc<Route>,
    config: Arc<DialConfig>,
    clock: DialClock,
    serial: u32,
    stage: Stage,
    addrs: Vec<SocketAddr>,
    /// Set when the first packet was sent, until it is taken.
    first_packet: Option<Instant>,
    timings: DialTimings,
}

enum Stage {
    Backoff(Instant),
    New,
    Resolving(TaskHandle<LookupResult>, u32),
    LoadingTls(TaskHandle<()>, u32),
    Connecting(Connecting),
    Over,
}

/// Handshakes with the addresses of one server.
struct Connecting {
    quic: ClientConfig,
    happy_eyeballs: HappyEyeballs,
    attempts: Vec<Attempt>,
    failures: Vec<(SocketAddr, Failure)>,
    /// A server has answered.
    answered: bool,
}

struct Attempt {
    addr: SocketAddr,
    endpoint: Endpoint,
    conn: Connection,
    serial: u32,
    /// The next timer of the connection.
    timer: Option<Instant>,
}

struct Failure {
    kind: DialErrorKind,
    text: String,
    os_error: Option<i32>,
}

enum Step {
    Next(Stage),
    Wait(Stage),
    Done(Box<Established>),
}

impl QuicDial {
    pub(super) fn start(route: Arc<Route>, config: &Arc<DialConfig>, now: Instant) -> Self {
        Self {
            route,
            config: Arc::clone(config),
            clock: DialClock::start(config, now),
            serial: FIRST_SERIAL,
            stage: Stage::New,
            addrs: Vec::new(),
            first_packet: None,
            timings: DialTimings::default(),
        }
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// The addresses that were found, with the port of the alternative.
    pub(super) fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Time of the first packet, once.
    pub(super) fn take_first_packet(&mut self) -> Option<Instant> {
        self.first_packet.take()
    }

    /// Whether the server has answered, so that UDP works.
    pub(super) fn is_answered(&self) -> bool {
        matches!(&self.stage, Stage::Connecting(connecting) if connecting.answered)
    }

    pub(super) fn rest_until(&mut self, at: Instant) {
        self.stage = Stage::Backoff(at);
        self.clock = DialClock::start(&self.config, at);
    }

    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.clock.set_deadline(deadline);
    }

    pub(super) fn advance(&mut self, now: Instant) -> Progress {
        let mut stage = std::mem::replace(&mut self.stage, Stage::Over);
        loop {
            match self.step(stage, now) {
                Err(error) => return Progress::Failed(error),
                Ok(Step::Done(established)) => return Progress::Done(established),
                Ok(Step::Next(next)) => stage = next,
                Ok(Step::Wait(stage)) => {
                    if self.clock.is_over(now) {
                        return Progress::Failed(self.timed_out(&stage, now));
                    }
                    self.stage = stage;
                    return Progress::Pending;
                }
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let stage = match &self.stage {
            Stage::Backoff(until) => Some(*until),
            Stage::Connecting(connecting) => connecting.deadline(),
            _ => None,
        };
        self.clock.deadline(stage)
    }

    pub(super) fn fds(&self, watches: &mut Vec<Watch>) {
        let readable = |fd, serial| Watch {
            fd,
            serial,
            readable: true,
            writable: false,
        };
        match &self.stage {
            Stage::Backoff(_) | Stage::New | Stage::Over => {}
            Stage::Resolving(lookup, serial) => watches.push(readable(lookup.fd(), *serial)),
            Stage::LoadingTls(file, serial) => watches.push(readable(file.fd(), *serial)),
            Stage::Connecting(connecting) => {
                let attempts = connecting.attempts.iter();
                watches.extend(
                    attempts.map(|attempt| readable(attempt.endpoint.as_raw_fd(), attempt.serial)),
                );
            }
        }
    }

    fn step(&mut self, stage: Stage, now: Instant) -> Result<Step, DialError> {
        match stage {
            Stage::Backoff(until) if now < until => Ok(Step::Wait(stage)),
            Stage::Backoff(_) | Stage::New => {
                self.clock.begin_phase(now);
                self.look_up(now)
            }
            Stage::Resolving(lookup, serial) => self.resolve(lookup, serial, now),
            Stage::LoadingTls(file, serial) => match file.outcome() {
                None => Ok(Step::Wait(Stage::LoadingTls(file, serial))),
                Some(_) => self.connect(now),
            },
            Stage::Connecting(connecting) => self.handshake(connecting, now),
            Stage::Over => Err(DialError::new(DialErrorKind::Connect, "this dial is over")),
        }
    }

    fn server(&self) -> (&str, u16) {
        match self.route.alternative.as_deref() {
            Some(Alternative { host, port, .. }) => (host, *port),
            None => (&self.route.host, self.route.port),
        }
    }

    fn authority(&self) -> String {
        let (host, port) = self.server();
        authority(host, port)
    }

    fn look_up(&mut self, now: Instant) -> Result<Step, DialError> {
        let (host, port) = self.server();
        let addrs = self.config.overrides.find(host, port);
        let addrs = addrs.or_else(|| literal(host, port).map(|addr| vec![addr]));
        if let Some(addrs) = addrs {
            self.addrs = addrs;
            return self.load_tls(now);
        }
        let lookup = self.config.resolver.lookup(host)?;
        self.serial += 1;
        Ok(Step::Next(Stage::Resolving(lookup, self.serial)))
    }

    fn resolve(
        &mut self,
        lookup: TaskHandle<LookupResult>,
        serial: u32,
        now: Instant,
    ) -> Result<Step, DialError> {
        match resolve::found(&lookup, self.server())? {
            None => Ok(Step::Wait(Stage::Resolving(lookup, serial))),
            Some(addrs) => {
                self.addrs = addrs;
                self.timings.dns = Some(self.clock.end_phase(now));
                self.load_tls(now)
            }
        }
    }

    fn load_tls(&mut self, now: Instant) -> Result<Step, DialError> {
        // If no helper thread can be started, the handshake reads the files.
        if let Some(Ok(Some(file))) = self.route.tls.as_ref().map(ClientTls::load) {
            self.serial += 1;
            return Ok(Step::Next(Stage::LoadingTls(file, self.serial)));
        }
        self.connect(now)
    }

    fn connect(&mut self, now: Instant) -> Result<Step, DialError> {
        let tls_error = |message| DialError::new(DialErrorKind::Tls, message);
        let tls = self.route.tls.as_ref();
        let tls = tls.ok_or_else(|| tls_error("HTTP/3 needs TLS settings".to_owned()))?;
        let config = tls.quic_config().map_err(tls_error)?;
        let quic = quic::client_config(&config, &self.config.quic)
            .map_err(|error| tls_error(error.to_string()))?;
        let delay = self.config.happy_eyeballs_delay;
        Ok(Step::Next(Stage::Connecting(Connecting {
            quic,
            happy_eyeballs: HappyEyeballs::new(&self.addrs, delay, now),
            attempts: Vec::new(),
            failures: Vec::new(),
            answered: false,
        })))
    }

    /// Drives the handshakes and starts those that are due.
    fn handshake(&mut self, mut connecting: Connecting, now: Instant) -> Result<Step, DialError> {
        let mut at = 0;
        while at < connecting.attempts.len() {
            let attempt = &mut connecting.attempts[at];
            match attempt.drive(now) {
                Ok(true) => {
                    let attempt = connecting.attempts.swap_remove(at);
                    return Ok(Step::Done(self.established(attempt, now)));
                }
                Ok(false) => {
                    connecting.answered |= attempt.is_answered();
                    at += 1;
                }
                Err(failure) => {
                    let attempt = connecting.attempts.swap_remove(at);
                    connecting.on_failure(attempt.addr, failure, now);
                }
            }
        }
        while let Some(addr) = connecting.happy_eyeballs.next_due(now) {
            match self.begin_attempt(&connecting.quic, addr, now) {
                // The first flight is sent with the first request.
                Ok(attempt) if attempt.conn.has_early_data() => {
                    return Ok(Step::Done(self.established(attempt, now)));
                }
                Ok(attempt) => {
                    if connecting.attempts.is_empty() {
                        self.first_packet = Some(now);
                    }
                    connecting.attempts.push(attempt);
                }
                Err(failure) => connecting.on_failure(addr, failure, now),
            }
        }
        if connecting.happy_eyeballs.all_failed() {
            return Err(self.failed(&connecting.failures));
        }
        Ok(Step::Wait(Stage::Connecting(connecting)))
    }

    fn begin_attempt(
        &mut self,
        config: &ClientConfig,
        addr: SocketAddr,
        now: Instant,
    ) -> Result<Attempt, Failure> {
        let limits = &self.config.quic;
        let local = self.route.local_address;
        let socket = UdpSocket::connect(addr, local, limits.socket_buffer_bytes);
        let socket = socket.map_err(|error| Failure::of(&error))?;
        let mut endpoint = Endpoint::new(socket, None, limits.clone());
        let name = certificate_name(self.route.server_name());
        let conn = endpoint.connect(now, config.clone(), addr, name);
        let conn = conn.map_err(|error| Failure {
            kind: DialErrorKind::Tls,
            text: error.to_string(),
            os_error: None,
        })?;
        self.serial += 1;
        let mut attempt = Attempt {
            addr,
            endpoint,
            conn,
            serial: self.serial,
            timer: None,
        };
        if !attempt.conn.has_early_data() {
            // Sends the first packet.
            attempt.drive(now)?;
        }
        Ok(attempt)
    }

    fn established(&mut self, attempt: Attempt, now: Instant) -> Box<Established> {
        // A handshake takes longer than a turn should, and the turn's time is the time before it.
        self.timings.quic = Some(self.clock.end_phase(now.max(Instant::now())));
        let is_early = attempt.conn.is_handshaking();
        let mut established = Established::from_quic(attempt.conn, attempt.endpoint, self.timings);
        if let Transport::Quic(quic) = &mut established.transport {
            quic.local = self.route.local_address;
            if let (true, Some(tls)) = (is_early, &self.route.tls) {
                quic.begin_early_data(now, tls, self.route.server_name());
            }
        }
        Box::new(established)
    }

    fn failed(&self, failures: &[(SocketAddr, Failure)]) -> DialError {
        let authority = self.authority();
        let mut message = format!("cannot connect to {authority} over QUIC");
        for (index, (addr, failure)) in failures.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            let _ = match addr.to_string() {
                addr if addr == authority => write!(message, "{separator}{}", failure.text),
                addr => write!(message, "{separator}{addr}: {}", failure.text),
            };
        }
        let last = failures.last().map(|(_, failure)| failure);
        let kind = last.map_or(DialErrorKind::Connect, |failure| failure.kind);
        DialError {
            os_error: last.and_then(|failure| failure.os_error),
            ..DialError::new(kind, message)
        }
    }

    fn timed_out(&self, stage: &Stage, now: Instant) -> DialError {
        match stage {
            Stage::Connecting(connecting) => {
                let (authority, within) = (self.authority(), self.clock.within(now));
                let attempts = connecting.attempts_text();
                let message = format!("no QUIC connection to {authority} {within}: {attempts}");
                DialError::timeout(DialPhase::Connect, message)
            }
            Stage::LoadingTls(..) => self.clock.slow_certificates(now),
            _ => self.clock.slow_lookup(self.server().0, now),
        }
    }
}

impl Connecting {
    fn on_failure(&mut self, addr: SocketAddr, failure: Failure, now: Instant) {
        self.failures.push((addr, failure));
        self.happy_eyeballs.on_failure(now);
    }

    fn deadline(&self) -> Option<Instant> {
        let attempts = self.attempts.iter().filter_map(|attempt| attempt.timer);
        attempts.chain(self.happy_eyeballs.deadline()).min()
    }

    fn attempts_text(&self) -> String {
        let mut text = String::new();
        for attempt in &self.attempts {
            let separator = if text.is_empty() { "" } else { ", " };
            let state = if attempt.is_answered() {
                "no end of the handshake with"
            } else {
                "no response from"
            };
            let _ = write!(text, "{separator}{state} {} (UDP)", attempt.addr);
        }
        for (addr, failure) in &self.failures {
            let _ = write!(text, "; {addr}: {}", failure.text);
        }
        text
    }
}

impl Attempt {
    /// Receives, handles timers and sends. Whether the handshake is complete.
    fn drive(&mut self, now: Instant) -> Result<bool, Failure> {
        for _ in 0..MAX_BATCHES {
            let received = self.endpoint.receive(now);
            if received.map_err(|error| Failure::of(&error))? == ReceiveOutcome::All {
                break;
            }
        }
        self.endpoint.service(&mut self.conn);
        if self.conn.deadline().is_some_and(|at| at <= now) {
            self.conn.handle_timeout(now);
            self.endpoint.service(&mut self.conn);
        }
        while let Some(event) = self.conn.quic().poll() {
            match event {
                // Later events are for the connection.
                Event::Connected => return Ok(true),
                Event::ConnectionLost { reason } => {
                    // The server learns the reason, and forgets the handshake at once.
                    self.conn.send(now, usize::MAX);
                    self.endpoint.service(&mut self.conn);
                    return Err(Failure::lost(&reason));
                }
                _ => {}
            }
        }
        self.conn.send(now, usize::MAX);
        self.endpoint.service(&mut self.conn);
        self.timer = self.conn.deadline();
        match self.conn.take_failure().filter(is_final) {
            Some(error) => Err(Failure::of(&error)),
            None => Ok(false),
        }
    }

    fn is_answered(&self) -> bool {
        self.conn.received_datagrams() > 0
    }
}

/// Whether an error of the socket ends an attempt; others are losses, which the handshake repairs.
fn is_final(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::ENOBUFS | libc::EINTR | libc::EAGAIN)
    )
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        Self {
            kind: DialErrorKind::Connect,
            text: os_message(error),
            os_error: error.raw_os_error(),
        }
    }

    fn lost(reason: &ConnectionError) -> Self {
        let (kind, text) = match reason {
            ConnectionError::VersionMismatch => (
                DialErrorKind::Connect,
                "the server has no version of QUIC in common with this client (RFC 9000 6)".into(),
            ),
            ConnectionError::TransportError(error) if is_tls(error.code) => (
                DialErrorKind::Tls,
                format!("TLS failed: {}", explain_text(&error.reason)),
            ),
            ConnectionError::ConnectionClosed(close)
                if u64::from(close.error_code) == NO_APPLICATION_PROTOCOL =>
            {
                (
                    DialErrorKind::Tls,
                    "the server does not speak HTTP/3 (it did not choose h3 by ALPN, RFC 9114 3.1)"
                        .into(),
                )
            }
            ConnectionError::ConnectionClosed(close) if is_tls(close.error_code) => (
                DialErrorKind::Tls,
                format!("the server refused the TLS handshake: {close}"),
            ),
            other => (
                DialErrorKind::Connect,
                format!("the QUIC handshake failed: {other}"),
            ),
        };
        Self {
            kind,
            text,
            os_error: None,
        }
    }
}

/// `CRYPTO_ERROR` with the alert `no_application_protocol` (RFC 9001 4.8, RFC 7301 3.2).
const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;

fn is_tls(code: TransportErrorCode) -> bool {
    (0x100..0x200).contains(&u64::from(code))
}
