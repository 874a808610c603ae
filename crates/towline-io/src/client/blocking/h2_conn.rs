//! A connection that carries the calls of many threads at once (HTTP/2), without a thread of its own.
//!
//! ```text
//!             ┌─ post vacant ─► at the post: poll(2) for all ─► receive, tell each stream, send ─┐
//!  wait ──────┤                                                                                  ├─► look again
//!             └─ post held ───► asleep ◄── rung: there are news, or the post has become vacant ──┘
//! ```
//!
//! The lock is never held over a wait. Whoever lets go of it leaves the connection in order: what the kernel
//! takes has been sent, those with news are rung, and when anybody waits somebody is at the post, or has been
//! called to it. While nobody waits nobody reads: the next call looks at what has come before it begins.

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

/// Reads of one visit: others want the lock, too.
const MOST_READS: usize = 8;

pub(super) struct H2Conn {
    /// Its place in the pool.
    slot: SlotId,
    fd: RawFd,
    /// Rings at whoever is at the post.
    bell: WakePipe,
    /// The process that it belongs to.
    generation: u64,
    state: Mutex<SharedState>,
}

/// What the lock protects.
pub(super) struct SharedState {
    pub(super) peer: ManuallyDrop<Conn<()>>,
    pub(super) streams: StreamMap<StreamSlot>,
    leader: Leader,
    /// When something was received last.
    last_received: Instant,
    /// How many calls at once the pool has been told of.
    reported_capacity: Option<u32>,
}

/// Who polls the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leader {
    None,
    /// Whoever waits for this stream has been rung, and will come or see to it that another does.
    Elected(StreamId),
    Polling(PollInterest),
}

/// What is polled for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PollInterest {
    events: libc::c_short,
    until: Instant,
}

/// What has come for a call and has not been taken by it. Its body is kept by the wire core.
#[derive(Default)]
pub(super) struct StreamSlot {
    /// The final head, and whether no body follows.
    pub(super) head: Option<(OwnedHead, bool)>,
    pub(super) informational: Vec<OwnedHead>,
    pub(super) failure: Option<StreamFailure>,
    /// Asleep, and to be rung.
    sleeper: Option<Thread>,
}

/// How an exchange has failed. With its event the wire core forgets the stream.
pub(super) struct StreamFailure {
    pub(super) why: StreamError,
    pub(super) stats: StreamStats,
}

/// Why a wait ended in vain, what was being done, and what the stream had carried by then.
pub(super) struct WaitError {
    pub(super) stop: Stop,
    pub(super) doing: CallPhase,
    pub(super) stats: StreamStats,
}

/// Whose wait it is, and on which terms.
pub(super) struct StreamWait<'a> {
    pub(super) pool: &'a SharedPool,
    pub(super) stream: StreamId,
    pub(super) timeouts: &'a Timeouts,
    pub(super) phase: CallPhase,
    /// When the call got its connection.
    pub(super) begun: Instant,
    /// The wait ends then, as its timeout would end it.
    pub(super) until: Option<Instant>,
}

impl StreamWait<'_> {
    /// Since when the server has had its time, where the wait ends because that is over.
    fn server_idle_since(&self, stop: Stop, since: Instant) -> Option<Instant> {
        match stop {
            Stop::Interrupted => None,
            // However slow it was: only a connection without a sign of life is in doubt.
            Stop::Total => Some(self.begun),
            Stop::Phase => self.until.is_none().then_some(since),
        }
    }
}

/// What is done when the lock is open again.
#[derive(Default)]
struct Deferred {
    ring: Vec<Thread>,
    /// Whoever is at the post has to poll for something else.
    bell: bool,
}

impl H2Conn {
    pub(super) fn new(
        peer: Conn<()>,
        slot: SlotId,
        generation: u64,
        now: Instant,
    ) -> io::Result<Self> {
        let mut peer = peer;
        // TLS may have taken bytes in that no poll tells of.
        peer.input.readable = true;
        Ok(Self {
            slot,
            fd: peer.as_raw_fd(),
            bell: WakePipe::new()?,
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
        self.bell.fds()
    }

    /// In a child of fork the lock may be held by a thread that does not exist there: leave it alone.
    pub(super) fn is_foreign(&self) -> bool {
        self.generation != fork::generation()
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the connection without waiting.
    pub(super) fn with<T>(&self, pool: &SharedPool, act: impl FnOnce(&mut SharedState) -> T) -> T {
        let mut state = self.lock();
        let value = act(&mut state);
        self.unlock(state, pool);
        value
    }

    /// Whether it takes calls still, as far as can be told without waiting.
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

    /// Waits until `ready` has something.
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
                // The server's turn begins when the last of it has left, with whatever it waited for.
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
                // Whoever is asked may wait for a thread that wants this lock.
                self.unlock_with(state, terms.pool, std::mem::take(&mut deferred));
                let looked = phase.look();
                state = self.lock();
                if let Err(stop) = looked {
                    let stats = state.stream_stats(terms.stream);
                    let is_silent = terms
                        .server_idle_since(stop, since)
                        .is_some_and(|since| state.last_received <= since);
                    self.unlock(state, terms.pool);
                    if is_silent {
                        // As dead as the call, it seems: none is to follow it there.
                        terms.pool.retire(self.slot);
                    }
                    return Err(WaitError { stop, doing, stats });
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

    /// Somebody else is at the post: waits to be rung.
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

    /// Polls for all. Also returned: whether a signal ended it.
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

    /// What the socket has to say.
    fn poll(&self, watch: PollInterest, now: Instant) -> (io::Result<libc::c_short>, bool) {
        let entry = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut entries = [
            entry(self.fd, watch.events),
            entry(self.bell.fd(), libc::POLLIN),
        ];
        let most = watch.until.saturating_duration_since(now);
        match poll(&mut entries, most) {
            Ok(count) => {
                if entries[1].revents != 0 {
                    self.bell.clear();
                }
                let is_early = Instant::now() < watch.until;
                (Ok(entries[0].revents), count == 0 && is_early)
            }
            Err(error) => (Err(error), false),
        }
    }

    /// Lets go of the connection.
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
        if deferred.bell {
            self.bell.notify();
        }
        for sleeper in deferred.ring {
            sleeper.unpark();
        }
    }

    /// Tells the pool how many calls it takes, when that has changed. Under the lock, so that the last
    /// word is the right one: the desk never locks a connection.
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

    /// What the stream of a call has carried so far.
    fn stream_stats(&mut self, stream: StreamId) -> StreamStats {
        let slot = self.streams.get(stream);
        match slot.and_then(|slot| slot.failure.as_ref()) {
            Some(failure) => failure.stats,
            None => self.peer.stream_stats(stream).unwrap_or_default(),
        }
    }

    /// Reads what is there, where the poll has said that something is, and does what is due.
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

    /// What the poll has said.
    fn on_poll(&mut self, revents: libc::c_short) {
        if revents & libc::POLLOUT != 0 && self.peer.output == Output::Blocked {
            self.peer.output = Output::Open;
        }
        if revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
            self.peer.input.readable = true;
            self.peer.input.closed |= revents & (libc::POLLHUP | libc::POLLERR) != 0;
        }
    }

    /// Sends what the kernel takes. Whether there were events.
    fn flush_and_take_events(&mut self, now: Instant, deferred: &mut Deferred) -> bool {
        if self.peer.output == Output::Open {
            self.peer.flush(now, usize::MAX);
        }
        if self.peer.output == Output::Broken && !self.peer.proto.interest().read {
            // Neither direction goes on.
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

    /// What to poll for, and for how long.
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
            // What TLS holds already no poll tells.
            until: if self.peer.input.readable && interest.read {
                now
            } else {
                until
            },
        }
    }

    /// Whoever is there may have to poll for something else now; where nobody is, one who sleeps is called:
    /// of those the one whose call is the youngest, who will stay longest as a rule.
    fn elect_leader(&mut self, deferred: &mut Deferred) {
        match self.leader {
            Leader::Elected(_) => {}
            Leader::Polling(held) => {
                // What it can read at once is no reason to ring: it is awake.
                let wanted = self.watch(held.until, held.until);
                deferred.bell = wanted.events & !held.events != 0 || wanted.until < held.until;
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
        // As for a `H1Conn`: not in a child of fork.
        if self.generation == fork::generation() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            state.peer.take_leave(now);
            state.peer.close(now);
            // SAFETY: nobody sees the field again.
            unsafe { ManuallyDrop::drop(&mut state.peer) };
        }
    }
}
