//! A network between two in-memory sockets on a virtual clock: it delays, reorders, loses and duplicates datagrams, and
//! has a NAT on the client's side. Chance comes from a seed.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::quic::memory_socket::{Datagram, MemorySocket};

/// `SplitMix64`.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is above 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    pub(super) fn happens(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille as usize
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        let micros = longest.as_micros() as usize;
        Duration::from_micros(self.below(micros + 1) as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    ToClient,
}

/// Properties of the path, in both directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) lost_per_mille: u32,
    pub(super) duplicated_per_mille: u32,
    /// Each datagram takes `delay` and a random part of `jitter`, so that they overtake each other.
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    /// Larger datagrams disappear without a message (a black hole of the MTU).
    pub(super) max_datagram_bytes: usize,
    /// Directions in which nothing arrives.
    pub(super) is_silent: [bool; 2],
}

impl Path {
    pub(super) fn clean() -> Self {
        Self {
            lost_per_mille: 0,
            duplicated_per_mille: 0,
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            max_datagram_bytes: usize::MAX,
            is_silent: [false; 2],
        }
    }
}

pub(super) struct Network {
    pub(super) path: Path,
    random: Random,
    client: MemorySocket,
    server: MemorySocket,
    /// The client's address as the server sees it.
    outside: SocketAddr,
    /// Datagrams on their way, by time of arrival and number.
    flights: BTreeMap<(Instant, u64), (Direction, Datagram)>,
    number: u64,
    pub(super) lost: usize,
    pub(super) too_large: usize,
}

impl Network {
    pub(super) fn new(client: MemorySocket, server: MemorySocket, path: Path, seed: u64) -> Self {
        Self {
            path,
            random: Random(seed),
            outside: client.addr(),
            client,
            server,
            flights: BTreeMap::new(),
            number: 0,
            lost: 0,
            too_large: 0,
        }
    }

    /// The NAT forgets the client's address and gives it another: the port only, or all of it.
    pub(super) fn rebind(&mut self, only_port: bool) {
        let port = 20_000 + self.random.below(40_000) as u16;
        self.outside.set_port(port);
        if !only_port {
            let host = self.random.below(250) as u8;
            self.outside.set_ip(Ipv4Addr::new(10, 1, 1, host).into());
        }
    }

    /// Takes what the sockets have sent.
    pub(super) fn collect(&mut self, now: Instant) {
        while let Some(mut datagram) = self.client.take_sent() {
            datagram.from = self.outside;
            self.send(now, Direction::ToServer, datagram);
        }
        while let Some(datagram) = self.server.take_sent() {
            self.send(now, Direction::ToClient, datagram);
        }
    }

    fn send(&mut self, now: Instant, direction: Direction, datagram: Datagram) {
        let path = self.path;
        if datagram.bytes.len() > path.max_datagram_bytes {
            self.too_large += 1;
            return;
        }
        if path.is_silent[direction as usize] || self.random.happens(path.lost_per_mille) {
            self.lost += 1;
            return;
        }
        if self.random.happens(path.duplicated_per_mille) {
            self.launch(now, direction, datagram.clone());
        }
        self.launch(now, direction, datagram);
    }

    fn launch(&mut self, now: Instant, direction: Direction, datagram: Datagram) {
        self.number += 1;
        let at = now + self.path.delay + self.random.up_to(self.path.jitter);
        self.flights
            .insert((at, self.number), (direction, datagram));
    }

    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.flights.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Delivers what has arrived. Returns which sides have something.
    pub(super) fn deliver(&mut self, now: Instant) -> [bool; 2] {
        let mut has_arrived = [false; 2];
        while let Some(flight) = self.flights.first_entry()
            && flight.key().0 <= now
        {
            let (direction, mut datagram) = flight.remove();
            match direction {
                Direction::ToServer => self.server.deliver(datagram),
                // The NAT drops what comes to an old address.
                Direction::ToClient if datagram.to != self.outside => continue,
                Direction::ToClient => {
                    datagram.to = self.client.addr();
                    self.client.deliver(datagram);
                }
            }
            has_arrived[direction as usize] = true;
        }
        has_arrived
    }
}
