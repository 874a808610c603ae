//! A response head of the asynchronous client, with the body that follows it.
use std::sync::Arc;

use pyo3::prelude::*;

use super::super::collector::BodyLimits;
use super::super::head::Head;
use super::super::reply::Reply;
use super::awaitable::Call;
use super::body::AsyncBody;
use super::pending_op::PendingOp;

/// A reply of an event loop.
#[pyclass(frozen, extends = Reply, module = "towline._native")]
pub struct AsyncReply {
    source: Arc<AsyncBody>,
}

impl AsyncReply {
    pub fn make(py: Python<'_>, head: Arc<Head>, source: AsyncBody) -> PyResult<Py<Self>> {
        let source = Arc::new(source);
        let base = Reply::new(head, Arc::<AsyncBody>::clone(&source));
        let class = PyClassInitializer::from(base).add_subclass(Self { source });
        Py::new(py, class)
    }
}

#[pymethods]
impl AsyncReply {
    #[pyo3(signature = (n=-1, /))]
    fn read(&self, py: Python<'_>, n: isize) -> PyResult<Py<Call>> {
        let max = usize::try_from(n).unwrap_or(usize::MAX);
        let operation = PendingOp::read(Arc::clone(&self.source), max);
        Call::of(py, operation)
    }

    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let operation = PendingOp::read_into(Arc::clone(&self.source), buffer)?;
        Call::of(buffer.py(), operation)
    }

    #[pyo3(signature = (*, decode=true, max_size=None, max_decoded=None))]
    fn read_all(
        slf: &Bound<'_, Self>,
        decode: bool,
        max_size: Option<u64>,
        max_decoded: Option<u64>,
    ) -> PyResult<Py<Call>> {
        let bounds = BodyLimits {
            max_response_size: max_size,
            max_decompressed_size: max_decoded,
            raw: !decode,
        };
        let head = Arc::clone(&slf.as_super().get().head);
        let operation = PendingOp::read_all(Arc::clone(&slf.get().source), &head, bounds);
        Call::of(slf.py(), operation)
    }

    fn close(&self, py: Python<'_>) {
        self.source.close(py);
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.source.is_closed(py)
    }
}
