//! From a route to a connection, as one state machine for both faces: lookup, race of addresses, proxy,
//! TLS. It owns descriptors and never waits for one; whoever drives it waits, with epoll or poll(2).

mod config;
mod error;
mod resolve;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use config::{DialConfig, Keepalive, Overrides};
pub use error::{DialError, DialErrorKind, DialPhase};
pub use resolve::Resolver;

use super::route::Route;
use crate::addr::PeerAddr;
use crate::transport::Transport;

/// A connection that may carry requests. TLS may have plain bytes already: with an edge-triggered poll,
/// read once without being told.
pub struct Established {
    pub(crate) transport: Transport,
    /// What the origin chose.
    pub alpn: Option<Vec<u8>>,
    /// Who is at the other end of the socket: the proxy where there is one.
    pub remote: PeerAddr,
    pub timings: DialTimings,
}

/// How long each phase took; `None` where there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialTimings {
    pub dns: Option<Duration>,
    pub connect: Duration,
    pub proxy: Option<Duration>,
    pub tls: Option<Duration>,
}

/// What a dial waits for. `serial` tells apart two sockets of one dial which got the same number.
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

/// Dropping it frees everything at once.
pub struct Dial {
    route: Arc<Route>,
    config: Arc<DialConfig>,
    deadline: Option<Instant>,
}

impl Dial {
    /// Starts nothing yet: the first `advance` does.
    pub fn start(route: Arc<Route>, config: &Arc<DialConfig>, now: Instant) -> Self {
        Self {
            route,
            config: Arc::clone(config),
            deadline: config.connect_timeout.map(|timeout| now + timeout),
        }
    }

    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// In place of what `connect_timeout` gave.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// As far as it goes without waiting: until every descriptor would block.
    pub fn advance(&mut self, now: Instant) -> Progress {
        let _ = (now, &self.config);
        Progress::Failed(DialError::new(
            DialErrorKind::Connect,
            "dialling is not there yet",
        ))
    }

    /// When to advance even though no descriptor is ready.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Adds what to wait for now. It changes with every `advance`.
    pub fn fds(&self, watches: &mut Vec<Watch>) {
        let _ = watches;
    }
}
