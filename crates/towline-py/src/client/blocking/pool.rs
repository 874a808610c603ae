//! The connections of one synchronous client, shared by all threads.
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::client::{
    Blocking, BlockingCall, BlockingConfig, Body, CallOptions, Ended, Patience, PoolStatus,
    Prepared, Route,
};

use super::super::errors;
use super::super::head::{Head, view_to_list};
use super::super::pool_config::PoolConfig;
use super::super::pool_status::status_dict;
use super::super::request::{self, Origin, RequestParts, RouteCache};
use super::super::websocket::{Handshake, terms};
use super::body::SyncBody;
use super::reply::SyncReply;
use super::upload::upload;
use super::wait::detached;
use crate::gil::GilCell;

#[pyclass(frozen, subclass, weakref, module = "towline._native")]
pub struct SyncPool {
    terms: PoolConfig,
    routes: GilCell<RouteCache>,
    /// `None`: closed.
    blocking: GilCell<Option<Arc<Blocking>>>,
}

impl SyncPool {
    fn made(terms: &PoolConfig) -> Arc<Blocking> {
        Arc::new(Blocking::new(BlockingConfig {
            pool: terms.config.pool,
            dial: Arc::clone(&terms.config.dial),
            limits: Arc::clone(&terms.config.limits),
        }))
    }

    /// The connections of this process. A child of fork leaves its parent's alone.
    pub fn blocking(&self, py: Python<'_>) -> PyResult<Arc<Blocking>> {
        let mut blocking = self.blocking.open(py);
        let Some(found) = &mut *blocking else {
            return Err(errors::client_closed());
        };
        if found.is_foreign() {
            let parents = std::mem::replace(found, Self::made(&self.terms));
            parents.abandon();
        }
        Ok(Arc::clone(found))
    }

    pub fn terms(&self) -> &PoolConfig {
        &self.terms
    }

    pub fn route(
        &self,
        py: Python<'_>,
        origin: &Origin<'_>,
        sni: Option<&str>,
    ) -> PyResult<Arc<Route>> {
        self.routes.open(py).find(&self.terms, origin, sni)
    }

    /// One request, one response head.
    pub fn call(
        &self,
        py: Python<'_>,
        prepared: Prepared,
        options: CallOptions,
        streamed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Box<BlockingCall>, Head)> {
        let blocking = self.blocking(py)?;
        let Some(body) = streamed else {
            return detached(py, |patience| {
                let mut call = blocking.begin(prepared, options, patience)?;
                let head = await_head(&mut call, patience)?;
                Ok((Box::new(call), head))
            });
        };
        let mut call = detached(py, |patience| blocking.begin(prepared, options, patience))?;
        upload(&mut call, body)?;
        let head = detached(py, |patience| await_head(&mut call, patience))?;
        Ok((Box::new(call), head))
    }
}

fn await_head(call: &mut BlockingCall, patience: &mut Patience<'_>) -> Result<Head, Ended> {
    call.await_head(patience).map(Head::received)
}

#[pymethods]
impl SyncPool {
    #[new]
    fn new(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        let terms = PoolConfig::read(options)?;
        Ok(Self {
            blocking: GilCell::new(Some(Self::made(&terms))),
            terms,
            routes: GilCell::default(),
        })
    }

    #[pyo3(signature = (method, scheme, host, port, target, headers, body=None, *, timeout=None, sni=None, stale=None, on_informational=None))]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
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
        on_informational: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<SyncReply>> {
        let options = self.terms.call_options(timeout, stale)?;
        let (body, streamed) = match request::body_source(body, headers)? {
            request::BodySource::Whole(body) => (body, None),
            request::BodySource::Streamed(body, pieces) => (body, Some(pieces)),
        };
        if let Some(pieces) = &streamed
            && pieces.hasattr(intern!(py, "__aiter__"))?
        {
            return Err(PyTypeError::new_err(
                "body: a synchronous client cannot run an asynchronous iterator",
            ));
        }
        let parts = RequestParts {
            method,
            route: self.route(py, &Origin::new(scheme, host, port)?, sni)?,
            target,
            headers,
            body,
        };
        let (mut call, head) = self.call(py, parts.prepare()?, options, streamed.as_ref())?;
        if let Some(callback) = on_informational {
            for interim in call.take_informational() {
                let view = interim.view();
                callback.call1((view.status(), view_to_list(py, &view)?))?;
            }
        }
        SyncReply::make(py, Arc::new(head), Arc::new(SyncBody::new(call)))
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
    ) -> PyResult<Handshake> {
        // A client that is closed takes nothing more.
        self.blocking(py)?;
        let parts = RequestParts {
            method,
            route: self.route(py, &Origin::new(scheme, host, port)?, sni)?,
            target,
            headers,
            body: Body::Empty,
        };
        let options = self.terms.call_options(timeout, stale)?;
        let terms = terms(websocket)?;
        super::websocket::open(
            py,
            self.terms.config.clone(),
            parts.prepare()?,
            options,
            terms,
        )
    }

    /// Opens connections until `n` are idle; how many are.
    fn prewarm(
        &self,
        py: Python<'_>,
        scheme: &[u8],
        host: &[u8],
        port: Option<u16>,
        n: usize,
    ) -> PyResult<usize> {
        let route = self.route(py, &Origin::new(scheme, host, port)?, None)?;
        let blocking = self.blocking(py)?;
        let timeout = self.terms.defaults.timeouts.connect;
        detached(py, |patience| {
            blocking.prewarm(&route, n, timeout, patience)
        })?;
        Ok(blocking.status().idle)
    }

    fn pool_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = match self.blocking(py) {
            Ok(blocking) => blocking.status(),
            Err(_) => PoolStatus::default(),
        };
        status_dict(py, status)
    }

    /// Closes idle connections now and the others when their calls have ended.
    fn close(&self, py: Python<'_>) {
        let blocking = self.blocking.open(py).take();
        if let Some(blocking) = blocking
            && !blocking.is_foreign()
        {
            py.detach(|| blocking.close());
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.blocking.open(py).is_none()
    }
}
