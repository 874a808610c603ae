//! The state that a connection has over HTTP/2 and HTTP/3 alike: its streams and their lists, the decoder of heads, the
//! rate limits, and what the program is told about the connection.
//!
//! ```text
//!   open_stream ─► in use ──notify──► eventful ──next_pending_event──► the program
//!                    │
//!                    └──set_closed──► closed ──take_closed, remove_stream──► free slot
//! ```
//!
//! The fields are private: whatever adds a stream to a list also marks it in the stream, so that no stream is in a list
//! twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::{BufferPool, ConnectionError, Event, Limits, Refusal, Side, StreamId};

use super::buffers::Outbox;
use super::fault::Fault;
use super::head::HeadDecoder;
use super::rate_limit::TokenBucket;
use super::refusals::{Refusals, Refused};
use super::response::HeadCache;
use super::send_queue::SendQueue;
use super::signal::Signal;
use super::stream::{Idle, Stream, Variant};
use super::streams::{MAX_IDLE_SLOTS, StreamKey, Streams};
use super::timers::Timers;
use crate::pending_events::PendingEvents;

/// Queued bytes that a stream may have even if the connection has no room: its progress depends on no other stream.
const MIN_SHARE_BYTES: usize = 16 * 1024;

/// The shared state of a connection.
#[derive(Debug)]
pub(crate) struct Core<V: Variant> {
    limits: Arc<Limits>,
    side: Side,
    now: Instant,
    /// The program has called `close`.
    is_closing: bool,
    /// Whether the peer accepts an extended CONNECT (RFC 8441 3, RFC 9220 3); `None` before its SETTINGS.
    extended_connect: Option<bool>,
    /// Client: a byte arrived since the last request was sent.
    response_started: bool,
    storage: Storage<V>,
    /// The empty box of the storage, which the pool has lent.
    spare: Option<Box<Storage<V>>>,
    send_queue: SendQueue,
    /// Bytes queued in the outboxes of all streams.
    outboxes_bytes: usize,
    /// The last head that responses repeated.
    head_cache: HeadCache,
    timers: Timers,
    resets: TokenBucket,
    control: TokenBucket,
    /// Pending event: the peer processes no stream above this one.
    going_away: Option<StreamId>,
    /// Pending event: the connection has ended.
    has_ended: bool,
    error: Option<Arc<ConnectionError>>,
    /// Server: the refusals that the program has not taken.
    refusals: Refusals,
}

/// Memory that an idle connection of a server returns to the buffer pool.
#[derive(Debug, Default)]
pub(crate) struct Storage<V: Variant> {
    streams: Streams<V>,
    head_decoder: HeadDecoder,
    /// Streams with pending events, in the order of the events.
    eventful: VecDeque<StreamKey>,
    /// Closed streams, removed on the next call of `next_event`.
    closed: Vec<StreamKey>,
    own: V::Idle,
}

impl<V: Variant> Storage<V> {
    /// Frees what is larger than an idle connection keeps.
    fn shrink(&mut self) {
        self.streams.shrink();
        self.head_decoder.shrink();
        self.eventful.shrink_to(MAX_IDLE_SLOTS);
        self.closed.shrink_to(MAX_IDLE_SLOTS);
        self.own.shrink();
    }
}

impl<V: Variant> Core<V> {
    pub fn new(side: Side, limits: Arc<Limits>, now: Instant) -> Self {
        let own = V::limits(&limits);
        Self {
            side,
            now,
            is_closing: false,
            extended_connect: None,
            response_started: false,
            storage: Storage::default(),
            spare: None,
            send_queue: SendQueue::default(),
            outboxes_bytes: 0,
            head_cache: HeadCache::default(),
            timers: Timers::new(now),
            resets: TokenBucket::full(own.resets, now),
            control: TokenBucket::full(own.control_frames, now),
            going_away: None,
            has_ended: false,
            error: None,
            refusals: Refusals::of(V::PROTOCOL),
            limits,
        }
    }

    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    pub fn side(&self) -> Side {
        self.side
    }

    #[inline]
    pub fn is_client(&self) -> bool {
        self.side == Side::Client
    }

    #[inline]
    pub fn is_server(&self) -> bool {
        self.side == Side::Server
    }

    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Sets the time and starts the armed timers of streams.
    #[inline]
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
        while let Some(key) = self.timers.pop_unstarted() {
            let stream = self.storage.streams.get_mut(key);
            stream.recv_timer.start_if_armed(now);
            stream.send_timer.start_if_armed(now);
            self.timers.watch(stream.deadline(&self.limits));
        }
    }

    #[inline]
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// The program closes the connection; false if it has done so before.
    pub fn begin_to_close(&mut self) -> bool {
        !std::mem::replace(&mut self.is_closing, true)
    }

    #[inline]
    pub fn extended_connect(&self) -> Option<bool> {
        self.extended_connect
    }

    pub fn set_extended_connect(&mut self, is_accepted: bool) {
        self.extended_connect = Some(is_accepted);
    }

    #[inline]
    pub fn response_started(&self) -> bool {
        self.response_started
    }

    #[inline]
    pub fn set_response_started(&mut self, started: bool) {
        self.response_started = started;
    }

    #[inline]
    pub fn timers(&self) -> &Timers {
        &self.timers
    }

    #[inline]
    pub fn timers_mut(&mut self) -> &mut Timers {
        &mut self.timers
    }

    // Streams.

    #[inline]
    pub fn stream(&self, key: StreamKey) -> &Stream<V> {
        self.storage.streams.get(key)
    }

    #[inline]
    pub fn stream_mut(&mut self, key: StreamKey) -> &mut Stream<V> {
        self.storage.streams.get_mut(key)
    }

    /// A stream, and what its methods need beside it.
    #[inline]
    pub fn stream_and_limits(&mut self, key: StreamKey) -> (&mut Stream<V>, &Limits) {
        (self.storage.streams.get_mut(key), &self.limits)
    }

    #[inline]
    pub fn find(&self, id: V::Id) -> Option<StreamKey> {
        self.storage.streams.find(id)
    }

    #[inline]
    pub fn id_of(&self, key: StreamKey) -> StreamId {
        self.stream(key).stream_id()
    }

    /// Keys of all streams.
    pub fn stream_keys(&self) -> impl Iterator<Item = StreamKey> + use<V> {
        self.storage.streams.iter()
    }

    /// Number of streams, closed ones included.
    #[inline]
    pub fn stream_count(&self) -> usize {
        self.storage.streams.len()
    }

    /// Number of streams that are not closed.
    #[inline]
    pub fn open_streams(&self) -> usize {
        self.storage.streams.len() - self.storage.closed.len()
    }

    #[inline]
    pub fn is_busy(&self) -> bool {
        self.open_streams() > 0
    }

    #[inline]
    pub fn insert(&mut self, id: V::Id, begin: impl FnOnce(&mut V::Part)) -> StreamKey {
        self.storage.streams.insert(id, |stream| {
            stream.begin(id);
            begin(&mut stream.own);
        })
    }

    /// Adds a pending event of a stream.
    #[inline]
    pub fn notify(&mut self, key: StreamKey, event: u8) {
        let stream = self.storage.streams.get_mut(key);
        stream.exchange.pending.set(event);
        if !std::mem::replace(&mut stream.has_events, true) {
            self.storage.eventful.push_back(key);
        }
    }

    /// The first stream with pending events.
    #[inline]
    pub fn first_eventful(&self) -> Option<StreamKey> {
        self.storage.eventful.front().copied()
    }

    /// Takes the next pending event of the first stream that has some.
    pub fn take_event(&mut self, key: StreamKey) -> Signal {
        let stream = self.storage.streams.get_mut(key);
        let signal = Signal::pending_of(stream.stream_id(), &mut stream.exchange);
        if !stream.exchange.pending.has(PendingEvents::EVENTS) {
            stream.has_events = false;
            self.storage.eventful.pop_front();
        }
        signal
    }

    /// Adds a stream to the closed ones; false if it is one already.
    #[inline]
    pub fn set_closed(&mut self, key: StreamKey) -> bool {
        let stream = self.storage.streams.get_mut(key);
        let is_new = !std::mem::replace(&mut stream.is_closed, true);
        if is_new {
            self.storage.closed.push(key);
        }
        is_new
    }

    /// Takes a closed stream, to be removed.
    #[inline]
    pub fn take_closed(&mut self) -> Option<StreamKey> {
        self.storage.closed.pop()
    }

    /// Frees the slot of a closed stream.
    #[inline]
    pub fn remove_stream(&mut self, key: StreamKey) {
        self.unqueue(key);
        if self.stream(key).has_events {
            self.storage.eventful.retain(|other| *other != key);
        }
        self.clear_outbox(key);
        self.storage.streams.remove(key);
    }

    // Idle storage.

    /// Takes the storage that the next request needs, if there is none.
    #[inline]
    pub fn prepare(&mut self, buffers: &mut BufferPool) {
        if self.storage.streams.is_unallocated()
            && self.storage.own.is_empty()
            && let Some(mut idle) = buffers.take_storage::<Storage<V>>(V::PROTOCOL)
        {
            std::mem::swap(&mut *idle, &mut self.storage);
            self.spare = Some(idle);
        }
    }

    /// Frees what an idle connection does not keep: a server returns all its storage to the pool, a client keeps some.
    #[inline]
    pub fn release(&mut self, buffers: &mut BufferPool) {
        if !self.storage.streams.is_empty() || self.storage.streams.is_unallocated() {
            return;
        }
        // The streams in its list no longer exist.
        self.timers.forget_streams();
        self.storage.shrink();
        if self.is_server() && self.storage.own.is_empty() {
            self.storage.head_decoder.invalidate();
            let mut idle = self.spare.take().unwrap_or_default();
            std::mem::swap(&mut *idle, &mut self.storage);
            buffers.give_storage(V::PROTOCOL, idle);
        }
    }

    /// The state that the protocol stores beside the streams.
    #[inline]
    pub fn own(&self) -> &V::Idle {
        &self.storage.own
    }

    #[inline]
    pub fn own_mut(&mut self) -> &mut V::Idle {
        &mut self.storage.own
    }

    /// A stream, and what the protocol stores beside the streams.
    #[inline]
    pub fn stream_and_own(&mut self, key: StreamKey) -> (&mut Stream<V>, &mut V::Idle) {
        (self.storage.streams.get_mut(key), &mut self.storage.own)
    }

    // Sending.

    #[inline]
    pub fn next_to_send(&self) -> Option<StreamKey> {
        self.send_queue.first()
    }

    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.send_queue.is_empty()
    }

    /// Appends a stream to the send queue.
    #[inline]
    pub fn queue(&mut self, key: StreamKey) {
        self.send_queue.add(&mut self.storage.streams, key);
    }

    /// Puts a stream before the others of its urgency.
    #[inline]
    pub fn queue_first(&mut self, key: StreamKey) {
        self.send_queue.add_first(&mut self.storage.streams, key);
    }

    #[inline]
    pub fn unqueue(&mut self, key: StreamKey) {
        self.send_queue.remove(&mut self.storage.streams, key);
    }

    /// Changes the outbox of a stream.
    #[inline]
    pub fn with_outbox<T>(&mut self, key: StreamKey, change: impl FnOnce(&mut Outbox) -> T) -> T {
        self.with_outbox_and_own(key, |outbox, _| change(outbox))
    }

    #[inline]
    pub fn with_outbox_and_own<T>(
        &mut self,
        key: StreamKey,
        change: impl FnOnce(&mut Outbox, &V::Idle) -> T,
    ) -> T {
        let outbox = &mut self.storage.streams.get_mut(key).outbox;
        let before = outbox.len();
        let result = change(outbox, &self.storage.own);
        self.outboxes_bytes = self.outboxes_bytes + outbox.len() - before;
        result
    }

    /// Discards the queued bytes of a stream.
    #[inline]
    pub fn clear_outbox(&mut self, key: StreamKey) {
        let outbox = &mut self.storage.streams.get_mut(key).outbox;
        self.outboxes_bytes -= outbox.len();
        outbox.clear();
    }

    /// A result of 0 is followed by `Event::Writable`.
    #[inline]
    pub fn send_capacity(&mut self, key: StreamKey) -> usize {
        let stream = self.storage.streams.get_mut(key);
        let queued = stream.outbox.len();
        let mut capacity = self.limits.send_window_bytes.saturating_sub(queued);
        if queued >= MIN_SHARE_BYTES {
            // Other streams can take the room of the connection after the last write to this one.
            let shared = V::limits(&self.limits).max_unsent_bytes;
            capacity = capacity.min(shared.saturating_sub(self.outboxes_bytes));
        }
        if capacity == 0 {
            stream.exchange.pending.set(PendingEvents::WRITER_WAITS);
        }
        capacity
    }

    /// Wakes a program that waits for room, if there is enough.
    #[inline]
    pub fn wake_writer(&mut self, key: StreamKey) {
        let mut low = self.limits.send_window_bytes / 2;
        if V::limits(&self.limits).max_unsent_bytes != usize::MAX {
            // Below its own share it has room, whatever the other streams hold by then.
            low = low.min(MIN_SHARE_BYTES);
        }
        let stream = self.storage.streams.get_mut(key);
        if stream.outbox.len() < low && stream.exchange.pending.take(PendingEvents::WRITER_WAITS) {
            self.notify(key, PendingEvents::WRITABLE);
        }
    }

    // Heads.

    #[inline]
    pub fn head_decoder(&self) -> &HeadDecoder {
        &self.storage.head_decoder
    }

    #[inline]
    pub fn head_decoder_mut(&mut self) -> &mut HeadDecoder {
        &mut self.storage.head_decoder
    }

    /// The head decoder, and what its methods need beside it.
    #[inline]
    pub fn head_decoder_and_limits(&mut self) -> (&mut HeadDecoder, &Limits) {
        (&mut self.storage.head_decoder, &self.limits)
    }

    #[inline]
    pub fn head_cache(&self) -> &HeadCache {
        &self.head_cache
    }

    #[inline]
    pub fn head_cache_mut(&mut self) -> &mut HeadCache {
        &mut self.head_cache
    }

    /// Keeps trailers, which were decoded last.
    pub fn keep_trailers(
        &mut self,
        key: StreamKey,
        malformed: impl FnOnce(&'static str) -> Fault,
    ) -> Result<(), Fault> {
        let fields = self.storage.head_decoder.trailers().map_err(malformed)?;
        let stream = self.storage.streams.get_mut(key);
        stream.exchange.keep_trailers(fields, &V::RULES.messages)
    }

    // Faults of the peer.

    /// CVE-2023-44487 and CVE-2025-8671: resets by either side are charged to one bucket. A server cannot attack its
    /// client in this way, since the client opens the streams.
    pub fn charge_reset(&mut self) -> Result<(), Fault> {
        let limit = V::limits(&self.limits).resets;
        if self.is_client() || self.resets.take(limit, self.now) {
            Ok(())
        } else {
            Err(V::RULES.resets)
        }
    }

    /// Charges a frame that carries no data to its rate limit.
    #[inline]
    pub fn charge_control(&mut self) -> Result<(), Fault> {
        let limit = V::limits(&self.limits).control_frames;
        if self.control.take(limit, self.now) {
            Ok(())
        } else {
            Err(V::RULES.control)
        }
    }

    /// Keeps what the program's logs need of a fault of the client.
    #[cold]
    pub fn record_refusal(&mut self, refused: Refused, status: u16, rule: &'static str) {
        if self.is_server() {
            self.refusals
                .record(refused, status, rule, &self.storage.head_decoder);
        }
    }

    pub fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusals.take()
    }

    // Events of the connection.

    /// The event for the program.
    #[expect(
        clippy::inline_always,
        reason = "as `Signal::event`, whose large result a call would copy"
    )]
    #[inline(always)]
    pub fn event(&self, signal: Signal) -> Option<Event<'_>> {
        signal.event(&self.storage.head_decoder, self.error.as_ref())
    }

    #[inline]
    pub fn has_events(&self) -> bool {
        !self.storage.eventful.is_empty() || self.has_ended || self.going_away.is_some()
    }

    pub fn set_going_away(&mut self, last: StreamId) {
        self.going_away = Some(last);
    }

    #[inline]
    pub fn take_going_away(&mut self) -> Option<Signal> {
        let last = self.going_away.take()?;
        Some(Signal::GoingAway { last })
    }

    /// The connection has ended, for the first error.
    pub fn end(&mut self, error: ConnectionError) -> Arc<ConnectionError> {
        Arc::clone(self.error.get_or_insert_with(|| Arc::new(error)))
    }

    pub fn set_ended(&mut self) {
        self.timers.stop();
        self.has_ended = true;
    }

    #[inline]
    pub fn take_ended(&mut self) -> Option<Signal> {
        std::mem::take(&mut self.has_ended).then_some(Signal::Closed)
    }

    pub fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.error.as_ref()
    }
}
