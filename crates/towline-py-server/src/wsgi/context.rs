//! A `contextvars.Context` for each request: a variable set in one request is not visible in the next.
use pyo3::ffi;
use pyo3::prelude::*;

/// Entered on creation, left when dropped.
pub struct FreshContext<'py> {
    context: Bound<'py, PyAny>,
}

impl<'py> FreshContext<'py> {
    pub fn enter(py: Python<'py>) -> PyResult<Self> {
        // SAFETY: attached, as `py` proves. A copy is a new reference to a Context, or null with an
        // exception set; entering takes a Context that is not entered yet, which a new one is not.
        unsafe {
            let context = Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent())?;
            if ffi::PyContext_Enter(context.as_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(Self { context })
        }
    }
}

impl Drop for FreshContext<'_> {
    fn drop(&mut self) {
        // SAFETY: attached, as the Bound inside proves, and this thread entered this context. Exiting fails if the
        // application left another context entered, which then stays the current one.
        unsafe {
            if ffi::PyContext_Exit(self.context.as_ptr()) != 0 {
                ffi::PyErr_Clear();
            }
        }
    }
}
