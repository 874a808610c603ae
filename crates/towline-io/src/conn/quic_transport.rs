//! QUIC as the transport of one connection: its state machine, and its part of the endpoint.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::crypto::rustls::HandshakeData;
use quinn_proto::{ConnectionError, Dir, VarInt};
use rustls::pki_types::CertificateDer;

use crate::conn::addr::PeerAddr;
use crate::conn::early_flight::EarlyFlight;
use crate::quic::{Connection, Endpoint, Key, ReceiveOutcome, SendOutcome};
use crate::tls::{ClientTls, TlsInfo};

/// An endpoint and its connections. Each of them locks it for its service; there is one thread as a rule.
pub(crate) type SharedEndpoint = Arc<Mutex<Endpoint>>;

/// Request streams that a client opens before it needs them. QUIC does not say how many the server allows, only
/// whether one more can be opened.
const OPENED_AHEAD: usize = 256;

/// Batches of datagrams that a client's connection reads in one service: 64 messages.
const BATCHES: usize = 8;

/// A QUIC connection and its endpoint.
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct QuicTransport {
    pub(crate) conn: Connection,
    registration: Registration,
    /// The endpoint belongs to this connection, which reads its socket: a client's.
    owns_endpoint: bool,
    /// Request streams that are open and not in use yet.
    pub(crate) opened: VecDeque<u64>,
    /// Unidirectional streams of ours that QUIC did not allow yet, in order.
    pub(crate) unopened: VecDeque<u64>,
    /// The peer's address when it was last checked.
    remote: SocketAddr,
    /// The connection is over: closed by the peer, failed, or timed out.
    pub(crate) is_lost: bool,
    /// The peer has broken a rule of QUIC, and this end has closed the connection.
    is_violated: bool,
    /// Acknowledgements received when they were last counted.
    acknowledgements: u64,
    /// A client's: the address to send from, if it was given.
    pub(crate) local: Option<IpAddr>,
    last_reconnect: Option<Instant>,
    /// The descriptor has a new socket, which no poll knows.
    is_reconnected: bool,
    failure: Option<SocketFailure>,
    /// The handshake has succeeded.
    pub(crate) is_connected: bool,
    /// A client's early data, until the server has accepted or refused it.
    pub(crate) early: Option<Box<EarlyFlight>>,
}

/// A failure of a client's socket that concerns the connection. Others are losses of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketFailure {
    Refused,
    Unreachable,
}

impl SocketFailure {
    fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Some(Self::Refused),
            io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable => Some(Self::Unreachable),
            // Linux: the source address has been removed.
            _ if error.raw_os_error() == Some(libc::EINVAL) => Some(Self::Unreachable),
            _ => None,
        }
    }
}

/// Least time between two sockets of a connection: an unreachable network fails every send.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// The registration of a connection in its endpoint, which is removed with the connection.
struct Registration {
    endpoint: SharedEndpoint,
    key: Key,
    /// The endpoint has removed the connection itself.
    is_removed: bool,
}

impl Registration {
    fn endpoint(&self) -> MutexGuard<'_, Endpoint> {
        lock(&self.endpoint)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.is_removed {
            self.endpoint().remove(self.key);
        }
    }
}

pub(crate) fn lock(endpoint: &Mutex<Endpoint>) -> MutexGuard<'_, Endpoint> {
    endpoint.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QuicTransport {
    /// A connection of a shared endpoint, whose datagrams the engine reads. `tag`: its number.
    pub(crate) fn shared(mut conn: Connection, endpoint: &SharedEndpoint, tag: u64) -> Self {
        lock(endpoint).set_tag(conn.key(), tag);
        Self {
            remote: conn.quic().remote_address(),
            registration: Registration {
                endpoint: Arc::clone(endpoint),
                key: conn.key(),
                is_removed: false,
            },
            conn,
            owns_endpoint: false,
            opened: VecDeque::new(),
            unopened: VecDeque::new(),
            is_lost: false,
            is_violated: false,
            acknowledgements: 0,
            local: None,
            last_reconnect: None,
            is_reconnected: false,
            failure: None,
            is_connected: false,
            early: None,
        }
    }

    /// A client's connection, the only one of its endpoint.
    pub(crate) fn client(conn: Connection, endpoint: Endpoint) -> Self {
        let endpoint = Arc::new(Mutex::new(endpoint));
        Self {
            owns_endpoint: true,
            ..Self::shared(conn, &endpoint, 0)
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.registration.endpoint().as_raw_fd()
    }

    pub(crate) fn owns_endpoint(&self) -> bool {
        self.owns_endpoint
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.conn.is_handshaking()
    }

    /// Whether what a server receives now is early data (0-RTT): until the handshake is complete, and not only closed.
    pub(crate) fn receives_early_data(&self) -> bool {
        !self.owns_endpoint && !self.is_connected && self.conn.has_early_data()
    }

    pub(crate) fn deadline(&mut self) -> Option<Instant> {
        if self.is_lost {
            return None;
        }
        let deadline = self.conn.deadline();
        match self.unanswered_until() {
            Some(at) => Some(deadline.map_or(at, |other| other.min(at))),
            None => deadline,
        }
    }

    /// Records what a client sends from now on as early data, until the server has accepted or refused it.
    pub(crate) fn begin_early_data(
        &mut self,
        now: Instant,
        tls: &Arc<ClientTls>,
        server_name: &str,
    ) {
        let early = EarlyFlight::new(now, tls, server_name);
        self.early = Some(Box::new(early));
    }

    /// Whether a client may send before the handshake is complete.
    pub(crate) fn sends_early_data(&self) -> bool {
        self.early.is_some()
    }

    /// When early data that the server has not answered fails.
    fn unanswered_until(&self) -> Option<Instant> {
        let early = self.early.as_ref()?;
        (self.conn.received_datagrams() == 0).then_some(early.answer_by)
    }

    /// Whether the time for an answer to early data is over.
    pub(crate) fn is_unanswered(&self, now: Instant) -> bool {
        self.unanswered_until().is_some_and(|at| at <= now)
    }

    /// Reads the socket of a client's connection.
    pub(crate) fn receive_datagrams(&mut self, now: Instant) -> ReceiveOutcome {
        let mut endpoint = self.registration.endpoint();
        for _ in 0..BATCHES {
            // An error of the socket is a loss of datagrams, and the connection has its timeouts.
            match endpoint.receive(now) {
                Ok(ReceiveOutcome::More) => {}
                Ok(ReceiveOutcome::All) | Err(_) => return ReceiveOutcome::All,
            }
        }
        ReceiveOutcome::More
    }

    /// Takes what has arrived for the connection, handles its timers, and passes its messages to the endpoint.
    pub(crate) fn service(&mut self, now: Instant) {
        self.exchange();
        if self.deadline().is_some_and(|at| at <= now) {
            self.conn.handle_timeout(now);
            self.exchange();
        }
    }

    fn exchange(&mut self) {
        if !self.registration.is_removed && !self.registration.endpoint().service(&mut self.conn) {
            self.registration.is_removed = true;
            self.is_lost = true;
        }
    }

    /// Sends what is due, at most about `budget_bytes`.
    pub(crate) fn send(&mut self, now: Instant, budget_bytes: usize) -> SendOutcome {
        let outcome = self.conn.send(now, budget_bytes);
        if self.owns_endpoint && self.has_moved(now) {
            // A path with a new address is validated by the peer (RFC 9000 9.2).
            return self.conn.send(now, budget_bytes);
        }
        outcome
    }

    /// Whether the server's system has reported that nothing listens on its port any more (a client's connection).
    pub(crate) fn is_refused(&mut self) -> bool {
        self.note_failure();
        self.failure == Some(SocketFailure::Refused)
    }

    fn note_failure(&mut self) {
        if !self.owns_endpoint {
            return;
        }
        let failure = self.conn.take_failure();
        if let Some(found) = failure.and_then(|error| SocketFailure::of(&error)) {
            self.failure = Some(found);
        }
    }

    /// Takes a new socket if the network has become unreachable: the system may have another one.
    fn has_moved(&mut self, now: Instant) -> bool {
        self.note_failure();
        let is_early = self
            .last_reconnect
            .is_some_and(|last| now.saturating_duration_since(last) < RECONNECT_INTERVAL);
        if self.failure != Some(SocketFailure::Unreachable) || is_early || !self.is_confirmed() {
            return false;
        }
        self.failure = None;
        self.last_reconnect = Some(now);
        self.reconnect().is_ok()
    }

    /// Whether the server has confirmed the handshake (RFC 9001 4.1.2); before, a client does not change its address.
    pub(crate) fn is_confirmed(&mut self) -> bool {
        self.conn.quic().stats().frame_rx.handshake_done > 0
    }

    /// Replaces the socket of a client's connection, and moves the connection to its address.
    pub(crate) fn reconnect(&mut self) -> io::Result<()> {
        let remote = self.conn.quic().remote_address();
        let endpoint = lock(&self.registration.endpoint);
        endpoint.reconnect(&mut self.conn, remote, self.local)?;
        self.is_reconnected = true;
        Ok(())
    }

    /// Whether the descriptor has a new socket, once.
    pub(crate) fn take_reconnected(&mut self) -> bool {
        std::mem::take(&mut self.is_reconnected)
    }

    /// Closes the connection with a code of the application (RFC 9000 19.19), unless it is closed already.
    pub(crate) fn close(&mut self, now: Instant, code: u64, reason: &'static str) {
        if !self.conn.quic().is_closed() {
            let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
            let reason = Bytes::from_static(reason.as_bytes());
            self.conn.quic().close(now, code, reason);
        }
    }

    /// Records that QUIC has ended the connection. A peer that has broken a rule of QUIC is told the error (RFC 9000 10.2).
    pub(crate) fn lose(&mut self, now: Instant, reason: &ConnectionError) {
        self.is_lost = true;
        if matches!(reason, ConnectionError::TransportError(_)) {
            self.is_violated = true;
            self.conn.send(now, usize::MAX);
        }
    }

    /// Drops the connection. Its endpoint answers late packets for a while if this end has closed it.
    pub(crate) fn retire(self, now: Instant) {
        let Self {
            conn,
            mut registration,
            is_lost,
            is_violated,
            ..
        } = self;
        if (!is_lost || is_violated) && !registration.is_removed {
            registration.is_removed = true;
            registration.endpoint().retire(conn, now);
        }
    }

    /// Whether acknowledgements have arrived since the last call.
    pub(crate) fn has_new_acknowledgements(&mut self) -> bool {
        let acknowledgements = self.conn.quic().stats().frame_rx.acks;
        std::mem::replace(&mut self.acknowledgements, acknowledgements) != acknowledgements
    }

    /// Packets sent and lost so far.
    pub(crate) fn packets(&mut self) -> (u64, u64) {
        let path = self.conn.quic().stats().path;
        (path.sent_packets, path.lost_packets)
    }

    /// The peer's new address, if it has changed: after a migration (RFC 9000 9) or behind a NAT that has forgotten
    /// the old one.
    pub(crate) fn take_migration(&mut self) -> Option<PeerAddr> {
        let remote = self.conn.quic().remote_address();
        let has_moved = std::mem::replace(&mut self.remote, remote) != remote;
        has_moved.then(|| PeerAddr::from_inet(remote))
    }

    pub(crate) fn remote_addr(&self) -> PeerAddr {
        PeerAddr::from_inet(self.remote)
    }

    pub(crate) fn local_addr(&self) -> PeerAddr {
        let Ok(mut addr) = self.registration.endpoint().local_addr() else {
            return PeerAddr::None;
        };
        // The socket may be bound to all addresses.
        if let Some(ip) = self.conn.local_ip() {
            addr.set_ip(ip);
        }
        PeerAddr::from_inet(addr)
    }

    pub(crate) fn tls_info(&self) -> Option<TlsInfo> {
        if self.is_handshaking() && !self.receives_early_data() {
            return None;
        }
        let session = self.conn.crypto_session();
        let data = session.handshake_data()?.downcast::<HandshakeData>().ok()?;
        let certs = session
            .peer_identity()
            .and_then(|certs| certs.downcast::<Vec<CertificateDer<'static>>>().ok());
        Some(TlsInfo {
            // QUIC has no other version (RFC 9001 4.2).
            version: 0x0304,
            // quinn does not say which suite was chosen.
            cipher_suite: 0,
            alpn: data.protocol,
            peer_certs: certs.map(|certs| *certs).unwrap_or_default(),
            server_name: data.server_name,
        })
    }

    /// Opens request streams ahead and returns how many are there; `None` if there are as many as before.
    pub(crate) fn open_ahead(&mut self) -> Option<u64> {
        let before = self.opened.len();
        while self.opened.len() < OPENED_AHEAD
            && let Some(id) = self.conn.quic().streams().open(Dir::Bi)
        {
            self.opened.push_back(id.into());
        }
        (self.opened.len() != before).then_some(self.opened.len() as u64)
    }
}
