//! Two workers that share a UDP port of the loopback interface, and a client behind a NAT that changes its port.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionError, Dir, TransportErrorCode};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Socket, Type};

use super::tests::{End, PATIENCE, certificate, read, socket, trusting};
use super::*;
use crate::serve::metrics::Slots;

/// A NAT with one client. Between it and the server, datagrams have the port of `outside`.
struct Nat {
    inside: std::net::UdpSocket,
    outside: std::net::UdpSocket,
    server: SocketAddr,
    client: Option<SocketAddr>,
}

impl Nat {
    fn new(server: SocketAddr) -> Self {
        let inside = Self::socket();
        Self {
            inside,
            outside: Self::socket(),
            server,
            client: None,
        }
    }

    fn socket() -> std::net::UdpSocket {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    fn rebind(&mut self) {
        self.outside = Self::socket();
    }

    fn step(&mut self) {
        let mut space = vec![0; 65536];
        while let Ok((length, client)) = self.inside.recv_from(&mut space) {
            self.client = Some(client);
            let _ = self.outside.send_to(&space[..length], self.server);
        }
        while let Ok(length) = self.outside.recv(&mut space) {
            if let Some(client) = self.client {
                self.inside.send_to(&space[..length], client).unwrap();
            }
        }
    }
}

struct Worker {
    end: End,
    workers: Arc<Workers>,
    space: Vec<u8>,
}

impl Worker {
    fn forget_connections(&mut self) {
        self.end.conns.clear();
        self.end.pending.clear();
    }

    fn step(&mut self, now: Instant) {
        while let Some(length) = self.workers.receive(&mut self.space) {
            if let Some((index, message)) = self.workers.open(&self.space[..length]) {
                assert_eq!(index, 0);
                self.end.endpoint.handle_datagrams(now, &message);
            }
        }
        self.end.step(now);
    }
}

struct Fixture {
    slots: Slots,
    workers: Vec<Worker>,
    client: End,
    nat: Nat,
    cert: CertificateDer<'static>,
}

impl Fixture {
    fn new(limits: &QuicLimits) -> Self {
        let slots = Slots::private(4);
        let secret = WorkerSecret::new([9; 32]);
        let (cert, tls) = certificate();
        let mut addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut workers = Vec::new();
        for index in 0..2 {
            let slot = slots.handle(index).unwrap();
            slot.begin(1, 1);
            slot.accepting.store(1, Relaxed);
            let socket = shared_port(addr);
            addr = socket.local_addr().unwrap();
            let this = Arc::new(Workers::new(&secret, slot).unwrap());
            let mut config = server_config(&tls, limits).unwrap();
            secret.share_tokens(&mut config);
            let endpoint = Endpoint::of_worker(socket, config, limits.clone(), &this, 0);
            let mut end = End::new(endpoint);
            end.echo = true;
            workers.push(Worker {
                end,
                workers: this,
                space: vec![0; MAX_FORWARDED_BYTES],
            });
        }
        let client = Endpoint::new(socket(), None, QuicLimits::client());
        let mut fixture = Self {
            slots,
            workers,
            client: End::new(client),
            nat: Nat::new(addr),
            cert,
        };
        fixture.connect();
        fixture
    }

    fn connected() -> Self {
        let mut fixture = Self::new(&QuicLimits::server());
        fixture.step_until(|fixture| fixture.client.is_connected());
        fixture
    }

    fn connect(&mut self) {
        let config = client_config(&trusting(&self.cert), &QuicLimits::client()).unwrap();
        let nat = self.nat.inside.local_addr().unwrap();
        let endpoint = &mut self.client.endpoint;
        let conn = endpoint.connect(Instant::now(), config, nat, "localhost");
        self.client.events.clear();
        self.client.conns = vec![conn.unwrap()];
    }

    fn step(&mut self) {
        let now = Instant::now();
        self.client.step(now);
        self.nat.step();
        for worker in &mut self.workers {
            worker.step(now);
        }
        self.nat.step();
        std::thread::sleep(Duration::from_micros(100));
    }

    fn step_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "not done in time");
            self.step();
        }
    }

    /// Sends bytes on a new stream, and waits until they have returned.
    fn echo(&mut self) {
        let quic = self.client.conns[0].quic();
        let id = quic.streams().open(Dir::Bi).unwrap();
        quic.send_stream(id).write(b"still here").unwrap();
        quic.send_stream(id).finish().unwrap();
        let mut back = Vec::new();
        self.step_until(|fixture| read(fixture.client.conns[0].quic(), id, &mut back));
        assert_eq!(back, b"still here");
    }

    /// Number of the worker that has the only connection.
    fn owner(&self) -> usize {
        let counts = self.workers.iter().map(|worker| worker.end.conns.len());
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts.iter().sum::<usize>(), 1);
        counts.iter().position(|count| *count == 1).unwrap()
    }

    fn stop_accepting(&mut self, index: usize) {
        self.workers[index].end.endpoint.stop_accepting();
        let slot = self.slots.slot(index).unwrap();
        slot.accepting.store(0, Relaxed);
    }

    /// Datagrams that the worker has forwarded and that it has taken.
    fn forwarded(&self, index: usize) -> (u64, u64) {
        let slot = self.slots.slot(index).unwrap();
        (
            slot.quic_forwarded.load(Relaxed),
            slot.quic_taken.load(Relaxed),
        )
    }
}

/// A socket of a port that several sockets share.
fn shared_port(addr: SocketAddr) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&addr.into()).unwrap();
    UdpSocket::inherited(OwnedFd::from(socket), 1 << 20).unwrap()
}

#[test]
fn a_connection_goes_on_when_its_client_arrives_at_another_worker() {
    let mut fixture = Fixture::connected();
    let owner = fixture.owner();
    let other = 1 - owner;
    // The kernel selects the worker by the ports, so half of them lead to the other.
    for _ in 0..64 {
        fixture.nat.rebind();
        fixture.echo();
        if fixture.forwarded(other).0 > 20 {
            break;
        }
    }
    let (forwarded, _) = fixture.forwarded(other);
    assert!(forwarded > 20, "the other worker was never reached");
    // The last ones, acknowledgements, may be on their way.
    fixture.step_until(|fixture| fixture.forwarded(owner).1 == fixture.forwarded(other).0);
    assert_eq!(fixture.owner(), owner);
}

#[test]
fn a_worker_that_is_ending_forwards_new_connections() {
    let mut fixture = Fixture::connected();
    let old = fixture.owner();
    fixture.stop_accepting(old);
    for _ in 0..64 {
        fixture.workers[1 - old].forget_connections();
        fixture.nat.rebind();
        fixture.connect();
        fixture.step_until(|fixture| fixture.client.is_connected());
        fixture.echo();
        assert_eq!(fixture.workers[1 - old].end.conns.len(), 1);
        if fixture.forwarded(old).0 > 0 {
            return;
        }
    }
    panic!("the old worker was never reached");
}

#[test]
fn a_retry_of_a_worker_that_is_ending_is_valid_at_another() {
    let limits = QuicLimits {
        retry_from_handshakes: 0,
        ..QuicLimits::server()
    };
    let mut fixture = Fixture::new(&limits);
    let retries = |worker: &Worker| worker.end.endpoint.counts().retries > 0;
    fixture.step_until(|fixture| fixture.workers.iter().any(retries));
    let old = fixture.workers.iter().position(retries).unwrap();
    // The client sends its token to an ID of the old worker.
    fixture.stop_accepting(old);
    fixture.step_until(|fixture| fixture.client.is_connected());
    assert_eq!(fixture.owner(), 1 - old);
    fixture.echo();
}

#[test]
fn a_new_connection_is_refused_when_no_worker_accepts_it() {
    let mut fixture = Fixture::new(&QuicLimits::server());
    fixture.stop_accepting(0);
    fixture.stop_accepting(1);
    fixture.step_until(|fixture| fixture.client.loss().is_some());
    assert!(matches!(
        fixture.client.loss(),
        Some(ConnectionError::ConnectionClosed(close))
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED
    ));
    assert_eq!((fixture.forwarded(0).0, fixture.forwarded(1).0), (0, 0));
}

#[test]
fn the_clients_of_a_killed_worker_get_a_reset_from_another() {
    let mut fixture = Fixture::connected();
    let killed = fixture.owner();
    let port = fixture.slots.slot(killed).unwrap().quic_port.load(Relaxed);
    fixture.workers.remove(killed);
    for is_noticed in [false, true] {
        // Until the supervisor notices, the slot still has the port.
        let port = if is_noticed { 0 } else { port };
        fixture
            .slots
            .slot(killed)
            .unwrap()
            .quic_port
            .store(port, Relaxed);
        fixture.client.conns[0].quic().ping();
        for _ in 0..20 {
            fixture.step();
        }
        assert_eq!(fixture.client.loss().is_some(), is_noticed);
    }
    assert_eq!(fixture.client.loss(), Some(&ConnectionError::Reset));
    fixture.connect();
    fixture.step_until(|fixture| fixture.client.is_connected());
}

#[test]
fn neighbouring_datagrams_of_different_workers_are_separated() {
    let fixture = Fixture::connected();
    let (one, two) = (&fixture.workers[0].workers, &fixture.workers[1].workers);
    let (mine, theirs) = (one.short_header(), two.short_header());
    let parts = [&mine, &theirs, &theirs, &mine, &theirs[..30].to_vec()];
    let bytes = parts.map(Vec::as_slice).concat();
    let mut rest = socket::Message {
        bytes: &bytes,
        datagram_bytes: mine.len(),
        remote: fixture.nat.server,
        local_ip: None,
        ecn: None,
        origin: socket::Origin::Socket,
    };
    let runs = std::iter::from_fn(|| one.next_run(&mut rest));
    let runs: Vec<_> = runs
        .map(|(owner, run)| (owner == workers::Owner::This, run.bytes.len()))
        .collect();
    let length = mine.len();
    assert_eq!(
        runs,
        [
            (true, length),
            (false, 2 * length),
            (true, length),
            (false, 30)
        ]
    );
}

#[test]
fn a_worker_that_is_not_ready_forwards_what_arrives_at_its_sockets() {
    let mut fixture = Fixture::connected();
    let killed = fixture.owner();
    fixture.slots.slot(killed).unwrap().end();
    let worker = fixture.workers.remove(killed);
    let sockets = vec![worker.end.endpoint.duplicate_socket()];
    let secret = WorkerSecret::new([9; 32]);
    drop(worker);
    // The replacement has the same slot and the same socket.
    let slot = fixture.slots.handle(killed).unwrap();
    slot.begin(1, 1);
    let forwarder = Forwarder::start(sockets, &secret, slot).unwrap();
    fixture.client.conns[0].quic().ping();
    fixture.step_until(|fixture| fixture.client.loss().is_some());
    assert_eq!(fixture.client.loss(), Some(&ConnectionError::Reset));
    for _ in 0..64 {
        fixture.workers[0].forget_connections();
        fixture.nat.rebind();
        fixture.connect();
        fixture.step_until(|fixture| fixture.client.is_connected());
        fixture.echo();
    }
    assert!(fixture.forwarded(killed).0 > 20);
    assert_eq!(
        fixture.slots.slot(killed).unwrap().quic_port.load(Relaxed),
        0
    );
    drop(forwarder);
}
