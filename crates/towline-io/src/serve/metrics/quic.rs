//! Metrics of HTTP/3, summed over all workers.

use std::sync::atomic::AtomicU64;

use super::slot::Slot;

type Read = fn(&Slot) -> &AtomicU64;

/// Name, type, help and counter.
pub(super) const SUMS: [(&str, &str, &str, Read); 14] = [
    (
        "towline_quic_connections_open",
        "gauge",
        "QUIC connections open.",
        |slot| &slot.quic_connections_open,
    ),
    (
        "towline_quic_handshakes_total",
        "counter",
        "QUIC handshakes completed.",
        |slot| &slot.quic_handshakes,
    ),
    (
        "towline_quic_retries_total",
        "counter",
        "QUIC connection attempts answered with Retry.",
        |slot| &slot.quic_retries,
    ),
    (
        "towline_quic_refused_total",
        "counter",
        "QUIC connection attempts refused: too many handshakes, or the worker is ending.",
        |slot| &slot.quic_refused,
    ),
    (
        "towline_quic_early_accepted_total",
        "counter",
        "QUIC handshakes whose early data (0-RTT) was accepted.",
        |slot| &slot.quic_early_accepted,
    ),
    (
        "towline_quic_early_refused_total",
        "counter",
        "QUIC handshakes whose early data was refused: the ticket was used before, forgotten, or of another worker.",
        |slot| &slot.quic_early_refused,
    ),
    (
        "towline_quic_early_requests_total",
        "counter",
        "Requests passed to the application before the handshake was complete.",
        |slot| &slot.quic_early_requests,
    ),
    (
        "towline_quic_early_held_total",
        "counter",
        "Requests in early data that waited for the handshake: not of a safe method, or with a body.",
        |slot| &slot.quic_early_held,
    ),
    (
        "towline_quic_migrations_total",
        "counter",
        "Changes of a client's address on a QUIC connection.",
        |slot| &slot.quic_migrations,
    ),
    (
        "towline_quic_packets_sent_total",
        "counter",
        "QUIC packets sent on connections that have ended.",
        |slot| &slot.quic_packets_sent,
    ),
    (
        "towline_quic_packets_lost_total",
        "counter",
        "QUIC packets of these that were lost.",
        |slot| &slot.quic_packets_lost,
    ),
    (
        "towline_quic_forwarded_total",
        "counter",
        "Datagrams that a worker has forwarded to another: they belong to a connection of that one, or begin one.",
        |slot| &slot.quic_forwarded,
    ),
    (
        "towline_quic_forwarded_taken_total",
        "counter",
        "Forwarded datagrams that have arrived at the other worker. The others are lost, and sent again by the client.",
        |slot| &slot.quic_taken,
    ),
    (
        "towline_quic_forward_failures_total",
        "counter",
        "Datagrams that could not be forwarded, and messages at a worker's port that did not come from a worker.",
        |slot| &slot.quic_forward_failures,
    ),
];
