//! Tickets of TLS sessions over QUIC that the workers of a server share.
use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use towline_io::quic::{QuicLimits, TicketStore};

/// Tickets of TLS sessions in memory that forked processes share.
#[pyclass(frozen, name = "TicketStore", module = "towline._native")]
pub struct Tickets(Arc<TicketStore>);

#[pymethods]
impl Tickets {
    #[new]
    fn new() -> PyResult<Self> {
        let store = TicketStore::new(QuicLimits::server().early_data_tickets);
        let store = store.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self(Arc::new(store)))
    }
}

/// The tickets of a bind, if the workers share them.
#[derive(Clone, Debug, Default)]
pub struct SharedTickets(pub Option<Arc<TicketStore>>);

impl<'py> FromPyObject<'_, 'py> for SharedTickets {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let tickets: Option<PyRef<'_, Tickets>> = value.extract()?;
        Ok(Self(tickets.map(|tickets| Arc::clone(&tickets.0))))
    }
}
