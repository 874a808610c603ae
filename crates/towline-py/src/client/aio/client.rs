//! The native half of `AsyncClient`.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::client::Route;

use super::super::core::{Core, PoolKind, Setup, upper_case};
use super::super::errors;
use super::super::finish::ResponseFinish;
use super::super::methods::client_methods;
use super::super::pool_config::PoolConfig;
use super::super::request::Origin;
use super::awaitable::Call;
use super::calls::ResponseMode;
use super::loop_driver::LoopDriver;
use super::pending_op::PendingOp;
use super::pool::AsyncPool;

#[pyclass(frozen, subclass, dict, weakref, module = "towline._native")]
pub struct AsyncClientCore {
    core: Core<AsyncPool>,
}

impl PoolKind for AsyncPool {
    fn terms<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolConfig {
        &pool.get().terms
    }

    fn route(pool: &Bound<'_, Self>, origin: &Origin<'_>) -> PyResult<Arc<Route>> {
        pool.get().route(pool.py(), origin, None)
    }
}

client_methods!(AsyncClientCore, AsyncPool, Py<Call>);

impl AsyncClientCore {
    /// Runs a method of the client.
    fn call(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        let py = slf.py();
        let Some(found) = slf.get().core.find(slf.as_any(), method, url, arguments)? else {
            let coroutine = slf
                .getattr(intern!(py, "_slow_request"))?
                .call((method, url), arguments)?;
            return Call::coroutine(py, coroutine.unbind());
        };
        let loop_driver = found.pool.get().loop_driver(py)?;
        let mode = ResponseMode::Buffered(found.terms.bounds());
        let begun = LoopDriver::begin(
            loop_driver.bind(py),
            found.request,
            found.options,
            mode,
            None,
        )?;
        let id = match begun {
            Ok(id) => id,
            Err(error) => return Call::failed(py, errors::call_error(py, &error)),
        };
        let plan = ResponseFinish {
            terms: found.terms,
            client: slf.clone().into_any().unbind(),
            method: method.clone().unbind(),
            url: url.clone().unbind(),
            arguments: arguments.map(|arguments| arguments.clone().unbind()),
            follow_redirects: found.follow_redirects,
        };
        Call::of(py, PendingOp::respond(loop_driver, id, plan))
    }
}
