//! QUIC in an engine: datagrams make their connections ready, and new connections are accepted.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::conn::config::ConnConfig;
use crate::engine::Engine;
use crate::engine::conn_table::Readiness;
use crate::quic::{Endpoint, Workers};

/// Handshakes begun per endpoint and turn: between two of them, which take some 0.2 ms each, the other connections are
/// served.
const HANDSHAKES_PER_TURN: usize = 2;

impl<S: Default> Engine<S> {
    /// Adds a UDP socket for HTTP/3; its connections are accepted from the next turn on.
    pub fn add_endpoint(&mut self, endpoint: Endpoint, service: Arc<ConnConfig>) -> io::Result<()> {
        let registry = self.poller.registry();
        self.endpoints.add(endpoint, service, registry)?;
        self.rearm();
        Ok(())
    }

    /// Shares the ports of the endpoints with other workers, from which datagrams come as well.
    pub fn set_workers(&mut self, workers: Arc<Workers>) -> io::Result<()> {
        self.endpoints.set_workers(workers, self.poller.registry())
    }

    pub(crate) fn on_endpoint_event(&mut self, index: usize, readiness: Readiness) {
        let registry = self.poller.registry();
        for id in self.endpoints.on_ready(index, readiness, registry) {
            let readiness = Readiness {
                writable: true,
                ..Readiness::default()
            };
            self.on_readiness(id, readiness);
        }
    }

    /// Receives datagrams and adds the connections concerned to the ready list.
    pub(crate) fn receive_datagrams(&mut self, now: Instant) {
        let has_forwarded = self.endpoints.receive_forwarded(now);
        for index in 0..self.endpoints.len() {
            if !self.endpoints.receive(index, has_forwarded, now) {
                continue;
            }
            for _ in 0..HANDSHAKES_PER_TURN {
                let id = self.table.next_id();
                let Some(conn) = self.endpoints.next_conn(index, id, now) else {
                    break;
                };
                self.add(id, conn, now);
                self.enqueue(id);
            }
            while let Some(id) = self.endpoints.next_ready(index) {
                let readiness = Readiness {
                    readable: true,
                    ..Readiness::default()
                };
                self.on_readiness(id, readiness);
            }
        }
    }
}
