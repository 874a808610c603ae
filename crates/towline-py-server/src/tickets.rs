//! Tickets of TLS sessions over QUIC that the workers of a server share.
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use towline_io::quic::{QuicLimits, TicketStore};

/// Tickets of TLS sessions in memory that forked processes share, or those that inherit its `descriptor`.
#[pyclass(frozen, name = "TicketStore", module = "towline._native")]
pub struct Tickets {
    store: Arc<TicketStore>,
    memory: Option<OwnedFd>,
}

#[pymethods]
impl Tickets {
    #[new]
    #[pyo3(signature = (descriptor = None, *, inheritable = false))]
    fn new(descriptor: Option<RawFd>, inheritable: bool) -> PyResult<Self> {
        let memory = inheritable.then(towline_io::shared_file).transpose()?;
        let file = descriptor.or(memory.as_ref().map(AsRawFd::as_raw_fd));
        let store = TicketStore::new(QuicLimits::server().early_data_tickets, file);
        let store = store.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self {
            store: Arc::new(store),
            memory,
        })
    }

    #[getter]
    fn descriptor(&self) -> Option<RawFd> {
        self.memory.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// The tickets of a bind, if the workers share them.
#[derive(Clone, Debug, Default)]
pub struct SharedTickets(pub Option<Arc<TicketStore>>);

impl<'py> FromPyObject<'_, 'py> for SharedTickets {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let tickets: Option<PyRef<'_, Tickets>> = value.extract()?;
        Ok(Self(tickets.map(|tickets| Arc::clone(&tickets.store))))
    }
}
