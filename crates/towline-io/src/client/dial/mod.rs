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
mod progress;
mod proxy;
mod quic_dial;
mod quic_race;
mod race;
mod resolve;
mod stage;
mod stream_dial;

use std::sync::Arc;
use std::time::Instant;

pub use config::{DialConfig, HostOverrides, Keepalive};
pub use error::{DialError, DialErrorKind, DialPhase};
pub use progress::{Progress, Watch};
pub use resolve::Resolver;

pub use crate::conn::established::{DialTimings, Established};

use super::route::Route;
use quic_race::QuicRace;
use stream_dial::StreamDial;

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
