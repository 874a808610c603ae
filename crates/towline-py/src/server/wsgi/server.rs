//! The Python class `WsgiServer`: its loop, and what other threads and signal handlers may tell it.
//!
//! ```text
//! Listening ── stop_listening ──► (no new connections) ── drain ──► (requests in flight finish)
//!     └────────────────────────────── stop: run() returns ◄──────────┴── nothing is left
//! ```
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use towline_io::serve::metrics::{SlotHandle, monotonic_ns};
use towline_io::{Engine, EngineConfig, Remote};

use super::app_runner::Application;
use super::log::Log;
use super::request::ConnState;
use super::{inline, threads};
use crate::errors;
use crate::server::feature_config;
use crate::server::options::{Bind, Options};
use crate::server::setup::{Interface, LOG_CLOSE_TIMEOUT, listen};
use crate::server::shared_stats::Slot;

/// What is asked of a running server, and what it tells about itself. Atomics, because a signal handler may
/// interrupt any place of any thread.
pub struct Control {
    remote: Remote,
    stop: AtomicBool,
    drain: AtomicBool,
    stop_listening: AtomicBool,
    slot: Option<SlotHandle>,
    in_flight: AtomicUsize,
    connections: AtomicUsize,
    requests: AtomicU64,
}

impl Control {
    fn new(remote: Remote, slot: Option<SlotHandle>) -> Self {
        Self {
            remote,
            slot,
            stop: AtomicBool::new(false),
            drain: AtomicBool::new(false),
            stop_listening: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
        }
    }

    fn ask(&self, what: &AtomicBool) {
        what.store(true, Relaxed);
        // It fails only when there is no engine left to be told.
        let _ = self.remote.wake();
    }

    /// Passes on to the engine what was asked; true once the loop has to end.
    pub fn obey(&self, engine: &mut Engine<ConnState>) -> bool {
        if self.stop_listening.swap(false, Relaxed) {
            engine.stop_listening();
        }
        if self.drain.load(Relaxed) && !engine.is_draining() {
            engine.drain();
        }
        self.connections.store(engine.len(), Relaxed);
        if let Some(slot) = &self.slot {
            slot.turned(monotonic_ns());
        }
        self.stop.load(Relaxed) || (engine.is_draining() && engine.is_empty())
    }

    /// Application calls that wait for their client must not wait any longer.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// A request leaves its connection for the application.
    pub fn begin(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    pub fn end(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    pub fn wake(&self) {
        let _ = self.remote.wake();
    }
}

/// One engine that serves one WSGI application. `run()` blocks; everything else may be called meanwhile.
#[pyclass(frozen, module = "towline._native")]
pub struct WsgiServer {
    application: Arc<Application>,
    control: Arc<Control>,
    #[pyo3(get)]
    addresses: Vec<String>,
    engine: Mutex<Option<Engine<ConnState>>>,
}

/// The engine has its thread to itself: no other callbacks wait for the end of a turn.
const MAX_READY_PER_TURN: usize = 64;
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
        let rules = feature_config::rules(&options, slot.clone())?;
        let engine_config = EngineConfig {
            max_ready_per_turn: MAX_READY_PER_TURN,
            turn_time: TURN_TIME,
            ..EngineConfig::default()
        };
        let mut engine =
            Engine::new(engine_config).map_err(|error| errors::setup(&error, "the engine"))?;
        listen(
            &mut engine,
            &mut options,
            &binds,
            slot.clone(),
            Interface::Wsgi,
        )?;
        let addresses = engine
            .listeners()
            .map(|listener| {
                listener
                    .local_addr()
                    .map_or_else(|_| "-".to_owned(), |at| at.to_string())
            })
            .collect();
        let control = Arc::new(Control::new(engine.remote(), slot));
        let workers: usize = config.getattr("workers")?.extract()?;
        let application = Application {
            app,
            options,
            multiprocess: workers > 1,
            rules: Arc::new(rules),
            log: Log::new(log),
        };
        Ok(Self {
            application: Arc::new(application),
            control,
            addresses,
            engine: Mutex::new(Some(engine)),
        })
    }

    /// Serves until `stop()`, or until a drain has nothing left. Signal handlers run in between, when this
    /// is the main thread; what they raise comes out here.
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
        if let Some((_, writer)) = &self.application.rules.access_log {
            py.detach(|| writer.close(LOG_CLOSE_TIMEOUT));
        }
        outcome
    }

    /// The access log's file is opened anew before its next line (after it was rotated).
    fn reopen_logs(&self) {
        self.application.rules.reopen_logs();
    }

    fn stop(&self) {
        self.control.ask(&self.control.stop);
    }

    fn stop_listening(&self) {
        self.control.ask(&self.control.stop_listening);
    }

    /// Finishes requests in flight, closes connections that have none; `run()` then returns.
    fn drain(&self) {
        self.control.ask(&self.control.drain);
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.control.in_flight.load(Relaxed)
    }

    #[getter]
    fn connections(&self) -> usize {
        self.control.connections.load(Relaxed)
    }

    #[getter]
    fn requests(&self) -> u64 {
        self.control.requests.load(Relaxed)
    }
}
