//! UDP endpoints in the poll of an engine.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry};

use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::conn::quic_transport::{SharedEndpoint, lock};
use crate::conn::{Conn, ConnectionCount};
use crate::engine::conn_table::Readiness;
use crate::quic::{
    Connection, Endpoint, EndpointCounts, MAX_FORWARDED_BYTES, ReceiveOutcome, Workers,
};

/// Batches of datagrams received per endpoint and turn, of up to eight messages (`quic::Endpoint::receive`). The
/// connections concerned are then served before more is received, so that datagrams wait in the kernel and not here.
const BATCHES_PER_TURN: usize = 4;

/// Messages of other workers taken per turn.
const FORWARDED_PER_TURN: usize = 64;

/// The UDP endpoints of an engine, and the socket at which other workers forward datagrams.
#[derive(Default)]
pub(crate) struct Endpoints {
    registered: Vec<RegisteredEndpoint>,
    workers: Option<RegisteredWorkers>,
}

impl Endpoints {
    pub(crate) fn add(
        &mut self,
        mut endpoint: Endpoint,
        service: Arc<ConnConfig>,
        registry: &Registry,
    ) -> io::Result<()> {
        endpoint
            .connection_limits
            .clone_from(&service.connection_limits);
        let fd = endpoint.as_raw_fd();
        let token = Source::Udp(self.registered.len()).token();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        service.set_accepting(true);
        self.registered.push(RegisteredEndpoint {
            endpoint: Arc::new(endpoint.into()),
            fd,
            service,
            pending: true,
            waiting: 0,
            write_armed: false,
            reading: true,
            counts: EndpointCounts::default(),
        });
        Ok(())
    }

    pub(crate) fn set_workers(
        &mut self,
        workers: Arc<Workers>,
        registry: &Registry,
    ) -> io::Result<()> {
        let (fd, token) = (workers.as_raw_fd(), Source::Workers.token());
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        self.workers = Some(RegisteredWorkers {
            workers,
            space: vec![0; MAX_FORWARDED_BYTES].into_boxed_slice(),
            pending: true,
        });
        Ok(())
    }

    pub(crate) fn on_workers_ready(&mut self) {
        if let Some(workers) = &mut self.workers {
            workers.pending = true;
        }
    }

    /// Records an event of a socket. Returns the connections that can send again.
    pub(crate) fn on_ready(
        &mut self,
        index: usize,
        readiness: Readiness,
        registry: &Registry,
    ) -> Vec<ConnId> {
        let Some(registered) = self.registered.get_mut(index) else {
            return Vec::new();
        };
        registered.pending |= readiness.readable && registered.reading;
        if !readiness.writable || !registered.write_armed {
            return Vec::new();
        }
        let unblocked = lock(&registered.endpoint).writable();
        registered.arm_write(registry, index, false);
        unblocked.into_iter().map(ConnId::from_u64).collect()
    }

    /// Whether datagrams, or new connections, may be waiting.
    pub(crate) fn have_datagrams(&self) -> bool {
        let is_due = |registered: &RegisteredEndpoint| registered.pending || registered.waiting > 0;
        self.registered.iter().any(is_due)
            || self.workers.as_ref().is_some_and(|workers| workers.pending)
    }

    /// Lets the next receive try all sockets, without an event of the poll.
    pub(crate) fn expect_datagrams(&mut self) {
        for registered in &mut self.registered {
            registered.pending = registered.reading;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.registered.len()
    }

    /// Receives datagrams of an endpoint, if some may be waiting or `has_forwarded`, those of other workers. Returns whether
    /// it was due.
    pub(crate) fn receive(&mut self, index: usize, has_forwarded: bool, now: Instant) -> bool {
        let registered = &mut self.registered[index];
        let is_due = registered.pending || registered.waiting > 0 || has_forwarded;
        if is_due {
            lock(&registered.endpoint).forget_closed(now);
            for _ in 0..BATCHES_PER_TURN {
                if !registered.pending {
                    break;
                }
                registered.pending = registered.receive(now) == ReceiveOutcome::More;
            }
            registered.count();
        }
        is_due
    }

    /// The next new connection of an endpoint.
    pub(crate) fn next_conn<S: Default>(
        &mut self,
        index: usize,
        id: ConnId,
        now: Instant,
    ) -> Option<Conn<S>> {
        let registered = &mut self.registered[index];
        let (conn, count) = registered.next_accepted(now)?;
        let RegisteredEndpoint {
            endpoint, service, ..
        } = registered;
        Some(Conn::from_quic(id, conn, endpoint, (service, count), now))
    }

    /// The next connection of an endpoint for which something has arrived.
    pub(crate) fn next_ready(&self, index: usize) -> Option<ConnId> {
        let endpoint = &self.registered[index].endpoint;
        lock(endpoint).next_ready().map(ConnId::from_u64)
    }

    /// Takes datagrams that other workers have received; returns whether there were any.
    pub(crate) fn receive_forwarded(&mut self, now: Instant) -> bool {
        let Some(from) = self.workers.as_mut().filter(|workers| workers.pending) else {
            return false;
        };
        for count in 0..FORWARDED_PER_TURN {
            let RegisteredWorkers { workers, space, .. } = from;
            let Some(length) = workers.receive(space) else {
                from.pending = false;
                return count > 0;
            };
            if let Some((endpoint, message)) = workers.open(&space[..length])
                && let Some(to) = self.registered.get(endpoint)
            {
                lock(&to.endpoint).handle_datagrams(now, &message);
            }
        }
        true
    }

    /// Registers write interest in the endpoints whose sockets were full.
    pub(crate) fn arm_blocked(&mut self, registry: &Registry) {
        for (index, registered) in self.registered.iter_mut().enumerate() {
            if lock(&registered.endpoint).is_blocked() {
                registered.arm_write(registry, index, true);
            }
        }
    }

    /// Refuses new connections, or leaves them to other workers. Open ones stay, on the same sockets.
    pub(crate) fn stop_accepting(&mut self, registry: &Registry) {
        for (index, registered) in self.registered.iter_mut().enumerate() {
            registered.service.set_accepting(false);
            let has_successor = {
                let mut endpoint = lock(&registered.endpoint);
                endpoint.stop_accepting();
                endpoint.has_successor()
            };
            if has_successor {
                registered.stop_reading(registry, index);
            }
        }
    }
}

struct RegisteredEndpoint {
    endpoint: SharedEndpoint,
    fd: RawFd,
    service: Arc<ConnConfig>,
    /// Datagrams may be waiting: set by the poll, cleared when a receive finds no more.
    pending: bool,
    /// New connections that wait for their handshakes.
    waiting: usize,
    /// Write interest is registered in the poll.
    write_armed: bool,
    /// The socket is read here. If not, another worker reads it and forwards our datagrams.
    reading: bool,
    /// Counts that the metrics have already.
    counts: EndpointCounts,
}

/// The socket by which workers pass datagrams to each other.
struct RegisteredWorkers {
    workers: Arc<Workers>,
    /// Space for one message. The kernel fills, and so the process uses, only as much as arrives.
    space: Box<[u8]>,
    /// Datagrams may be waiting.
    pending: bool,
}

impl RegisteredEndpoint {
    /// Adds what has been counted since the last call to the metrics.
    fn count(&mut self) {
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
    fn arm_write(&mut self, registry: &Registry, index: usize, armed: bool) {
        let before = self.interest();
        self.write_armed = armed;
        self.register(registry, index, before);
    }

    /// Leaves the socket to another worker, which forwards the datagrams of our connections.
    fn stop_reading(&mut self, registry: &Registry, index: usize) {
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

    fn receive(&mut self, now: Instant) -> ReceiveOutcome {
        // A failure of the socket is a loss of datagrams. The poll reports when it is readable again.
        let received = lock(&self.endpoint).receive(now);
        received.unwrap_or(ReceiveOutcome::All)
    }

    /// The next new connection.
    fn next_accepted(&mut self, now: Instant) -> Option<(Connection, ConnectionCount)> {
        let mut endpoint = lock(&self.endpoint);
        let service = &self.service;
        let admit = |client| ConnectionCount::admit(service, true, Some(client));
        let accepted = endpoint.next_accepted_if(now, admit);
        self.waiting = endpoint.waiting();
        accepted
    }
}
