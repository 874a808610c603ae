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
//! This file holds the state; `transport` is the interface to QUIC and `unidirectional` the streams that belong to the
//! connection; `recv` reads the frames of requests and `messages` assembles messages; `responses` and `send` write
//! messages and `prepared` requests that are sent many times; `send_queue` decides which stream sends, `timers` watches
//! the time, `close` ends streams and the connection; `early_data` holds requests until the handshake is complete.

mod close;
mod early_data;
mod frame;
mod messages;
mod opened;
mod prepared;
pub(crate) mod qpack;
mod recv;
mod responses;
mod rules;
mod send;
mod send_queue;
mod settings;
pub(crate) mod storage;
mod stream;
mod timers;
mod transport;
mod unidirectional;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::multiplexed::head::HeadDecoder;
use crate::multiplexed::prepared::EncodedRequests;
use crate::multiplexed::rate_limit::TokenBucket;
use crate::multiplexed::refusals::Refusals;
use crate::multiplexed::response::HeadCache;
use crate::multiplexed::send_queue::SendQueue;
use crate::multiplexed::streams::{MAX_IDLE_SLOTS, StreamKey, Streams};
use crate::{
    BufferPool, ConnectionError, Interest, Limits, PeerClose, Protocol, QuicCommand, Side,
    StreamId, UserError,
};

pub use early_data::EarlyData;
use opened::OpenedStreams;
use qpack::{Decoder, Encoder};
use settings::PeerSettings;
use storage::{Scratch, StreamStorage};
use stream::{RequestId, Stream};
use timers::Timers;
use unidirectional::{EarlyPriority, OwnStreams, PeerStream};

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

/// The own GOAWAY (RFC 9114 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAwayState {
    None,
    /// Announced without a first request that is not processed: requests that are on their way still are.
    Announced,
    /// Sent with that request: it and later ones are rejected.
    Final(u64),
}

/// Pending events of the connection itself.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionEvents {
    /// The first request that the peer does not process.
    going_away: Option<u64>,
    closed: bool,
}

/// One end of an HTTP/3 connection.
#[derive(Debug)]
pub struct Connection {
    limits: Arc<Limits>,
    side: Side,
    phase: Phase,
    /// `close()` was called.
    closing: bool,
    /// A byte arrived since the last request was sent (client).
    response_started: bool,
    now: Instant,
    commands: VecDeque<QuicCommand>,
    head_decoder: HeadDecoder,
    decoder: Decoder,
    encoder: Encoder,
    /// Acknowledgements and cancellations for the decoder stream.
    acknowledgements: Vec<u8>,
    /// The lines of the field section being encoded, and the section.
    scratch: Scratch,
    /// Encoded prepared requests: boxed, since servers have none.
    encoded_requests: Option<Box<EncodedRequests>>,
    /// The last head that responses repeated.
    head_cache: HeadCache,
    streams: Streams<Stream>,
    /// Streams with pending events, in the order of the events.
    eventful: VecDeque<StreamKey>,
    /// Streams with bytes to parse.
    ready: VecDeque<StreamKey>,
    /// Streams with a field section that needs entries which have not arrived.
    blocked: Vec<StreamKey>,
    /// Closed streams, removed on the next call of `next_event`.
    closed: Vec<StreamKey>,
    /// Streams that QUIC has bytes of, and that have room for them.
    readable: VecDeque<u64>,
    send_queue: SendQueue,
    /// Bytes queued in the outboxes of all streams.
    outboxes_bytes: usize,
    /// The last result of `next_stream_send`: stream and length.
    offered: (u64, usize),
    own_streams: OwnStreams,
    peer_streams: Vec<PeerStream>,
    peer_settings: PeerSettings,
    /// Request streams that the client has opened, on a server.
    peer_requests: OpenedStreams,
    peer_unidirectional: OpenedStreams,
    /// Priorities that arrived before their requests.
    early_priorities: VecDeque<EarlyPriority>,
    /// The largest push identifier that the client allows, and the last one of its GOAWAY.
    max_push: Option<u64>,
    peer_push_go_away: Option<u64>,
    /// The next request stream that we open.
    next_id: u64,
    /// Number of request streams that QUIC can open now.
    credit: u64,
    go_away: GoAwayState,
    /// The first request that the peer does not process.
    peer_go_away: Option<u64>,
    conn_events: ConnectionEvents,
    resets: TokenBucket,
    control: TokenBucket,
    /// Bytes of table entries that repeat others, not charged yet.
    copied_bytes: usize,
    /// Ended streams that the peer has not acknowledged.
    unacknowledged: usize,
    timers: Timers,
    error: Option<Arc<ConnectionError>>,
    /// Client: why QUIC has closed, while streams are read that it has bytes of.
    lost: Option<Box<Loss>>,
    /// Server: the refusals that the program has not taken.
    refusals: Refusals,
    early_data: EarlyData,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let mut conn = Self {
            side,
            phase: Phase::Open,
            closing: false,
            response_started: false,
            now,
            commands: VecDeque::new(),
            head_decoder: HeadDecoder::default(),
            decoder: Decoder::new(limits.http3.qpack_table_bytes),
            encoder: Encoder::new(),
            acknowledgements: Vec::new(),
            scratch: Scratch::default(),
            encoded_requests: None,
            head_cache: HeadCache::default(),
            streams: Streams::default(),
            eventful: VecDeque::new(),
            ready: VecDeque::new(),
            blocked: Vec::new(),
            closed: Vec::new(),
            readable: VecDeque::new(),
            send_queue: SendQueue::default(),
            outboxes_bytes: 0,
            offered: (0, 0),
            own_streams: OwnStreams::of(side),
            peer_streams: Vec::new(),
            peer_settings: PeerSettings::default(),
            peer_requests: OpenedStreams::from(0),
            peer_unidirectional: OpenedStreams::from(match side {
                Side::Server => 2,
                Side::Client => 3,
            }),
            early_priorities: VecDeque::new(),
            max_push: None,
            peer_push_go_away: None,
            next_id: 0,
            credit: 0,
            go_away: GoAwayState::None,
            peer_go_away: None,
            conn_events: ConnectionEvents::default(),
            resets: TokenBucket::full(limits.http3.resets, now),
            control: TokenBucket::full(limits.http3.control_frames, now),
            copied_bytes: 0,
            unacknowledged: 0,
            timers: Timers::new(now),
            error: None,
            lost: None,
            refusals: Refusals::of(Protocol::Http3),
            early_data: EarlyData::default(),
            limits,
        };
        conn.open_own_streams();
        conn
    }

    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the storage of an idle connection. A server takes it again with the next request.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.own_streams.release();
        if self.side == Side::Server && self.commands.is_empty() {
            self.commands = VecDeque::new();
        }
        self.peer_streams.shrink_to_fit();
        if self.streams.is_empty() && !self.streams.is_unallocated() {
            self.release_storage(buffers);
        }
    }

    /// No stream is open: a server returns its stream storage to the pool, a client keeps it.
    fn release_storage(&mut self, buffers: &mut BufferPool) {
        // The streams in this list no longer exist.
        self.timers.unstarted.clear();
        self.streams.shrink();
        self.head_decoder.shrink();
        self.scratch.shrink();
        self.shrink_lists();
        // The peer's unidirectional streams may be readable.
        if self.side == Side::Server && self.readable.is_empty() {
            self.head_decoder.invalidate();
            let mut storage = StreamStorage::default();
            self.swap_storage(&mut storage);
            buffers.give_h3_storage(storage);
        }
    }

    /// Frees the memory of long lists.
    fn shrink_lists(&mut self) {
        self.eventful.shrink_to(MAX_IDLE_SLOTS);
        self.ready.shrink_to(MAX_IDLE_SLOTS);
        self.closed.shrink_to(MAX_IDLE_SLOTS);
        self.readable.shrink_to(MAX_IDLE_SLOTS);
    }

    /// Takes the storage that the next request needs.
    pub fn prepare(&mut self, buffers: &mut BufferPool) {
        if self.streams.is_unallocated()
            && self.readable.is_empty()
            && let Some(mut storage) = buffers.take_h3_storage()
        {
            self.swap_storage(&mut storage);
        }
    }

    /// Exchanges what an idle connection does not keep.
    fn swap_storage(&mut self, storage: &mut StreamStorage) {
        std::mem::swap(&mut self.streams, &mut storage.streams);
        std::mem::swap(&mut self.head_decoder, &mut storage.head_decoder);
        std::mem::swap(&mut self.eventful, &mut storage.eventful);
        std::mem::swap(&mut self.ready, &mut storage.ready);
        std::mem::swap(&mut self.closed, &mut storage.closed);
        std::mem::swap(&mut self.readable, &mut storage.readable);
        std::mem::swap(&mut self.scratch, &mut storage.scratch);
    }

    // Outputs.

    pub fn interest(&self) -> Interest {
        Interest {
            read: self.phase == Phase::Open && !self.readable.is_empty(),
            write: self.has_output(),
            closed: self.phase == Phase::Closed && self.commands.is_empty(),
            ..Interest::default()
        }
    }

    /// Whether `next_event` may return an event without more input.
    pub fn has_events(&self) -> bool {
        !self.eventful.is_empty()
            || self.conn_events.closed
            || self.conn_events.going_away.is_some()
            || (self.phase == Phase::Open && !self.ready.is_empty())
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Open && !self.is_busy() && !self.has_output()
    }

    /// Whether the server accepts an extended CONNECT; `None`: its SETTINGS have not arrived.
    pub fn extended_connect(&self) -> Option<bool> {
        self.peer_settings.extended_connect
    }

    /// Number of requests that can be started now.
    pub fn stream_capacity(&self) -> usize {
        self.stream_limit().saturating_sub(self.open_streams())
    }

    /// Number of requests that can be in flight at once; 0: no more can be started.
    pub fn stream_limit(&self) -> usize {
        let is_open = self.side == Side::Client
            && self.phase == Phase::Open
            && !self.closing
            && self.lost.is_none()
            && self.peer_go_away.is_none();
        if !is_open {
            return 0;
        }
        let credit = usize::try_from(self.credit).unwrap_or(usize::MAX);
        let max = self.limits.http3.max_concurrent_streams as usize;
        max.min(self.open_streams().saturating_add(credit))
    }

    pub fn response_started(&self) -> bool {
        self.response_started
    }

    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.error.as_ref()
    }

    pub fn find(&self, id: StreamId) -> Result<StreamKey, UserError> {
        self.streams
            .find(RequestId(id.0))
            .filter(|&key| self.streams.get(key).is_announced)
            .ok_or(UserError::UnknownStream)
    }

    // Derived state.

    /// Number of streams that are not closed.
    fn open_streams(&self) -> usize {
        self.streams.len() - self.closed.len()
    }

    fn is_busy(&self) -> bool {
        self.open_streams() > 0
    }
}
