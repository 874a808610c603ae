//! Requests for `WebSockets`, with a thread each and apart from the pool of `--threads`, because the thread is occupied
//! for as long as the client is connected.
//!
//! ```text
//! I/O thread ── under the bound ──► starter ──► thread of the request: the application, environ["werkzeug.socket"]
//!      ▲                                              │ ordinary response         │ the socket was used
//!      └───────────────── check_in ───────────────────┴───────────────────────────┘ its application has closed it
//! ```
//!
//! The I/O thread never takes the GIL, so a Python thread, the starter, starts the others.
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use towline_io::Conn;

use super::app_runner::AppRunner;
use super::application::Application;
use super::builtin::BuiltinResponses;
use super::control::ServerControl;
use super::request::{ConnState, Request};
use super::request_io::{RequestIo, SharedRequestIo};
use super::websockets::{Permit, is_request};
use super::work_queue::{QueuedConn, QueuedRequest, WorkQueue};
use super::worker::{serve_request, start_thread};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the permit up when it is dropped.
pub struct PermitGuard {
    permit: Arc<Permit>,
    control: Arc<ServerControl>,
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        self.control.websockets.end(&self.permit);
        self.control.count_request();
    }
}

struct WebSocketRequest {
    queued: QueuedRequest,
    permit: PermitGuard,
}

/// The I/O thread's end of the starter. The starter ends when this is dropped.
pub struct Starter {
    requests: SyncSender<WebSocketRequest>,
    control: Arc<ServerControl>,
}

impl Starter {
    /// `None` if `WebSockets` are not offered.
    pub fn start(
        py: Python<'_>,
        application: &Arc<Application>,
        queue: &Arc<WorkQueue>,
    ) -> PyResult<Option<Self>> {
        let control = queue.control.clone();
        let limit = control.websockets.limit;
        if limit == 0 {
            return Ok(None);
        }
        let (requests, receiver) = sync_channel(limit);
        let (application, queue) = (application.clone(), queue.clone());
        let receiver = Mutex::new(receiver);
        start_thread(py, "towline-websockets", move |py| {
            run_starter(py, &receiver, &application, &queue);
            Ok(())
        })?;
        Ok(Some(Self { requests, control }))
    }

    /// Whether a request asks for a WebSocket and the application can be given the socket.
    pub fn accepts(conn: &Conn<ConnState>, request: &Request) -> bool {
        conn.proto.offers_upgrade() && is_request(&request.head) && conn.can_take_over()
    }

    /// A permit for a request, which `put` uses. `None` over the bound.
    pub fn reserve(&self) -> Option<PermitGuard> {
        let control = self.control.clone();
        let permit = control.websockets.begin()?;
        Some(PermitGuard { permit, control })
    }

    /// Passes a request on.
    pub fn put(&self, queued: QueuedRequest, permit: PermitGuard) {
        // The channel holds as many requests as there are permits.
        let _ = self.requests.try_send(WebSocketRequest { queued, permit });
    }

    /// Ends all connections and waits for their threads for at most `timeout`.
    pub fn shut_down(self, py: Python<'_>, timeout: Duration) {
        let Self { requests, control } = self;
        drop(requests);
        py.detach(|| control.websockets.shut_down(timeout));
    }
}

fn run_starter(
    py: Python<'_>,
    requests: &Mutex<Receiver<WebSocketRequest>>,
    application: &Arc<Application>,
    queue: &Arc<WorkQueue>,
) {
    let mut number = 0_u64;
    while let Ok(request) = py.detach(|| lock(requests).recv()) {
        let name = format!("towline-websocket-{number}");
        number += 1;
        let request = Arc::new(Mutex::new(Some(request)));
        let (shared_application, shared_queue, shared_request) =
            (application.clone(), queue.clone(), request.clone());
        let started = start_thread(py, &name, move |py| {
            run(py, &shared_application, &shared_queue, &shared_request)
        });
        if let Err(error) = started {
            let text = "no thread for a WebSocket";
            application.log.error(py, text, Some(&error));
            if let Some(request) = lock(&request).take() {
                refuse(application, queue, request);
            }
        }
    }
}

/// Responds with 503: there is no thread.
fn refuse(application: &Application, queue: &WorkQueue, request: WebSocketRequest) {
    let QueuedRequest {
        id, conn, request, ..
    } = request.queued;
    if let QueuedConn::Exclusive(mut conn) = conn {
        BuiltinResponses::new(application).refuse(&mut conn, &request);
        queue.return_conn(id, conn);
    }
}

/// Serves one request on its thread.
fn run(
    py: Python<'_>,
    application: &Arc<Application>,
    queue: &WorkQueue,
    request: &Mutex<Option<WebSocketRequest>>,
) -> PyResult<()> {
    let request_io: SharedRequestIo = Arc::new(Mutex::new(RequestIo::new_worker(
        queue.control.clone(),
        application,
    )));
    let runner = AppRunner::new(py, application.clone(), request_io.clone());
    let Some(request) = lock(request).take() else {
        return Ok(());
    };
    let mut runner = match runner {
        Ok(runner) => runner,
        Err(error) => {
            refuse(application, queue, request);
            return Err(error);
        }
    };
    let WebSocketRequest { queued, permit } = request;
    runner.offer_socket(permit.permit.clone(), queue.control.websockets.slot.clone());
    let (id, conn) = serve_request(py, application, &request_io, &mut runner, queued);
    let Some(mut conn) = conn else { return Ok(()) };
    if permit.permit.is_taken() {
        py.detach(|| permit.permit.wait_closed());
        conn.end_takeover(Instant::now());
    }
    drop(permit);
    queue.return_conn(id, conn);
    Ok(())
}
