//! The Python class `WsgiServer`: set-up, `run()` and the commands of other threads.
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use towline_io::{Engine, EngineConfig};

use super::application::Application;
use super::control::ServerControl;
use super::log::Log;
use super::request::ConnState;
use super::websockets::WebSockets;
use super::{inline, threads};
use crate::addresses::Interface;
use crate::feature_config;
use crate::forked::Process;
use crate::options::{Bind, Options};
use crate::setup::{LOG_CLOSE_TIMEOUT, drain, listen};
use crate::shared_stats::Slot;
use towline_py_common::errors;

/// One engine that serves one WSGI application. `run()` blocks; the other methods may be called meanwhile.
#[pyclass(frozen, module = "towline._native")]
pub struct WsgiServer {
    application: Arc<Application>,
    control: Arc<ServerControl>,
    #[pyo3(get)]
    addresses: Vec<String>,
    engine: Mutex<Option<Engine<ConnState>>>,
}

/// Larger than in ASGI: no event loop shares the thread, so no callbacks wait for the end of a turn.
const TURN_TIME: Duration = Duration::from_millis(5);

#[pymethods]
#[allow(clippy::needless_pass_by_value)] // arguments arrive from Python by value
impl WsgiServer {
    #[new]
    #[pyo3(signature = (app, config, binds, *, slot=None, log=None))]
    fn new(
        app: Py<PyAny>,
        config: &Bound<'_, PyAny>,
        binds: Vec<Bind>,
        slot: Option<PyRef<'_, Slot>>,
        log: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let mut options: Options = config.extract()?;
        let slot = slot.map(|slot| slot.handle());
        let feature_config = feature_config::from_options(&options, slot.clone())?;
        let engine_config = EngineConfig {
            turn_time: TURN_TIME,
            ..EngineConfig::default()
        };
        let mut engine =
            Engine::new(engine_config).map_err(|error| errors::setup(&error, "the engine"))?;
        listen(
            &mut engine,
            &mut options,
            &binds,
            &feature_config,
            Interface::Wsgi,
        )?;
        let addresses = engine
            .listeners()
            .map(|listener| {
                listener
                    .local_addr()
                    .map_or_else(|_| "-".to_owned(), |address| address.to_string())
            })
            .collect();
        let websockets = WebSockets::new(&options, slot.clone());
        let control = Arc::new(ServerControl::new(engine.waker(), slot, websockets));
        let workers: usize = config.getattr("workers")?.extract()?;
        let application = Application {
            app,
            options,
            multiprocess: workers > 1,
            feature_config: Arc::new(feature_config),
            log: Log::new(log),
            process: Process::current(config.py())?,
            websocket_hint: AtomicBool::new(false),
        };
        Ok(Self {
            application: Arc::new(application),
            control,
            addresses,
            engine: Mutex::new(Some(engine)),
        })
    }

    /// Serves until `stop()`, or until a drain is complete. On the main thread signal handlers run between
    /// turns; an exception that they raise is raised here.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let engine = engine.ok_or_else(|| PyRuntimeError::new_err("run() was called before"))?;
        let outcome = if self.application.options.threads > 1 {
            threads::run(py, &self.application, &self.control, engine)
        } else {
            inline::run(py, &self.application, &self.control, engine)
        };
        if let Some((_, writer)) = &self.application.feature_config.access_log {
            py.detach(|| writer.close(LOG_CLOSE_TIMEOUT));
        }
        outcome
    }

    /// Reopens the access log's file before its next line (after rotation).
    fn reopen_logs(&self) {
        self.application.feature_config.reopen_logs();
    }

    fn stop(&self) {
        self.control.stop();
    }

    fn stop_listening(&self) {
        self.control.stop_listening();
    }

    /// Makes readiness checks fail. Requests are served as before.
    fn fail_readiness(&self) {
        self.application.feature_config.begin_draining();
    }

    /// Finishes requests in flight; idle connections may send one more request within the time of the option, or are
    /// closed at once with `close_idle`. Then `run()` returns.
    #[pyo3(signature = (*, close_idle=false))]
    fn drain(&self, close_idle: bool) {
        self.application.feature_config.begin_draining();
        self.control.drain(drain(close_idle));
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.control.in_flight() + self.control.websockets.active()
    }

    #[getter]
    fn connections(&self) -> usize {
        self.control.connections()
    }

    #[getter]
    fn requests(&self) -> u64 {
        self.control.requests()
    }
}
