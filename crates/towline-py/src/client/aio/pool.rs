//! Connections of one client, a hub for each event loop that uses it.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::call::{Body, PoolStatus, Route};

use super::super::errors;
use super::super::pool_config::PoolTerms;
use super::super::pool_status::status_dict;
use super::super::request::{self, Origin, Parts, Routes, Source};
use super::super::websocket;
use super::awaitable::Call;
use super::calls::Want;
use super::event_loop::Home;
use super::loop_driver::Hub;
use super::pending_op::Operation;
use super::upload::Upload;
use super::websocket::Task;
use crate::gil::GilCell;

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct AsyncPool {
    pub terms: Arc<PoolTerms>,
    routes: GilCell<Routes>,
    hubs: GilCell<Vec<Py<Hub>>>,
    closed: GilCell<bool>,
}

impl AsyncPool {
    /// The hub of the loop that is running.
    pub fn hub(&self, py: Python<'_>) -> PyResult<Py<Hub>> {
        if *self.closed.open(py) {
            return Err(errors::client_closed());
        }
        let home = Home::running(py)?;
        {
            let hubs = self.hubs.open(py);
            if let Some(hub) = hubs.iter().find(|hub| hub.get().serves(py, &home)) {
                return Ok(hub.clone_ref(py));
            }
        }
        self.forget_stale(py);
        let hub = Hub::new(py, home, self.terms.config.clone())?;
        self.hubs.open(py).push(hub.clone_ref(py));
        Ok(hub)
    }

    /// Drops the hubs of loops that are closed, and those of a parent process.
    fn forget_stale(&self, py: Python<'_>) {
        let hubs = std::mem::take(&mut *self.hubs.open(py));
        let (stale, live): (Vec<_>, Vec<_>) =
            hubs.into_iter().partition(|hub| hub.get().is_stale(py));
        self.hubs.open(py).extend(live);
        for hub in stale {
            // Nobody watches its descriptor any more.
            let _ = hub.get().forget(py);
        }
    }

    pub fn route(
        &self,
        py: Python<'_>,
        origin: &Origin<'_>,
        sni: Option<&str>,
    ) -> PyResult<Arc<Route>> {
        self.routes.open(py).find(&self.terms, origin, sni)
    }

    /// Closes every hub but that of the running loop, which is returned.
    fn close(&self, py: Python<'_>) -> Option<Py<Hub>> {
        *self.closed.open(py) = true;
        self.forget_stale(py);
        let here = Home::running(py).ok();
        let hubs = std::mem::take(&mut *self.hubs.open(py));
        let mut own = None;
        for hub in hubs {
            if here.as_ref().is_some_and(|here| hub.get().home.is(here)) {
                own = Some(hub);
            } else {
                close_from_afar(py, &hub);
            }
        }
        own
    }
}

/// Another thread's loop closes its hub itself, unless it has gone meanwhile.
fn close_from_afar(py: Python<'_>, hub: &Py<Hub>) {
    let close = hub.bind(py).getattr("close");
    let _ = close.and_then(|close| hub.get().home.call_from_thread(py, &close));
}

#[pymethods]
impl AsyncPool {
    #[new]
    fn new(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            terms: Arc::new(PoolTerms::read(options)?),
            routes: GilCell::default(),
            hubs: GilCell::default(),
            closed: GilCell::new(false),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    #[pyo3(signature = (method, scheme, host, port, target, headers, body=None, *, timeout=None, sni=None, stale=None, on_informational=None))]
    fn exchange(
        &self,
        py: Python<'_>,
        method: &[u8],
        scheme: &[u8],
        host: &[u8],
        port: Option<u16>,
        target: &[u8],
        headers: &Bound<'_, PyAny>,
        body: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        sni: Option<&str>,
        stale: Option<&Bound<'_, PyAny>>,
        on_informational: Option<Py<PyAny>>,
    ) -> PyResult<Py<Call>> {
        let hub = self.hub(py)?;
        let route = self.route(py, &Origin::new(scheme, host, port)?, sni)?;
        let options = self.terms.call_options(timeout, stale)?;
        let (body, pieces) = match request::source(body, headers)? {
            Source::Whole(body) => (body, None),
            Source::Streamed(size, pieces) => (size, Some(pieces.unbind())),
        };
        let parts = Parts {
            method,
            route,
            target,
            headers,
            body,
        };
        let request = parts.prepare()?;
        let begun = Hub::begin(hub.bind(py), request, options, Want::Head, on_informational)?;
        match (begun, pieces) {
            (Err(error), _) => Call::failed(py, errors::call_error(py, &error)),
            (Ok(id), None) => Call::of(py, Operation::exchange(hub, id)),
            (Ok(id), Some(pieces)) => Call::upload(py, Upload::new(hub, id), pieces),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    #[pyo3(signature = (method, scheme, host, port, target, headers, websocket, *, timeout=None, sni=None, stale=None))]
    fn open_websocket(
        &self,
        py: Python<'_>,
        method: &[u8],
        scheme: &[u8],
        host: &[u8],
        port: Option<u16>,
        target: &[u8],
        headers: &Bound<'_, PyAny>,
        websocket: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        sni: Option<&str>,
        stale: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Call>> {
        let hub = self.hub(py)?;
        let parts = Parts {
            method,
            route: self.route(py, &Origin::new(scheme, host, port)?, sni)?,
            target,
            headers,
            body: Body::Empty,
        };
        let options = self.terms.call_options(timeout, stale)?;
        let (request, terms) = (parts.prepare()?, websocket::terms(websocket)?);
        let begun = hub.get().desk(py)?.begin_websocket(request, options, terms);
        match begun {
            Err(error) => Call::failed(py, errors::call_error(py, &error)),
            Ok(id) => {
                Hub::flush_soon(hub.bind(py))?;
                Call::of(py, Operation::socket(hub, Task::Open(id)))
            }
        }
    }

    fn prewarm(
        &self,
        py: Python<'_>,
        scheme: &[u8],
        host: &[u8],
        port: Option<u16>,
        n: usize,
    ) -> PyResult<Py<Call>> {
        let hub = self.hub(py)?;
        let route = self.route(py, &Origin::new(scheme, host, port)?, None)?;
        hub.get().desk(py)?.caller.prewarm(&route, n);
        Call::of(py, Operation::prewarm(hub))
    }

    fn pool_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.forget_stale(py);
        let mut sum = PoolStatus::default();
        for hub in self.hubs.open(py).iter() {
            sum += hub.get().status(py);
        }
        status_dict(py, sum)
    }

    fn aclose(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        match self.close(py) {
            Some(hub) => {
                hub.get().close(py)?;
                Call::of(py, Operation::close(hub))
            }
            None => Call::ready(py, py.None()),
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        *self.closed.open(py)
    }
}

impl Drop for AsyncPool {
    fn drop(&mut self) {
        Python::attach(|py| {
            if let Some(hub) = self.close(py) {
                // What is under way goes on; the hub ends with it.
                let _ = hub.get().close(py);
            }
        });
    }
}
