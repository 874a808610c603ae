//! The Python class `AsgiServer`: one engine, registered once in the running event loop.
use std::cell::RefMut;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::site::{Site, Visit};
use towline_io::{ConnId, Engine, EngineConfig, Peer, Streams};

use super::awaitables::Sent;
use super::eager_flush::Haste;
use super::exchange::{Exchange, Kit, Response, wake};
use super::scope::{Ends, Scopes};
use super::task::idle::{Asyncio, Loan, Spare};
use super::task::step as stepping;
use super::wake_queue::Sleepers;
use super::websocket::{self, Sockets};
use crate::errors;
use crate::gil::GilCell;
use crate::server::default_headers::DefaultHeaders;
use crate::server::options::{Bind, Options};
use crate::server::shared_stats::Slot;
use crate::server::{feature_config, setup};

/// What the engine keeps for us beside each connection.
#[derive(Default)]
pub struct ConnState {
    /// Found out with the first request.
    pub ends: Option<Ends>,
    /// The exchanges whose application has suspended, until it has ended.
    pub exchanges: Streams<Py<Exchange>>,
}

pub type Machine = Engine<ConnState>;

/// The engine, opened. It must be given back before Python code can run.
pub struct OpenEngine<'a>(RefMut<'a, Option<Machine>>);

impl Deref for OpenEngine<'_> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        self.0.as_ref().expect("checked when opened")
    }
}

impl DerefMut for OpenEngine<'_> {
    fn deref_mut(&mut self) -> &mut Machine {
        self.0.as_mut().expect("checked when opened")
    }
}

/// What joins every response, whatever the application.
pub struct Extras {
    pub fields: DefaultHeaders,
    pub site: Site,
}

/// What changes from request to request.
#[derive(Default)]
pub struct Pool {
    pub spare: Option<Spare>,
    /// The spare was given back in this turn and is the current task still.
    pub loan: Option<Loan>,
    /// The time when the request in hand could be served: reading the clock takes 25 ns.
    pub clock: Option<Instant>,
    pub kits: Vec<Kit>,
    /// Exchanges whose task runs in the loop. The loop itself holds tasks weakly.
    pub running: HashMap<usize, Py<Exchange>>,
    /// The exchange whose application is being stepped right now: it is flushed after the step.
    pub stepped: usize,
    pub requests: u64,
    pub in_flight: usize,
    pub in_turn: bool,
    /// The connections of this turn, until they are settled.
    pub visited: Vec<ConnId>,
    /// What those cost whom this turn has woken, or has asked to wait for the next.
    pub woken: usize,
    /// What those cost whose application has suspended in this turn.
    pub suspended: usize,
    /// Whom later turns wake.
    pub sleepers: Sleepers,
    pub haste: Haste,
    /// The connection that is being visited has company in this turn.
    pub in_company: bool,
    pub cancelling: bool,
    /// Of the request that is about to run.
    pub visit: Box<Visit>,
}

#[pyclass(frozen, weakref, module = "towline._native")]
pub struct AsgiServer {
    pub app: Py<PyAny>,
    pub asyncio: Asyncio,
    pub scopes: Scopes,
    pub extras: GilCell<Extras>,
    pub sockets: GilCell<Sockets>,
    /// Exchanges are counted, logged or compressed.
    pub watching: bool,
    pub pool: GilCell<Pool>,
    pub base_context: Py<PyAny>,
    pub limit_concurrency: usize,
    pub server_cert: Option<String>,
    /// The program makes its tasks its own way: each request gets one made so.
    pub task_factory: bool,
    loop_: Py<PyAny>,
    log: Option<Py<PyAny>>,
    sent: Py<PyAny>,
    engine: GilCell<Option<Machine>>,
    addresses: Vec<String>,
    fd: i32,
}

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
        let rules = feature_config::rules(&config, slot.clone())?;
        let mut engine = Engine::new(EngineConfig::default())
            .map_err(|error| errors::setup(&error, "cannot start the engine"))?;
        setup::listen(
            &mut engine,
            &mut config,
            &binds,
            slot,
            setup::Interface::Asgi,
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
        Ok(Self {
            app,
            task_factory: asyncio.has_task_factory(py)?,
            asyncio,
            scopes: Scopes::new(py, &config.root_path, state)?,
            watching: rules.slot.is_some()
                || rules.access_log.is_some()
                || rules.compression.is_some(),
            extras: GilCell::new(Extras {
                fields: DefaultHeaders::new(&config),
                site: Site::new(Arc::new(rules)),
            }),
            sockets: GilCell::new(Sockets::new(&config)),
            pool: GilCell::new(Pool::default()),
            base_context: stepping::current_context(py)?,
            limit_concurrency: config.limit_concurrency.unwrap_or(usize::MAX),
            server_cert: config
                .ssl_certfile
                .as_ref()
                .and_then(|file| std::fs::read_to_string(file).ok()),
            loop_: r#loop.unbind(),
            log,
            sent: Sent::make(py)?,
            fd: engine.as_raw_fd(),
            engine: GilCell::new(Some(engine)),
            addresses,
        })
    }

    /// Readable whenever `turn` has work: for `loop.add_reader`.
    fn fileno(&self) -> i32 {
        self.fd
    }

    /// Accepts, reads, dispatches and writes for every ready connection, up to a bound.
    fn turn(slf: &Bound<'_, Self>) -> PyResult<()> {
        super::turn::turn(slf)
    }

    fn stop_listening(&self, py: Python<'_>) -> PyResult<()> {
        self.engine(py)?.stop_listening();
        Ok(())
    }

    /// Lets what is in flight finish with `connection: close`; idle connections close now, an open
    /// WebSocket with 1012.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        self.engine(py)?.drain();
        websocket::drain(self, py)
    }

    /// The deadline: applications learn that the client is gone, their tasks are cancelled, sockets close.
    fn cancel_all(&self, py: Python<'_>) -> PyResult<()> {
        let running: Vec<Py<Exchange>> = {
            let mut pool = self.pool.open(py);
            pool.cancelling = true;
            pool.running
                .values()
                .map(|exchange| exchange.clone_ref(py))
                .collect()
        };
        for exchange in running {
            let waiters = exchange.get().lose(py);
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
            self.engine(py)?.abort(id);
        }
        Ok(())
    }

    /// Requests whose application has not ended.
    #[getter]
    fn in_flight(&self, py: Python<'_>) -> usize {
        self.pool.open(py).in_flight
    }

    #[getter]
    fn connections(&self, py: Python<'_>) -> usize {
        self.engine(py).map_or(0, |engine| engine.len())
    }

    /// Requests begun since the start.
    #[getter]
    fn requests(&self, py: Python<'_>) -> u64 {
        self.pool.open(py).requests
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// The access log's file is opened anew before its next line (after it was rotated).
    fn reopen_logs(&self, py: Python<'_>) {
        self.extras.open(py).site.rules().reopen_logs();
    }

    /// Closes every socket. The descriptor must have been taken out of the loop.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine.try_open(py).ok_or_else(busy)?.take();
        drop(engine);
        let writer = {
            let extras = self.extras.open(py);
            let log = extras.site.rules().access_log.as_ref();
            log.map(|(_, writer)| writer.clone())
        };
        if let Some(writer) = writer {
            py.detach(|| writer.close(setup::LOG_CLOSE_TIMEOUT));
        }
        let (spare, kits, sleepers) = {
            let mut pool = self.pool.open(py);
            let kits = std::mem::take(&mut pool.kits);
            (pool.spare.take(), kits, pool.sleepers.take_all())
        };
        drop(kits);
        let closed = self
            .loop_
            .bind(py)
            .call_method0(intern!(py, "is_closed"))?
            .is_truthy()?;
        if closed {
            return Ok(());
        }
        // There are no more turns to wake them in.
        let woken = wake(py, sleepers);
        match spare {
            Some(spare) => spare.host.get().retire(py).and(woken),
            None => woken,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.app)?;
        visit.call(&self.loop_)?;
        visit.call(&self.log)?;
        visit.call(&self.base_context)?;
        let Some(pool) = self.pool.peek() else {
            return Ok(());
        };
        if let Some(spare) = &pool.spare {
            visit.call(&spare.task)?;
            visit.call(&spare.host)?;
            visit.call(&spare.get_name)?;
        }
        for kit in &pool.kits {
            kit.traverse(&visit)?;
        }
        for exchange in pool.running.values() {
            visit.call(exchange)?;
        }
        for future in pool.sleepers.iter() {
            visit.call(future)?;
        }
        Ok(())
    }

    /// Breaks the cycles of a server that nobody closed.
    fn __clear__(&self) {
        // SAFETY: the collector runs with the GIL held.
        let py = unsafe { Python::assume_attached() };
        let Some(mut pool) = self.pool.try_open(py) else {
            return;
        };
        let cleared = std::mem::take(&mut *pool);
        drop(pool);
        drop(cleared);
    }
}

/// The exchanges of `peer` whose file is out since this was asked last.
pub fn files_sent(py: Python<'_>, peer: &mut Peer<ConnState>) -> Vec<Py<Exchange>> {
    if !peer.take_file_news() {
        return Vec::new();
    }
    let exchanges = peer.state.exchanges.iter();
    exchanges
        .filter(|(stream, _)| !peer.is_sending_file(*stream))
        .map(|(_, exchange)| exchange.clone_ref(py))
        .collect()
}

pub fn tell_files_sent(py: Python<'_>, sent: &[Py<Exchange>]) -> PyResult<()> {
    sent.iter()
        .try_for_each(|exchange| exchange.get().file_sent(py))
}

fn busy() -> PyErr {
    PyRuntimeError::new_err(
        "the server's engine is in use: called from a finaliser in the middle of a turn",
    )
}

impl AsgiServer {
    /// The engine, for as long as no Python code runs.
    pub fn engine<'a>(&'a self, py: Python<'a>) -> PyResult<OpenEngine<'a>> {
        let engine = self.engine.try_open(py).ok_or_else(busy)?;
        if engine.is_none() {
            return Err(PyRuntimeError::new_err("the server is closed"));
        }
        Ok(OpenEngine(engine))
    }

    /// What `send()` returns when nothing has to wait.
    pub fn sent(&self, py: Python<'_>) -> Py<PyAny> {
        self.sent.clone_ref(py)
    }

    /// One line for the server's log. `level` is that of the module `logging`.
    pub fn say(&self, py: Python<'_>, level: i32, message: &str, error: Option<PyErr>) {
        let Some(log) = &self.log else { return };
        let error = error.map(|error| error.into_value(py));
        if let Err(error) = log.call1(py, (level, message, error)) {
            error.write_unraisable(py, Some(log.bind(py)));
        }
    }

    /// The application of `kit` is about to be stepped. Returns what `leave_exchange` wants back.
    pub fn enter_exchange(&self, py: Python<'_>, kit: &Kit) -> usize {
        std::mem::replace(
            &mut self.pool.open(py).stepped,
            kit.exchange.as_ptr() as usize,
        )
    }

    pub fn leave_exchange(&self, py: Python<'_>, outer: usize) {
        self.pool.open(py).stepped = outer;
    }

    /// After a step: sends what the step has left to send.
    pub fn flush(&self, py: Python<'_>, kit: &Kit) {
        let exchange = kit.exchange.get();
        if exchange.state.open(py).dirty {
            self.settle(py, exchange);
        }
    }

    /// After the first step, in a turn: what it has left to send waits, as a complete answer does, for that of the
    /// requests behind it and of other connections. A wake-up of the client costs as much as half a request.
    pub fn flush_suspended(&self, py: Python<'_>, kit: &Kit) {
        let (in_company, in_haste) = {
            let pool = self.pool.open(py);
            (pool.in_company, pool.haste.is_on() || !pool.in_turn)
        };
        let waits = !in_haste && (in_company || self.has_more_to_come(py, kit.exchange.get()));
        if !waits {
            self.flush(py, kit);
        }
    }

    /// Whether the visit of its connection goes on.
    fn has_more_to_come(&self, py: Python<'_>, exchange: &Exchange) -> bool {
        let id = exchange.state.open(py).id;
        let engine = self.engine(py).ok();
        engine.is_some_and(|mut engine| {
            let peer = engine.peer(id);
            peer.is_some_and(|peer| peer.conn.has_events())
        })
    }

    /// After reading: within a step the end of the step is soon enough.
    pub fn flush_outside(&self, py: Python<'_>, exchange: &Bound<'_, Exchange>) {
        let (stepped, dirty) = (
            self.pool.open(py).stepped,
            exchange.get().state.open(py).dirty,
        );
        if dirty && stepped != exchange.as_ptr() as usize {
            self.settle(py, exchange.get());
        }
    }

    /// After sending. A complete answer waits for the others of its turn (where there are others, and unless `Haste` forbids it), and any
    /// for a pipelined request that waits already; a part of one goes now, since the application may go on
    /// for long.
    pub fn flush_part(&self, py: Python<'_>, exchange: &Bound<'_, Exchange>) {
        let (stepped, waits) = {
            let pool = self.pool.open(py);
            let stepped = pool.stepped == exchange.as_ptr() as usize;
            (
                stepped,
                stepped && pool.in_turn && pool.in_company && !pool.haste.is_on(),
            )
        };
        if stepped {
            let state = exchange.get().state.open(py);
            if waits && state.response == Response::Complete {
                return;
            }
            let Ok(mut engine) = self.engine(py) else {
                return;
            };
            let Some(peer) = engine.peer(state.id) else {
                return;
            };
            if peer.conn.has_events() {
                return;
            }
        }
        self.settle(py, exchange.get());
    }

    /// Hands the connection back to the engine after something was done with it.
    pub fn settle(&self, py: Python<'_>, exchange: &Exchange) {
        let (id, settled) = {
            let mut state = exchange.state.open(py);
            state.dirty = false;
            let Ok(mut engine) = self.engine(py) else {
                return;
            };
            engine.settle(state.id);
            (
                state.id,
                engine.peer(state.id).map(|peer| files_sent(py, peer)),
            )
        };
        let told = match settled {
            Some(sent) => tell_files_sent(py, &sent),
            None => self.lose_connection(py, id, exchange),
        };
        if let Err(error) = told {
            error.write_unraisable(py, None);
        }
    }

    /// The connection is no more, and the exchanges that it knew have nobody else to tell them.
    fn lose_connection(&self, py: Python<'_>, id: ConnId, exchange: &Exchange) -> PyResult<()> {
        let mut waiters = exchange.lose(py);
        let running: Vec<Py<Exchange>> = {
            let pool = self.pool.open(py);
            pool.running
                .values()
                .map(|other| other.clone_ref(py))
                .collect()
        };
        for other in running {
            if other.get().state.open(py).id == id {
                waiters.append(&mut other.get().lose(py));
            }
        }
        self.wake_lost(py, waiters)
    }

    /// An exchange for a new request.
    pub fn kit(
        slf: &Bound<'_, Self>,
        id: ConnId,
        stream: towline_proto::StreamId,
    ) -> PyResult<Kit> {
        let py = slf.py();
        let kept = slf.get().pool.open(py).kits.pop();
        match kept {
            Some(kit) => Ok(kit),
            None => Kit::new(py, slf.clone().unbind(), id, stream),
        }
    }
}
