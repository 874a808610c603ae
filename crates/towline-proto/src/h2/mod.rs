//! HTTP/2, both sides: many exchanges over one connection (RFC 9113).
//!
//! ```text
//!  recv block ── frames ──► streams ──► events          phase  Open ──error, GOAWAY and no streams──►
//!                 │ HPACK     │ windows, outboxes              Closing (flush, FIN, linger) ──► Closed
//!  send buffer ◄──┴── turns ◄─┘
//! ```
//!
//! One frame after the other is read until an event is due. A head stands in a buffer of the connection while
//! its event is looked at; body bytes stand in the receive block until the next event is asked for, and move
//! to their stream then.
//!
//! This file holds the state and what comes from the network; `recv` reads frames and `messages` what
//! they make up; `responses` and `send` write messages and `prepared` requests that are sent again and again;
//! `send_queue` decides which stream sends, `timers` watches the time, `close` ends streams and the connection.

mod close;
mod encode;
mod frame;
mod head;
pub(crate) mod hpack;
mod messages;
mod prepared;
mod rate_limit;
mod recv;
mod responses;
mod rules;
mod send;
mod send_queue;
mod settings;
mod stream;
mod streams;
mod timers;
mod window;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::{RecvBuffer, Room, SendBuffer};
use crate::h1::protocol_switch::Handover;
use crate::{BufferPool, ConnectionError, Interest, Limits, Side, StreamId, UserError};

use frame::{HEADER_BYTES, PREFACE};
use head::Heads;
use hpack::{Decoder, Encoder};
use prepared::Written;
use rate_limit::Bucket;
use responses::Repeated;
use send_queue::Turns;
use settings::Peer;
pub use streams::At;
use streams::{Cancelled, Forgotten, Streams};
use timers::Clocks;
use window::{RecvWindow, SendWindow};

/// What an idle client connection keeps to write its next head and a small body into.
const CLIENT_SEND_BYTES: usize = 8 * 1024;

/// What a server takes in at once, unless it stands in a body: some hundred requests.
const MOST_AT_ONCE: usize = 16 * 1024;

/// What the first bytes of a connection say about its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// They may become the client preface (RFC 9113 3.4).
    Unclear,
    /// They are something else.
    Absent,
    Whole,
}

impl Preface {
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.starts_with(PREFACE) {
            Self::Whole
        } else if PREFACE.starts_with(bytes) {
            Self::Unclear
        } else {
            Self::Absent
        }
    }
}

/// The connection as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is parsed. What is queued leaves, then FIN; input is swallowed until the peer's FIN or
    /// `linger_timeout` after `since`.
    Closing {
        since: Instant,
        lingered: u64,
    },
    Closed {
        abort: bool,
    },
}

/// Where in the input we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Server: the client preface.
    Preface,
    /// A frame, which must be SETTINGS.
    Settings,
    Frame,
    /// Inside a DATA frame.
    Data(Part),
    /// So many bytes that nobody wants.
    Skip(u32),
}

/// What is left of a DATA frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    id: u32,
    left: u32,
    padding: u32,
    end: bool,
}

/// Body bytes that stand in the receive block, until the next event is asked for.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    to: At,
    at: usize,
    len: usize,
}

/// A header block whose frames have not all come.
#[derive(Debug, Default)]
struct Block {
    /// 0: none.
    stream: u32,
    end_stream: bool,
    self_dependent: bool,
    continuations: u32,
    bytes: Vec<u8>,
}

/// How far we are with leaving (RFC 9113 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// Told, without naming a last stream: what was on its way is still served.
    Told,
    /// Streams above it are refused.
    Last(u32),
}

/// What the peer has said about leaving, with one GOAWAY or several (RFC 9113 6.8).
#[derive(Debug, Clone, Copy)]
struct PeerLeft {
    /// The last stream that it promises to serve.
    last: u32,
    /// It left for want of HTTP/1.1 (`HTTP_1_1_REQUIRED`, RFC 9113 7).
    wants_http1: bool,
}

/// What the program must hear of the connection.
#[derive(Debug, Clone, Copy, Default)]
struct News {
    going_away: Option<u32>,
    closed: bool,
}

/// The memory of streams and heads of a connection at rest, in the pool.
#[derive(Debug)]
pub struct Spare {
    streams: Streams,
    heads: Heads,
}

/// One end.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each about something else"
)]
pub struct Connection {
    limits: Arc<Limits>,
    side: Side,
    phase: Phase,
    /// Requests name `https`.
    secure: bool,
    eof: bool,
    /// The program has closed it.
    closing: bool,
    /// A byte arrived since the last request was sent (client).
    response_started: bool,
    now: Instant,
    recv: RecvBuffer,
    send: SendBuffer,
    reading: Reading,
    /// Unread bytes that were looked at and are not yet a whole frame.
    looked_at: usize,
    chunk: Option<Chunk>,
    block: Block,
    heads: Heads,
    decoder: Decoder,
    encoder: Encoder,
    /// Prepared requests that were sent: boxed, since servers have none.
    written: Option<Box<Written>>,
    /// The head that responses have over and over.
    repeated: Repeated,
    streams: Streams,
    /// Streams with notices, in the order in which these came.
    noticed: VecDeque<At>,
    /// Streams that nobody has to do with, until the next event is asked for.
    over: Vec<At>,
    turns: Turns,
    /// The last frame of DATA or HEADERS in the send buffer: its stream, and where it stands. It can still
    /// be made the end of its message.
    tail: Option<(u32, usize)>,
    forgotten: Forgotten,
    cancelled: Cancelled,
    peer: Peer,
    /// What a new stream may be sent: our setting, once acknowledged.
    stream_window: u32,
    send_window: SendWindow,
    recv_window: RecvWindow,
    /// The last stream that the peer began.
    last_peer: u32,
    /// The last one that came behind our GOAWAY: what more comes of it crossed that too (RFC 9113 6.8).
    last_ignored: u32,
    /// The next stream that we begin.
    next_id: u32,
    leaving: Leaving,
    /// The peer's GOAWAY.
    peer_left: Option<PeerLeft>,
    news: News,
    resets: Bucket,
    control: Bucket,
    /// Small window updates that frames of ours have earned the peer.
    updates_earned: u32,
    /// Bytes in the send buffer that the peer has provoked, at most.
    provoked: usize,
    clocks: Clocks,
    error: Option<Arc<ConnectionError>>,
}

impl Connection {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let mut conn = Self {
            side,
            phase: Phase::Open,
            secure: false,
            eof: false,
            closing: false,
            response_started: false,
            now,
            recv: RecvBuffer::default(),
            send: SendBuffer::default(),
            reading: match side {
                Side::Server => Reading::Preface,
                Side::Client => Reading::Settings,
            },
            looked_at: 0,
            chunk: None,
            block: Block::default(),
            heads: Heads::default(),
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            written: None,
            repeated: Repeated::default(),
            streams: Streams::default(),
            noticed: VecDeque::new(),
            over: Vec::new(),
            turns: Turns::default(),
            tail: None,
            forgotten: Forgotten::default(),
            cancelled: Cancelled::default(),
            peer: Peer::default(),
            stream_window: settings::DEFAULT_WINDOW,
            send_window: SendWindow::of(settings::DEFAULT_WINDOW),
            recv_window: RecvWindow::of(settings::DEFAULT_WINDOW),
            last_peer: 0,
            last_ignored: 0,
            next_id: 1,
            leaving: Leaving::No,
            peer_left: None,
            news: News::default(),
            resets: Bucket::full(limits.http2.resets, now),
            control: Bucket::full(limits.http2.control_frames, now),
            updates_earned: 0,
            provoked: 0,
            clocks: Clocks::new(now),
            error: None,
            limits,
        };
        if side == Side::Client {
            conn.send.push(PREFACE);
        }
        conn.send_settings();
        conn.provoked = 0;
        conn
    }

    /// Goes on with a connection that turned out to speak HTTP/2.
    pub fn behind(handover: Handover) -> Self {
        let mut conn = Self::new(handover.side, handover.limits, handover.now);
        conn.recv = handover.recv;
        conn.clocks.head = handover.head_clock;
        if handover.closing {
            conn.close();
        }
        conn
    }

    pub fn set_secure(&mut self, secure: bool) {
        self.secure = secure;
        // They name the scheme.
        self.written = None;
    }

    pub fn side(&self) -> Side {
        self.side
    }

    // From the network.

    pub fn recv_space(&mut self, buffers: &mut BufferPool) -> &mut [u8] {
        if self.eof || matches!(self.phase, Phase::Closed { .. }) || !self.may_receive() {
            return &mut [];
        }
        self.stash();
        if self.side == Side::Server {
            self.prepare(buffers);
        }
        let room = self.room_to_read();
        let space = self.recv.space(buffers, room);
        // Bytes of a body cost little each; of other frames each byte can make work, for which others wait.
        let is_bulk = self.side == Side::Client || matches!(self.reading, Reading::Data(_));
        let most = if is_bulk { space.len() } else { MOST_AT_ONCE };
        let most = most.min(space.len());
        &mut space[..most]
    }

    pub fn received(&mut self, now: Instant, n: usize) {
        self.tell(now);
        if n == 0 {
            return;
        }
        self.recv.received(n);
        self.response_started = true;
        self.clocks.heard(now);
        if self.phase != Phase::Open {
            self.swallow(n);
        }
    }

    /// Input behind the end of everything: read only so that no reset destroys our last words.
    fn swallow(&mut self, n: usize) {
        self.recv.clear();
        if let Phase::Closing { lingered, .. } = &mut self.phase {
            *lingered += n as u64;
            if *lingered > self.limits.max_linger_bytes {
                self.phase = Phase::Closed { abort: false };
            }
        }
    }

    pub fn received_eof(&mut self, now: Instant) {
        self.now = now;
        self.eof = true;
    }

    pub fn sent(&mut self, now: Instant, n: usize) {
        self.tell(now);
        self.send.sent(n);
        self.clocks.answers_left(now, n);
        if n > 0 {
            self.tail = None;
            self.clocks.begin_to_wait(now);
        }
        let pending = self.send.pending();
        self.provoked = self.provoked.min(pending);
        if pending == 0 {
            self.clocks.send.stop();
            self.all_sent();
        } else if n > 0 {
            self.clocks.send.advance(now, n);
        } else if !self.clocks.send.is_running() {
            self.clocks.send.start(now);
        }
        if self.phase == Phase::Open {
            self.pump();
        }
    }

    fn all_sent(&mut self) {
        if let Phase::Closing { since, .. } = &mut self.phase {
            *since = self.now;
        }
    }

    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.stash();
        self.recv.release(buffers, false);
        let kept = match self.side {
            Side::Client => CLIENT_SEND_BYTES,
            Side::Server => 0,
        };
        self.send.release(buffers, kept);
        if self.streams.is_empty() && !self.streams.is_bare() {
            self.rest(buffers);
        }
    }

    /// The next request needs these.
    fn prepare(&mut self, buffers: &mut BufferPool) {
        self.send.prepare(buffers);
        if self.streams.is_bare()
            && let Some(spare) = buffers.take_h2()
        {
            self.streams = spare.streams;
            self.heads = spare.heads;
        }
    }

    /// No stream is open: a server lends what it held for them to its other connections, a client keeps it.
    fn rest(&mut self, buffers: &mut BufferPool) {
        // Those it speaks of are gone, and their places with them.
        self.clocks.untold.clear();
        self.streams.tidy();
        self.heads.tidy();
        if self.side == Side::Server {
            self.heads.forget();
            buffers.give_h2(Spare {
                streams: std::mem::take(&mut self.streams),
                heads: std::mem::take(&mut self.heads),
            });
        }
    }

    // Towards both.

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
            Phase::Closing { .. } if flushed && (self.eof || self.side == Side::Client) => {
                Interest {
                    closed: true,
                    ..Interest::default()
                }
            }
            Phase::Closing { .. } => Interest {
                read: !self.eof,
                write: !flushed,
                shutdown: flushed,
                ..Interest::default()
            },
            Phase::Open => Interest {
                read: !self.eof && self.may_receive() && self.recv.has_room(self.room_to_read()),
                write: !flushed,
                ..Interest::default()
            },
        }
    }

    /// Whether `next_event` may have something without more input.
    pub fn has_events(&self) -> bool {
        !self.noticed.is_empty()
            || self.news.closed
            || self.news.going_away.is_some()
            || (self.may_parse()
                && (self.recv.len() > self.looked_at || (self.eof && !self.clocks.eof_seen)))
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && !self.is_busy()
            && self.recv.is_empty()
            && self.send.pending() == 0
    }

    pub fn is_reusable(&self) -> bool {
        self.stream_capacity() > 0
    }

    /// Whether the server takes an extended CONNECT; `None`: it has not said yet.
    pub fn extended_connect(&self) -> Option<bool> {
        self.peer.extended_connect
    }

    /// How many requests may be started now.
    pub fn stream_capacity(&self) -> usize {
        self.stream_limit().saturating_sub(self.open_streams())
    }

    /// How many requests may be under way at once; 0: no more begin.
    pub fn stream_limit(&self) -> usize {
        let is_open = self.side == Side::Client
            && self.phase == Phase::Open
            && !self.closing
            && !self.eof
            && self.peer_left.is_none();
        if !is_open {
            return 0;
        }
        let most = self
            .peer
            .max_streams
            .min(self.limits.http2.max_concurrent_streams) as usize;
        // Identifiers are used up once (RFC 9113 5.1.1).
        let ids = (0x8000_0000 - self.next_id.min(0x8000_0000)).div_ceil(2) as usize;
        most.min(self.open_streams() + ids)
    }

    pub fn response_started(&self) -> bool {
        self.response_started
    }

    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.error.as_ref()
    }

    pub fn find(&self, id: StreamId) -> Result<At, UserError> {
        let id = u32::try_from(id.0).map_err(|_| UserError::UnknownStream)?;
        self.streams.find(id).ok_or(UserError::UnknownStream)
    }

    // What the state means.

    fn room_to_read(&self) -> Room {
        if self.phase != Phase::Open {
            return Room {
                unread: usize::MAX,
                contiguous: false,
            };
        }
        Room {
            unread: self
                .limits
                .window_bytes
                .max(HEADER_BYTES + settings::max_frame(&self.limits) as usize),
            contiguous: true,
        }
    }

    /// The peer takes what it provokes.
    fn may_receive(&self) -> bool {
        self.phase != Phase::Open || self.provoked <= self.limits.http2.max_queued_bytes
    }

    fn may_parse(&self) -> bool {
        self.phase == Phase::Open && self.may_receive()
    }

    /// Streams that somebody has to do with.
    fn open_streams(&self) -> usize {
        self.streams.len() - self.over.len()
    }

    fn is_busy(&self) -> bool {
        self.open_streams() > 0
    }

    /// A frame that is no DATA, into the send buffer.
    fn write_control(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.provoked += self.send.fill(write);
    }
}
