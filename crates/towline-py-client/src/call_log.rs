//! The switch of logging and tracing, which are done in Python: `client/observe.py`.
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use towline_io::client::connection_log::{self, ConnectionEvent};

use super::reply::address;

static OBSERVED: AtomicBool = AtomicBool::new(false);

/// Whether calls are logged or traced, and so leave the fast path.
pub fn is_observed() -> bool {
    OBSERVED.load(Ordering::Relaxed)
}

/// `calls`: every call of every client goes through Python. `connections`: their events are kept to be taken.
#[pyfunction]
#[pyo3(signature = (*, calls, connections))]
pub fn observe_calls(calls: bool, connections: bool) {
    OBSERVED.store(calls, Ordering::Relaxed);
    connection_log::set_enabled(connections);
}

/// The name of an event, the local and the remote address.
type TakenEvent<'py> = (&'static str, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Removes and returns the events of connections, at most the 1,024 latest.
#[pyfunction]
pub fn take_connection_events(py: Python<'_>) -> PyResult<Vec<TakenEvent<'_>>> {
    let events = connection_log::take().into_iter();
    let described = events.map(|(event, info)| {
        let name = match event {
            ConnectionEvent::Closed => "closed",
            ConnectionEvent::Resent => "resent",
        };
        Ok((
            name,
            address(py, Some(&info.local))?,
            address(py, Some(&info.remote))?,
        ))
    });
    described.collect()
}
