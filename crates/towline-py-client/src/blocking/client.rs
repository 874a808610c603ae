//! The native base class of `Client`.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::client::Route;

use super::super::core::{ClientConfig, Core, FastCall, PoolKind, upper_case};
use super::super::finish::{BufferedResponse, FinishOutcome, ResponseFinish};
use super::super::methods::{client_methods, named_only};
use super::super::pool_config::PoolConfig;
use super::super::reply::ReplyBody;
use super::super::request::Origin;
use super::super::sent_request::SentRequest;
use super::body::SyncBody;
use super::pool::SyncPool;

#[pyclass(frozen, subclass, dict, weakref, module = "towline._native")]
pub struct ClientCore {
    core: Core<SyncPool>,
}

impl PoolKind for SyncPool {
    fn config<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolConfig {
        pool.get().config()
    }

    fn route(pool: &Bound<'_, Self>, origin: &Origin<'_>) -> PyResult<Arc<Route>> {
        pool.get().route(pool.py(), origin, None)
    }
}

client_methods!(
    ClientCore,
    SyncPool,
    Py<PyAny>,
    "returns its `Response`, whose body is read"
);

impl ClientCore {
    /// Returns `None` if the call cannot take the fast path.
    pub fn resolve<'py>(
        &self,
        client: &Bound<'py, Self>,
        method: &Bound<'py, PyString>,
        url: &Bound<'py, PyAny>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<FastCall<'py, SyncPool>>> {
        self.core.resolve(client.as_any(), method, url, arguments)
    }

    /// Runs a request: natively if possible, otherwise through `_slow_request`.
    fn call(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let fast = slf.get().resolve(slf, method, url, arguments)?;
        let Some(fast) = fast else {
            let request = slf.getattr(intern!(py, "_slow_request"))?;
            return Ok(request.call((method, url), arguments)?.unbind());
        };
        let finish = ResponseFinish {
            config: Arc::clone(&fast.config),
            client: slf.clone().into_any().unbind(),
            sent: SentRequest::new(&fast.request, &fast.options, fast.follow_redirects),
            follow_redirects: fast.follow_redirects,
        };
        let response = exchange(py, fast).map_err(|error| finish.failed(py, error))?;
        match finish.finish(py, response)? {
            FinishOutcome::Response(response) | FinishOutcome::FromPython(response) => Ok(response),
        }
    }
}

/// Sends a request and buffers the response. A small response costs one release of the GIL.
fn exchange(py: Python<'_>, fast: FastCall<'_, SyncPool>) -> PyResult<BufferedResponse> {
    let limits = fast.config.limits();
    let pool = fast.pool.get();
    let (call, head) = pool.call(py, fast.request, fast.options)?;
    let body = SyncBody::new(call, None);
    let content = body.read_all(py, &head, limits)?;
    Ok(BufferedResponse {
        head: Arc::new(head),
        content,
        info: body.info(py),
    })
}
