//! One QUIC connection: quinn's state machine, and sending on the socket of its endpoint.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::Transmit;
use quinn_proto::crypto::Session;

use crate::quic::key::Key;
use crate::quic::pacer::Pacer;
use crate::quic::{QuicLimits, UdpSocket};

thread_local! {
    /// Space for the datagrams of one send; a connection keeps none of its own.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// Everything that the peer and the congestion control allow now has been sent.
    All,
    /// The socket's buffer is full; [`Endpoint::writable`](super::Endpoint::writable) returns the connection when it is not.
    Blocked,
    /// The budget is used up: send again in the next service.
    Budget,
}

/// Packets of one connection, as QUIC counts them. Losses are those of packets from this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuicCounts {
    pub connections: u64,
    /// Connections that a client began with early data (0-RTT), and those of which the server accepted it.
    pub early_sent: u64,
    pub early_accepted: u64,
    pub sent_packets: u64,
    pub lost_packets: u64,
    pub sent_datagrams: u64,
    pub received_datagrams: u64,
    /// Reductions of the congestion window.
    pub congestion_events: u64,
}

impl QuicCounts {
    /// Adds those of another connection.
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.early_sent += other.early_sent;
        self.early_accepted += other.early_accepted;
        self.sent_packets += other.sent_packets;
        self.lost_packets += other.lost_packets;
        self.sent_datagrams += other.sent_datagrams;
        self.received_datagrams += other.received_datagrams;
        self.congestion_events += other.congestion_events;
    }
}

/// A connection of an [`Endpoint`](super::Endpoint).
pub struct Connection {
    quic: quinn_proto::Connection,
    key: Key,
    socket: Arc<UdpSocket>,
    /// Datagrams that the socket has not accepted.
    unsent: Option<Box<(Transmit, Vec<u8>)>>,
    send_window_bytes: u32,
    max_send_window_bytes: u32,
    /// Keeps the rate of a congestion controller that has one.
    pacer: Option<Box<Pacer>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(
        quic: quinn_proto::Connection,
        key: Key,
        socket: Arc<UdpSocket>,
        limits: &QuicLimits,
    ) -> Self {
        let is_paced = (quic.congestion_state().metrics().pacing_rate).is_some();
        Self {
            pacer: is_paced.then(Box::default),
            quic,
            key,
            socket,
            unsent: None,
            send_window_bytes: limits.send_window_bytes,
            max_send_window_bytes: limits.max_send_window_bytes,
        }
    }

    /// Number of the connection in its endpoint, unique while it is open.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The state machine: events, streams, closing. Call [`Endpoint::service`](super::Endpoint::service) before and
    /// [`send`](Self::send) afterwards.
    pub fn quic(&mut self) -> &mut quinn_proto::Connection {
        &mut self.quic
    }

    /// Address of this end, where the system says to which the peer sends.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.quic.local_ip()
    }

    pub(crate) fn counts(&self) -> QuicCounts {
        let stats = self.quic.stats();
        QuicCounts {
            connections: 1,
            early_sent: u64::from(self.quic.has_0rtt()),
            early_accepted: u64::from(self.quic.accepted_0rtt()),
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            sent_datagrams: stats.udp_tx.datagrams,
            received_datagrams: stats.udp_rx.datagrams,
            congestion_events: stats.path.congestion_events,
        }
    }

    pub(crate) fn crypto_session(&self) -> &dyn Session {
        self.quic.crypto_session()
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.quic.is_handshaking()
    }

    /// Whether there are keys for early data: on a server, it is accepted; on a client, it can be sent.
    pub(crate) fn has_early_data(&self) -> bool {
        self.quic.has_0rtt()
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) has something to do. Changes with every call.
    pub fn deadline(&mut self) -> Option<Instant> {
        let deadline = self.quic.poll_timeout();
        match self.pacer.as_ref().and_then(|pacer| pacer.until()) {
            Some(at) => Some(deadline.map_or(at, |other| other.min(at))),
            None => deadline,
        }
    }

    /// The last failure of the socket, returned once: a port where nothing listens, an unreachable network.
    pub(crate) fn take_failure(&self) -> Option<io::Error> {
        self.socket.take_failure()
    }

    /// Number of datagrams that have arrived from the peer.
    pub(crate) fn received_datagrams(&self) -> u64 {
        self.quic.stats().udp_rx.datagrams
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.quic.handle_timeout(now);
    }

    /// Widens the send window to two congestion windows, within its bound: while one is on its way, the next one is
    /// written. Returns false if it is that wide.
    pub(crate) fn widen_send_window(&mut self) -> bool {
        let wanted = self.quic.congestion_state().window().saturating_mul(2);
        let wanted = u32::try_from(wanted)
            .unwrap_or(u32::MAX)
            .min(self.max_send_window_bytes);
        if wanted <= self.send_window_bytes {
            return false;
        }
        self.send_window_bytes = wanted;
        self.quic.set_send_window(wanted.into());
        true
    }

    /// Sends what is due, at most `budget_bytes` and one batch of datagrams more.
    pub fn send(&mut self, now: Instant, budget_bytes: usize) -> SendOutcome {
        if let Some(unsent) = self.unsent.take()
            && !self.socket.send(&unsent.0, &unsent.1)
        {
            self.unsent = Some(unsent);
            self.socket.block(self.key);
            return SendOutcome::Blocked;
        }
        SCRATCH.with_borrow_mut(|scratch| self.send_batches(now, budget_bytes, scratch))
    }

    fn send_batches(
        &mut self,
        now: Instant,
        budget_bytes: usize,
        scratch: &mut Vec<u8>,
    ) -> SendOutcome {
        let mut sent_bytes = 0;
        while sent_bytes < budget_bytes {
            scratch.clear();
            let mut batch = self.socket.batch();
            if let Some(pacer) = &mut self.pacer {
                let bits_per_s = self.quic.congestion_state().metrics().pacing_rate;
                batch = batch.min(pacer.datagrams(now, bits_per_s.unwrap_or(u64::MAX) / 8));
                if batch == 0 {
                    return SendOutcome::All;
                }
            }
            let Some(transmit) = self.quic.poll_transmit(now, batch, scratch) else {
                return SendOutcome::All;
            };
            if let Some(pacer) = &mut self.pacer {
                pacer.sent(transmit.size);
            }
            let contents = &scratch[..transmit.size];
            if !self.socket.send(&transmit, contents) {
                self.unsent = Some(Box::new((transmit, contents.to_vec())));
                self.socket.block(self.key);
                return SendOutcome::Blocked;
            }
            sent_bytes += transmit.size;
        }
        SendOutcome::Budget
    }
}
