//! A connection whose streams are served by several threads at once: HTTP/2 with `--threads`.
//!
//! ```text
//! I/O thread ── take, events to jobs and news, put ──┐
//! worker 1 ──── take, read, write, send, put ────────┼──► Berth: one connection, in one hand at a time
//! worker 2 ──── ... wait for news of its stream ─────┘
//! ```
//!
//! A worker has it in hand for the length of one operation and never while Python code runs. It waits for
//! its turn, without the GIL. The I/O thread waits for nobody: it leaves word, and whoever puts the
//! connection back calls it.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towline_io::{ConnId, Peer, Streams};
use towline_proto::StreamId;

use super::request::ConnState;
use super::server::Control;

pub type Held = Box<Peer<ConnState>>;

pub struct Berth {
    id: ConnId,
    place: Mutex<Place>,
    changed: Condvar,
    visits: Arc<Visits>,
}

/// The connections that wait for a visit of the I/O thread.
pub struct Visits {
    due: Mutex<Vec<ConnId>>,
    control: Arc<Control>,
}

impl Visits {
    pub fn new(control: Arc<Control>) -> Self {
        Self {
            due: Mutex::default(),
            control,
        }
    }

    fn due(&self) -> MutexGuard<'_, Vec<ConnId>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, id: ConnId) {
        let was_empty = {
            let mut due = self.due();
            due.push(id);
            due.len() == 1
        };
        if was_empty {
            self.control.wake();
        }
    }

    pub fn take(&self) -> Vec<ConnId> {
        std::mem::take(&mut *self.due())
    }

    pub fn is_empty(&self) -> bool {
        self.due().is_empty()
    }
}

#[derive(Default)]
struct Place {
    peer: Option<Held>,
    /// The I/O thread came while it was in a worker's hand.
    visit_due: bool,
    /// The connection is no more.
    is_over: bool,
    calls: Streams<Call>,
}

/// A stream whose request is the application's.
#[derive(Default)]
struct Call {
    has_news: bool,
    is_lost: bool,
}

impl Berth {
    /// For a connection that the I/O thread has in hand.
    pub fn new(id: ConnId, visits: Arc<Visits>) -> Arc<Self> {
        Arc::new(Self {
            id,
            place: Mutex::default(),
            changed: Condvar::new(),
            visits,
        })
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The I/O thread.

    /// The connection, unless a worker has it, who then calls for a visit.
    pub fn take_for_visit(&self) -> Option<Held> {
        let mut place = self.place();
        let peer = place.peer.take();
        place.visit_due = peer.is_none();
        peer
    }

    /// After a visit. `None`: the connection has ended.
    pub fn put_after_visit(&self, peer: Option<Held>) {
        let mut place = self.place();
        place.is_over = peer.is_none();
        place.peer = peer;
        drop(place);
        self.changed.notify_all();
    }

    pub fn begin(&self, stream: StreamId) {
        self.place().calls.insert(stream, Call::default());
    }

    /// Something happened on a stream, or it failed; `None`: on all of them.
    pub fn tell(&self, stream: Option<StreamId>, is_lost: bool) {
        let mut place = self.place();
        let note = |call: &mut Call| {
            call.has_news = true;
            call.is_lost |= is_lost;
        };
        match stream {
            Some(stream) => {
                if let Some(call) = place.calls.get_mut(stream) {
                    note(call);
                }
            }
            None => place.calls.values_mut().for_each(note),
        }
    }

    pub fn is_unused(&self) -> bool {
        self.place().calls.is_empty()
    }

    // A worker.

    /// The connection, if nobody has it.
    pub fn try_take(&self, stream: StreamId) -> Option<Held> {
        self.place().take(stream)
    }

    /// The connection, once nobody else has it; `None` when it is no more.
    pub fn take(&self, stream: StreamId) -> Option<Held> {
        let mut place = self.place();
        while place.peer.is_none() && !place.is_over {
            place = self.wait_changed(place);
        }
        place.take(stream)
    }

    /// Back in its place; `visit`: the I/O thread has to see it.
    pub fn put(&self, peer: Held, visit: bool) {
        let mut place = self.place();
        place.peer = Some(peer);
        let is_due = std::mem::take(&mut place.visit_due) || visit;
        drop(place);
        self.changed.notify_all();
        if is_due {
            self.visits.call(self.id);
        }
    }

    /// Waits for news of a stream since the connection was taken for it last.
    pub fn wait(&self, stream: StreamId, at_most: Duration) {
        let place = self.place();
        let has_no_news = |place: &mut Place| {
            let call = place.calls.get_mut(stream);
            !place.is_over && call.is_some_and(|call| !call.has_news)
        };
        // Its only outcome is the time, and the caller looks anyway.
        let _ = self.changed.wait_timeout_while(place, at_most, has_no_news);
    }

    pub fn is_lost(&self, stream: StreamId) -> bool {
        let place = self.place();
        place.is_over || place.calls.get(stream).is_none_or(|call| call.is_lost)
    }

    /// The application has ended.
    pub fn end(&self, stream: StreamId) {
        self.place().calls.remove(stream);
    }

    fn wait_changed<'a>(&self, place: MutexGuard<'a, Place>) -> MutexGuard<'a, Place> {
        let woken = self.changed.wait(place);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// What was told before is seen by whoever has the connection in hand.
    fn take(&mut self, stream: StreamId) -> Option<Held> {
        let peer = self.peer.take()?;
        if let Some(call) = self.calls.get_mut(stream) {
            call.has_news = false;
        }
        Some(peer)
    }
}
