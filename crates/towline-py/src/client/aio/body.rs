//! The body of a reply, in its hub.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use towline_io::call::{CallId, ConnectionFacts};

use super::super::reply::{Facts, Source};
use super::calls::Pulled;
use super::loop_driver::Hub;
use super::waiter::Waiter;
use crate::errors::{StreamConsumed, UsageError};
use crate::gil::GilCell;

pub struct AsyncSource {
    pub hub: Py<Hub>,
    pub id: CallId,
    connection: Option<Arc<ConnectionFacts>>,
    state: GilCell<State>,
    /// A reading waits for bytes.
    is_awaited: AtomicBool,
}

enum State {
    Open,
    /// Read to its end.
    Ended(Facts, Trailers),
    /// Given up before.
    Closed(Facts),
}

type Trailers = Vec<(Vec<u8>, Vec<u8>)>;

impl AsyncSource {
    pub fn new(py: Python<'_>, hub: Py<Hub>, id: CallId) -> Self {
        let desk = hub.get().desk(py);
        let connection = desk.ok().and_then(|desk| desk.caller.facts(id).cloned());
        Self {
            hub,
            id,
            connection,
            state: GilCell::new(State::Open),
            is_awaited: AtomicBool::new(false),
        }
    }

    /// The next bytes, at most `max`.
    fn pull(&self, py: Python<'_>, max: usize) -> PyResult<Pulled> {
        match *self.state.open(py) {
            State::Open => {}
            State::Ended(..) => return Ok(Pulled::End),
            State::Closed(_) => {
                return Err(StreamConsumed::new_err("the response has been closed"));
            }
        }
        let pulled = self.hub.get().desk(py)?.pull(py, self.id, max);
        match pulled {
            Ok(Pulled::End) => {
                let trailers = self.hub.get().desk(py)?.caller.trailers(self.id).to_vec();
                let facts = self.put_away(py);
                *self.state.open(py) = State::Ended(facts, trailers);
                Ok(Pulled::End)
            }
            Ok(pulled) => Ok(pulled),
            Err(failure) => {
                let facts = self.put_away(py);
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
        let facts = self.put_away(py);
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
        let mut desk = self.hub.get().desk(py).ok()?;
        desk.set_reader(self.id, None)
    }

    fn put_away(&self, py: Python<'_>) -> Facts {
        let facts = self.live_facts(py);
        self.hub.get().cancel(py, self.id);
        facts
    }

    fn live_facts(&self, py: Python<'_>) -> Facts {
        let desk = self.hub.get().desk(py);
        desk.map(|desk| desk.facts(self.id)).unwrap_or_default()
    }
}

/// What one task reads. While it waits for bytes no other may ask for them: who gets which would be chance,
/// and one waiter is all that the desk wakes.
pub struct Reading {
    source: Arc<AsyncSource>,
    /// It is this one that `is_awaited` speaks of.
    waits: bool,
}

impl Reading {
    pub fn new(source: Arc<AsyncSource>) -> Self {
        Self {
            source,
            waits: false,
        }
    }

    pub fn source(&self) -> &AsyncSource {
        &self.source
    }

    /// The next bytes, at most `max`.
    pub fn pull(&mut self, py: Python<'_>, max: usize) -> PyResult<Pulled> {
        if !self.waits && self.source.is_awaited.load(Relaxed) {
            return Err(second_reader());
        }
        let pulled = self.source.pull(py, max);
        self.set_waits(matches!(pulled, Ok(Pulled::Pending)));
        pulled
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

impl Drop for Reading {
    fn drop(&mut self) {
        self.set_waits(false);
    }
}

fn second_reader() -> PyErr {
    UsageError::new_err(
        "the response is being read already: one task reads, and hands on what others want",
    )
}

impl Source for AsyncSource {
    fn facts(&self, py: Python<'_>) -> Facts {
        if let State::Ended(facts, _) | State::Closed(facts) = *self.state.open(py) {
            return facts;
        }
        self.live_facts(py)
    }

    fn buffered(&self, py: Python<'_>) -> usize {
        if self.is_closed(py) {
            return 0;
        }
        let desk = self.hub.get().desk(py);
        desk.map_or(0, |mut desk| desk.caller.buffered(self.id))
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

impl Drop for AsyncSource {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}
