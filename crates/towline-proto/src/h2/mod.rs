//! HTTP/2, both sides: many exchanges over one connection (RFC 9113).
//!
//! ```text
//!  recv buffer ── frames ─► streams ──► events          phase  Open ──error, GOAWAY and no streams──►
//!                 │ HPACK     │ windows, outboxes              Closing (flush, FIN, linger) ──► Closed
//!  send buffer ◄─┴─ send queue ◄─┘
//! ```
//!
//! Frames are read one after the other until there is an event. A head is kept in a buffer of the connection
//! until the next call of `next_event`; body bytes stay in the receive buffer until then, and move to the buffer
//! of their stream afterwards.
//!
//! This file holds the state and the input from the network; `recv` reads frames and `messages` assembles
//! messages; `responses` and `send` write messages and `prepared` requests that are sent many times; `send_queue`
//! decides which stream sends, `timers` watches the time, `close` ends streams and the connection.

mod close;
mod encode;
mod flow_control;
mod frame;
pub(crate) mod hpack;
mod messages;
mod recv;
mod resets;
mod rules;
mod send;
mod send_queue;
mod settings;
mod stream;
mod timers;
mod window;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::{RecvBudget, RecvBuffer, SendBuffer};
use crate::multiplexed::core::Core;
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Multiplexed, Timing};
use crate::protocol_switch::ProtocolSwitch;
use crate::{BufferPool, ErrorCode, Interest, Limits, PeerClose, Side};

use frame::{HEADER_BYTES, PREFACE};
use hpack::{Decoder, Encoder};
use resets::{LocalResets, PeerResets};
use settings::PeerSettings;
pub(crate) use stream::Http2;
use timers::Timers;
use window::{RecvWindow, SendWindow};

/// Send buffer kept by an idle client connection for its next head and a small body.
const CLIENT_SEND_BYTES: usize = 8 * 1024;

/// Maximum number of bytes that a server receives at once, unless it is inside a body: some hundred requests.
const MAX_RECV_BYTES: usize = 16 * 1024;

/// Whether the first bytes of a connection are the client preface (RFC 9113 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// A part of the preface: more bytes decide.
    Partial,
    /// Something else.
    Absent,
    Complete,
}

impl Preface {
    pub fn detect(bytes: &[u8]) -> Self {
        if bytes.starts_with(PREFACE) {
            Self::Complete
        } else if PREFACE.starts_with(bytes) {
            Self::Partial
        } else {
            Self::Absent
        }
    }
}

/// The connection as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is parsed. Queued bytes are sent, then FIN; input is discarded until the peer's FIN or
    /// `linger_timeout` after `since`.
    Closing {
        since: Instant,
        lingered: u64,
    },
    Closed {
        abort: bool,
    },
}

/// Position in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputState {
    /// Server: the client preface.
    Preface,
    /// A frame, which must be SETTINGS.
    Settings,
    Frame,
    /// Inside a DATA frame.
    Data(PartialData),
    /// Number of bytes to skip.
    Skip(u32),
}

/// The rest of a DATA frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartialData {
    id: u32,
    left: u32,
    padding: u32,
    end: bool,
}

/// Body bytes in the receive buffer, until the next call of `next_event`.
#[derive(Debug, Clone, Copy)]
struct DataChunk {
    to: StreamKey,
    at: usize,
    len: usize,
}

/// A header block of which frames are still missing.
#[derive(Debug, Default)]
struct PartialHeaderBlock {
    /// 0: none.
    stream: u32,
    end_stream: bool,
    self_dependent: bool,
    continuations: u32,
    bytes: Vec<u8>,
}

/// The own GOAWAY (RFC 9113 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAwayState {
    None,
    /// Announced without a last stream: requests that are on their way are still processed.
    Announced,
    /// The peer has acknowledged the announcement, but may still write requests that it had begun.
    Acknowledged,
    /// Sent with the last stream: those above it are ignored.
    Final(u32),
}

/// The peer's GOAWAY, one or several (RFC 9113 6.8).
#[derive(Debug, Clone)]
struct PeerGoAway {
    /// The last stream that it may process.
    last: u32,
    /// The reason: that of the first GOAWAY with an error, if there was one.
    close: Arc<PeerClose>,
}

impl PeerGoAway {
    /// It requires HTTP/1.1 (RFC 9113 7).
    fn wants_http1(&self) -> bool {
        self.close.code == ErrorCode::HTTP_1_1_REQUIRED
    }
}

/// One end of an HTTP/2 connection.
#[derive(Debug)]
pub struct Connection {
    core: Core<Http2>,
    phase: Phase,
    /// Requests name `https`.
    secure: bool,
    eof: bool,
    recv: RecvBuffer,
    send: SendBuffer,
    input: InputState,
    /// Number of unread bytes when the last frame was found incomplete.
    scanned_bytes: usize,
    chunk: Option<DataChunk>,
    partial_block: PartialHeaderBlock,
    decoder: Decoder,
    encoder: Encoder,
    /// The last frame of DATA or HEADERS in the send buffer: its stream and offset. `END_STREAM` can still be
    /// set on it.
    last_frame: Option<(u32, usize)>,
    local_resets: LocalResets,
    peer_resets: PeerResets,
    peer_settings: PeerSettings,
    /// Receive window of a new stream: our setting, once acknowledged.
    stream_window: u32,
    send_window: SendWindow,
    recv_window: RecvWindow,
    /// The last stream opened by the peer.
    last_peer: u32,
    /// The last stream opened after our final GOAWAY: more frames of it may have crossed the GOAWAY (RFC 9113
    /// 6.8).
    last_ignored: u32,
    /// The next stream that we open.
    next_id: u32,
    go_away: GoAwayState,
    /// The peer's GOAWAY.
    peer_go_away: Option<Box<PeerGoAway>>,
    /// Number of small window updates that the peer may send in return for our DATA frames.
    earned_updates: u32,
    /// Upper bound of the bytes in the send buffer that the peer has caused.
    induced_bytes: usize,
    timers: Timers,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let mut conn = Self {
            core: Core::new(side, limits, now),
            phase: Phase::Open,
            secure: false,
            eof: false,
            recv: RecvBuffer::default(),
            send: SendBuffer::default(),
            input: match side {
                Side::Server => InputState::Preface,
                Side::Client => InputState::Settings,
            },
            scanned_bytes: 0,
            chunk: None,
            partial_block: PartialHeaderBlock::default(),
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            last_frame: None,
            local_resets: LocalResets::default(),
            peer_resets: PeerResets::default(),
            peer_settings: PeerSettings::default(),
            stream_window: settings::DEFAULT_WINDOW,
            send_window: SendWindow::of(settings::DEFAULT_WINDOW),
            recv_window: RecvWindow::of(settings::DEFAULT_WINDOW),
            last_peer: 0,
            last_ignored: 0,
            next_id: 1,
            go_away: GoAwayState::None,
            peer_go_away: None,
            earned_updates: 0,
            induced_bytes: 0,
            timers: Timers::new(now),
        };
        if side == Side::Client {
            conn.send.push(PREFACE);
        }
        conn.send_settings();
        conn.induced_bytes = 0;
        conn
    }

    /// Continues a connection on which the HTTP/2 preface was found.
    pub fn from_http1(switch: ProtocolSwitch) -> Self {
        let mut conn = Self::new(switch.side, switch.limits, switch.now);
        conn.recv = switch.recv;
        conn.core.timers_mut().set_idle(switch.idle_timer);
        if switch.closing {
            conn.close();
        }
        conn
    }

    pub fn set_secure(&mut self, secure: bool) {
        self.secure = secure;
    }

    // From the network.

    pub fn recv_space(&mut self, buffers: &mut BufferPool) -> &mut [u8] {
        if self.eof || matches!(self.phase, Phase::Closed { .. }) || !self.may_receive() {
            return &mut [];
        }
        self.stash();
        if self.core.is_server() {
            self.prepare(buffers);
        }
        let budget = self.recv_budget();
        let space = self.recv.space(buffers, budget);
        // Bytes of a body cost little each; other frames can cause work with each byte, which delays other
        // connections.
        let is_bulk = self.core.is_client() || matches!(self.input, InputState::Data(_));
        let max = if is_bulk { space.len() } else { MAX_RECV_BYTES };
        let max = max.min(space.len());
        &mut space[..max]
    }

    pub fn received(&mut self, now: Instant, n: usize) {
        self.set_now(now);
        if n == 0 {
            return;
        }
        self.recv.received(n);
        self.core.set_response_started(true);
        self.timers.on_received(now);
        if self.phase != Phase::Open {
            self.discard(n);
        }
    }

    /// Input after the end: read only so that a reset does not destroy the last bytes sent.
    fn discard(&mut self, n: usize) {
        self.recv.clear();
        if let Phase::Closing { lingered, .. } = &mut self.phase {
            *lingered += n as u64;
            if *lingered > self.core.limits().max_linger_bytes {
                self.phase = Phase::Closed { abort: false };
            }
        }
    }

    pub fn received_eof(&mut self, now: Instant) {
        self.set_now(now);
        self.eof = true;
    }

    pub fn sent(&mut self, now: Instant, n: usize) {
        self.set_now(now);
        self.send.sent(n);
        if self.timers.on_sent(n) {
            self.core.timers_mut().restart_idle(now);
        }
        if n > 0 {
            self.last_frame = None;
            self.timers.begin_to_wait(now);
        }
        let pending = self.send.pending();
        self.induced_bytes = self.induced_bytes.min(pending);
        if pending == 0 {
            self.timers.send.stop();
            self.all_sent();
        } else if n > 0 {
            self.timers.send.advance(now, n);
        } else if !self.timers.send.is_running() {
            self.timers.send.start(now);
        }
        if self.phase == Phase::Open {
            self.fill_send_buffer();
        }
    }

    fn all_sent(&mut self) {
        if let Phase::Closing { since, .. } = &mut self.phase {
            *since = self.core.now();
        }
    }

    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.stash();
        self.recv.release(buffers, false);
        let kept = match self.core.side() {
            Side::Client => CLIENT_SEND_BYTES,
            Side::Server => 0,
        };
        self.send.release(buffers, kept);
        self.core.release(buffers);
    }

    /// Takes the buffers that the next request needs.
    fn prepare(&mut self, buffers: &mut BufferPool) {
        self.send.prepare(buffers);
        self.core.prepare(buffers);
    }

    // Outputs.

    pub fn send_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.send.slices(out)
    }

    pub fn pending_bytes(&self) -> usize {
        self.send.pending()
    }

    pub fn interest(&self) -> Interest {
        let flushed = self.send.pending() == 0;
        match self.phase {
            Phase::Closed { abort } => Interest {
                closed: true,
                abort,
                ..Interest::default()
            },
            Phase::Closing { .. } if flushed && (self.eof || self.core.is_client()) => Interest {
                closed: true,
                ..Interest::default()
            },
            Phase::Closing { .. } => Interest {
                read: !self.eof,
                write: !flushed,
                shutdown: flushed,
                ..Interest::default()
            },
            Phase::Open => Interest {
                read: !self.eof && self.may_receive() && self.recv.has_space(self.recv_budget()),
                write: !flushed,
                ..Interest::default()
            },
        }
    }

    /// Whether `next_event` may return an event without more input.
    pub fn has_events(&self) -> bool {
        self.core.has_events()
            || (self.may_parse()
                && (self.recv.len() > self.scanned_bytes || (self.eof && !self.timers.eof_seen)))
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && !self.core.is_busy()
            && self.recv.is_empty()
            && self.send.pending() == 0
    }

    pub fn is_reusable(&self) -> bool {
        self.stream_capacity() > 0
    }

    // Derived state.

    fn recv_budget(&self) -> RecvBudget {
        if self.phase != Phase::Open {
            return RecvBudget {
                max_unread: usize::MAX,
                contiguous: false,
            };
        }
        RecvBudget {
            max_unread: self
                .core
                .limits()
                .window_bytes
                .max(HEADER_BYTES + settings::max_frame(self.core.limits()) as usize),
            contiguous: true,
        }
    }

    /// Whether the peer reads the frames that it causes.
    fn may_receive(&self) -> bool {
        self.phase != Phase::Open || self.induced_bytes <= self.core.limits().http2.max_queued_bytes
    }

    fn may_parse(&self) -> bool {
        self.phase == Phase::Open && self.may_receive()
    }

    /// Writes a control frame to the send buffer.
    fn write_control(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.induced_bytes += self.send.fill(write);
    }
}

impl Multiplexed for Connection {
    type Variant = Http2;

    #[inline]
    fn core(&self) -> &Core<Http2> {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self) -> &mut Core<Http2> {
        &mut self.core
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    fn stream_limit(&self) -> usize {
        let is_open = self.core.is_client()
            && self.phase == Phase::Open
            && !self.core.is_closing()
            && !self.eof
            && self.peer_go_away.is_none();
        if !is_open {
            return 0;
        }
        let own = self.core.limits().http2.max_concurrent_streams;
        let max = self.peer_settings.max_streams.min(own) as usize;
        // Identifiers cannot be reused (RFC 9113 5.1.1).
        let ids = (0x8000_0000 - self.next_id.min(0x8000_0000)).div_ceil(2) as usize;
        max.min(self.core.open_streams() + ids)
    }

    #[inline]
    fn extended_connect(&self) -> Option<bool> {
        self.peer_settings.extended_connect
    }
}
