//! `Call`: the awaitable that asynchronous methods return. The operation has started when it is returned.
//!
//! It has the methods of a coroutine, so that `create_task`, `gather`, `wait_for` and `asyncio.run` accept it.
//! Like a coroutine it warns when it is dropped without having been awaited.
use std::ffi::CString;

use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};
use towline_py_common::cell::StateCell;
use towline_py_common::coroutine::exception;
use towline_py_common::task_future::TaskFuture;

#[pyclass(frozen, module = "towline._native", generic)]
pub struct Call {
    state: StateCell<State>,
}

/// ```text
/// Native ── needs Python ─► Coroutine ─► Done
///   └──────────────────────────────────► Done
/// Deferred, Created ──────► Coroutine
/// Failed, Ready ───────────────────────► Done
/// ```
enum State {
    Native(NativeCall),
    /// The coroutine is created by the first step: a call in trio or without a running loop, or a streamed upload.
    Deferred {
        create: Box<CreateCoroutine>,
        /// `None`: it need not be awaited.
        name: Option<String>,
    },
    /// A coroutine that has not run yet.
    Created {
        coroutine: Py<PyAny>,
        name: String,
    },
    Coroutine {
        coroutine: Py<PyAny>,
        /// The object that the last step yielded: mostly a future.
        yielded: Py<PyAny>,
    },
    Failed(PyErr),
    Ready(Py<PyAny>),
    Done,
}

struct NativeCall {
    loop_driver: Py<LoopDriver>,
    op: Box<dyn PendingOp>,
    /// The waiter that the last step yielded.
    waiter: Option<Py<TaskFuture>>,
}

impl State {
    /// The name of an operation that no task has awaited.
    fn never_awaited(&self) -> Option<String> {
        match self {
            Self::Native(call) if call.waiter.is_none() => Some(call.op.name()),
            Self::Deferred { name, .. } => name.clone(),
            Self::Created { name, .. } => Some(name.clone()),
            Self::Failed(_) => Some("AsyncClient.request".to_owned()),
            _ => None,
        }
    }
}

type CreateCoroutine = dyn Fn(Python<'_>) -> PyResult<Py<PyAny>> + Send + Sync;

/// The result of one step.
enum Step {
    Yield(Py<PyAny>),
    Return(Py<PyAny>),
}

impl Call {
    fn make(py: Python<'_>, state: State) -> PyResult<Py<Self>> {
        let call = Bound::new(
            py,
            Self {
                state: StateCell::new(state),
            },
        )?;
        install_slots(&call);
        Ok(call.unbind())
    }

    /// Returns an awaitable for `op`, which runs in `loop_driver`.
    pub fn native(
        py: Python<'_>,
        loop_driver: Py<LoopDriver>,
        op: impl PendingOp + 'static,
    ) -> PyResult<Py<Self>> {
        let op: Box<dyn PendingOp> = Box::new(op);
        if !loop_driver.get().event_loop.is_trio() {
            let call = NativeCall {
                loop_driver,
                op,
                waiter: None,
            };
            return Self::make(py, State::Native(call));
        }
        let name = Some(op.name());
        let trio_op = TrioOp {
            loop_driver,
            op: StateCell::new(Some(op)),
        };
        let trio_op = Py::new(py, trio_op)?;
        Self::deferred(py, name, move |py| {
            let helper = helper(py, intern!(py, "run_in_trio"))?;
            Ok(helper.call1((&trio_op,))?.unbind())
        })
    }

    /// Returns an awaitable that raises `error`.
    pub fn failed(py: Python<'_>, error: PyErr) -> PyResult<Py<Self>> {
        Self::make(py, State::Failed(error))
    }

    /// Returns an awaitable of `value` that never suspends.
    pub fn ready(py: Python<'_>, value: Py<PyAny>) -> PyResult<Py<Self>> {
        Self::make(py, State::Ready(value))
    }

    /// Returns an awaitable for a Python coroutine.
    pub fn coroutine(py: Python<'_>, name: String, coroutine: Py<PyAny>) -> PyResult<Py<Self>> {
        Self::make(py, State::Created { coroutine, name })
    }

    /// Returns an awaitable whose first step calls `create` for a coroutine.
    pub fn deferred(
        py: Python<'_>,
        name: Option<String>,
        create: impl Fn(Python<'_>) -> PyResult<Py<PyAny>> + Send + Sync + 'static,
    ) -> PyResult<Py<Self>> {
        let create = Box::new(create);
        Self::make(py, State::Deferred { create, name })
    }

    fn step(slf: &Bound<'_, Self>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Step> {
        let py = slf.py();
        let this = slf.get();
        if this.is_waiting(py)? {
            return Err(PyRuntimeError::new_err(
                "another task is awaiting this call",
            ));
        }
        // Taken out, so that Python code that runs meanwhile finds the call done.
        let state = std::mem::replace(&mut *this.state.open(py), State::Done);
        let (next, step) = match state {
            State::Native(call) => native_step(py, call)?,
            State::Deferred { create, .. } => coroutine_step(py, create(py)?, None)?,
            State::Created { coroutine, .. } => coroutine_step(py, coroutine, None)?,
            State::Coroutine { coroutine, .. } => coroutine_step(py, coroutine, value)?,
            State::Failed(error) => return Err(error),
            State::Ready(value) => (State::Done, Step::Return(value)),
            State::Done => {
                return Err(PyRuntimeError::new_err("cannot reuse already awaited call"));
            }
        };
        *this.state.open(py) = next;
        Ok(step)
    }

    /// Whether a task waits for a future that is not done yet. A second task that stepped a coroutine would end it, and
    /// the first would wait for ever.
    fn is_waiting(&self, py: Python<'_>) -> PyResult<bool> {
        let yielded = match &*self.state.open(py) {
            State::Native(call) => {
                call.loop_driver.get().thread.check()?;
                let waiter = call.waiter.as_ref();
                return Ok(waiter.is_some_and(|waiter| !waiter.get().is_woken(py)));
            }
            State::Coroutine { yielded, .. } => yielded.clone_ref(py),
            _ => return Ok(false),
        };
        // Bare yields, and what trio's tasks yield, have no `done`.
        match yielded.bind(py).getattr_opt(intern!(py, "done"))? {
            Some(done) => Ok(!done.call0()?.is_truthy()?),
            None => Ok(false),
        }
    }

    /// Cancels what has not been awaited to its end.
    fn cancel(&self, py: Python<'_>) {
        let state = self
            .state
            .try_open(py)
            .map(|mut state| std::mem::replace(&mut *state, State::Done));
        match state {
            Some(State::Native(mut call)) => {
                call.op.cancel(py, call.loop_driver.get());
                call.loop_driver.get().wake();
            }
            Some(State::Coroutine { coroutine, .. } | State::Created { coroutine, .. }) => {
                if let Err(error) = coroutine.call_method0(py, intern!(py, "close")) {
                    error.write_unraisable(py, Some(coroutine.bind(py)));
                }
            }
            _ => {}
        }
    }
}

/// A function of `towline._native_aio`.
pub fn helper<'py>(
    py: Python<'py>,
    name: &Bound<'py, pyo3::types::PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        PyResult::Ok(py.import("towline._native_aio")?.unbind())
    })?;
    module.bind(py).getattr(name)
}

fn native_step(py: Python<'_>, mut call: NativeCall) -> PyResult<(State, Step)> {
    match call.op.poll(py, &call.loop_driver)? {
        Some(OpOutcome::Done(value)) => Ok((State::Done, Step::Return(value))),
        Some(OpOutcome::Await(coroutine)) => coroutine_step(py, coroutine, None),
        None => {
            let loop_driver = call.loop_driver.get();
            let waiter = Py::new(py, TaskFuture::new(loop_driver.event_loop.clone_ref(py)))?;
            loop_driver.add_waiter(py, call.op.waits_for(), waiter.clone_ref(py))?;
            call.waiter = Some(waiter.clone_ref(py));
            Ok((State::Native(call), Step::Yield(waiter.into_any())))
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
    if status == ffi::PySendResult::PYGEN_RETURN {
        return Ok((State::Done, Step::Return(result)));
    }
    let yielded = result.clone_ref(py);
    Ok((State::Coroutine { coroutine, yielded }, Step::Yield(result)))
}

/// Sets `am_await` and `am_send`: the slots that `PyO3` generates return the result through an exception.
fn install_slots(call: &Bound<'_, Call>) {
    static DONE: PyOnceLock<()> = PyOnceLock::new();
    DONE.get_or_init(call.py(), || {
        let class = call.get_type().as_type_ptr();
        // SAFETY: the type is `Call`, alive and complete, and has these slots because of `__await__`; the functions
        // set here keep their contracts.
        unsafe {
            if let Some(slots) = (*class).tp_as_async.as_mut() {
                slots.am_await = Some(ffi::PyObject_SelfIter);
                slots.am_send = Some(am_send);
            }
            ffi::PyType_Modified(class);
        }
    });
}

/// `am_send`: called by `await`.
unsafe extern "C" fn am_send(
    call: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let stepped = std::panic::catch_unwind(|| {
        Python::attach(|py| {
            // SAFETY: the interpreter passes an instance of the type that has the slot, and a value; both stay
            // alive during the call.
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
    // SAFETY: `result` points to a place for the result.
    unsafe { *result = object };
    status
}

#[pymethods]
impl Call {
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        Err(PyAttributeError::new_err(format!(
            "the call has not been awaited; write `response = await ...` and response.{name}"
        )))
    }

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
        let state = std::mem::replace(&mut *slf.get().state.open(py), State::Done);
        match state {
            State::Coroutine { coroutine, .. } | State::Created { coroutine, .. } => {
                // The call is done, unless the coroutine yields again.
                let yielded = coroutine.call_method1(py, intern!(py, "throw"), (error,))?;
                *slf.get().state.open(py) = State::Coroutine {
                    coroutine,
                    yielded: yielded.clone_ref(py),
                };
                Ok(yielded)
            }
            State::Native(mut call) => {
                call.op.cancel(py, call.loop_driver.get());
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
            State::Native(call) => {
                visit.call(&call.loop_driver)?;
                visit.call(&call.waiter)
            }
            State::Coroutine { coroutine, yielded } => {
                visit.call(coroutine)?;
                visit.call(yielded)
            }
            State::Created { coroutine, .. } => visit.call(coroutine),
            _ => Ok(()),
        }
    }

    fn __clear__(&self, py: Python<'_>) {
        self.cancel(py);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        Python::attach(|py| {
            let name = self
                .state
                .try_open(py)
                .and_then(|state| state.never_awaited());
            if let Some(name) = name {
                warn_never_awaited(py, &name);
            }
            self.cancel(py);
        });
    }
}

fn warn_never_awaited(py: Python<'_>, name: &str) {
    let Ok(text) = CString::new(format!("coroutine '{name}' was never awaited")) else {
        return;
    };
    // An object may be dropped while an exception is raised.
    let raised = PyErr::take(py);
    let category = py.get_type::<PyRuntimeWarning>();
    if let Err(error) = PyErr::warn(py, &category, &text, 1) {
        error.write_unraisable(py, None);
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}

/// An operation as `_native_aio.run_in_trio` drives it.
#[pyclass(frozen, module = "towline._native")]
pub struct TrioOp {
    loop_driver: Py<LoopDriver>,
    /// `None` once it has ended or been cancelled.
    op: StateCell<Option<Box<dyn PendingOp>>>,
}

#[pymethods]
impl TrioOp {
    /// Returns `(False, None)`, `(True, value)`, or `(None, coroutine)` if a coroutine is to be awaited for the value.
    fn poll(&self, py: Python<'_>) -> PyResult<(Option<bool>, Py<PyAny>)> {
        let Some(mut op) = self.op.open(py).take() else {
            return Err(PyRuntimeError::new_err("cannot reuse already awaited call"));
        };
        Ok(match op.poll(py, &self.loop_driver)? {
            None => {
                *self.op.open(py) = Some(op);
                (Some(false), py.None())
            }
            Some(OpOutcome::Done(value)) => (Some(true), value),
            Some(OpOutcome::Await(coroutine)) => (None, coroutine),
        })
    }

    /// Has `wake` called when polling can make progress.
    fn wait(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<()> {
        let loop_driver = self.loop_driver.get();
        let waiter = Bound::new(py, TaskFuture::new(loop_driver.event_loop.clone_ref(py)))?;
        TaskFuture::set_callback(&waiter, wake);
        match &*self.op.open(py) {
            Some(op) => loop_driver.add_waiter(py, op.waits_for(), waiter.unbind()),
            None => Ok(()),
        }
    }

    fn cancel(&self, py: Python<'_>) {
        let op = self.op.open(py).take();
        if let Some(mut op) = op {
            op.cancel(py, self.loop_driver.get());
        }
    }
}

impl Drop for TrioOp {
    fn drop(&mut self) {
        Python::attach(|py| self.cancel(py));
    }
}
