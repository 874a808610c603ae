//! `SyncReply`: a response head, and a body that is read on the calling thread.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::super::collector::BodyLimits;
use super::super::head::Head;
use super::super::reply::{Reply, copy_into, writable};
use super::body::SyncBody;

#[pyclass(frozen, extends = Reply, module = "towline._native")]
pub struct SyncReply {
    body: Arc<SyncBody>,
}

impl SyncReply {
    pub fn make(py: Python<'_>, head: Arc<Head>, body: Arc<SyncBody>) -> PyResult<Py<Self>> {
        let base = Reply::new(head, Arc::<SyncBody>::clone(&body));
        Py::new(
            py,
            PyClassInitializer::from(base).add_subclass(Self { body }),
        )
    }
}

#[pymethods]
impl SyncReply {
    #[pyo3(signature = (n=-1, /))]
    fn read<'py>(&self, py: Python<'py>, n: isize) -> PyResult<Bound<'py, PyBytes>> {
        if n == 0 {
            return Ok(PyBytes::new(py, b""));
        }
        let max = usize::try_from(n).unwrap_or(usize::MAX);
        let data = self.body.read(py, max, |data| PyBytes::new(py, data))?;
        Ok(data.unwrap_or_else(|| PyBytes::new(py, b"")))
    }

    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = writable(buffer)?;
        let room = buffer.item_count();
        if room == 0 {
            return Ok(0);
        }
        let copied = self
            .body
            .read(py, room, |data| copy_into(py, &buffer, data))?;
        copied.unwrap_or(Ok(0))
    }

    #[pyo3(signature = (*, decode=true, max_size=None, max_decoded=None))]
    fn read_all(
        slf: &Bound<'_, Self>,
        decode: bool,
        max_size: Option<u64>,
        max_decoded: Option<u64>,
    ) -> PyResult<Py<PyBytes>> {
        let limits = BodyLimits {
            max_response_size: max_size,
            max_decompressed_size: max_decoded,
            raw: !decode,
        };
        let head = Arc::clone(&slf.as_super().get().head);
        slf.get().body.read_all(slf.py(), &head, limits)
    }

    fn close(&self, py: Python<'_>) {
        self.body.close(py);
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.body.is_closed(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    /// Iterates over the pieces of the body as they arrive.
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.body
            .read(py, usize::MAX, |data| PyBytes::new(py, data))
    }
}
