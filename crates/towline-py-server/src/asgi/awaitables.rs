//! The awaitables that `send()` and `receive()` return. They use the loop only when there is something to wait
//! for. Both are structurally coroutines, so that `asyncio.create_task(receive())` works, too.
use pyo3::exceptions::PyStopIteration;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use towline_py_common::task_future::TaskFuture;

use super::exchange_state::WaitFor;
use super::nested;
use super::receive;
use super::state::Exchange;
use towline_py_common::cell::StateCell;
use towline_py_common::coroutine::{exception, guarded};

/// An awaitable that returns None at once. One object serves every `send()` that need not wait.
#[pyclass(frozen, module = "towline._native", name = "ReadyAwaitable")]
pub struct ReadyAwaitable;

impl ReadyAwaitable {
    /// Returns the object. The first call creates it and replaces the slots of its type: the slots of a `#[pyclass]` pass through guards,
    /// twice per `await`, which costs 400 instructions for a result that is always the same.
    pub fn get(py: Python<'_>) -> PyResult<Py<PyAny>> {
        static READY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let ready = READY.get_or_try_init(py, || {
            let ready = Py::new(py, Self)?;
            let class = py.get_type::<Self>().as_type_ptr();
            // SAFETY: the type is defined here, alive and complete, and `__next__` has given it this slot. The new function
            // keeps the contract of the slot, and no other thread has an object of the type yet.
            unsafe { (*class).tp_iternext = Some(ready_next) };
            set_send(py.get_type::<Self>(), ready_send);
            set_send(py.get_type::<PendingAwaitable>(), pending_send);
            PyResult::Ok(ready.into_any())
        })?;
        Ok(ready.clone_ref(py))
    }
}

/// Gives an awaitable that is its own iterator `am_send`: `await` gets the result without a `StopIteration`.
fn set_send(class: Bound<'_, PyType>, send: ffi::sendfunc) {
    let class = class.as_type_ptr();
    // SAFETY: the type is defined here, alive and complete, and `__await__` has given it these slots. The new functions
    // keep the contracts of the slots, and no Python code runs in between.
    unsafe {
        if let Some(slots) = (*class).tp_as_async.as_mut() {
            slots.am_await = Some(ffi::PyObject_SelfIter);
            slots.am_send = Some(send);
        }
        ffi::PyType_Modified(class);
    }
}

/// `tp_iternext`: the end, without an exception.
unsafe extern "C" fn ready_next(_: *mut ffi::PyObject) -> *mut ffi::PyObject {
    std::ptr::null_mut()
}

/// `am_send`: returns `None`.
unsafe extern "C" fn ready_send(
    _: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the caller is attached and passes a valid pointer for a new reference.
    unsafe { *result = ffi::Py_NewRef(ffi::Py_None()) };
    ffi::PySendResult::PYGEN_RETURN
}

/// `am_send`: returns the value, or yields the future to wait on.
unsafe extern "C" fn pending_send(
    awaitable: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut outcome = ffi::PySendResult::PYGEN_RETURN;
    let object = guarded(|py| {
        // SAFETY: the interpreter passes an object of the type that has this slot.
        let awaitable =
            unsafe { Borrowed::from_ptr(py, awaitable).cast_unchecked::<PendingAwaitable>() };
        let advanced = awaitable.get().advance(py)?;
        if advanced.is_ok() {
            outcome = ffi::PySendResult::PYGEN_NEXT;
        }
        Ok(advanced.unwrap_or_else(|value| value))
    });
    // SAFETY: the caller passes a valid pointer for a new reference, or for null with an exception.
    unsafe { *result = object };
    if object.is_null() {
        outcome = ffi::PySendResult::PYGEN_ERROR;
    }
    outcome
}

#[pymethods]
impl ReadyAwaitable {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<Py<PyAny>> {
        None
    }

    fn send(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let _ = value;
        Err(PyStopIteration::new_err(()))
    }

    #[pyo3(signature = (error, value=None, traceback=None, /))]
    fn throw(
        &self,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Err(PyErr::from_value(exception(error, value, traceback)?))
    }

    fn close(&self) {}
}

/// An awaitable that polls its condition and waits on a future of the loop while it does not hold.
#[pyclass(frozen, module = "towline._native", name = "PendingAwaitable")]
pub struct PendingAwaitable {
    exchange: Py<Exchange>,
    wait_for: WaitFor,
    /// The future of the current wait.
    future: StateCell<Option<Py<TaskFuture>>>,
}

impl PendingAwaitable {
    pub fn new(exchange: Py<Exchange>, wait_for: WaitFor) -> Self {
        Self {
            exchange,
            wait_for,
            future: StateCell::new(None),
        }
    }

    /// `Ok(Ok(future))`: waits on `future`; `Ok(Err(value))`: returns `value`.
    fn advance(&self, py: Python<'_>) -> PyResult<Result<Py<PyAny>, Py<PyAny>>> {
        let exchange = self.exchange.get();
        exchange.server.get().thread.check()?;
        let previous = self.future.open(py).take();
        if let Some(future) = previous {
            // Raises CancelledError when the wait was cancelled.
            future.get().result(py)?;
        }
        if let Some(value) = receive::poll(self.exchange.bind(py), self.wait_for)? {
            return Ok(Err(value));
        }
        nested::before_waiting(exchange.server.get(), py);
        let future = exchange.create_future(py)?;
        exchange.add_waiter(py, future.clone_ref(py), self.wait_for);
        *self.future.open(py) = Some(future.clone_ref(py));
        Ok(Ok(future.into_any()))
    }
}

#[pymethods]
impl PendingAwaitable {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.advance(py)? {
            Ok(future) => Ok(Some(future)),
            Err(value) if value.is_none(py) => Ok(None),
            Err(value) => Err(PyStopIteration::new_err((value,))),
        }
    }

    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        self.advance(py)?
            .map_err(|value| PyStopIteration::new_err((value,)))
    }

    #[pyo3(signature = (error, value=None, traceback=None, /))]
    fn throw(
        &self,
        py: Python<'_>,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let previous = self.future.open(py).take();
        drop(previous);
        Err(PyErr::from_value(exception(error, value, traceback)?))
    }

    fn close(&self, py: Python<'_>) {
        let previous = self.future.open(py).take();
        drop(previous);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.exchange)?;
        match self.future.peek() {
            Some(future) => visit.call(&*future),
            None => Ok(()),
        }
    }
}
