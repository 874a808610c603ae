//! The idle task of a server.
use pyo3::intern;
use pyo3::prelude::*;

use super::super::state::{IdleTask, TaskCoroutine};
use super::asyncio::{Asyncio, TaskSnapshot};

impl IdleTask {
    /// Creates an idle task. Its first step, already scheduled in the loop, parks it, unless a request comes first.
    pub fn create(py: Python<'_>, asyncio: &Asyncio) -> PyResult<Self> {
        let coroutine = Py::new(py, TaskCoroutine::new(asyncio.event_loop(py)))?;
        let task = asyncio.create_plain_task(py, &coroutine)?;
        // No warning if it is still parked when the loop is closed.
        task.setattr(intern!(py, "_log_destroy_pending"), false)?;
        let get_name = task.getattr(intern!(py, "get_name"))?;
        let name = get_name.call0()?.unbind();
        Ok(Self {
            task: task.unbind(),
            coroutine,
            get_name: get_name.unbind(),
            name,
        })
    }

    /// True if the request has left the task unchanged: there is no new reference or weak reference to it, no done
    /// callback, and it has been neither cancelled nor renamed.
    pub fn is_unchanged(
        &self,
        py: Python<'_>,
        asyncio: &Asyncio,
        before: TaskSnapshot,
    ) -> PyResult<bool> {
        let now = asyncio.snapshot(py, &self.task)?;
        if now != before || self.is_cancelled(py)? {
            return Ok(false);
        }
        let task = self.task.bind(py);
        let renamed = !self.get_name.bind(py).call0()?.is(&self.name);
        Ok(!renamed && task.getattr(intern!(py, "_callbacks"))?.is_none())
    }

    /// False if it has ended or has been cancelled (as `asyncio.run` does at its end).
    pub fn is_usable(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.coroutine.get().is_idle(py) && !self.is_cancelled(py)?)
    }

    fn is_cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        match self.coroutine.get().is_parked_future_done(py)? {
            // Cancelling a parked task cancels its future ...
            Some(done) => Ok(done),
            // ... and a task that has not run its first step remembers it.
            None => self
                .task
                .bind(py)
                .getattr(intern!(py, "_must_cancel"))?
                .is_truthy(),
        }
    }

    /// Restores the warning about a pending task that is destroyed: from now on the task runs a request.
    pub fn mark_serving(&self, py: Python<'_>) -> PyResult<()> {
        self.task
            .bind(py)
            .setattr(intern!(py, "_log_destroy_pending"), true)
    }
}
