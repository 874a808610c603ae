//! The body of a reply, in its loop_driver.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use towline_io::client::{CallId, ConnectionFacts};

use super::super::reply::{CallInfo, Source};
use super::calls::ReadOutcome;
use super::loop_driver::LoopDriver;
use super::waiter::Waiter;
use crate::errors::{StreamConsumed, UsageError};
use crate::gil::GilCell;

pub struct AsyncBody {
    pub loop_driver: Py<LoopDriver>,
    pub id: CallId,
    connection: Option<Arc<ConnectionFacts>>,
    state: GilCell<State>,
    /// A reading waits for bytes.
    is_awaited: AtomicBool,
}

enum State {
    Open,
    /// Read to its end.
    Ended(CallInfo, Trailers),
    /// Given up before.
    Closed(CallInfo),
}

type Trailers = Vec<(Vec<u8>, Vec<u8>)>;

impl AsyncBody {
    pub fn new(py: Python<'_>, loop_driver: Py<LoopDriver>, id: CallId) -> Self {
        let calls = loop_driver.get().calls(py);
        let connection = calls.ok().and_then(|calls| calls.driver.facts(id).cloned());
        Self {
            loop_driver,
            id,
            connection,
            state: GilCell::new(State::Open),
            is_awaited: AtomicBool::new(false),
        }
    }

    /// The next bytes, at most `max`.
    fn pull(&self, py: Python<'_>, max: usize) -> PyResult<ReadOutcome> {
        match *self.state.open(py) {
            State::Open => {}
            State::Ended(..) => return Ok(ReadOutcome::End),
            State::Closed(_) => {
                return Err(StreamConsumed::new_err("the response has been closed"));
            }
        }
        let outcome = self.loop_driver.get().calls(py)?.pull(py, self.id, max);
        match outcome {
            Ok(ReadOutcome::End) => {
                let trailers = self
                    .loop_driver
                    .get()
                    .calls(py)?
                    .driver
                    .trailers(self.id)
                    .to_vec();
                let facts = self.remove(py);
                *self.state.open(py) = State::Ended(facts, trailers);
                Ok(ReadOutcome::End)
            }
            Ok(outcome) => Ok(outcome),
            Err(failure) => {
                let facts = self.remove(py);
                *self.state.open(py) = State::Closed(facts);
                Err(failure.to_error(py))
            }
        }
    }

    pub fn close(&self, py: Python<'_>) {
        if self.is_closed(py) {
            return;
        }
        let waiting = self.forget_reader(py);
        let facts = self.remove(py);
        *self.state.open(py) = State::Closed(facts);
        // Another task, which finds out.
        if let Some(waiter) = waiting
            && let Err(error) = Waiter::wake(waiter.bind(py), false)
        {
            error.write_unraisable(py, None);
        }
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        !matches!(*self.state.open(py), State::Open)
    }

    /// Nobody is to be woken for it.
    fn forget_reader(&self, py: Python<'_>) -> Option<Py<Waiter>> {
        let mut calls = self.loop_driver.get().calls(py).ok()?;
        calls.set_read_waiter(self.id, None)
    }

    fn remove(&self, py: Python<'_>) -> CallInfo {
        let facts = self.live_facts(py);
        self.loop_driver.get().cancel(py, self.id);
        facts
    }

    fn live_facts(&self, py: Python<'_>) -> CallInfo {
        let calls = self.loop_driver.get().calls(py);
        calls.map(|calls| calls.facts(self.id)).unwrap_or_default()
    }
}

/// What one task reads. While it waits for bytes no other may ask for them: who gets which would be chance,
/// and one waiter is all that the desk wakes.
pub struct ExclusiveReader {
    source: Arc<AsyncBody>,
    /// It is this one that `is_awaited` speaks of.
    waits: bool,
}

impl ExclusiveReader {
    pub fn new(source: Arc<AsyncBody>) -> Self {
        Self {
            source,
            waits: false,
        }
    }

    pub fn source(&self) -> &AsyncBody {
        &self.source
    }

    /// The next bytes, at most `max`.
    pub fn pull(&mut self, py: Python<'_>, max: usize) -> PyResult<ReadOutcome> {
        if !self.waits && self.source.is_awaited.load(Relaxed) {
            return Err(second_reader());
        }
        let outcome = self.source.pull(py, max);
        self.set_waits(matches!(outcome, Ok(ReadOutcome::Pending)));
        outcome
    }

    /// Given up: the bytes stay where they are.
    pub fn abandon(&mut self, py: Python<'_>) {
        if self.waits {
            self.set_waits(false);
            drop(self.source.forget_reader(py));
        }
    }

    fn set_waits(&mut self, waits: bool) {
        if self.waits != waits {
            self.waits = waits;
            self.source.is_awaited.store(waits, Relaxed);
        }
    }
}

impl Drop for ExclusiveReader {
    fn drop(&mut self) {
        self.set_waits(false);
    }
}

fn second_reader() -> PyErr {
    UsageError::new_err(
        "the response is being read already: one task reads, and hands on what send_waiters mode",
    )
}

impl Source for AsyncBody {
    fn facts(&self, py: Python<'_>) -> CallInfo {
        if let State::Ended(facts, _) | State::Closed(facts) = *self.state.open(py) {
            return facts;
        }
        self.live_facts(py)
    }

    fn buffered(&self, py: Python<'_>) -> usize {
        if self.is_closed(py) {
            return 0;
        }
        let calls = self.loop_driver.get().calls(py);
        calls.map_or(0, |mut calls| calls.driver.buffered(self.id))
    }

    fn connection(&self) -> Option<&ConnectionFacts> {
        self.connection.as_deref()
    }

    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if let State::Ended(_, trailers) = &*self.state.open(py) {
            for (name, value) in trailers {
                list.append((PyBytes::new(py, name), PyBytes::new(py, value)))?;
            }
        }
        Ok(list)
    }
}

impl Drop for AsyncBody {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}
