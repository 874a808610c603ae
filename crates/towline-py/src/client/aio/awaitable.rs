//! What the asynchronous methods return: an awaitable that has begun already. Structurally a coroutine,
//! so that `create_task`, `gather` and `wait_for` take it as one.
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::pending_op::{Outcome, PendingOp};
use super::upload::Upload;
use super::waiter::Waiter;
use crate::coroutine::exception;
use crate::gil::GilCell;

#[pyclass(frozen, module = "towline._native", generic)]
pub struct Call {
    state: GilCell<State>,
}

/// ```text
/// Native ─ needs_flow ─► Coroutine ─► Over
///   └───────────────────────────────► Over
/// ```
enum State {
    /// Waits with one waiter at a time.
    Native(PendingOp, Option<Py<Waiter>>),
    /// Trio's way to wait, or a streamed upload: the coroutine is made when somebody awaits it.
    Deferred(Box<MakeCoroutine>),
    /// Python has the word.
    Coroutine(Py<PyAny>),
    /// Decided before anything was waited for.
    Failed(PyErr),
    Ready(Py<PyAny>),
    Over,
}

type MakeCoroutine = dyn Fn(Python<'_>) -> PyResult<Py<PyAny>> + Send + Sync;

/// One step.
enum Step {
    Yield(Py<PyAny>),
    Return(Py<PyAny>),
}

impl Call {
    fn make(py: Python<'_>, state: State) -> PyResult<Py<Self>> {
        let call = Bound::new(
            py,
            Self {
                state: GilCell::new(state),
            },
        )?;
        install_slots(&call);
        Ok(call.unbind())
    }

    /// One that does `operation` in its loop_driver.
    pub fn of(py: Python<'_>, operation: PendingOp) -> PyResult<Py<Self>> {
        if !operation.loop_driver.get().event_loop.is_trio() {
            return Self::make(py, State::Native(operation, None));
        }
        let running = Py::new(py, TrioOp(GilCell::new(operation)))?;
        Self::make(
            py,
            State::Deferred(Box::new(move |py| {
                let helper = helper(py, intern!(py, "run_in_trio"))?;
                Ok(helper.call1((&running,))?.unbind())
            })),
        )
    }

    /// One that has failed already.
    pub fn failed(py: Python<'_>, error: PyErr) -> PyResult<Py<Self>> {
        Self::make(py, State::Failed(error))
    }

    /// `value`, at once.
    pub fn ready(py: Python<'_>, value: Py<PyAny>) -> PyResult<Py<Self>> {
        Self::make(py, State::Ready(value))
    }

    /// A coroutine of Python's.
    pub fn coroutine(py: Python<'_>, coroutine: Py<PyAny>) -> PyResult<Py<Self>> {
        Self::make(py, State::Coroutine(coroutine))
    }

    /// A request whose body comes from `body`, piece by piece.
    pub fn upload(py: Python<'_>, upload: Upload, body: Py<PyAny>) -> PyResult<Py<Self>> {
        let upload = Py::new(py, upload)?;
        Self::make(
            py,
            State::Deferred(Box::new(move |py| {
                let helper = helper(py, intern!(py, "upload"))?;
                Ok(helper.call1((&upload, &body))?.unbind())
            })),
        )
    }

    fn step(slf: &Bound<'_, Self>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Step> {
        let py = slf.py();
        let this = slf.get();
        if this.is_waiting(py) {
            return Err(PyRuntimeError::new_err(
                "this call is being awaited already",
            ));
        }
        // Taken out: whatever Python code runs meanwhile finds a call that is over.
        let state = std::mem::replace(&mut *this.state.open(py), State::Over);
        let (next, step) = match state {
            State::Native(operation, _) => native_step(py, operation)?,
            State::Deferred(make) => coroutine_step(py, make(py)?, None)?,
            State::Coroutine(coroutine) => coroutine_step(py, coroutine, value)?,
            State::Failed(error) => return Err(error),
            State::Ready(value) => (State::Over, Step::Return(value)),
            State::Over => {
                return Err(PyRuntimeError::new_err("cannot reuse already awaited call"));
            }
        };
        *this.state.open(py) = next;
        Ok(step)
    }

    /// Some task has been given a waiter that is not woken yet.
    fn is_waiting(&self, py: Python<'_>) -> bool {
        match &*self.state.open(py) {
            State::Native(_, Some(waiter)) => !waiter.get().is_woken(py),
            _ => false,
        }
    }

    /// Gives up what has not been awaited to its end.
    fn cancel(&self, py: Python<'_>) {
        let state = self
            .state
            .try_open(py)
            .map(|mut state| std::mem::replace(&mut *state, State::Over));
        match state {
            Some(State::Native(mut operation, _)) => operation.abandon(py),
            Some(State::Coroutine(coroutine)) => {
                if let Err(error) = coroutine.call_method0(py, intern!(py, "close")) {
                    error.write_unraisable(py, Some(coroutine.bind(py)));
                }
            }
            _ => {}
        }
    }
}

fn helper<'py>(
    py: Python<'py>,
    name: &Bound<'py, pyo3::types::PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    static LOOPS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = LOOPS.get_or_try_init(py, || {
        PyResult::Ok(py.import("towline._native_aio")?.unbind())
    })?;
    module.bind(py).getattr(name)
}

fn native_step(py: Python<'_>, mut operation: PendingOp) -> PyResult<(State, Step)> {
    match operation.poll(py)? {
        Some(Outcome::Done(value)) => Ok((State::Over, Step::Return(value))),
        Some(Outcome::Continue(coroutine)) => coroutine_step(py, coroutine, None),
        None => {
            let waiter = Py::new(py, Waiter::new(operation.loop_driver.clone_ref(py)))?;
            operation.wait(py, waiter.clone_ref(py))?;
            let given = waiter.clone_ref(py).into_any();
            Ok((State::Native(operation, Some(waiter)), Step::Yield(given)))
        }
    }
}

fn coroutine_step(
    py: Python<'_>,
    coroutine: Py<PyAny>,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<(State, Step)> {
    let none = py.None();
    let value = value.map_or(none.as_ptr(), Bound::as_ptr);
    let mut result = std::ptr::null_mut();
    // SAFETY: both are live objects; the result is a new reference, or NULL with an exception set.
    let status = unsafe { ffi::PyIter_Send(coroutine.as_ptr(), value, &raw mut result) };
    // SAFETY: as above.
    let result = unsafe { Bound::from_owned_ptr_or_err(py, result) }?.unbind();
    Ok(match status {
        ffi::PySendResult::PYGEN_RETURN => (State::Over, Step::Return(result)),
        _ => (State::Coroutine(coroutine), Step::Yield(result)),
    })
}

/// Gives the type slots of its own: those made for a `#[pyclass]` return through an exception.
fn install_slots(call: &Bound<'_, Call>) {
    static DONE: PyOnceLock<()> = PyOnceLock::new();
    DONE.get_or_init(call.py(), || {
        let class = call.get_type().as_type_ptr();
        // SAFETY: the type is ours, alive and complete, and `__await__` has given it these slots; what
        // they are set to keeps their contracts.
        unsafe {
            if let Some(slots) = (*class).tp_as_async.as_mut() {
                slots.am_await = Some(ffi::PyObject_SelfIter);
                slots.am_send = Some(am_send);
            }
            ffi::PyType_Modified(class);
        }
    });
}

/// `am_send`: what `await` calls.
unsafe extern "C" fn am_send(
    call: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let stepped = std::panic::catch_unwind(|| {
        Python::attach(|py| {
            // SAFETY: the interpreter calls this with an instance of the type that has the slot, and a
            // value; both stay alive during the call.
            let (call, value) = unsafe {
                let call = Bound::from_borrowed_ptr(py, call).cast_into_unchecked::<Call>();
                (call, Bound::from_borrowed_ptr(py, value))
            };
            let (status, object) = match Call::step(&call, Some(&value)) {
                Ok(Step::Return(object)) => (ffi::PySendResult::PYGEN_RETURN, object.into_ptr()),
                Ok(Step::Yield(object)) => (ffi::PySendResult::PYGEN_NEXT, object.into_ptr()),
                Err(error) => {
                    error.restore(py);
                    (ffi::PySendResult::PYGEN_ERROR, std::ptr::null_mut())
                }
            };
            (status, object)
        })
    });
    let (status, object) = stepped.unwrap_or_else(|_| {
        Python::attach(|py| PyRuntimeError::new_err("panic in a call").restore(py));
        (ffi::PySendResult::PYGEN_ERROR, std::ptr::null_mut())
    });
    // SAFETY: the driver gives a place for the result.
    unsafe { *result = object };
    status
}

#[pymethods]
impl Call {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Self::send(slf, None)
    }

    #[pyo3(signature = (value, /))]
    fn send(slf: &Bound<'_, Self>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        match Self::step(slf, value)? {
            Step::Yield(object) => Ok(object),
            Step::Return(value) => Err(PyStopIteration::new_err((value,))),
        }
    }

    #[pyo3(signature = (error, value=None, traceback=None, /))]
    fn throw(
        slf: &Bound<'_, Self>,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let error = exception(error, value, traceback)?;
        let state = std::mem::replace(&mut *slf.get().state.open(py), State::Over);
        match state {
            State::Coroutine(coroutine) => {
                // Over, unless it yields again.
                let yielded = coroutine.call_method1(py, intern!(py, "throw"), (error,))?;
                *slf.get().state.open(py) = State::Coroutine(coroutine);
                Ok(yielded)
            }
            State::Native(mut operation, _) => {
                operation.abandon(py);
                Err(PyErr::from_value(error))
            }
            _ => Err(PyErr::from_value(error)),
        }
    }

    fn close(&self, py: Python<'_>) {
        self.cancel(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        match &*state {
            State::Native(operation, waiter) => {
                visit.call(&operation.loop_driver)?;
                visit.call(waiter)
            }
            State::Coroutine(coroutine) => visit.call(coroutine),
            _ => Ok(()),
        }
    }

    fn __clear__(&self, py: Python<'_>) {
        self.cancel(py);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        Python::attach(|py| self.cancel(py));
    }
}

/// An operation as `_native_aio.run_in_trio` drives it.
#[pyclass(frozen, module = "towline._native")]
pub struct TrioOp(GilCell<PendingOp>);

#[pymethods]
impl TrioOp {
    /// `(done, value)`; a value that is a coroutine to be awaited comes with `done` None.
    fn poll(&self, py: Python<'_>) -> PyResult<(Option<bool>, Py<PyAny>)> {
        Ok(match self.0.open(py).poll(py)? {
            None => (Some(false), py.None()),
            Some(Outcome::Done(value)) => (Some(true), value),
            Some(Outcome::Continue(coroutine)) => (None, coroutine),
        })
    }

    /// Calls `wake` when polling is worth while again.
    fn wait(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<()> {
        let operation = self.0.open(py);
        let waiter = Bound::new(py, Waiter::new(operation.loop_driver.clone_ref(py)))?;
        Waiter::set_callback(&waiter, wake);
        operation.wait(py, waiter.unbind())
    }

    fn cancel(&self, py: Python<'_>) {
        self.0.open(py).abandon(py);
    }
}

impl Drop for TrioOp {
    fn drop(&mut self) {
        Python::attach(|py| self.0.open(py).abandon(py));
    }
}
