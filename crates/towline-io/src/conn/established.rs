//! A connection that a dial has made.

use std::time::Duration;

use towline_proto::{Protocol, ProtocolPolicy};

use crate::conn::addr::PeerAddr;
use crate::conn::quic_transport::QuicTransport;
use crate::conn::transport::Transport;
use crate::quic;
use crate::tls::ALPN_H2;

/// A connection that may carry requests. TLS may have decrypted bytes already: with an edge-triggered poll,
/// read once without waiting for an event.
pub struct Established {
    pub(crate) transport: Transport,
    /// The protocol chosen by the origin.
    pub alpn: Option<Vec<u8>>,
    /// Peer address of the socket: that of the proxy if there is one.
    pub remote: PeerAddr,
    pub timings: DialTimings,
}

impl Established {
    /// A QUIC connection, the only one of its endpoint. It may be before its handshake.
    pub fn from_quic(
        mut conn: quic::Connection,
        endpoint: quic::Endpoint,
        timings: DialTimings,
    ) -> Self {
        let remote = PeerAddr::from_inet(conn.quic().remote_address());
        let transport = QuicTransport::client(conn, endpoint);
        Self {
            transport: Transport::Quic(Box::new(transport)),
            alpn: Some(quic::ALPN_H3.to_vec()),
            remote,
            timings,
        }
    }

    /// Whether requests are sent before the handshake of QUIC is complete.
    pub(crate) fn sends_early_data(&self) -> bool {
        let quic = self.transport.quic();
        quic.is_some_and(QuicTransport::sends_early_data)
    }

    /// The protocol of the connection, `allowed` being the configured ones.
    pub(crate) fn protocol(&self, allowed: ProtocolPolicy) -> Protocol {
        if self.transport.quic().is_some() {
            return Protocol::Http3;
        }
        match (&self.alpn, allowed) {
            (Some(chosen), _) if chosen == ALPN_H2 => Protocol::Http2,
            // Prior knowledge, which is not possible over TLS (RFC 9113 3.3).
            (None, ProtocolPolicy::Http2) if self.transport.tls().is_none() => Protocol::Http2,
            _ => Protocol::Http1,
        }
    }
}

/// Duration of each phase; `None` for a phase that the route does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialTimings {
    pub dns: Option<Duration>,
    pub connect: Duration,
    pub proxy: Option<Duration>,
    pub tls: Option<Duration>,
    /// The handshake of QUIC, which has that of TLS in it; `connect` and `tls` are empty then.
    pub quic: Option<Duration>,
}
