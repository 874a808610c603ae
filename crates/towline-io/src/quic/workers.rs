//! Workers that share a UDP port: each passes on datagrams that belong to another.
//!
//! The kernel spreads datagrams by address, so a connection whose client has moved arrives at another worker, and after a
//! reload a client's first packets may arrive at a worker that is ending.
//!
//! ```text
//! short header, or our ID ──► worker in the ID                        ┐ over a UDP socket of the loopback interface, with
//! first Initial ────────────► here, or if this worker is ending to    ├ the address of the sender; the port of each worker
//!                             one that accepts connections            ┘ is in the shared memory of the counters
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quinn_proto::{EcnCodepoint, EndpointConfig, ServerConfig};
use ring::rand::SystemRandom;
use ring::{hkdf, hmac};

use crate::quic::cid::{CidGenerator, CidKey};
use crate::quic::socket::Message;
use crate::serve::metrics::{Slot, SlotHandle};

/// Bytes of [`WorkerSecret`].
const SECRET_BYTES: usize = 32;

/// A secret of all workers of a server, from which their keys are derived. With another one, packets of connections that
/// were open before a restart are not recognized.
#[derive(Clone)]
pub struct WorkerSecret([u8; SECRET_BYTES]);

impl std::fmt::Debug for WorkerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WorkerSecret")
    }
}

impl WorkerSecret {
    pub fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self(secret)
    }

    fn prk(&self) -> hkdf::Prk {
        hkdf::Salt::new(hkdf::HKDF_SHA256, b"towline quic workers").extract(&self.0)
    }

    fn derive(&self, label: &[u8]) -> [u8; SECRET_BYTES] {
        let mut key = [0; SECRET_BYTES];
        let info = [label];
        // Fails only for a length over 8160 bytes.
        if let Ok(okm) = self.prk().expand(&info, hkdf::HKDF_SHA256) {
            let _ = okm.fill(&mut key);
        }
        key
    }

    /// Lets a worker accept tokens of Retry that another has sent.
    pub fn share_tokens(&self, config: &mut ServerConfig) {
        config.token_key(Arc::new(self.prk()));
    }
}

/// This worker among those that share its ports.
pub struct Workers {
    own: u8,
    key: CidKey,
    secret: WorkerSecret,
    /// Proof that a datagram comes from a worker.
    proof: [u8; PROOF_BYTES],
    slot: SlotHandle,
    socket: UdpSocket,
}

const PROOF_BYTES: usize = 16;

/// Before each datagram: proof, endpoint, ECN, the sender's port, its address and ours (each 1 byte of kind, 16 bytes).
const HEADER_BYTES: usize = PROOF_BYTES + 2 + 2 + 17 + 17;

/// A datagram from another worker.
pub(crate) struct Forwarded<'a> {
    pub(crate) endpoint: usize,
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) datagram: &'a [u8],
}

/// The worker to which a datagram belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    This,
    /// The port of another worker.
    Other(u16),
}

impl Workers {
    /// The worker of this slot, in which it enters its port.
    pub fn new(secret: &WorkerSecret, slot: SlotHandle) -> io::Result<Self> {
        let own = u8::try_from(slot.index())
            .map_err(|_| io::Error::other("HTTP/3 has at most 256 workers"))?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        // A smaller buffer only costs datagrams under load.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BYTES);
        slot.quic_port
            .store(socket.local_addr()?.port().into(), Relaxed);
        let [key, proof] = [b"cid".as_slice(), b"proof"].map(|label| half(&secret.derive(label)));
        Ok(Self {
            own,
            key: CidKey::new(key),
            secret: secret.clone(),
            proof,
            slot,
            socket,
        })
    }

    /// Configuration of an endpoint of this worker: its IDs, and the resets that every worker can send for them.
    pub fn endpoint_config(&self) -> EndpointConfig {
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret.derive(b"reset"));
        let mut config = EndpointConfig::new(Arc::new(reset_key));
        let (key, worker) = (self.key.clone(), self.own);
        config.cid_generator(move || {
            Box::new(CidGenerator {
                key: key.clone(),
                worker,
                random: SystemRandom::new(),
            })
        });
        config
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Decides on a datagram that has arrived at this worker. `accepting`: it takes new connections.
    pub(crate) fn owner(&self, datagram: &[u8], remote: SocketAddr, accepting: bool) -> Owner {
        let Some((cid, is_initial)) = destination(datagram) else {
            return Owner::This;
        };
        let port = match self.key.worker(cid) {
            Some(worker) if worker == self.own => None,
            Some(worker) => self.port_of(worker),
            None if is_initial && !accepting => self.accepting_port(remote),
            None => None,
        };
        port.map_or(Owner::This, Owner::Other)
    }

    fn port_of(&self, worker: u8) -> Option<u16> {
        self.slot.slots().slot(worker.into()).and_then(port)
    }

    /// A worker that takes new connections: the same one for each client.
    fn accepting_port(&self, remote: SocketAddr) -> Option<u16> {
        let accepting = || {
            let slots = self.slot.slots().in_use();
            slots
                .filter(|slot| slot.accepting.load(Relaxed) != 0)
                .filter_map(port)
        };
        let count = accepting().count();
        let hash = usize::from(remote.port());
        accepting().nth(hash.checked_rem(count)?)
    }

    /// Passes a datagram on. If the other worker's buffer is full it is lost, and its sender repeats it.
    pub(crate) fn forward(&self, to: u16, endpoint: usize, message: &Message<'_>, datagram: &[u8]) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + datagram.len());
        bytes.extend_from_slice(&self.proof);
        bytes.push(endpoint as u8);
        bytes.push(message.ecn.map_or(0, |ecn| ecn as u8));
        bytes.extend_from_slice(&message.remote.port().to_be_bytes());
        push_ip(&mut bytes, Some(message.remote.ip()));
        push_ip(&mut bytes, message.local_ip);
        bytes.extend_from_slice(datagram);
        if self
            .socket
            .send_to(&bytes, (Ipv4Addr::LOCALHOST, to))
            .is_ok()
        {
            self.slot.quic_forwarded.fetch_add(1, Relaxed);
        }
    }

    /// Receives one datagram from another worker into `space`; `None` when there are no more.
    pub(crate) fn receive<'a>(&self, space: &'a mut [u8]) -> Option<Forwarded<'a>> {
        let length = loop {
            match self.socket.recv(space) {
                Ok(length) if length < HEADER_BYTES => {}
                Ok(length) if proves(&space[..PROOF_BYTES], &self.proof) => break length,
                // From another process of this machine.
                Ok(_) => {}
                // An ICMP error for a worker that has ended.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        };
        parse(&space[PROOF_BYTES..length])
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.slot.quic_port.store(0, Relaxed);
    }
}

/// Size of the buffer for datagrams of other workers; see `QuicLimits::socket_buffer_bytes`.
const RECEIVE_BYTES: usize = 2 * 1024 * 1024;

fn port(slot: &Slot) -> Option<u16> {
    let port = u16::try_from(slot.quic_port.load(Relaxed)).ok()?;
    (port != 0).then_some(port)
}

fn half(bytes: &[u8; SECRET_BYTES]) -> [u8; PROOF_BYTES] {
    std::array::from_fn(|index| bytes[index])
}

/// Compares without a branch on the bytes, which another process could measure.
fn proves(given: &[u8], proof: &[u8; PROOF_BYTES]) -> bool {
    let differences = given.iter().zip(proof).map(|(one, other)| one ^ other);
    differences.fold(0, |all, difference| all | difference) == 0
}

/// The destination ID of a packet, and whether it is an Initial (RFC 9000 17.2, 17.3).
fn destination(datagram: &[u8]) -> Option<(&[u8], bool)> {
    let first = *datagram.first()?;
    if first & 0x80 == 0 {
        return Some((datagram.get(1..=crate::quic::cid::CID_BYTES)?, false));
    }
    let length = usize::from(*datagram.get(5)?);
    let cid = datagram.get(6..6 + length)?;
    Some((cid, first & 0x30 == 0))
}

fn push_ip(bytes: &mut Vec<u8>, ip: Option<IpAddr>) {
    let (kind, octets) = match ip {
        None => (0, [0; 16]),
        Some(IpAddr::V4(ip)) => (4, ip.to_ipv6_mapped().octets()),
        Some(IpAddr::V6(ip)) => (6, ip.octets()),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&octets);
}

fn parse(bytes: &[u8]) -> Option<Forwarded<'_>> {
    let (&[endpoint, ecn, high, low], rest) = bytes.split_first_chunk()?;
    let (remote, rest) = parse_ip(rest)?;
    let (local_ip, datagram) = parse_ip(rest)?;
    Some(Forwarded {
        endpoint: endpoint.into(),
        remote: SocketAddr::new(remote?, u16::from_be_bytes([high, low])),
        local_ip,
        ecn: EcnCodepoint::from_bits(ecn),
        datagram,
    })
}

fn parse_ip(bytes: &[u8]) -> Option<(Option<IpAddr>, &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let (octets, rest) = rest.split_first_chunk::<16>()?;
    let v6 = Ipv6Addr::from(*octets);
    let ip = match kind {
        4 => v6.to_ipv4_mapped().map(IpAddr::V4),
        6 => Some(IpAddr::V6(v6)),
        _ => None,
    };
    Some((ip, rest))
}

#[cfg(test)]
mod tests {
    use quinn_proto::ConnectionIdGenerator;

    use super::*;
    use crate::serve::metrics::Slots;

    fn pair() -> (Slots, Workers, Workers) {
        let slots = Slots::private(4);
        let secret = WorkerSecret::new([9; SECRET_BYTES]);
        let worker = |index| {
            let slot = slots.handle(index).unwrap();
            slot.begin(1, 1);
            slot.accepting.store(1, Relaxed);
            Workers::new(&secret, slot).unwrap()
        };
        let (one, two) = (worker(0), worker(1));
        (slots, one, two)
    }

    fn short(workers: &Workers) -> Vec<u8> {
        let mut generator = CidGenerator {
            key: workers.key.clone(),
            worker: workers.own,
            random: SystemRandom::new(),
        };
        let mut datagram = vec![0x41];
        datagram.extend_from_slice(&generator.generate_cid());
        datagram.extend_from_slice(&[5; 40]);
        datagram
    }

    #[test]
    fn a_datagram_goes_to_the_worker_in_its_id_with_its_addresses() {
        let (_slots, one, two) = pair();
        let remote: SocketAddr = "[2001:db8::1]:4433".parse().unwrap();
        let datagram = short(&two);
        assert_eq!(two.owner(&datagram, remote, true), Owner::This);
        let Owner::Other(port) = one.owner(&datagram, remote, true) else {
            panic!("it belongs to the other worker");
        };
        let message = Message {
            bytes: &datagram,
            datagram_bytes: datagram.len(),
            remote,
            local_ip: Some("192.0.2.7".parse().unwrap()),
            ecn: Some(EcnCodepoint::Ect0),
        };
        // Others' datagrams are ignored.
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        stranger
            .send_to(&[0; 100], (Ipv4Addr::LOCALHOST, port))
            .unwrap();
        stranger
            .send_to(&[0; 3], (Ipv4Addr::LOCALHOST, port))
            .unwrap();
        one.forward(port, 3, &message, &datagram);
        let mut space = [0; 2048];
        let received = two.receive(&mut space).unwrap();
        assert_eq!((received.endpoint, received.remote), (3, remote));
        assert_eq!(received.local_ip, message.local_ip);
        assert_eq!(received.ecn, Some(EcnCodepoint::Ect0));
        assert_eq!(received.datagram, datagram);
        assert!(two.receive(&mut space).is_none());
    }

    #[test]
    fn a_worker_that_ends_passes_new_connections_on() {
        let (slots, one, two) = pair();
        let remote: SocketAddr = "192.0.2.1:4433".parse().unwrap();
        let mut initial = vec![0xc0, 0, 0, 0, 1, 8];
        initial.extend_from_slice(&[3; 1200]);
        assert_eq!(one.owner(&initial, remote, true), Owner::This);
        slots.slot(0).unwrap().accepting.store(0, Relaxed);
        let port = two.socket.local_addr().unwrap().port();
        assert_eq!(one.owner(&initial, remote, false), Owner::Other(port));
        drop(two);
        // Nobody accepts connections.
        assert_eq!(one.owner(&initial, remote, false), Owner::This);
    }

    #[test]
    fn no_datagram_is_too_short() {
        let (_slots, one, _two) = pair();
        let remote: SocketAddr = "192.0.2.1:4433".parse().unwrap();
        let bytes = [0xff; 40];
        for length in 0..bytes.len() {
            assert_eq!(one.owner(&bytes[..length], remote, false), Owner::This);
            assert_eq!(one.owner(&[0; 40][..length], remote, true), Owner::This);
        }
    }
}
