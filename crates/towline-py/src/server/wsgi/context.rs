//! Each request runs in a `contextvars.Context` of its own: what one request sets, the next does not see.
use pyo3::ffi;
use pyo3::prelude::*;

/// Entered on creation, left when dropped.
pub struct InFreshContext<'py> {
    context: Bound<'py, PyAny>,
}

impl<'py> InFreshContext<'py> {
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

impl Drop for InFreshContext<'_> {
    fn drop(&mut self) {
        // SAFETY: attached, as the Bound inside proves, and this very context was entered by this thread.
        // It is not the current one only if the application left another entered: then that stays.
        unsafe {
            if ffi::PyContext_Exit(self.context.as_ptr()) != 0 {
                ffi::PyErr_Clear();
            }
        }
    }
}
