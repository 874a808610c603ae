//! A connection that carries the calls of many threads at once (HTTP/2), without a thread of its own.
//!
//! ```text
//!             ┌─ no leader ─► Polling: poll(2) for all ─► receive, wake streams, send ───────────┐
//!  wait ──────┤                                                                                  ├─► check again
//!             └─ a leader ──► parked ◄── unparked: an event arrived, or it is elected leader ────┘
//! ```
//!
//! The lock is never held over a wait. Invariant on unlock: output is flushed as far as the kernel accepts it,
//! streams with events are woken, and if any thread waits, one is polling or has been elected to poll. While no
//! thread waits nothing is read: the next call processes the input that has arrived before it begins.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use towline_proto::{OwnedHead, StreamError, StreamId, StreamStats};

use super::h1_conn::{poll, with_buffers};
use super::shared_pool::SharedPool;
use super::wait_policy::{Stop, WaitPolicy};
use super::wake_pipe::WakePipe;
use crate::client::conn_ext::ConnEvent;
use crate::client::fork;
use crate::client::pool::SlotId;
use crate::client::request::{CallPhase, Timeouts};
use crate::conn::stream_map::StreamMap;
use crate::conn::{Conn, Output, failure_rule};

/// Reads per service: other threads want the lock, too.
const MOST_READS: usize = 8;

pub(super) struct H2Conn {
    /// Its slot in the pool.
    slot: SlotId,
    fd: RawFd,
    /// Wakes the thread that polls.
    wake_pipe: WakePipe,
    /// The process that opened it.
    generation: u64,
    state: Mutex<SharedState>,
}

/// The state behind the lock.
pub(super) struct SharedState {
    pub(super) peer: ManuallyDrop<Conn<()>>,
    pub(super) streams: StreamMap<StreamSlot>,
    leader: Leader,
    /// When bytes were last received.
    last_received: Instant,
    /// The capacity that the pool was last given.
    reported_capacity: Option<u32>,
}

/// Which thread polls the socket for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leader {
    None,
    /// The thread that waits for this stream was woken to poll; it will, or will elect another.
    Elected(StreamId),
    Polling(PollInterest),
}

/// The events polled for, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PollInterest {
    events: libc::c_short,
    until: Instant,
}

/// Events of a stream that its call has not taken yet. The protocol core buffers its body.
#[derive(Default)]
pub(super) struct StreamSlot {
    /// The final head, and whether the response ends with it.
    pub(super) head: Option<(OwnedHead, bool)>,
    pub(super) informational: Vec<OwnedHead>,
    pub(super) failure: Option<StreamFailure>,
    /// The thread to unpark when something arrives.
    sleeper: Option<Thread>,
}

/// The failure of an exchange. The protocol core forgets the stream with this event.
pub(super) struct StreamFailure {
    pub(super) why: StreamError,
    pub(super) stats: StreamStats,
}

/// Why a wait ended, what the call was doing, and what its stream had carried by then.
pub(super) struct WaitError {
    pub(super) stop: Stop,
    pub(super) doing: CallPhase,
    pub(super) stats: StreamStats,
}

/// The parameters of a wait on a stream.
pub(super) struct StreamWait<'a> {
    pub(super) pool: &'a SharedPool,
    pub(super) stream: StreamId,
    pub(super) timeouts: &'a Timeouts,
    pub(super) phase: CallPhase,
    /// When the call got its connection.
    pub(super) begun: Instant,
    /// The wait ends then as if its timeout had expired.
    pub(super) until: Option<Instant>,
}

impl StreamWait<'_> {
    /// Since when the server has been expected to act, if the wait ended because of that.
    fn server_idle_since(&self, stop: Stop, since: Instant) -> Option<Instant> {
        match stop {
            Stop::Interrupted => None,
            // However slow it was: only a connection that received nothing at all is suspect.
            Stop::Total => Some(self.begun),
            Stop::Phase => self.until.is_none().then_some(since),
        }
    }
}

/// Work done after unlocking.
#[derive(Default)]
struct Deferred {
    ring: Vec<Thread>,
    /// The polling thread has to poll for something else.
    wake_pipe: bool,
}

impl H2Conn {
    pub(super) fn new(
        peer: Conn<()>,
        slot: SlotId,
        generation: u64,
        now: Instant,
    ) -> io::Result<Self> {
        let mut peer = peer;
        // TLS may have buffered bytes that poll(2) does not report.
        peer.input.readable = true;
        Ok(Self {
            slot,
            fd: peer.as_raw_fd(),
            wake_pipe: WakePipe::new()?,
            generation,
            state: Mutex::new(SharedState {
                peer: ManuallyDrop::new(peer),
                streams: StreamMap::default(),
                leader: Leader::None,
                last_received: now,
                reported_capacity: None,
            }),
        })
    }

    pub(super) fn slot(&self) -> SlotId {
        self.slot
    }

    pub(super) fn limit(&self) -> u32 {
        self.lock().limit()
    }

    pub(super) fn wake_pipe_fds(&self) -> [RawFd; 2] {
        self.wake_pipe.fds()
    }

    /// In a forked child a thread that does not exist there may hold the lock.
    pub(super) fn is_foreign(&self) -> bool {
        self.generation != fork::generation()
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` on the connection without waiting.
    pub(super) fn with<T>(&self, pool: &SharedPool, act: impl FnOnce(&mut SharedState) -> T) -> T {
        let mut state = self.lock();
        let value = act(&mut state);
        self.unlock(state, pool);
        value
    }

    /// Whether it still accepts calls, as far as can be known without waiting.
    pub(super) fn is_alive(&self, pool: &SharedPool) -> bool {
        let mut deferred = Deferred::default();
        let mut state = self.lock();
        if state.leader == Leader::None {
            state.peer.input.readable = true;
            state.service(Instant::now(), &mut deferred);
        }
        let is_alive = state.limit() > 0;
        self.unlock_with(state, pool, deferred);
        is_alive
    }

    /// Waits until `ready` returns something.
    pub(super) fn wait<T>(
        &self,
        terms: &StreamWait<'_>,
        policy: &mut WaitPolicy<'_>,
        mut ready: impl FnMut(&mut SharedState) -> Option<T>,
    ) -> Result<T, WaitError> {
        let mut now = Instant::now();
        let (mut since, mut asked) = (now, now);
        let (mut was_signalled, mut was_sending) = (false, false);
        let mut deferred = Deferred::default();
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                self.unlock_with(state, terms.pool, deferred);
                return Ok(value);
            }
            if state.flush_and_take_events(now, &mut deferred) {
                continue;
            }
            if let Some(at) = state.peer.last_sent(terms.stream) {
                since = since.max(at);
            }
            let has_unsent = state.peer.has_unsent(terms.stream);
            if std::mem::replace(&mut was_sending, has_unsent) && !has_unsent {
                // The server is expected to respond once the last byte, with everything queued before it, was
                // sent.
                since = state
                    .peer
                    .traffic
                    .last_sent
                    .map_or(since, |at| since.max(at));
            }
            let (doing, timeout) = if has_unsent {
                (CallPhase::Send, terms.timeouts.write)
            } else {
                (terms.phase, terms.timeouts.read)
            };
            let mut phase = policy.phase(since, timeout);
            if terms.until.is_some() {
                phase.end_at(terms.until);
            }
            let look_by = phase.look_by(asked, now);
            if was_signalled || now >= look_by {
                // The interrupt check may run for a thread that wants this lock.
                self.unlock_with(state, terms.pool, std::mem::take(&mut deferred));
                let checked = phase.look();
                state = self.lock();
                if let Err(stop) = checked {
                    let byte_counts = state.stream_stats(terms.stream);
                    let is_silent = terms
                        .server_idle_since(stop, since)
                        .is_some_and(|since| state.last_received <= since);
                    self.unlock(state, terms.pool);
                    if is_silent {
                        // Nothing was received during the timeout: stop assigning calls to this connection.
                        terms.pool.retire(self.slot);
                    }
                    return Err(WaitError {
                        stop,
                        doing,
                        stats: byte_counts,
                    });
                }
                now = Instant::now();
                (asked, was_signalled) = (now, false);
                continue;
            }
            if state.leader == Leader::None {
                (state, was_signalled) = self.poll_as_leader(state, terms, look_by, &mut deferred);
            } else {
                state = self.sleep(state, terms, look_by, std::mem::take(&mut deferred));
            }
            now = Instant::now();
        }
    }

    /// Another thread polls: waits to be unparked.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, SharedState>,
        terms: &StreamWait<'_>,
        until: Instant,
        deferred: Deferred,
    ) -> MutexGuard<'a, SharedState> {
        if let Some(slot) = state.streams.get_mut(terms.stream) {
            slot.sleeper = Some(thread::current());
        }
        self.unlock_with(state, terms.pool, deferred);
        thread::park_timeout(until.saturating_duration_since(Instant::now()));
        let mut state = self.lock();
        if let Some(slot) = state.streams.get_mut(terms.stream) {
            slot.sleeper = None;
        }
        if state.leader == Leader::Elected(terms.stream) {
            state.leader = Leader::None;
        }
        state
    }

    /// Polls for all threads. Also returns whether a signal interrupted it.
    fn poll_as_leader<'a>(
        &'a self,
        mut state: MutexGuard<'a, SharedState>,
        terms: &StreamWait<'_>,
        until: Instant,
        deferred: &mut Deferred,
    ) -> (MutexGuard<'a, SharedState>, bool) {
        let now = Instant::now();
        let watch = state.watch(until, now);
        state.leader = Leader::Polling(watch);
        self.unlock_with(state, terms.pool, std::mem::take(deferred));
        let (acquired, was_signalled) = self.poll(watch, now);
        let mut state = self.lock();
        state.leader = Leader::None;
        let now = Instant::now();
        match acquired {
            Ok(revents) => state.on_poll(revents),
            Err(error) => state.peer.on_failure(now, failure_rule(&error)),
        }
        state.service(now, deferred);
        (state, was_signalled)
    }

    /// Polls the socket and the wake-up pipe.
    fn poll(&self, watch: PollInterest, now: Instant) -> (io::Result<libc::c_short>, bool) {
        let entry = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut entries = [
            entry(self.fd, watch.events),
            entry(self.wake_pipe.fd(), libc::POLLIN),
        ];
        let most = watch.until.saturating_duration_since(now);
        match poll(&mut entries, most) {
            Ok(count) => {
                if entries[1].revents != 0 {
                    self.wake_pipe.clear();
                }
                let is_early = Instant::now() < watch.until;
                (Ok(entries[0].revents), count == 0 && is_early)
            }
            Err(error) => (Err(error), false),
        }
    }

    /// Unlocks the connection.
    fn unlock(&self, state: MutexGuard<'_, SharedState>, pool: &SharedPool) {
        self.unlock_with(state, pool, Deferred::default());
    }

    fn unlock_with(
        &self,
        mut state: MutexGuard<'_, SharedState>,
        pool: &SharedPool,
        mut deferred: Deferred,
    ) {
        state.flush_and_take_events(Instant::now(), &mut deferred);
        state.elect_leader(&mut deferred);
        self.report(&mut state, pool);
        drop(state);
        if deferred.wake_pipe {
            self.wake_pipe.notify();
        }
        for sleeper in deferred.ring {
            sleeper.unpark();
        }
    }

    /// Reports a changed capacity to the pool. Under the lock, so that the last report is right: the pool
    /// never locks a connection.
    fn report(&self, state: &mut SharedState, pool: &SharedPool) {
        let limit = state.limit();
        let is_known = limit == 0 || state.peer.received_bytes() > 0;
        if !is_known || state.reported_capacity == Some(limit) {
            return;
        }
        state.reported_capacity = Some(limit);
        if limit == 0 {
            pool.retire(self.slot);
        } else {
            pool.set_capacity(self.slot, limit);
        }
    }
}

impl SharedState {
    fn limit(&self) -> u32 {
        u32::try_from(self.peer.proto.stream_limit()).unwrap_or(u32::MAX)
    }

    /// Byte counts of a stream so far.
    fn stream_stats(&mut self, stream: StreamId) -> StreamStats {
        let slot = self.streams.get(stream);
        match slot.and_then(|slot| slot.failure.as_ref()) {
            Some(failure) => failure.stats,
            None => self.peer.stream_stats(stream).unwrap_or_default(),
        }
    }

    /// Reads if poll(2) reported input, and handles due timers.
    fn service(&mut self, now: Instant, deferred: &mut Deferred) {
        if self.peer.deadline().is_some_and(|at| at <= now) {
            self.peer.on_timeout(now);
        }
        with_buffers(|buffers| {
            for _ in 0..MOST_READS {
                if !self.peer.receive(buffers, now) {
                    break;
                }
                self.last_received = now;
                self.take_events(deferred);
            }
            self.flush_and_take_events(now, deferred);
            self.peer.proto.release(buffers);
        });
    }

    /// Processes the result of poll(2).
    fn on_poll(&mut self, revents: libc::c_short) {
        if revents & libc::POLLOUT != 0 && self.peer.output == Output::Blocked {
            self.peer.output = Output::Open;
        }
        if revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
            self.peer.input.readable = true;
            self.peer.input.closed |= revents & (libc::POLLHUP | libc::POLLERR) != 0;
        }
    }

    /// Sends as much as the kernel accepts. Whether there were events.
    fn flush_and_take_events(&mut self, now: Instant, deferred: &mut Deferred) -> bool {
        if self.peer.output == Output::Open {
            self.peer.flush(now, usize::MAX);
        }
        if self.peer.output == Output::Broken && !self.peer.proto.interest().read {
            // Neither direction is usable.
            self.peer
                .on_failure(now, "connection closed while we were sending");
        }
        let had_events = self.take_events(deferred);
        self.peer.report_failure(now) && self.take_events(deferred) || had_events
    }

    fn take_events(&mut self, deferred: &mut Deferred) -> bool {
        if !self.peer.proto.has_events() {
            return false;
        }
        while let Some(event) = self.peer.proto.next_event() {
            let Some((stream, news)) = ConnEvent::of(event) else {
                continue;
            };
            let Some(slot) = self.streams.get_mut(stream) else {
                continue;
            };
            match news {
                ConnEvent::Head { head, end } => slot.head = Some((head, end)),
                ConnEvent::Interim(head) => slot.informational.push(head),
                ConnEvent::Failed(why) => {
                    let stats = self.peer.stream_stats(stream).unwrap_or_default();
                    slot.failure = Some(StreamFailure { why, stats });
                }
                ConnEvent::Readable | ConnEvent::Writable | ConnEvent::Switched => {}
            }
            deferred.ring.extend(slot.sleeper.take());
        }
        true
    }

    /// The events to poll for, and for how long.
    fn watch(&self, until: Instant, now: Instant) -> PollInterest {
        let interest = self.peer.proto.interest();
        let read = if interest.read { libc::POLLIN } else { 0 };
        let write = if self.peer.output == Output::Blocked {
            libc::POLLOUT
        } else {
            0
        };
        let until = self.peer.deadline().map_or(until, |at| at.min(until));
        PollInterest {
            events: read | write,
            // poll(2) does not report bytes that TLS has already buffered.
            until: if self.peer.input.readable && interest.read {
                now
            } else {
                until
            },
        }
    }

    /// Makes sure that a thread polls, if any waits: a polling thread is woken if it must poll for something
    /// else; if there is none, the waiting thread of the youngest call, which usually stays longest, is
    /// elected.
    fn elect_leader(&mut self, deferred: &mut Deferred) {
        match self.leader {
            Leader::Elected(_) => {}
            Leader::Polling(held) => {
                // Input that it could read at once is no reason to wake it: it is awake.
                let wanted = self.watch(held.until, held.until);
                deferred.wake_pipe = wanted.events & !held.events != 0 || wanted.until < held.until;
            }
            Leader::None => {
                let mut streams = self.streams.iter().rev();
                let youngest = streams.find(|(_, slot)| slot.sleeper.is_some());
                let Some(stream) = youngest.map(|(stream, _)| stream) else {
                    return;
                };
                drop(streams);
                let slot = self.streams.get_mut(stream);
                deferred
                    .ring
                    .extend(slot.and_then(|slot| slot.sleeper.take()));
                self.leader = Leader::Elected(stream);
            }
        }
    }
}

impl Drop for H2Conn {
    fn drop(&mut self) {
        // As for an `H1Conn`: not in a forked child.
        if self.generation == fork::generation() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            state.peer.send_goaway(now);
            state.peer.close(now);
            // SAFETY: the field is not used again.
            unsafe { ManuallyDrop::drop(&mut state.peer) };
        }
    }
}
