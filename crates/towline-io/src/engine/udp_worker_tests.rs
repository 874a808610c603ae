//! Engines of two workers that have the same UDP socket, as before and after a reload.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rustls::pki_types::CertificateDer;
use towline_proto::{Limits, ProtocolPolicy};

use crate::client::{DialTimings, Established};
use crate::conn::config::ConnConfig;
use crate::engine::drain::Drain;
use crate::engine::udp_tests::{End, PATIENCE};
use crate::quic::tests::{certificate, socket, trusting};
use crate::quic::{
    Endpoint, QuicLimits, UdpSocket, WorkerSecret, Workers, client_config, server_config,
};
use crate::serve::metrics::{SlotHandle, Slots};
use crate::tls::TlsConfig;

struct Fixture {
    slots: Slots,
    socket: UdpSocket,
    addr: SocketAddr,
    cert: CertificateDer<'static>,
    tls: TlsConfig,
    ends: Vec<End>,
}

impl Fixture {
    fn new() -> Self {
        let (cert, tls) = certificate();
        let socket = socket();
        Self {
            slots: Slots::private(4),
            addr: socket.local_addr().unwrap(),
            socket,
            cert,
            tls,
            ends: Vec::new(),
        }
    }

    fn slot(&self, index: usize) -> SlotHandle {
        self.slots.handle(index).unwrap()
    }

    /// Starts the worker with this slot; returns its number among the ends.
    fn start_worker(&mut self, index: usize) -> usize {
        let slot = self.slot(index);
        slot.begin(1, 1);
        let secret = WorkerSecret::new([9; 32]);
        let workers = Arc::new(Workers::new(&secret, slot.clone()).unwrap());
        let mut config = server_config(&self.tls, &QuicLimits::server()).unwrap();
        secret.share_tokens(&mut config);
        // SAFETY: the descriptor is borrowed for the one call that duplicates it.
        let fd = unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) };
        let socket = UdpSocket::inherited(fd.try_clone_to_owned().unwrap(), 1 << 20).unwrap();
        let endpoint = Endpoint::of_worker(socket, config, QuicLimits::server(), &workers, 0);
        let mut end = End::new();
        end.engine.set_workers(workers).unwrap();
        let service = ConnConfig {
            protocols: ProtocolPolicy::Http3,
            meter: Some(slot),
            ..ConnConfig::plain(Limits::server())
        };
        end.engine
            .add_endpoint(endpoint, Arc::new(service))
            .unwrap();
        self.ends.push(end);
        self.ends.len() - 1
    }

    fn start_client(&mut self) -> usize {
        let config = client_config(&trusting(&self.cert), &QuicLimits::client()).unwrap();
        let mut endpoint = Endpoint::new(socket(), None, QuicLimits::client());
        let conn = endpoint.connect(Instant::now(), config, self.addr, "localhost");
        let established = Established::from_quic(conn.unwrap(), endpoint, DialTimings::default());
        let service = Arc::new(ConnConfig {
            protocols: ProtocolPolicy::Http3,
            ..ConnConfig::plain(Limits::client())
        });
        let mut end = End::new();
        let id = end.engine.add_established(established, &service).unwrap();
        end.engine.flush_and_rearm(id);
        self.ends.push(end);
        self.ends.len() - 1
    }

    fn step_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < until, "no progress");
            for end in &mut self.ends {
                end.step();
            }
        }
    }
}

#[test]
fn after_a_reload_the_old_worker_gets_its_datagrams_from_its_successor() {
    let mut fixture = Fixture::new();
    let old = fixture.start_worker(0);
    let client = fixture.start_client();
    fixture.step_until(|fixture| {
        fixture.ends[old].is_connected() && fixture.ends[client].is_connected()
    });
    let new = fixture.start_worker(1);
    fixture.ends[old].engine.stop_listening();
    fixture.ends[old].engine.drain(Drain::Graceful);
    assert_eq!(fixture.slot(0).accepting.load(Relaxed), 0);
    let later = fixture.start_client();
    fixture.step_until(|fixture| {
        fixture.ends[later].is_connected() && fixture.ends[new].is_connected()
    });
    assert_eq!(fixture.ends[new].engine.len(), 1);

    let id = fixture.ends[client].conn().unwrap();
    fixture.ends[client].engine.close(id);
    fixture.step_until(|fixture| fixture.ends[old].closed && fixture.ends[old].engine.is_empty());
    let (forwarded, taken) = (&fixture.slot(1).quic_forwarded, &fixture.slot(0).quic_taken);
    assert!(forwarded.load(Relaxed) > 0);
    assert_eq!(forwarded.load(Relaxed), taken.load(Relaxed));
    assert_eq!(fixture.slot(0).quic_forwarded.load(Relaxed), 0);
    assert!(!fixture.ends[later].closed && !fixture.ends[new].closed);
}

#[test]
fn a_worker_that_ends_without_a_successor_reads_its_socket() {
    let mut fixture = Fixture::new();
    let old = fixture.start_worker(0);
    let client = fixture.start_client();
    fixture.step_until(|fixture| {
        fixture.ends[old].is_connected() && fixture.ends[client].is_connected()
    });
    fixture.ends[old].engine.stop_listening();
    let id = fixture.ends[client].conn().unwrap();
    fixture.ends[client].engine.close(id);
    fixture.step_until(|fixture| fixture.ends[old].closed && fixture.ends[old].engine.is_empty());
    // There is nobody for a new connection.
    let refused = fixture.start_client();
    fixture.step_until(|fixture| fixture.ends[refused].closed);
}
