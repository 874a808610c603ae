//! `--threads N`: the I/O thread parses, N worker threads run the application.
//!
//! ```text
//! I/O thread (never takes the GIL)                        worker (a Python thread)
//!   request complete ── check_out ──► [ queue, bounded ] ──► application: reads, writes on this socket
//!   flushes the rest ◄── check_in ─── [ returned ]      ◄── response queued
//! ```
//!
//! A worker returns the connection as soon as the response is queued. Bytes that a slow client has not read
//! yet are sent by the I/O thread and occupy no worker. When the queue is full, further requests stay unparsed
//! in their connections. An HTTP/2 connection has several workers at once: it is a `SharedConn`.
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use towline_io::{ConnId, Engine, Notice};
use towline_proto::Protocol;

use super::app_runner::AppRunner;
use super::application::Application;
use super::builtin::BuiltinResponses;
use super::control::{MAX_WAIT, ServerControl};
use super::request::{ConnState, Request, RequestEvent, RequestReader};
use super::request_io::{RequestIo, SharedRequestIo};
use super::shared_conn::SharedConn;
use super::websocket_threads::Starter;
use super::work_queue::{QueuedConn, QueuedRequest, WorkQueue};
use super::worker::{serve_request, start_thread};

/// Queued requests per worker: enough to keep it busy, few enough to be fair.
const QUEUED_PER_THREAD: usize = 16;

/// Wait for the end of a thread when the server stops.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval of checking signals while there is no pause between requests: it needs the GIL.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

pub fn run(
    py: Python<'_>,
    application: &Arc<Application>,
    control: &Arc<ServerControl>,
    engine: Engine<ConnState>,
) -> PyResult<()> {
    let count = application.options.threads;
    let queue = Arc::new(WorkQueue::new(count * QUEUED_PER_THREAD, control.clone()));
    let workers = (0..count)
        .map(|number| start_worker(py, number, application.clone(), queue.clone()))
        .collect::<PyResult<Vec<_>>>()?;
    let mut io = IoThread {
        engine,
        queue: queue.clone(),
        deferred: VecDeque::new(),
        shared_conns: HashMap::new(),
        reader: RequestReader::new(
            application.options.wsgi_request_buffer,
            application.feature_config.clone(),
        ),
        limit_concurrency: application.options.limit_concurrency.unwrap_or(usize::MAX),
        builtin: BuiltinResponses::new(application),
        websockets: Starter::start(py, application, &queue)?,
        notice: None,
    };
    let outcome = loop {
        let ended = py.detach(|| io.run_turns());
        if let Some(notice) = io.notice.take() {
            application.log.warning(py, &notice.to_string());
        }
        application.log_refusals(py);
        match ended
            .map_err(PyErr::from)
            .and_then(|ended| py.check_signals().map(|()| ended))
        {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    queue.close();
    if let Some(websockets) = io.websockets.take() {
        websockets.shut_down(py, JOIN_TIMEOUT);
    }
    for worker in workers {
        // A worker that is stuck in the application is not waited for: its thread is a daemon.
        worker.call_method1("join", (JOIN_TIMEOUT.as_secs_f64(),))?;
    }
    outcome
}

fn start_worker(
    py: Python<'_>,
    number: usize,
    application: Arc<Application>,
    queue: Arc<WorkQueue>,
) -> PyResult<Bound<'_, PyAny>> {
    start_thread(py, &format!("towline-wsgi-{number}"), move |py| {
        run_worker(py, &application, &queue)
    })
}

fn run_worker(py: Python<'_>, application: &Arc<Application>, queue: &WorkQueue) -> PyResult<()> {
    let request_io: SharedRequestIo = Arc::new(Mutex::new(RequestIo::new_worker(
        queue.control.clone(),
        application,
    )));
    let mut runner = AppRunner::new(py, application.clone(), request_io.clone())?;
    while let Some(queued) = queue.take(py) {
        let (id, conn) = serve_request(py, application, &request_io, &mut runner, queued);
        queue.control.end_request();
        if let Some(conn) = conn {
            queue.return_conn(id, conn);
        }
    }
    Ok(())
}

struct IoThread {
    engine: Engine<ConnState>,
    queue: Arc<WorkQueue>,
    /// Connections with streams that workers serve.
    shared_conns: HashMap<ConnId, Arc<SharedConn>>,
    /// Connections with a complete request that waits for room in the queue.
    deferred: VecDeque<ConnId>,
    reader: RequestReader,
    limit_concurrency: usize,
    builtin: BuiltinResponses,
    websockets: Option<Starter>,
    /// Logged later, with the GIL.
    notice: Option<Notice>,
}

impl IoThread {
    /// Runs turns until there is nothing to do, something to log, or signals are due for a check; true at the end.
    fn run_turns(&mut self) -> io::Result<bool> {
        let since = Instant::now();
        loop {
            self.check_in_returned();
            if self.queue.control.clone().apply_commands(&mut self.engine) {
                return Ok(true);
            }
            let wait = if self.has_work() {
                Duration::ZERO
            } else {
                MAX_WAIT
            };
            self.engine.turn_start(Some(wait))?;
            let mut is_idle = true;
            while let Some(id) = self.next_ready() {
                is_idle = false;
                if self.shared_conns.contains_key(&id) {
                    self.service(id);
                } else if self.has_streams(id) {
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
            if is_idle && !self.queue.has_returned() || since.elapsed() >= SIGNAL_INTERVAL {
                return Ok(false);
            }
        }
    }

    fn has_work(&self) -> bool {
        self.queue.has_returned() || (!self.deferred.is_empty() && self.queue.has_room())
    }

    fn check_in_returned(&mut self) {
        for (id, conn) in self.queue.take_returned() {
            self.engine.check_in(id, conn);
            // The next pipelined request may be in its buffer already, which epoll does not report.
            self.defer(id);
        }
        for id in self.queue.service_queue.take() {
            self.service(id);
        }
    }

    /// Whether a connection carries several requests at once: HTTP/2 and HTTP/3.
    fn has_streams(&mut self, id: ConnId) -> bool {
        let protocol = self.engine.conn(id).and_then(|conn| conn.proto.protocol());
        matches!(protocol, Some(Protocol::Http2 | Protocol::Http3))
    }

    fn defer(&mut self, id: ConnId) {
        if let Some(conn) = self.engine.conn(id)
            && !std::mem::replace(&mut conn.state.deferred, true)
        {
            self.deferred.push_back(id);
        }
    }

    fn next_ready(&mut self) -> Option<ConnId> {
        if self.queue.has_room() {
            while let Some(id) = self.deferred.pop_front() {
                if let Some(conn) = self.engine.conn(id) {
                    conn.state.deferred = false;
                    return Some(id);
                }
                if self.shared_conns.contains_key(&id) {
                    return Some(id);
                }
            }
        }
        self.engine.next_ready()
    }

    /// Queues the next request of an HTTP/1 connection. Requests are received even if the queue is full, so that
    /// no timeout counts while they wait for us.
    fn dispatch(&mut self, id: ConnId) {
        if self.is_waiting(id) {
            self.engine.flush_and_rearm(id);
            return;
        }
        while let Some(mut request) = self.next_request(id) {
            if let Some(conn) = self.engine.conn(id)
                && self.builtin.respond(conn, &mut request)
            {
                continue;
            }
            if self.is_websocket(id, &request) {
                if self.dispatch_websocket(id, request) {
                    return;
                }
                continue;
            }
            if self.has_capacity() {
                if !self.queue.has_room() {
                    self.put_back(id, request);
                    break;
                }
                self.queue.control.begin_request();
                if let Some(conn) = self.engine.check_out(id) {
                    self.queue.put(QueuedRequest {
                        id,
                        conn: QueuedConn::Exclusive(conn),
                        request,
                        queued: Instant::now(),
                    });
                }
                return;
            }
            if let Some(conn) = self.engine.conn(id) {
                self.builtin.refuse(conn, &request);
            }
        }
        self.engine.flush_and_rearm(id);
    }

    /// Whether a request asks for a WebSocket and the application can be given its socket.
    fn is_websocket(&mut self, id: ConnId, request: &Request) -> bool {
        self.websockets.is_some()
            && self
                .engine
                .conn(id)
                .is_some_and(|conn| Starter::accepts(conn, request))
    }

    /// Passes a request for a WebSocket to a thread of its own. Over the bound it gets 503, and this returns false.
    fn dispatch_websocket(&mut self, id: ConnId, request: Request) -> bool {
        let Some(websockets) = &self.websockets else {
            return false;
        };
        let Some(permit) = websockets.reserve() else {
            if let Some(conn) = self.engine.conn(id) {
                self.builtin.refuse(conn, &request);
            }
            return false;
        };
        if let Some(conn) = self.engine.check_out_unwatched(id) {
            let queued = QueuedRequest {
                id,
                conn: QueuedConn::Exclusive(conn),
                request,
                queued: Instant::now(),
            };
            websockets.put(queued, permit);
        }
        true
    }

    /// Handles the events of a connection whose request waits for room in the queue; true if it still waits.
    fn is_waiting(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.engine.conn(id) else {
            return false;
        };
        if !conn.state.deferred || conn.state.ready.is_empty() {
            return false;
        }
        self.reader.process_events(conn, None);
        true
    }

    fn put_back(&mut self, id: ConnId, request: Request) {
        if let Some(conn) = self.engine.conn(id) {
            conn.state.ready.push_front(request);
        }
        self.defer(id);
    }

    /// Whether a request may begin or wait, according to `--limit-concurrency`.
    fn has_capacity(&self) -> bool {
        self.queue.control.in_flight() + self.deferred.len() < self.limit_concurrency
    }

    fn next_request(&mut self, id: ConnId) -> Option<Request> {
        self.reader.next_request(self.engine.conn(id)?)
    }

    /// Services a shared connection that is ready or that a worker has queued for service.
    fn service(&mut self, id: ConnId) {
        let Some(shared_conn) = self.shared_conns.get(&id).cloned() else {
            return;
        };
        let Some(conn) = shared_conn.take_for_service() else {
            return;
        };
        if self.engine.service(id, conn) {
            self.serve_streams(id, Some(shared_conn));
        } else {
            self.shared_conns.remove(&id);
            shared_conn.put_after_service(None);
        }
    }

    /// Handles the events of an HTTP/2 connection and queues its requests, as far as there is room. The
    /// connection is shared from then on, while workers serve it.
    fn serve_streams(&mut self, id: ConnId, shared_conn: Option<Arc<SharedConn>>) {
        self.handle_events(id, shared_conn.as_deref());
        let requests = self.take_requests(id);
        self.engine.flush_and_rearm(id);
        let shared_conn = match shared_conn {
            Some(shared_conn) if !shared_conn.has_no_streams() || !requests.is_empty() => {
                shared_conn
            }
            None if !requests.is_empty() => SharedConn::new(id, self.queue.service_queue.clone()),
            _ => {
                self.shared_conns.remove(&id);
                return;
            }
        };
        for request in &requests {
            shared_conn.add_stream(request.stream);
        }
        let conn = self.engine.check_out_shared(id);
        if conn.is_some() {
            self.shared_conns.insert(id, shared_conn.clone());
        } else {
            self.shared_conns.remove(&id);
        }
        shared_conn.put_after_service(conn);
        let queued = Instant::now();
        for request in requests {
            self.queue.put(QueuedRequest {
                id,
                conn: QueuedConn::Shared(shared_conn.clone()),
                request,
                queued,
            });
        }
    }

    /// Handles all events, even if the queue is full: running application calls wait for some of them.
    fn handle_events(&mut self, id: ConnId, shared_conn: Option<&SharedConn>) {
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        conn.state.deferred = false;
        while let Some(event) = self.reader.next_event(conn) {
            let (stream, is_failed) = match event {
                RequestEvent::Request(request) => {
                    conn.state.ready.push_back(request);
                    continue;
                }
                RequestEvent::Progress(stream) => (Some(stream), false),
                RequestEvent::Failed(stream) => (Some(stream), true),
                RequestEvent::Closed => (None, true),
            };
            match (shared_conn, stream) {
                (Some(shared_conn), stream) => shared_conn.notify(stream, is_failed),
                // No application call: at most a built-in response.
                (None, Some(stream)) if is_failed => conn.release_stream(stream),
                (None, _) => {}
            }
        }
    }

    /// The requests to queue for workers, as far as there is room.
    fn take_requests(&mut self, id: ConnId) -> Vec<Request> {
        let mut requests = Vec::new();
        let room = self.queue.room();
        while let Some(conn) = self.engine.conn(id) {
            if requests.len() >= room {
                if !conn.state.ready.is_empty() {
                    self.defer(id);
                }
                break;
            }
            let Some(mut request) = conn.state.ready.pop_front() else {
                break;
            };
            if self.builtin.respond(conn, &mut request) {
                continue;
            }
            if self.queue.control.in_flight() < self.limit_concurrency {
                self.queue.control.begin_request();
                requests.push(request);
            } else {
                self.builtin.refuse(conn, &request);
            }
        }
        requests
    }
}
