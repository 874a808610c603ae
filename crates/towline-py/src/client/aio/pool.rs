//! Connections of one client, a loop_driver for each event loop that uses it.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::client::{Body, PoolStatus, Route};

use super::super::errors;
use super::super::pool_config::PoolConfig;
use super::super::pool_status::status_dict;
use super::super::request::{self, BodySource, Origin, RequestParts, RouteCache};
use super::super::websocket;
use super::awaitable::Call;
use super::calls::ResponseMode;
use super::event_loop::EventLoop;
use super::loop_driver::LoopDriver;
use super::pending_op::PendingOp;
use super::upload::Upload;
use super::websocket::WsOp;
use crate::gil::GilCell;

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct AsyncPool {
    pub terms: Arc<PoolConfig>,
    routes: GilCell<RouteCache>,
    loop_drivers: GilCell<Vec<Py<LoopDriver>>>,
    closed: GilCell<bool>,
}

impl AsyncPool {
    /// The loop_driver of the loop that is running.
    pub fn loop_driver(&self, py: Python<'_>) -> PyResult<Py<LoopDriver>> {
        if *self.closed.open(py) {
            return Err(errors::client_closed());
        }
        let event_loop = EventLoop::running(py)?;
        {
            let loop_drivers = self.loop_drivers.open(py);
            if let Some(loop_driver) = loop_drivers
                .iter()
                .find(|loop_driver| loop_driver.get().serves(py, &event_loop))
            {
                return Ok(loop_driver.clone_ref(py));
            }
        }
        self.remove_stale(py);
        let loop_driver = LoopDriver::new(py, event_loop, self.terms.config.clone())?;
        self.loop_drivers.open(py).push(loop_driver.clone_ref(py));
        Ok(loop_driver)
    }

    /// Drops the loop_drivers of loops that are closed, and those of a parent process.
    fn remove_stale(&self, py: Python<'_>) {
        let loop_drivers = std::mem::take(&mut *self.loop_drivers.open(py));
        let (stale, live): (Vec<_>, Vec<_>) = loop_drivers
            .into_iter()
            .partition(|loop_driver| loop_driver.get().is_stale(py));
        self.loop_drivers.open(py).extend(live);
        for loop_driver in stale {
            // Nobody watches its descriptor any more.
            let _ = loop_driver.get().forget(py);
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

    /// Closes every loop_driver but that of the running loop, which is returned.
    fn close(&self, py: Python<'_>) -> Option<Py<LoopDriver>> {
        *self.closed.open(py) = true;
        self.remove_stale(py);
        let here = EventLoop::running(py).ok();
        let loop_drivers = std::mem::take(&mut *self.loop_drivers.open(py));
        let mut own = None;
        for loop_driver in loop_drivers {
            if here
                .as_ref()
                .is_some_and(|here| loop_driver.get().event_loop.is(here))
            {
                own = Some(loop_driver);
            } else {
                close_from_thread(py, &loop_driver);
            }
        }
        own
    }
}

/// Another thread's loop closes its loop_driver itself, unless it has gone meanwhile.
fn close_from_thread(py: Python<'_>, loop_driver: &Py<LoopDriver>) {
    let close = loop_driver.bind(py).getattr("close");
    let _ = close.and_then(|close| loop_driver.get().event_loop.call_from_thread(py, &close));
}

#[pymethods]
impl AsyncPool {
    #[new]
    fn new(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            terms: Arc::new(PoolConfig::read(options)?),
            routes: GilCell::default(),
            loop_drivers: GilCell::default(),
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
        let loop_driver = self.loop_driver(py)?;
        let route = self.route(py, &Origin::new(scheme, host, port)?, sni)?;
        let options = self.terms.call_options(timeout, stale)?;
        let (body, pieces) = match request::body_source(body, headers)? {
            BodySource::Whole(body) => (body, None),
            BodySource::Streamed(size, pieces) => (size, Some(pieces.unbind())),
        };
        let parts = RequestParts {
            method,
            route,
            target,
            headers,
            body,
        };
        let request = parts.prepare()?;
        let begun = LoopDriver::begin(
            loop_driver.bind(py),
            request,
            options,
            ResponseMode::Streamed,
            on_informational,
        )?;
        match (begun, pieces) {
            (Err(error), _) => Call::failed(py, errors::call_error(py, &error)),
            (Ok(id), None) => Call::of(py, PendingOp::exchange(loop_driver, id)),
            (Ok(id), Some(pieces)) => Call::upload(py, Upload::new(loop_driver, id), pieces),
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
        let loop_driver = self.loop_driver(py)?;
        let parts = RequestParts {
            method,
            route: self.route(py, &Origin::new(scheme, host, port)?, sni)?,
            target,
            headers,
            body: Body::Empty,
        };
        let options = self.terms.call_options(timeout, stale)?;
        let (request, terms) = (parts.prepare()?, websocket::terms(websocket)?);
        let begun = loop_driver
            .get()
            .calls(py)?
            .begin_websocket(request, options, terms);
        match begun {
            Err(error) => Call::failed(py, errors::call_error(py, &error)),
            Ok(id) => {
                LoopDriver::flush_soon(loop_driver.bind(py))?;
                Call::of(py, PendingOp::socket(loop_driver, WsOp::Open(id)))
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
        let loop_driver = self.loop_driver(py)?;
        let route = self.route(py, &Origin::new(scheme, host, port)?, None)?;
        loop_driver.get().calls(py)?.driver.prewarm(&route, n);
        Call::of(py, PendingOp::prewarm(loop_driver))
    }

    fn pool_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.remove_stale(py);
        let mut sum = PoolStatus::default();
        for loop_driver in self.loop_drivers.open(py).iter() {
            sum += loop_driver.get().status(py);
        }
        status_dict(py, sum)
    }

    fn aclose(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        match self.close(py) {
            Some(loop_driver) => {
                loop_driver.get().close(py)?;
                Call::of(py, PendingOp::close(loop_driver))
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
            if let Some(loop_driver) = self.close(py) {
                // What is under way goes on; the loop_driver ends with it.
                let _ = loop_driver.get().close(py);
            }
        });
    }
}
