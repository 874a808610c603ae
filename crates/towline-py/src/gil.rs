//! State of Python-visible objects: shared by reference, changed only under the GIL.
use std::cell::{RefCell, RefMut};

use pyo3::prelude::*;

/// A cell that can be opened only with proof that the GIL is held.
///
/// The module declares `gil_used`, so that one thread at a time runs in it also on a free-threaded
/// build. A cell must not stay open while Python code can run; if a finaliser gets in between all the
/// same, `try_open` tells it so and nothing is aliased.
#[derive(Debug, Default)]
pub struct GilCell<T>(RefCell<T>);

// SAFETY: every access takes a `Python` token, hence happens on the one thread that holds the GIL; the
// `RefCell` inside refuses the second of two overlapping accesses.
unsafe impl<T> Sync for GilCell<T> {}
// SAFETY: as above; a value is dropped where its Python object is, that is under the GIL.
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

    /// For `tp_traverse`, which runs under the GIL but gets no token. `None`: open, so it is in use and
    /// the collector has to leave its references alone.
    pub fn peek(&self) -> Option<std::cell::Ref<'_, T>> {
        self.0.try_borrow().ok()
    }
}
