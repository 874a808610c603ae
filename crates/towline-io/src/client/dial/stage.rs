//! Transitions between the stages of a dial over TCP or a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use towline_proto::ProtocolPolicy;

use super::connect::{Connected, Connecting, SocketOptions, UnixRetry};
use super::error::os_message;
use super::happy_eyeballs::HappyEyeballs;
use super::partial_transport::PartialTransport;
use super::proxy::{ProxyHandshake, Refusal, Step};
use super::resolve::{self, literal};
use super::stream_dial::{
    Establishing, Layer, LookupFor, Plan, Resolving, Stage, StreamDial, layers_of,
};
use super::{DialError, DialErrorKind, DialPhase, Established};
use crate::client::route::{Proxy, ProxyScheme, Route};
use crate::conn::transport::Transport;
use crate::tls::ALPN_H2;
use crate::tls::{ClientTls, HandshakeOutcome, RecvOutcome, explain};

/// Bytes read from a proxy at a time. A body after the head of a tunnel is dropped as far as it is in the same piece.
const PROXY_READ_BYTES: usize = 16 * 1024;

/// Result of a step.
enum Flow {
    Next(Stage),
    Wait(Stage),
    Done(Box<Established>),
}

impl StreamDial {
    /// Runs the stages until one has to wait.
    pub(super) fn run(&mut self, now: Instant) -> Result<Option<Box<Established>>, DialError> {
        let mut stage = std::mem::replace(&mut self.stage, Stage::Over);
        loop {
            match self.step(stage, now)? {
                Flow::Next(next) => stage = next,
                Flow::Done(established) => return Ok(Some(established)),
                Flow::Wait(stage) => {
                    if self.clock.is_over(now) {
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
                self.clock.begin_phase(now);
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
                    self.next_layer(establishing)
                } else {
                    Ok(Flow::Wait(Stage::LoadingTls(establishing, loading)))
                }
            }
            Stage::ProxyHandshake(establishing, handshake) => {
                self.start_proxy_handshake(establishing, handshake, now)
            }
            Stage::Handshaking(establishing, layer) => {
                self.drive_handshake(establishing, layer, now)
            }
            Stage::Over => Err(DialError::new(DialErrorKind::Connect, "this dial is over")),
        }
    }

    fn begin(&mut self, now: Instant) -> Result<Flow, DialError> {
        let route = Arc::clone(&self.route);
        let mut plan = Plan::default();
        for layer in layers_of(&route) {
            let Some(tls) = tls_of(&route, layer)? else {
                continue;
            };
            // If no helper thread can be started, the handshake reads the files.
            if let Ok(Some(file)) = tls.load() {
                self.serial += 1;
                plan.loading.push((self.serial, file));
            }
        }
        if let Some(path) = &route.uds {
            return Ok(Flow::Next(Stage::UnixRetry(
                UnixRetry::new(path, now),
                plan,
            )));
        }
        let wants_address = |proxy: &Proxy| proxy.scheme == ProxyScheme::Socks5;
        if route.proxy().is_some_and(wants_address) {
            self.look_up(LookupFor::Target, plan, now)
        } else {
            self.look_up(LookupFor::Server, plan, now)
        }
    }

    /// The server to look up and connect to, for messages.
    fn peer(&self, lookup_for: LookupFor) -> String {
        match (self.route.proxy(), lookup_for) {
            (Some(proxy), LookupFor::Server) => format!("the proxy {proxy}"),
            _ => self.route.authority(),
        }
    }

    /// An error of a lookup, naming the proxy if it is about its host.
    fn lookup_error(&self, lookup_for: LookupFor, error: DialError) -> DialError {
        match self.route.proxy() {
            Some(proxy) if lookup_for == LookupFor::Server => DialError {
                message: format!("the proxy {proxy}: {}", error.message),
                ..error
            },
            _ => error,
        }
    }

    /// Host and port to look up.
    fn lookup_target(&self, lookup_for: LookupFor) -> (&str, u16) {
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
        let (host, port) = self.lookup_target(lookup_for);
        let addrs = self.config.overrides.find(host, port);
        let known = || match &self.known_addrs[..] {
            [] => literal(host, port).map(|addr| vec![addr]),
            known => Some(known.to_vec()),
        };
        let addrs = addrs.or_else(known);
        if let Some(addrs) = addrs {
            return self.resolved(lookup_for, plan, &addrs, now);
        }
        let lookup = self.config.resolver.lookup(host);
        let lookup = lookup.map_err(|error| self.lookup_error(lookup_for, error))?;
        self.serial += 1;
        Ok(Flow::Next(Stage::Resolving(Resolving {
            lookup_for,
            lookup,
            serial: self.serial,
            plan,
        })))
    }

    fn resolve(&mut self, resolving: Resolving, now: Instant) -> Result<Flow, DialError> {
        let target = self.lookup_target(resolving.lookup_for);
        let found = resolve::found(&resolving.lookup, target);
        let found = found.map_err(|error| self.lookup_error(resolving.lookup_for, error))?;
        let Some(addrs) = found else {
            return Ok(Flow::Wait(Stage::Resolving(resolving)));
        };
        let spent = self.clock.end_phase(now);
        *self.timings.dns.get_or_insert_default() += spent;
        self.resolved(resolving.lookup_for, resolving.plan, &addrs, now)
    }

    fn resolved(
        &mut self,
        lookup_for: LookupFor,
        mut plan: Plan,
        addrs: &[SocketAddr],
        now: Instant,
    ) -> Result<Flow, DialError> {
        if lookup_for == LookupFor::Target {
            // A request holds one address; the system prefers the first (RFC 6724).
            plan.targets = addrs.iter().rev().copied().collect();
            return self.look_up(LookupFor::Server, plan, now);
        }
        let options = SocketOptions {
            local_address: self.route.local_address,
            keepalive: self.config.tcp_keepalive,
        };
        let happy_eyeballs = HappyEyeballs::new(addrs, self.config.happy_eyeballs_delay, now);
        let connecting = Connecting::new(self.peer(lookup_for), options, happy_eyeballs);
        Ok(Flow::Next(Stage::Connecting(connecting, plan)))
    }

    fn connected(
        &mut self,
        connected: Connected,
        plan: Plan,
        now: Instant,
    ) -> Result<Flow, DialError> {
        self.timings.connect = self.clock.end_phase(now);
        let mut layers = layers_of(&self.route);
        layers.reverse();
        let establishing = Establishing {
            transport: PartialTransport::new(connected.socket, connected.serial),
            remote: connected.remote,
            layers,
            targets: plan.targets,
        };
        if plan.loading.is_empty() {
            self.next_layer(establishing)
        } else {
            Ok(Flow::Next(Stage::LoadingTls(establishing, plan.loading)))
        }
    }

    fn next_layer(&mut self, mut establishing: Establishing) -> Result<Flow, DialError> {
        let route = Arc::clone(&self.route);
        let Some(layer) = establishing.layers.pop() else {
            return self.established(establishing).map(Flow::Done);
        };
        let Some(tls) = tls_of(&route, layer)? else {
            let Some(proxy) = route.proxy() else {
                return self.next_layer(establishing);
            };
            let handshake =
                ProxyHandshake::new(proxy, &route, establishing.targets.last().copied());
            let handshake = handshake.map_err(|refusal| refused(proxy, &refusal))?;
            return Ok(Flow::Next(Stage::ProxyHandshake(establishing, handshake)));
        };
        let http1 = [b"http/1.1".to_vec()];
        let (name, alpn) = match route.proxy().filter(|_| layer == Layer::ProxyTls) {
            Some(proxy) => (&*proxy.host, &http1[..]),
            None => (route.server_name(), self.config.alpn(&route)),
        };
        let secured = establishing
            .transport
            .secure(|outer| tls.connect(name, alpn, outer));
        secured.map_err(|message| DialError::new(DialErrorKind::Tls, message))?;
        Ok(Flow::Next(Stage::Handshaking(establishing, layer)))
    }

    fn start_proxy_handshake(
        &mut self,
        mut establishing: Establishing,
        mut handshake: ProxyHandshake,
        now: Instant,
    ) -> Result<Flow, DialError> {
        let route = Arc::clone(&self.route);
        let Some(proxy) = route.proxy() else {
            return self.next_layer(establishing);
        };
        match exchange(&mut establishing.transport, &mut handshake) {
            Ok(Ok(Step::Done)) => {
                let spent = self.clock.end_phase(now);
                *self.timings.proxy.get_or_insert_default() += spent;
                self.next_layer(establishing)
            }
            Ok(Ok(Step::More)) => Ok(Flow::Wait(Stage::ProxyHandshake(establishing, handshake))),
            Ok(Err(refusal)) if refusal.address_specific && establishing.targets.len() > 1 => {
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
                        "closed the connection before its response".to_owned()
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
        layer: Layer,
        now: Instant,
    ) -> Result<Flow, DialError> {
        let transport = &mut establishing.transport.transport;
        let Some(tls) = &mut transport.tls else {
            return self.next_layer(establishing);
        };
        match tls.drive_handshake(&transport.socket) {
            Ok(HandshakeOutcome::Pending) => {
                Ok(Flow::Wait(Stage::Handshaking(establishing, layer)))
            }
            Ok(HandshakeOutcome::Done) => {
                // A handshake takes longer than a turn should, and may begin and end in one: the turn's time is the
                // time before it.
                let spent = self.clock.end_phase(now.max(Instant::now()));
                if layer == Layer::Tls {
                    self.timings.tls = Some(spent);
                } else {
                    *self.timings.proxy.get_or_insert_default() += spent;
                }
                self.next_layer(establishing)
            }
            Err(error) => {
                let route = Arc::clone(&self.route);
                let tls = tls_of(&route, layer)?;
                if layer == Layer::Tls
                    && tls.is_some_and(|tls| tls.falls_back(route.server_name(), &error))
                {
                    return Ok(Flow::Next(Stage::New));
                }
                let message = explain(&error, &self.tls_peer(layer));
                Err(DialError::new(DialErrorKind::Tls, message).because(&error))
            }
        }
    }

    fn established(&self, establishing: Establishing) -> Result<Box<Established>, DialError> {
        let transport = establishing.transport.transport;
        let tls = transport.tls.as_ref().filter(|_| self.route.secure);
        let alpn = tls.and_then(|tls| tls.alpn());
        let lacks_h2 = tls.is_some() && alpn.as_deref() != Some(ALPN_H2);
        if lacks_h2 && self.config.protocols == ProtocolPolicy::Http2 {
            let message = format!(
                "{} does not speak HTTP/2 (it did not choose h2 by ALPN, RFC 9113 3.2), and HTTP/1.1 is switched off",
                self.route.authority()
            );
            return Err(DialError::new(DialErrorKind::Tls, message));
        }
        Ok(Box::new(Established {
            alpn,
            remote: establishing.remote,
            timings: self.timings,
            transport: Transport::Stream(transport),
        }))
    }

    fn tls_peer(&self, layer: Layer) -> String {
        match self.route.proxy().filter(|_| layer == Layer::ProxyTls) {
            Some(proxy) => format!("the proxy {proxy}"),
            None => self.route.authority(),
        }
    }

    fn timed_out(&self, stage: &Stage, now: Instant) -> DialError {
        let within = self.clock.within(now);
        let server = || self.peer(LookupFor::Server);
        let (phase, message) = match stage {
            Stage::Backoff(_) | Stage::New | Stage::Resolving(_) | Stage::Over => {
                let lookup_for = match stage {
                    Stage::Resolving(resolving) => resolving.lookup_for,
                    _ => LookupFor::Server,
                };
                let slow = self
                    .clock
                    .slow_lookup(self.lookup_target(lookup_for).0, now);
                return self.lookup_error(lookup_for, slow);
            }
            Stage::Connecting(connecting, _) => {
                let attempts = connecting.attempts_text();
                (
                    DialPhase::Connect,
                    format!("no connection to {} {within}: {attempts}", server()),
                )
            }
            Stage::UnixRetry(..) => {
                let path = self.route.uds.as_deref().unwrap_or("".as_ref()).display();
                (
                    DialPhase::Connect,
                    format!("no connection to {path} {within}: its queue is full"),
                )
            }
            Stage::ProxyHandshake(..) => (
                DialPhase::Proxy,
                format!("no response from {} {within}", server()),
            ),
            Stage::LoadingTls(..) => return self.clock.slow_certificates(now),
            Stage::Handshaking(_, layer) => {
                let peer = self.tls_peer(*layer);
                (
                    DialPhase::Tls,
                    format!("no end of the TLS handshake with {peer} {within}"),
                )
            }
        };
        DialError::timeout(phase, message)
    }
}

/// TLS settings of a layer; `None` if the layer is not TLS.
fn tls_of(route: &Route, layer: Layer) -> Result<Option<&Arc<ClientTls>>, DialError> {
    let origin = route.tls.as_ref();
    let tls = match layer {
        Layer::ProxyHandshake => return Ok(None),
        Layer::Tls => origin,
        Layer::ProxyTls => route
            .proxy()
            .and_then(|proxy| proxy.tls.as_ref())
            .or(origin),
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
    let mut space = [0; PROXY_READ_BYTES];
    loop {
        while !handshake.outgoing().is_empty() {
            match transport.send(handshake.outgoing())? {
                0 => return Ok(Ok(Step::More)),
                bytes => handshake.sent(bytes),
            }
        }
        transport.flush()?;
        let wanted = handshake.wanted().min(space.len());
        match transport.recv(&mut space[..wanted])? {
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
    let message = format!("the proxy {proxy} {}", refusal.text);
    DialError {
        proxy_status: refusal.status,
        ..DialError::new(DialErrorKind::Proxy, message)
    }
}
