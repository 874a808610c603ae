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
//! in their connections.
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use towline_io::{ConnId, Engine, Notice, Peer};

use super::desk::{Desk, LONGEST_WAIT, SharedDesk, lock};
use super::exchange::{Application, Caller, Times};
use super::origin::Origin;
use super::own::Own;
use super::request::{ConnState, OwnedHead, Request, next_request};
use super::server::Control;

/// Requests that wait for a worker, for each worker: enough to keep it busy, few enough to be fair.
const QUEUED_PER_THREAD: usize = 16;

/// Signals are looked at this often while there is no rest between requests: it needs the GIL.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

struct Job {
    id: ConnId,
    peer: Box<Peer<ConnState>>,
    request: Request,
    queued: Instant,
}

/// What the I/O thread and the workers share.
struct Exchange {
    capacity: usize,
    queue: Mutex<Queue>,
    available: Condvar,
    returned: Mutex<Vec<(ConnId, Box<Peer<ConnState>>)>>,
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
        open(&self.queue).jobs.len() < self.capacity
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

    fn give_back(&self, id: ConnId, peer: Box<Peer<ConnState>>) {
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
        control: control.clone(),
    });
    let workers = (0..count)
        .map(|number| start_worker(py, number, application.clone(), exchange.clone()))
        .collect::<PyResult<Vec<_>>>()?;
    let mut io = IoThread {
        engine,
        exchange: exchange.clone(),
        deferred: VecDeque::new(),
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
        peer,
        mut request,
        queued,
    }) = exchange.take(py)
    {
        let origin = Origin::of(&peer, &request.head, application.rules.trusted.as_ref());
        if let Some(worker) = lock(py, &desk).worker_seat() {
            worker.peer = Some(peer);
        }
        let times = Times {
            came: queued,
            called: Instant::now(),
        };
        let outcome = caller.serve(py, &mut request, &origin, times);
        let peer = {
            let mut desk = lock(py, &desk);
            desk.flush();
            desk.worker_seat().and_then(super::desk::Worker::leave)
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
                self.dispatch(id);
            }
            self.engine.turn_end();
            self.notice = self.engine.take_notice();
            if self.notice.is_some() {
                return Ok(false);
            }
            if rested && open(&self.exchange.returned).is_empty()
                || since.elapsed() >= SIGNAL_INTERVAL
            {
                return Ok(false);
            }
        }
    }

    fn can_go_on(&self) -> bool {
        !open(&self.exchange.returned).is_empty()
            || (!self.deferred.is_empty() && self.exchange.has_room())
    }

    fn take_back(&mut self) {
        let returned = std::mem::take(&mut *open(&self.exchange.returned));
        for (id, peer) in returned {
            self.engine.check_in(id, peer);
            // The next pipelined request may be in its buffer, which no socket announces.
            self.defer(id);
        }
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
                        peer,
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
}
