//! The native half of `Client`.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::client::Route;

use super::super::core::{Core, Found, PoolKind, Setup, upper_case};
use super::super::finish::{BufferedResponse, FinishOutcome, ResponseFinish};
use super::super::methods::client_methods;
use super::super::pool_config::PoolConfig;
use super::super::reply::Source;
use super::super::request::Origin;
use super::body::SyncBody;
use super::pool::SyncPool;

#[pyclass(frozen, subclass, dict, weakref, module = "towline._native")]
pub struct ClientCore {
    core: Core<SyncPool>,
}

impl PoolKind for SyncPool {
    fn terms<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolConfig {
        pool.get().terms()
    }

    fn route(pool: &Bound<'_, Self>, origin: &Origin<'_>) -> PyResult<Arc<Route>> {
        pool.get().route(pool.py(), origin, None)
    }
}

client_methods!(ClientCore, SyncPool, Py<PyAny>);

impl ClientCore {
    /// `None`: not plain.
    pub fn find<'py>(
        &self,
        client: &Bound<'py, Self>,
        method: &Bound<'py, PyString>,
        url: &Bound<'py, PyAny>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Found<'py, SyncPool>>> {
        self.core.find(client.as_any(), method, url, arguments)
    }

    /// Runs a method of the client.
    fn call(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let found = slf.get().find(slf, method, url, arguments)?;
        let Some(found) = found else {
            let request = slf.getattr(intern!(py, "_slow_request"))?;
            return Ok(request.call((method, url), arguments)?.unbind());
        };
        let plan = ResponseFinish {
            terms: Arc::clone(&found.terms),
            client: slf.clone().into_any().unbind(),
            method: method.clone().unbind(),
            url: url.clone().unbind(),
            arguments: arguments.map(|arguments| arguments.clone().unbind()),
            follow_redirects: found.follow_redirects,
        };
        match plan.finish(py, exchange(py, found)?)? {
            FinishOutcome::Response(response) | FinishOutcome::Coroutine(response) => Ok(response),
        }
    }
}

/// The whole response. One that is small costs one release of the GIL.
fn exchange(py: Python<'_>, found: Found<'_, SyncPool>) -> PyResult<BufferedResponse> {
    let bounds = found.terms.bounds();
    let pool = found.pool.get();
    let (call, head) = pool.call(py, found.request, found.options, None)?;
    let source = SyncBody::new(call);
    let content = source.read_all(py, &head, bounds)?;
    Ok(BufferedResponse {
        head: Arc::new(head),
        content,
        facts: Source::facts(&source, py),
    })
}
