//! What an asynchronous call does: tried, waited for, given up. How it waits is its library's matter.
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::CallId;

use super::super::collector::{BodyError, BodyLimits, Collector};
use super::super::finish::{BufferedResponse, FinishOutcome, ResponseFinish};
use super::super::head::Head;
use super::body::{AsyncBody, ExclusiveReader};
use super::calls::ReadOutcome;
use super::loop_driver::LoopDriver;
use super::reply::AsyncReply;
use super::waiter::Waiter;
use super::websocket::WsOp;

/// One thing that is being done in a loop_driver.
pub struct PendingOp {
    pub loop_driver: Py<LoopDriver>,
    kind: OpKind,
}

enum OpKind {
    /// A whole response.
    Respond(CallId, Box<ResponseFinish>),
    /// A head, and a body to pull.
    Exchange(CallId),
    Read(ExclusiveReader, usize),
    ReadInto(ExclusiveReader, PyBuffer<u8>),
    ReadAll(ExclusiveReader, Box<Option<Result<Collector, BodyError>>>),
    /// Room for more of a streamed body: False when the server has answered instead.
    Room(CallId),
    /// Of a WebSocket.
    Socket(Box<WsOp>),
    /// Dials under way have ended.
    Prewarm,
    /// The loop_driver has ended.
    Close,
    /// Nothing more to do, or to give up.
    Over,
}

/// How an operation ended.
pub enum Outcome {
    Done(Py<PyAny>),
    /// A coroutine has the last word.
    Continue(Py<PyAny>),
}

impl PendingOp {
    pub fn respond(loop_driver: Py<LoopDriver>, id: CallId, plan: ResponseFinish) -> Self {
        let kind = OpKind::Respond(id, Box::new(plan));
        Self { loop_driver, kind }
    }

    pub fn exchange(loop_driver: Py<LoopDriver>, id: CallId) -> Self {
        let kind = OpKind::Exchange(id);
        Self { loop_driver, kind }
    }

    pub fn room(loop_driver: Py<LoopDriver>, id: CallId) -> Self {
        let kind = OpKind::Room(id);
        Self { loop_driver, kind }
    }

    pub fn close(loop_driver: Py<LoopDriver>) -> Self {
        let kind = OpKind::Close;
        Self { loop_driver, kind }
    }

    pub fn prewarm(loop_driver: Py<LoopDriver>) -> Self {
        let kind = OpKind::Prewarm;
        Self { loop_driver, kind }
    }

    pub fn socket(loop_driver: Py<LoopDriver>, task: WsOp) -> Self {
        let kind = OpKind::Socket(Box::new(task));
        Self { loop_driver, kind }
    }

    pub fn read(source: Arc<AsyncBody>, max: usize) -> Self {
        Self::of(source, |reading| OpKind::Read(reading, max))
    }

    pub fn read_into(source: Arc<AsyncBody>, buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(buffer)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(pyo3::exceptions::PyTypeError::new_err(
                "readinto: a writable, contiguous buffer of bytes is needed",
            ));
        }
        Ok(Self::of(source, |reading| {
            OpKind::ReadInto(reading, buffer)
        }))
    }

    pub fn read_all(source: Arc<AsyncBody>, head: &Head, bounds: BodyLimits) -> Self {
        let collector = Box::new(Some(Collector::new(head, bounds)));
        Self::of(source, |reading| OpKind::ReadAll(reading, collector))
    }

    fn of(source: Arc<AsyncBody>, kind: impl FnOnce(ExclusiveReader) -> OpKind) -> Self {
        Self {
            loop_driver: Python::attach(|py| source.loop_driver.clone_ref(py)),
            kind: kind(ExclusiveReader::new(source)),
        }
    }

    /// `None`: not yet; `wait` then.
    pub fn poll(&mut self, py: Python<'_>) -> PyResult<Option<Outcome>> {
        let loop_driver = self.loop_driver.get();
        let value = match &mut self.kind {
            OpKind::Respond(id, _) => {
                let whole = loop_driver.calls(py)?.take_buffered(*id);
                return match whole {
                    None => Ok(None),
                    Some(whole) => self.respond_now(py, whole).map(Some),
                };
            }
            OpKind::Exchange(id) => {
                let id = *id;
                let head = loop_driver.calls(py)?.take_streamed_head(id);
                let Some(head) = head else { return Ok(None) };
                self.kind = OpKind::Over;
                let head = head.map_err(|failure| failure.to_error(py))?;
                let source = AsyncBody::new(py, self.loop_driver.clone_ref(py), id);
                AsyncReply::make(py, head, source)?.into_any()
            }
            OpKind::Read(reading, max) => match reading.pull(py, *max)? {
                ReadOutcome::Pending => return Ok(None),
                ReadOutcome::End => PyBytes::new(py, b"").into_any().unbind(),
                ReadOutcome::Data(data) => data.into_any(),
            },
            OpKind::ReadInto(reading, buffer) => match reading.pull(py, buffer.item_count())? {
                ReadOutcome::Pending => return Ok(None),
                ReadOutcome::End => 0_usize.into_pyobject(py)?.into_any().unbind(),
                ReadOutcome::Data(data) => copy_into(py, buffer, data.as_bytes(py))?,
            },
            OpKind::ReadAll(reading, collector) => match read_all(py, reading, collector)? {
                Some(content) => content,
                None => return Ok(None),
            },
            OpKind::Room(id) => {
                let mut calls = loop_driver.calls(py)?;
                let answered = calls.has_response(*id);
                if !answered && calls.driver.room(*id) == 0 {
                    return Ok(None);
                }
                drop(calls);
                (!answered)
                    .into_pyobject(py)?
                    .to_owned()
                    .into_any()
                    .unbind()
            }
            OpKind::Socket(task) => match task.poll(py, &self.loop_driver)? {
                Some(value) => value,
                None => return Ok(None),
            },
            OpKind::Prewarm => {
                let status = loop_driver.status(py);
                if status.dialling > 0 {
                    return Ok(None);
                }
                status.idle.into_pyobject(py)?.into_any().unbind()
            }
            OpKind::Close => {
                if !loop_driver.is_ended(py) {
                    return Ok(None);
                }
                py.None()
            }
            OpKind::Over => return Err(PyRuntimeError::new_err("awaited already")),
        };
        self.kind = OpKind::Over;
        Ok(Some(Outcome::Done(value)))
    }

    fn respond_now(
        &mut self,
        py: Python<'_>,
        whole: Result<BufferedResponse, super::calls::CallFailure>,
    ) -> PyResult<Outcome> {
        let OpKind::Respond(_, plan) = std::mem::replace(&mut self.kind, OpKind::Over) else {
            return Err(PyRuntimeError::new_err("awaited already"));
        };
        let whole = whole.map_err(|failure| failure.to_error(py))?;
        outcome(*plan, py, whole)
    }

    /// Has `waiter` woken when polling is worth while again.
    pub fn wait(&self, py: Python<'_>, waiter: Py<Waiter>) -> PyResult<()> {
        let loop_driver = self.loop_driver.get();
        // One that waits no more, if any: each of these is one task's at a time.
        let before = match &self.kind {
            OpKind::Respond(id, _) | OpKind::Exchange(id) => {
                loop_driver.calls(py)?.set_read_waiter(*id, Some(waiter))
            }
            OpKind::Read(reading, _)
            | OpKind::ReadInto(reading, _)
            | OpKind::ReadAll(reading, _) => {
                let id = reading.source().id;
                loop_driver.calls(py)?.set_read_waiter(id, Some(waiter))
            }
            OpKind::Room(id) => loop_driver.calls(py)?.set_write_waiter(*id, Some(waiter)),
            OpKind::Socket(task) => task.wait(py, loop_driver, waiter)?,
            OpKind::Prewarm | OpKind::Close => {
                loop_driver.add_status_waiter(py, waiter);
                None
            }
            OpKind::Over => None,
        };
        drop(before);
        Ok(())
    }

    /// Given up: a request is cancelled; a read leaves its bytes where they are.
    pub fn abandon(&mut self, py: Python<'_>) {
        let kind = std::mem::replace(&mut self.kind, OpKind::Over);
        let loop_driver = self.loop_driver.get();
        match kind {
            OpKind::Respond(id, _) | OpKind::Exchange(id) => loop_driver.cancel(py, id),
            OpKind::Read(mut reading, _)
            | OpKind::ReadInto(mut reading, _)
            | OpKind::ReadAll(mut reading, _) => reading.abandon(py),
            OpKind::Socket(mut task) => task.abandon(py, loop_driver),
            OpKind::Room(_) | OpKind::Prewarm | OpKind::Close | OpKind::Over => {}
        }
    }
}

/// The response, or the coroutine that decides what becomes of it.
fn outcome(plan: ResponseFinish, py: Python<'_>, whole: BufferedResponse) -> PyResult<Outcome> {
    Ok(match plan.finish(py, whole)? {
        FinishOutcome::Response(response) => Outcome::Done(response),
        FinishOutcome::Coroutine(coroutine) => Outcome::Continue(coroutine),
    })
}

fn copy_into(py: Python<'_>, buffer: &PyBuffer<u8>, data: &[u8]) -> PyResult<Py<PyAny>> {
    if data.len() > buffer.item_count() {
        return Err(PyRuntimeError::new_err("the buffer has changed"));
    }
    // SAFETY: the buffer is writable, contiguous and at least as long, and stays exported while we hold
    // it; nobody else writes while we hold the GIL.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.buf_ptr().cast::<u8>(), data.len());
    }
    Ok(data.len().into_pyobject(py)?.into_any().unbind())
}

fn read_all(
    py: Python<'_>,
    reading: &mut ExclusiveReader,
    collector: &mut Option<Result<Collector, BodyError>>,
) -> PyResult<Option<Py<PyAny>>> {
    loop {
        let Some(Ok(collecting)) = collector else {
            let refused = match collector.take() {
                Some(Err(refusal)) => refusal.to_error(),
                _ => PyRuntimeError::new_err("awaited already"),
            };
            reading.source().close(py);
            return Err(refused);
        };
        match reading.pull(py, usize::MAX)? {
            ReadOutcome::Pending => return Ok(None),
            ReadOutcome::Data(data) => {
                if let Err(refusal) = collecting.push(py, data.as_bytes(py)) {
                    *collector = Some(Err(refusal));
                }
            }
            ReadOutcome::End => {
                let Some(Ok(collecting)) = collector.take() else {
                    continue;
                };
                let content = collecting
                    .finish(py)
                    .map_err(|refusal| refusal.to_error())?;
                return Ok(Some(content.into_any()));
            }
        }
    }
}
