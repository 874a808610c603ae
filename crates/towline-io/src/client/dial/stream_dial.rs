//! A connection over TCP or a Unix socket being established; `stage` has its transitions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::clock::DialClock;
use super::connect::{Connecting, UnixRetry};
use super::partial_transport::PartialTransport;
use super::proxy::ProxyHandshake;
use super::resolve::LookupResult;
use super::{DialConfig, DialTimings, Progress, Watch};
use crate::client::route::{ProxyScheme, Route};
use crate::conn::addr::PeerAddr;
use crate::thread_pool::TaskHandle;

/// State of the dial.
pub(super) struct StreamDial {
    pub(super) route: Arc<Route>,
    pub(super) config: Arc<DialConfig>,
    pub(super) clock: DialClock,
    /// Serial of the last descriptor.
    pub(super) serial: u32,
    pub(super) stage: Stage,
    pub(super) timings: DialTimings,
    /// Addresses of the origin, if another dial has looked them up.
    pub(super) known_addrs: Vec<SocketAddr>,
}

impl StreamDial {
    pub(super) fn start(route: Arc<Route>, config: &Arc<DialConfig>, now: Instant) -> Self {
        Self {
            stage: Stage::New,
            route,
            config: Arc::clone(config),
            clock: DialClock::start(config, now),
            serial: 0,
            timings: DialTimings::default(),
            known_addrs: Vec::new(),
        }
    }

    pub(super) fn route(&self) -> &Arc<Route> {
        &self.route
    }

    pub(super) fn rest_until(&mut self, at: Instant) {
        self.stage = Stage::Backoff(at);
        self.clock = DialClock::start(&self.config, at);
    }

    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.clock.set_deadline(deadline);
    }

    pub(super) fn advance(&mut self, now: Instant) -> Progress {
        let result = self.run(now);
        if !matches!(result, Ok(None)) {
            self.stage = Stage::Over;
        }
        match result {
            Ok(None) => Progress::Pending,
            Ok(Some(established)) => Progress::Done(established),
            Err(error) => Progress::Failed(error),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.clock.deadline(self.stage.deadline())
    }

    pub(super) fn fds(&self, watches: &mut Vec<Watch>) {
        self.stage.fds(watches);
    }
}

/// State of a dial; `mod.rs` has the picture.
pub(super) enum Stage {
    /// Waits until this time before it starts.
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
    pub(super) lookup_for: LookupFor,
    pub(super) lookup: TaskHandle<LookupResult>,
    pub(super) serial: u32,
    pub(super) plan: Plan,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LookupFor {
    /// The origin, whose address is sent to a `socks5` proxy.
    Target,
    /// The server to connect to: the proxy or the origin.
    Server,
}

/// Results of the steps before the connection.
#[derive(Default)]
pub(super) struct Plan {
    /// Addresses for a `socks5` proxy to connect to, in reverse order of trial.
    pub(super) targets: Vec<SocketAddr>,
    pub(super) loading: LoadingTls,
}

/// Files of TLS settings that helper threads are reading.
pub(super) type LoadingTls = Vec<(u32, TaskHandle<()>)>;

/// A connection, and the layers still to be built on it.
pub(super) struct Establishing {
    pub(super) transport: PartialTransport,
    pub(super) remote: PeerAddr,
    /// The next layer is the last element.
    pub(super) layers: Vec<Layer>,
    pub(super) targets: Vec<SocketAddr>,
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
pub(super) fn layers_of(route: &Route) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Some(proxy) = route.proxy() {
        if proxy.scheme == ProxyScheme::Https {
            layers.push(Layer::ProxyTls);
        }
        if !route.absolute_form() {
            layers.push(Layer::ProxyHandshake);
        }
    }
    if route.secure {
        layers.push(Layer::Tls);
    }
    layers
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
        let readable = |fd, serial| Watch {
            fd,
            serial,
            readable: true,
            writable: false,
        };
        match self {
            Self::Backoff(_) | Self::New | Self::UnixRetry(..) | Self::Over => {}
            Self::Resolving(resolving) => {
                watches.push(readable(resolving.lookup.fd(), resolving.serial));
            }
            Self::Connecting(connecting, _) => connecting.fds(watches),
            Self::LoadingTls(_, loading) => {
                watches.extend(
                    loading
                        .iter()
                        .map(|(serial, file)| readable(file.fd(), *serial)),
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
