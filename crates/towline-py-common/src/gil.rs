//! Mutable state of Python objects, accessed only with the GIL held.
use std::cell::{RefCell, RefMut};

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Fails on an interpreter that runs without the GIL.
///
/// A free-threaded interpreter turns it on, with a warning, for a module that declares `gil_used`; `PYTHON_GIL=0` and
/// `-X gil=0` forbid that.
pub fn require(py: Python<'_>) -> PyResult<()> {
    let sys = py.import("sys")?;
    let Some(is_enabled) = sys.getattr_opt("_is_gil_enabled")? else {
        return Ok(()); // CPython 3.12 and older
    };
    if is_enabled.call0()?.is_truthy()? {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "towline needs the GIL, which PYTHON_GIL=0 or -X gil=0 keeps off: the state of its objects is guarded by it. \
         Without that setting a free-threaded interpreter turns the GIL on when towline is imported",
    ))
}

/// A `RefCell` that can be opened only with proof that the GIL is held.
///
/// The module declares `gil_used`, so that one thread at a time runs in it on a free-threaded build, too. A cell must
/// not stay open while Python code can run; a finaliser that runs all the same gets `None` from `try_open`.
#[derive(Debug, Default)]
pub struct GilCell<T>(RefCell<T>);

// SAFETY: every access needs a `Python` token, so it happens on the one thread that holds the GIL; the
// `RefCell` rejects the second of two overlapping accesses.
unsafe impl<T> Sync for GilCell<T> {}
// SAFETY: as above; a value is dropped with its Python object, under the GIL.
unsafe impl<T> Send for GilCell<T> {}

impl<T> GilCell<T> {
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Panics (a `PanicException` in Python) when it is open already.
    pub fn open<'a>(&'a self, _py: Python<'_>) -> RefMut<'a, T> {
        self.0.borrow_mut()
    }

    /// `None` when it is open already.
    pub fn try_open<'a>(&'a self, _py: Python<'_>) -> Option<RefMut<'a, T>> {
        self.0.try_borrow_mut().ok()
    }

    /// For `tp_traverse`, which runs under the GIL but gets no token. `None`: the cell is open, and the collector must
    /// not visit its references.
    pub fn peek(&self) -> Option<std::cell::Ref<'_, T>> {
        self.0.try_borrow().ok()
    }
}
