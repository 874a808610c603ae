//! The operation behind `client.get()` and its like: waits for a whole response.
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use towline_io::client::CallId;

use super::super::finish::{FinishOutcome, ResponseFinish};
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};
use super::task_future::TaskFuture;

pub struct BufferedOp {
    id: CallId,
    finish: Option<ResponseFinish>,
}

impl BufferedOp {
    pub fn new(id: CallId, finish: ResponseFinish) -> Self {
        Self {
            id,
            finish: Some(finish),
        }
    }
}

impl PendingOp for BufferedOp {
    fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<OpOutcome>> {
        let taken = loop_driver.get().calls(py)?.take_buffered(self.id);
        let Some(response) = taken else {
            return Ok(None);
        };
        let Some(finish) = self.finish.take() else {
            return Err(PyRuntimeError::new_err(
                "this call has been awaited already",
            ));
        };
        let response = response.map_err(|failure| failure.to_error(py))?;
        Ok(Some(match finish.finish(py, response)? {
            FinishOutcome::Response(response) => OpOutcome::Done(response),
            FinishOutcome::FromPython(coroutine) => OpOutcome::Await(coroutine),
        }))
    }

    fn wait(
        &self,
        py: Python<'_>,
        loop_driver: &LoopDriver,
        waiter: Py<TaskFuture>,
    ) -> PyResult<()> {
        loop_driver.set_read_waiter(py, self.id, waiter)
    }

    fn name(&self, py: Python<'_>) -> String {
        let method = self.finish.as_ref().map(|finish| finish.method.bind(py));
        method_name(method)
    }

    fn cancel(&mut self, py: Python<'_>, loop_driver: &LoopDriver) {
        loop_driver.cancel(py, self.id);
    }
}

/// The method of `AsyncClient` that sends requests of this HTTP method.
pub fn method_name(method: Option<&Bound<'_, PyString>>) -> String {
    const VERBS: [&str; 7] = ["get", "head", "options", "delete", "post", "put", "patch"];
    let method = method.map(|method| method.to_string_lossy().to_ascii_lowercase());
    let own = VERBS
        .into_iter()
        .find(|verb| Some(*verb) == method.as_deref());
    format!("AsyncClient.{}", own.unwrap_or("request"))
}
