//! UDP through the network emulator: datagrams are delayed, lost, reordered and repeated one by one, since the
//! protocol above them (QUIC) repairs that itself.
//!
//! Each client address has a flow: a socket of its own towards the upstream, so that the upstream tells clients apart.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use slab::Slab;
use socket2::SockRef;

use super::shaper::Shaper;
use super::transit::Transit;

/// Tokens from here on are flows; below are the proxy's own and TCP's.
const FIRST_FLOW: usize = usize::MAX / 2;
/// Clients at once; over it the one that was silent for longest is forgotten.
const MAX_FLOWS: usize = 4096;
/// A flow without a datagram for this long is forgotten when room is needed for sockets.
const IDLE: Duration = Duration::from_secs(30);
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Largest UDP payload.
const MAX_DATAGRAM_BYTES: usize = 64 * 1024;
/// Datagrams read from one socket before timers are checked again.
const PER_TURN: usize = 256;

/// All flows of UDP.
pub struct Datagrams {
    socket: UdpSocket,
    token: Token,
    to: SocketAddr,
    readable: bool,
    /// Flows whose sockets have more datagrams to read.
    readable_flows: Vec<usize>,
    flows: Slab<Flow>,
    by_client: HashMap<SocketAddr, usize>,
    transit: Transit<InFlight>,
    space: Box<[u8]>,
    swept_at: Instant,
}

/// One client. Direction 0 goes to the upstream.
struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
    /// Time at which the last datagram of each direction arrives; later ones do not overtake it.
    last_due: [Instant; 2],
    used_at: Instant,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    client: SocketAddr,
    direction: usize,
    data: Bytes,
}

impl AsRef<[u8]> for InFlight {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Datagrams {
    /// Listens on `listen`, which has the port of the TCP listener.
    pub fn new(
        listen: SocketAddr,
        to: SocketAddr,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut socket = bound(listen)?;
        registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(Self {
            socket,
            token,
            to,
            readable: true,
            readable_flows: Vec::new(),
            flows: Slab::new(),
            by_client: HashMap::new(),
            transit: Transit::new(),
            space: vec![0; MAX_DATAGRAM_BYTES].into(),
            swept_at: Instant::now(),
        })
    }

    pub fn held_bytes(&self) -> usize {
        self.transit.held_bytes()
    }

    /// Handles readiness of `token` if it is one of ours.
    pub fn on_event(&mut self, token: Token) -> bool {
        if token == self.token {
            self.readable = true;
        } else if token.0 >= FIRST_FLOW {
            self.readable_flows.push(token.0 - FIRST_FLOW);
        } else {
            return false;
        }
        true
    }

    /// Time of the next arrival; `now` when there is something to read.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        if self.readable || !self.readable_flows.is_empty() {
            return Some(now);
        }
        self.transit.next_due()
    }

    /// Reads what has come, and sends what is due.
    pub fn turn(&mut self, registry: &Registry, shapers: &mut [Shaper; 2], now: Instant) {
        if self.readable {
            self.readable = self.read_clients(registry, &mut shapers[0], now);
        }
        for key in std::mem::take(&mut self.readable_flows) {
            if self.read_flow(key, &mut shapers[1], now) {
                self.readable_flows.push(key);
            }
        }
        while let Some(arrived) = self.transit.next_arrived(now) {
            self.deliver(&arrived);
        }
    }

    /// Returns whether there may be more to read.
    fn read_clients(&mut self, registry: &Registry, shaper: &mut Shaper, now: Instant) -> bool {
        for _ in 0..PER_TURN {
            match self.socket.recv_from(&mut self.space) {
                Ok((bytes, client)) => {
                    let Some(key) = self.flow(client, registry, now) else {
                        continue;
                    };
                    self.pass((key, 0), bytes, shaper, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // An ICMP message about an earlier datagram.
                Err(_) => {}
            }
        }
        true
    }

    fn read_flow(&mut self, key: usize, shaper: &mut Shaper, now: Instant) -> bool {
        for _ in 0..PER_TURN {
            let Some(flow) = self.flows.get(key) else {
                return false;
            };
            match flow.socket.recv(&mut self.space) {
                Ok(bytes) => {
                    self.pass((key, 1), bytes, shaper, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {}
            }
        }
        true
    }

    /// The flow of `client`, a new one if there is none; `None` when its socket cannot be opened.
    fn flow(&mut self, client: SocketAddr, registry: &Registry, now: Instant) -> Option<usize> {
        if let Some(&key) = self.by_client.get(&client) {
            return Some(key);
        }
        self.make_room(now);
        let entry = self.flows.vacant_entry();
        let any = match self.to {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let mut socket = bound(SocketAddr::new(any, 0)).ok()?;
        socket.connect(self.to).ok()?;
        let token = Token(FIRST_FLOW + entry.key());
        registry
            .register(&mut socket, token, Interest::READABLE)
            .ok()?;
        let key = entry.key();
        entry.insert(Flow {
            client,
            socket,
            last_due: [now; 2],
            used_at: now,
        });
        self.by_client.insert(client, key);
        Some(key)
    }

    /// Forgets idle flows now and then, and the oldest one when there are too many.
    fn make_room(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept_at) >= IDLE {
            self.swept_at = now;
            let by_client = &mut self.by_client;
            self.flows.retain(|_, flow| {
                let used = now.saturating_duration_since(flow.used_at) < IDLE;
                if !used {
                    by_client.remove(&flow.client);
                }
                used
            });
        }
        if self.flows.len() >= MAX_FLOWS
            && let Some((key, _)) = self.flows.iter().min_by_key(|(_, flow)| flow.used_at)
        {
            let flow = self.flows.remove(key);
            self.by_client.remove(&flow.client);
        }
    }

    /// Puts the datagram in `space` on its way, unless it is lost.
    fn pass(
        &mut self,
        (key, direction): (usize, usize),
        bytes: usize,
        shaper: &mut Shaper,
        now: Instant,
    ) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        flow.used_at = now;
        if let Some(passage) = shaper.datagram(now, bytes, &mut flow.last_due[direction]) {
            let datagram = InFlight {
                client: flow.client,
                direction,
                data: Bytes::copy_from_slice(&self.space[..bytes]),
            };
            self.transit.send(datagram, passage);
        }
    }

    /// A datagram that the socket refuses is lost.
    fn deliver(&mut self, arrived: &InFlight) {
        let Some(flow) = self
            .by_client
            .get(&arrived.client)
            .and_then(|&key| self.flows.get(key))
        else {
            return;
        };
        let _ = if arrived.direction == 0 {
            flow.socket.send(&arrived.data)
        } else {
            self.socket.send_to(&arrived.data, arrived.client)
        };
    }
}

fn bound(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr)?;
    // A smaller buffer only loses more datagrams.
    let _ = SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = SockRef::from(&socket).set_send_buffer_size(SOCKET_BUFFER_BYTES);
    Ok(socket)
}
