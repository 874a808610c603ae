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
use super::shared_pool::Desk;
use super::wait_policy::{Patience, Stop};
use super::wake_pipe::Bell;
use crate::client::conn_ext::News;
use crate::client::fork;
use crate::client::pool::SlotId;
use crate::client::request::{CallPhase, Timeouts};
use crate::conn::stream_map::StreamMap;
use crate::conn::{Output, Peer, failure_rule};

/// Reads of one visit: others want the lock, too.
const MOST_READS: usize = 8;

pub(super) struct Shared {
    /// Its place in the pool.
    slot: SlotId,
    fd: RawFd,
    /// Rings at whoever is at the post.
    bell: Bell,
    /// The process that it belongs to.
    generation: u64,
    wire: Mutex<Wire>,
}

/// What the lock protects.
pub(super) struct Wire {
    pub(super) peer: ManuallyDrop<Peer<()>>,
    pub(super) riders: StreamMap<Rider>,
    post: Post,
    /// When something was received last.
    heard: Instant,
    /// How many calls at once the pool has been told of.
    told: Option<u32>,
}

/// Who polls the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Post {
    Vacant,
    /// Whoever waits for this stream has been rung, and will come or see to it that another does.
    Called(StreamId),
    Held(Watch),
}

/// What is polled for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Watch {
    events: libc::c_short,
    until: Instant,
}

/// What has come for a call and has not been taken by it. Its body is kept by the wire core.
#[derive(Default)]
pub(super) struct Rider {
    /// The final head, and whether no body follows.
    pub(super) head: Option<(OwnedHead, bool)>,
    pub(super) informational: Vec<OwnedHead>,
    pub(super) failure: Option<Failure>,
    /// Asleep, and to be rung.
    sleeper: Option<Thread>,
}

/// How an exchange has failed. With its event the wire core forgets the stream.
pub(super) struct Failure {
    pub(super) why: StreamError,
    pub(super) stats: StreamStats,
}

/// Why a wait ended in vain, what was being done, and what the stream had carried by then.
pub(super) struct Vain {
    pub(super) stop: Stop,
    pub(super) doing: CallPhase,
    pub(super) stats: StreamStats,
}

/// Whose wait it is, and on which terms.
pub(super) struct Wait<'a> {
    pub(super) desk: &'a Desk,
    pub(super) stream: StreamId,
    pub(super) timeouts: &'a Timeouts,
    pub(super) phase: CallPhase,
    /// When the call got its connection.
    pub(super) begun: Instant,
    /// The wait ends then, as its timeout would end it.
    pub(super) until: Option<Instant>,
}

impl Wait<'_> {
    /// Since when the server has had its time, where the wait ends because that is over.
    fn patient_since(&self, stop: Stop, since: Instant) -> Option<Instant> {
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
struct Aftermath {
    ring: Vec<Thread>,
    /// Whoever is at the post has to poll for something else.
    bell: bool,
}

impl Shared {
    pub(super) fn new(
        peer: Peer<()>,
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
            bell: Bell::new()?,
            generation,
            wire: Mutex::new(Wire {
                peer: ManuallyDrop::new(peer),
                riders: StreamMap::default(),
                post: Post::Vacant,
                heard: now,
                told: None,
            }),
        })
    }

    pub(super) fn slot(&self) -> SlotId {
        self.slot
    }

    pub(super) fn limit(&self) -> u32 {
        self.lock().limit()
    }

    pub(super) fn bell_fds(&self) -> [RawFd; 2] {
        self.bell.fds()
    }

    /// In a child of fork the lock may be held by a thread that does not exist there: leave it alone.
    pub(super) fn is_foreign(&self) -> bool {
        self.generation != fork::generation()
    }

    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the connection without waiting.
    pub(super) fn with<T>(&self, desk: &Desk, act: impl FnOnce(&mut Wire) -> T) -> T {
        let mut wire = self.lock();
        let value = act(&mut wire);
        self.leave(wire, desk);
        value
    }

    /// Whether it takes calls still, as far as can be told without waiting.
    pub(super) fn is_alive(&self, desk: &Desk) -> bool {
        let mut after = Aftermath::default();
        let mut wire = self.lock();
        if wire.post == Post::Vacant {
            wire.peer.input.readable = true;
            wire.visit(Instant::now(), &mut after);
        }
        let is_alive = wire.limit() > 0;
        self.leave_with(wire, desk, after);
        is_alive
    }

    /// Waits until `ready` has something.
    pub(super) fn wait<T>(
        &self,
        terms: &Wait<'_>,
        patience: &mut Patience<'_>,
        mut ready: impl FnMut(&mut Wire) -> Option<T>,
    ) -> Result<T, Vain> {
        let mut now = Instant::now();
        let (mut since, mut asked) = (now, now);
        let (mut was_signalled, mut was_sending) = (false, false);
        let mut after = Aftermath::default();
        let mut wire = self.lock();
        loop {
            if let Some(value) = ready(&mut wire) {
                self.leave_with(wire, terms.desk, after);
                return Ok(value);
            }
            if wire.settle(now, &mut after) {
                continue;
            }
            if let Some(at) = wire.peer.last_sent(terms.stream) {
                since = since.max(at);
            }
            let has_unsent = wire.peer.has_unsent(terms.stream);
            if std::mem::replace(&mut was_sending, has_unsent) && !has_unsent {
                // The server's turn begins when the last of it has left, with whatever it waited for.
                since = wire
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
            let mut phase = patience.phase(since, timeout);
            if terms.until.is_some() {
                phase.end_at(terms.until);
            }
            let look_by = phase.look_by(asked, now);
            if was_signalled || now >= look_by {
                // Whoever is asked may wait for a thread that wants this lock.
                self.leave_with(wire, terms.desk, std::mem::take(&mut after));
                let looked = phase.look();
                wire = self.lock();
                if let Err(stop) = looked {
                    let stats = wire.stream_stats(terms.stream);
                    let is_silent = terms
                        .patient_since(stop, since)
                        .is_some_and(|since| wire.heard <= since);
                    self.leave(wire, terms.desk);
                    if is_silent {
                        // As dead as the call, it seems: none is to follow it there.
                        terms.desk.retire(self.slot);
                    }
                    return Err(Vain { stop, doing, stats });
                }
                now = Instant::now();
                (asked, was_signalled) = (now, false);
                continue;
            }
            if wire.post == Post::Vacant {
                (wire, was_signalled) = self.keep_watch(wire, terms, look_by, &mut after);
            } else {
                wire = self.sleep(wire, terms, look_by, std::mem::take(&mut after));
            }
            now = Instant::now();
        }
    }

    /// Somebody else is at the post: waits to be rung.
    fn sleep<'a>(
        &'a self,
        mut wire: MutexGuard<'a, Wire>,
        terms: &Wait<'_>,
        until: Instant,
        after: Aftermath,
    ) -> MutexGuard<'a, Wire> {
        if let Some(rider) = wire.riders.get_mut(terms.stream) {
            rider.sleeper = Some(thread::current());
        }
        self.leave_with(wire, terms.desk, after);
        thread::park_timeout(until.saturating_duration_since(Instant::now()));
        let mut wire = self.lock();
        if let Some(rider) = wire.riders.get_mut(terms.stream) {
            rider.sleeper = None;
        }
        if wire.post == Post::Called(terms.stream) {
            wire.post = Post::Vacant;
        }
        wire
    }

    /// Polls for all. Also returned: whether a signal ended it.
    fn keep_watch<'a>(
        &'a self,
        mut wire: MutexGuard<'a, Wire>,
        terms: &Wait<'_>,
        until: Instant,
        after: &mut Aftermath,
    ) -> (MutexGuard<'a, Wire>, bool) {
        let now = Instant::now();
        let watch = wire.watch(until, now);
        wire.post = Post::Held(watch);
        self.leave_with(wire, terms.desk, std::mem::take(after));
        let (found, was_signalled) = self.poll(watch, now);
        let mut wire = self.lock();
        wire.post = Post::Vacant;
        let now = Instant::now();
        match found {
            Ok(revents) => wire.heed(revents),
            Err(error) => wire.peer.on_failure(now, failure_rule(&error)),
        }
        wire.visit(now, after);
        (wire, was_signalled)
    }

    /// What the socket has to say.
    fn poll(&self, watch: Watch, now: Instant) -> (io::Result<libc::c_short>, bool) {
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
                    self.bell.hush();
                }
                let is_early = Instant::now() < watch.until;
                (Ok(entries[0].revents), count == 0 && is_early)
            }
            Err(error) => (Err(error), false),
        }
    }

    /// Lets go of the connection.
    fn leave(&self, wire: MutexGuard<'_, Wire>, desk: &Desk) {
        self.leave_with(wire, desk, Aftermath::default());
    }

    fn leave_with(&self, mut wire: MutexGuard<'_, Wire>, desk: &Desk, mut after: Aftermath) {
        wire.settle(Instant::now(), &mut after);
        wire.see_to_the_post(&mut after);
        self.report(&mut wire, desk);
        drop(wire);
        if after.bell {
            self.bell.ring();
        }
        for sleeper in after.ring {
            sleeper.unpark();
        }
    }

    /// Tells the pool how many calls it takes, when that has changed. Under the lock, so that the last
    /// word is the right one: the desk never locks a connection.
    fn report(&self, wire: &mut Wire, desk: &Desk) {
        let limit = wire.limit();
        let is_known = limit == 0 || wire.peer.received_bytes() > 0;
        if !is_known || wire.told == Some(limit) {
            return;
        }
        wire.told = Some(limit);
        if limit == 0 {
            desk.retire(self.slot);
        } else {
            desk.set_capacity(self.slot, limit);
        }
    }
}

impl Wire {
    fn limit(&self) -> u32 {
        u32::try_from(self.peer.conn.stream_limit()).unwrap_or(u32::MAX)
    }

    /// What the stream of a call has carried so far.
    fn stream_stats(&mut self, stream: StreamId) -> StreamStats {
        let rider = self.riders.get(stream);
        match rider.and_then(|rider| rider.failure.as_ref()) {
            Some(failure) => failure.stats,
            None => self.peer.stream_stats(stream).unwrap_or_default(),
        }
    }

    /// Reads what is there, where the poll has said that something is, and does what is due.
    fn visit(&mut self, now: Instant, after: &mut Aftermath) {
        if self.peer.deadline().is_some_and(|at| at <= now) {
            self.peer.on_timeout(now);
        }
        with_buffers(|buffers| {
            for _ in 0..MOST_READS {
                if !self.peer.receive(buffers, now) {
                    break;
                }
                self.heard = now;
                self.take_events(after);
            }
            self.settle(now, after);
            self.peer.conn.release(buffers);
        });
    }

    /// What the poll has said.
    fn heed(&mut self, revents: libc::c_short) {
        if revents & libc::POLLOUT != 0 && self.peer.output == Output::Blocked {
            self.peer.output = Output::Open;
        }
        if revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
            self.peer.input.readable = true;
            self.peer.input.closed |= revents & (libc::POLLHUP | libc::POLLERR) != 0;
        }
    }

    /// Sends what the kernel takes. Whether there were events.
    fn settle(&mut self, now: Instant, after: &mut Aftermath) -> bool {
        if self.peer.output == Output::Open {
            self.peer.flush(now, usize::MAX);
        }
        if self.peer.output == Output::Broken && !self.peer.conn.interest().read {
            // Neither direction goes on.
            self.peer
                .on_failure(now, "connection closed while we were sending");
        }
        let had_events = self.take_events(after);
        self.peer.report_failure(now) && self.take_events(after) || had_events
    }

    fn take_events(&mut self, after: &mut Aftermath) -> bool {
        if !self.peer.conn.has_events() {
            return false;
        }
        while let Some(event) = self.peer.conn.next_event() {
            let Some((stream, news)) = News::of(event) else {
                continue;
            };
            let Some(rider) = self.riders.get_mut(stream) else {
                continue;
            };
            match news {
                News::Head { head, end } => rider.head = Some((head, end)),
                News::Interim(head) => rider.informational.push(head),
                News::Failed(why) => {
                    let stats = self.peer.stream_stats(stream).unwrap_or_default();
                    rider.failure = Some(Failure { why, stats });
                }
                News::Readable | News::Writable | News::Switched => {}
            }
            after.ring.extend(rider.sleeper.take());
        }
        true
    }

    /// What to poll for, and for how long.
    fn watch(&self, until: Instant, now: Instant) -> Watch {
        let interest = self.peer.conn.interest();
        let read = if interest.read { libc::POLLIN } else { 0 };
        let write = if self.peer.output == Output::Blocked {
            libc::POLLOUT
        } else {
            0
        };
        let until = self.peer.deadline().map_or(until, |at| at.min(until));
        Watch {
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
    fn see_to_the_post(&mut self, after: &mut Aftermath) {
        match self.post {
            Post::Called(_) => {}
            Post::Held(held) => {
                // What it can read at once is no reason to ring: it is awake.
                let wanted = self.watch(held.until, held.until);
                after.bell = wanted.events & !held.events != 0 || wanted.until < held.until;
            }
            Post::Vacant => {
                let mut riders = self.riders.iter().rev();
                let youngest = riders.find(|(_, rider)| rider.sleeper.is_some());
                let Some(stream) = youngest.map(|(stream, _)| stream) else {
                    return;
                };
                drop(riders);
                let rider = self.riders.get_mut(stream);
                after
                    .ring
                    .extend(rider.and_then(|rider| rider.sleeper.take()));
                self.post = Post::Called(stream);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // As for a `Line`: not in a child of fork.
        if self.generation == fork::generation() {
            let wire = self.wire.get_mut().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            wire.peer.take_leave(now);
            wire.peer.close(now);
            // SAFETY: nobody sees the field again.
            unsafe { ManuallyDrop::drop(&mut wire.peer) };
        }
    }
}
