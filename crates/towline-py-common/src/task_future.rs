//! The future that a waiting task gets: it has as much of `asyncio.Future` as a task needs.
//!
//! A task that awaits a future registers a callback. A future of asyncio schedules it with `call_soon`, for the next
//! iteration of the loop. A waiter keeps the callback; the driver's turn handles every event first, then runs the
//! callbacks itself, each in its task's context.
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::cell::StateCell;
use crate::errors::CancelledError;
use crate::event_loop::EventLoop;

#[pyclass(frozen, module = "towline._native")]
pub struct TaskFuture {
    event_loop: EventLoop,
    state: StateCell<State>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// `_asyncio_future_blocking`: a task is about to await it.
    blocking: bool,
    callback: Option<Callback>,
    /// The task was cancelled after its wait had ended, which it remembers for its next step.
    is_cancel_due: bool,
}

#[derive(Default)]
enum Phase {
    #[default]
    Waiting,
    Woken,
    Cancelled(Option<Py<PyAny>>),
}

/// The callback of a task that waits.
pub struct Callback {
    function: Py<PyAny>,
    context: Option<Py<PyAny>>,
}

impl TaskFuture {
    pub fn new(event_loop: EventLoop) -> Self {
        Self {
            event_loop,
            state: StateCell::new(State {
                blocking: true,
                ..State::default()
            }),
        }
    }

    /// Ends the wait. `step_with`: runs the callback here, which steps the task, with this done future of asyncio, whose
    /// result a task of asyncio gets without a call. Otherwise schedules the callback.
    pub fn wake(slf: &Bound<'_, Self>, step_with: Option<&Py<PyAny>>) -> PyResult<()> {
        match (slf.get().take_callback(slf.py()), step_with) {
            (Some(callback), Some(done)) => callback.run(slf, done),
            (Some(callback), None) => callback.schedule(slf),
            (None, _) => Ok(()),
        }
    }

    /// The task of asyncio that waits.
    pub fn waiting_task<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let state = self.state.open(py);
        let function = state.callback.as_ref()?.function.as_ptr();
        // SAFETY: a live object; the type is checked first. A task's own callback is a builtin function bound to it.
        unsafe {
            (ffi::PyCFunction_CheckExact(function) != 0)
                .then(|| Bound::from_borrowed_ptr_or_opt(py, ffi::PyCFunction_GetSelf(function)))?
        }
    }

    /// Ends the wait. Returns the callback, which the caller runs, or gives back with `wait_on`.
    pub fn take_callback(&self, py: Python<'_>) -> Option<Callback> {
        let mut state = self.state.open(py);
        if !matches!(state.phase, Phase::Waiting) {
            return None;
        }
        state.phase = Phase::Woken;
        state.callback.take()
    }

    /// Starts another wait.
    pub fn restart(&self, py: Python<'_>) {
        let mut state = self.state.open(py);
        (state.phase, state.blocking) = (Phase::Waiting, true);
    }

    /// Has the task of `callback` wait on, which has not noticed the end of its wait and the start of another. Otherwise
    /// returns the callback.
    pub fn wait_on(&self, py: Python<'_>, callback: Callback) -> Option<Callback> {
        let mut state = self.state.open(py);
        let is_cancel_due = std::mem::take(&mut state.is_cancel_due);
        if is_cancel_due || !matches!(state.phase, Phase::Waiting) || state.callback.is_some() {
            return Some(callback);
        }
        state.callback = Some(callback);
        None
    }

    /// Has `function` called when it is woken, in the context of that moment.
    pub fn set_callback(slf: &Bound<'_, Self>, function: Py<PyAny>) {
        let callback = Callback {
            function,
            context: None,
        };
        slf.get().state.open(slf.py()).callback = Some(callback);
    }

    /// Whether the wait has ended, by waking or by cancellation.
    pub fn is_woken(&self, py: Python<'_>) -> bool {
        !matches!(self.state.open(py).phase, Phase::Waiting)
    }
}

impl Callback {
    /// Calls it with `done`, or with `waiter` if it is not a task's own.
    pub fn run(self, waiter: &Bound<'_, TaskFuture>, done: &Py<PyAny>) -> PyResult<()> {
        let py = waiter.py();
        // SAFETY: a live object.
        let is_builtin = unsafe { ffi::PyCFunction_CheckExact(self.function.as_ptr()) } != 0;
        // Other callbacks may compare the future with the one that they waited for.
        let argument = if is_builtin {
            done.bind(py)
        } else {
            waiter.as_any()
        };
        let Some(context) = &self.context else {
            self.function.call1(py, (argument,))?;
            return Ok(());
        };
        // SAFETY: a live context object of asyncio; a failure is reported by the result.
        if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
            // The context is entered already, further up the stack.
            drop(PyErr::fetch(py));
            return self.schedule(waiter);
        }
        let result = self.function.call1(py, (argument,));
        // SAFETY: entered above, on this thread.
        let left = unsafe { ffi::PyContext_Exit(context.as_ptr()) };
        result?;
        if left == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(py))
        }
    }

    fn schedule(self, waiter: &Bound<'_, TaskFuture>) -> PyResult<()> {
        let py = waiter.py();
        let event_loop = &waiter.get().event_loop;
        if event_loop.is_trio() {
            self.function.call1(py, (waiter,))?;
            return Ok(());
        }
        let argument = waiter.clone().into_any().unbind();
        event_loop.call_soon(py, self.function, Some(argument), self.context.as_ref())
    }
}

#[pymethods]
impl TaskFuture {
    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self, py: Python<'_>) -> bool {
        self.state.open(py).blocking
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, py: Python<'_>, blocking: bool) {
        self.state.open(py).blocking = blocking;
    }

    fn get_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.object().clone_ref(py)
    }

    #[pyo3(signature = (function, /, *, context=None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        function: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let callback = Callback { function, context };
        {
            let mut state = slf.get().state.open(py);
            if matches!(state.phase, Phase::Waiting) {
                if state.callback.is_some() {
                    return Err(PyRuntimeError::new_err(
                        "another task is awaiting this call",
                    ));
                }
                state.callback = Some(callback);
                return Ok(());
            }
        }
        callback.schedule(slf)
    }

    fn remove_done_callback(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<usize> {
        let callback = self.state.open(py).callback.take();
        let Some(callback) = callback else {
            return Ok(0);
        };
        if callback.function.bind(py).eq(function)? {
            return Ok(1);
        }
        self.state.open(py).callback = Some(callback);
        Ok(0)
    }

    fn done(&self, py: Python<'_>) -> bool {
        self.is_woken(py)
    }

    fn cancelled(&self, py: Python<'_>) -> bool {
        matches!(self.state.open(py).phase, Phase::Cancelled(_))
    }

    /// Returns None, or raises the `CancelledError` of `cancel()`.
    pub fn result(&self, py: Python<'_>) -> PyResult<()> {
        match &self.state.open(py).phase {
            Phase::Woken => Ok(()),
            Phase::Waiting => Err(PyValueError::new_err("the result is not ready")),
            Phase::Cancelled(None) => Err(CancelledError::new_err(())),
            Phase::Cancelled(Some(message)) => {
                Err(CancelledError::new_err((message.clone_ref(py),)))
            }
        }
    }

    fn exception(&self, py: Python<'_>) -> PyResult<()> {
        self.result(py)
    }

    /// Schedules the waiting task, which gets `CancelledError`.
    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        let py = slf.py();
        let callback = {
            let mut state = slf.get().state.open(py);
            match state.phase {
                Phase::Waiting => state.phase = Phase::Cancelled(msg),
                Phase::Woken => {
                    state.is_cancel_due = true;
                    return Ok(false);
                }
                Phase::Cancelled(_) => return Ok(true),
            }
            state.callback.take()
        };
        if let Some(callback) = callback {
            callback.schedule(slf)?;
        }
        Ok(true)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.event_loop.object())?;
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        if let Some(callback) = &state.callback {
            visit.call(&callback.function)?;
            visit.call(&callback.context)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let callback = self
            .state
            .try_open(py)
            .and_then(|mut state| state.callback.take());
        drop(callback);
    }
}
