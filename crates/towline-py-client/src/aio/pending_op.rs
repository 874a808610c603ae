//! The interface of an operation of the asynchronous client: polled, waited for, cancelled.
//!
//! The awaitable above decides how a task waits (asyncio or trio); an operation defines what it waits for.
use pyo3::prelude::*;

use super::loop_driver::LoopDriver;
use super::task_future::TaskFuture;

/// An operation in progress in a [`LoopDriver`]. It is dropped once `poll` has returned a value or an error.
pub trait PendingOp: Send + Sync {
    /// Returns `None` while the operation has to wait; `wait` is called next.
    fn poll(&mut self, py: Python<'_>, loop_driver: &Py<LoopDriver>)
    -> PyResult<Option<OpOutcome>>;

    /// Registers `waiter` to be woken when polling can make progress.
    fn wait(
        &self,
        py: Python<'_>,
        loop_driver: &LoopDriver,
        waiter: Py<TaskFuture>,
    ) -> PyResult<()>;

    /// The name of the operation for the warning that it was never awaited.
    fn name(&self) -> String {
        "AsyncClient.request".to_owned()
    }

    /// Cancels a request. A cancelled read leaves its bytes for the next one.
    fn cancel(&mut self, py: Python<'_>, loop_driver: &LoopDriver);
}

/// The result of an operation.
pub enum OpOutcome {
    Done(Py<PyAny>),
    /// A coroutine that computes the result.
    Await(Py<PyAny>),
}
