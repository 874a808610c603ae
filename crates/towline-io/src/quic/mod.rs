//! QUIC (RFC 9000), below HTTP/3: quinn-proto's state machines on UDP sockets of this crate.
//!
//! ```text
//!            receive              inbox                  next_event, streams
//! UdpSocket ────────► Endpoint ═════════► Connection ◄═══════════════════════► program (HTTP/3)
//!     ▲                  └──── refusals, Retry ────┐   │ send: GSO batches
//!     └────────────────────────────────────────────┴───┘
//! ```
//!
//! An [`Endpoint`] has one UDP socket and belongs to one thread. A [`Connection`] shares the socket for sending and
//! may be passed to another thread; meanwhile its endpoint keeps what arrives for it, up to a bound. The
//! two exchange their messages in [`Endpoint::service`]. Nothing here waits: the caller polls the
//! socket and keeps the timers ([`Connection::deadline`]).

mod bbr;
mod cid;
mod closing;
mod config;
mod connection;
mod early_packets;
mod endpoint;
mod forward;
mod forwarder;
mod key;
mod limits;
#[cfg(test)]
pub(crate) mod memory_socket;
mod pacer;
mod socket;
#[cfg(test)]
pub(crate) mod tests;
mod ticket_entry;
mod ticket_store;
#[cfg(test)]
mod worker_tests;
mod workers;

#[cfg(test)]
pub(crate) use config::transport;
pub use config::{client_config, server_config, server_config_sharing};
pub use connection::{Connection, QuicCounts, SendOutcome};
pub use endpoint::{Endpoint, EndpointCounts, ReceiveOutcome};
pub(crate) use forward::MAX_BYTES as MAX_FORWARDED_BYTES;
pub use forwarder::Forwarder;
pub use key::Key;
pub use limits::{Congestion, QuicLimits};
pub use socket::UdpSocket;
pub use ticket_store::TicketStore;
pub use workers::{WorkerSecret, Workers};

/// ALPN protocol id of HTTP/3 (RFC 9114 3.1).
pub const ALPN_H3: &[u8] = b"h3";
