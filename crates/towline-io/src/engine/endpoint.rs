//! A UDP endpoint in the poll of an engine.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry};

use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::conn::quic_transport::{SharedEndpoint, lock};
use crate::quic::{Connection, EndpointCounts, ReceiveOutcome, Workers};

pub(crate) struct RegisteredEndpoint {
    pub(crate) endpoint: SharedEndpoint,
    pub(crate) fd: RawFd,
    pub(crate) service: Arc<ConnConfig>,
    /// Datagrams may be waiting: set by the poll, cleared when a receive finds no more.
    pub(crate) pending: bool,
    /// New connections that wait for their handshakes.
    pub(crate) waiting: usize,
    /// Write interest is registered in the poll.
    pub(crate) write_armed: bool,
    /// The socket is read here. If not, another worker reads it and forwards our datagrams.
    pub(crate) reading: bool,
    /// Counts that the metrics have already.
    pub(crate) counts: EndpointCounts,
}

/// The socket by which workers pass datagrams to each other.
pub(crate) struct RegisteredWorkers {
    pub(crate) workers: Arc<Workers>,
    /// Space for one message. The kernel fills, and so the process uses, only as much as arrives.
    pub(crate) space: Box<[u8]>,
    /// Datagrams may be waiting.
    pub(crate) pending: bool,
}

impl RegisteredEndpoint {
    /// Adds what has been counted since the last call to the metrics.
    pub(crate) fn count(&mut self) {
        let counts = lock(&self.endpoint).counts();
        let before = std::mem::replace(&mut self.counts, counts);
        if let Some(meter) = &self.service.meter
            && counts != before
        {
            let retries = counts.retries - before.retries;
            meter.quic_retries.fetch_add(retries, Relaxed);
            let refused = counts.refused - before.refused;
            meter.quic_refused.fetch_add(refused, Relaxed);
            let accepted = counts.early_accepted - before.early_accepted;
            meter.quic_early_accepted.fetch_add(accepted, Relaxed);
            let refused = counts.early_refused - before.early_refused;
            meter.quic_early_refused.fetch_add(refused, Relaxed);
        }
    }

    /// UDP reports that it is writable after every datagram sent, so write interest is registered only while
    /// connections wait.
    pub(crate) fn arm_write(&mut self, registry: &Registry, index: usize, armed: bool) {
        let before = self.interest();
        self.write_armed = armed;
        self.register(registry, index, before);
    }

    /// Leaves the socket to another worker, which forwards the datagrams of our connections.
    pub(crate) fn stop_reading(&mut self, registry: &Registry, index: usize) {
        let before = self.interest();
        self.reading = false;
        self.pending = false;
        self.register(registry, index, before);
    }

    fn interest(&self) -> Option<Interest> {
        let read = self.reading.then_some(Interest::READABLE);
        let write = self.write_armed.then_some(Interest::WRITABLE);
        match (read, write) {
            (Some(read), Some(write)) => Some(read | write),
            (read, write) => read.or(write),
        }
    }

    /// Changes the registration from `before` to the present interest.
    fn register(&self, registry: &Registry, index: usize, before: Option<Interest>) {
        let now = self.interest();
        if now == before {
            return;
        }
        let (mut source, token) = (SourceFd(&self.fd), Source::Udp(index).token());
        // If this fails, the timers of QUIC send again.
        let _ = match (before, now) {
            (None, Some(now)) => registry.register(&mut source, token, now),
            (Some(_), Some(now)) => registry.reregister(&mut source, token, now),
            (_, None) => registry.deregister(&mut source),
        };
    }

    pub(crate) fn receive(&mut self, now: Instant) -> ReceiveOutcome {
        // A failure of the socket is a loss of datagrams. The poll reports when it is readable again.
        let received = lock(&self.endpoint).receive(now);
        received.unwrap_or(ReceiveOutcome::All)
    }

    /// The next new connection.
    pub(crate) fn next_accepted(&mut self, now: Instant) -> Option<Connection> {
        let mut endpoint = lock(&self.endpoint);
        let accepted = endpoint.next_accepted(now);
        self.waiting = endpoint.waiting();
        accepted
    }

    pub(crate) fn next_ready(&self) -> Option<ConnId> {
        lock(&self.endpoint).next_ready().map(ConnId::from_u64)
    }
}
