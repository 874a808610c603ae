//! Running one request: the first step in the turn, the rest in a task.
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::ConnId;
use towline_proto::StreamId;

use super::cfunctions;
use super::exchange::wake;
use super::exchange_state::{ClientState, ResponsePhase};
use super::state::{
    AsgiServer, CurrentTask, Exchange, ExchangeHandle, IdleTask, Request, SuspendedRequest,
    TaskCoroutine,
};
use super::task::step::{self, Step, copy_context, in_context};
use crate::log_level::ERROR;

/// The result of the first step of an application.
pub enum StepOutcome {
    Ended,
    /// A task continues the application after the turn.
    Suspended,
}

/// Holds back a request whose body comes in frames behind those of others, until the buffered frames are parsed: its
/// application then has the body without a wait. Otherwise returns it.
pub fn hold(server: &Bound<'_, AsgiServer>, mut request: Request) -> PyResult<Option<Request>> {
    let py = server.py();
    let this = server.get();
    let is_behind = !request.end && request.handle.is_none() && {
        let mut engine = this.engine(py)?;
        engine.conn(request.id).is_some_and(|conn| {
            let stream = conn.proto.stream(request.stream);
            stream.is_ok_and(|mut stream| stream.available() == 0) && conn.proto.has_events()
        })
    };
    if !is_behind {
        return Ok(Some(request));
    }
    let handle = begin(server, &mut request)?;
    let exchange = handle.exchange.clone_ref(py);
    request.handle = Some(handle);
    let mut engine = this.engine(py)?;
    let Some(conn) = engine.conn(request.id) else {
        return Ok(Some(request));
    };
    conn.state.exchanges.insert(request.stream, exchange);
    let held = conn.state.held.get_or_insert_default();
    held.push_back(request);
    Ok(None)
}

/// Begins the exchange of a request.
fn begin(server: &Bound<'_, AsgiServer>, request: &mut Request) -> PyResult<ExchangeHandle> {
    let py = server.py();
    let handle = exchange_handle(server, request.id, request.stream)?;
    handle.begin(py, request.id, request.stream);
    let mut state = handle.exchange.get().state.open(py);
    state.head_only = request.head_only;
    state.websocket = request.websocket.take();
    if state.websocket.is_some() {
        state.response = ResponsePhase::Switched;
    }
    let record = &mut server.get().state.open(py).record;
    std::mem::swap(&mut state.record, record);
    drop(state);
    Ok(handle)
}

/// Starts the application on a request. An error is one that must end the loop.
pub fn serve(server: &Bound<'_, AsgiServer>, mut request: Request) -> PyResult<StepOutcome> {
    let py = server.py();
    let this = server.get();
    let handle = match request.handle.take() {
        None => begin(server, &mut request)?,
        Some(handle) => {
            let client = handle.exchange.get().state.open(py).client;
            if client == ClientState::Disconnected {
                let scope = Some(request.scope.into_bound(py));
                let finished = this.finish(py, handle, Ok(()), scope);
                return finished.map(|()| StepOutcome::Ended);
            }
            handle
        }
    };
    if let Some(slot) = &this.wait_slot {
        let since = this.state.open(py).ready_since.poll;
        slot.request_waited(since.map_or(Duration::ZERO, |since| since.elapsed()));
    }
    let context = copy_context(py, &this.base_context)?;
    if this.runs_in_tasks.load(Relaxed) {
        return run_in_new_task(server, &request, handle, context).map(|()| StepOutcome::Suspended);
    }
    let scope = request.scope.into_bound(py);
    let (idle_task, current_task) = acquire_idle_task(this, py)?;
    let outer = this.enter_exchange(py, &handle);
    let mut coroutine = None;
    let step = in_context(py, &context, || {
        first_step(this, &idle_task, &scope, &handle, &mut coroutine)
    });
    this.leave_exchange(py, outer);
    let step = step.unwrap_or_else(Step::Raise);
    this.process.end_child(py, step.error());
    match step {
        Step::Yield(awaited) => {
            this.asyncio
                .leave(py, &idle_task.task, current_task.outer)?;
            let Some(coroutine) = coroutine else {
                return Ok(StepOutcome::Ended);
            };
            let stepped = (!awaited.is_none(py)).then_some(Step::Yield(awaited));
            this.flush_suspended(py, &handle);
            let suspended = SuspendedRequest {
                coroutine: coroutine.unbind(),
                context,
                stepped,
                handle,
                scope: scope.unbind(),
                server: server.clone().unbind(),
            };
            serve_in_task(server, idle_task, suspended).map(|()| StepOutcome::Suspended)
        }
        step => {
            drop(coroutine);
            idle_task.coroutine.get().set_inspected(py, None);
            release_idle_task(this, py, idle_task, current_task)?;
            let finished = match step {
                // Handlers of the log know the exception and the request by the context.
                Step::Raise(error) => in_context(py, &context, || {
                    this.finish(py, handle, Err(error), Some(scope))
                })?,
                _ => this.finish(py, handle, Ok(()), Some(scope)),
            };
            finished.map(|()| StepOutcome::Ended)
        }
    }
}

/// A handle for a new request, reused if possible.
fn exchange_handle(
    server: &Bound<'_, AsgiServer>,
    id: ConnId,
    stream: StreamId,
) -> PyResult<ExchangeHandle> {
    let py = server.py();
    let spare = server.get().state.open(py).spare_handles.pop();
    if let Some(handle) = spare {
        return Ok(handle);
    }
    let exchange = Bound::new(py, Exchange::new(server.clone().unbind(), id, stream))?;
    Ok(ExchangeHandle {
        receive: cfunctions::receive(&exchange)?,
        send: cfunctions::send(&exchange)?,
        exchange: exchange.unbind(),
    })
}

/// Calls the application and runs the first step of the coroutine that it returns.
fn first_step<'py>(
    server: &AsgiServer,
    idle_task: &IdleTask,
    scope: &Bound<'py, PyDict>,
    handle: &ExchangeHandle,
    coroutine: &mut Option<Bound<'py, PyAny>>,
) -> Step {
    let py = scope.py();
    let called = server
        .app
        .bind(py)
        .call1((scope, &handle.receive, &handle.send))
        .and_then(as_coroutine);
    match called {
        Err(error) => Step::Raise(error),
        Ok(called) => {
            idle_task.coroutine.get().set_inspected(py, Some(&called));
            step::resume(coroutine.insert(called))
        }
    }
}

/// The awaitable that an application has returned as an object that can be resumed.
fn as_coroutine(returned: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: looks at the type of a live object.
    if unsafe { pyo3::ffi::PyCoro_CheckExact(returned.as_ptr()) } != 0 {
        return Ok(returned);
    }
    let py = returned.py();
    if returned.hasattr(intern!(py, "send"))? && returned.hasattr(intern!(py, "throw"))? {
        return Ok(returned);
    }
    match returned.getattr(intern!(py, "__await__")) {
        Ok(awaiting) => awaiting.call0(),
        Err(_) => Err(PyTypeError::new_err(format!(
            "ASGI: an application must return an awaitable (async def), not {}",
            returned.get_type()
        ))),
    }
}

/// Takes an idle task for a request and makes it the current task.
fn acquire_idle_task(server: &AsgiServer, py: Python<'_>) -> PyResult<(IdleTask, CurrentTask)> {
    let (idle_task, current_task) = {
        let mut state = server.state.open(py);
        (state.idle_task.take(), state.current_task.take())
    };
    let idle_task = match (idle_task, current_task) {
        // Released in this turn: only requests have run since.
        (Some(idle_task), Some(current_task)) => return Ok((idle_task, current_task)),
        (Some(idle_task), None) if idle_task.is_usable(py)? => idle_task,
        _ => IdleTask::create(py, &server.asyncio)?,
    };
    let outer = server.asyncio.enter(py, &idle_task.task)?;
    match server.asyncio.snapshot(py, &idle_task.task) {
        Ok(before) => Ok((idle_task, CurrentTask { before, outer })),
        Err(error) => {
            server.asyncio.leave(py, &idle_task.task, outer)?;
            Err(error)
        }
    }
}

/// Keeps the task for the next request, if this one has left it unchanged. It stays the current task until the
/// turn ends, because only requests run in between and leaving and entering it costs 800 instructions.
fn release_idle_task(
    server: &AsgiServer,
    py: Python<'_>,
    idle_task: IdleTask,
    current_task: CurrentTask,
) -> PyResult<()> {
    if !idle_task.is_unchanged(py, &server.asyncio, current_task.before)? {
        server
            .asyncio
            .leave(py, &idle_task.task, current_task.outer)?;
        return idle_task.coroutine.get().end(py);
    }
    let other = {
        let mut state = server.state.open(py);
        state.current_task = Some(current_task);
        state.idle_task.replace(idle_task)
    };
    match other {
        Some(other) => other.coroutine.get().end(py),
        None => Ok(()),
    }
}

/// Stops the idle task from being the current task, before any other Python code runs.
pub fn leave_current_task(server: &AsgiServer, py: Python<'_>) -> PyResult<()> {
    let (current_task, task) = {
        let mut state = server.state.open(py);
        let task = state
            .idle_task
            .as_ref()
            .map(|idle_task| idle_task.task.clone_ref(py));
        (state.current_task.take(), task)
    };
    match (current_task, task) {
        (Some(current_task), Some(task)) => server.asyncio.leave(py, &task, current_task.outer),
        _ => Ok(()),
    }
}

/// Gives the task a coroutine that has suspended.
fn serve_in_task(
    server: &Bound<'_, AsgiServer>,
    idle_task: IdleTask,
    suspended: SuspendedRequest,
) -> PyResult<()> {
    let py = server.py();
    register(
        server.get(),
        py,
        &suspended.handle,
        idle_task.task.clone_ref(py),
    );
    idle_task.mark_serving(py)?;
    idle_task.coroutine.get().serve(py, suspended)
}

/// Registers the exchange for events of its connection and for `cancel_all`.
fn register(server: &AsgiServer, py: Python<'_>, handle: &ExchangeHandle, task: Py<PyAny>) {
    let exchange = handle.exchange.get();
    let key = handle.exchange.as_ptr() as usize;
    server
        .state
        .open(py)
        .running
        .insert(key, handle.exchange.clone_ref(py));
    let is_disconnected = {
        let mut state = exchange.state.open(py);
        state.task = Some(task);
        let stream = state.stream;
        match server
            .engine(py)
            .ok()
            .as_mut()
            .and_then(|engine| engine.conn(state.id))
        {
            Some(conn) => {
                let exchange = handle.exchange.clone_ref(py);
                conn.state.exchanges.insert(stream, exchange);
            }
            None => state.client = ClientState::Disconnected,
        }
        state.client == ClientState::Disconnected
    };
    if is_disconnected && let Err(error) = wake(py, exchange.mark_disconnected(py)) {
        error.write_unraisable(py, None);
    }
}

/// Runs a request in a task of the program's task factory; an eager one runs the first step in this call.
fn run_in_new_task(
    server: &Bound<'_, AsgiServer>,
    request: &Request,
    handle: ExchangeHandle,
    context: Py<PyAny>,
) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let called = in_context(py, &context, || {
        this.app
            .bind(py)
            .call1((&request.scope, &handle.receive, &handle.send))
            .and_then(as_coroutine)
    });
    let coroutine = match called.and_then(|called| called) {
        Ok(coroutine) => coroutine,
        Err(error) => {
            let scope = Some(request.scope.bind(py).clone());
            return in_context(py, &context, || this.finish(py, handle, Err(error), scope))?;
        }
    };
    let task_coroutine = Py::new(py, TaskCoroutine::new(this.asyncio.event_loop(py)))?;
    task_coroutine.get().set_inspected(py, Some(&coroutine));
    let registered = handle.clone_ref(py);
    let suspended = SuspendedRequest {
        coroutine: coroutine.unbind(),
        context,
        stepped: None,
        handle,
        scope: request.scope.clone_ref(py),
        server: server.clone().unbind(),
    };
    task_coroutine.get().serve(py, suspended)?;
    let task = match this.asyncio.create_task(py, &task_coroutine) {
        Ok(task) => task,
        Err(error) => {
            // The request is served all the same.
            this.log(py, ERROR, "the loop's task factory failed", Some(error));
            this.asyncio
                .create_plain_task(py, &task_coroutine)?
                .unbind()
        }
    };
    if !task
        .bind(py)
        .call_method0(intern!(py, "done"))?
        .is_truthy()?
    {
        register(this, py, &registered, task);
    }
    Ok(())
}
