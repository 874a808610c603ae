//! `AsyncPool`: the connections of one asynchronous client, with one driver for each event loop that uses it.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::client::{Body, CallOptions, OutgoingRequest, PoolStatus, Route, WebSocketConfig};

use super::super::errors;
use super::super::pool_config::PoolConfig;
use super::super::pool_methods::{Exchange, pool_methods, status_dict};
use super::super::request::{self, Origin, RequestParts, RouteCache};
use super::super::websocket;
use super::awaitable::Call;
use super::calls::{ResponseMode, WaitFor};
use super::loop_driver::LoopDriver;
use super::pending_op::{OpOutcome, PendingOp};
use super::reply::ReplyOp;
use super::upload::Upload;
use super::websocket::WsOp;
use towline_py_common::cell::StateCell;
use towline_py_common::event_loop::EventLoop;

#[pyclass(frozen, subclass, module = "towline._native")]
pub struct AsyncPool {
    pub config: Arc<PoolConfig>,
    routes: StateCell<RouteCache>,
    /// `None`: closed.
    loop_drivers: StateCell<Option<Vec<Py<LoopDriver>>>>,
}

impl AsyncPool {
    /// The driver of the running loop.
    pub fn loop_driver(&self, py: Python<'_>) -> PyResult<Py<LoopDriver>> {
        let event_loop = EventLoop::running(py);
        {
            let loop_drivers = self.loop_drivers.open(py);
            let loop_drivers = loop_drivers.as_ref().ok_or_else(errors::client_closed)?;
            let event_loop = event_loop.as_ref().map_err(|error| error.clone_ref(py))?;
            if let Some(loop_driver) = loop_drivers
                .iter()
                .find(|loop_driver| loop_driver.get().serves(event_loop))
            {
                loop_driver.get().thread.moved_here();
                return Ok(loop_driver.clone_ref(py));
            }
        }
        self.remove_stale(py);
        let loop_driver = LoopDriver::new(py, event_loop?, self.config.driver.clone())?;
        if let Some(loop_drivers) = &mut *self.loop_drivers.open(py) {
            loop_drivers.push(loop_driver.clone_ref(py));
            return Ok(loop_driver);
        }
        // Another thread has closed the pool.
        loop_driver.get().abort(py)?;
        Err(errors::client_closed())
    }

    /// Removes the drivers of closed loops, and the ones inherited from a parent process.
    fn remove_stale(&self, py: Python<'_>) {
        for loop_driver in self.all(py) {
            if loop_driver.get().is_stale(py) {
                if let Some(loop_drivers) = &mut *self.loop_drivers.open(py) {
                    loop_drivers.retain(|other| !other.is(&loop_driver));
                }
                // An error cannot be reported: no task waits for this driver.
                let _ = loop_driver.get().abort(py);
            }
        }
    }

    fn all(&self, py: Python<'_>) -> Vec<Py<LoopDriver>> {
        let loop_drivers = self.loop_drivers.open(py);
        let loop_drivers = loop_drivers.iter().flatten();
        loop_drivers
            .map(|loop_driver| loop_driver.clone_ref(py))
            .collect()
    }

    pub fn route(
        &self,
        py: Python<'_>,
        origin: &Origin<'_>,
        sni: Option<&str>,
    ) -> PyResult<Arc<Route>> {
        self.routes.open(py).find(&self.config, origin, sni)
    }

    /// Closes every driver except the one of the running loop, which is returned.
    fn close(&self, py: Python<'_>) -> Option<Py<LoopDriver>> {
        self.remove_stale(py);
        let here = EventLoop::running(py).ok();
        let loop_drivers = self.loop_drivers.open(py).take().unwrap_or_default();
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

    fn send(&self, py: Python<'_>, exchange: Exchange<'_>) -> PyResult<Py<Call>> {
        let loop_driver = self.loop_driver(py)?;
        let started = LoopDriver::start(
            loop_driver.bind(py),
            exchange.request,
            exchange.options,
            ResponseMode::Streamed,
            exchange.on_informational,
        )?;
        match (started, exchange.pieces) {
            (Err(error), _) => Call::failed(py, errors::call_error(py, &error)),
            (Ok(id), None) => Call::native(py, loop_driver, ReplyOp { id, upload: None }),
            (Ok(id), Some(pieces)) => Upload::start(py, loop_driver, id, pieces.unbind()),
        }
    }

    fn shake_hands(
        &self,
        py: Python<'_>,
        request: OutgoingRequest,
        options: CallOptions,
        config: WebSocketConfig,
    ) -> PyResult<Py<Call>> {
        let loop_driver = self.loop_driver(py)?;
        let started = loop_driver
            .get()
            .calls(py)?
            .start_websocket(request, options, config);
        match started {
            Err(error) => Call::failed(py, errors::call_error(py, &error)),
            Ok(id) => {
                LoopDriver::flush_soon(loop_driver.bind(py))?;
                Call::native(py, loop_driver, WsOp::Open(id))
            }
        }
    }

    fn open_idle(&self, py: Python<'_>, route: &Arc<Route>, n: usize) -> PyResult<Py<Call>> {
        let loop_driver = self.loop_driver(py)?;
        loop_driver.get().calls(py)?.driver.prewarm(route, n);
        Call::native(py, loop_driver, PrewarmOp)
    }

    fn status(&self, py: Python<'_>) -> PoolStatus {
        self.remove_stale(py);
        let mut sum = PoolStatus::default();
        for loop_driver in self.all(py) {
            sum += loop_driver.get().status(py);
        }
        sum
    }

    fn is_closed(&self, py: Python<'_>) -> bool {
        self.loop_drivers.open(py).is_none()
    }
}

/// Has another thread's loop close its driver, unless that loop is closed.
fn close_from_thread(py: Python<'_>, loop_driver: &Py<LoopDriver>) {
    let close = loop_driver.bind(py).getattr("close");
    let _ = close.and_then(|close| loop_driver.get().event_loop.call_from_thread(py, &close));
}

pool_methods!(AsyncPool, Py<Call>, Py<Call>, Py<Call>, {
    #[new]
    fn new(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            config: Arc::new(PoolConfig::read(options)?),
            routes: StateCell::default(),
            loop_drivers: StateCell::new(Some(Vec::new())),
        })
    }

    fn aclose(&self, py: Python<'_>) -> PyResult<Py<Call>> {
        match self.close(py) {
            Some(loop_driver) => {
                loop_driver.get().close(py)?;
                Call::native(py, loop_driver, CloseOp)
            }
            None => Call::ready(py, py.None()),
        }
    }
});

impl Drop for AsyncPool {
    fn drop(&mut self) {
        Python::attach(|py| {
            if let Some(loop_driver) = self.close(py) {
                // Calls in flight continue; the driver closes after the last.
                let _ = loop_driver.get().close(py);
            }
        });
    }
}

/// Waits until no dial is in progress; returns the number of idle connections.
struct PrewarmOp;

impl PendingOp for PrewarmOp {
    fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<OpOutcome>> {
        let status = loop_driver.get().status(py);
        if status.dialling > 0 {
            return Ok(None);
        }
        let idle = status.idle.into_pyobject(py)?.into_any().unbind();
        Ok(Some(OpOutcome::Done(idle)))
    }

    fn waits_for(&self) -> WaitFor {
        WaitFor::Turn
    }
}

/// Waits until the driver is closed.
struct CloseOp;

impl PendingOp for CloseOp {
    fn poll(
        &mut self,
        py: Python<'_>,
        loop_driver: &Py<LoopDriver>,
    ) -> PyResult<Option<OpOutcome>> {
        let is_closed = loop_driver.get().is_closed();
        Ok(is_closed.then(|| OpOutcome::Done(py.None())))
    }

    fn waits_for(&self) -> WaitFor {
        WaitFor::Turn
    }
}
