//! The native half of `Client`.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::call::Route;

use super::super::core::{Core, Found, Lanes, Setup, upper_case};
use super::super::finish::{Finished, Plan, Whole};
use super::super::methods::client_methods;
use super::super::pool_config::PoolTerms;
use super::super::reply::Source;
use super::super::request::Origin;
use super::body::SyncSource;
use super::pool::SyncPool;

#[pyclass(frozen, subclass, dict, weakref, module = "towline._native")]
pub struct ClientCore {
    core: Core<SyncPool>,
}

impl Lanes for SyncPool {
    fn terms<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolTerms {
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
            let request = slf.getattr(intern!(py, "_request"))?;
            return Ok(request.call((method, url), arguments)?.unbind());
        };
        let plan = Plan {
            terms: Arc::clone(&found.terms),
            client: slf.clone().into_any().unbind(),
            method: method.clone().unbind(),
            url: url.clone().unbind(),
            arguments: arguments.map(|arguments| arguments.clone().unbind()),
            follow_redirects: found.follow_redirects,
        };
        match plan.finish(py, exchange(py, found)?)? {
            Finished::Response(response) | Finished::Continued(response) => Ok(response),
        }
    }
}

/// The whole response. One that is small costs one release of the GIL.
fn exchange(py: Python<'_>, found: Found<'_, SyncPool>) -> PyResult<Whole> {
    let bounds = found.terms.bounds();
    let pool = found.pool.get();
    let (call, head) = pool.call(py, found.request, found.options, None)?;
    let source = SyncSource::new(call);
    let content = source.read_all(py, &head, bounds)?;
    Ok(Whole {
        head: Arc::new(head),
        content,
        facts: Source::facts(&source, py),
    })
}
