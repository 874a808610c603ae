//! The stages of a dial, and what leads from one to the next.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::ProtocolPolicy;

use super::connect::{Connected, Connecting, SocketOptions, UnixRetry, os_message};
use super::happy_eyeballs::HappyEyeballs;
use super::partial_transport::PartialTransport;
use super::proxy::{ProxyHandshake, Refusal, Step};
use super::resolve::{Answer, literal};
use super::{Dial, DialError, DialErrorKind, DialPhase, Established, Watch};
use crate::client::route::{Proxy, ProxyScheme, Route, authority};
use crate::conn::ALPN_H2;
use crate::conn::addr::PeerAddr;
use crate::thread_pool::{Panicked, TaskHandle};
use crate::tls::{ClientTls, HandshakeOutcome, RecvOutcome, explain};

/// Read from a proxy at once.
const ANSWER_BYTES: usize = 1024;

/// See the picture of the module above.
pub(super) enum Stage {
    /// Until then.
    Backoff(Instant),
    New,
    Resolving(Resolving),
    Connecting(Connecting, Plan),
    UnixRetry(UnixRetry, Plan),
    LoadingTls(Establishing, LoadingTls),
    ProxyHandshake(Establishing, ProxyHandshake),
    Handshaking(Establishing, Layer),
    Over,
}

pub(super) struct Resolving {
    lookup_for: LookupFor,
    answer: TaskHandle<Answer>,
    serial: u32,
    plan: Plan,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookupFor {
    /// The origin: a `socks5` proxy is sent an address.
    Target,
    /// The server to connect to: the proxy or the origin.
    Server,
}

/// Addresses known before there is a connection.
#[derive(Default)]
pub(super) struct Plan {
    /// Addresses for a `socks5` proxy to connect to, in reverse order of trial.
    targets: Vec<SocketAddr>,
    loading: LoadingTls,
}

/// Files of TLS settings that are being read by helper threads.
type LoadingTls = Vec<(u32, TaskHandle<()>)>;

/// A connection, and what is still to be built on it.
pub(super) struct Establishing {
    transport: PartialTransport,
    remote: PeerAddr,
    /// The last one comes first.
    hops: Vec<Layer>,
    targets: Vec<SocketAddr>,
}

/// A layer between a connected socket and the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// TLS to the proxy.
    ProxyTls,
    /// CONNECT or SOCKS.
    ProxyHandshake,
    /// TLS to the origin.
    Tls,
}

/// The layers of a route, outermost first.
fn hops(route: &Route) -> Vec<Layer> {
    let mut hops = Vec::new();
    if let Some(proxy) = route.proxy() {
        if proxy.scheme == ProxyScheme::Https {
            hops.push(Layer::ProxyTls);
        }
        if !route.absolute_form() {
            hops.push(Layer::ProxyHandshake);
        }
    }
    if route.secure {
        hops.push(Layer::Tls);
    }
    hops
}

/// The stage that follows, or the one that has to wait.
enum Flow {
    On(Stage),
    Wait(Stage),
    Done(Box<Established>),
}

impl Stage {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Connecting(connecting, _) => connecting.deadline(),
            Self::UnixRetry(retry, _) => Some(retry.deadline()),
            Self::Backoff(until) => Some(*until),
            _ => None,
        }
    }

    pub(super) fn fds(&self, watches: &mut Vec<Watch>) {
        let ticket = |fd, serial| Watch {
            fd,
            serial,
            readable: true,
            writable: false,
        };
        match self {
            Self::Backoff(_) | Self::New | Self::UnixRetry(..) | Self::Over => {}
            Self::Resolving(resolving) => {
                watches.push(ticket(resolving.answer.fd(), resolving.serial));
            }
            Self::Connecting(connecting, _) => connecting.fds(watches),
            Self::LoadingTls(_, loading) => {
                watches.extend(
                    loading
                        .iter()
                        .map(|(serial, file)| ticket(file.fd(), *serial)),
                );
            }
            Self::ProxyHandshake(establishing, handshake) => {
                watches.push(
                    establishing
                        .transport
                        .watch(!handshake.outgoing().is_empty()),
                );
            }
            Self::Handshaking(establishing, _) => watches.push(establishing.transport.watch(false)),
        }
    }
}

impl Dial {
    /// From stage to stage until one has to wait.
    pub(super) fn run(&mut self, now: Instant) -> Result<Option<Box<Established>>, DialError> {
        let mut stage = std::mem::replace(&mut self.stage, Stage::Over);
        loop {
            match self.step(stage, now)? {
                Flow::On(next) => stage = next,
                Flow::Done(established) => return Ok(Some(established)),
                Flow::Wait(stage) => {
                    if self.deadline.is_some_and(|deadline| deadline <= now) {
                        return Err(self.timed_out(&stage, now));
                    }
                    self.stage = stage;
                    return Ok(None);
                }
            }
        }
    }

    fn step(&mut self, stage: Stage, now: Instant) -> Result<Flow, DialError> {
        match stage {
            Stage::Backoff(until) if now < until => Ok(Flow::Wait(stage)),
            Stage::Backoff(_) | Stage::New => {
                self.since = now;
                self.begin(now)
            }
            Stage::Resolving(resolving) => self.resolve(resolving, now),
            Stage::Connecting(mut connecting, plan) => {
                match connecting.advance(now, &mut self.serial)? {
                    Some(connected) => self.connected(connected, plan, now),
                    None => Ok(Flow::Wait(Stage::Connecting(connecting, plan))),
                }
            }
            Stage::UnixRetry(mut retry, plan) => match retry.advance(now, &mut self.serial)? {
                Some(connected) => self.connected(connected, plan, now),
                None => Ok(Flow::Wait(Stage::UnixRetry(retry, plan))),
            },
            Stage::LoadingTls(establishing, mut loading) => {
                loading.retain(|(_, file)| file.outcome().is_none());
                if loading.is_empty() {
                    self.next_hop(establishing)
                } else {
                    Ok(Flow::Wait(Stage::LoadingTls(establishing, loading)))
                }
            }
            Stage::ProxyHandshake(establishing, handshake) => {
                self.start_proxy_handshake(establishing, handshake, now)
            }
            Stage::Handshaking(establishing, hop) => self.drive_handshake(establishing, hop, now),
            Stage::Over => Err(DialError::new(DialErrorKind::Connect, "this dial is over")),
        }
    }

    fn begin(&mut self, now: Instant) -> Result<Flow, DialError> {
        let route = Arc::clone(&self.route);
        let mut plan = Plan::default();
        for hop in hops(&route) {
            let Some(tls) = tls_of(&route, hop)? else {
                continue;
            };
            // Where there is no helper to be had, the handshake reads them.
            if let Ok(Some(file)) = tls.load() {
                self.serial += 1;
                plan.loading.push((self.serial, file));
            }
        }
        if let Some(path) = &route.uds {
            return Ok(Flow::On(Stage::UnixRetry(UnixRetry::new(path, now), plan)));
        }
        let wants_address = |proxy: &Proxy| proxy.scheme == ProxyScheme::Socks5;
        if route.proxy().is_some_and(wants_address) {
            self.look_up(LookupFor::Target, plan, now)
        } else {
            self.look_up(LookupFor::Server, plan, now)
        }
    }

    /// The host and port of the origin, or of the server that is next.
    fn place(&self, lookup_for: LookupFor) -> (&str, u16) {
        match self
            .route
            .proxy()
            .filter(|_| lookup_for == LookupFor::Server)
        {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&self.route.host, self.route.port),
        }
    }

    fn look_up(
        &mut self,
        lookup_for: LookupFor,
        plan: Plan,
        now: Instant,
    ) -> Result<Flow, DialError> {
        let (host, port) = self.place(lookup_for);
        let known = self.config.overrides.find(host, port);
        let known = known.or_else(|| literal(host, port).map(|addr| vec![addr]));
        if let Some(addrs) = known {
            return self.resolved(lookup_for, plan, &addrs, now);
        }
        let answer = self.config.resolver.ask(host).map_err(|error| {
            let message = format!("cannot resolve {host:?}: {}", os_message(&error));
            DialError::new(DialErrorKind::Dns, message).because(&error)
        })?;
        self.serial += 1;
        Ok(Flow::On(Stage::Resolving(Resolving {
            lookup_for,
            answer,
            serial: self.serial,
            plan,
        })))
    }

    fn resolve(&mut self, resolving: Resolving, now: Instant) -> Result<Flow, DialError> {
        let (host, port) = self.place(resolving.lookup_for);
        let why = match resolving.answer.outcome() {
            None => return Ok(Flow::Wait(Stage::Resolving(resolving))),
            Some(Ok(Ok(addrs))) => {
                let at_port = |addr: &SocketAddr| {
                    let mut addr = *addr;
                    addr.set_port(port);
                    addr
                };
                let addrs: Vec<_> = addrs.iter().map(at_port).collect();
                let spent = self.lap(now);
                *self.timings.dns.get_or_insert_default() += spent;
                return self.resolved(resolving.lookup_for, resolving.plan, &addrs, now);
            }
            Some(Ok(Err(error))) => error.to_string(),
            Some(Err(Panicked)) => "the lookup failed in an unexpected way".to_owned(),
        };
        let message = format!("cannot resolve {host:?}: {why}");
        Err(DialError::new(DialErrorKind::Dns, message))
    }

    fn resolved(
        &mut self,
        lookup_for: LookupFor,
        mut plan: Plan,
        addrs: &[SocketAddr],
        now: Instant,
    ) -> Result<Flow, DialError> {
        if lookup_for == LookupFor::Target {
            // A request has room for one; the system prefers the first (RFC 6724).
            plan.targets = addrs.iter().rev().copied().collect();
            return self.look_up(LookupFor::Server, plan, now);
        }
        let (host, port) = self.place(lookup_for);
        let terms = SocketOptions {
            local_address: self.route.local_address,
            keepalive: self.config.tcp_keepalive,
        };
        let happy_eyeballs = HappyEyeballs::new(addrs, self.config.happy_eyeballs_delay, now);
        let connecting = Connecting::new(authority(host, port), terms, happy_eyeballs);
        Ok(Flow::On(Stage::Connecting(connecting, plan)))
    }

    fn connected(
        &mut self,
        connected: Connected,
        plan: Plan,
        now: Instant,
    ) -> Result<Flow, DialError> {
        self.timings.connect = self.lap(now);
        let mut hops = hops(&self.route);
        hops.reverse();
        let establishing = Establishing {
            transport: PartialTransport::new(connected.socket, connected.serial),
            remote: connected.remote,
            hops,
            targets: plan.targets,
        };
        if plan.loading.is_empty() {
            self.next_hop(establishing)
        } else {
            Ok(Flow::On(Stage::LoadingTls(establishing, plan.loading)))
        }
    }

    fn next_hop(&mut self, mut establishing: Establishing) -> Result<Flow, DialError> {
        let route = Arc::clone(&self.route);
        let Some(hop) = establishing.hops.pop() else {
            return self.established(establishing).map(Flow::Done);
        };
        let Some(tls) = tls_of(&route, hop)? else {
            let Some(proxy) = route.proxy() else {
                return self.next_hop(establishing);
            };
            let handshake =
                ProxyHandshake::new(proxy, &route, establishing.targets.last().copied());
            let handshake = handshake.map_err(|refusal| refused(proxy, &refusal))?;
            return Ok(Flow::On(Stage::ProxyHandshake(establishing, handshake)));
        };
        let http1 = [b"http/1.1".to_vec()];
        let (name, alpn) = match route.proxy().filter(|_| hop == Layer::ProxyTls) {
            Some(proxy) => (&*proxy.host, &http1[..]),
            None => (route.server_name(), self.config.alpn(&route)),
        };
        let secured = establishing
            .transport
            .secure(|below| tls.connect(name, alpn, below));
        secured.map_err(|message| DialError::new(DialErrorKind::Tls, message))?;
        Ok(Flow::On(Stage::Handshaking(establishing, hop)))
    }

    fn start_proxy_handshake(
        &mut self,
        mut establishing: Establishing,
        mut handshake: ProxyHandshake,
        now: Instant,
    ) -> Result<Flow, DialError> {
        let route = Arc::clone(&self.route);
        let Some(proxy) = route.proxy() else {
            return self.next_hop(establishing);
        };
        match exchange(&mut establishing.transport, &mut handshake) {
            Ok(Ok(Step::Done)) => {
                let spent = self.lap(now);
                *self.timings.proxy.get_or_insert_default() += spent;
                self.next_hop(establishing)
            }
            Ok(Ok(Step::More)) => Ok(Flow::Wait(Stage::ProxyHandshake(establishing, handshake))),
            Ok(Err(refusal)) if refusal.of_address && establishing.targets.len() > 1 => {
                // Each attempt takes a connection of its own (RFC 1928 6).
                establishing.targets.pop();
                let plan = Plan {
                    targets: establishing.targets,
                    ..Plan::default()
                };
                self.look_up(LookupFor::Server, plan, now)
            }
            Ok(Err(refusal)) => Err(refused(proxy, &refusal)),
            Err(error) => {
                let text = match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        "closed the connection before its answer".to_owned()
                    }
                    _ => format!("failed: {}", os_message(&error)),
                };
                let refusal = Refusal::new(text);
                Err(refused(proxy, &refusal).because(&error))
            }
        }
    }

    fn drive_handshake(
        &mut self,
        mut establishing: Establishing,
        hop: Layer,
        now: Instant,
    ) -> Result<Flow, DialError> {
        let transport = &mut establishing.transport.transport;
        let Some(tls) = &mut transport.tls else {
            return self.next_hop(establishing);
        };
        match tls.drive_handshake(&transport.socket) {
            Ok(HandshakeOutcome::Pending) => Ok(Flow::Wait(Stage::Handshaking(establishing, hop))),
            Ok(HandshakeOutcome::Done) => {
                let spent = self.lap(now);
                if hop == Layer::Tls {
                    self.timings.tls = Some(spent);
                } else {
                    *self.timings.proxy.get_or_insert_default() += spent;
                }
                self.next_hop(establishing)
            }
            Err(error) => {
                let message = explain(&error, &self.tls_peer(hop));
                Err(DialError::new(DialErrorKind::Tls, message).because(&error))
            }
        }
    }

    fn established(&self, establishing: Establishing) -> Result<Box<Established>, DialError> {
        let transport = establishing.transport.transport;
        let tls = transport.tls.as_ref().filter(|_| self.route.secure);
        let alpn = tls.and_then(|tls| tls.alpn());
        let refuses_h2 = tls.is_some() && alpn.as_deref() != Some(ALPN_H2);
        if refuses_h2 && self.config.protocols == ProtocolPolicy::Http2 {
            let message = format!(
                "{} does not speak HTTP/2 (no h2 in its ALPN answer, RFC 9113 3.2), and HTTP/1.1 is switched off",
                self.route.authority()
            );
            return Err(DialError::new(DialErrorKind::Tls, message));
        }
        Ok(Box::new(Established {
            alpn,
            remote: establishing.remote,
            timings: self.timings,
            transport,
        }))
    }

    /// The time that the phase took which ends now.
    fn lap(&mut self, now: Instant) -> Duration {
        let spent = now.saturating_duration_since(self.since);
        self.since = now;
        spent
    }

    fn tls_peer(&self, hop: Layer) -> String {
        match self.route.proxy().filter(|_| hop == Layer::ProxyTls) {
            Some(proxy) => format!("the proxy {}", proxy.url()),
            None => self.route.authority(),
        }
    }

    fn timed_out(&self, stage: &Stage, now: Instant) -> DialError {
        let limit = self
            .deadline
            .unwrap_or(now)
            .saturating_duration_since(self.started);
        let within = format!("within {} s", (limit.as_secs_f64() * 1e3).round() / 1e3);
        let server = || {
            let (host, port) = self.place(LookupFor::Server);
            authority(host, port)
        };
        let (phase, message) = match stage {
            Stage::Backoff(_) | Stage::New | Stage::Resolving(_) | Stage::Over => {
                let lookup_for = match stage {
                    Stage::Resolving(resolving) => resolving.lookup_for,
                    _ => LookupFor::Server,
                };
                let host = self.place(lookup_for).0;
                (
                    DialPhase::Resolve,
                    format!("no address of {host:?} {within}: the name server is slow"),
                )
            }
            Stage::Connecting(connecting, _) => {
                let tried = connecting.tried();
                (
                    DialPhase::Connect,
                    format!("no connection to {} {within}: {tried}", server()),
                )
            }
            Stage::UnixRetry(..) => {
                let path = self.route.uds.as_deref().unwrap_or("".as_ref()).display();
                (
                    DialPhase::Connect,
                    format!("no connection to {path} {within}: its queue is full"),
                )
            }
            Stage::ProxyHandshake(..) => {
                let url = self.route.proxy().map(Proxy::url).unwrap_or_default();
                (
                    DialPhase::Proxy,
                    format!("no answer from the proxy {url} {within}"),
                )
            }
            Stage::LoadingTls(..) => (
                DialPhase::Tls,
                format!("the trusted certificates were not read {within}"),
            ),
            Stage::Handshaking(_, hop) => {
                let peer = self.tls_peer(*hop);
                (
                    DialPhase::Tls,
                    format!("no end of the TLS handshake with {peer} {within}"),
                )
            }
        };
        DialError::timeout(phase, message)
    }
}

/// The settings of a hop that is TLS.
fn tls_of(route: &Route, hop: Layer) -> Result<Option<&Arc<ClientTls>>, DialError> {
    let own = route.tls.as_ref();
    let tls = match hop {
        Layer::ProxyHandshake => return Ok(None),
        Layer::Tls => own,
        Layer::ProxyTls => route.proxy().and_then(|proxy| proxy.tls.as_ref()).or(own),
    };
    let missing = || {
        DialError::new(
            DialErrorKind::Tls,
            "no TLS settings for a route that needs them",
        )
    };
    tls.map(Some).ok_or_else(missing)
}

/// Sends and receives proxy handshake bytes until the socket would block.
fn exchange(
    transport: &mut PartialTransport,
    handshake: &mut ProxyHandshake,
) -> io::Result<Result<Step, Refusal>> {
    let mut space = [0; ANSWER_BYTES];
    loop {
        while !handshake.outgoing().is_empty() {
            match transport.send(handshake.outgoing())? {
                0 => return Ok(Ok(Step::More)),
                bytes => handshake.sent(bytes),
            }
        }
        transport.flush()?;
        match transport.recv(&mut space)? {
            RecvOutcome::Data { bytes, .. } => match handshake.received(&space[..bytes]) {
                Ok(Step::More) => {}
                end => return Ok(end),
            },
            RecvOutcome::WouldBlock => return Ok(Ok(Step::More)),
            RecvOutcome::Eof => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn refused(proxy: &Proxy, refusal: &Refusal) -> DialError {
    let message = format!("the proxy {} {}", proxy.url(), refusal.text);
    DialError {
        proxy_status: refusal.status,
        ..DialError::new(DialErrorKind::Proxy, message)
    }
}
