//! The coroutine of every task that serves requests.
//!
//! ```text
//!            first step, nothing to do            set by the server in the turn that read a request
//!   Fresh ───────────────────────────► Parked          ┌────────────────────────────┐
//!     │                                   │            ▼                            │
//!     └────────────── serve ──────────────┴──────► Serving ── its coroutine ends ───┘ or Ended
//! ```
//!
//! A task without a request is the *idle task*: the server makes it the current task, steps a request's
//! coroutine itself, and when that returns at once the task has never run. When it suspends, the task serves the
//! rest of it: the task wakes up, receives the future that the coroutine waits for, and from then on drives it
//! as any task drives its coroutine, cancellation included (`drive`).
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::super::state::{ParkedFuture, SuspendedRequest, TaskCoroutine, TaskState, Work};
use super::step::Step;
use towline_py_common::cell::StateCell;

impl TaskCoroutine {
    pub fn new(event_loop: Py<PyAny>) -> Self {
        let state = TaskState {
            work: Work::Idle,
            parked: None,
            inspected: None,
        };
        Self {
            event_loop,
            state: StateCell::new(state),
        }
    }

    /// Whether the future on which the task is parked is done; `None` if its first step has not run.
    pub fn is_parked_future_done(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        let state = self.state.open(py);
        let done = state
            .parked
            .as_ref()
            .map(|parked| parked.done.clone_ref(py));
        drop(state);
        done.map(|done| done.bind(py).call0()?.is_truthy())
            .transpose()
    }

    /// True while the task may be given a request.
    pub fn is_idle(&self, py: Python<'_>) -> bool {
        matches!(self.state.open(py).work, Work::Idle)
    }

    /// Presents `coroutine` as the task's own while the server steps it; `None` when it has ended.
    pub fn set_inspected(&self, py: Python<'_>, coroutine: Option<&Bound<'_, PyAny>>) {
        let coroutine = coroutine.map(|coroutine| coroutine.clone().unbind());
        let before = std::mem::replace(&mut self.state.open(py).inspected, coroutine);
        drop(before);
    }

    /// Gives the task a coroutine that has suspended.
    pub fn serve(&self, py: Python<'_>, request: SuspendedRequest) -> PyResult<()> {
        self.state.open(py).work = Work::Serving(Box::new(request));
        self.wake(py)
    }

    /// Lets the task end, with the result `None`.
    pub fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.state.open(py).work = Work::Ended;
        self.wake(py)
    }

    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        let Some(parked) = self.state.open(py).parked.take() else {
            return Ok(());
        };
        let future = parked.future.into_bound(py);
        // If it is cancelled, the task wakes up with the exception.
        if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
            future.call_method1(intern!(py, "set_result"), (py.None(),))?;
        }
        Ok(())
    }

    /// Waits, as a task, for the next request.
    pub fn park(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let future = self
            .event_loop
            .bind(py)
            .call_method0(intern!(py, "create_future"))?;
        // Set by `await`; without it the task does not accept the future.
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        let parked = ParkedFuture {
            future: future.clone().unbind(),
            done: future.getattr(intern!(py, "done"))?.unbind(),
        };
        let mut state = self.state.open(py);
        state.work = Work::Idle;
        state.parked = Some(parked);
        Ok(future.unbind())
    }

    /// An attribute of the application's coroutine, `None` if there is none.
    pub fn inspected_attribute<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inspected = self
            .state
            .open(py)
            .inspected
            .as_ref()
            .map(|coroutine| coroutine.clone_ref(py));
        match inspected {
            Some(coroutine) => coroutine.into_bound(py).getattr(name),
            None => Ok(py.None().into_bound(py)),
        }
    }

    pub fn inspected_name<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inspected = self.inspected_attribute(py, name)?;
        Ok(if inspected.is_none() {
            intern!(py, "RequestCoroutine").clone().into_any()
        } else {
            inspected
        })
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        if let Work::Serving(request) = &state.work {
            visit.call(&request.coroutine)?;
            visit.call(&request.context)?;
            if let Some(Step::Yield(awaited)) = &request.stepped {
                visit.call(awaited)?;
            }
            visit.call(&request.scope)?;
            visit.call(&request.server)?;
            request.handle.traverse(visit)?;
        }
        if let Some(parked) = &state.parked {
            visit.call(&parked.future)?;
            visit.call(&parked.done)?;
        }
        visit.call(&state.inspected)
    }
}
