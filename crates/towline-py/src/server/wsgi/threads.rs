//! `--threads N`: the I/O thread parses, N threads run the application.
//!
//! ```text
//! I/O thread (never has the GIL)                        worker (a Python thread)
//!   request complete ── check_out ──► [ jobs, bounded ] ──► application: reads, writes on this socket
//!   flushes the rest ◄── check_in ─── [ returned ]      ◄── response queued
//! ```
//!
//! A worker gives the connection back as soon as the response is queued. What a slow reader has not taken yet
//! is the I/O thread's business: it pins no worker. When the queue is full, further requests stay unparsed
//! in their connections. A connection of HTTP/2 has several workers at once: it lies in its `Berth`.
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use towline_io::{ConnId, Engine, Notice};
use towline_proto::Protocol;

use super::app_runner::{Application, Caller, Times};
use super::builtin::Own;
use super::client_info::Origin;
use super::request::{ConnState, OwnedHead, Request, Step, next_request, next_step};
use super::request_io::{Desk, LONGEST_WAIT, SharedDesk, lock};
use super::server::Control;
use super::shared_conn::{Berth, Held, Visits};

/// Requests that wait for a worker, for each worker: enough to keep it busy, few enough to be fair.
const QUEUED_PER_THREAD: usize = 16;

/// Signals are looked at this often while there is no rest between requests: it needs the GIL.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

struct Job {
    id: ConnId,
    on: On,
    request: Request,
    queued: Instant,
}

/// The connection of a job.
enum On {
    /// Checked out to its worker.
    Own(Held),
    Shared(Arc<Berth>),
}

/// What the I/O thread and the workers share.
struct Exchange {
    capacity: usize,
    queue: Mutex<Queue>,
    available: Condvar,
    returned: Mutex<Vec<(ConnId, Held)>>,
    visits: Arc<Visits>,
    control: Arc<Control>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange {
    fn has_room(&self) -> bool {
        self.room() > 0
    }

    fn room(&self) -> usize {
        self.capacity.saturating_sub(open(&self.queue).jobs.len())
    }

    fn put(&self, job: Job) {
        open(&self.queue).jobs.push_back(job);
        self.available.notify_one();
    }

    fn close(&self) {
        open(&self.queue).closed = true;
        self.available.notify_all();
    }

    /// The next job; the GIL is released only when there is none yet.
    fn take(&self, py: Python<'_>) -> Option<Job> {
        {
            let mut queue = open(&self.queue);
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
        }
        py.detach(|| {
            let mut queue = open(&self.queue);
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    return Some(job);
                }
                if queue.closed {
                    return None;
                }
                queue = self
                    .available
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        })
    }

    fn give_back(&self, id: ConnId, peer: Held) {
        let was_empty = {
            let mut returned = open(&self.returned);
            returned.push((id, peer));
            returned.len() == 1
        };
        if was_empty {
            self.control.wake();
        }
    }
}

pub fn run(
    py: Python<'_>,
    application: &Arc<Application>,
    control: &Arc<Control>,
    engine: Engine<ConnState>,
) -> PyResult<()> {
    let count = application.options.threads;
    let exchange = Arc::new(Exchange {
        capacity: count * QUEUED_PER_THREAD,
        queue: Mutex::default(),
        available: Condvar::new(),
        returned: Mutex::default(),
        visits: Arc::new(Visits::new(control.clone())),
        control: control.clone(),
    });
    let workers = (0..count)
        .map(|number| start_worker(py, number, application.clone(), exchange.clone()))
        .collect::<PyResult<Vec<_>>>()?;
    let mut io = IoThread {
        engine,
        exchange: exchange.clone(),
        deferred: VecDeque::new(),
        berths: HashMap::new(),
        spare: OwnedHead::default(),
        limit_concurrency: application.options.limit_concurrency.unwrap_or(usize::MAX),
        own: Own::new(application),
        notice: None,
    };
    let outcome = loop {
        let over = py.detach(|| io.turns());
        if let Some(notice) = io.notice.take() {
            application.log.warning(py, &notice.to_string());
        }
        match over
            .map_err(PyErr::from)
            .and_then(|over| py.check_signals().map(|()| over))
        {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    exchange.close();
    for worker in workers {
        // A worker that is stuck in the application is left behind: its thread is a daemon.
        worker.call_method1("join", (0.5,))?;
    }
    outcome
}

/// A thread of Python's own, so that `threading` knows it, with a name, and thread-locals last.
fn start_worker(
    py: Python<'_>,
    number: usize,
    application: Arc<Application>,
    exchange: Arc<Exchange>,
) -> PyResult<Bound<'_, PyAny>> {
    let body = PyCFunction::new_closure(py, None, None, move |arguments, _| {
        work(arguments.py(), &application, &exchange)
    })?;
    let options = PyDict::new(py);
    options.set_item("target", body)?;
    options.set_item("name", format!("towline-wsgi-{number}"))?;
    options.set_item("daemon", true)?;
    let thread = py
        .import("threading")?
        .getattr("Thread")?
        .call((), Some(&options))?;
    thread.call_method0("start")?;
    Ok(thread)
}

fn work(py: Python<'_>, application: &Arc<Application>, exchange: &Exchange) -> PyResult<()> {
    let desk: SharedDesk = Arc::new(Mutex::new(Desk::worker(exchange.control.clone())));
    let mut caller = Caller::new(py, application.clone(), desk.clone())?;
    while let Some(Job {
        id,
        on,
        mut request,
        queued,
    }) = exchange.take(py)
    {
        if let Some(worker) = lock(py, &desk).worker_seat() {
            match on {
                On::Own(peer) => worker.begin_alone(peer),
                On::Shared(berth) => worker.begin_shared(berth, request.stream),
            }
        }
        let trusted = application.rules.trusted.as_ref();
        let origin = lock(py, &desk)
            .peer()
            .map(|peer| Origin::of(peer, &request.head, trusted));
        let times = Times {
            came: queued,
            called: Instant::now(),
        };
        let outcome = match &origin {
            Some(origin) => caller.serve(py, &mut request, origin, times),
            // The connection ended while the request waited.
            None => Ok(()),
        };
        let peer = {
            let mut desk = lock(py, &desk);
            desk.flush();
            desk.worker_seat()
                .and_then(super::request_io::Worker::leave)
        };
        exchange.control.end();
        if let Some(peer) = peer {
            exchange.give_back(id, peer);
        }
        if let Err(error) = outcome {
            // SystemExit in a worker thread ends nothing but its request, as in any thread.
            application
                .log
                .error(py, "exception in a WSGI worker thread", Some(&error));
        }
    }
    Ok(())
}

struct IoThread {
    engine: Engine<ConnState>,
    exchange: Arc<Exchange>,
    /// Connections of which workers serve streams.
    berths: HashMap<ConnId, Arc<Berth>>,
    /// Connections that may hold a request, while the queue is full.
    deferred: VecDeque<ConnId>,
    spare: OwnedHead,
    limit_concurrency: usize,
    own: Own,
    /// To be logged by whoever has the GIL.
    notice: Option<Notice>,
}

impl IoThread {
    /// Turns until there is a rest, something to log, or signals should be looked at; true at the end.
    fn turns(&mut self) -> io::Result<bool> {
        let since = Instant::now();
        loop {
            self.take_back();
            if self.exchange.control.clone().obey(&mut self.engine) {
                return Ok(true);
            }
            let wait = if self.can_go_on() {
                Duration::ZERO
            } else {
                LONGEST_WAIT
            };
            self.engine.turn_start(Some(wait))?;
            let mut rested = true;
            while let Some(id) = self.next_ready() {
                rested = false;
                if self.berths.contains_key(&id) {
                    self.visit(id);
                } else if self.is_http2(id) {
                    self.serve_streams(id, None);
                } else {
                    self.dispatch(id);
                }
            }
            self.engine.turn_end();
            self.notice = self.engine.take_notice();
            if self.notice.is_some() {
                return Ok(false);
            }
            if rested && !self.has_returns() || since.elapsed() >= SIGNAL_INTERVAL {
                return Ok(false);
            }
        }
    }

    fn can_go_on(&self) -> bool {
        self.has_returns() || (!self.deferred.is_empty() && self.exchange.has_room())
    }

    fn has_returns(&self) -> bool {
        !open(&self.exchange.returned).is_empty() || !self.exchange.visits.is_empty()
    }

    fn take_back(&mut self) {
        let returned = std::mem::take(&mut *open(&self.exchange.returned));
        for (id, peer) in returned {
            self.engine.check_in(id, peer);
            // The next pipelined request may be in its buffer, which no socket announces.
            self.defer(id);
        }
        for id in self.exchange.visits.take() {
            self.visit(id);
        }
    }

    fn is_http2(&mut self, id: ConnId) -> bool {
        let peer = self.engine.peer(id);
        peer.is_some_and(|peer| peer.conn.protocol() == Some(Protocol::Http2))
    }

    fn defer(&mut self, id: ConnId) {
        if let Some(peer) = self.engine.peer(id)
            && !std::mem::replace(&mut peer.state.deferred, true)
        {
            self.deferred.push_back(id);
        }
    }

    fn next_ready(&mut self) -> Option<ConnId> {
        if self.exchange.has_room() {
            while let Some(id) = self.deferred.pop_front() {
                if let Some(peer) = self.engine.peer(id) {
                    peer.state.deferred = false;
                    return Some(id);
                }
                if self.berths.contains_key(&id) {
                    return Some(id);
                }
            }
        }
        self.engine.next_ready()
    }

    fn dispatch(&mut self, id: ConnId) {
        if !self.exchange.has_room() {
            self.defer(id);
            return;
        }
        while let Some(request) = self.next_request(id) {
            if let Some(peer) = self.engine.peer(id)
                && self.own.answer(peer, &request)
            {
                continue;
            }
            let control = &self.exchange.control;
            if control.in_flight() < self.limit_concurrency {
                control.begin();
                if let Some(peer) = self.engine.check_out(id) {
                    self.exchange.put(Job {
                        id,
                        on: On::Own(peer),
                        request,
                        queued: Instant::now(),
                    });
                }
                return;
            }
            if let Some(peer) = self.engine.peer(id) {
                self.own.refuse(peer, &request);
            }
        }
        self.engine.settle(id);
    }

    fn next_request(&mut self, id: ConnId) -> Option<Request> {
        next_request(self.engine.peer(id)?, &mut self.spare)
    }

    /// There is news of a shared connection, or a worker has left some.
    fn visit(&mut self, id: ConnId) {
        let Some(berth) = self.berths.get(&id).cloned() else {
            return;
        };
        let Some(peer) = berth.take_for_visit() else {
            return;
        };
        if self.engine.visit(id, peer) {
            self.serve_streams(id, Some(berth));
        } else {
            self.berths.remove(&id);
            berth.put_after_visit(None);
        }
    }

    /// The events of a connection with many streams, and its requests as far as the queue has room. It is
    /// shared from then on, for as long as workers serve it.
    fn serve_streams(&mut self, id: ConnId, berth: Option<Arc<Berth>>) {
        self.take_steps(id, berth.as_deref());
        let requests = self.take_requests(id);
        self.engine.settle(id);
        let berth = match berth {
            Some(berth) if !berth.is_unused() || !requests.is_empty() => berth,
            None if !requests.is_empty() => Berth::new(id, self.exchange.visits.clone()),
            _ => {
                self.berths.remove(&id);
                return;
            }
        };
        for request in &requests {
            berth.begin(request.stream);
        }
        let peer = self.engine.share(id);
        if peer.is_some() {
            self.berths.insert(id, berth.clone());
        } else {
            self.berths.remove(&id);
        }
        berth.put_after_visit(peer);
        let queued = Instant::now();
        for request in requests {
            self.exchange.put(Job {
                id,
                on: On::Shared(berth.clone()),
                request,
                queued,
            });
        }
    }

    /// All events, also when the queue is full: calls that run wait for some of them.
    fn take_steps(&mut self, id: ConnId, berth: Option<&Berth>) {
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        peer.state.deferred = false;
        while let Some(step) = next_step(peer, &mut self.spare) {
            let (stream, is_lost) = match step {
                Step::Request(request) => {
                    peer.state.ready.push_back(request);
                    continue;
                }
                Step::Moved(stream) => (Some(stream), false),
                Step::Lost(stream) => (Some(stream), true),
                Step::Closed => (None, true),
            };
            match (berth, stream) {
                (Some(berth), stream) => berth.tell(stream, is_lost),
                // No call: an answer of the server's own, at most.
                (None, Some(stream)) if is_lost => peer.let_go(stream),
                (None, _) => {}
            }
        }
    }

    /// The requests that workers are to serve, as far as they have room.
    fn take_requests(&mut self, id: ConnId) -> Vec<Request> {
        let mut requests = Vec::new();
        let room = self.exchange.room();
        while let Some(peer) = self.engine.peer(id) {
            if requests.len() >= room {
                if !peer.state.ready.is_empty() {
                    self.defer(id);
                }
                break;
            }
            let Some(request) = peer.state.ready.pop_front() else {
                break;
            };
            if self.own.answer(peer, &request) {
                continue;
            }
            if self.exchange.control.in_flight() < self.limit_concurrency {
                self.exchange.control.begin();
                requests.push(request);
            } else {
                self.own.refuse(peer, &request);
            }
        }
        requests
    }
}
