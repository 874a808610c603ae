//! The body of a response that is read on the calling thread, on its connection.
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use towline_io::client::{BlockingCall, ConnectionInfo, Trailer};

use super::super::collector::{BodyLimits, Collector};
use super::super::head::Head;
use super::super::reply::{CallInfo, ReplyBody};
use super::upload::{Upload, read_on};
use towline_py_common::cell::StateCell;
use towline_py_common::errors::StreamConsumed;

/// ```text
///  Open ◄───────► Reading (by one thread, without the GIL)
///   ├─ end of the body ─► BlockingError
///   └─ close, failure ──► Closed
/// ```
pub enum State {
    Open(Box<BlockingCall>, Option<Box<Upload>>),
    Reading,
    BlockingError(CallInfo, Box<[Trailer]>),
    Closed(CallInfo),
}

/// A call, and the rest of its request body.
type OpenCall = (Box<BlockingCall>, Option<Box<Upload>>);

pub struct SyncBody {
    connection: Arc<ConnectionInfo>,
    state: StateCell<State>,
}

pub fn info_of(call: &BlockingCall) -> CallInfo {
    CallInfo {
        timings: call.timings(),
        reused: call.is_reused(),
    }
}

impl SyncBody {
    /// `upload`: the rest of the request body.
    pub fn new(call: Box<BlockingCall>, upload: Option<Box<Upload>>) -> Self {
        Self {
            connection: Arc::clone(call.info()),
            state: StateCell::new(State::Open(call, upload)),
        }
    }

    /// Passes at most `max_bytes` to `sink`, waiting for them if necessary. Returns `None` at the end of the body.
    pub fn read<T>(
        &self,
        py: Python<'_>,
        max_bytes: usize,
        sink: impl FnOnce(&[u8]) -> T,
    ) -> PyResult<Option<T>> {
        let Some((mut call, mut upload)) = self.take_call(py)? else {
            return Ok(None);
        };
        let taken = read_on(py, &mut call, &mut upload, max_bytes, sink);
        let state = match &taken {
            Ok(Some(_)) => State::Open(call, upload),
            Ok(None) => State::BlockingError(info_of(&call), call.trailers().into()),
            Err(_) => State::Closed(info_of(&call)),
        };
        self.set_state(py, state);
        taken
    }

    /// Reads the rest of the body.
    pub fn read_all(
        &self,
        py: Python<'_>,
        head: &Head,
        limits: BodyLimits,
    ) -> PyResult<Py<PyBytes>> {
        let collect = || {
            let mut collector = Collector::new(head, limits).map_err(|error| error.to_error())?;
            while let Some(pushed) = self.read(py, usize::MAX, |data| collector.push(py, data))? {
                pushed.map_err(|error| error.to_error())?;
            }
            collector.finish(py).map_err(|error| error.to_error())
        };
        collect().inspect_err(|_| self.close(py))
    }

    /// Takes the call out, for this thread. `None`: the body has been read to its end.
    fn take_call(&self, py: Python<'_>) -> PyResult<Option<OpenCall>> {
        let mut state = self.state.open(py);
        match std::mem::replace(&mut *state, State::Reading) {
            State::Open(call, upload) => Ok(Some((call, upload))),
            State::Reading => Err(PyRuntimeError::new_err(
                "another thread is reading this response",
            )),
            ended @ State::BlockingError(..) => {
                *state = ended;
                Ok(None)
            }
            closed @ State::Closed(_) => {
                *state = closed;
                Err(StreamConsumed::new_err("the response has been closed"))
            }
        }
    }

    fn set_state(&self, py: Python<'_>, state: State) {
        let before = std::mem::replace(&mut *self.state.open(py), state);
        drop(before);
    }

    pub fn close(&self, py: Python<'_>) {
        let before = {
            let mut state = self.state.open(py);
            let State::Open(call, _) = &*state else {
                return;
            };
            let info = info_of(call);
            std::mem::replace(&mut *state, State::Closed(info))
        };
        drop(before);
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        matches!(
            *self.state.open(py),
            State::BlockingError(..) | State::Closed(_)
        )
    }
}

impl ReplyBody for SyncBody {
    fn info(&self, py: Python<'_>) -> CallInfo {
        match &*self.state.open(py) {
            State::Open(call, _) => info_of(call),
            State::Reading => CallInfo::default(),
            State::BlockingError(info, _) | State::Closed(info) => *info,
        }
    }

    fn buffered(&self, py: Python<'_>) -> usize {
        match &*self.state.open(py) {
            State::Open(call, _) => call.buffered(),
            _ => 0,
        }
    }

    fn connection(&self) -> Option<&ConnectionInfo> {
        Some(&self.connection)
    }

    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if let State::BlockingError(_, trailers) = &*self.state.open(py) {
            for (name, value) in trailers {
                let pair = [PyBytes::new(py, name), PyBytes::new(py, value)];
                list.append(PyTuple::new(py, pair)?)?;
            }
        }
        Ok(list)
    }
}
