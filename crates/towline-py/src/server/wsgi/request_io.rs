//! Where one application thread does its I/O: the whole engine (inline mode) or one connection (threads
//! mode), which is checked out to this thread or, with HTTP/2, shared with others.
//!
//! `wsgi.input` and `write()` reach their connection through the desk, by the serial number of their
//! exchange: an object that the application kept too long finds that its exchange is over.
//!
//! Nobody holds the lock of a desk while Python code runs, and nobody waits for it with the GIL held
//! (`lock_py_attached`), so a thread that the application started may read the body, too.
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use towline_io::{ConnId, Engine, Peer};
use towline_proto::{Blocks, Connection, Protocol, StreamId, StreamMut};

use super::request::{ConnState, OwnedHead, Request, WINDOW_BYTES, next_request, take_news};
use super::server::Control;
use super::shared_conn::{Berth, Held};
use crate::errors::client_disconnected;

/// A waiting thread looks at signals and at the server's commands this often even when nothing happens.
pub const LONGEST_WAIT: Duration = Duration::from_secs(1);

pub type SharedDesk = Arc<Mutex<Desk>>;

pub struct Desk {
    serial: u64,
    stream: Option<StreamId>,
    lost: bool,
    control: Arc<Control>,
    seat: Seat,
}

pub enum Seat {
    Inline(Box<Inline>),
    Worker(Box<Worker>),
}

/// The connection of which this thread serves a stream.
pub struct Worker {
    /// Checked out to this thread, or at hand.
    peer: Option<Held>,
    shared: Option<Shared>,
    blocks: Blocks,
}

/// The connection goes from hand to hand.
struct Shared {
    berth: Arc<Berth>,
    stream: StreamId,
    /// What was done with it is of the I/O thread's concern.
    visit_due: bool,
}

/// A desk at which somebody sits: a shared connection is at hand.
pub struct AtDesk<'a>(MutexGuard<'a, Desk>);

impl Deref for AtDesk<'_> {
    type Target = Desk;

    fn deref(&self) -> &Desk {
        &self.0
    }
}

impl DerefMut for AtDesk<'_> {
    fn deref_mut(&mut self) -> &mut Desk {
        &mut self.0
    }
}

impl Drop for AtDesk<'_> {
    fn drop(&mut self) {
        if let Seat::Worker(worker) = &mut self.0.seat {
            worker.put_back();
        }
    }
}

/// The engine, driven by the thread that also runs the application.
pub struct Inline {
    pub engine: Engine<ConnState>,
    current: Option<ConnId>,
    /// Connections that got something to read while an application call was waiting for its own.
    deferred: VecDeque<ConnId>,
    pub spare: OwnedHead,
    /// Requests of the current connection in this visit.
    requests: usize,
}

/// Pipelined requests of one connection before the others have their turn, if they take no longer than a visit
/// may; their answers leave together.
const REQUESTS_PER_VISIT: usize = 16;

impl Desk {
    pub fn inline(engine: Engine<ConnState>, control: Arc<Control>) -> Self {
        let inline = Inline {
            engine,
            current: None,
            deferred: VecDeque::new(),
            spare: OwnedHead::default(),
            requests: 0,
        };
        Self::with(Seat::Inline(Box::new(inline)), control)
    }

    pub fn worker(control: Arc<Control>) -> Self {
        let worker = Worker {
            peer: None,
            shared: None,
            blocks: Blocks::new(WINDOW_BYTES, 1),
        };
        Self::with(Seat::Worker(Box::new(worker)), control)
    }

    fn with(seat: Seat, control: Arc<Control>) -> Self {
        Self {
            serial: 0,
            stream: None,
            lost: false,
            control,
            seat,
        }
    }

    pub fn inline_seat(&mut self) -> Option<&mut Inline> {
        match &mut self.seat {
            Seat::Inline(inline) => Some(inline),
            Seat::Worker(_) => None,
        }
    }

    pub fn worker_seat(&mut self) -> Option<&mut Worker> {
        match &mut self.seat {
            Seat::Worker(worker) => Some(worker),
            Seat::Inline(_) => None,
        }
    }

    /// A new exchange sits down: from here on, older serial numbers are over.
    pub fn begin(&mut self, stream: StreamId) -> u64 {
        self.serial += 1;
        self.stream = Some(stream);
        self.lost = false;
        self.serial
    }

    pub fn end(&mut self, now: Instant) {
        self.serial += 1;
        if let (Some(stream), Some(peer)) = (self.stream.take(), self.peer()) {
            peer.let_go(stream);
        }
        if let Seat::Inline(inline) = &mut self.seat {
            // Nobody knows how long the application took.
            inline.engine.set_clock(now);
        }
    }

    pub fn peer(&mut self) -> Option<&mut Peer<ConnState>> {
        match &mut self.seat {
            Seat::Inline(inline) => inline.peer(),
            Seat::Worker(worker) => worker.peer.as_deref_mut(),
        }
    }

    pub fn conn(&mut self) -> Option<&mut Connection> {
        self.peer().map(|peer| &mut peer.conn)
    }

    /// The exchange with this number, while it is the present one and its client is there.
    pub fn current(&self, serial: u64) -> Option<StreamId> {
        self.stream.filter(|_| serial == self.serial && !self.lost)
    }

    pub fn stream(&mut self, serial: u64) -> Option<StreamMut<'_>> {
        let stream = self.current(serial)?;
        self.conn()?.stream(stream).ok()
    }

    pub fn is_lost(&self, serial: u64) -> bool {
        self.lost || serial != self.serial
    }

    /// Writes what can be written now; blocks never.
    pub fn flush(&mut self) {
        match &mut self.seat {
            Seat::Inline(inline) => {
                inline.settle_current();
            }
            Seat::Worker(worker) => worker.flush(),
        }
    }

    /// Sends what reading has made due: the credit of HTTP/2, which its peer waits for.
    pub fn send_credit(&mut self) {
        if self.conn().is_some_and(|conn| conn.pending_bytes() > 0) {
            self.flush();
        }
    }

    /// Whether all that was written is on its way. Of HTTP/2 the windows may hold some back; with threads
    /// somebody goes on sending it, so then only a full queue is waited for.
    fn is_written_out(&mut self, serial: u64) -> bool {
        let Some(peer) = self.peer() else {
            return false;
        };
        let all = peer.service().limits.send_window_bytes;
        let is_h2 = peer.conn.protocol() == Some(Protocol::Http2);
        if is_h2 && matches!(self.seat, Seat::Worker(_)) {
            return self.stream(serial).is_some_and(|stream| stream.room() > 0);
        }
        let sent = self.conn().is_some_and(|conn| conn.pending_bytes() == 0);
        sent && (!is_h2
            || self
                .stream(serial)
                .is_some_and(|stream| stream.room() >= all))
    }

    /// Waits until this connection may have got further. Other connections' I/O goes on meanwhile (inline
    /// mode), but no other application call begins: PEP 3333 applications keep state in their thread
    /// (database connections, locals), which a second call in the middle of the first would share.
    fn wait(&mut self) -> io::Result<()> {
        match &mut self.seat {
            Seat::Inline(inline) => inline.pump(&self.control)?,
            Seat::Worker(worker) => {
                if let Some(Shared { berth, stream, .. }) = &worker.shared {
                    berth.wait(*stream, LONGEST_WAIT);
                    self.lost |= berth.is_lost(*stream) || self.control.is_stopping();
                    return Ok(());
                }
                worker.wait()?;
            }
        }
        let stream = self.stream;
        let Some(peer) = self.peer() else {
            self.lost = true;
            return Ok(());
        };
        self.lost |= take_news(peer, stream) || self.control.is_stopping();
        Ok(())
    }
}

impl Inline {
    /// The next request of any connection; None when this turn has no more. Settles what it leaves.
    pub fn next_request(&mut self) -> Option<Request> {
        loop {
            if let Some(id) = self.current {
                let is_over = self.requests == REQUESTS_PER_VISIT
                    || (self.requests > 0 && self.engine.is_visit_over() && self.has_more(id));
                if is_over {
                    self.engine.revisit(id);
                } else if let Some(peer) = self.engine.peer(id)
                    && let Some(request) = next_request(peer, &mut self.spare)
                {
                    self.requests += 1;
                    return Some(request);
                }
                self.leave(id);
            }
            self.current = Some(self.next_ready()?);
        }
    }

    /// Whether a visit would find something without more input.
    fn has_more(&mut self, id: ConnId) -> bool {
        let peer = self.engine.peer(id);
        peer.is_some_and(|peer| peer.conn.has_events() || !peer.state.ready.is_empty())
    }

    fn settle_current(&mut self) {
        if let Some(id) = self.current {
            self.engine.refresh_clock();
            self.engine.settle(id);
        }
    }

    fn leave(&mut self, id: ConnId) {
        self.engine.settle(id);
        self.current = None;
        self.requests = 0;
    }

    pub fn peer(&mut self) -> Option<&mut Peer<ConnState>> {
        self.engine.peer(self.current?)
    }

    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn next_ready(&mut self) -> Option<ConnId> {
        while let Some(id) = self.deferred.pop_front() {
            if let Some(peer) = self.engine.peer(id) {
                peer.state.deferred = false;
                return Some(id);
            }
        }
        self.engine.next_ready()
    }

    /// One turn of the engine in the middle of an application call.
    fn pump(&mut self, control: &Control) -> io::Result<()> {
        self.settle_current();
        control.obey(&mut self.engine);
        self.engine.turn_start(Some(LONGEST_WAIT))?;
        while let Some(id) = self.engine.next_ready() {
            if self.current == Some(id) {
                continue;
            }
            if let Some(peer) = self.engine.peer(id)
                && !std::mem::replace(&mut peer.state.deferred, true)
            {
                self.deferred.push_back(id);
            }
            self.engine.settle(id);
        }
        self.engine.turn_end();
        Ok(())
    }
}

impl Worker {
    /// Of a connection that is this thread's own until `leave`.
    pub fn begin_alone(&mut self, peer: Held) {
        self.peer = Some(peer);
    }

    /// Of a connection that others use, too.
    pub fn begin_shared(&mut self, berth: Arc<Berth>, stream: StreamId) {
        self.shared = Some(Shared {
            berth,
            stream,
            visit_due: false,
        });
    }

    /// Takes a shared connection in hand, which may have to be waited for.
    fn take_in_hand(&mut self, py: Python<'_>) {
        if self.peer.is_some() {
            return;
        }
        let Some(Shared { berth, stream, .. }) = &self.shared else {
            return;
        };
        let stream = *stream;
        let peer = berth.try_take(stream);
        self.peer = peer.or_else(|| py.detach(|| berth.take(stream)));
    }

    fn put_back(&mut self) {
        if let Some(shared) = &mut self.shared
            && let Some(peer) = self.peer.take()
        {
            let visit = std::mem::take(&mut shared.visit_due);
            shared.berth.put(peer, visit);
        }
    }

    /// An error is also an event of the connection.
    fn flush(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        match &mut self.shared {
            Some(shared) => shared.visit_due |= peer.send_in_hand(Instant::now()),
            None => {
                let _ = peer.flush_blocking(Some(Instant::now()));
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let Some(peer) = &mut self.peer else {
            return Ok(());
        };
        let until = Some(Instant::now() + LONGEST_WAIT);
        if peer.conn.pending_bytes() > 0 {
            peer.flush_blocking(until)?;
        } else {
            peer.fill(&mut self.blocks, until)?;
        }
        Ok(())
    }

    /// The application has ended. A connection of our own leaves, its receive block stays.
    pub fn leave(&mut self) -> Option<Held> {
        if let Some(shared) = &self.shared {
            shared.berth.end(shared.stream);
            self.put_back();
            self.shared = None;
            return None;
        }
        let mut peer = self.peer.take()?;
        peer.conn.release(&mut self.blocks);
        Some(peer)
    }
}

/// Waits, GIL released, until `done` says so or the client is lost.
pub fn wait_until<T>(
    py: Python<'_>,
    desk: &Mutex<Desk>,
    serial: u64,
    mut done: impl FnMut(&mut Desk) -> Option<T>,
) -> PyResult<T> {
    loop {
        let mut guard = lock(py, desk);
        if let Some(value) = done(&mut guard) {
            return Ok(value);
        }
        if guard.is_lost(serial) {
            return Err(client_disconnected());
        }
        drop(guard);
        py.detach(|| desk.lock().unwrap_or_else(PoisonError::into_inner).wait())?;
        py.check_signals()?;
    }
}

/// Hands everything written so far to the kernel, as long as it takes (PEP 3333, "Buffering and
/// Streaming": a block is transmitted before the next one is asked for).
pub fn write_out(py: Python<'_>, desk: &Mutex<Desk>, serial: u64) -> PyResult<()> {
    wait_until(py, desk, serial, |desk| {
        if desk.is_lost(serial) {
            return None;
        }
        desk.flush();
        desk.is_written_out(serial).then_some(())
    })
}

pub fn lock<'a>(py: Python<'_>, desk: &'a Mutex<Desk>) -> AtDesk<'a> {
    let desk = desk.lock_py_attached(py);
    let mut desk = desk.unwrap_or_else(PoisonError::into_inner);
    if let Seat::Worker(worker) = &mut desk.seat {
        worker.take_in_hand(py);
    }
    AtDesk(desk)
}
