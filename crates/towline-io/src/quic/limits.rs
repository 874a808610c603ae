//! The bounds of QUIC connections and endpoints.

use std::time::Duration;

/// Algorithm that decides how much a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438: less after each loss.
    Cubic,
    /// The rate at which data arrives, whatever is lost by chance.
    Bbr,
}

/// Bounds of an endpoint and of each of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicLimits {
    /// Bidirectional streams of the peer at once: requests, on a server. As many as over HTTP/2.
    pub max_bidi_streams: u32,
    /// Unidirectional streams of the peer at once: control, two of QPACK (RFC 9114 6.2), and room for
    /// streams of unknown types, which are refused one after the other.
    pub max_uni_streams: u32,
    /// Bytes of one stream that the peer may send ahead of the program.
    pub stream_window_bytes: u32,
    /// Bytes of all streams of a connection that the peer may send ahead of the program. Unread streams stop the
    /// others when they fill this window, so it has room for all of them, as with HTTP/2.
    pub connection_window_bytes: u32,
    /// Bytes that the program has written and the peer has not acknowledged, for all streams together. This is the
    /// product of bandwidth and round-trip time that one connection can use: 1 MiB is 160 Mbit/s at 50 ms.
    pub send_window_bytes: u32,
    /// Most that the send window grows to, with the congestion window: a peer that acknowledges nothing widens neither. As
    /// much as Linux gives a TCP connection.
    pub max_send_window_bytes: u32,
    pub congestion: Congestion,
    /// Handshake bytes that arrive out of order; a chain of certificates fits into the 16 KiB.
    pub crypto_buffer_bytes: usize,
    /// A connection without any packet for this long is forgotten (RFC 9000 10.1). Longer than the keep-alive
    /// timeout of the program, which is the one that closes idle connections.
    pub idle_timeout: Duration,
    /// A PING is sent after this time without any packet from the peer. `None`: never.
    pub keep_alive: Option<Duration>,
    /// Handshakes in progress; over it further ones are refused.
    pub max_handshakes: usize,
    /// Handshakes in progress from which on an address is validated by Retry (RFC 9000 8.1.2) before a
    /// connection has any state. A retry costs honest clients one round trip, so it is not sent always.
    pub retry_from_handshakes: usize,
    /// Early data (0-RTT) is accepted by a server, and sent by a client that has a ticket. A server's program must know
    /// which requests came in it, since an attacker may have recorded them (RFC 8470).
    pub early_data: bool,
    /// Bytes of early data of a connection, all streams together: a server's window until the handshake is complete.
    /// A client's first flight is 14 KiB as a rule (RFC 9002 7.2).
    pub early_data_bytes: u32,
    /// Tickets that a server with early data keeps; over it the oldest are forgotten, with which clients then
    /// have no early data. Each handshake issues two, of about 300 bytes.
    pub early_data_tickets: usize,
    /// Datagrams held for a connection that another thread has; over it they are dropped, as by a full
    /// socket buffer, and the peer repeats them.
    pub max_inbox: usize,
    /// Size of the socket's buffers in the kernel, in bytes. The default of Linux (208 KiB) holds 140 full datagrams,
    /// few for all connections of a server. The kernel may grant less.
    pub socket_buffer_bytes: usize,
}

impl QuicLimits {
    /// The defaults of a server on the public internet.
    pub const fn server() -> Self {
        Self {
            max_bidi_streams: 128,
            max_uni_streams: 8,
            stream_window_bytes: 256 * 1024,
            connection_window_bytes: 128 * 256 * 1024,
            send_window_bytes: 1024 * 1024,
            max_send_window_bytes: 4 * 1024 * 1024,
            congestion: Congestion::Cubic,
            crypto_buffer_bytes: 16 * 1024,
            idle_timeout: Duration::from_secs(90),
            keep_alive: None,
            max_handshakes: 1024,
            retry_from_handshakes: 128,
            early_data: false,
            early_data_bytes: 64 * 1024,
            early_data_tickets: 8 * 1024,
            max_inbox: 256,
            socket_buffer_bytes: 2 * 1024 * 1024,
        }
    }

    /// The defaults of a client: larger windows, for distant servers; no requests from the server.
    pub const fn client() -> Self {
        let mut limits = Self::server();
        limits.max_bidi_streams = 0;
        limits.stream_window_bytes = 1024 * 1024;
        limits.connection_window_bytes = 16 * 1024 * 1024;
        limits.send_window_bytes = 4 * 1024 * 1024;
        // Three PINGs without an answer end a connection, whose calls would wait for their timeouts otherwise.
        limits.idle_timeout = Duration::from_secs(30);
        limits.keep_alive = Some(Duration::from_secs(10));
        limits
    }
}

impl Default for QuicLimits {
    fn default() -> Self {
        Self::server()
    }
}
