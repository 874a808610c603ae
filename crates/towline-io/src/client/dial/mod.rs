//! Establishes the connection of a route: one state machine for the asynchronous and the blocking client. It owns
//! descriptors and never blocks; its driver waits for them, with epoll or poll(2).
//!
//! ```text
//! (Backoff ─►)
//! New ─┬─► Resolving ─► Connecting ──┐   ┌─────────────────── one layer after the other ──────────────────┐
//!      │   (twice for socks5)        ├─► │ ProxyTls (https proxy) ─► ProxyHandshake (CONNECT, SOCKS) ─► Tls │ ─► Done
//!      └─► UnixRetry (Unix socket) ──┘   └─── stages: LoadingTls, then Handshaking or ProxyHandshake ───────┘
//! ```
//!
//! That is `stage`, of a `StreamDial`. A route with an alternative is dialled over QUIC as well (`quic_dial`), and `race`
//! decides when TCP starts.

mod clock;
mod config;
mod connect;
mod error;
mod happy_eyeballs;
mod partial_transport;
mod proxy;
mod quic_dial;
mod quic_race;
mod race;
mod resolve;
mod stage;
mod stream_dial;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use config::{DialConfig, HostOverrides, Keepalive};
pub use error::{DialError, DialErrorKind, DialPhase};
pub use resolve::Resolver;

use super::route::Route;
use quic_race::QuicRace;
use stream_dial::StreamDial;

use towline_proto::{Protocol, ProtocolPolicy};

use crate::conn::ALPN_H2;
use crate::conn::addr::PeerAddr;
use crate::conn::quic_transport::QuicTransport;
use crate::conn::transport::Transport;
use crate::quic;

/// A connection that may carry requests. TLS may have decrypted bytes already: with an edge-triggered poll,
/// read once without waiting for an event.
pub struct Established {
    pub(crate) transport: Transport,
    /// The protocol chosen by the origin.
    pub alpn: Option<Vec<u8>>,
    /// Peer address of the socket: that of the proxy if there is one.
    pub remote: PeerAddr,
    pub timings: DialTimings,
}

impl Established {
    /// A QUIC connection, the only one of its endpoint. It may be before its handshake.
    pub fn from_quic(
        mut conn: quic::Connection,
        endpoint: quic::Endpoint,
        timings: DialTimings,
    ) -> Self {
        let remote = PeerAddr::from_inet(conn.quic().remote_address());
        let transport = QuicTransport::client(conn, endpoint);
        Self {
            transport: Transport::Quic(Box::new(transport)),
            alpn: Some(quic::ALPN_H3.to_vec()),
            remote,
            timings,
        }
    }

    /// Whether requests are sent before the handshake of QUIC is complete.
    pub(crate) fn sends_early_data(&self) -> bool {
        let quic = self.transport.quic();
        quic.is_some_and(QuicTransport::sends_early_data)
    }

    /// The protocol of the connection, `allowed` being the configured ones.
    pub(crate) fn protocol(&self, allowed: ProtocolPolicy) -> Protocol {
        if self.transport.quic().is_some() {
            return Protocol::Http3;
        }
        match (&self.alpn, allowed) {
            (Some(chosen), _) if chosen == ALPN_H2 => Protocol::Http2,
            // Prior knowledge, which is not possible over TLS (RFC 9113 3.3).
            (None, ProtocolPolicy::Http2) if self.transport.tls().is_none() => Protocol::Http2,
            _ => Protocol::Http1,
        }
    }
}

/// Duration of each phase; `None` for a phase that the route does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialTimings {
    pub dns: Option<Duration>,
    pub connect: Duration,
    pub proxy: Option<Duration>,
    pub tls: Option<Duration>,
    /// The handshake of QUIC, which has that of TLS in it; `connect` and `tls` are empty then.
    pub quic: Option<Duration>,
}

/// Readiness that a dial waits for. `serial` distinguishes two sockets of one dial with the same descriptor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    pub fd: RawFd,
    pub serial: u32,
    pub readable: bool,
    pub writable: bool,
}

pub enum Progress {
    /// Wait for `fds` and `deadline`, then advance again.
    Pending,
    Done(Box<Established>),
    Failed(DialError),
}

/// A connection being established: over TCP, or over QUIC in a race with TCP if the route has an alternative. Dropping
/// it closes its sockets.
pub struct Dial {
    stream: StreamDial,
    quic: Option<Box<QuicRace>>,
}

impl Dial {
    /// Creates the dial. The first `advance` starts it.
    pub fn start(route: Arc<Route>, config: &Arc<DialConfig>, now: Instant) -> Self {
        let alternative = route.alternative.as_deref().filter(|alternative| {
            let http3 = config.http3.as_ref().filter(|_| !alternative.is_only);
            !http3.is_some_and(|http3| http3.is_broken(&route, now))
        });
        Self {
            quic: alternative.map(|to| Box::new(QuicRace::new(&route, to, config, now))),
            stream: StreamDial::start(route, config, now),
        }
    }

    pub fn route(&self) -> &Arc<Route> {
        self.stream.route()
    }

    /// Delays the start until `at`, from which the timeout counts. Call it before the first `advance`.
    pub fn rest_until(&mut self, at: Instant) {
        self.stream.rest_until(at);
        if let Some(quic) = &mut self.quic {
            quic.rest_until(at);
        }
    }

    /// Replaces the deadline that follows from `connect_timeout`.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.stream.set_deadline(deadline);
        if let Some(quic) = &mut self.quic {
            quic.set_deadline(deadline);
        }
    }

    /// Runs until every descriptor would block. Not to be called again after `Done` or `Failed`.
    pub fn advance(&mut self, now: Instant) -> Progress {
        match &mut self.quic {
            None => self.stream.advance(now),
            Some(quic) => quic.advance(&mut self.stream, now),
        }
    }

    /// Time at which to advance even if no descriptor is ready.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.quic {
            None => self.stream.deadline(),
            Some(quic) => quic.deadline(&self.stream),
        }
    }

    /// Adds the descriptors to wait for now. They change with every `advance`.
    pub fn fds(&self, watches: &mut Vec<Watch>) {
        match &self.quic {
            None => self.stream.fds(watches),
            Some(quic) => quic.fds(&self.stream, watches),
        }
    }
}

#[cfg(test)]
mod tests;
