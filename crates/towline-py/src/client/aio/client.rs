//! The native base class of `AsyncClient`.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::client::Route;

use super::super::core::{ClientConfig, Core, PoolKind, upper_case};
use super::super::errors;
use super::super::finish::ResponseFinish;
use super::super::methods::client_methods;
use super::super::pool_config::PoolConfig;
use super::super::request::Origin;
use super::awaitable::Call;
use super::buffered::BufferedOp;
use super::calls::ResponseMode;
use super::loop_driver::LoopDriver;
use super::pool::AsyncPool;

#[pyclass(frozen, subclass, dict, weakref, module = "towline._native")]
pub struct AsyncClientCore {
    core: Core<AsyncPool>,
}

impl PoolKind for AsyncPool {
    fn config<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolConfig {
        &pool.get().config
    }

    fn route(pool: &Bound<'_, Self>, origin: &Origin<'_>) -> PyResult<Arc<Route>> {
        pool.get().route(pool.py(), origin, None)
    }
}

client_methods!(AsyncClientCore, AsyncPool, Py<Call>);

impl AsyncClientCore {
    /// Starts a request: natively if possible, otherwise through `_slow_request`.
    fn call(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        let py = slf.py();
        let core = &slf.get().core;
        let Some(fast) = core.resolve(slf.as_any(), method, url, arguments)? else {
            let coroutine = slf
                .getattr(intern!(py, "_slow_request"))?
                .call((method, url), arguments)?;
            return Call::coroutine(py, coroutine.unbind());
        };
        let loop_driver = fast.pool.get().loop_driver(py)?;
        let mode = ResponseMode::Buffered(fast.config.limits());
        let started =
            LoopDriver::start(loop_driver.bind(py), fast.request, fast.options, mode, None)?;
        let id = match started {
            Ok(id) => id,
            Err(error) => return Call::failed(py, errors::call_error(py, &error)),
        };
        let finish = ResponseFinish {
            config: fast.config,
            client: slf.clone().into_any().unbind(),
            method: method.clone().unbind(),
            url: url.clone().unbind(),
            arguments: arguments.map(|arguments| arguments.clone().unbind()),
            follow_redirects: fast.follow_redirects,
        };
        Call::native(py, loop_driver, BufferedOp::new(id, finish))
    }
}
