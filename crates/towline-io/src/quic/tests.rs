//! Two endpoints over UDP sockets of the loopback interface. The program of a server echoes its streams.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::EcnCodepoint::Ect0;
use quinn_proto::{ConnectionError, Dir, Event, StreamId, Transmit, VarInt};
use rcgen::{CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use crate::quic::socket::ReceiveBuffers;
use crate::tls::TlsConfig;

/// Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn certificate() -> (CertificateDer<'static>, TlsConfig) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let cert = params.self_signed(&key).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone()], key)
        .unwrap();
    (cert, TlsConfig::from(Arc::new(tls)))
}

pub(crate) fn trusting(cert: &CertificateDer<'static>) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(cert.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

pub(crate) fn socket() -> UdpSocket {
    UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1 << 20).unwrap()
}

impl Endpoint {
    pub(crate) fn next_accepted(&mut self, now: Instant) -> Option<Connection> {
        let (conn, ()) = self.next_accepted_if(now, |_| Some(()))?;
        Some(conn)
    }
}

/// An endpoint with its connections and the events that they have had.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    pub(crate) conns: Vec<Connection>,
    pub(crate) events: Vec<Event>,
    /// Reads streams and writes them back.
    pub(crate) echo: bool,
    /// Bytes read and not written yet, by stream.
    pub(crate) pending: Vec<(StreamId, Vec<u8>)>,
}

impl End {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            conns: Vec::new(),
            events: Vec::new(),
            echo: false,
            pending: Vec::new(),
        }
    }

    pub(crate) fn step(&mut self, now: Instant) {
        while self.endpoint.receive(now).unwrap() == ReceiveOutcome::More {}
        self.conns
            .extend(std::iter::from_fn(|| self.endpoint.next_accepted(now)));
        while self.endpoint.next_ready().is_some() {}
        let mut index = 0;
        while index < self.conns.len() {
            let conn = &mut self.conns[index];
            if conn.deadline().is_some_and(|at| at <= now) {
                conn.handle_timeout(now);
            }
            self.endpoint.service(conn);
            while let Some(event) = conn.quic().poll() {
                self.events.push(event);
            }
            if self.echo {
                echo(conn, &mut self.pending);
            }
            conn.send(now, usize::MAX);
            if self.endpoint.service(conn) {
                index += 1;
            } else {
                self.conns.swap_remove(index);
            }
        }
        self.endpoint.writable();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, Event::Connected))
    }

    pub(crate) fn loss(&self) -> Option<&ConnectionError> {
        self.events.iter().find_map(|event| match event {
            Event::ConnectionLost { reason } => Some(reason),
            _ => None,
        })
    }
}

fn echo(conn: &mut Connection, pending: &mut Vec<(StreamId, Vec<u8>)>) {
    let quic = conn.quic();
    while let Some(id) = quic.streams().accept(Dir::Bi) {
        pending.push((id, Vec::new()));
    }
    for (id, bytes) in pending {
        let ended = read(quic, *id, bytes);
        if let Ok(n) = quic.send_stream(*id).write(bytes) {
            bytes.drain(..n);
        }
        if ended && bytes.is_empty() {
            let _ = quic.send_stream(*id).finish();
        }
    }
}

/// Appends what can be read of a stream; returns whether it has ended.
pub(crate) fn read(quic: &mut quinn_proto::Connection, id: StreamId, bytes: &mut Vec<u8>) -> bool {
    let mut stream = quic.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else {
        return true;
    };
    let ended = loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let _ = chunks.finalize();
    ended
}

/// A client with one connection, and a server.
struct Pair {
    client: End,
    server: End,
    cert: CertificateDer<'static>,
}

impl Pair {
    fn new(limits: &QuicLimits) -> Self {
        let (cert, tls) = certificate();
        let config = server_config(&tls, limits).unwrap();
        let server = Endpoint::new(socket(), Some(config), limits.clone());
        let client = Endpoint::new(socket(), None, QuicLimits::client());
        let mut pair = Self {
            client: End::new(client),
            server: End::new(server),
            cert,
        };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        let config = client_config(&trusting(&self.cert), &QuicLimits::client()).unwrap();
        let remote = self.server.endpoint.local_addr().unwrap();
        let endpoint = &mut self.client.endpoint;
        let conn = endpoint.connect(Instant::now(), config, remote, "localhost");
        self.client.conns.push(conn.unwrap());
    }

    fn step(&mut self) {
        let now = Instant::now();
        self.client.step(now);
        self.server.step(now);
        std::thread::sleep(Duration::from_micros(100));
    }

    fn step_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "not done in time");
            self.step();
        }
    }

    fn connected(limits: &QuicLimits) -> Self {
        let mut pair = Self::new(limits);
        pair.step_until(|pair| pair.client.is_connected() && pair.server.is_connected());
        pair
    }

    fn quic(&mut self) -> &mut quinn_proto::Connection {
        self.client.conns[0].quic()
    }
}

#[test]
fn bytes_return_over_many_streams() {
    let mut pair = Pair::connected(&QuicLimits::server());
    pair.server.echo = true;
    let body: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let mut streams: Vec<(StreamId, usize, Vec<u8>)> = Vec::new();
    for _ in 0..4 {
        let id = pair.quic().streams().open(Dir::Bi).unwrap();
        streams.push((id, 0, Vec::new()));
    }
    pair.step_until(|pair| {
        let quic = pair.quic();
        let mut ended = true;
        for (id, written, back) in &mut streams {
            if *written < body.len() {
                *written += quic.send_stream(*id).write(&body[*written..]).unwrap_or(0);
                if *written == body.len() {
                    quic.send_stream(*id).finish().unwrap();
                }
            }
            ended &= read(quic, *id, back);
        }
        ended
    });
    for (_, _, back) in streams {
        assert!(back == body);
    }
}

#[test]
fn a_stream_that_is_not_read_holds_at_most_its_window() {
    let limits = QuicLimits::server();
    let mut pair = Pair::connected(&limits);
    let id = pair.quic().streams().open(Dir::Bi).unwrap();
    let window = limits.stream_window_bytes as usize;
    let (mut written, mut blocked) = (0, false);
    let block = vec![7; 64 * 1024];
    pair.step_until(|pair| {
        match pair.quic().send_stream(id).write(&block) {
            Ok(n) => written += n,
            Err(_) => blocked = true,
        }
        blocked
    });
    assert_eq!(written, window);
    for _ in 0..50 {
        pair.step();
    }
    assert!(pair.quic().send_stream(id).write(b"more").is_err());
}

#[test]
fn under_load_an_address_is_validated_before_there_is_a_connection() {
    let limits = QuicLimits {
        retry_from_handshakes: 0,
        ..QuicLimits::server()
    };
    let mut pair = Pair::new(&limits);
    let now = Instant::now();
    pair.client.step(now);
    // The first datagram has arrived, since the loopback interface delivers within the call.
    pair.server.step(now);
    assert!(pair.server.endpoint.is_empty());
    pair.step_until(|pair| pair.client.is_connected() && pair.server.is_connected());
    assert_eq!(pair.server.endpoint.len(), 1);
    pair.step_until(|pair| pair.server.endpoint.handshakes() == 0);
}

#[test]
fn handshakes_over_the_bound_are_refused() {
    let limits = QuicLimits {
        max_handshakes: 0,
        ..QuicLimits::server()
    };
    let mut pair = Pair::new(&limits);
    pair.step_until(|pair| pair.client.loss().is_some());
    assert!(matches!(
        pair.client.loss(),
        Some(ConnectionError::ConnectionClosed(close))
            if close.error_code == quinn_proto::TransportErrorCode::CONNECTION_REFUSED
    ));
    assert!(pair.server.endpoint.is_empty());
}

#[test]
fn an_endpoint_that_has_stopped_accepting_serves_its_connections() {
    let mut pair = Pair::connected(&QuicLimits::server());
    pair.server.echo = true;
    pair.server.endpoint.stop_accepting();
    pair.connect();
    pair.step_until(|pair| pair.client.loss().is_some());
    let id = pair.quic().streams().open(Dir::Bi).unwrap();
    pair.quic().send_stream(id).write(b"still here").unwrap();
    let mut back = Vec::new();
    pair.step_until(|pair| {
        read(pair.quic(), id, &mut back);
        back == b"still here"
    });
}

#[test]
fn another_application_protocol_is_refused() {
    let mut pair = Pair::new(&QuicLimits::server());
    let mut tls = trusting(&pair.cert);
    tls.alpn_protocols = vec![b"hq-interop".to_vec()];
    let crypto = quinn_proto::crypto::rustls::QuicClientConfig::try_from(Arc::new(tls)).unwrap();
    let config = quinn_proto::ClientConfig::new(Arc::new(crypto));
    let remote = pair.server.endpoint.local_addr().unwrap();
    let endpoint = &mut pair.client.endpoint;
    let conn = endpoint.connect(Instant::now(), config, remote, "localhost");
    pair.client.conns = vec![conn.unwrap()];
    pair.step_until(|pair| pair.client.loss().is_some());
    assert!(!pair.client.is_connected());
}

#[test]
fn a_closed_connection_is_forgotten_on_both_sides() {
    let mut pair = Pair::connected(&QuicLimits::server());
    let now = Instant::now();
    pair.quic()
        .close(now, VarInt::from_u32(0x100), Bytes::from_static(b"bye"));
    pair.step_until(|pair| pair.server.loss().is_some());
    assert!(matches!(
        pair.server.loss(),
        Some(ConnectionError::ApplicationClosed(close)) if close.error_code == VarInt::from_u32(0x100)
    ));
    pair.step_until(|pair| pair.client.endpoint.is_empty() && pair.server.endpoint.is_empty());
}

#[test]
fn a_closed_connection_answers_late_datagrams_less_and_less_often() {
    let mut pair = Pair::connected(&QuicLimits::server());
    pair.step_until(|pair| !pair.server.conns.is_empty());
    let now = Instant::now();
    let mut conn = pair.server.conns.remove(0);
    conn.quic()
        .close(now, VarInt::from_u32(0x100), Bytes::new());
    pair.server.endpoint.retire(conn, now);
    let client = &mut pair.client;
    // Datagrams that were on their way.
    while client.endpoint.receive(now).unwrap() == ReceiveOutcome::More {}
    client.endpoint.service(&mut client.conns[0]);
    let before = pair.client.conns[0].counts().received_datagrams;
    for _ in 0..20 {
        pair.quic().ping();
        pair.client.conns[0].send(now, usize::MAX);
        pair.server.endpoint.receive(now).unwrap();
    }
    while pair.client.endpoint.receive(now).unwrap() == ReceiveOutcome::More {}
    let client = &mut pair.client;
    client.endpoint.service(&mut client.conns[0]);
    // The first of them, the second, the fourth, the eighth, the sixteenth.
    assert_eq!(client.conns[0].counts().received_datagrams - before, 5);
}

#[test]
fn a_silent_peer_is_forgotten_after_the_idle_timeout() {
    let limits = QuicLimits::server();
    let mut pair = Pair::connected(&limits);
    let later = Instant::now() + limits.idle_timeout + Duration::from_secs(5);
    for _ in 0..20 {
        pair.server.step(later);
    }
    assert!(matches!(
        pair.server.loss(),
        Some(ConnectionError::TimedOut)
    ));
    assert!(pair.server.endpoint.is_empty());
}

#[test]
fn a_removed_connection_leaves_nothing() {
    let mut pair = Pair::connected(&QuicLimits::server());
    let conn = pair.server.conns.pop().unwrap();
    pair.server.endpoint.remove(conn.key());
    assert!(pair.server.endpoint.is_empty());
    // Packets of the closed connection concern nobody, whether a reset arrives or not.
    pair.quic().ping();
    for _ in 0..20 {
        pair.step();
    }
    assert!(pair.server.endpoint.is_empty());
}

#[test]
fn datagrams_for_a_connection_that_is_not_serviced_are_bounded() {
    let limits = QuicLimits {
        max_inbox: 2,
        ..QuicLimits::server()
    };
    let mut pair = Pair::connected(&limits);
    let conn = pair.server.conns.pop().unwrap();
    let id = pair.quic().streams().open(Dir::Bi).unwrap();
    for _ in 0..20 {
        let _ = pair.quic().send_stream(id).write(&[1; 4096]);
        pair.quic().ping();
        pair.step();
    }
    assert_eq!(pair.server.endpoint.inbox_len(conn.key()), 2);
    // Dropped datagrams are sent again.
    pair.server.conns.push(conn);
    pair.server.echo = true;
    let mut back = Vec::new();
    pair.step_until(|pair| {
        read(pair.quic(), id, &mut back);
        back.len() >= 4096
    });
}

#[test]
fn without_the_cipher_suite_of_initial_packets_the_error_names_it() {
    let mut provider = rustls::crypto::ring::default_provider();
    let initial = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider
        .cipher_suites
        .retain(|suite| suite.suite() != initial);
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let error = client_config(&tls, &QuicLimits::client()).unwrap_err();
    assert!(error.to_string().contains("TLS_AES_128_GCM_SHA256"));
}

#[test]
fn datagrams_keep_their_ecn_mark_joined_or_alone() {
    for host in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
        let Ok(receiver) = UdpSocket::bind(host.parse().unwrap(), 1 << 20) else {
            continue; // no IPv6 here
        };
        let mut to = receiver.local_addr().unwrap();
        let is_any = to.ip().is_unspecified();
        if is_any {
            to.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let bound = UdpSocket::bind(SocketAddr::new(to.ip(), 0), 1 << 20).unwrap();
        let connected = UdpSocket::connect(to, None, 1 << 20).unwrap();
        for sender in [&bound, &connected] {
            for (ecn, datagrams) in [(Some(Ect0), 1), (None, 1), (Some(Ect0), 3)] {
                if datagrams > sender.batch() {
                    continue; // no GSO here
                }
                let contents = vec![7; 1000 * datagrams];
                let transmit = Transmit {
                    destination: to,
                    ecn,
                    size: contents.len(),
                    segment_size: (datagrams > 1).then_some(1000),
                    src_ip: None,
                };
                assert!(sender.send(&transmit, &contents));
                let mut buffers = ReceiveBuffers::new();
                let count = receiver.receive(&mut buffers).unwrap();
                let messages = || (0..count).map(|index| buffers.message(index));
                let bytes: usize = messages().map(|message| message.bytes.len()).sum();
                assert_eq!(bytes, contents.len());
                for message in messages() {
                    assert_eq!(message.ecn, ecn, "{host}, {datagrams} datagrams");
                    assert_eq!(message.remote.port(), sender.local_addr().unwrap().port());
                    assert!(!is_any || message.local_ip.is_some());
                }
            }
        }
    }
}
