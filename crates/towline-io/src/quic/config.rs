//! QUIC configurations, made from the TLS configurations of TCP and from the limits.

use std::io;
use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{ClientConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use rustls::server::ServerSessionMemoryCache;

use crate::quic::bbr::BbrConfig;
use crate::quic::{ALPN_H3, Congestion, QuicLimits, TicketStore};
use crate::tls::TlsConfig;

/// Datagrams held for a handshake that is not accepted yet: those of the first flight.
const INCOMING_BUFFER_BYTES: u64 = 16 * 1024;

/// Server configuration with the certificates, client verifier and cipher suites of `tls`, and ALPN `h3`.
///
/// Early data (0-RTT) is accepted only with `limits.early_data`, and once with each ticket: tickets are kept in this
/// process and removed when they are used, so the same first flight is refused when it comes again (RFC 8446 8.1).
pub fn server_config(tls: &TlsConfig, limits: &QuicLimits) -> io::Result<ServerConfig> {
    server_config_sharing(tls, limits, None)
}

/// Server configuration like [`server_config`], with tickets that all workers of a server share.
pub fn server_config_sharing(
    tls: &TlsConfig,
    limits: &QuicLimits,
    tickets: Option<Arc<TicketStore>>,
) -> io::Result<ServerConfig> {
    let mut tls = (*tls.server).clone();
    tls.alpn_protocols = vec![ALPN_H3.to_vec()];
    if limits.early_data {
        // QUIC bounds early data by its windows (RFC 9001 4.6.1).
        tls.max_early_data_size = u32::MAX;
        tls.session_storage = match tickets {
            Some(shared) => shared,
            None => ServerSessionMemoryCache::new(limits.early_data_tickets),
        };
    } else {
        tls.max_early_data_size = 0;
    }
    let crypto = QuicServerConfig::try_from(Arc::new(tls)).map_err(|_| no_initial_suite())?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(Arc::new(server_transport(limits)))
        // The endpoint has the same bound for those whose handshake has begun.
        .max_incoming(limits.max_handshakes.max(1))
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BUFFER_BYTES * 64);
    Ok(config)
}

/// Client configuration with the trust, certificate and cipher suites of `tls`, and ALPN `h3`. With
/// `limits.early_data` a connection for which there is a ticket can send before the handshake is complete.
pub fn client_config(tls: &rustls::ClientConfig, limits: &QuicLimits) -> io::Result<ClientConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN_H3.to_vec()];
    tls.enable_early_data = limits.early_data;
    let crypto = QuicClientConfig::try_from(Arc::new(tls)).map_err(|_| no_initial_suite())?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport(limits)));
    Ok(config)
}

fn server_transport(limits: &QuicLimits) -> TransportConfig {
    let mut config = transport(limits);
    if limits.early_data {
        // Size that a client remembers for its early data. The endpoint widens it with the end of the handshake.
        let window = limits.early_data_bytes.min(limits.connection_window_bytes);
        config.receive_window(VarInt::from_u32(window));
    }
    config
}

pub(crate) fn transport(limits: &QuicLimits) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(limits.max_bidi_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(limits.max_uni_streams))
        .stream_receive_window(VarInt::from_u32(limits.stream_window_bytes))
        .receive_window(VarInt::from_u32(limits.connection_window_bytes))
        .send_window(limits.send_window_bytes.into())
        .crypto_buffer_size(limits.crypto_buffer_bytes)
        .keep_alive_interval(limits.keep_alive)
        .max_idle_timeout(IdleTimeout::try_from(limits.idle_timeout).ok())
        // DATAGRAM frames (RFC 9221) have no use in plain HTTP/3.
        .datagram_receive_buffer_size(None);
    if limits.congestion == Congestion::Bbr {
        let max_window_bytes = limits.max_send_window_bytes.into();
        config.congestion_controller_factory(Arc::new(BbrConfig { max_window_bytes }));
    }
    config
}

fn no_initial_suite() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "TLS_AES_128_GCM_SHA256 must be among the cipher suites (RFC 9001 5.2): add it to the list",
    )
}
