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
//! The core of the connection, shared with HTTP/3, is in `multiplexed`. This file holds the state of HTTP/2 alone and
//! the input from the network. `recv` reads frames, `messages` assembles messages, and `send` writes them. `send_queue`
//! decides which stream sends, `timers` watches the time, `close` ends streams and the connection.

mod close;
mod encode;
mod flow_control;
mod frame;
pub(crate) mod hpack;
mod ids;
mod input;
mod messages;
mod output;
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

use crate::buffer::RecvBudget;
use crate::multiplexed::core::Core;
use crate::multiplexed::{Lifecycle, Multiplexed, Timing};
use crate::protocol_switch::ProtocolSwitch;
use crate::{BufferPool, ErrorCode, Interest, Limits, PeerClose, Side};

use frame::{HEADER_BYTES, PREFACE};
use hpack::{Decoder, Encoder};
use ids::StreamIds;
use input::Input;
use output::Output;
use resets::Resets;
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

/// GOAWAY of both sides (RFC 9113 6.8).
#[derive(Debug, Default)]
struct GoAway {
    own: GoAwayState,
    peer: Option<Box<PeerGoAway>>,
}

/// The own GOAWAY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum GoAwayState {
    #[default]
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
    /// The peer requires HTTP/1.1 (RFC 9113 7).
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
    input: Input,
    output: Output,
    state: InputState,
    partial_block: PartialHeaderBlock,
    decoder: Decoder,
    encoder: Encoder,
    resets: Resets,
    peer_settings: PeerSettings,
    /// Receive window of a new stream: our setting, once acknowledged.
    stream_window: u32,
    send_window: SendWindow,
    recv_window: RecvWindow,
    ids: StreamIds,
    go_away: GoAway,
    /// Number of small window updates that the peer may send in return for our DATA frames.
    earned_updates: u32,
    timers: Timers,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let mut conn = Self {
            core: Core::new(side, limits, now),
            phase: Phase::Open,
            secure: false,
            eof: false,
            input: Input::default(),
            output: Output::default(),
            state: match side {
                Side::Server => InputState::Preface,
                Side::Client => InputState::Settings,
            },
            partial_block: PartialHeaderBlock::default(),
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            resets: Resets::default(),
            peer_settings: PeerSettings::default(),
            stream_window: settings::DEFAULT_WINDOW,
            send_window: SendWindow::of(settings::DEFAULT_WINDOW),
            recv_window: RecvWindow::of(settings::DEFAULT_WINDOW),
            ids: StreamIds::default(),
            go_away: GoAway::default(),
            earned_updates: 0,
            timers: Timers::new(now),
        };
        if side == Side::Client {
            conn.output.push(|out| out.extend_from_slice(PREFACE));
        }
        conn.send_settings();
        conn.output.forget_induced();
        conn
    }

    /// Continues a connection on which the HTTP/2 preface was found.
    pub fn from_http1(switch: ProtocolSwitch) -> Self {
        let mut conn = Self::new(switch.side, switch.limits, switch.now);
        conn.input = Input::of(switch.recv);
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
        let space = self.input.space(buffers, budget);
        // Bytes of a body cost little each; other frames can cause work with each byte, which delays other
        // connections.
        let is_bulk = self.core.is_client() || matches!(self.state, InputState::Data(_));
        let max = if is_bulk { space.len() } else { MAX_RECV_BYTES };
        let max = max.min(space.len());
        &mut space[..max]
    }

    pub fn received(&mut self, now: Instant, n: usize) {
        self.set_now(now);
        if n == 0 {
            return;
        }
        self.input.received(n);
        self.core.set_response_started(true);
        self.timers.on_received(now);
        if self.phase != Phase::Open {
            self.discard(n);
        }
    }

    /// Input after the end: read only so that a reset does not destroy the last bytes sent.
    fn discard(&mut self, n: usize) {
        self.input.clear();
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
        self.output.sent(n);
        if self.timers.on_sent(n) {
            self.core.timers_mut().restart_idle(now);
        }
        if n > 0 {
            self.timers.begin_to_wait(now);
        }
        let pending = self.output.pending();
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
        self.input.release(buffers);
        let kept = match self.core.side() {
            Side::Client => CLIENT_SEND_BYTES,
            Side::Server => 0,
        };
        self.output.release(buffers, kept);
        self.core.release(buffers);
    }

    /// Takes the buffers that the next request needs.
    fn prepare(&mut self, buffers: &mut BufferPool) {
        self.output.prepare(buffers);
        self.core.prepare(buffers);
    }

    // Outputs.

    pub fn send_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.output.slices(out)
    }

    pub fn pending_bytes(&self) -> usize {
        self.output.pending()
    }

    pub fn interest(&self) -> Interest {
        let flushed = self.output.pending() == 0;
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
                read: !self.eof && self.may_receive() && self.input.has_space(self.recv_budget()),
                write: !flushed,
                ..Interest::default()
            },
        }
    }

    /// Whether `next_event` may return an event without more input.
    pub fn has_events(&self) -> bool {
        self.core.has_events()
            || (self.may_parse()
                && (self.input.has_unscanned() || (self.eof && !self.timers.eof_seen)))
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && !self.core.is_busy()
            && self.input.is_empty()
            && self.output.pending() == 0
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
        self.phase != Phase::Open
            || self.output.induced_bytes() <= self.core.limits().http2.max_queued_bytes
    }

    fn may_parse(&self) -> bool {
        self.phase == Phase::Open && self.may_receive()
    }

    /// Writes a control frame to the send buffer.
    fn write_control(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.output.push_induced(write);
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
            && self.go_away.peer.is_none();
        if !is_open {
            return 0;
        }
        let own = self.core.limits().http2.max_concurrent_streams;
        let max = self.peer_settings.max_streams.min(own) as usize;
        max.min(self.core.open_streams() + self.ids.left())
    }
}
