//! The Python methods of `AsgiServer`: one engine, registered once in the running event loop.
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::features::Features;
use towline_io::{Engine, EngineConfig};

use super::awaitables::ReadyAwaitable;
use super::exchange::wake;
use super::scope::Scopes;
use super::state::{AsgiServer, ServerFeatures, ServerState, engine_in_use};
use super::task::asyncio::Asyncio;
use super::task::step;
use super::turn;
use super::websocket::{self, WsContext};
use crate::addresses::Interface;
use crate::default_headers::DefaultHeaders;
use crate::forked::Process;
use crate::options::{Bind, Options};
use crate::shared_stats::Slot;
use crate::{feature_config, setup};
use towline_py_common::cell::{LoopThread, StateCell};
use towline_py_common::errors;

#[pymethods]
impl AsgiServer {
    #[new]
    #[pyo3(signature = (app, r#loop, config, binds, *, state=None, slot=None, log=None))]
    #[allow(clippy::too_many_arguments)] // Python's keywords are the named fields
    fn new(
        py: Python<'_>,
        app: Py<PyAny>,
        r#loop: Bound<'_, PyAny>,
        mut config: Options,
        binds: Vec<Bind>,
        state: Option<Py<PyDict>>,
        slot: Option<Py<Slot>>,
        log: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let slot = slot.map(|slot| slot.get().handle().alone());
        let is_worker = slot.is_some();
        let feature_config = feature_config::from_options(&config, slot)?;
        let mut engine = Engine::new(EngineConfig::default())
            .map_err(|error| errors::setup(&error, "cannot start the engine"))?;
        setup::listen(
            &mut engine,
            &mut config,
            &binds,
            &feature_config,
            Interface::Asgi,
        )?;
        let addresses = engine
            .listeners()
            .map(|listener| {
                listener
                    .local_addr()
                    .map_or_else(|_| String::from("-"), |address| address.to_string())
            })
            .collect();
        let asyncio = Asyncio::new(&r#loop)?;
        let done = asyncio.create_future(py)?;
        done.call_method1(intern!(py, "set_result"), (py.None(),))?;
        let done = done.unbind();
        Ok(Self {
            app,
            runs_in_tasks: AtomicBool::new(asyncio.runs_in_tasks(py)?),
            asyncio,
            refusals: feature_config.refusals.clone(),
            scopes: Scopes::new(py, &config, state)?,
            is_worker,
            wait_slot: (config.metrics || config.metrics_address.is_some())
                .then(|| feature_config.slot.clone())
                .flatten(),
            records_exchanges: feature_config.slot.is_some()
                || feature_config.access_log.is_some()
                || feature_config.compression.is_some()
                || feature_config.decoding.is_some(),
            features: StateCell::new(ServerFeatures {
                headers: DefaultHeaders::new(&config),
                features: Features::new(Arc::new(feature_config)),
            }),
            ws_context: StateCell::new(WsContext::new(&config)),
            state: StateCell::new(ServerState::default()),
            process: Process::current(py)?,
            thread: LoopThread::default(),
            base_context: step::current_context(py)?,
            limit_concurrency: config.limit_concurrency.unwrap_or(usize::MAX),
            event_loop: r#loop.unbind(),
            logger: log,
            ready: ReadyAwaitable::get(py)?,
            done,
            fd: engine.as_raw_fd(),
            engine: StateCell::new(Some(engine)),
            addresses,
        })
    }

    /// A descriptor for `loop.add_reader`: readable while `turn` has work.
    fn fileno(&self) -> i32 {
        self.fd
    }

    /// Has the event loop's epoll report new connections by a descriptor, whose reader is [`accept`](Self::accept).
    fn accept_in(&self, py: Python<'_>, epoll: i32, reported_as: i32) -> PyResult<()> {
        Ok(self.engine(py)?.accept_in(epoll, reported_as)?)
    }

    /// Accepts the connections that the event loop has reported. `turn` reads them.
    fn accept(&self, py: Python<'_>) -> PyResult<()> {
        self.process.end_child(py, None);
        self.engine(py)?.accept_reported();
        Ok(())
    }

    /// Accepts, reads, dispatches and writes for every ready connection, up to a bound.
    fn turn(slf: &Bound<'_, Self>) -> PyResult<()> {
        turn::turn(slf)
    }

    /// Flushes what requests have sent since the last turn.
    #[pyo3(name = "flush_gathered")]
    fn py_flush_gathered(&self, py: Python<'_>) -> PyResult<()> {
        self.flush_gathered(py)
    }

    /// Writes the lines about refused requests to the server log, and again when suppressed ones are due.
    fn log_refusals(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().state.open(slf.py()).logs_refusals_later = false;
        turn::log_refusals(slf)
    }

    /// Records the delay of a timer of the event loop, if there are metrics.
    fn record_loop_lag(&self, py: Python<'_>, seconds: f64) {
        if let Some(slot) = &self.features.open(py).features.config().slot {
            slot.loop_lagged(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        }
    }

    fn stop_listening(&self, py: Python<'_>) -> PyResult<()> {
        self.engine(py)?.stop_listening();
        Ok(())
    }

    /// Makes readiness checks fail. Requests are served as before.
    fn fail_readiness(&self, py: Python<'_>) {
        self.features.open(py).features.config().begin_draining();
    }

    /// Lets requests in flight finish with `connection: close`; closes open `WebSockets` with 1012. Idle connections
    /// may send one more request within the time of the option, or are closed at once with `close_idle`.
    #[pyo3(signature = (*, close_idle=false))]
    fn drain(&self, py: Python<'_>, close_idle: bool) -> PyResult<()> {
        self.features.open(py).features.config().begin_draining();
        self.engine(py)?.drain(setup::drain(close_idle));
        websocket::drain(self, py)
    }

    /// Ends everything at the deadline: exchanges are marked as disconnected, their tasks cancelled, `WebSockets` closed.
    fn cancel_all(&self, py: Python<'_>) -> PyResult<()> {
        self.state.open(py).cancelling = true;
        for exchange in self.running(py) {
            let waiters = exchange.get().mark_disconnected(py);
            wake(py, waiters)?;
            let task = exchange
                .get()
                .state
                .open(py)
                .task
                .as_ref()
                .map(|task| task.clone_ref(py));
            if let Some(task) = task {
                task.call_method0(py, intern!(py, "cancel"))?;
            }
        }
        let ids = self.engine(py)?.connection_ids();
        for id in ids {
            self.abort(py, id)?;
        }
        Ok(())
    }

    /// Number of requests in the application.
    #[getter]
    fn in_flight(&self, py: Python<'_>) -> usize {
        self.state.open(py).in_flight
    }

    #[getter]
    fn connections(&self, py: Python<'_>) -> usize {
        let engine = self.engine.try_open(py);
        engine
            .as_deref()
            .and_then(Option::as_ref)
            .map_or(0, Engine::len)
    }

    /// Number of requests since the start.
    #[getter]
    fn requests(&self, py: Python<'_>) -> u64 {
        self.state.open(py).requests
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Reopens the access log's file before its next line (after rotation).
    fn reopen_logs(&self, py: Python<'_>) {
        self.features.open(py).features.config().reopen_logs();
    }

    /// Closes every socket. The descriptor must have been removed from the loop.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine.try_open(py).ok_or_else(engine_in_use)?.take();
        drop(engine);
        let writer = {
            let features = self.features.open(py);
            let log = features.features.config().access_log.as_ref();
            log.map(|(_, writer)| writer.clone())
        };
        if let Some(writer) = writer {
            py.detach(|| writer.close(setup::LOG_CLOSE_TIMEOUT));
        }
        let (idle_task, spare_handles, wake_queue) = {
            let mut state = self.state.open(py);
            let spare_handles = std::mem::take(&mut state.spare_handles);
            (
                state.idle_task.take(),
                spare_handles,
                state.wake_queue.take_all(),
            )
        };
        drop(spare_handles);
        let closed = self
            .event_loop
            .bind(py)
            .call_method0(intern!(py, "is_closed"))?
            .is_truthy()?;
        if closed {
            return Ok(());
        }
        // No later turn will wake them.
        let woken = wake(py, wake_queue);
        match idle_task {
            Some(idle_task) => idle_task.coroutine.get().end(py).and(woken),
            None => woken,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.app)?;
        visit.call(&self.event_loop)?;
        visit.call(&self.done)?;
        visit.call(&self.logger)?;
        visit.call(&self.base_context)?;
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        if let Some(idle_task) = &state.idle_task {
            visit.call(&idle_task.task)?;
            visit.call(&idle_task.coroutine)?;
            visit.call(&idle_task.get_name)?;
        }
        for handle in &state.spare_handles {
            handle.traverse(&visit)?;
        }
        for exchange in state.running.values() {
            visit.call(exchange)?;
        }
        for future in state.wake_queue.iter() {
            visit.call(future)?;
        }
        Ok(())
    }

    /// Breaks the reference cycles of a server that was not closed.
    fn __clear__(&self) {
        // SAFETY: the garbage collector runs attached.
        let py = unsafe { Python::assume_attached() };
        let Some(mut state) = self.state.try_open(py) else {
            return;
        };
        let cleared = std::mem::take(&mut *state);
        drop(state);
        drop(cleared);
    }
}
