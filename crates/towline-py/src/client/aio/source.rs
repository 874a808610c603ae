//! The body of a reply, in its hub.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use towline_io::call::{CallId, ConnectionFacts};

use super::super::reply::{Facts, Source};
use super::desk::Pulled;
use super::hub::Hub;
use crate::errors::StreamConsumed;
use crate::gil::GilCell;

pub struct AsyncSource {
    pub hub: Py<Hub>,
    pub id: CallId,
    connection: Option<Arc<ConnectionFacts>>,
    state: GilCell<State>,
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
        }
    }

    /// The next bytes, at most `max`.
    pub fn pull(&self, py: Python<'_>, max: usize) -> PyResult<Pulled> {
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
        let is_open = matches!(*self.state.open(py), State::Open);
        if is_open {
            let facts = self.put_away(py);
            *self.state.open(py) = State::Closed(facts);
        }
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        !matches!(*self.state.open(py), State::Open)
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
