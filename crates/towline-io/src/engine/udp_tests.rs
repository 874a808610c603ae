//! QUIC connections between two engines over UDP sockets of the loopback interface.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, ConnectionError};
use rustls::pki_types::CertificateDer;
use towline_proto::{Event, Limits, ProtocolPolicy};

use crate::client::{DialTimings, Established};
use crate::conn::config::ConnConfig;
use crate::conn::id::ConnId;
use crate::engine::{Engine, EngineConfig};
use crate::quic::tests::{End as QuicEnd, certificate, socket, trusting};
use crate::quic::{Endpoint, QuicLimits, client_config, server_config};

/// Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An engine and whether its connections have closed.
pub(crate) struct End {
    pub(crate) engine: Engine<()>,
    pub(crate) closed: bool,
    /// The rule in the last event of a connection.
    rule: &'static str,
}

impl End {
    pub(crate) fn new() -> Self {
        Self {
            engine: Engine::new(EngineConfig::default()).unwrap(),
            closed: false,
            rule: "",
        }
    }

    pub(crate) fn step(&mut self) {
        let engine = &mut self.engine;
        engine.turn_start(Some(Duration::from_millis(1))).unwrap();
        while let Some(id) = engine.next_ready() {
            let Some(conn) = engine.conn(id) else {
                continue;
            };
            while let Some(event) = conn.proto.next_event() {
                if let Event::Closed(error) = event {
                    self.closed = true;
                    self.rule = error.rule;
                }
            }
            engine.flush_and_rearm(id);
        }
        engine.turn_end();
    }

    /// The only connection.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.engine.connection_ids().first().copied()
    }

    pub(crate) fn is_connected(&mut self) -> bool {
        let conn = self.conn().and_then(|id| self.engine.conn(id));
        conn.is_some_and(|conn| conn.tls().is_some())
    }
}

struct Pair {
    server: End,
    client: End,
    addr: SocketAddr,
    /// Limits of the server.
    certificate: CertificateDer<'static>,
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let (certificate, tls) = certificate();
        let config = server_config(&tls, &QuicLimits::server()).unwrap();
        let endpoint = Endpoint::new(socket(), Some(config), QuicLimits::server());
        let addr = endpoint.local_addr().unwrap();
        let mut server = End::new();
        let service = http3_service(limits);
        server.engine.add_endpoint(endpoint, service).unwrap();
        Self {
            server,
            client: client(&certificate, addr),
            addr,
            certificate,
        }
    }

    fn step_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < until, "no progress");
            self.server.step();
            self.client.step();
        }
    }

    fn connected() -> Self {
        let mut pair = Self::new(Limits::server());
        pair.step_until(|pair| pair.server.is_connected() && pair.client.is_connected());
        pair
    }
}

fn http3_service(limits: Limits) -> Arc<ConnConfig> {
    Arc::new(ConnConfig {
        protocols: ProtocolPolicy::Http3,
        ..ConnConfig::plain(limits)
    })
}

/// A client that has sent its first packet.
fn client(certificate: &CertificateDer<'static>, addr: SocketAddr) -> End {
    let config = client_config(&trusting(certificate), &QuicLimits::client()).unwrap();
    let mut endpoint = Endpoint::new(socket(), None, QuicLimits::client());
    let conn = endpoint
        .connect(Instant::now(), config, addr, "localhost")
        .unwrap();
    let established = Established::from_quic(conn, endpoint, DialTimings::default());
    let mut client = End::new();
    let service = http3_service(Limits::client());
    let id = client
        .engine
        .add_established(established, &service)
        .unwrap();
    client.engine.flush_and_rearm(id);
    client
}

#[test]
fn both_ends_know_each_other_after_the_handshake() {
    let mut pair = Pair::connected();
    let id = pair.server.conn().unwrap();
    let conn = pair.server.engine.conn(id).unwrap();
    let info = conn.tls().unwrap();
    assert_eq!(
        (info.version, info.alpn.as_deref()),
        (0x0304, Some(&b"h3"[..]))
    );
    assert_eq!(info.server_name.as_deref(), Some("localhost"));
    assert!(conn.is_tls());
    let (remote, local) = (conn.remote_addr().clone(), conn.local_addr().clone());
    let id = pair.client.conn().unwrap();
    let conn = pair.client.engine.conn(id).unwrap();
    assert_eq!(*conn.remote_addr(), local);
    assert_eq!(local.inet(), Some(pair.addr));
    assert!(remote.inet().unwrap().ip().is_loopback());
}

#[test]
fn a_connection_that_one_end_closes_ends_at_the_other() {
    for server_closes in [true, false] {
        let mut pair = Pair::connected();
        let end = if server_closes {
            &mut pair.server
        } else {
            &mut pair.client
        };
        let id = end.conn().unwrap();
        end.engine.close(id);
        assert!(end.engine.is_empty());
        if server_closes {
            pair.step_until(|pair| pair.client.closed && pair.client.engine.is_empty());
        } else {
            pair.step_until(|pair| pair.server.closed && pair.server.engine.is_empty());
        }
    }
}

/// Without the close, each of them would wait for its handshake timeout.
#[test]
fn a_client_learns_of_a_violation_that_quic_finds() {
    let mut pair = Pair::new(Limits::server());
    let mut tls = trusting(&pair.certificate);
    tls.alpn_protocols = vec![b"hq-interop".to_vec()];
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut other = QuicEnd::new(Endpoint::new(socket(), None, QuicLimits::client()));
    let conn = other
        .endpoint
        .connect(Instant::now(), config, pair.addr, "localhost");
    other.conns.push(conn.unwrap());
    pair.step_until(|_| {
        other.step(Instant::now());
        other.loss().is_some()
    });
    // no_application_protocol (RFC 7301 3.2) as an error of QUIC (RFC 9001 4.8).
    assert!(
        matches!(other.loss(), Some(ConnectionError::ConnectionClosed(close)) if u64::from(close.error_code) == 0x178),
        "{:?}",
        other.loss()
    );
    assert!(pair.server.engine.len() <= 1);
}

#[test]
fn a_server_learns_of_a_violation_that_quic_finds() {
    let mut pair = Pair::new(Limits::server());
    let (stranger, _) = certificate();
    pair.client = client(&stranger, pair.addr);
    pair.step_until(|pair| pair.client.closed && pair.server.closed);
    assert_eq!(
        pair.server.rule,
        "closed by the peer's transport (RFC 9000 10.2)"
    );
    pair.step_until(|pair| pair.server.engine.is_empty() && pair.client.engine.is_empty());
}

#[test]
fn an_aborted_connection_ends_at_the_other_end() {
    let mut pair = Pair::connected();
    let id = pair.server.conn().unwrap();
    pair.server.engine.abort(id);
    pair.step_until(|pair| pair.client.closed);
}

#[test]
fn datagrams_that_are_not_quic_are_ignored() {
    let mut pair = Pair::connected();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [1, 7, 20, 21, 22, 40, 100, 1199, 1200, 1500, 9000] {
        for first in [0_u8, 0x40, 0x7f, 0xc0, 0xd0, 0xff] {
            let mut datagram = vec![0xa5; length];
            datagram[0] = first;
            stranger.send_to(&datagram, pair.addr).unwrap();
        }
    }
    for _ in 0..20 {
        pair.server.step();
        pair.client.step();
    }
    assert_eq!(pair.server.engine.len(), 1);
    assert!(!pair.client.closed && !pair.server.closed);
}

#[test]
fn a_timeout_of_one_connection_leaves_no_datagrams_of_others_unread() {
    let mut pair = Pair::connected();
    let first = pair.server.conn().unwrap();
    let mut other = client(&pair.certificate, pair.addr);
    pair.step_until(|pair| {
        other.step();
        other.is_connected() && pair.server.engine.len() == 2
    });
    for _ in 0..20 {
        pair.server.step();
        other.step();
    }
    let ids = pair.server.engine.connection_ids();
    let second = *ids.iter().find(|id| **id != first).unwrap();
    let conn = pair.server.engine.conn(first).unwrap();
    let due = conn.proto.deadline().unwrap();
    let engine = &mut pair.server.engine;
    engine.turn_start(Some(Duration::ZERO)).unwrap();
    let id = other.conn().unwrap();
    let conn = other.engine.conn(id).unwrap();
    conn.io.quic_mut().unwrap().conn.quic().ping();
    other.engine.flush_and_rearm(id);
    engine.expire(due);
    // In any order: on a busy machine a timer of QUIC may have made the first one ready before.
    assert!(engine.ready.contains(&second) && engine.ready.contains(&first));
}

#[test]
fn handshakes_wait_for_their_turns() {
    let mut pair = Pair::connected();
    let others: Vec<End> = (0..9)
        .map(|_| client(&pair.certificate, pair.addr))
        .collect();
    // All of their first packets are in the socket: loopback delivers at once.
    let mut counts = vec![pair.server.engine.len()];
    let until = Instant::now() + PATIENCE;
    while pair.server.engine.len() < 1 + others.len() {
        assert!(Instant::now() < until, "no progress");
        pair.server.step();
        counts.push(pair.server.engine.len());
    }
    let most = counts.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(most.is_some_and(|most| most <= 2), "{counts:?}");
    for mut other in others {
        pair.step_until(|_| {
            other.step();
            other.is_connected()
        });
    }
}
