//! What `send()` and `receive()` return: awaitables that touch the loop only when there is something to
//! wait for. Both are structurally coroutines, so that `asyncio.create_task(receive())` works too.
use pyo3::exceptions::PyStopIteration;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use super::exchange::Exchange;
use crate::coroutine::exception;
use crate::gil::GilCell;

/// Awaiting it gives None at once. One object serves every `send()` that need not wait.
#[pyclass(frozen, module = "towline._native", name = "Sent")]
pub struct Sent;

impl Sent {
    /// The one object, with slots of its own: those that are made for a `#[pyclass]` are entered and left
    /// through guards, twice per `await`: 400 instructions for an answer that is always the same.
    pub fn make(py: Python<'_>) -> PyResult<Py<PyAny>> {
        let sent = Py::new(py, Self)?;
        let class = py.get_type::<Self>().as_type_ptr();
        // SAFETY: the type is ours, alive and complete, and `__await__` has given it these slots; what
        // they are set to keeps their contracts, and Python code runs only when we return.
        unsafe {
            (*class).tp_iternext = Some(nothing_more);
            if let Some(slots) = (*class).tp_as_async.as_mut() {
                slots.am_await = Some(ffi::PyObject_SelfIter);
                slots.am_send = Some(sent_at_once);
            }
            ffi::PyType_Modified(class);
        }
        Ok(sent.into_any())
    }
}

/// `tp_iternext`: the end, which needs no exception.
unsafe extern "C" fn nothing_more(_: *mut ffi::PyObject) -> *mut ffi::PyObject {
    std::ptr::null_mut()
}

/// `am_send`: over, with the result None.
unsafe extern "C" fn sent_at_once(
    _: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the caller gives a place for a new reference and holds the GIL.
    unsafe { *result = ffi::Py_NewRef(ffi::Py_None()) };
    ffi::PySendResult::PYGEN_RETURN
}

#[pymethods]
impl Sent {
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

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A message for the application.
    Receive,
    /// Room below the high-water mark.
    Room,
    /// The end of a file that is being sent.
    File,
}

/// Tries, and waits on a future of the loop as long as it must.
#[pyclass(frozen, module = "towline._native", name = "Waiting")]
pub struct Waiting {
    exchange: Py<Exchange>,
    purpose: Purpose,
    /// The future that was waited on last.
    future: GilCell<Option<Py<PyAny>>>,
}

impl Waiting {
    pub fn new(exchange: Py<Exchange>, purpose: Purpose) -> Self {
        Self {
            exchange,
            purpose,
            future: GilCell::new(None),
        }
    }

    /// `Ok(Err(value))`: it is over.
    fn advance(&self, py: Python<'_>) -> PyResult<Result<Py<PyAny>, Py<PyAny>>> {
        let waited = self.future.open(py).take();
        if let Some(future) = waited {
            // Raises CancelledError when the wait was cancelled.
            future.bind(py).call_method0(intern!(py, "result"))?;
        }
        let exchange = self.exchange.get();
        let ready = match self.purpose {
            Purpose::Receive => Exchange::poll_receive(self.exchange.bind(py))?,
            Purpose::Room => exchange.poll_room(py),
            Purpose::File => exchange.poll_file(py),
        };
        if let Some(value) = ready {
            return Ok(Err(value));
        }
        let future = exchange.create_future(py)?;
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        exchange.add_waiter(py, future.clone().unbind(), self.purpose);
        *self.future.open(py) = Some(future.clone().unbind());
        Ok(Ok(future.unbind()))
    }
}

#[pymethods]
impl Waiting {
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
        let waited = self.future.open(py).take();
        drop(waited);
        Err(PyErr::from_value(exception(error, value, traceback)?))
    }

    fn close(&self, py: Python<'_>) {
        let waited = self.future.open(py).take();
        drop(waited);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.exchange)?;
        match self.future.peek() {
            Some(future) => visit.call(&*future),
            None => Ok(()),
        }
    }
}
