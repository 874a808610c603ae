//! `SyncPool`: the connections of one synchronous client, shared by all threads.
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::client::{
    BlockingCall, BlockingClient, BlockingConfig, BlockingError, Body, CallOptions,
    OutgoingRequest, PoolStatus, Route, WaitPolicy, WebSocketConfig,
};

use super::super::errors;
use super::super::head::{Head, view_to_list};
use super::super::pool_config::PoolConfig;
use super::super::pool_methods::{Exchange, pool_methods, status_dict};
use super::super::request::{self, Origin, RequestParts, RouteCache};
use super::super::websocket::{self, Handshake};
use super::body::SyncBody;
use super::reply::SyncReply;
use super::upload::{Upload, read_on};
use super::wait::detached;
use towline_py_common::cell::StateCell;

#[pyclass(frozen, subclass, weakref, module = "towline._native")]
pub struct SyncPool {
    config: PoolConfig,
    routes: StateCell<RouteCache>,
    /// `None`: closed.
    blocking: StateCell<Option<Arc<BlockingClient>>>,
}

impl SyncPool {
    fn new_pool(config: &PoolConfig) -> Arc<BlockingClient> {
        Arc::new(BlockingClient::new(BlockingConfig {
            pool: config.driver.pool,
            dial: Arc::clone(&config.driver.dial),
            limits: Arc::clone(&config.driver.limits),
        }))
    }

    /// The connections of this process. After a fork the child opens its own and leaves the parent's open.
    pub fn blocking(&self, py: Python<'_>) -> PyResult<Arc<BlockingClient>> {
        let mut blocking = self.blocking.open(py);
        let Some(current) = &mut *blocking else {
            return Err(errors::client_closed());
        };
        if current.is_from_parent_process() {
            let inherited = std::mem::replace(current, Self::new_pool(&self.config));
            inherited.close_after_fork();
        }
        Ok(Arc::clone(current))
    }

    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    pub fn route(
        &self,
        py: Python<'_>,
        origin: &Origin<'_>,
        sni: Option<&str>,
    ) -> PyResult<Arc<Route>> {
        self.routes.open(py).find(&self.config, origin, sni)
    }

    /// Sends a request and waits for the response head.
    pub fn call(
        &self,
        py: Python<'_>,
        prepared: OutgoingRequest,
        options: CallOptions,
    ) -> PyResult<(Box<BlockingCall>, Head)> {
        let blocking = self.blocking(py)?;
        detached(py, |wait| {
            let mut call = blocking.begin(prepared, options, wait)?;
            let head = await_head(&mut call, wait)?;
            Ok((Box::new(call), head))
        })
    }

    /// As `call`, with a body in pieces. Also returns the rest of it.
    fn call_streamed(
        &self,
        py: Python<'_>,
        prepared: OutgoingRequest,
        options: CallOptions,
        body: &Bound<'_, PyAny>,
    ) -> PyResult<(Box<BlockingCall>, Head, Option<Box<Upload>>)> {
        let blocking = self.blocking(py)?;
        let call = detached(py, |wait| blocking.begin(prepared, options, wait))?;
        let mut call = Box::new(call);
        let rest = Upload::start(&mut call, body)?;
        let head = detached(py, |wait| await_head(&mut call, wait))?;
        let mut rest = rest.filter(|_| call.wants_body());
        if rest.is_some() && call.is_response_complete() {
            // Nobody reads a response without content.
            read_on(py, &mut call, &mut rest, 1, |_| ())?;
        }
        Ok((call, head, rest))
    }

    fn send(&self, py: Python<'_>, exchange: Exchange<'_>) -> PyResult<Py<SyncReply>> {
        let Exchange {
            request,
            options,
            pieces,
            on_informational,
        } = exchange;
        let (mut call, head, upload) = if let Some(body) = pieces {
            if body.hasattr(intern!(py, "__aiter__"))? {
                return Err(PyTypeError::new_err(
                    "body: a synchronous client cannot run an asynchronous iterator",
                ));
            }
            self.call_streamed(py, request, options, &body)?
        } else {
            let (call, head) = self.call(py, request, options)?;
            (call, head, None)
        };
        if let Some(callback) = on_informational {
            for interim in call.take_informational() {
                let view = interim.view();
                callback.call1(py, (view.status(), view_to_list(py, &view)?))?;
            }
        }
        SyncReply::make(py, Arc::new(head), Arc::new(SyncBody::new(call, upload)))
    }

    fn shake_hands(
        &self,
        py: Python<'_>,
        request: OutgoingRequest,
        options: CallOptions,
        config: WebSocketConfig,
    ) -> PyResult<Handshake> {
        // Raises ClientClosed if the pool is closed: a WebSocket has a connection of its own.
        self.blocking(py)?;
        super::websocket::open(py, self.config.driver.clone(), request, options, config)
    }

    fn open_idle(&self, py: Python<'_>, route: &Arc<Route>, n: usize) -> PyResult<usize> {
        let blocking = self.blocking(py)?;
        let timeout = self.config.defaults.timeouts.connect;
        detached(py, |wait| blocking.prewarm(route, n, timeout, wait))?;
        Ok(blocking.status().idle)
    }

    fn status(&self, py: Python<'_>) -> PoolStatus {
        self.blocking(py)
            .map(|blocking| blocking.status())
            .unwrap_or_default()
    }

    fn is_closed(&self, py: Python<'_>) -> bool {
        self.blocking.open(py).is_none()
    }
}

fn await_head(call: &mut BlockingCall, wait: &mut WaitPolicy<'_>) -> Result<Head, BlockingError> {
    call.await_head(wait).map(Head::from_wire)
}

pool_methods!(SyncPool, Py<SyncReply>, Handshake, usize, {
    #[new]
    fn new(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        let config = PoolConfig::read(options)?;
        Ok(Self {
            blocking: StateCell::new(Some(Self::new_pool(&config))),
            config,
            routes: StateCell::default(),
        })
    }

    /// Closes idle connections now, and the others when their calls have ended.
    fn close(&self, py: Python<'_>) {
        let blocking = self.blocking.open(py).take();
        if let Some(blocking) = blocking
            && !blocking.is_from_parent_process()
        {
            py.detach(|| blocking.close());
        }
    }
});
