//! Dials over QUIC and their race with TCP, on loopback.

use std::net::{IpAddr, Ipv4Addr, UdpSocket as StdUdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use super::certs::*;
use super::*;
use crate::client::alt_svc::{Http3, Http3Policy};
use crate::client::route::Alternative;
use crate::conn::quic_transport::QuicTransport;
use crate::quic::{self, Connection, Endpoint, QuicLimits, UdpSocket};
use crate::tls::{ClientTls, ClientTlsSettings, Identity, TlsConfig};

/// A QUIC server that completes handshakes, until it is dropped.
struct QuicServer {
    addr: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl QuicServer {
    fn start(config: rustls::ServerConfig, addr: SocketAddr) -> Self {
        let limits = QuicLimits::server();
        let config = quic::server_config(&TlsConfig::from(Arc::new(config)), &limits).unwrap();
        let socket = UdpSocket::bind(addr, 1 << 20).unwrap();
        let mut endpoint = Endpoint::new(socket, Some(config), limits);
        let addr = endpoint.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut conns: Vec<Connection> = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let now = Instant::now();
                let _ = endpoint.receive(now);
                conns.extend(std::iter::from_fn(|| endpoint.next_accepted(now)));
                while endpoint.next_ready().is_some() {}
                conns.retain_mut(|conn| {
                    if conn.deadline().is_some_and(|at| at <= now) {
                        conn.handle_timeout(now);
                    }
                    endpoint.service(conn);
                    while conn.quic().poll().is_some() {}
                    conn.send(now, usize::MAX);
                    endpoint.service(conn)
                });
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            addr,
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for QuicServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A route to `tcp` with an alternative at `quic`.
fn over(tcp: SocketAddr, quic: SocketAddr, tls: Arc<ClientTls>, is_only: bool) -> Route {
    let mut route = Route::secure(&tcp.ip().to_string(), tcp.port(), tls);
    route.sni = Some("origin".into());
    route.alternative = Some(Box::new(Alternative {
        alt_used: None,
        host: quic.ip().to_string().into(),
        port: quic.port(),
        is_only,
        generation: 0,
    }));
    route
}

fn config() -> DialConfig {
    DialConfig {
        http3: Some(Arc::new(Http3::new(Http3Policy::Advertised))),
        connect_timeout: Some(MAX_WAIT),
        ..DialConfig::default()
    }
}

fn is_quic(established: &Established) -> bool {
    established.transport.quic().is_some()
}

fn is_broken(config: &DialConfig, route: &Route) -> bool {
    let http3 = config.http3.as_ref().unwrap();
    http3.is_broken(route, Instant::now())
}

/// A UDP socket that receives and never answers.
fn black_hole() -> (StdUdpSocket, SocketAddr) {
    let socket = StdUdpSocket::bind(LOOPBACK).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// A UDP port where nothing listens; the socket keeps others from it, and is connected elsewhere.
fn refusing() -> (StdUdpSocket, SocketAddr) {
    let (socket, addr) = black_hole();
    socket.connect(("127.0.0.1", 9)).unwrap();
    (socket, addr)
}

#[test]
fn quic_wins_where_it_works() {
    let authority = Authority::new("quic-wins");
    let server = authority.server(authority.sign(&params("origin")), false);
    let tcp = tls_server(server.clone());
    let quic = QuicServer::start(server, LOOPBACK);
    for client in CLIENTS {
        let config = config();
        let route = over(tcp, quic.addr, authority.client(), false);
        let established = dial(client, &route, &config).unwrap();
        assert!(is_quic(&established));
        assert_eq!(established.alpn.as_deref(), Some(&b"h3"[..]));
        assert_eq!(established.remote, PeerAddr::Inet(quic.addr));
        assert!(
            established
                .timings
                .quic
                .is_some_and(|spent| !spent.is_zero())
        );
        assert_eq!(established.timings.tls, None);
        assert!(!is_broken(&config, &route));
        let info = established.transport.tls_info().unwrap();
        assert_eq!((info.version, info.peer_certs.len()), (0x0304, 1));
    }
}

#[test]
fn tcp_wins_after_the_head_start_where_udp_is_black_holed() {
    let authority = Authority::new("quic-black-hole");
    let server = authority.server(authority.sign(&params("origin")), false);
    let tcp = tls_server(server);
    let (_socket, hole) = black_hole();
    for client in CLIENTS {
        let config = config();
        let route = over(tcp, hole, authority.client(), false);
        let start = Instant::now();
        let established = dial(client, &route, &config).unwrap();
        assert!(!is_quic(&established));
        assert!(start.elapsed() >= super::super::race::HEAD_START);
        assert!(is_broken(&config, &route));
        // QUIC is not tried again for a while.
        let dial = Dial::start(Arc::new(route.clone()), &Arc::new(config), Instant::now());
        assert!(dial.quic.is_none());
    }
}

#[test]
fn a_refused_udp_port_starts_tcp_at_once() {
    let authority = Authority::new("quic-refused");
    let server = authority.server(authority.sign(&params("origin")), false);
    let tcp = tls_server(server);
    let (_socket, closed) = refusing();
    for client in CLIENTS {
        let config = config();
        let route = over(tcp, closed, authority.client(), false);
        // A busy machine may take longer once.
        let is_fast = (0..20).any(|_| {
            let start = Instant::now();
            let established = dial(client, &route, &self::config()).unwrap();
            assert!(!is_quic(&established));
            start.elapsed() < super::super::race::HEAD_START
        });
        assert!(is_fast);
        dial(client, &route, &config).unwrap();
        assert!(is_broken(&config, &route));
    }
}

#[test]
fn without_tcp_the_error_of_quic_is_reported() {
    let authority = Authority::new("quic-only");
    let (_socket, hole) = black_hole();
    let (_other, closed) = refusing();
    let mut config = config();
    let error = refused(&over(LOOPBACK, closed, authority.client(), true), &config);
    assert_eq!(error.kind, DialErrorKind::Connect);
    assert_eq!(
        error.message,
        format!("cannot connect to {closed} over QUIC: Connection refused")
    );
    config.connect_timeout = Some(Duration::from_millis(50));
    let error = refused(&over(LOOPBACK, hole, authority.client(), true), &config);
    assert_eq!(error.kind, DialErrorKind::Timeout);
    assert_eq!(
        error.message,
        format!("no QUIC connection to {hole} within 0.05 s: no response from {hole} (UDP)")
    );
}

#[test]
fn where_nothing_works_the_error_of_tcp_is_reported_and_quic_is_not_blamed() {
    let authority = Authority::new("quic-nothing");
    let tcp = closed_port("127.0.0.1:0");
    let (_socket, closed) = refusing();
    let config = config();
    let route = over(tcp, closed, authority.client(), false);
    let error = refused(&route, &config);
    assert_eq!(
        error.message,
        format!("cannot connect to {tcp}: Connection refused")
    );
    assert!(!is_broken(&config, &route));
}

#[test]
fn certificates_are_verified_as_over_tcp() {
    let authority = Authority::new("quic-certificates");
    let quic = QuicServer::start(
        authority.server(authority.sign(&params("other")), false),
        LOOPBACK,
    );
    let config = config();
    let error = refused(
        &over(LOOPBACK, quic.addr, authority.client(), true),
        &config,
    );
    assert_eq!(error.kind, DialErrorKind::Tls, "{error:?}");
    assert!(error.message.contains("TLS failed: "), "{error:?}");
    let stranger = Authority::new("quic-stranger");
    let unknown = QuicServer::start(
        authority.server(authority.sign(&params("origin")), false),
        LOOPBACK,
    );
    let error = refused(
        &over(LOOPBACK, unknown.addr, stranger.client(), true),
        &config,
    );
    assert_eq!(error.kind, DialErrorKind::Tls, "{error:?}");
    let why = "TLS failed: the certificate is signed by an authority that is not trusted here";
    assert!(error.message.contains(why), "{error:?}");
}

#[test]
fn a_client_certificate_is_sent_over_quic() {
    let authority = Authority::new("quic-client-certificate");
    let server = authority.server(authority.sign(&params("origin")), true);
    let quic = QuicServer::start(server, LOOPBACK);
    let own = authority.sign(&params("client"));
    let (cert_file, key_file) = (
        authority.write("client.pem", &own.pem),
        authority.write("client.key", &own.key_pem),
    );
    let tls = ClientTls::new(ClientTlsSettings {
        identity: Some(Identity {
            cert_file,
            key_file: Some(key_file),
            key_password: None,
        }),
        ..authority.settings()
    });
    let route = over(LOOPBACK, quic.addr, Arc::new(tls), true);
    assert!(is_quic(&dial(Client::Async, &route, &config()).unwrap()));
}

#[test]
fn a_server_without_http3_is_named() {
    let authority = Authority::new("quic-alpn");
    let mut server = authority.server(authority.sign(&params("origin")), false);
    server.alpn_protocols = vec![b"hq-interop".to_vec()];
    let limits = QuicLimits::server();
    let crypto = quinn_proto::crypto::rustls::QuicServerConfig::try_from(Arc::new(server)).unwrap();
    let config = quinn_proto::ServerConfig::with_crypto(Arc::new(crypto));
    let socket = UdpSocket::bind(LOOPBACK, 1 << 20).unwrap();
    let mut endpoint = Endpoint::new(socket, Some(config), limits);
    let addr = endpoint.local_addr().unwrap();
    let server = thread::spawn(move || {
        let start = Instant::now();
        let mut conns: Vec<Connection> = Vec::new();
        while start.elapsed() < Duration::from_secs(2) {
            let now = Instant::now();
            let _ = endpoint.receive(now);
            conns.extend(std::iter::from_fn(|| endpoint.next_accepted(now)));
            for conn in &mut conns {
                endpoint.service(conn);
                conn.send(now, usize::MAX);
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let error = refused(
        &over(LOOPBACK, addr, authority.client(), true),
        &self::config(),
    );
    assert!(
        error
            .message
            .contains("does not speak HTTP/3 (it did not choose h3 by ALPN, RFC 9114 3.1)"),
        "{error:?}"
    );
    server.join().unwrap();
}

#[test]
fn version_negotiation_without_a_common_version_fails_at_once() {
    let authority = Authority::new("quic-version");
    let (socket, addr) = black_hole();
    let server = thread::spawn(move || {
        let mut datagram = [0; 2048];
        let (length, from) = socket.recv_from(&mut datagram).unwrap();
        assert!(length >= 1200);
        // Version negotiation (RFC 9000 17.2.1): the connection IDs exchanged, and a version that nobody has.
        let destination = 6 + usize::from(datagram[5]);
        let source = destination + 1 + usize::from(datagram[destination]);
        let mut answer = vec![0x80, 0, 0, 0, 0];
        answer.extend_from_slice(&datagram[destination..source]);
        answer.extend_from_slice(&datagram[5..destination]);
        answer.extend_from_slice(&[0x1a, 0x2a, 0x3a, 0x4a]);
        socket.send_to(&answer, from).unwrap();
    });
    let error = refused(&over(LOOPBACK, addr, authority.client(), true), &config());
    assert!(
        error.message.contains("no version of QUIC in common"),
        "{error:?}"
    );
    server.join().unwrap();
}

#[test]
fn sessions_are_resumed_with_tickets_of_quic() {
    let authority = Authority::new("quic-resumption");
    let names = (0..200).map(|number| format!("name-{number}.example"));
    let names = std::iter::once("origin".to_owned())
        .chain(names)
        .collect::<Vec<_>>();
    let params = rcgen::CertificateParams::new(names).unwrap();
    let quic = QuicServer::start(authority.server(authority.sign(&params), false), LOOPBACK);
    let (tls, config) = (authority.client(), Arc::new(config()));
    let handshake_bytes = || {
        let route = Arc::new(over(LOOPBACK, quic.addr, Arc::clone(&tls), true));
        let dial = Dial::start(route, &config, Instant::now());
        let mut established = drive_by_poll(dial).unwrap();
        let transport = established.transport.quic_mut().unwrap();
        let bytes = transport.conn.quic().stats().udp_rx.bytes;
        // The tickets follow the handshake.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            transport.receive_datagrams(Instant::now());
            transport.service(Instant::now());
            transport.send(Instant::now(), usize::MAX);
            thread::sleep(Duration::from_millis(5));
        }
        bytes
    };
    // A resumed handshake has no certificate, which is some kilobytes long here.
    let full = handshake_bytes();
    assert!(full > 4000, "{full}");
    let is_resumed = (0..20).any(|_| handshake_bytes() < full - 2000);
    assert!(is_resumed);
}

/// Runs an established connection until `is_done`.
fn drive(established: &mut Established, mut is_done: impl FnMut(&mut QuicTransport) -> bool) {
    let transport = established.transport.quic_mut().unwrap();
    let start = Instant::now();
    while !is_done(transport) {
        assert!(start.elapsed() < MAX_WAIT, "nothing happens");
        transport.receive_datagrams(Instant::now());
        transport.service(Instant::now());
        while transport.conn.quic().poll().is_some() {}
        transport.send(Instant::now(), usize::MAX);
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_connection_moves_to_a_new_socket() {
    let authority = Authority::new("quic-move");
    let server = authority.server(authority.sign(&params("origin")), false);
    let quic = QuicServer::start(server, LOOPBACK);
    let route = over(LOOPBACK, quic.addr, authority.client(), true);
    let mut established = dial(Client::Blocking, &route, &config()).unwrap();
    // Not before the handshake is confirmed (RFC 9000 9).
    drive(&mut established, QuicTransport::is_confirmed);
    let (fd, before) = (
        established.transport.fd(),
        established.transport.local_addr(),
    );
    established
        .transport
        .quic_mut()
        .unwrap()
        .reconnect()
        .unwrap();
    assert!(established.transport.quic_mut().unwrap().take_reconnected());
    assert_eq!(established.transport.fd(), fd);
    assert_ne!(established.transport.local_addr(), before);
    // The server validates the new path (RFC 9000 8.2).
    drive(&mut established, |quic| {
        quic.conn.quic().stats().frame_rx.path_challenge > 0
    });
}

#[test]
fn a_server_that_has_died_is_noticed() {
    let authority = Authority::new("quic-dead");
    let server = authority.server(authority.sign(&params("origin")), false);
    let quic = QuicServer::start(server, LOOPBACK);
    let route = over(LOOPBACK, quic.addr, authority.client(), true);
    let mut established = dial(Client::Blocking, &route, &config()).unwrap();
    assert!(!established.transport.quic_mut().unwrap().is_refused());
    drop(quic);
    established.transport.quic_mut().unwrap().conn.quic().ping();
    drive(&mut established, QuicTransport::is_refused);
}
