//! `receive` and `send` as plain C functions of no and of one argument.
//!
//! A method of a `#[pyclass]` uses the general calling convention (a vector, possibly with keywords), checks the
//! types of its arguments and unpacks them: 180 instructions per call, and a response makes two calls.
use std::cell::UnsafeCell;
use std::ffi::CStr;

use pyo3::ffi;
use pyo3::prelude::*;

use super::awaitables::PendingAwaitable;
use super::exchange_state::WaitFor;
use super::state::Exchange;
use towline_py_common::coroutine::guarded;

/// The interpreter keeps a pointer to the definition while the function exists.
struct FunctionDef(UnsafeCell<ffi::PyMethodDef>);

// SAFETY: it is never written to, not even by the interpreter.
unsafe impl Sync for FunctionDef {}

impl FunctionDef {
    const fn new(name: &'static CStr, function: ffi::PyCFunction, flags: i32) -> Self {
        Self(UnsafeCell::new(ffi::PyMethodDef {
            ml_name: name.as_ptr(),
            ml_meth: ffi::PyMethodDefPointer {
                PyCFunction: function,
            },
            ml_flags: flags,
            ml_doc: std::ptr::null(),
        }))
    }

    /// The function, bound to an exchange, which is always its first argument.
    fn bind(&'static self, exchange: &Bound<'_, Exchange>) -> PyResult<Py<PyAny>> {
        // SAFETY: the definition is static and names a function of the convention that its flags say;
        // the result is a new reference or null with an exception.
        unsafe {
            let function =
                ffi::PyCFunction_NewEx(self.0.get(), exchange.as_ptr(), std::ptr::null_mut());
            Bound::from_owned_ptr_or_err(exchange.py(), function).map(Bound::unbind)
        }
    }
}

static RECEIVE: FunctionDef = FunctionDef::new(c"receive", receive_function, ffi::METH_NOARGS);
static SEND: FunctionDef = FunctionDef::new(c"send", send_function, ffi::METH_O);

/// The next message about the request; waits for one. The body is read from the socket only now.
pub fn receive(exchange: &Bound<'_, Exchange>) -> PyResult<Py<PyAny>> {
    RECEIVE.bind(exchange)
}

/// Sends one message of the response, which is queued when this returns. Awaiting the result waits until there
/// is room for more.
pub fn send(exchange: &Bound<'_, Exchange>) -> PyResult<Py<PyAny>> {
    SEND.bind(exchange)
}

unsafe extern "C" fn receive_function(
    exchange: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guarded(|py| {
        // SAFETY: the interpreter passes a borrowed reference to the exchange given to `FunctionDef::bind`.
        let exchange = unsafe { Borrowed::from_ptr(py, exchange).cast_unchecked::<Exchange>() };
        let awaitable = PendingAwaitable::new(exchange.to_owned().unbind(), WaitFor::Receive);
        Ok(Py::new(py, awaitable)?.into_any())
    })
}

unsafe extern "C" fn send_function(
    exchange: *mut ffi::PyObject,
    message: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guarded(|py| {
        // SAFETY: as above; METH_O gives one argument, never null.
        let (exchange, message) = unsafe {
            (
                Borrowed::from_ptr(py, exchange).cast_unchecked::<Exchange>(),
                Borrowed::from_ptr(py, message),
            )
        };
        super::send::send(&exchange, &message)
    })
}
