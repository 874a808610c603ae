//! The operations that read the body of an [`AsyncReply`](super::reply::AsyncReply).
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::super::collector::{BodyError, BodyLimits, Collector};
use super::super::head::Head;
use super::super::reply::{copy_into, writable};
use super::body::{AsyncBody, ExclusiveReader};
use super::calls::{ReadOutcome, WaitFor};
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};

/// A read of one task.
pub struct ReadOp {
    reader: ExclusiveReader,
    target: Target,
}

/// Destination of the bytes.
enum Target {
    /// A new bytes object of at most this size.
    Bytes(usize),
    Buffer(PyBuffer<u8>),
    /// All that is left of the body. `None` once it has been returned.
    All(Option<Result<Collector, BodyError>>),
}

impl ReadOp {
    pub fn bytes(body: Arc<AsyncBody>, max_bytes: usize) -> Self {
        Self::new(body, Target::Bytes(max_bytes))
    }

    pub fn into(body: Arc<AsyncBody>, buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::new(body, Target::Buffer(writable(buffer)?)))
    }

    pub fn all(body: Arc<AsyncBody>, head: &Head, limits: BodyLimits) -> Self {
        Self::new(body, Target::All(Some(Collector::new(head, limits))))
    }

    fn new(body: Arc<AsyncBody>, target: Target) -> Self {
        Self {
            reader: ExclusiveReader::new(body),
            target,
        }
    }
}

impl PendingOp for ReadOp {
    fn poll(&mut self, py: Python<'_>, _: &Py<LoopDriver>) -> PyResult<Option<OpOutcome>> {
        let reader = &mut self.reader;
        let value = match &mut self.target {
            Target::Bytes(max_bytes) => match reader.read(py, *max_bytes)? {
                ReadOutcome::Pending => return Ok(None),
                ReadOutcome::End => PyBytes::new(py, b"").into_any().unbind(),
                ReadOutcome::Data(data) => data.into_any(),
            },
            Target::Buffer(buffer) => match reader.read(py, buffer.item_count())? {
                ReadOutcome::Pending => return Ok(None),
                ReadOutcome::End => 0_usize.into_pyobject(py)?.into_any().unbind(),
                ReadOutcome::Data(data) => {
                    let copied = copy_into(py, buffer, data.as_bytes(py))?;
                    copied.into_pyobject(py)?.into_any().unbind()
                }
            },
            Target::All(collector) => match read_all(py, reader, collector)? {
                Some(content) => content,
                None => return Ok(None),
            },
        };
        Ok(Some(OpOutcome::Done(value)))
    }

    fn waits_for(&self) -> WaitFor {
        WaitFor::Read(self.reader.body().id)
    }

    fn cancel(&mut self, py: Python<'_>, _: &LoopDriver) {
        self.reader.cancel(py);
    }
}

fn read_all(
    py: Python<'_>,
    reader: &mut ExclusiveReader,
    collector: &mut Option<Result<Collector, BodyError>>,
) -> PyResult<Option<Py<PyAny>>> {
    loop {
        let Some(Ok(collecting)) = collector else {
            let error = match collector.take() {
                Some(Err(error)) => error.to_error(),
                _ => PyRuntimeError::new_err("this call has been awaited already"),
            };
            reader.body().close(py);
            return Err(error);
        };
        match reader.read(py, usize::MAX)? {
            ReadOutcome::Pending => return Ok(None),
            ReadOutcome::Data(data) => {
                if let Err(error) = collecting.push(py, data.as_bytes(py)) {
                    *collector = Some(Err(error));
                }
            }
            ReadOutcome::End => {
                let Some(Ok(collecting)) = collector.take() else {
                    continue;
                };
                let content = collecting.finish(py).map_err(|error| error.to_error())?;
                return Ok(Some(content.into_any()));
            }
        }
    }
}
