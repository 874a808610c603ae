//! Early data between two engines over UDP sockets: accepted, refused and sent again, not answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{
    BodySize, Event, Field, Limits, ProtocolPolicy, RequestHead, ResponseHead, StreamId,
};

use super::udp_tests::PATIENCE;
use crate::client::{DialTimings, Established};
use crate::conn::config::ConnConfig;
use crate::conn::id::ConnId;
use crate::conn::transport::Transport;
use crate::engine::{Engine, EngineConfig};
use crate::quic::tests::{certificate, socket};
use crate::quic::{Endpoint, QuicLimits, client_config, server_config};
use crate::tls::{ClientTls, ClientTlsSettings, TlsConfig, Trust};

const NAME: &str = "localhost";
const NO_CONTENT: ResponseHead<'_> = ResponseHead {
    status: 204,
    reason: b"",
    fields: &[],
};

fn service(limits: Limits) -> Arc<ConnConfig> {
    Arc::new(ConnConfig {
        protocols: ProtocolPolicy::Http3,
        ..ConnConfig::plain(limits)
    })
}

fn engine() -> Engine<()> {
    Engine::new(EngineConfig::default()).unwrap()
}

/// A server that accepts early data and responds 204.
struct Server {
    engine: Engine<()>,
    addr: SocketAddr,
    /// Methods, and whether there was the field `early-data`.
    requests: Vec<(Vec<u8>, bool)>,
}

impl Server {
    fn new(tls: &TlsConfig) -> Self {
        let limits = QuicLimits {
            early_data: true,
            ..QuicLimits::server()
        };
        let config = server_config(tls, &limits).unwrap();
        let endpoint = Endpoint::new(socket(), Some(config), limits);
        let addr = endpoint.local_addr().unwrap();
        let mut engine = engine();
        let service = service(Limits::server());
        engine.add_endpoint(endpoint, service).unwrap();
        Self {
            engine,
            addr,
            requests: Vec::new(),
        }
    }

    fn step(&mut self) {
        let engine = &mut self.engine;
        engine.turn_start(Some(Duration::from_millis(1))).unwrap();
        while let Some(id) = engine.next_ready() {
            if let Some(conn) = engine.conn(id) {
                let mut begun = Vec::new();
                while let Some(event) = conn.proto.next_event() {
                    if let Event::Head { stream, head, .. } = event {
                        let is_early = head.field(b"early-data").is_some();
                        self.requests.push((head.method().to_vec(), is_early));
                        begun.push(stream);
                    }
                }
                for stream in begun {
                    let responded = conn.proto.respond(stream, &NO_CONTENT, BodySize::Empty);
                    responded.unwrap();
                }
            }
            engine.flush_and_rearm(id);
        }
        engine.turn_end();
    }
}

/// A connection of a client, and what has become of its requests.
struct Client {
    engine: Engine<()>,
    id: ConnId,
    has_early_data: bool,
    responses: Vec<StreamId>,
    /// Responses to requests that were sent early.
    early: Vec<StreamId>,
    /// Requests that may be sent again.
    unprocessed: Vec<StreamId>,
}

impl Client {
    fn new(tls: &Arc<ClientTls>, addr: SocketAddr) -> Self {
        let limits = QuicLimits {
            early_data: true,
            ..QuicLimits::client()
        };
        let config = client_config(&tls.quic_config().unwrap(), &limits).unwrap();
        let mut endpoint = Endpoint::new(socket(), None, limits);
        let now = Instant::now();
        let conn = endpoint.connect(now, config, addr, NAME).unwrap();
        let has_early_data = conn.has_early_data();
        let mut established = Established::from_quic(conn, endpoint, DialTimings::default());
        if let (true, Transport::Quic(quic)) = (has_early_data, &mut established.transport) {
            quic.begin_early_data(now, tls, NAME);
        }
        let mut engine = engine();
        let id = engine
            .add_established(established, &service(Limits::client()))
            .unwrap();
        engine.flush_and_rearm(id);
        Self {
            engine,
            id,
            has_early_data,
            responses: Vec::new(),
            early: Vec::new(),
            unprocessed: Vec::new(),
        }
    }

    fn request(&mut self, method: &[u8]) -> StreamId {
        let host = Field {
            name: b"host",
            value: NAME.as_bytes(),
        };
        let head = RequestHead {
            method,
            target: b"/",
            fields: &[host],
        };
        let conn = self.engine.conn(self.id).unwrap();
        let stream = conn.proto.request(&head, BodySize::Empty).unwrap();
        self.engine.flush_and_rearm(self.id);
        stream
    }

    fn step(&mut self) {
        let engine = &mut self.engine;
        engine.turn_start(Some(Duration::from_millis(1))).unwrap();
        while let Some(id) = engine.next_ready() {
            if let Some(conn) = engine.conn(id) {
                while let Some(event) = conn.proto.next_event() {
                    match event {
                        Event::Head { stream, .. } => {
                            self.responses.push(stream);
                            if conn.proto.was_sent_early(stream) {
                                self.early.push(stream);
                            }
                        }
                        Event::Failed(stream, error) if error.is_unprocessed() => {
                            self.unprocessed.push(stream);
                        }
                        _ => {}
                    }
                }
            }
            engine.flush_and_rearm(id);
        }
        engine.turn_end();
    }

    fn can_request(&mut self) -> bool {
        let conn = self.engine.conn(self.id).unwrap();
        conn.proto.stream_capacity() > 0
    }
}

fn until(server: &mut Server, client: &mut Client, mut done: impl FnMut(&Server, &Client) -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !done(server, client) {
        assert!(Instant::now() < limit, "no progress");
        server.step();
        client.step();
    }
}

fn trusting_any() -> Arc<ClientTls> {
    Arc::new(ClientTls::new(ClientTlsSettings {
        trust: Trust::Insecure,
        ..ClientTlsSettings::default()
    }))
}

/// A client that has tickets of `server`.
fn with_tickets(server: &mut Server) -> Arc<ClientTls> {
    let tls = trusting_any();
    let mut client = Client::new(&tls, server.addr);
    assert!(!client.has_early_data);
    while !client.can_request() {
        server.step();
        client.step();
    }
    let stream = client.request(b"GET");
    until(server, &mut client, |_, client| {
        client.responses.contains(&stream)
    });
    // The tickets come after the handshake, as the response does.
    let stream = client.request(b"GET");
    until(server, &mut client, |_, client| {
        client.responses.contains(&stream)
    });
    server.requests.clear();
    tls
}

#[test]
fn a_server_accepts_early_data_once_with_each_ticket() {
    let (_, tls) = certificate();
    let mut server = Server::new(&tls);
    let tickets = with_tickets(&mut server);
    let mut client = Client::new(&tickets, server.addr);
    assert!(client.has_early_data);
    let (get, post) = (client.request(b"GET"), client.request(b"POST"));
    until(&mut server, &mut client, |_, client| {
        client.responses.len() == 2
    });
    assert_eq!(client.early, [get]);
    assert!(client.responses.contains(&post));
    let mut requests = server.requests.clone();
    requests.sort();
    assert_eq!(
        requests,
        [(b"GET".to_vec(), true), (b"POST".to_vec(), false)]
    );
}

#[test]
fn early_data_that_another_server_refuses_is_sent_again() {
    let (_, tls) = certificate();
    let tickets = with_tickets(&mut Server::new(&tls));
    // The tickets of the first one are unknown here.
    let mut server = Server::new(&tls);
    let mut client = Client::new(&tickets, server.addr);
    assert!(client.has_early_data);
    let mut streams: Vec<_> = (0..20).map(|_| client.request(b"GET")).collect();
    // A call that is cancelled before the answer.
    let cancelled = client.request(b"GET");
    let conn = client.engine.conn(client.id).unwrap();
    conn.proto.stream(cancelled).unwrap().reset();
    client.engine.flush_and_rearm(client.id);
    streams.push(client.request(b"POST"));
    until(&mut server, &mut client, |_, client| {
        client.responses.len() == streams.len()
    });
    let later = client.request(b"GET");
    until(&mut server, &mut client, |_, client| {
        client.responses.contains(&later)
    });
    assert_eq!(client.early, []);
    assert!(server.requests.iter().all(|(_, is_early)| !is_early));
    let count = |method: &[u8]| {
        let of = server.requests.iter().filter(|(name, _)| name == method);
        of.count()
    };
    // The cancelled one may have been delivered.
    assert!((21..=22).contains(&count(b"GET")), "{}", count(b"GET"));
    assert_eq!(count(b"POST"), 1);
}

#[test]
fn early_data_without_an_answer_fails_in_time_and_is_not_repeated() {
    let (_, tls) = certificate();
    let tickets = with_tickets(&mut Server::new(&tls));
    let silent = socket();
    let addr = silent.local_addr().unwrap();
    let started = Instant::now();
    let mut client = Client::new(&tickets, addr);
    let streams = [client.request(b"GET"), client.request(b"POST")];
    while client.unprocessed.len() < 2 {
        assert!(started.elapsed() < PATIENCE, "no end");
        client.step();
    }
    assert!(started.elapsed() >= Duration::from_secs(1));
    client.unprocessed.sort();
    assert_eq!(client.unprocessed, streams);
    // The next one is in a race with TCP again.
    assert!(!Client::new(&tickets, addr).has_early_data);
}
