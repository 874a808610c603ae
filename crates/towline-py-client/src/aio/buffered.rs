//! The operation behind `client.get()` and its like: waits for a whole response.
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use towline_io::client::CallId;

use super::super::finish::{FinishOutcome, ResponseFinish};
use super::calls::WaitFor;
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};

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
        let response = response.map_err(|failure| finish.failed(py, failure.to_error(py)))?;
        Ok(Some(match finish.finish(py, response)? {
            FinishOutcome::Response(response) => OpOutcome::Done(response),
            FinishOutcome::FromPython(coroutine) => OpOutcome::Await(coroutine),
        }))
    }

    fn waits_for(&self) -> WaitFor {
        WaitFor::Read(self.id)
    }

    fn name(&self) -> String {
        let finish = self.finish.as_ref();
        method_name(finish.map_or(b"", |finish| finish.sent.method()))
    }

    fn cancel(&mut self, py: Python<'_>, loop_driver: &LoopDriver) {
        loop_driver.cancel(py, self.id);
    }
}

/// The method of `AsyncClient` that sends requests of this HTTP method.
pub fn method_name(method: &[u8]) -> String {
    const VERBS: [&str; 7] = ["get", "head", "options", "delete", "post", "put", "patch"];
    let own = VERBS
        .into_iter()
        .find(|verb| method.eq_ignore_ascii_case(verb.as_bytes()));
    format!("AsyncClient.{}", own.unwrap_or("request"))
}
