//! The interface of an operation of the asynchronous client: polled, waited for, cancelled.
//!
//! The awaitable above decides how a task waits (asyncio or trio); an operation defines what it waits for.
use pyo3::prelude::*;

use super::calls::WaitFor;
use super::loop_driver::LoopDriver;

/// An operation in progress in a [`LoopDriver`]. It is dropped once `poll` has returned a value or an error.
pub trait PendingOp: Send + Sync {
    /// Returns `None` while the operation has to wait.
    fn poll(&mut self, py: Python<'_>, loop_driver: &Py<LoopDriver>)
    -> PyResult<Option<OpOutcome>>;

    /// Asked after `poll` has returned `None`.
    fn waits_for(&self) -> WaitFor;

    /// The name of the operation for the warning that it was never awaited.
    fn name(&self) -> String {
        "AsyncClient.request".to_owned()
    }

    /// Cancels a request. A cancelled read leaves its bytes for the next one.
    fn cancel(&mut self, _: Python<'_>, _: &LoopDriver) {}
}

/// The result of an operation.
pub enum OpOutcome {
    Done(Py<PyAny>),
    /// A coroutine that computes the result.
    Await(Py<PyAny>),
}
