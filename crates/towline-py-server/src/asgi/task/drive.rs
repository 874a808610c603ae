//! How a task drives the coroutine of a request: the Python methods of `TaskCoroutine`.
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::nested;
use super::super::state::{SuspendedRequest, TaskCoroutine, Work};
use super::step::{self, Step, in_context};
use towline_py_common::errors::CancelledError;
use towline_py_common::task_future::TaskFuture;

/// The input with which the task resumes its coroutine.
enum Input<'py> {
    Next,
    Throw(Bound<'py, PyAny>),
}

impl TaskCoroutine {
    fn resume(&self, py: Python<'_>, input: Input<'_>) -> PyResult<Option<Py<PyAny>>> {
        let work = std::mem::replace(&mut self.state.open(py).work, Work::Running);
        match (work, input) {
            (Work::Idle, Input::Next) => self.park(py).map(Some),
            (Work::Idle | Work::Ended, Input::Throw(error)) => {
                self.state.open(py).work = Work::Ended;
                Err(PyErr::from_value(error))
            }
            (Work::Ended, Input::Next) => {
                self.state.open(py).work = Work::Ended;
                Ok(None)
            }
            (Work::Serving(request), input) => {
                if let Err(error) = request.server.get().thread.check() {
                    self.state.open(py).work = Work::Serving(request);
                    return Err(error);
                }
                self.advance(py, request, input)
            }
            (Work::Running, _) => Err(PyRuntimeError::new_err("coroutine already executing")),
        }
    }

    fn advance(
        &self,
        py: Python<'_>,
        mut request: Box<SuspendedRequest>,
        input: Input<'_>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let step = match (input, request.stepped.take()) {
            (Input::Throw(error), Some(Step::Yield(awaited))) => {
                if cancel_awaited(&error, awaited.bind(py))? {
                    Step::Yield(awaited)
                } else {
                    request.step(py, Input::Throw(error))
                }
            }
            (_, Some(step)) => step,
            (input, None) => request.step(py, input),
        };
        self.after_step(py, request, step)
    }

    /// Steps the task that awaits `future`: of a request only the coroutine. If that awaits its exchange again, the task
    /// goes on waiting, as if nothing had happened; otherwise it takes the result in a step of its own.
    pub fn step_waiting(future: &Bound<'_, TaskFuture>, done: &Py<PyAny>) -> PyResult<()> {
        let py = future.py();
        let task = future.get().waiting_task(py);
        let coroutine = match &task {
            Some(task) => task.call_method0(intern!(py, "get_coro"))?,
            None => return TaskFuture::wake(future, Some(done)),
        };
        match (task, coroutine.cast_exact::<Self>()) {
            (Some(task), Ok(coroutine)) => coroutine.get().step_alone(&task, future, done),
            _ => TaskFuture::wake(future, Some(done)),
        }
    }

    fn step_alone(
        &self,
        task: &Bound<'_, PyAny>,
        future: &Bound<'_, TaskFuture>,
        done: &Py<PyAny>,
    ) -> PyResult<()> {
        let py = future.py();
        let Some(callback) = future.get().take_callback(py) else {
            return Ok(());
        };
        let work = std::mem::replace(&mut self.state.open(py).work, Work::Running);
        let mut request = match work {
            Work::Serving(request) => request,
            other => {
                self.state.open(py).work = other;
                return callback.run(future, done);
            }
        };
        let server = request.server.get();
        let exchange = request.handle.exchange.get();
        let outer = server.asyncio.enter(py, task.as_unbound())?;
        exchange.state.open(py).stepping = Some(future.clone().unbind());
        let step = request.step(py, Input::Next);
        drop(exchange.state.open(py).stepping.take());
        server.asyncio.leave(py, task.as_unbound(), outer)?;
        let waits = matches!(&step, Step::Yield(awaited) if awaited.is(future));
        let callback = if waits {
            future.get().wait_on(py, callback)
        } else {
            Some(callback)
        };
        if callback.is_none() {
            server.flush_suspended(py, &request.handle);
        } else {
            request.stepped = Some(step);
        }
        self.state.open(py).work = Work::Serving(request);
        callback.map_or(Ok(()), |callback| callback.run(future, done))
    }

    fn after_step(
        &self,
        py: Python<'_>,
        request: Box<SuspendedRequest>,
        step: Step,
    ) -> PyResult<Option<Py<PyAny>>> {
        let error = match step {
            Step::Yield(awaited) => {
                request.server.get().flush_suspended(py, &request.handle);
                self.state.open(py).work = Work::Serving(request);
                return Ok(Some(awaited));
            }
            Step::Return => None,
            Step::Raise(error) => Some(error),
        };
        let inspected = {
            let mut state = self.state.open(py);
            state.work = Work::Ended;
            state.inspected.take()
        };
        drop(inspected);
        let SuspendedRequest {
            coroutine,
            context,
            handle,
            server,
            scope,
            ..
        } = *request;
        drop(coroutine);
        let (server, scope) = (server.get(), Some(scope.into_bound(py)));
        let finished = match error {
            None => server.finish(py, handle, Ok(()), scope),
            Some(error) => in_context(py, &context, || {
                server.finish(py, handle, Err(error), scope)
            })?,
        };
        finished.map(|()| None)
    }
}

impl SuspendedRequest {
    fn step(&self, py: Python<'_>, input: Input<'_>) -> Step {
        let server = self.server.get();
        nested::leave_step(server, py);
        let outer = server.enter_exchange(py, &self.handle);
        let coroutine = self.coroutine.bind(py);
        let stepped = in_context(py, &self.context, || match input {
            Input::Next => step::resume(coroutine),
            Input::Throw(error) => step::throw(coroutine, &error),
        });
        server.leave_exchange(py, outer);
        let step = stepped.unwrap_or_else(Step::Raise);
        server.process.end_child(py, step.error());
        step
    }
}

/// Cancels the awaited future, as `Task.cancel` does first. False: it is done already, and the exception is for
/// the coroutine.
fn cancel_awaited(error: &Bound<'_, PyAny>, awaited: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = error.py();
    if !error.is_instance_of::<CancelledError>() || awaited.is_none() {
        return Ok(false);
    }
    let arguments = error.getattr(intern!(py, "args"))?;
    let arguments = arguments.cast::<PyTuple>()?;
    let cancelled = awaited
        .call_method1(intern!(py, "cancel"), arguments)?
        .is_truthy()?;
    if !cancelled {
        awaited.setattr(intern!(py, "_asyncio_future_blocking"), false)?;
    }
    Ok(cancelled)
}

#[pymethods]
impl TaskCoroutine {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.resume(py, Input::Next)
    }

    /// Ignores `value`: a task sends `None`.
    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        self.resume(py, Input::Next)?
            .ok_or_else(|| PyStopIteration::new_err(()))
    }

    #[pyo3(signature = (error, value=None, traceback=None, /))]
    fn throw(
        &self,
        py: Python<'_>,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let error = towline_py_common::coroutine::exception(error, value, traceback)?;
        self.resume(py, Input::Throw(error))?
            .ok_or_else(|| PyStopIteration::new_err(()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (work, inspected) = {
            let mut state = self.state.open(py);
            (
                std::mem::replace(&mut state.work, Work::Ended),
                state.inspected.take(),
            )
        };
        drop(inspected);
        if let Work::Serving(request) = work {
            let closed = request.coroutine.call_method0(py, intern!(py, "close"));
            let SuspendedRequest {
                handle,
                server,
                scope,
                ..
            } = *request;
            let scope = scope.into_bound(py);
            server
                .get()
                .finish(py, handle, closed.map(drop), Some(scope))?;
        }
        Ok(())
    }

    #[getter]
    fn cr_running(&self, py: Python<'_>) -> bool {
        let state = self.state.open(py);
        matches!(state.work, Work::Running)
            || (matches!(state.work, Work::Idle) && state.inspected.is_some())
    }

    #[getter]
    fn cr_suspended(&self, py: Python<'_>) -> bool {
        let state = self.state.open(py);
        matches!(state.work, Work::Serving(_))
            || (matches!(state.work, Work::Idle) && state.parked.is_some())
    }

    #[getter]
    fn cr_frame<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inspected_attribute(py, intern!(py, "cr_frame"))
    }

    #[getter]
    fn cr_await<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inspected_attribute(py, intern!(py, "cr_await"))
    }

    #[getter]
    fn cr_code<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inspected_attribute(py, intern!(py, "cr_code"))
    }

    #[getter]
    fn cr_origin<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inspected_attribute(py, intern!(py, "cr_origin"))
    }

    #[getter]
    fn __name__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inspected_name(py, intern!(py, "__name__"))
    }

    #[getter]
    fn __qualname__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inspected_name(py, intern!(py, "__qualname__"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.traverse(&visit)
    }
}
