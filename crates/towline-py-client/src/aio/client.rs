//! The native base class of `AsyncClient`.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::client::Route;

use super::super::core::{ClientConfig, Core, PoolKind, upper_case};
use super::super::errors;
use super::super::finish::ResponseFinish;
use super::super::methods::{client_methods, named_only};
use super::super::pool_config::PoolConfig;
use super::super::request::Origin;
use super::super::sent_request::SentRequest;
use super::awaitable::Call;
use super::buffered::{BufferedOp, method_name};
use super::calls::ResponseMode;
use super::loop_driver::LoopDriver;
use super::pool::AsyncPool;
use towline_py_common::event_loop::EventLoop;

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

client_methods!(
    AsyncClientCore,
    AsyncPool,
    Py<Call>,
    "returns an awaitable of its `Response`, whose body is read"
);

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
            return Call::coroutine(
                py,
                method_name(method.to_str()?.as_bytes()),
                coroutine.unbind(),
            );
        };
        let loop_driver = match fast.pool.get().loop_driver(py) {
            Ok(loop_driver) => loop_driver,
            // As a coroutine: it may be made before the loop runs.
            Err(_) if EventLoop::current(py)?.is_none() => {
                return Self::call_when_awaited(slf, method, url, arguments);
            }
            Err(error) => return Err(error),
        };
        let mode = ResponseMode::Buffered(fast.config.limits());
        let finish = ResponseFinish {
            config: fast.config,
            client: slf.clone().into_any().unbind(),
            sent: SentRequest::new(&fast.request, &fast.options, fast.follow_redirects),
            follow_redirects: fast.follow_redirects,
        };
        let started =
            LoopDriver::start(loop_driver.bind(py), fast.request, fast.options, mode, None)?;
        let id = match started {
            Ok(id) => id,
            Err(error) => {
                let error = errors::call_error(py, &error);
                return Call::failed(py, finish.failed(py, error));
            }
        };
        Call::native(py, loop_driver, BufferedOp::new(id, finish))
    }

    /// Returns an awaitable that starts the request when it is awaited.
    fn call_when_awaited(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        let name = Some(method_name(method.to_str()?.as_bytes()));
        let (client, method, url) = (
            slf.clone().unbind(),
            method.clone().unbind(),
            url.clone().unbind(),
        );
        let arguments = arguments.map(|arguments| arguments.clone().unbind());
        Call::deferred(slf.py(), name, move |py| {
            EventLoop::running(py)?;
            let arguments = arguments.as_ref().map(|arguments| arguments.bind(py));
            let call = Self::call(client.bind(py), method.bind(py), url.bind(py), arguments)?;
            Ok(call.into_any())
        })
    }
}
