//! Layout of one worker's counters in shared memory.

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use towline_proto::Version;

use super::labels::{MethodClass, STATUSES, VERSIONS, status_of, version_index};
use crate::serve::limits::LimitMemory;
use crate::serve::refusals::Reason;
use crate::shared_memory::Mapping;

/// Size of one worker's slot in the region. Python uses it for the size of its mapping.
pub const SLOT_BYTES: usize = 20 * 1024;

/// Upper bounds of the buckets in microseconds, three per decade from 100 us to 30 s; the last bucket has
/// everything above.
pub(super) const BOUNDS_US: [u64; 17] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// Histogram with separate counts per bucket; rendering accumulates them.
#[repr(C)]
#[derive(Default)]
pub struct Histogram {
    pub(super) buckets: [AtomicU64; BOUNDS_US.len() + 1],
    pub(super) sum_us: AtomicU64,
}

/// Number of threads that count in a slot. Every counter is written by one process only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// One thread: a load and a store suffice, without eight atomic additions per exchange.
    Alone,
    Shared,
}

impl Counting {
    #[inline]
    fn add(self, counter: &AtomicU64, n: u64) {
        match self {
            Self::Alone => counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed),
            Self::Shared => {
                counter.fetch_add(n, Relaxed);
            }
        }
    }
}

impl Histogram {
    fn observe(&self, counting: Counting, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|&bound| bound < us);
        counting.add(&self.buckets[bucket], 1);
        counting.add(&self.sum_us, us);
    }
}

/// Meaning of a number in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows. The next worker in the slot goes on with it.
    Counter,
    /// Belongs to one worker, and is 0 until the next one sets it.
    Gauge,
    /// Set by the supervisor, in the first slot only.
    Setting,
}

/// One number of a slot, and the metric that is its sum over all workers.
pub(super) struct Number {
    pub(super) kind: Kind,
    /// Name and help.
    pub(super) metric: Option<(&'static str, &'static str)>,
    pub(super) read: Read,
}

/// Finds a number in a slot.
pub(super) type Read = fn(&Slot) -> &AtomicU64;

/// Declares the numbers of a slot, one a line: `field: Kind;`, or `field: Kind, metric, help;`.
macro_rules! slot {
    ($($(#[$doc:meta])* $field:ident: $kind:ident $(, $name:literal, $help:literal)?;)*) => {
        /// All counters of one worker. Zero bytes are a valid, empty slot.
        #[repr(C, align(128))]
        pub struct Slot {
            $($(#[$doc])* pub $field: AtomicU64,)*
            /// By method, version and status.
            pub(super) requests:
                [[[AtomicU64; STATUSES.len()]; VERSIONS.len()]; MethodClass::ALL.len()],
            /// By `refusals::Reason`.
            pub(super) refused: [AtomicU64; Reason::ALL.len()],
            pub duration: Histogram,
            pub queue_wait: Histogram,
            pub loop_lag: Histogram,
            pub proxy_queue: Histogram,
        }

        pub(super) const NUMBERS: &[Number] = &[$(Number {
            kind: Kind::$kind,
            metric: [$(($name, $help))?].first().copied(),
            read: |slot| &slot.$field,
        }),*];
    };
}

slot! {
    // The first line of the cache: what other workers read for each connection. No request writes it.
    /// Monotonic nanoseconds of the worker's start.
    started: Counter;
    /// 1 while the worker accepts connections, so that the others leave it its share.
    accepting: Gauge, "towline_workers_accepting", "Workers that accept connections.";
    connections_open: Gauge, "towline_connections_open", "Connections open.";
    /// Port of the loopback interface at which the worker takes datagrams of HTTP/3 from others; 0 if it has none.
    quic_port: Gauge;
    /// Inode of the worker's first UDP socket, which its successor reads as well; 0 if it has none.
    quic_socket: Gauge;
    /// 1 if the worker counts connections by client.
    counts_clients: Gauge;
    pid: Gauge;
    /// End of the validity of the TLS certificate, in seconds since 1970; 0 without TLS.
    certificate_expiry: Gauge;

    // The second, which is fetched with the first: what is written a few times a second.
    /// Monotonic nanoseconds, written by a native thread: the process runs.
    heartbeat_native: Counter;
    /// Monotonic nanoseconds of the event loop's last turn: Python runs.
    heartbeat_turn: Counter;
    rss_bytes: Gauge;
    open_fds: Gauge;
    /// CPU time of the process in microseconds.
    cpu_us: Gauge;
    /// Delay of a timer of the event loop in microseconds: how long a callback waits for those before it.
    loop_lag_us: Gauge;
    workers_wanted: Setting, "towline_workers_wanted", "Configured number of workers.";
    stopping: Setting, "towline_stopping",
        "1 from the moment when the server begins to stop: readiness checks fail.";

    // The others: what the worker alone reads and writes, for each request.
    in_flight: Gauge, "towline_requests_in_flight", "Requests in flight.";
    websockets_open: Gauge, "towline_websockets_open", "WebSockets open.";
    connections: Counter, "towline_connections_total", "Connections accepted.";
    bytes_received: Counter, "towline_received_bytes_total", "Bytes read from clients.";
    bytes_sent: Counter, "towline_sent_bytes_total", "Bytes written to clients.";
    accept_errors: Counter, "towline_accept_errors_total",
        "Connections that could not be accepted.";
    tls_handshake_failures: Counter, "towline_tls_handshake_failures_total",
        "TLS handshakes that failed or were not complete in time.";
    dropped_log_lines: Counter, "towline_dropped_log_lines_total",
        "Access log lines lost to a slow or full log.";
    worker_restarts: Counter, "towline_worker_restarts_total",
        "Workers that replaced another and became ready.";
    worker_boot_failures: Counter, "towline_worker_boot_failures_total",
        "Workers that ended before they were ready.";
    worker_deaths: Counter, "towline_worker_deaths_total",
        "Workers that ended without being asked to.";
    acme_failed_orders: Counter, "towline_acme_failed_orders_total",
        "Orders of certificates (ACME) that have failed.";
    quic_connections_open: Gauge, "towline_quic_connections_open", "QUIC connections open.";
    quic_handshakes: Counter, "towline_quic_handshakes_total", "QUIC handshakes completed.";
    quic_retries: Counter, "towline_quic_retries_total",
        "QUIC connection attempts answered with Retry.";
    quic_refused: Counter, "towline_quic_refused_total",
        "QUIC connection attempts refused: too many handshakes, a limit on connections, or the worker is ending.";
    quic_early_accepted: Counter, "towline_quic_early_accepted_total",
        "QUIC handshakes whose early data (0-RTT) was accepted.";
    quic_early_refused: Counter, "towline_quic_early_refused_total",
        "QUIC handshakes whose early data was refused: the ticket was used before, forgotten, or of another worker.";
    quic_early_requests: Counter, "towline_quic_early_requests_total",
        "Requests passed to the application before the handshake was complete.";
    quic_early_held: Counter, "towline_quic_early_held_total",
        "Requests in early data that waited for the handshake: not of a safe method, or with a body.";
    quic_migrations: Counter, "towline_quic_migrations_total",
        "Changes of a client's address on a QUIC connection.";
    quic_packets_sent: Counter, "towline_quic_packets_sent_total",
        "QUIC packets sent on connections that have ended.";
    quic_packets_lost: Counter, "towline_quic_packets_lost_total",
        "QUIC packets of these that were lost.";
    quic_forwarded: Counter, "towline_quic_forwarded_total",
        "Datagrams that a worker has forwarded to another: they belong to a connection of that one, or begin one.";
    quic_taken: Counter, "towline_quic_forwarded_taken_total",
        "Forwarded datagrams that have arrived at the other worker. The others are lost, and sent again by the client.";
    quic_forward_failures: Counter, "towline_quic_forward_failures_total",
        "Datagrams that could not be forwarded, and messages at a worker's port that did not come from a worker.";
}

const _: () =
    assert!(size_of::<Slot>() <= SLOT_BYTES && SLOT_BYTES.is_multiple_of(align_of::<Slot>()));

/// A worker that accepts a connection reads the first line of each slot. Processors fetch lines in pairs.
const _: () =
    assert!(offset_of!(Slot, connections_open) < 64 && offset_of!(Slot, in_flight) >= 128);

impl Slot {
    /// Starts a worker in this slot: resets the gauges of its predecessor.
    pub fn begin(&self, pid: u32, now_ns: u64) {
        self.reset_gauges();
        self.heartbeat_native.store(now_ns, Relaxed);
        self.heartbeat_turn.store(now_ns, Relaxed);
        self.started.store(now_ns, Relaxed);
        self.pid.store(u64::from(pid), Relaxed);
    }

    fn reset_gauges(&self) {
        for number in NUMBERS.iter().filter(|number| number.kind == Kind::Gauge) {
            (number.read)(self).store(0, Relaxed);
        }
    }

    /// Ends a worker: resets its gauges and keeps its counts.
    pub fn end(&self) {
        self.reset_gauges();
    }

    /// Ended exchanges of these labels.
    pub(super) fn requests(
        &self,
        method: MethodClass,
        version: Version,
        status: u16,
    ) -> &AtomicU64 {
        &self.requests[method as usize][version_index(version)][status_of(status)]
    }

    /// Number of ended exchanges, over all methods and statuses.
    pub fn requests_ended(&self) -> u64 {
        let all = self.requests.iter().flatten().flatten();
        all.map(|count| count.load(Relaxed)).sum()
    }

    pub fn connection_opened(&self) {
        self.connections_open.fetch_add(1, Relaxed);
        self.connections.fetch_add(1, Relaxed);
    }

    pub fn connection_closed(&self) {
        self.connections_open.fetch_sub(1, Relaxed);
    }

    pub fn turned(&self, now_ns: u64) {
        self.heartbeat_turn.store(now_ns, Relaxed);
    }
}

/// Invalid size or alignment of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotsError {
    /// Not a positive multiple of the size of a slot.
    Size(usize),
    /// Not on a 128-byte boundary, as every mapping is.
    Alignment,
}

impl fmt::Display for SlotsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => {
                write!(
                    f,
                    "{bytes} bytes are not a whole number of slots of {SLOT_BYTES} bytes"
                )
            }
            Self::Alignment => f.write_str("slots must start on a 128-byte boundary"),
        }
    }
}

impl std::error::Error for SlotsError {}

/// All slots of a server. Cheap to clone.
#[derive(Clone)]
pub struct Slots {
    first: *const Slot,
    count: usize,
    /// State of the limits on clients.
    limits: Option<Arc<LimitMemory>>,
    /// Keeps the mapping (a Python buffer, a `Vec`) alive.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only accessed as atomics (`&Slot`), which may be shared between threads, and
// `_owner`, which is Send and Sync, keeps it mapped.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// Slots in the memory of this process, for use without a supervisor and for tests.
    pub fn private(count: usize) -> Self {
        #[repr(C, align(128))]
        struct Cell([AtomicU64; 16]);
        let cells: Vec<Cell> = (0..count.max(1) * SLOT_BYTES / size_of::<Cell>())
            .map(|_| Cell([const { AtomicU64::new(0) }; 16]))
            .collect();
        let (first, bytes) = (cells.as_ptr().cast::<u8>(), size_of_val(&*cells));
        // SAFETY: the vector is aligned, zeroed, of atomics only, and moves into the owner without
        // its heap block moving.
        unsafe { Self::from_shared(first, bytes, Arc::new(cells)) }.expect("aligned and whole")
    }

    /// Slots shared with processes forked from this one, initially zero; or with those that inherit `files`, two
    /// descriptors of shared memory, which stay the caller's.
    pub fn mapped(count: usize, files: Option<[RawFd; 2]>) -> io::Result<Self> {
        let (counters, limits) = files.map(<(RawFd, RawFd)>::from).unzip();
        let mapping = Mapping::new(count.max(1) * SLOT_BYTES, counters)?;
        let (start, bytes) = (mapping.start(), mapping.bytes());
        // SAFETY: a fresh mapping is zeroed and on a page boundary, and moves into the owner.
        let slots = unsafe { Self::from_shared(start, bytes, Arc::new(mapping)) };
        Ok(Self {
            limits: Some(Arc::new(LimitMemory::new(count.max(1), limits)?)),
            ..slots.map_err(io::Error::other)?
        })
    }

    /// A view over `bytes` bytes of memory that other processes may share.
    ///
    /// # Safety
    ///
    /// `start` must point to `bytes` readable and writable bytes that stay mapped as long as `owner`
    /// lives, hold zeros or earlier slots, and are written elsewhere only in whole, aligned 8-byte words.
    pub unsafe fn from_shared(
        start: *const u8,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, SlotsError> {
        if bytes == 0 || !bytes.is_multiple_of(SLOT_BYTES) {
            return Err(SlotsError::Size(bytes));
        }
        if !start.addr().is_multiple_of(align_of::<Slot>()) {
            return Err(SlotsError::Alignment);
        }
        Ok(Self {
            first: start.cast(),
            count: bytes / SLOT_BYTES,
            limits: None,
            _owner: owner,
        })
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The memory of the limits, which [`mapped`](Self::mapped) slots have.
    pub fn limits(&self) -> Option<&Arc<LimitMemory>> {
        self.limits.as_ref()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn slot(&self, index: usize) -> Option<&Slot> {
        if index >= self.count {
            return None;
        }
        // SAFETY: inside the region by the check above, aligned because start and SLOT_BYTES are
        // multiples of 128, valid for any bytes because a slot is nothing but AtomicU64, and alive as
        // long as `self` keeps the owner.
        Some(unsafe { &*self.first.byte_add(index * SLOT_BYTES) })
    }

    /// Slots that have had a worker. Slots are assigned in order.
    pub fn in_use(&self) -> impl Iterator<Item = &Slot> {
        self.iter()
            .take_while(|slot| slot.started.load(Relaxed) != 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot> + Clone {
        (0..self.count).filter_map(|index| self.slot(index))
    }

    /// Handle of the slot at `index`; `None` if there is none.
    pub fn handle(&self, index: usize) -> Option<SlotHandle> {
        (index < self.count).then(|| SlotHandle {
            slots: self.clone(),
            index,
            counting: Counting::Shared,
        })
    }
}

/// Handle of one worker's slot, which keeps the region mapped.
#[derive(Clone)]
pub struct SlotHandle {
    slots: Slots,
    index: usize,
    counting: Counting,
}

impl SlotHandle {
    /// Selects counting by a single thread.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.counting = Counting::Alone;
        self
    }

    #[inline]
    pub fn request_started(&self) {
        self.counting.add(&self.in_flight, 1);
    }

    /// Counts an ended exchange; pairs with [`SlotHandle::request_started`].
    #[inline]
    pub fn request_ended(
        &self,
        method: MethodClass,
        version: Version,
        status: u16,
        duration: Duration,
    ) {
        let slot: &Slot = self;
        self.counting.add(&slot.in_flight, 1_u64.wrapping_neg());
        self.counting.add(slot.requests(method, version, status), 1);
        slot.duration.observe(self.counting, duration);
    }

    /// Counts a request that the protocol core has refused with a response.
    pub fn request_refused(&self, method: MethodClass, version: Version, status: u16) {
        self.requests(method, version, status).fetch_add(1, Relaxed);
    }

    /// Counts a refusal, by the number of its reason.
    pub fn refused(&self, reason: usize) {
        if let Some(count) = self.refused.get(reason) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub fn request_waited(&self, wait: Duration) {
        self.queue_wait.observe(self.counting, wait);
    }

    /// Counts the time of a request before this server, from its load balancer.
    pub fn request_queued(&self, elapsed: Duration) {
        self.proxy_queue.observe(self.counting, elapsed);
    }

    /// Counts a measurement of the delay of a timer of the event loop.
    pub fn loop_lagged(&self, lag: Duration) {
        let us = u64::try_from(lag.as_micros()).unwrap_or(u64::MAX);
        self.loop_lag_us.store(us, Relaxed);
        self.loop_lag.observe(self.counting, lag);
    }

    pub fn received(&self, bytes: usize) {
        self.counting.add(&self.bytes_received, bytes as u64);
    }

    #[inline]
    pub fn sent(&self, bytes: usize) {
        self.counting.add(&self.bytes_sent, bytes as u64);
    }

    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Ends the worker, which may have been killed: gives its connections back.
    pub fn end(&self) {
        if let Some(limits) = self.slots.limits()
            && self.counts_clients.load(Relaxed) != 0
        {
            limits.forget_connections(self.index);
        }
        let slot: &Slot = self;
        slot.end();
    }

    pub fn index(&self) -> usize {
        self.index
    }
}

impl Deref for SlotHandle {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        self.slots
            .slot(self.index)
            .expect("checked when the handle was made")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_region_must_be_whole_and_aligned() {
        let slots = Slots::private(2);
        let start = slots.first.cast::<u8>();
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(slots.clone());
        // SAFETY: inside `slots`, which the owner keeps.
        let view = |offset: usize, bytes: usize| unsafe {
            Slots::from_shared(start.add(offset), bytes, owner.clone())
        };
        assert_eq!(view(0, SLOT_BYTES * 2).unwrap().len(), 2);
        assert_eq!(view(0, 0).err(), Some(SlotsError::Size(0)));
        assert_eq!(
            view(0, SLOT_BYTES + 8).err(),
            Some(SlotsError::Size(SLOT_BYTES + 8))
        );
        assert_eq!(view(8, SLOT_BYTES).err(), Some(SlotsError::Alignment));
        assert!(slots.handle(2).is_none());
    }

    #[test]
    fn a_mapping_holds_slots() {
        let slots = Slots::mapped(3, None).unwrap();
        let slot = slots.handle(2).unwrap();
        slot.request_started();
        slot.request_ended(MethodClass::Get, Version::Http11, 200, Duration::ZERO);
        assert_eq!(slot.requests_ended(), 1);
        assert_eq!(slots.slot(0).unwrap().requests_ended(), 0);
    }

    #[test]
    fn a_process_that_inherits_the_files_shares_counters_and_limits() {
        let files = [(); 2].map(|()| crate::sys::shared_file().unwrap());
        let files = files.each_ref().map(AsRawFd::as_raw_fd);
        let (ours, theirs) = [(); 2]
            .map(|()| Slots::mapped(3, Some(files)).unwrap())
            .into();
        ours.handle(1).unwrap().connection_opened();
        assert_eq!(theirs.slot(1).unwrap().connections.load(Relaxed), 1);
        let hash = |slots: &Slots| slots.limits().unwrap().hash("client");
        assert_eq!(hash(&ours), hash(&theirs));
        assert_ne!(hash(&ours), hash(&Slots::mapped(3, None).unwrap()));
    }

    #[test]
    fn workers_share_nothing_but_the_region() {
        let slots = Slots::private(2);
        slots.handle(1).unwrap().connection_opened();
        assert_eq!(slots.slot(0).unwrap().connections.load(Relaxed), 0);
        assert_eq!(slots.slot(1).unwrap().connections.load(Relaxed), 1);
    }

    #[test]
    fn a_new_worker_keeps_counts_and_drops_gauges() {
        let slots = Slots::private(1);
        let slot = slots.handle(0).unwrap();
        slot.begin(7, 1);
        slot.connection_opened();
        slot.request_started();
        slot.request_started();
        slot.request_ended(
            MethodClass::Get,
            Version::Http2,
            204,
            Duration::from_millis(2),
        );
        slot.begin(8, 2);
        assert_eq!(slot.in_flight.load(Relaxed), 0);
        assert_eq!(slot.connections_open.load(Relaxed), 0);
        assert_eq!(slot.connections.load(Relaxed), 1);
        let count = slot.requests(MethodClass::Get, Version::Http2, 204);
        assert_eq!(count.load(Relaxed), 1);
        assert_eq!((slot.pid.load(Relaxed), slot.started.load(Relaxed)), (8, 2));
    }

    #[test]
    fn buckets_hold_their_upper_bound() {
        let histogram = Histogram::default();
        for us in [0, 100, 101, 250, 30_000_000, 30_000_001] {
            histogram.observe(Counting::Shared, Duration::from_micros(us));
        }
        histogram.observe(Counting::Shared, Duration::MAX);
        let counts: Vec<u64> = histogram
            .buckets
            .iter()
            .map(|bucket| bucket.load(Relaxed))
            .collect();
        assert_eq!(counts[..3], [2, 2, 0]);
        assert_eq!(counts[16..], [1, 2]);
    }
}
