//! Workers that share a UDP port: each forwards datagrams that belong to another.
//!
//! The kernel selects a socket by the addresses of a datagram, so the datagrams of a client that has moved arrive at
//! another worker than before, and those of a worker that is ending at its successor, which reads the same socket.
//!
//! ```text
//! short header, or our ID ──► worker in the ID                        ┐ over a UDP socket of the loopback interface
//! first Initial ────────────► here, or if this worker is ending to    ├ (`forward`); the port of each worker is in the
//!                             one that accepts connections            ┘ shared memory of the counters
//! ```
//!
//! A datagram is forwarded once at most. What a full socket loses, QUIC sends again. The ID of a worker that has been
//! killed leads to nobody: the worker that receives the datagram answers with a stateless reset (RFC 9000 10.3), for
//! which all have the key.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use quinn_proto::{EndpointConfig, ServerConfig};
use ring::rand::SystemRandom;
use ring::{hkdf, hmac};

use crate::quic::cid::{CID_BYTES, CidGenerator, CidKey};
use crate::quic::forward;
use crate::quic::socket::{Message, Origin};
use crate::serve::metrics::{Slot, SlotHandle};

/// Bytes of [`WorkerSecret`].
const SECRET_BYTES: usize = 32;

/// Size of the buffer for datagrams of other workers; see `QuicLimits::socket_buffer_bytes`.
const RECEIVE_BYTES: usize = 2 * 1024 * 1024;

/// Shortest time between two stateless resets of an endpoint. quinn's 20 ms would let the clients of a killed worker wait
/// for each other. Only IDs that a worker has made are answered, always with a shorter datagram, so no loop goes on.
const RESET_INTERVAL: Duration = Duration::from_micros(200);

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

    /// A key of 32 bytes for one purpose.
    fn derive(&self, purpose: &[u8]) -> hmac::Tag {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), purpose)
    }

    fn hmac_key(&self, purpose: &[u8]) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.derive(purpose).as_ref())
    }

    /// Lets a worker accept the tokens of Retry and `NEW_TOKEN` that another has sent.
    pub fn share_tokens(&self, config: &mut ServerConfig) {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"");
        let key = salt.extract(self.derive(b"tokens").as_ref());
        config.token_key(Arc::new(key));
    }
}

/// This worker among those that share its ports.
pub struct Workers {
    own: u8,
    cid_key: CidKey,
    secret: WorkerSecret,
    /// Key of the messages between workers.
    message_key: hmac::Key,
    slot: SlotHandle,
    socket: UdpSocket,
    /// Port of the socket.
    port: u16,
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
        let this = Self::sender(secret, slot)?;
        this.slot.quic_port.store(this.port.into(), Relaxed);
        Ok(this)
    }

    /// The worker of this slot, which only forwards: others do not know its port.
    pub(crate) fn sender(secret: &WorkerSecret, slot: SlotHandle) -> io::Result<Self> {
        let own = u8::try_from(slot.index())
            .map_err(|_| io::Error::other("HTTP/3 has at most 256 workers"))?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        // A smaller buffer only costs datagrams under load.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BYTES);
        let port = socket.local_addr()?.port();
        let cid_key = secret.derive(b"connection IDs");
        Ok(Self {
            own,
            cid_key: CidKey::new(std::array::from_fn(|index| cid_key.as_ref()[index])),
            secret: secret.clone(),
            message_key: secret.hmac_key(b"messages"),
            slot,
            socket,
            port,
        })
    }

    /// Configuration of an endpoint of this worker: its IDs, and the resets that every worker can send for them.
    pub(crate) fn endpoint_config(&self) -> EndpointConfig {
        let mut config = EndpointConfig::new(Arc::new(self.secret.hmac_key(b"resets")));
        config.min_reset_interval(RESET_INTERVAL);
        let (key, worker) = (self.cid_key.clone(), self.own);
        config.cid_generator(move || {
            Box::new(CidGenerator {
                key: key.clone(),
                worker,
                random: SystemRandom::new(),
            })
        });
        config
    }

    /// Enters the socket of an endpoint, by which [`has_successor`](Self::has_successor) finds others that read it.
    pub(crate) fn set_socket(&self, inode: u64) {
        self.slot.quic_socket.store(inode, Relaxed);
    }

    /// Whether another worker that accepts connections reads the same sockets as this one.
    pub(crate) fn has_successor(&self) -> bool {
        let own = self.slot.quic_socket.load(Relaxed);
        own != 0
            && self
                .accepting()
                .any(|slot| slot.quic_socket.load(Relaxed) == own)
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Passes the datagrams of this worker to `handle`, and forwards the others as datagrams of the endpoint `index`.
    pub(crate) fn take_own(
        &self,
        index: usize,
        message: &Message<'_>,
        mut handle: impl FnMut(&Message<'_>),
    ) {
        let mut rest = *message;
        while let Some((owner, run)) = self.next_run(&mut rest) {
            match owner {
                Owner::This => handle(&run),
                Owner::Other(port) => self.forward(port, index, &run),
            }
        }
    }

    /// Splits the first datagrams off `rest` that belong to the same worker; `None` when there are no more.
    pub(crate) fn next_run<'a>(&self, rest: &mut Message<'a>) -> Option<(Owner, Message<'a>)> {
        let size = rest.datagram_bytes;
        let mut datagrams = rest.bytes.chunks(size);
        let owner = self.owner(datagrams.next()?);
        let most = (forward::MAX_PAYLOAD_BYTES / size).max(1);
        let same = datagrams.take_while(|datagram| self.owner(datagram) == owner);
        let count = 1 + same.take(most - 1).count();
        let length = count.saturating_mul(size).min(rest.bytes.len());
        let (run, after) = rest.bytes.split_at(length);
        rest.bytes = after;
        Some((
            owner,
            Message {
                bytes: run,
                ..*rest
            },
        ))
    }

    /// Decides by the ID of a datagram that has arrived at this worker. IDs that no worker has made, and those of
    /// workers that have ended, are for this one.
    fn owner(&self, datagram: &[u8]) -> Owner {
        let worker = destination(datagram).and_then(|cid| self.cid_key.worker(cid));
        let other = worker.filter(|worker| *worker != self.own);
        let slot = other.and_then(|worker| self.slot.slots().slot(worker.into()));
        slot.and_then(port).map_or(Owner::This, Owner::Other)
    }

    /// The other workers that accept connections and take datagrams.
    fn accepting(&self) -> impl Iterator<Item = &Slot> {
        let others = self.slot.slots().in_use().enumerate();
        others
            .filter(|(index, _)| *index != usize::from(self.own))
            .map(|(_, slot)| slot)
            .filter(|slot| slot.accepting.load(Relaxed) != 0 && port(slot).is_some())
    }

    /// Whether another worker accepts connections.
    pub(crate) fn are_accepting(&self) -> bool {
        self.accepting().next().is_some()
    }

    /// The port of a worker that accepts connections: the same one for all datagrams of a client.
    fn accepting_port(&self, remote: SocketAddr) -> Option<u16> {
        let mut hasher = DefaultHasher::new();
        remote.hash(&mut hasher);
        let hash = hasher.finish() as usize;
        let count = self.accepting().count();
        let slot = self.accepting().nth(hash.checked_rem(count)?);
        slot.and_then(port)
    }

    /// Forwards the first datagram of a connection to a worker that accepts it; false if there is none.
    pub(crate) fn forward_new(&self, endpoint: usize, message: &Message<'_>) -> bool {
        let Some(port) = self.accepting_port(message.remote) else {
            return false;
        };
        let message = Message {
            origin: Origin::ForAccepting,
            ..*message
        };
        self.send(port, endpoint, &message);
        true
    }

    /// Forwards datagrams to the worker in their ID.
    pub(crate) fn forward(&self, port: u16, endpoint: usize, message: &Message<'_>) {
        let message = Message {
            origin: Origin::ForOwner,
            ..*message
        };
        self.send(port, endpoint, &message);
    }

    fn send(&self, port: u16, endpoint: usize, message: &Message<'_>) {
        let datagrams = message.bytes.len().div_ceil(message.datagram_bytes) as u64;
        let sent = u8::try_from(endpoint).is_ok_and(|endpoint| {
            let bytes = forward::encode(&self.message_key, endpoint, message);
            self.socket
                .send_to(&bytes, (Ipv4Addr::LOCALHOST, port))
                .is_ok()
        });
        let counter = if sent {
            &self.slot.quic_forwarded
        } else {
            &self.slot.quic_forward_failures
        };
        counter.fetch_add(datagrams, Relaxed);
    }

    /// Receives one message into `space` (`forward::MAX_BYTES`), and returns its length; `None` when there are no more.
    pub(crate) fn receive(&self, space: &mut [u8]) -> Option<usize> {
        loop {
            match self.socket.recv(space) {
                Ok(length) => return Some(length),
                // An ICMP error for a worker that has ended.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }

    /// The datagrams of a received message and the number of their endpoint; `None` if it is not from a worker.
    pub(crate) fn open<'a>(&self, bytes: &'a [u8]) -> Option<(usize, Message<'a>)> {
        let opened = forward::decode(&self.message_key, bytes);
        match &opened {
            Some((_, message)) => {
                let datagrams = message.bytes.len().div_ceil(message.datagram_bytes) as u64;
                self.slot.quic_taken.fetch_add(datagrams, Relaxed);
            }
            None => _ = self.slot.quic_forward_failures.fetch_add(1, Relaxed),
        }
        opened
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.slot.quic_port.load(Relaxed) == u64::from(self.port) {
            self.slot.quic_port.store(0, Relaxed);
            self.slot.quic_socket.store(0, Relaxed);
        }
    }
}

fn port(slot: &Slot) -> Option<u16> {
    let port = u16::try_from(slot.quic_port.load(Relaxed)).ok()?;
    (port != 0).then_some(port)
}

/// The destination ID of a packet, of which one of ours is all or the beginning (RFC 9000 17.2, 17.3).
fn destination(datagram: &[u8]) -> Option<&[u8]> {
    const LONG: u8 = 0x80;
    if datagram.first()? & LONG == 0 {
        return datagram.get(1..=CID_BYTES);
    }
    let length = usize::from(*datagram.get(5)?);
    datagram.get(6..6 + length)
}

#[cfg(test)]
mod tests {
    use quinn_proto::ConnectionIdGenerator;

    use super::*;
    use crate::serve::metrics::Slots;

    impl Workers {
        fn generator(&self) -> CidGenerator {
            CidGenerator {
                key: self.cid_key.clone(),
                worker: self.own,
                random: SystemRandom::new(),
            }
        }

        /// A datagram with an ID of this worker.
        pub(crate) fn short_header(&self) -> Vec<u8> {
            let id = self.generator().generate_cid();
            [&[0x41], &*id, &[5; 40]].concat()
        }
    }

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

    fn own_port(workers: &Workers) -> u16 {
        workers.socket.local_addr().unwrap().port()
    }

    #[test]
    fn a_datagram_belongs_to_the_worker_in_its_id() {
        let (_slots, one, two) = pair();
        let datagram = two.short_header();
        assert_eq!(two.owner(&datagram), Owner::This);
        assert_eq!(one.owner(&datagram), Owner::Other(own_port(&two)));
        let long = [&[0xe0, 0, 0, 0, 1, 16], &datagram[1..]].concat();
        assert_eq!(one.owner(&long), Owner::Other(own_port(&two)));
        drop(two);
        assert_eq!(one.owner(&datagram), Owner::This);
    }

    #[test]
    fn an_id_that_was_changed_belongs_to_nobody() {
        let (_slots, one, two) = pair();
        let datagram = two.short_header();
        for index in 1..=CID_BYTES {
            for bit in 0..8 {
                let mut forged = datagram.clone();
                forged[index] ^= 1 << bit;
                assert_eq!(one.owner(&forged), Owner::This);
            }
        }
    }

    #[test]
    fn no_datagram_is_too_short() {
        let (_slots, one, _two) = pair();
        for byte in [0, 0x40, 0x80, 0xc0, 0xff] {
            for length in 0..40 {
                assert_eq!(one.owner(&vec![byte; length]), Owner::This);
            }
        }
    }

    #[test]
    fn new_connections_go_to_a_worker_that_accepts_them() {
        let (slots, one, two) = pair();
        let remote = "192.0.2.1:4433".parse().unwrap();
        assert_eq!(one.accepting_port(remote), Some(own_port(&two)));
        slots.slot(1).unwrap().accepting.store(0, Relaxed);
        assert_eq!(one.accepting_port(remote), None);
    }

    #[test]
    fn a_successor_accepts_connections_on_the_same_socket() {
        let (slots, one, two) = pair();
        assert!(!one.has_successor());
        one.set_socket(7);
        two.set_socket(8);
        assert!(!one.has_successor());
        two.set_socket(7);
        assert!(one.has_successor());
        slots.slot(1).unwrap().accepting.store(0, Relaxed);
        assert!(!one.has_successor());
    }

    #[test]
    fn messages_of_other_processes_are_ignored() {
        let (slots, one, _two) = pair();
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        stranger
            .send_to(&[0; 100], (Ipv4Addr::LOCALHOST, own_port(&one)))
            .unwrap();
        let mut space = [0; 2048];
        let length = one.receive(&mut space).unwrap();
        assert!(one.open(&space[..length]).is_none());
        let failures = &slots.slot(0).unwrap().quic_forward_failures;
        assert_eq!(failures.load(Relaxed), 1);
        assert!(one.receive(&mut space).is_none());
    }
}
