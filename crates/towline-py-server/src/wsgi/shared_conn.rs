//! A connection whose streams are served by several threads at once: HTTP/2 with `--threads`.
//!
//! ```text
//! I/O thread ── take, dispatch events, put ──────────┐
//! worker 1 ──── take, read, write, send, put ────────┼──► SharedConn: one owner at a time
//! worker 2 ──── ... wait for events of its stream ───┘
//! ```
//!
//! A worker owns the connection for one operation and never while Python code runs. It waits for ownership
//! with the GIL released. The I/O thread never waits: when a worker owns the connection, the I/O thread
//! sets `needs_service`, and the worker adds the connection to the service queue when it puts it back.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towline_io::{Conn, ConnId, StreamMap};
use towline_proto::StreamId;

use super::control::ServerControl;
use super::request::ConnState;

pub type BoxedConn = Box<Conn<ConnState>>;

pub struct SharedConn {
    id: ConnId,
    state: Mutex<State>,
    changed: Condvar,
    service_queue: Arc<ServiceQueue>,
}

/// Connections that the I/O thread has to service.
pub struct ServiceQueue {
    due: Mutex<Vec<ConnId>>,
    control: Arc<ServerControl>,
}

impl ServiceQueue {
    pub fn new(control: Arc<ServerControl>) -> Self {
        Self {
            due: Mutex::default(),
            control,
        }
    }

    fn due(&self) -> MutexGuard<'_, Vec<ConnId>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: ConnId) {
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
struct State {
    conn: Option<BoxedConn>,
    /// The I/O thread wanted the connection while a worker owned it.
    needs_service: bool,
    is_closed: bool,
    streams: StreamMap<StreamState>,
}

/// A stream whose request is queued for the application or being served.
#[derive(Default)]
struct StreamState {
    has_events: bool,
    is_failed: bool,
}

impl SharedConn {
    /// Created without its connection, which the I/O thread puts in with `put_after_service`.
    pub fn new(id: ConnId, service_queue: Arc<ServiceQueue>) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::default(),
            changed: Condvar::new(),
            service_queue,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The I/O thread.

    /// The connection, unless a worker owns it; that worker then queues it for service.
    pub fn take_for_service(&self) -> Option<BoxedConn> {
        let mut state = self.state();
        let conn = state.conn.take();
        state.needs_service = conn.is_none();
        conn
    }

    /// Puts the connection back after service. `None`: it is closed.
    pub fn put_after_service(&self, conn: Option<BoxedConn>) {
        let mut state = self.state();
        state.is_closed = conn.is_none();
        state.conn = conn;
        drop(state);
        self.changed.notify_all();
    }

    pub fn add_stream(&self, stream: StreamId) {
        self.state().streams.insert(stream, StreamState::default());
    }

    /// Wakes the worker of a stream that has an event or has failed; `None`: of every stream.
    pub fn notify(&self, stream: Option<StreamId>, is_failed: bool) {
        let mut state = self.state();
        let mark = |stream: &mut StreamState| {
            stream.has_events = true;
            stream.is_failed |= is_failed;
        };
        match stream {
            Some(stream) => {
                if let Some(stream) = state.streams.get_mut(stream) {
                    mark(stream);
                }
            }
            None => state.streams.values_mut().for_each(mark),
        }
    }

    pub fn has_no_streams(&self) -> bool {
        self.state().streams.is_empty()
    }

    // A worker.

    /// The connection, if no other thread owns it.
    pub fn try_take(&self, stream: StreamId) -> Option<BoxedConn> {
        self.state().take(stream)
    }

    /// Waits until no other thread owns the connection; `None` when it is closed.
    pub fn take(&self, stream: StreamId) -> Option<BoxedConn> {
        let mut state = self.state();
        while state.conn.is_none() && !state.is_closed {
            state = self.wait_changed(state);
        }
        state.take(stream)
    }

    /// Gives up ownership. `needs_service`: the I/O thread has to service the connection.
    pub fn put(&self, conn: BoxedConn, needs_service: bool) {
        let mut state = self.state();
        state.conn = Some(conn);
        let is_due = std::mem::take(&mut state.needs_service) || needs_service;
        drop(state);
        self.changed.notify_all();
        if is_due {
            self.service_queue.add(self.id);
        }
    }

    /// Waits for an event of a stream since the connection was last taken for it.
    pub fn wait(&self, stream: StreamId, at_most: Duration) {
        let state = self.state();
        let has_no_events = |state: &mut State| {
            let stream = state.streams.get_mut(stream);
            !state.is_closed && stream.is_some_and(|stream| !stream.has_events)
        };
        // The result says only whether the wait timed out; the caller checks the state anyway.
        let _ = self
            .changed
            .wait_timeout_while(state, at_most, has_no_events);
    }

    pub fn is_failed(&self, stream: StreamId) -> bool {
        let state = self.state();
        state.is_closed
            || state
                .streams
                .get(stream)
                .is_none_or(|stream| stream.is_failed)
    }

    /// The application has ended.
    pub fn remove_stream(&self, stream: StreamId) {
        self.state().streams.remove(stream);
    }

    fn wait_changed<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes ownership for `stream`, whose earlier events the new owner finds on the connection itself.
    fn take(&mut self, stream: StreamId) -> Option<BoxedConn> {
        let conn = self.conn.take()?;
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.has_events = false;
        }
        Some(conn)
    }
}
