//! One request on a thread that serves it alone, and the start of such threads.
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use towline_io::ConnId;

use super::app_runner::AppRunner;
use super::application::{Application, RequestTimes};
use super::client_info::ClientInfo;
use super::request_io::{SharedRequestIo, WorkerIo, lock};
use super::shared_conn::BoxedConn;
use super::work_queue::{QueuedConn, QueuedRequest};

/// Wait of a request in the queue after which its client is checked: it may have left.
const LATE: Duration = Duration::from_millis(10);

/// Starts a `threading.Thread`, so that `threading` knows it and thread-locals persist between requests.
pub fn start_thread<'py>(
    py: Python<'py>,
    name: &str,
    run: impl Fn(Python<'_>) -> PyResult<()> + Send + Sync + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let target = PyCFunction::new_closure(py, None, None, move |arguments, _| run(arguments.py()))?;
    let options = PyDict::new(py);
    options.set_item("target", target)?;
    options.set_item("name", name)?;
    options.set_item("daemon", true)?;
    let thread = py
        .import("threading")?
        .getattr("Thread")?
        .call((), Some(&options))?;
    thread.call_method0("start")?;
    Ok(thread)
}

/// Serves a request on this thread. Returns its connection if it was checked out to this thread alone.
pub fn serve_request(
    py: Python<'_>,
    application: &Application,
    request_io: &SharedRequestIo,
    runner: &mut AppRunner,
    queued: QueuedRequest,
) -> (ConnId, Option<BoxedConn>) {
    let QueuedRequest {
        id,
        conn,
        mut request,
        queued,
    } = queued;
    if let Some(worker) = lock(py, request_io).as_worker() {
        match conn {
            QueuedConn::Exclusive(conn) => worker.begin_exclusive(conn),
            QueuedConn::Shared(shared_conn) => worker.begin_shared(shared_conn, request.stream),
        }
    }
    let may_have_left = queued.elapsed() >= LATE;
    let client_info = lock(py, request_io)
        .waiting_peer(may_have_left)
        .map(|conn| ClientInfo::of(conn, &request.head));
    let times = RequestTimes {
        received: queued,
        called: Instant::now(),
    };
    let outcome = match &client_info {
        Some(client_info) => runner.serve(py, &mut request, client_info, times),
        // The client left while the request waited.
        None => Ok(()),
    };
    let conn = {
        let mut request_io = lock(py, request_io);
        request_io.flush();
        request_io.as_worker().and_then(WorkerIo::detach)
    };
    if let Err(error) = outcome {
        // SystemExit in a worker thread ends only its request, as in any Python thread.
        application
            .log
            .error(py, "exception in a WSGI worker thread", Some(&error));
    }
    (id, conn)
}
