//! `StateLog`: a process's position in the log of messages.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_state::LogReader;

use super::{closed, to_python};
use towline_py_common::cell::StateCell;

/// Reads the messages of a store for all subscriptions of a process, or of an event loop.
#[pyclass(frozen, module = "towline._native")]
pub struct StateLog {
    /// `None`: closed.
    reader: StateCell<Option<LogReader>>,
}

impl StateLog {
    pub fn new(reader: LogReader) -> Self {
        Self {
            reader: StateCell::new(Some(reader)),
        }
    }
}

#[pymethods]
impl StateLog {
    /// A descriptor that is readable when there may be messages, after `arm()` has returned False.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.reader
            .open(py)
            .as_ref()
            .map(LogReader::fd)
            .ok_or_else(closed)
    }

    /// Returns at most `limit` messages, of about `size` bytes in all, how many were lost before them, and the number of the
    /// message after them.
    #[pyo3(signature = (limit, size, /))]
    #[allow(clippy::type_complexity)] // a tuple for Python
    fn read<'py>(
        &self,
        py: Python<'py>,
        limit: usize,
        size: usize,
    ) -> PyResult<(Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>, u64, u64)> {
        let batch = {
            let mut reader = self.reader.open(py);
            reader
                .as_mut()
                .ok_or_else(closed)?
                .read(limit, size)
                .map_err(to_python)?
        };
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
        let messages = batch
            .messages
            .iter()
            .map(|(channel, message)| (bytes(channel), bytes(message)));
        Ok((messages.collect(), batch.lost, batch.next))
    }

    /// Returns the number of the next publication: a subscription that begins now starts there.
    fn end(&self, py: Python<'_>) -> PyResult<u64> {
        self.reader
            .open(py)
            .as_ref()
            .ok_or_else(closed)?
            .end()
            .map_err(to_python)
    }

    /// Asks for a wake-up at the next publication. True: there is something to read already.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        self.reader
            .open(py)
            .as_mut()
            .ok_or_else(closed)?
            .arm()
            .map_err(to_python)
    }

    fn close(&self, py: Python<'_>) {
        let reader = self.reader.open(py).take();
        drop(reader);
    }
}
