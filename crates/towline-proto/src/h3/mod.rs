//! HTTP/3, both sides: many exchanges over one QUIC connection (RFC 9114).
//!
//! ```text
//!  request streams ── frames ─► streams ──► events      phase  Open ──GOAWAY and no streams──► Closing
//!                     │ QPACK     │ outboxes                     │                  acknowledged │
//!  QUIC ◄─ send queue ◄───────────┘                              └──error, closed by QUIC──► Closed
//!
//!  unidirectional streams, of each side: control (SETTINGS, GOAWAY, priorities), QPACK encoder, QPACK decoder
//! ```
//!
//! QUIC has the streams, their flow control and their order; here is what is in them. The bytes of each stream are kept
//! until `next_event` parses them, one stream after the other, until there is an event. Streams are read from QUIC only
//! while little of them is unread here, so that QUIC's windows are what stops the peer.
//!
//! The core of the connection, shared with HTTP/2, is in `multiplexed`. This file holds the state of HTTP/3 alone.
//! `transport` is the interface to QUIC; `unidirectional` has the streams that belong to the connection. `recv` reads
//! the frames of requests, `messages` assembles messages, and `send` writes them. `send_queue` decides which stream
//! sends, `timers` watches the time, `close` ends streams and the connection. `early_data` holds requests until the
//! handshake is complete.

mod close;
mod early_data;
mod frame;
mod messages;
mod opened;
pub(crate) mod qpack;
mod recv;
mod rules;
mod send;
mod send_queue;
mod settings;
mod stream;
mod timers;
mod transport;
mod unidirectional;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::multiplexed::Multiplexed;
use crate::multiplexed::core::Core;
use crate::multiplexed::streams::StreamKey;
use crate::{BufferPool, ConnectionError, Interest, Limits, PeerClose, QuicCommand, Side};

pub use early_data::EarlyData;
use opened::{OpenedStreams, OwnRequests};
use qpack::{Acknowledgements, Decoder, Encoder};
pub(crate) use stream::Http3;
use unidirectional::{EarlyPriority, OwnStreams, PeerStream, Pushes};

/// Why QUIC has closed, and what the peer's program said about it.
#[derive(Debug)]
struct Loss {
    error: ConnectionError,
    close: Option<PeerClose>,
}

/// The number of no request: a GOAWAY with it only announces the end (RFC 9114 5.2).
const ANY_REQUEST: u64 = (1 << 62) - 4;

/// The connection as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is parsed. The connection closes when the peer has acknowledged all, or `linger_timeout` after the
    /// last progress, or at `until`.
    Closing {
        progress: Instant,
        until: Option<Instant>,
    },
    /// QUIC has the order to close, or has closed.
    Closed,
}

/// GOAWAY of both sides (RFC 9114 5.2).
#[derive(Debug, Default)]
struct GoAway {
    own: GoAwayState,
    /// The first request that the peer does not process.
    peer: Option<u64>,
}

/// The own GOAWAY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum GoAwayState {
    #[default]
    None,
    /// Announced without a first request that is not processed: requests that are on their way still are.
    Announced,
    /// Sent with that request: it and later ones are rejected.
    Final(u64),
}

/// One end of an HTTP/3 connection.
#[derive(Debug)]
pub struct Connection {
    core: Core<Http3>,
    phase: Phase,
    commands: VecDeque<QuicCommand>,
    decoder: Decoder,
    encoder: Encoder,
    acknowledgements: Acknowledgements,
    /// Streams with a field section that needs entries which have not arrived.
    blocked: Vec<StreamKey>,
    /// The last result of `next_stream_send`: stream and length.
    offered: (u64, usize),
    own_streams: OwnStreams,
    peer_streams: Vec<PeerStream>,
    /// Request streams that the client has opened, on a server.
    peer_requests: OpenedStreams,
    peer_unidirectional: OpenedStreams,
    /// Priorities that arrived before their requests.
    early_priorities: VecDeque<EarlyPriority>,
    pushes: Pushes,
    own_requests: OwnRequests,
    go_away: GoAway,
    /// Bytes of table entries that repeat others, not charged yet.
    copied_bytes: usize,
    /// Ended streams that the peer has not acknowledged.
    unacknowledged: usize,
    /// Client: why QUIC has closed, while streams are read that it has bytes of.
    lost: Option<Box<Loss>>,
    early_data: EarlyData,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let mut conn = Self {
            phase: Phase::Open,
            commands: VecDeque::new(),
            decoder: Decoder::new(limits.http3.qpack_table_bytes),
            encoder: Encoder::new(),
            acknowledgements: Acknowledgements::default(),
            blocked: Vec::new(),
            offered: (0, 0),
            own_streams: OwnStreams::of(side),
            peer_streams: Vec::new(),
            peer_requests: OpenedStreams::from(0),
            peer_unidirectional: OpenedStreams::from(match side {
                Side::Server => 2,
                Side::Client => 3,
            }),
            early_priorities: VecDeque::new(),
            pushes: Pushes::default(),
            own_requests: OwnRequests::default(),
            go_away: GoAway::default(),
            copied_bytes: 0,
            unacknowledged: 0,
            lost: None,
            early_data: EarlyData::default(),
            core: Core::new(side, limits, now),
        };
        conn.open_own_streams();
        conn
    }

    /// Returns the storage of an idle connection. A server takes it again with the next request.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.own_streams.release();
        if self.core.is_server() && self.commands.is_empty() {
            self.commands = VecDeque::new();
        }
        self.peer_streams.shrink_to_fit();
        self.core.release(buffers);
    }

    /// Takes the storage that the next request needs.
    pub fn prepare(&mut self, buffers: &mut BufferPool) {
        self.core.prepare(buffers);
    }

    // Outputs.

    pub fn interest(&self) -> Interest {
        Interest {
            read: self.is_open() && !self.core.own().readable.is_empty(),
            write: self.has_output(),
            closed: self.phase == Phase::Closed && self.commands.is_empty(),
            ..Interest::default()
        }
    }

    /// Whether `next_event` may return an event without more input.
    pub fn has_events(&self) -> bool {
        self.core.has_events() || (self.is_open() && !self.core.own().ready.is_empty())
    }

    pub fn is_idle(&self) -> bool {
        self.is_open() && !self.core.is_busy() && !self.has_output()
    }
}

impl Multiplexed for Connection {
    type Variant = Http3;

    #[inline]
    fn core(&self) -> &Core<Http3> {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self) -> &mut Core<Http3> {
        &mut self.core
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    fn stream_limit(&self) -> usize {
        let may_open = self.core.is_client()
            && self.is_open()
            && !self.core.is_closing()
            && self.lost.is_none()
            && self.go_away.peer.is_none();
        if !may_open {
            return 0;
        }
        let credit = usize::try_from(self.own_requests.credit()).unwrap_or(usize::MAX);
        let max = self.core.limits().http3.max_concurrent_streams as usize;
        max.min(self.core.open_streams().saturating_add(credit))
    }
}
