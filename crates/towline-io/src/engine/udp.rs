//! UDP endpoints of an engine: datagrams make their QUIC connections ready.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::Interest;
use mio::unix::SourceFd;

use crate::conn::Conn;
use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::conn::quic_transport::lock;
use crate::engine::Engine;
use crate::engine::conn_table::Readiness;
use crate::engine::endpoint::{RegisteredEndpoint, RegisteredWorkers};
use crate::quic::{
    Connection, Endpoint, EndpointCounts, MAX_FORWARDED_BYTES, ReceiveOutcome, Workers,
};

/// Batches of datagrams received per endpoint and turn, of up to eight messages (`quic::Endpoint::receive`). The
/// connections concerned are then served before more is received, so that datagrams wait in the kernel and not here.
const BATCHES_PER_TURN: usize = 4;

/// Handshakes begun per endpoint and turn: between two of them, which take some 0.2 ms each, the other connections are
/// served.
const HANDSHAKES_PER_TURN: usize = 2;

/// Messages of other workers taken per turn.
const FORWARDED_PER_TURN: usize = 64;

impl<S: Default> Engine<S> {
    /// Adds a UDP socket for HTTP/3; its connections are accepted from the next turn on.
    pub fn add_endpoint(&mut self, endpoint: Endpoint, service: Arc<ConnConfig>) -> io::Result<()> {
        let fd = endpoint.as_raw_fd();
        let token = Source::Udp(self.endpoints.len()).token();
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        if let Some(meter) = &service.meter {
            meter.accepting.store(1, Relaxed);
        }
        self.endpoints.push(RegisteredEndpoint {
            endpoint: Arc::new(endpoint.into()),
            fd,
            service,
            pending: true,
            waiting: 0,
            write_armed: false,
            reading: true,
            counts: EndpointCounts::default(),
        });
        self.rearm();
        Ok(())
    }

    /// Shares the ports of the endpoints with other workers, from which datagrams come as well.
    pub fn set_workers(&mut self, workers: Arc<Workers>) -> io::Result<()> {
        let (fd, token) = (workers.as_raw_fd(), Source::Workers.token());
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        self.workers = Some(RegisteredWorkers {
            workers,
            space: vec![0; MAX_FORWARDED_BYTES].into_boxed_slice(),
            pending: true,
        });
        Ok(())
    }

    pub(crate) fn on_endpoint_event(&mut self, index: usize, readiness: Readiness) {
        let Some(registered) = self.endpoints.get_mut(index) else {
            return;
        };
        registered.pending |= readiness.readable && registered.reading;
        if readiness.writable && registered.write_armed {
            let unblocked = lock(&registered.endpoint).writable();
            registered.arm_write(self.poll.registry(), index, false);
            for tag in unblocked {
                let readiness = Readiness {
                    writable: true,
                    ..Readiness::default()
                };
                self.on_readiness(ConnId::from_u64(tag), readiness);
            }
        }
    }

    /// Whether datagrams, or new connections, may be waiting.
    pub(crate) fn has_datagrams(&self) -> bool {
        let is_due = |registered: &RegisteredEndpoint| registered.pending || registered.waiting > 0;
        self.endpoints.iter().any(is_due)
            || self.workers.as_ref().is_some_and(|workers| workers.pending)
    }

    /// Receives also without an event of the poll.
    pub(crate) fn receive_all_datagrams(&mut self, now: Instant) {
        for registered in &mut self.endpoints {
            registered.pending = registered.reading;
        }
        self.receive_datagrams(now);
    }

    /// Receives datagrams and adds the connections concerned to the ready list.
    pub(crate) fn receive_datagrams(&mut self, now: Instant) {
        let forwarded = self.receive_forwarded(now);
        for index in 0..self.endpoints.len() {
            let registered = &self.endpoints[index];
            if !registered.pending && registered.waiting == 0 && !forwarded {
                continue;
            }
            lock(&self.endpoints[index].endpoint).forget_closed(now);
            for _ in 0..BATCHES_PER_TURN {
                let registered = &mut self.endpoints[index];
                if !registered.pending {
                    break;
                }
                registered.pending = registered.receive(now) == ReceiveOutcome::More;
            }
            self.endpoints[index].count();
            for _ in 0..HANDSHAKES_PER_TURN {
                let Some(conn) = self.endpoints[index].next_accepted(now) else {
                    break;
                };
                self.add_quic(index, conn, now);
            }
            while let Some(id) = self.endpoints[index].next_ready() {
                let readiness = Readiness {
                    readable: true,
                    ..Readiness::default()
                };
                self.on_readiness(id, readiness);
            }
        }
    }

    /// Takes datagrams that other workers have received; returns whether there were any.
    fn receive_forwarded(&mut self, now: Instant) -> bool {
        let Some(registered) = self.workers.as_mut().filter(|workers| workers.pending) else {
            return false;
        };
        for count in 0..FORWARDED_PER_TURN {
            let RegisteredWorkers { workers, space, .. } = registered;
            let Some(length) = workers.receive(space) else {
                registered.pending = false;
                return count > 0;
            };
            if let Some((endpoint, message)) = workers.open(&space[..length])
                && let Some(to) = self.endpoints.get(endpoint)
            {
                lock(&to.endpoint).handle_datagrams(now, &message);
            }
        }
        true
    }

    fn add_quic(&mut self, index: usize, conn: Connection, now: Instant) {
        let registered = &self.endpoints[index];
        let id = self.table.next_id();
        let conn = Conn::from_quic(id, conn, &registered.endpoint, &registered.service, now);
        self.add(id, conn, now);
        self.enqueue(id);
    }

    /// Registers write interest in the endpoints whose sockets were full.
    pub(crate) fn arm_endpoints(&mut self) {
        for (index, registered) in self.endpoints.iter_mut().enumerate() {
            if lock(&registered.endpoint).is_blocked() {
                registered.arm_write(self.poll.registry(), index, true);
            }
        }
    }

    /// Refuses new connections of the endpoints, or leaves them to other workers. Open ones stay, on the same sockets.
    pub(crate) fn stop_accepting(&mut self) {
        for (index, registered) in self.endpoints.iter_mut().enumerate() {
            if let Some(meter) = &registered.service.meter {
                meter.accepting.store(0, Relaxed);
            }
            let has_successor = {
                let mut endpoint = lock(&registered.endpoint);
                endpoint.stop_accepting();
                endpoint.has_successor()
            };
            if has_successor {
                registered.stop_reading(self.poll.registry(), index);
            }
        }
    }
}
