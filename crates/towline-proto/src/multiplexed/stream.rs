//! A stream: its messages, its buffers and its timers, and the part that HTTP/2 or HTTP/3 adds.
//!
//! ```text
//!  outbox.end     Open ──the program has finished──► Pending ──all sent──► Sent
//!  discard_until  None ──the response is sent, the request is not over──► Some ──its end, or that time──► closed
//! ```

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::progress_timer::ProgressTimer;
use crate::{Limits, Protocol, RateLimit, StreamId, StreamStats};

use super::buffers::{Inbox, Outbox};
use super::exchange::{Exchange, MessageRules};
use super::fault::Fault;
use super::priority::Priority;
use super::states::EndStream;

/// The identifier of a stream: those of one side ascend in even steps.
pub(crate) trait Number: Copy + Eq + Default {
    /// The identifier of no stream.
    const NONE: Self;

    /// The place of the stream in the order of all streams.
    fn place(self) -> usize;

    fn stream_id(self) -> StreamId;

    /// `None`: no stream of the protocol has this identifier.
    fn of(id: StreamId) -> Option<Self>;
}

impl Number for u32 {
    const NONE: Self = 0;

    #[inline]
    fn place(self) -> usize {
        (self >> 1) as usize
    }

    #[inline]
    fn stream_id(self) -> StreamId {
        StreamId(u64::from(self))
    }

    #[inline]
    fn of(id: StreamId) -> Option<Self> {
        Self::try_from(id.0).ok()
    }
}

/// Place of a stream in the send queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueLink {
    pub(super) is_queued: bool,
    /// The next stream of its urgency.
    pub(super) next: Option<u32>,
}

/// HTTP/2 or HTTP/3: the types, rules and limits in which they differ.
pub(crate) trait Variant: Debug + Default + Send + Sync + 'static {
    type Id: Number + Debug + Send + Sync;
    /// The protocol's own state of a stream, in addition to [`Stream`].
    type Part: Part;
    /// The protocol's own state of all streams of a connection; returned to the buffer pool with them.
    type Idle: Idle;

    const PROTOCOL: Protocol;
    const RULES: SharedRules;

    fn limits(limits: &Limits) -> SharedLimits;
}

/// The part of a stream that only one protocol has.
pub(crate) trait Part: Debug + Default + Send + Sync {
    /// Whether the protocol lets the stream send what it has.
    fn may_send(&self) -> bool;

    /// Whether the program knows the stream.
    fn is_known(&self) -> bool;

    /// The deadline of a timer of its own.
    fn deadline(&self, limits: &Limits) -> Option<Instant>;

    /// Frees memory when the stream ends.
    fn end(&mut self);

    /// Frees large buffers of a free slot.
    fn shrink(&mut self);
}

/// Storage of a protocol that an idle connection of a server does not keep.
pub(crate) trait Idle: Debug + Default + Send + Sync + 'static {
    /// Nothing in it is needed by an idle connection.
    fn is_empty(&self) -> bool;

    fn shrink(&mut self);
}

impl Idle for () {
    #[inline]
    fn is_empty(&self) -> bool {
        true
    }

    fn shrink(&mut self) {}
}

/// Rules that both protocols have, with codes of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedRules {
    pub resets: Fault,
    pub control: Fault,
    pub messages: MessageRules,
    pub silent: Fault,
    pub slow_body: Fault,
    pub slow_reader: Fault,
}

/// Limits that both protocols have, with values of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedLimits {
    pub resets: RateLimit,
    pub control_frames: RateLimit,
    pub max_unsent_bytes: usize,
    pub go_away_delay: Duration,
}

/// A stream in use by the program, the peer or the transport. Its buffers are kept when it ends, for the next stream in
/// its slot.
#[derive(Debug, Default)]
pub(crate) struct Stream<V: Variant> {
    /// [`Number::NONE`]: a free slot.
    pub id: V::Id,
    pub exchange: Exchange,
    /// The stream is in the list of those with pending events.
    pub(super) has_events: bool,
    /// The stream is in the list of closed ones.
    pub(super) is_closed: bool,
    pub stats: StreamStats,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub recv_timer: ProgressTimer,
    pub send_timer: ProgressTimer,
    /// Server: the response is sent, and the rest of the request is skipped until then. Clients that send the whole body
    /// before they read the response (curl 7.88, httpx) take a reset for a failure.
    pub discard_until: Option<Instant>,
    pub priority: Priority,
    pub(super) link: QueueLink,
    pub own: V::Part,
}

impl<V: Variant> Stream<V> {
    /// Begins a stream in a free slot. [`end`](Self::end) has cleared what owns memory, and the caller sets `own`.
    pub fn begin(&mut self, id: V::Id) {
        // Field by field, since replacing the whole stream would construct and drop the few fields that own memory.
        self.id = id;
        self.exchange.begin();
        self.has_events = false;
        self.is_closed = false;
        self.stats = StreamStats::default();
        self.recv_timer = ProgressTimer::default();
        self.send_timer = ProgressTimer::default();
        self.discard_until = None;
        self.priority = Priority::default();
        self.link = QueueLink::default();
    }

    /// Frees the slot.
    pub(super) fn end(&mut self) {
        self.id = V::Id::NONE;
        self.inbox.clear();
        self.outbox.clear();
        self.outbox.end = EndStream::Open;
        self.exchange.end();
        self.own.end();
    }

    /// Frees large buffers of a free slot.
    pub(super) fn shrink(&mut self) {
        self.inbox.shrink();
        self.outbox.shrink();
        self.own.shrink();
    }

    #[inline]
    pub fn stream_id(&self) -> StreamId {
        self.id.stream_id()
    }

    #[inline]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    #[inline]
    pub fn has_failed(&self) -> bool {
        self.exchange.has_failed()
    }

    /// There is something to send that only windows, the transport or its turn hold back.
    #[inline]
    pub fn wants_to_send(&self) -> bool {
        self.own.may_send() && (!self.outbox.is_empty() || self.outbox.end == EndStream::Pending)
    }

    /// The earliest deadline of its timers.
    pub fn deadline(&self, limits: &Limits) -> Option<Instant> {
        [
            self.recv_timer.deadline(limits),
            self.send_timer.deadline(limits),
            self.discard_until,
            self.own.deadline(limits),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
