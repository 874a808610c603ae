//! One request and its response, as the application holds it: `receive` and `send` are bound to it.
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use towline_io::ConnId;
use towline_proto::StreamId;
use towline_py_common::event_loop::EventLoop;
use towline_py_common::task_future::TaskFuture;

use super::exchange_state::{ClientState, ExchangeState, WaitFor};
use super::state::{AsgiServer, Exchange, ExchangeHandle};
use towline_py_common::cell::{StateCell, references};

#[pymethods]
impl Exchange {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.server)?;
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        visit.call(&state.task)?;
        visit.call(&state.stepping)?;
        for future in state.waiters() {
            visit.call(future)?;
        }
        Ok(())
    }
}

impl Exchange {
    pub fn new(server: Py<AsgiServer>, id: ConnId, stream: StreamId) -> Self {
        Self {
            server,
            state: StateCell::new(ExchangeState::new(id, stream)),
        }
    }

    /// A future for the task that awaits this exchange; in a step of its coroutine alone the one on which the task waits.
    pub fn create_future(&self, py: Python<'_>) -> PyResult<Py<TaskFuture>> {
        if let Some(future) = self.state.open(py).stepping.take() {
            future.get().restart(py);
            return Ok(future);
        }
        let event_loop = self.server.get().event_loop.clone_ref(py);
        Py::new(py, TaskFuture::new(EventLoop::Asyncio(event_loop)))
    }

    pub fn add_waiter(&self, py: Python<'_>, future: Py<TaskFuture>, wait_for: WaitFor) {
        self.state.open(py).add_waiter(future, wait_for);
    }

    /// Notes that the client has disconnected. Returns the waiters, to be woken.
    pub fn mark_disconnected(&self, py: Python<'_>) -> Vec<Py<TaskFuture>> {
        let mut state = self.state.open(py);
        state.client = ClientState::Disconnected;
        state.take_waiters()
    }

    /// Wakes the waiters for the end of the file that was being sent.
    pub fn on_file_sent(&self, py: Python<'_>) -> PyResult<()> {
        let waiters = {
            let mut state = self.state.open(py);
            if !std::mem::replace(&mut state.sends_file, false) {
                return Ok(());
            }
            state.take_senders()
        };
        wake(py, waiters)
    }
}

impl ExchangeHandle {
    /// Resets the exchange for a new request.
    pub fn begin(&self, py: Python<'_>, id: ConnId, stream: StreamId) {
        self.exchange.get().state.open(py).reset(id, stream);
    }

    /// True if no reference exists outside this handle.
    pub fn is_unshared(&self, py: Python<'_>) -> bool {
        references(&self.receive) == 1
            && references(&self.send) == 1
            // The handle and the two functions.
            && references(&self.exchange) == 3
            && self.exchange.get().state.open(py).task.is_none()
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            exchange: self.exchange.clone_ref(py),
            receive: self.receive.clone_ref(py),
            send: self.send.clone_ref(py),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.exchange)?;
        visit.call(&self.receive)?;
        visit.call(&self.send)
    }
}

/// Wakes waiters in the next iteration of the loop: all of them, even if one fails. No cell may be open, because Python
/// code of the loop runs.
pub fn wake(py: Python<'_>, waiters: Vec<Py<TaskFuture>>) -> PyResult<()> {
    let outcomes = waiters
        .into_iter()
        .map(|waiter| TaskFuture::wake(waiter.bind(py), None));
    outcomes.fold(Ok(()), PyResult::and)
}
