//! Every bound of the protocol core: nothing that a peer sends may grow without one of these.

use std::time::Duration;

/// Bounds and timeouts of one connection. Shared by many connections through an `Arc`.
///
/// [`Limits::server`] and [`Limits::client`] give the defaults of the two sides; every field can be
/// changed before the connection is made. A timeout of `None` never fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Request or status line, without its CRLF. Over it: 414 when the target is what is too long, else 400.
    pub max_start_line_bytes: u32,
    /// One field line, without its CRLF. Over it: 431.
    pub max_field_line_bytes: u32,
    /// The whole field block of a head, or of a trailer section. Over it: 431.
    pub max_head_bytes: u32,
    /// Field lines in a head, or in a trailer section. Over it: 431.
    pub max_fields: u32,
    /// Body of a received message after decoding; `None`: unbounded, the body is streamed. Over it: 413.
    pub max_body_bytes: Option<u64>,
    /// Total bytes of chunk extensions in one body (hyper's figure; extensions are not used in practice).
    pub max_chunk_extension_bytes: u32,
    /// Maximum ratio of chunk framing to the data it carries, checked above 64 KiB of framing. A chunk of one
    /// byte costs 5; leading zeros of the size could make it 20.
    pub max_chunk_overhead_ratio: u32,
    /// Empty lines skipped before a start line (RFC 9112 2.2 asks for at least one).
    pub max_empty_lines: u8,
    /// Interim (1xx) responses to one request, client side.
    pub max_interim_responses: u32,
    /// Bytes buffered that the program has not read: the only read-ahead there is.
    pub window_bytes: usize,
    /// High-water mark of unsent bytes; `StreamMut::send_capacity` counts down from it. With HTTP/2 each
    /// stream has as much, and the connection once more for frames that are ready to be sent.
    pub send_window_bytes: usize,
    /// Time for the rest of a request body that the program does not read, and for input after our FIN (RFC 9112
    /// 9.6), while it makes progress: many clients send the whole body before they read the response. Not a size:
    /// skipped bytes cost no memory, and a response that promises to keep the connection comes before the size is
    /// known. Five minutes are 30 MiB at 100 KiB/s.
    pub discard_timeout: Duration,
    /// HTTP/2: bytes discarded after a violation of the protocol, for the GOAWAY to be read.
    pub max_linger_bytes: u64,
    /// A whole head must arrive within this time, counted from accept or from its first byte; no
    /// further byte resets it (slowloris). 408.
    pub header_timeout: Option<Duration>,
    /// A body in transfer, in either direction, must make progress within this time. 408.
    pub body_timeout: Option<Duration>,
    /// ... and over each such period at this rate; 0 switches the check off.
    pub min_bytes_per_s: u32,
    /// Timeout of a kept-alive connection without a request. Longer than the 60 s of common load balancers,
    /// so that they close first.
    pub keep_alive_timeout: Option<Duration>,
    /// Time after accept within which a connection on which `close` was called may still send its first
    /// request: bytes that were on their way when a server began to stop deserve a response.
    pub first_request_timeout: Duration,
    /// Time after `drain` within which an idle connection may send its next request: a client that reuses a
    /// connection at the moment in which it is closed loses the request. Three seconds cover the pauses of pooled
    /// connections under load, and are short compared with the time that requests in flight have.
    pub drain_idle_timeout: Duration,
    /// Time to wait for the peer's FIN after ours, without any input.
    pub linger_timeout: Duration,
    /// Time to wait for the peer's FIN after `drain` or `close` of a server: several round trips, for the last bytes to
    /// arrive.
    pub drain_linger_timeout: Duration,
    /// Source of the `date` of responses that a server's end makes itself (RFC 9110 6.6.1); `None`: they have
    /// none. Here because the core never reads a clock.
    pub date: Option<DateSource>,
    /// Bounds that only HTTP/2 needs.
    pub http2: Http2Limits,
    /// Bounds that only HTTP/3 needs.
    pub http3: Http3Limits,
}

/// A function that returns the current time as an HTTP date (RFC 9110 5.6.7).
#[derive(Clone, Copy)]
pub struct DateSource(pub fn() -> [u8; 29]);

impl std::fmt::Debug for DateSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DateSource")
    }
}

impl PartialEq for DateSource {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for DateSource {}

/// The bounds that HTTP/2 adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Limits {
    /// Server: streams at once, including streams that the peer has reset while the application still
    /// processes them. Over it: `REFUSED_STREAM`. Client: the most that it opens, if the peer allows as many.
    pub max_concurrent_streams: u32,
    /// Bytes of one stream that may be buffered for the program: the only read-ahead there is. Reading
    /// reopens it.
    pub stream_window_bytes: u32,
    /// The window doubles up to this each time the program has read all that was received, since one window
    /// per round trip bounds the throughput. If not above `stream_window_bytes`, the window stays as it is.
    pub max_stream_window_bytes: u32,
    /// Bytes in flight on all streams together. Reopened on receipt, so that a stream that is not read never
    /// stops the others; memory is bounded by the windows of the streams.
    pub connection_window_bytes: u32,
    /// The longest frame payload accepted, 16 KiB to 16 MiB - 1 (RFC 9113 4.2). Larger frames would only
    /// make a stream wait longer for its turn.
    pub max_frame_bytes: u32,
    /// A field section after decoding: name, value and 32 bytes for each field (RFC 9113 6.5.2), crumbs of
    /// cookies counted one by one. Over it: 431.
    pub max_header_list_bytes: u32,
    /// Field lines in a field section, pseudo-fields included. Over it: 431.
    pub max_fields: u32,
    /// The encoded size of a field section. Over it the connection ends, before anything is decoded.
    pub max_header_block_bytes: u32,
    /// CONTINUATION frames of one field section (CVE-2024-27316). Over it the connection ends.
    pub max_continuations: u32,
    /// Size of the dynamic table that the peer may use for encoding (RFC 7541 4.2).
    pub header_table_bytes: u32,
    /// Streams that end by a reset, sent by the peer or caused by it (CVE-2023-44487, CVE-2025-8671): a
    /// burst, and a rate per second. Over it: `ENHANCE_YOUR_CALM`. Server only.
    pub resets: RateLimit,
    /// Frames that carry no data: SETTINGS, PING, PRIORITY, small `WINDOW_UPDATE`, empty DATA, unknown ones
    /// (CVE-2019-9511 to 9518).
    pub control_frames: RateLimit,
    /// Reading stops while more than this of responses and control frames waits to be sent.
    pub max_queued_bytes: usize,
    /// Body bytes of all streams together that wait to be sent. Over it a stream has send capacity only for its
    /// first 16 KiB, so that streams that are not read stop no other.
    pub max_unsent_bytes: usize,
    /// The own SETTINGS must be acknowledged within this time. `SETTINGS_TIMEOUT`.
    pub settings_timeout: Option<Duration>,
    /// Send a PING when nothing was received for this long while streams are open.
    pub ping_interval: Option<Duration>,
    /// The PING must be acknowledged within this time.
    pub ping_timeout: Duration,
    /// Server: the final GOAWAY is sent this long after the announcement was acknowledged. A client with threads may
    /// acknowledge it while another thread writes a request (Go's does), which it cannot repeat if it has a body.
    /// Also the time in which a connection without a request may send its first before GOAWAY is announced.
    pub go_away_delay: Duration,
    /// Extended CONNECT (RFC 8441) is offered: WebSocket over HTTP/2.
    pub extended_connect: bool,
}

/// The bounds that HTTP/3 adds. Windows are those of QUIC; a stream is read ahead of the program by
/// [`Limits::window_bytes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http3Limits {
    /// Server: requests at once, including those that the peer has reset while the application still processes them.
    /// Over it: `H3_REQUEST_REJECTED`. Client: the most that it opens, if the peer allows as many.
    pub max_concurrent_streams: u32,
    /// A field section after decoding: name, value and 32 bytes for each field (RFC 9114 4.2.2). Over it: 431.
    pub max_field_section_bytes: u32,
    /// Field lines in a field section, pseudo-fields included. Over it: 431.
    pub max_fields: u32,
    /// The encoded size of a field section. Over it: 431.
    pub max_encoded_section_bytes: u32,
    /// Dynamic table that the peer may use for encoding (RFC 9204 3.2.3).
    pub qpack_table_bytes: u32,
    /// Streams that may wait for entries of that table at once (RFC 9204 2.1.2). Each holds at most an encoded field
    /// section.
    pub qpack_blocked_streams: u32,
    /// A frame of the control stream. All defined ones are shorter; longer ones of unknown types are skipped.
    pub max_control_frame_bytes: u32,
    /// Streams that end by a reset, sent by the peer or caused by it, and requests to stop sending: as
    /// [`Http2Limits::resets`]. Server only.
    pub resets: RateLimit,
    /// Frames and streams that carry no data: `PRIORITY_UPDATE`, empty DATA, frames and streams of unknown types, and
    /// table entries that repeat others.
    pub control_frames: RateLimit,
    /// Bytes that wait on one of our control and QPACK streams. Over it the connection ends: the peer does not read
    /// them.
    pub max_queued_bytes: usize,
    /// As [`Http2Limits::max_unsent_bytes`].
    pub max_unsent_bytes: usize,
    /// Server: time between the announcement of GOAWAY and the final one, and between that and closing: requests that
    /// are on their way arrive, also when a packet is lost once.
    pub go_away_delay: Duration,
    /// Extended CONNECT (RFC 9220) is offered: WebSocket over HTTP/3.
    pub extended_connect: bool,
}

impl Http3Limits {
    /// The defaults of a server on the public internet: where HTTP/2 has the same bound, the same value.
    pub const fn server() -> Self {
        let http2 = Http2Limits::server();
        Self {
            max_concurrent_streams: http2.max_concurrent_streams,
            max_field_section_bytes: http2.max_header_list_bytes,
            max_fields: http2.max_fields,
            max_encoded_section_bytes: http2.max_header_block_bytes,
            qpack_table_bytes: http2.header_table_bytes,
            qpack_blocked_streams: 16,
            max_control_frame_bytes: 4096,
            resets: http2.resets,
            control_frames: http2.control_frames,
            max_queued_bytes: http2.max_queued_bytes,
            max_unsent_bytes: http2.max_unsent_bytes,
            go_away_delay: Duration::from_millis(250),
            extended_connect: http2.extended_connect,
        }
    }

    /// The defaults of a client: as [`Http2Limits::client`].
    pub const fn client() -> Self {
        let mut limits = Self::server();
        limits.max_fields = MAX_RESPONSE_FIELDS;
        limits.max_concurrent_streams = 1024;
        limits.max_unsent_bytes = usize::MAX;
        limits
    }
}

/// Fields of a response: curl's bound. The bytes of a head bound them as well.
const MAX_RESPONSE_FIELDS: u32 = 5000;

/// Parameters of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Tokens of a full bucket: the largest burst.
    pub burst: u32,
    /// Tokens added each second.
    pub per_s: u32,
}

impl Http2Limits {
    /// The defaults of a server on the public internet.
    pub const fn server() -> Self {
        Self {
            max_concurrent_streams: 128,
            stream_window_bytes: 256 * 1024,
            max_stream_window_bytes: 0,
            connection_window_bytes: 1024 * 1024,
            max_frame_bytes: 16 * 1024,
            max_header_list_bytes: 64 * 1024,
            max_fields: 128,
            max_header_block_bytes: 64 * 1024,
            max_continuations: 8,
            header_table_bytes: 4096,
            resets: RateLimit {
                burst: 100,
                per_s: 33,
            },
            control_frames: RateLimit {
                burst: 1000,
                per_s: 100,
            },
            max_queued_bytes: 64 * 1024,
            max_unsent_bytes: 1024 * 1024,
            settings_timeout: Some(Duration::from_secs(15)),
            ping_interval: None,
            ping_timeout: Duration::from_secs(15),
            go_away_delay: Duration::from_millis(100),
            extended_connect: true,
        }
    }

    /// The defaults of a client: more streams than servers usually allow, and windows for fast, distant
    /// servers. No timeouts, as with [`Limits::client`].
    pub const fn client() -> Self {
        let mut limits = Self::server();
        limits.max_fields = MAX_RESPONSE_FIELDS;
        limits.max_concurrent_streams = 1024;
        limits.stream_window_bytes = 1024 * 1024;
        limits.max_stream_window_bytes = 4 * 1024 * 1024;
        limits.connection_window_bytes = 16 * 1024 * 1024;
        limits.settings_timeout = None;
        // Bodies of requests are the program's own.
        limits.max_unsent_bytes = usize::MAX;
        limits
    }
}

impl Limits {
    /// The defaults of a server on the public internet.
    pub const fn server() -> Self {
        Self {
            max_start_line_bytes: 8_192,
            max_field_line_bytes: 8_192,
            max_head_bytes: 32_768,
            max_fields: 100,
            max_body_bytes: None,
            max_chunk_extension_bytes: 16 * 1024,
            max_chunk_overhead_ratio: 16,
            max_empty_lines: 4,
            max_interim_responses: 100,
            window_bytes: 64 * 1024,
            send_window_bytes: 64 * 1024,
            discard_timeout: Duration::from_secs(300),
            max_linger_bytes: 4 * 1024 * 1024,
            header_timeout: Some(Duration::from_secs(15)),
            body_timeout: Some(Duration::from_secs(30)),
            min_bytes_per_s: 100,
            keep_alive_timeout: Some(Duration::from_secs(75)),
            first_request_timeout: Duration::from_secs(1),
            drain_idle_timeout: Duration::from_secs(3),
            linger_timeout: Duration::from_secs(5),
            drain_linger_timeout: Duration::from_millis(500),
            date: None,
            http2: Http2Limits::server(),
            http3: Http3Limits::server(),
        }
    }

    /// The defaults of a client: heads up to 64 KiB (cookies and policies of real sites), as many fields as curl
    /// accepts, and no timeout, since the client's own phases (read, write, total) decide those.
    pub const fn client() -> Self {
        let mut limits = Self::server();
        limits.max_field_line_bytes = 64 * 1024;
        limits.max_head_bytes = 64 * 1024;
        limits.max_fields = MAX_RESPONSE_FIELDS;
        limits.header_timeout = None;
        limits.body_timeout = None;
        limits.min_bytes_per_s = 0;
        limits.keep_alive_timeout = None;
        limits.http2 = Http2Limits::client();
        limits.http3 = Http3Limits::client();
        limits
    }

    /// The longest head that can be accepted: start line, fields and the line ends around them.
    pub(crate) fn whole_head_bytes(&self) -> usize {
        self.max_start_line_bytes as usize + self.max_head_bytes as usize + 16
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::server()
    }
}
