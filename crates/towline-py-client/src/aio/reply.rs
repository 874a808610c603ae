//! `AsyncReply`: a response head, and a body that is read on demand.
use std::sync::Arc;

use pyo3::prelude::*;
use towline_io::client::CallId;

use super::super::collector::BodyLimits;
use super::super::head::Head;
use super::super::reply::Reply;
use super::awaitable::Call;
use super::body::AsyncBody;
use super::calls::WaitFor;
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};
use super::read::ReadOp;

#[pyclass(frozen, extends = Reply, module = "towline._native")]
pub struct AsyncReply {
    body: Arc<AsyncBody>,
}

impl AsyncReply {
    fn make(py: Python<'_>, head: Arc<Head>, body: AsyncBody) -> PyResult<Py<Self>> {
        let body = Arc::new(body);
        let base = Reply::new(head, Arc::<AsyncBody>::clone(&body));
        Py::new(
            py,
            PyClassInitializer::from(base).add_subclass(Self { body }),
        )
    }

    fn call(&self, py: Python<'_>, op: ReadOp) -> PyResult<Py<Call>> {
        Call::native(py, self.body.loop_driver.clone_ref(py), op)
    }
}

#[pymethods]
impl AsyncReply {
    #[pyo3(signature = (n=-1, /))]
    fn read(&self, py: Python<'_>, n: isize) -> PyResult<Py<Call>> {
        let max_bytes = usize::try_from(n).unwrap_or(usize::MAX);
        self.call(py, ReadOp::bytes(Arc::clone(&self.body), max_bytes))
    }

    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let op = ReadOp::into(Arc::clone(&self.body), buffer)?;
        self.call(buffer.py(), op)
    }

    #[pyo3(signature = (*, decode=true, max_size=None, max_decoded=None))]
    fn read_all(
        slf: &Bound<'_, Self>,
        decode: bool,
        max_size: Option<u64>,
        max_decoded: Option<u64>,
    ) -> PyResult<Py<Call>> {
        let limits = BodyLimits {
            max_response_size: max_size,
            max_decompressed_size: max_decoded,
            raw: !decode,
        };
        let head = Arc::clone(&slf.as_super().get().head);
        let op = ReadOp::all(Arc::clone(&slf.get().body), &head, limits);
        slf.get().call(slf.py(), op)
    }

    /// Returns an awaitable of the end of the upload if that has to be ended.
    fn close(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if !self.body.is_closed(py) {
            self.body.loop_driver.get().thread.check()?;
        }
        self.body.close(py);
        self.body.end_upload(py)
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.body.is_closed(py)
    }
}

/// Waits for a response head, and returns an [`AsyncReply`].
pub struct ReplyOp {
    pub id: CallId,
    /// The task that sends the request body.
    pub upload: Option<Py<PyAny>>,
}

impl PendingOp for ReplyOp {
    fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<OpOutcome>> {
        let head = loop_driver.get().calls(py)?.take_streamed_head(self.id);
        let Some(head) = head else {
            return Ok(None);
        };
        let head = head.map_err(|failure| failure.to_error(py))?;
        let body = AsyncBody::new(py, loop_driver.clone_ref(py), self.id, self.upload.take());
        let reply = AsyncReply::make(py, head, body)?;
        Ok(Some(OpOutcome::Done(reply.into_any())))
    }

    fn waits_for(&self) -> WaitFor {
        WaitFor::Read(self.id)
    }

    fn cancel(&mut self, py: Python<'_>, loop_driver: &LoopDriver) {
        loop_driver.cancel(py, self.id);
    }
}
