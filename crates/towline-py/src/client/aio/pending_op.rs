//! What an asynchronous call does: tried, waited for, given up. How it waits is its library's matter.
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::call::CallId;

use super::super::collector::{Bounds, Collector, Refusal};
use super::super::finish::{Finished, Plan, Whole};
use super::super::head::Head;
use super::body::{AsyncSource, Reading};
use super::calls::Pulled;
use super::loop_driver::Hub;
use super::reply::AsyncReply;
use super::waiter::Waiter;
use super::websocket::Task;

/// One thing that is being done in a hub.
pub struct Operation {
    pub hub: Py<Hub>,
    purpose: Purpose,
}

enum Purpose {
    /// A whole response.
    Respond(CallId, Box<Plan>),
    /// A head, and a body to pull.
    Exchange(CallId),
    Read(Reading, usize),
    ReadInto(Reading, PyBuffer<u8>),
    ReadAll(Reading, Box<Option<Result<Collector, Refusal>>>),
    /// Room for more of a streamed body: False when the server has answered instead.
    Room(CallId),
    /// Of a WebSocket.
    Socket(Box<Task>),
    /// Dials under way have ended.
    Prewarm,
    /// The hub has ended.
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

impl Operation {
    pub fn respond(hub: Py<Hub>, id: CallId, plan: Plan) -> Self {
        let purpose = Purpose::Respond(id, Box::new(plan));
        Self { hub, purpose }
    }

    pub fn exchange(hub: Py<Hub>, id: CallId) -> Self {
        let purpose = Purpose::Exchange(id);
        Self { hub, purpose }
    }

    pub fn room(hub: Py<Hub>, id: CallId) -> Self {
        let purpose = Purpose::Room(id);
        Self { hub, purpose }
    }

    pub fn close(hub: Py<Hub>) -> Self {
        let purpose = Purpose::Close;
        Self { hub, purpose }
    }

    pub fn prewarm(hub: Py<Hub>) -> Self {
        let purpose = Purpose::Prewarm;
        Self { hub, purpose }
    }

    pub fn socket(hub: Py<Hub>, task: Task) -> Self {
        let purpose = Purpose::Socket(Box::new(task));
        Self { hub, purpose }
    }

    pub fn read(source: Arc<AsyncSource>, max: usize) -> Self {
        Self::of(source, |reading| Purpose::Read(reading, max))
    }

    pub fn read_into(source: Arc<AsyncSource>, buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(buffer)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(pyo3::exceptions::PyTypeError::new_err(
                "readinto: a writable, contiguous buffer of bytes is needed",
            ));
        }
        Ok(Self::of(source, |reading| {
            Purpose::ReadInto(reading, buffer)
        }))
    }

    pub fn read_all(source: Arc<AsyncSource>, head: &Head, bounds: Bounds) -> Self {
        let collector = Box::new(Some(Collector::new(head, bounds)));
        Self::of(source, |reading| Purpose::ReadAll(reading, collector))
    }

    fn of(source: Arc<AsyncSource>, purpose: impl FnOnce(Reading) -> Purpose) -> Self {
        Self {
            hub: Python::attach(|py| source.hub.clone_ref(py)),
            purpose: purpose(Reading::new(source)),
        }
    }

    /// `None`: not yet; `wait` then.
    pub fn poll(&mut self, py: Python<'_>) -> PyResult<Option<Outcome>> {
        let hub = self.hub.get();
        let value = match &mut self.purpose {
            Purpose::Respond(id, _) => {
                let whole = hub.desk(py)?.take_whole(*id);
                return match whole {
                    None => Ok(None),
                    Some(whole) => self.respond_now(py, whole).map(Some),
                };
            }
            Purpose::Exchange(id) => {
                let id = *id;
                let head = hub.desk(py)?.take_reply(id);
                let Some(head) = head else { return Ok(None) };
                self.purpose = Purpose::Over;
                let head = head.map_err(|failure| failure.to_error(py))?;
                let source = AsyncSource::new(py, self.hub.clone_ref(py), id);
                AsyncReply::make(py, head, source)?.into_any()
            }
            Purpose::Read(reading, max) => match reading.pull(py, *max)? {
                Pulled::Pending => return Ok(None),
                Pulled::End => PyBytes::new(py, b"").into_any().unbind(),
                Pulled::Data(data) => data.into_any(),
            },
            Purpose::ReadInto(reading, buffer) => match reading.pull(py, buffer.item_count())? {
                Pulled::Pending => return Ok(None),
                Pulled::End => 0_usize.into_pyobject(py)?.into_any().unbind(),
                Pulled::Data(data) => copy_into(py, buffer, data.as_bytes(py))?,
            },
            Purpose::ReadAll(reading, collector) => match read_all(py, reading, collector)? {
                Some(content) => content,
                None => return Ok(None),
            },
            Purpose::Room(id) => {
                let mut desk = hub.desk(py)?;
                let answered = desk.is_answered(*id);
                if !answered && desk.caller.room(*id) == 0 {
                    return Ok(None);
                }
                drop(desk);
                (!answered)
                    .into_pyobject(py)?
                    .to_owned()
                    .into_any()
                    .unbind()
            }
            Purpose::Socket(task) => match task.poll(py, &self.hub)? {
                Some(value) => value,
                None => return Ok(None),
            },
            Purpose::Prewarm => {
                let status = hub.status(py);
                if status.dialling > 0 {
                    return Ok(None);
                }
                status.idle.into_pyobject(py)?.into_any().unbind()
            }
            Purpose::Close => {
                if !hub.is_ended(py) {
                    return Ok(None);
                }
                py.None()
            }
            Purpose::Over => return Err(PyRuntimeError::new_err("awaited already")),
        };
        self.purpose = Purpose::Over;
        Ok(Some(Outcome::Done(value)))
    }

    fn respond_now(
        &mut self,
        py: Python<'_>,
        whole: Result<Whole, super::calls::Failure>,
    ) -> PyResult<Outcome> {
        let Purpose::Respond(_, plan) = std::mem::replace(&mut self.purpose, Purpose::Over) else {
            return Err(PyRuntimeError::new_err("awaited already"));
        };
        let whole = whole.map_err(|failure| failure.to_error(py))?;
        outcome(*plan, py, whole)
    }

    /// Has `waiter` woken when polling is worth while again.
    pub fn wait(&self, py: Python<'_>, waiter: Py<Waiter>) -> PyResult<()> {
        let hub = self.hub.get();
        // One that waits no more, if any: each of these is one task's at a time.
        let before = match &self.purpose {
            Purpose::Respond(id, _) | Purpose::Exchange(id) => {
                hub.desk(py)?.set_reader(*id, Some(waiter))
            }
            Purpose::Read(reading, _)
            | Purpose::ReadInto(reading, _)
            | Purpose::ReadAll(reading, _) => {
                let id = reading.source().id;
                hub.desk(py)?.set_reader(id, Some(waiter))
            }
            Purpose::Room(id) => hub.desk(py)?.set_writer(*id, Some(waiter)),
            Purpose::Socket(task) => task.wait(py, hub, waiter)?,
            Purpose::Prewarm | Purpose::Close => {
                hub.add_watcher(py, waiter);
                None
            }
            Purpose::Over => None,
        };
        drop(before);
        Ok(())
    }

    /// Given up: a request is cancelled; a read leaves its bytes where they are.
    pub fn abandon(&mut self, py: Python<'_>) {
        let purpose = std::mem::replace(&mut self.purpose, Purpose::Over);
        let hub = self.hub.get();
        match purpose {
            Purpose::Respond(id, _) | Purpose::Exchange(id) => hub.cancel(py, id),
            Purpose::Read(mut reading, _)
            | Purpose::ReadInto(mut reading, _)
            | Purpose::ReadAll(mut reading, _) => reading.abandon(py),
            Purpose::Socket(mut task) => task.abandon(py, hub),
            Purpose::Room(_) | Purpose::Prewarm | Purpose::Close | Purpose::Over => {}
        }
    }
}

/// The response, or the coroutine that decides what becomes of it.
fn outcome(plan: Plan, py: Python<'_>, whole: Whole) -> PyResult<Outcome> {
    Ok(match plan.finish(py, whole)? {
        Finished::Response(response) => Outcome::Done(response),
        Finished::Continued(coroutine) => Outcome::Continue(coroutine),
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
    reading: &mut Reading,
    collector: &mut Option<Result<Collector, Refusal>>,
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
            Pulled::Pending => return Ok(None),
            Pulled::Data(data) => {
                if let Err(refusal) = collecting.push(py, data.as_bytes(py)) {
                    *collector = Some(Err(refusal));
                }
            }
            Pulled::End => {
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
