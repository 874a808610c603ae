//! Two ends on the network, serviced as the engine does it, on a virtual clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{BufferPool, Limits, ProtocolPolicy};

use super::network::{Network, Path};
use super::program::{Program, Role, Spec};
use crate::client::{DialTimings, Established};
use crate::conn::config::ConnConfig;
use crate::conn::flush::FlushOutcome;
use crate::conn::id::ConnId;
use crate::conn::quic_transport::{QuicTransport, SharedEndpoint, lock};
use crate::conn::transport::Transport;
use crate::conn::{Conn, ConnectionCount, Output};

use crate::quic::memory_socket::MemorySocket;
use crate::quic::tests::{certificate, trusting};
use crate::quic::{
    Endpoint, QuicLimits, ReceiveOutcome, UdpSocket, client_config, server_config, transport,
};

/// Bytes that one flush may write: as in the engine.
const FLUSH_BYTES: usize = 256 * 1024;
/// Services of a connection without a pause; more means that it does not come to rest.
const MAX_SERVICES: usize = 10_000;
/// Steps of the clock in one simulation.
const MAX_STEPS: usize = 3_000_000;

/// Everything that a simulation depends on.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) path: Path,
    pub(super) specs: Vec<Spec>,
    pub(super) server_limits: Limits,
    pub(super) server_quic: QuicLimits,
    pub(super) client_quic: QuicLimits,
    /// Datagrams that the sockets hold until the network takes them.
    pub(super) send_buffer: usize,
    /// The `ClientHello` needs two datagrams, as that of browsers.
    pub(super) has_long_hello: bool,
}

impl Setup {
    pub(super) fn new(seed: u64, path: Path, specs: Vec<Spec>) -> Self {
        Self {
            seed,
            path,
            specs,
            server_limits: Limits::server(),
            server_quic: QuicLimits::server(),
            client_quic: QuicLimits::client(),
            send_buffer: 10_000,
            has_long_hello: false,
        }
    }
}

/// A change of the network at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// A new port of the client, or a new address that the client knows.
    Rebind,
    Migrate,
    Path(Path),
}

/// A connection and its program.
pub(super) struct Running {
    pub(super) conn: Conn<()>,
    pub(super) program: Program,
}

pub(super) struct Simulation {
    pub(super) now: Instant,
    start: Instant,
    pub(super) network: Network,
    buffers: BufferPool,
    endpoint: SharedEndpoint,
    server_config: Arc<ConnConfig>,
    specs: Arc<Vec<Spec>>,
    seed: u64,
    pub(super) client: Option<Running>,
    pub(super) servers: Vec<Running>,
    /// Programs of connections that are over.
    pub(super) ended_client: Option<Program>,
    pub(super) ended_servers: Vec<Program>,
    /// In the order of their times.
    pub(super) changes: Vec<(Duration, Change)>,
    steps: usize,
}

impl Simulation {
    pub(super) fn new(setup: Setup) -> Self {
        let now = Instant::now();
        let specs = Arc::new(setup.specs);
        let socket = |host: u8, port| {
            let addr = SocketAddr::from(([10, 0, 0, host], port));
            MemorySocket::new(addr, setup.send_buffer)
        };
        let (of_client, of_server) = (socket(1, 4433), socket(2, 443));
        let remote = of_server.addr();
        let network = Network::new(of_client.clone(), of_server.clone(), setup.path, setup.seed);
        let (cert, tls) = certificate();
        let config = server_config(&tls, &setup.server_quic).unwrap();
        let of_server = UdpSocket::in_memory(of_server);
        let endpoint = Endpoint::new(of_server, Some(config), setup.server_quic);

        let config = if setup.has_long_hello {
            with_long_hello(trusting(&cert), &setup.client_quic)
        } else {
            client_config(&trusting(&cert), &setup.client_quic).unwrap()
        };
        let of_client = UdpSocket::in_memory(of_client);
        let mut dialed = Endpoint::new(of_client, None, setup.client_quic);
        let conn = dialed.connect(now, config, remote, "localhost").unwrap();
        let established = Established::from_quic(conn, dialed, DialTimings::default());
        let service = config_of(Limits::client());
        let conn = Conn::from_dial(ConnId::from_u64(0), established, &service, now);
        let program = Program::new(Role::Client, &specs, setup.seed ^ 1);
        let mut sim = Self {
            now,
            start: now,
            network,
            buffers: BufferPool::new(32 * 1024, 64),
            endpoint: Arc::new(endpoint.into()),
            server_config: config_of(setup.server_limits),
            specs,
            seed: setup.seed,
            client: Some(Running { conn, program }),
            servers: Vec::new(),
            ended_client: None,
            ended_servers: Vec::new(),
            changes: Vec::new(),
            steps: 0,
        };
        sim.service_client(false);
        sim.pass_on();
        sim
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now.duration_since(self.start)
    }

    /// Whether the client knows that the handshake is complete at both ends.
    pub(super) fn is_confirmed(&mut self) -> bool {
        let client = self.client.as_mut();
        let quic = client.and_then(|line| line.conn.io.quic_mut());
        quic.is_some_and(QuicTransport::is_confirmed)
    }

    pub(super) fn endpoint_len(&self) -> usize {
        lock(&self.endpoint).len()
    }

    /// The program of the server's first connection.
    pub(super) fn server_program(&self) -> Option<&Program> {
        let ended = self.ended_servers.first();
        ended.or_else(|| self.servers.first().map(|line| &line.program))
    }

    pub(super) fn client_program(&self) -> &Program {
        let ended = self.ended_client.as_ref();
        ended.unwrap_or_else(|| &self.client.as_ref().expect("not ended").program)
    }

    /// Runs until all exchanges have ended at both ends (QUIC discards what is unread when the connection is closed),
    /// closes the connection, and runs until it is over at both ends.
    pub(super) fn run(&mut self, longest: Duration) {
        self.run_until(longest, |sim| {
            let client = sim.client.as_ref();
            let mut servers = sim.servers.iter();
            client.is_none_or(|line| line.program.is_done())
                && servers.all(|line| line.program.is_idle())
        });
        if let Some(line) = &mut self.client {
            line.conn.proto.close();
            self.service_client(false);
            self.pass_on();
        }
        self.run_until(longest + Duration::from_secs(120), |sim| {
            sim.client.is_none() && sim.servers.is_empty()
        });
    }

    /// Closes the server's end in order.
    pub(super) fn close_server(&mut self) {
        for line in &mut self.servers {
            line.conn.proto.drain(self.now);
        }
        self.service_servers(false);
        self.pass_on();
    }

    pub(super) fn forget_closed(&mut self) {
        lock(&self.endpoint).forget_closed(self.now);
    }

    pub(super) fn run_until(&mut self, longest: Duration, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.steps += 1;
            let is_stuck = self.steps > MAX_STEPS || self.elapsed() > longest;
            assert!(!is_stuck, "not done after {}", self.describe());
            self.step();
        }
    }

    fn describe(&self) -> String {
        let of = |program: &Program| program.unfinished().join("\n  ");
        let server: Vec<String> = self.servers.iter().map(|line| of(&line.program)).collect();
        let client = self.client.as_ref().map(|line| of(&line.program));
        let ended = self.ended_client.iter().chain(&self.ended_servers);
        let ended: Vec<_> = ended.map(|program| program.closed).collect();
        format!(
            "{:?}, {} steps; client:\n  {}\nserver:\n  {}\nended: {ended:?}",
            self.elapsed(),
            self.steps,
            client.unwrap_or_default(),
            server.join("\n  "),
        )
    }

    /// Advances the clock to the next thing that happens.
    pub(super) fn step(&mut self) {
        let change = self.changes.first().map(|(at, _)| self.start + *at);
        let client = self.client.as_mut().and_then(|line| line.conn.deadline());
        let servers = self.servers.iter_mut().map(|line| line.conn.deadline());
        let next = servers
            .chain([change, client, self.network.next_arrival()])
            .flatten()
            .min();
        let Some(next) = next else {
            panic!("nothing happens any more after {}", self.describe());
        };
        self.now = self.now.max(next);
        if change.is_some_and(|at| at <= self.now) {
            let (_, change) = self.changes.remove(0);
            self.apply(change);
        }
        let [at_server, at_client] = self.network.deliver(self.now);
        self.service_servers(at_server);
        self.service_client(at_client);
        self.pass_on();
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Rebind => self.network.rebind(true),
            Change::Migrate => {
                self.network.rebind(false);
                if let Some(line) = &mut self.client
                    && let Transport::Quic(quic) = &mut line.conn.io
                {
                    quic.conn.quic().local_address_changed();
                    self.service_client(false);
                }
            }
            Change::Path(path) => self.network.path = path,
        }
    }

    /// Gives what was sent to the network, until the sockets have room for everything.
    fn pass_on(&mut self) {
        loop {
            self.network.collect(self.now);
            lock(&self.endpoint).writable();
            let mut was_blocked = false;
            let client = self.client.iter_mut();
            for line in client.chain(&mut self.servers) {
                was_blocked |= line.conn.output == Output::Blocked;
                line.conn.output = match line.conn.output {
                    Output::Blocked => Output::Open,
                    output => output,
                };
            }
            if !was_blocked {
                return;
            }
            self.service_servers(false);
            self.service_client(false);
        }
    }

    fn service_client(&mut self, has_arrived: bool) {
        if let Some(mut line) = self.client.take() {
            line.conn.input.readable |= has_arrived;
            match service(line, &mut self.buffers, self.now) {
                Ok(line) => self.client = Some(line),
                Err(program) => self.ended_client = Some(program),
            }
        }
    }

    fn service_servers(&mut self, has_arrived: bool) {
        if has_arrived {
            self.receive();
        }
        for line in std::mem::take(&mut self.servers) {
            match service(line, &mut self.buffers, self.now) {
                Ok(line) => self.servers.push(line),
                Err(program) => self.ended_servers.push(program),
            }
        }
    }

    fn receive(&mut self) {
        lock(&self.endpoint).forget_closed(self.now);
        while lock(&self.endpoint).receive(self.now).unwrap() == ReceiveOutcome::More {}
        loop {
            let accepted = lock(&self.endpoint).next_accepted(self.now);
            let Some(conn) = accepted else { break };
            let id = ConnId::from_u64(self.servers.len() as u64 + 1);
            let (endpoint, config) = (&self.endpoint, &self.server_config);
            let count = ConnectionCount::count(config, true);
            let conn = Conn::from_quic(id, conn, endpoint, (config, count), self.now);
            let program = Program::new(Role::Server, &self.specs, self.seed ^ 2);
            self.servers.push(Running { conn, program });
        }
        while lock(&self.endpoint).next_ready().is_some() {}
    }
}

/// A configuration that offers further protocols with long names.
fn with_long_hello(tls: rustls::ClientConfig, limits: &QuicLimits) -> quinn_proto::ClientConfig {
    let mut tls = tls;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.alpn_protocols.extend((0..6).map(|_| vec![b'x'; 200]));
    let crypto = quinn_proto::crypto::rustls::QuicClientConfig::try_from(Arc::new(tls)).unwrap();
    let mut config = quinn_proto::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport(limits)));
    config
}

fn config_of(limits: Limits) -> Arc<ConnConfig> {
    Arc::new(ConnConfig {
        protocols: ProtocolPolicy::Http3,
        ..ConnConfig::plain(limits)
    })
}

/// Services a connection until it waits for something, as the engine does. Returns the program of a connection that
/// is over.
fn service(mut line: Running, buffers: &mut BufferPool, now: Instant) -> Result<Running, Program> {
    for _ in 0..MAX_SERVICES {
        let conn = &mut line.conn;
        if conn.deadline().is_some_and(|at| at <= now) {
            conn.on_timeout(now);
        }
        conn.begin_service(buffers, now, FLUSH_BYTES);
        line.program.run(conn, now);
        if conn.proto.interest().closed {
            if conn.proto.has_events() {
                continue;
            }
            assert!(line.program.closed.is_some(), "the end has an event");
            line.conn.close(now);
            line.conn.retire(now);
            return Err(line.program);
        }
        let mut again = false;
        if conn.output != Output::Blocked {
            again = conn.flush(now, FLUSH_BYTES) == FlushOutcome::Budget;
        }
        conn.proto.release(buffers);
        let interest = conn.proto.interest();
        again |= interest.closed || conn.proto.has_events() || conn.has_more_input(interest);
        let is_due = conn.deadline().is_some_and(|at| at <= now);
        if !again && !is_due {
            return Ok(line);
        }
    }
    panic!("a connection does not come to rest");
}
