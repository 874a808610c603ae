//! The coroutine of every task that serves requests.
//!
//! ```text
//!            first step, nothing to do            set by the server in the turn that read a request
//!   Fresh ───────────────────────────► Parked          ┌─────────────────────────────┐
//!     │                                   │            ▼                             │
//!     └───────────── assign ──────────────┴──────► Assigned ── its coroutine ends ───┘ or Retired
//! ```
//!
//! A task whose host is not assigned is the *spare*: the server makes it the current task, steps a
//! request's coroutine itself, and when that returns at once the task has never noticed. When it
//! suspends, the host is assigned what is left: the task wakes up, is handed what the coroutine waits
//! for, and drives it from then on as any task drives its coroutine, cancellation included.
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use super::super::exchange::Kit;
use super::super::server::AsgiServer;
use super::step::{self as stepping, Step, in_context};
use crate::errors::CancelledError;
use crate::gil::GilCell;

/// A request's coroutine after its first step.
pub struct Assignment {
    pub coroutine: Py<PyAny>,
    pub context: Py<PyAny>,
    /// What the first step gave, until the task has taken it. None: the task steps on at once.
    pub awaited: Option<Py<PyAny>>,
    pub kit: Kit,
    pub server: Py<AsgiServer>,
}

enum Work {
    Idle,
    Assigned(Box<Assignment>),
    /// Its coroutine is being stepped right now.
    Running,
    Retired,
}

struct State {
    work: Work,
    /// The future on which the task is parked.
    park: Option<Park>,
    /// The coroutine under way, for those who look at the task (`cr_frame`, `cr_code`, ...).
    shown: Option<Py<PyAny>>,
}

/// What a parked task waits for, and its method `done`, which is asked once per request: bound once it
/// costs a quarter of finding it each time.
struct Park {
    future: Py<PyAny>,
    done: Py<PyAny>,
}

/// Structurally a coroutine (`collections.abc.Coroutine`): what `asyncio.Task` asks for.
#[pyclass(frozen, weakref, module = "towline._native", name = "RequestHost")]
pub struct Host {
    loop_: Py<PyAny>,
    state: GilCell<State>,
}

/// How the task resumes its coroutine.
enum Input<'py> {
    Next,
    Throw(Bound<'py, PyAny>),
}

impl Host {
    pub fn new(loop_: Py<PyAny>) -> Self {
        let state = State {
            work: Work::Idle,
            park: None,
            shown: None,
        };
        Self {
            loop_,
            state: GilCell::new(state),
        }
    }

    /// Whether the future on which the task is parked is over; `None` while its first step has not run.
    pub fn is_unparked(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        let state = self.state.open(py);
        let done = state.park.as_ref().map(|park| park.done.clone_ref(py));
        drop(state);
        done.map(|done| done.bind(py).call0()?.is_truthy())
            .transpose()
    }

    /// True while the host may be given a request.
    pub fn is_idle(&self, py: Python<'_>) -> bool {
        matches!(self.state.open(py).work, Work::Idle)
    }

    /// Shows `coroutine` as the task's own while the server steps it; `None` when it has ended.
    pub fn show(&self, py: Python<'_>, coroutine: Option<&Bound<'_, PyAny>>) {
        let coroutine = coroutine.map(|coroutine| coroutine.clone().unbind());
        let before = std::mem::replace(&mut self.state.open(py).shown, coroutine);
        drop(before);
    }

    /// Hands the task a coroutine that has suspended.
    pub fn assign(&self, py: Python<'_>, assignment: Assignment) -> PyResult<()> {
        self.state.open(py).work = Work::Assigned(Box::new(assignment));
        self.wake(py)
    }

    /// Lets the task end, with the result None.
    pub fn retire(&self, py: Python<'_>) -> PyResult<()> {
        self.state.open(py).work = Work::Retired;
        self.wake(py)
    }

    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        let Some(park) = self.state.open(py).park.take() else {
            return Ok(());
        };
        let park = park.future.into_bound(py);
        // Cancelled: the task wakes up all the same, with the exception.
        if !park.call_method0(intern!(py, "done"))?.is_truthy()? {
            park.call_method1(intern!(py, "set_result"), (py.None(),))?;
        }
        Ok(())
    }

    fn resume(&self, py: Python<'_>, input: Input<'_>) -> PyResult<Option<Py<PyAny>>> {
        let work = std::mem::replace(&mut self.state.open(py).work, Work::Running);
        match (work, input) {
            (Work::Idle, Input::Next) => self.park_now(py).map(Some),
            (Work::Idle | Work::Retired, Input::Throw(error)) => {
                self.state.open(py).work = Work::Retired;
                Err(PyErr::from_value(error))
            }
            (Work::Retired, Input::Next) => {
                self.state.open(py).work = Work::Retired;
                Ok(None)
            }
            (Work::Assigned(assignment), input) => self.advance(py, assignment, input),
            (Work::Running, _) => Err(PyRuntimeError::new_err("coroutine already executing")),
        }
    }

    fn park_now(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let future = self
            .loop_
            .bind(py)
            .call_method0(intern!(py, "create_future"))?;
        // What `await` does, so that the task accepts the future from us.
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        let park = Park {
            future: future.clone().unbind(),
            done: future.getattr(intern!(py, "done"))?.unbind(),
        };
        let mut state = self.state.open(py);
        state.work = Work::Idle;
        state.park = Some(park);
        Ok(future.unbind())
    }

    fn advance(
        &self,
        py: Python<'_>,
        mut assignment: Box<Assignment>,
        input: Input<'_>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let awaited = assignment.awaited.take();
        let step = match (input, awaited) {
            (Input::Next, Some(awaited)) => Step::Yield(awaited),
            (Input::Throw(error), Some(awaited)) if cancels(&error, awaited.bind(py))? => {
                Step::Yield(awaited)
            }
            (input, _) => {
                let server = assignment.server.get();
                let outer = server.enter_exchange(py, &assignment.kit);
                let coroutine = assignment.coroutine.bind(py);
                let stepped = in_context(py, &assignment.context, || match input {
                    Input::Next => stepping::step(coroutine),
                    Input::Throw(error) => stepping::throw(coroutine, &error),
                });
                server.leave_exchange(py, outer);
                stepped.unwrap_or_else(Step::Raise)
            }
        };
        self.after_step(py, assignment, step)
    }

    fn after_step(
        &self,
        py: Python<'_>,
        assignment: Box<Assignment>,
        step: Step,
    ) -> PyResult<Option<Py<PyAny>>> {
        let outcome = match step {
            Step::Yield(awaited) => {
                assignment.server.get().flush(py, &assignment.kit);
                self.state.open(py).work = Work::Assigned(assignment);
                return Ok(Some(awaited));
            }
            Step::Return => Ok(()),
            Step::Raise(error) => Err(error),
        };
        let shown = {
            let mut state = self.state.open(py);
            state.work = Work::Retired;
            state.shown.take()
        };
        drop(shown);
        let Assignment {
            coroutine,
            context,
            kit,
            server,
            ..
        } = *assignment;
        drop((coroutine, context));
        server.get().finish(py, kit, outcome).map(|()| None)
    }

    fn shown_attribute<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, pyo3::types::PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shown = self
            .state
            .open(py)
            .shown
            .as_ref()
            .map(|shown| shown.clone_ref(py));
        match shown {
            Some(shown) => shown.into_bound(py).getattr(name),
            None => Ok(py.None().into_bound(py)),
        }
    }
}

/// What `Task.cancel` does first: cancels what the coroutine waits for. False: that is over already,
/// and the exception belongs to the coroutine.
fn cancels(error: &Bound<'_, PyAny>, awaited: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = error.py();
    if !error.is_instance_of::<CancelledError>() || awaited.is_none() {
        return Ok(false);
    }
    let arguments = error.getattr(intern!(py, "args"))?;
    let arguments = arguments.cast::<pyo3::types::PyTuple>()?;
    let cancelled = awaited
        .call_method1(intern!(py, "cancel"), arguments)?
        .is_truthy()?;
    if !cancelled {
        awaited.setattr(intern!(py, "_asyncio_future_blocking"), false)?;
    }
    Ok(cancelled)
}

#[pymethods]
impl Host {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.resume(py, Input::Next)
    }

    /// The value is not looked at: a task sends None.
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
        let error = crate::coroutine::exception(error, value, traceback)?;
        self.resume(py, Input::Throw(error))?
            .ok_or_else(|| PyStopIteration::new_err(()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (work, shown) = {
            let mut state = self.state.open(py);
            (
                std::mem::replace(&mut state.work, Work::Retired),
                state.shown.take(),
            )
        };
        drop(shown);
        if let Work::Assigned(assignment) = work {
            let closed = assignment.coroutine.call_method0(py, intern!(py, "close"));
            let Assignment { kit, server, .. } = *assignment;
            server.get().finish(py, kit, closed.map(drop))?;
        }
        Ok(())
    }

    #[getter]
    fn cr_running(&self, py: Python<'_>) -> bool {
        let state = self.state.open(py);
        matches!(state.work, Work::Running)
            || (matches!(state.work, Work::Idle) && state.shown.is_some())
    }

    #[getter]
    fn cr_suspended(&self, py: Python<'_>) -> bool {
        let state = self.state.open(py);
        matches!(state.work, Work::Assigned(_))
            || (matches!(state.work, Work::Idle) && state.park.is_some())
    }

    #[getter]
    fn cr_frame<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown_attribute(py, intern!(py, "cr_frame"))
    }

    #[getter]
    fn cr_await<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown_attribute(py, intern!(py, "cr_await"))
    }

    #[getter]
    fn cr_code<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown_attribute(py, intern!(py, "cr_code"))
    }

    #[getter]
    fn cr_origin<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown_attribute(py, intern!(py, "cr_origin"))
    }

    #[getter]
    fn __name__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown_name(py, intern!(py, "__name__"))
    }

    #[getter]
    fn __qualname__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shown_name(py, intern!(py, "__qualname__"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.loop_)?;
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        if let Work::Assigned(assignment) = &state.work {
            visit.call(&assignment.coroutine)?;
            visit.call(&assignment.context)?;
            visit.call(&assignment.awaited)?;
            visit.call(&assignment.server)?;
            assignment.kit.traverse(&visit)?;
        }
        if let Some(park) = &state.park {
            visit.call(&park.future)?;
            visit.call(&park.done)?;
        }
        visit.call(&state.shown)
    }
}

impl Host {
    fn shown_name<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, pyo3::types::PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shown = self.shown_attribute(py, name)?;
        Ok(if shown.is_none() {
            intern!(py, "RequestHost").clone().into_any()
        } else {
            shown
        })
    }
}
