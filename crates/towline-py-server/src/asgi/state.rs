//! The Python objects of a server, which hold each other: `AsgiServer`, its exchanges, the coroutines of its tasks. Their
//! methods are in `server`, `exchange` and `task`.
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::features::{ExchangeRecord, Features};
use towline_io::serve::metrics::SlotHandle;
use towline_io::serve::refusals::Refusals;
use towline_io::{ConnId, Engine, StreamMap};
use towline_proto::StreamId;

use super::exchange_state::ExchangeState;
use super::scope::{Endpoints, Scopes};
use super::task::asyncio::{Asyncio, TaskSnapshot};
use super::task::step::Step;
use super::wake_queue::WakeQueue;
use super::websocket::{Session, WsContext};
use crate::default_headers::DefaultHeaders;
use crate::eager_flush::EagerFlush;
use crate::forked::Process;
use crate::gather::Gathered;
use towline_py_common::cell::{LoopThread, Opened, StateCell};

/// State that the engine keeps with each connection.
#[derive(Default)]
pub struct ConnState {
    /// Determined with the first request.
    pub endpoints: Option<Endpoints>,
    /// The exchanges whose application has suspended, until it ends.
    pub exchanges: StreamMap<Py<Exchange>>,
    /// Requests whose application begins when the buffered frames are parsed; see `run::hold`.
    #[allow(clippy::box_collection)] // 8 bytes in each idle connection instead of 32
    pub held: Option<Box<VecDeque<Request>>>,
}

impl ConnState {
    pub fn has_held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.is_empty())
    }
}

/// A request for the application.
pub struct Request {
    pub id: ConnId,
    pub stream: StreamId,
    pub scope: Py<PyDict>,
    /// No body follows.
    pub end: bool,
    pub head_only: bool,
    pub websocket: Option<Box<Session>>,
    /// Once its exchange has begun.
    pub handle: Option<ExchangeHandle>,
}

/// Exclusive access to the engine. It must be dropped before Python code can run.
pub struct EngineGuard<'a>(Opened<'a, Option<Engine<ConnState>>>);

impl Deref for EngineGuard<'_> {
    type Target = Engine<ConnState>;

    fn deref(&self) -> &Engine<ConnState> {
        self.0.as_ref().expect("checked when it was created")
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut Engine<ConnState> {
        self.0.as_mut().expect("checked when it was created")
    }
}

/// Additions of the server to every response, whatever the application.
pub struct ServerFeatures {
    pub headers: DefaultHeaders,
    pub features: Features,
}

/// The time of the poll that found the connection that is served now. A turn that is over because of its duration
/// leaves connections of its poll to the next one.
#[derive(Default)]
pub struct ReadySince {
    pub poll: Option<Instant>,
    /// Number of connections that earlier turns have left in the ready list.
    pub carried_over: usize,
}

impl ReadySince {
    /// The next connection of the ready list is served, in the turn that began at `turn_started`.
    pub fn next(&mut self, turn_started: Instant) {
        if self.carried_over > 0 {
            self.carried_over -= 1;
        } else {
            self.poll = Some(turn_started);
        }
    }
}

/// Scratch data and counters that change from request to request.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // independent flags
pub struct ServerState {
    pub idle_task: Option<IdleTask>,
    /// The idle task was released in this turn and still is the current task.
    pub current_task: Option<CurrentTask>,
    /// The time when the next request could be served: reading the clock takes 25 ns.
    pub clock: Option<Instant>,
    /// With metrics: for the queue wait of requests.
    pub ready_since: ReadySince,
    pub spare_handles: Vec<ExchangeHandle>,
    /// Exchanges whose task runs in the loop, which itself holds tasks weakly.
    pub running: HashMap<usize, Py<Exchange>>,
    /// The exchange whose application is being stepped right now: it is flushed after the step.
    pub stepped: usize,
    pub requests: u64,
    pub in_flight: usize,
    pub in_turn: bool,
    /// Whether this turn may step waiting tasks; `None`: not asked yet.
    pub may_step: Option<bool>,
    /// The connections serviced in this turn, until they are flushed.
    pub serviced: Vec<ConnId>,
    /// Total cost of this turn's wake-ups, including those deferred to the next.
    pub woken: usize,
    /// Total cost of the applications that have suspended in this turn.
    pub suspended: usize,
    /// Wake-ups deferred to later turns.
    pub wake_queue: WakeQueue,
    pub eager_flush: EagerFlush,
    /// The output that was sent outside of a turn.
    pub gathered: Gathered,
    /// Other connections are serviced in this turn as well.
    pub has_other_conns: bool,
    pub cancelling: bool,
    /// A call of the loop is scheduled for the lines about refused requests.
    pub logs_refusals_later: bool,
    /// The record of the request that is about to run.
    pub record: Box<ExchangeRecord>,
}

#[pyclass(frozen, weakref, module = "towline._native")]
pub struct AsgiServer {
    pub app: Py<PyAny>,
    pub asyncio: Asyncio,
    pub scopes: Scopes,
    pub features: StateCell<ServerFeatures>,
    /// The refusals of the features.
    pub refusals: Option<Arc<Refusals>>,
    pub ws_context: StateCell<WsContext>,
    /// A supervisor has started this process.
    pub is_worker: bool,
    /// Exchanges are counted, logged or compressed.
    pub records_exchanges: bool,
    /// With metrics: counts the time from the poll that found a request to the call of the application.
    pub wait_slot: Option<SlotHandle>,
    pub state: StateCell<ServerState>,
    pub process: Process,
    pub thread: LoopThread,
    pub base_context: Py<PyAny>,
    pub limit_concurrency: usize,
    /// Each request gets a task of its own, made by the loop: it has a task factory, or applications run it inside
    /// a request (`nested`).
    pub runs_in_tasks: AtomicBool,
    pub event_loop: Py<PyAny>,
    pub logger: Option<Py<PyAny>>,
    pub ready: Py<PyAny>,
    /// The done future that woken tasks are stepped with.
    pub done: Py<PyAny>,
    pub engine: StateCell<Option<Engine<ConnState>>>,
    pub addresses: Vec<String>,
    pub fd: i32,
}

#[pyclass(frozen, module = "towline._native", name = "Exchange")]
pub struct Exchange {
    pub server: Py<AsgiServer>,
    pub state: StateCell<ExchangeState>,
}

/// An exchange and the two functions bound to it, reused when no application has kept any of them.
pub struct ExchangeHandle {
    pub exchange: Py<Exchange>,
    pub receive: Py<PyAny>,
    pub send: Py<PyAny>,
}

/// A request's coroutine after its first step.
pub struct SuspendedRequest {
    pub coroutine: Py<PyAny>,
    pub context: Py<PyAny>,
    /// The result of a step that has run without the task, until the task takes it. `None`: the task makes the next step.
    pub stepped: Option<Step>,
    pub handle: ExchangeHandle,
    /// For the log line about its end.
    pub scope: Py<PyDict>,
    pub server: Py<AsgiServer>,
}

pub enum Work {
    Idle,
    Serving(Box<SuspendedRequest>),
    /// The coroutine of the request is being stepped right now.
    Running,
    Ended,
}

/// The state of a `TaskCoroutine`.
pub struct TaskState {
    pub work: Work,
    /// The future on which the task is parked.
    pub parked: Option<ParkedFuture>,
    /// The application's coroutine, for introspection of the task (`cr_frame`, `cr_code`, ...).
    pub inspected: Option<Py<PyAny>>,
}

/// The future of a parked task and its bound method `done`, which is called once per request: binding it once
/// saves three quarters of the look-up.
pub struct ParkedFuture {
    pub future: Py<PyAny>,
    pub done: Py<PyAny>,
}

/// Structurally a coroutine (`collections.abc.Coroutine`), as `asyncio.Task` requires.
#[pyclass(frozen, weakref, module = "towline._native", name = "RequestCoroutine")]
pub struct TaskCoroutine {
    pub event_loop: Py<PyAny>,
    pub state: StateCell<TaskState>,
}

/// State of the current task of the loop while it is an idle task that runs requests.
pub struct CurrentTask {
    /// Snapshot of the task before any request.
    pub before: TaskSnapshot,
    /// The task that was current before.
    pub outer: Option<Py<PyAny>>,
}

/// A real `asyncio.Task` that waits for a request.
pub struct IdleTask {
    pub task: Py<PyAny>,
    pub coroutine: Py<TaskCoroutine>,
    /// The bound method of the task.
    pub get_name: Py<PyAny>,
    pub name: Py<PyAny>,
}

pub fn engine_in_use() -> PyErr {
    PyRuntimeError::new_err(
        "the server's engine is in use: called from a finaliser in the middle of a turn",
    )
}

impl AsgiServer {
    /// The engine, while no Python code runs.
    pub fn engine<'a>(&'a self, py: Python<'a>) -> PyResult<EngineGuard<'a>> {
        self.thread.check()?;
        let engine = self.engine.try_open(py).ok_or_else(engine_in_use)?;
        if engine.is_none() {
            return Err(PyRuntimeError::new_err("the server is closed"));
        }
        Ok(EngineGuard(engine))
    }

    /// The result of `send()` when nothing has to be waited for.
    pub fn ready(&self, py: Python<'_>) -> Py<PyAny> {
        self.ready.clone_ref(py)
    }

    /// Writes to the server's log. `level` is one of the module `logging`.
    pub fn log(&self, py: Python<'_>, level: i32, message: &str, error: Option<PyErr>) {
        let Some(logger) = &self.logger else { return };
        let error = error.map(|error| error.into_value(py));
        if let Err(error) = logger.call1(py, (level, message, error)) {
            error.write_unraisable(py, Some(logger.bind(py)));
        }
    }

    /// Notes that the application of `handle` is about to be stepped. Pass the result to `leave_exchange`.
    pub fn enter_exchange(&self, py: Python<'_>, handle: &ExchangeHandle) -> usize {
        let stepped = if self.runs_in_tasks.load(Relaxed) {
            0
        } else {
            handle.exchange.as_ptr() as usize
        };
        std::mem::replace(&mut self.state.open(py).stepped, stepped)
    }

    pub fn leave_exchange(&self, py: Python<'_>, outer: usize) {
        self.state.open(py).stepped = outer;
    }

    /// The exchanges whose task runs in the loop.
    pub fn running(&self, py: Python<'_>) -> Vec<Py<Exchange>> {
        let state = self.state.open(py);
        let exchanges = state.running.values();
        exchanges.map(|exchange| exchange.clone_ref(py)).collect()
    }
}
