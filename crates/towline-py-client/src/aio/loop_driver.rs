//! The driver of one client in one event loop: the engine with its connections, and the turns that the loop calls.
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use towline_io::EngineWaker;
use towline_io::client::{
    CallError, CallId, CallOptions, ClientDriver, ClientDriverConfig, OutgoingRequest, PoolStatus,
    adaptive_spin::{AdaptiveSpin, SPIN_TIME},
    fork,
};

use super::super::errors::client_closed;
use super::super::head::view_to_list;
use super::calls::{CallTable, ResponseMode, WaitFor};
use towline_py_common::cell::{LoopThread, Opened, StateCell};
use towline_py_common::event_loop::EventLoop;
use towline_py_common::task_future::TaskFuture;

#[pyclass(frozen, module = "towline._native")]
pub struct LoopDriver {
    pub event_loop: EventLoop,
    pub thread: LoopThread,
    /// The future that woken tasks are stepped with; `None` in trio.
    done: Option<Py<PyAny>>,
    /// The process it was made in, counted in forks.
    generation: u64,
    fd: i32,
    waker: EngineWaker,
    /// `None` once the driver is closed and every response has been fetched.
    calls: StateCell<Option<CallTable>>,
    /// The loop no longer calls `turn`.
    closed: AtomicBool,
    /// Calls that a finaliser cancelled while `calls` was open.
    deferred_cancels: StateCell<Vec<CallId>>,
    state: StateCell<State>,
}

#[derive(Default)]
struct State {
    /// Nesting of `turn`: a program may run the loop inside the loop.
    turn_depth: u32,
    /// `flush` is scheduled in the loop.
    flush_scheduled: bool,
    /// No new calls are accepted; the driver closes when the last has ended.
    closing: bool,
    turn_waiters: Vec<Py<TaskFuture>>,
    spin: Spin,
}

/// Polling for the responses to few calls in flight.
#[derive(Default)]
struct Spin {
    adaptive: AdaptiveSpin,
    /// `None`: the loop may sleep.
    until: Option<Instant>,
    /// `spin` is scheduled in the loop.
    scheduled: bool,
}

/// Rounds of polling in one turn, while responses keep arriving.
const MAX_ROUNDS: usize = 4;

/// How long a turn steps tasks itself. Later ones go through `call_soon`, so that other callbacks of the loop do
/// not wait longer than a millisecond.
const STEP_TIME: Duration = Duration::from_micros(500);

/// No further round starts after this time.
const ROUNDS_TIME: Duration = Duration::from_micros(200);

/// With more calls in flight the loop seldom sleeps.
const MAX_SPINNING_CALLS: usize = 4;

/// After a round that woke at most this many tasks, further responses are unlikely to be there yet.
const FEW_WOKEN: usize = 1;

impl LoopDriver {
    pub fn new(
        py: Python<'_>,
        event_loop: EventLoop,
        config: ClientDriverConfig,
    ) -> PyResult<Py<Self>> {
        let driver = ClientDriver::new(config)?;
        let (fd, waker) = (driver.as_raw_fd(), driver.waker());
        let done = event_loop.done_future(py)?;
        let loop_driver = Bound::new(
            py,
            Self {
                event_loop,
                thread: LoopThread::default(),
                done,
                generation: fork::generation(),
                fd,
                waker,
                calls: StateCell::new(Some(CallTable::new(driver))),
                closed: AtomicBool::new(false),
                deferred_cancels: StateCell::default(),
                state: StateCell::default(),
            },
        )?;
        let event_loop = &loop_driver.get().event_loop;
        event_loop.watch(loop_driver.as_any(), fd)?;
        Ok(loop_driver.unbind())
    }

    /// Whether it accepts calls made in `event_loop`.
    pub fn serves(&self, event_loop: &EventLoop) -> bool {
        self.event_loop.is(event_loop) && !self.is_inherited() && !self.is_closed()
    }

    /// Whether this process has inherited it through a fork; its sockets are the parent's.
    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Whether its loop is closed, or belongs to another process.
    pub fn is_stale(&self, py: Python<'_>) -> bool {
        self.is_inherited() || self.event_loop.is_closed(py) || self.is_closed()
    }

    /// The calls. The reference must be dropped before any Python code runs.
    pub fn calls<'a>(&'a self, py: Python<'_>) -> PyResult<Opened<'a, CallTable>> {
        self.thread.check()?;
        let calls = self.calls.try_open(py).ok_or_else(|| {
            PyRuntimeError::new_err("the client was called from inside its own engine")
        })?;
        Opened::filter_map(calls, Option::as_mut).map_err(|_| client_closed())
    }

    pub fn start(
        slf: &Bound<'_, Self>,
        request: OutgoingRequest,
        options: CallOptions,
        mode: ResponseMode,
        on_informational: Option<Py<PyAny>>,
    ) -> PyResult<Result<CallId, Box<CallError>>> {
        let py = slf.py();
        let mut calls = slf.get().calls(py)?;
        let started = calls.start(request, options, mode, on_informational);
        if calls.driver.calls() == 1 {
            // The only call in flight: most often no other request follows that could share its write.
            calls.driver.flush();
            drop(calls);
            Self::spin_soon(slf)?;
            return Ok(started);
        }
        let few = calls.driver.calls() <= MAX_SPINNING_CALLS;
        drop(calls);
        Self::flush_soon(slf)?;
        if few {
            Self::spin_soon(slf)?;
        } else {
            slf.get().state.open(py).spin.until = None;
        }
        Ok(started)
    }

    /// Has the loop poll for the response rather than sleep, if it is likely to come in a moment.
    fn spin_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        {
            let mut state = this.state.open(slf.py());
            if this.event_loop.is_trio() || !state.spin.adaptive.should_spin() {
                return Ok(());
            }
            state.spin.until = Some(Instant::now() + SPIN_TIME);
        }
        Self::schedule_spin(slf)
    }

    /// Schedules `spin` for the next iteration of the loop, which therefore does not sleep before it.
    fn schedule_spin(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if std::mem::replace(&mut this.state.open(py).spin.scheduled, true) {
            return Ok(());
        }
        let spin = slf.getattr(intern!(py, "spin"))?.unbind();
        this.event_loop.call_soon(py, spin, None, None)
    }

    /// Ends the polling that `spin_soon` has begun: a response has come, or its time is over.
    fn end_spin(&self, py: Python<'_>, now: Instant) {
        let spin = &mut self.state.open(py).spin;
        match spin.until.take() {
            Some(until) if now < until => spin.adaptive.on_hit(),
            Some(_) => spin.adaptive.on_miss(),
            None => {}
        }
    }

    /// Schedules one flush for everything that tasks write in this iteration of the loop.
    pub fn flush_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if this.event_loop.is_trio() {
            this.calls(py)?.driver.flush();
            return Ok(());
        }
        {
            let mut state = this.state.open(py);
            if state.turn_depth > 0 || state.flush_scheduled {
                return Ok(());
            }
            state.flush_scheduled = true;
        }
        let flush = slf.getattr(intern!(py, "flush"))?.unbind();
        this.event_loop.call_soon(py, flush, None, None)
    }

    /// Has the loop make a turn, from any thread: what a finaliser has cancelled may let another call begin.
    pub fn wake(&self) {
        let _ = self.waker.wake();
    }

    /// Cancels a call. Safe from any thread and from finalisers.
    pub fn cancel(&self, py: Python<'_>, id: CallId) {
        if self.is_inherited() {
            return;
        }
        let removed = if let Some(mut calls) = self.calls.open_if_free(py) {
            calls.as_mut().and_then(|calls| calls.cancel(id))
        } else {
            self.deferred_cancels.open(py).push(id);
            self.wake();
            None
        };
        drop(removed);
    }

    /// Has `waiter` woken when the operation can make progress.
    pub fn add_waiter(
        &self,
        py: Python<'_>,
        event: WaitFor,
        waiter: Py<TaskFuture>,
    ) -> PyResult<()> {
        let before = match event {
            WaitFor::Read(id) => self.calls(py)?.set_read_waiter(id, Some(waiter)),
            WaitFor::Write(id) => self.calls(py)?.set_write_waiter(id, waiter),
            WaitFor::Send(id) => {
                self.calls(py)?.add_send_waiter(id, waiter);
                None
            }
            WaitFor::Turn => {
                self.state.open(py).turn_waiters.push(waiter);
                None
            }
        };
        drop(before);
        Ok(())
    }

    pub fn status(&self, py: Python<'_>) -> PoolStatus {
        let calls = self.calls.try_open(py);
        let calls = calls.as_deref().and_then(Option::as_ref);
        calls.map(|calls| calls.driver.status()).unwrap_or_default()
    }

    /// Accepts no new calls, and closes when the last has ended. To be called on the loop's own thread.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.open(py).closing = true;
        if let Some(mut calls) = self.calls.try_open(py)
            && let Some(calls) = calls.as_mut()
        {
            calls.driver.close();
        }
        self.close_if_idle(py)
    }

    /// Closes every connection and drops every call.
    pub fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.shut_down(py, false)
    }

    fn close_if_idle(&self, py: Python<'_>) -> PyResult<()> {
        let is_idle = self.state.open(py).closing
            && self.calls.try_open(py).is_some_and(|mut calls| {
                calls.as_mut().is_none_or(|calls| calls.driver.is_empty())
            });
        if is_idle {
            self.shut_down(py, true)?;
        }
        Ok(())
    }

    /// Unregisters from the loop and closes every connection.
    /// `keep_responses`: responses that have been received can still be fetched.
    fn shut_down(&self, py: Python<'_>, keep_responses: bool) -> PyResult<()> {
        if self.closed.swap(true, Relaxed) {
            return Ok(());
        }
        let calls = self.calls.try_open(py).and_then(|mut calls| match &*calls {
            Some(calls) if keep_responses && calls.has_responses() => None,
            _ => calls.take(),
        });
        let unwatched = if self.is_inherited() {
            Ok(())
        } else {
            self.event_loop.unwatch(py, self.fd)
        };
        drop(calls);
        unwatched
    }

    /// Polls the engine and handles every event; returns what is to be done in Python.
    fn poll_events(&self, py: Python<'_>) -> PyResult<TurnEvents> {
        let cancels = std::mem::take(&mut *self.deferred_cancels.open(py));
        let mut removed = Vec::new();
        let mut calls = self.calls(py)?;
        for id in cancels {
            removed.extend(calls.cancel(id));
        }
        calls.driver.turn(Some(Duration::ZERO))?;
        while let Some((id, event)) = calls.driver.next_event() {
            calls.handle(py, id, event);
        }
        let events = TurnEvents {
            woken: std::mem::take(&mut calls.woken),
            informational: std::mem::take(&mut calls.informational),
        };
        drop(calls);
        drop(removed);
        Ok(events)
    }

    /// Reports informational responses and wakes waiters. Returns how many waiters there were.
    fn dispatch(&self, py: Python<'_>, events: TurnEvents, until: Instant) -> PyResult<usize> {
        for (callback, head) in events.informational {
            let fields = view_to_list(py, &head.view())?;
            callback.call1(py, (head.view().status(), fields))?;
        }
        let woken = events.woken;
        if woken.is_empty() {
            return Ok(0);
        }
        let count = woken.len();
        let allowed = self.event_loop.allows_stepping(py)?;
        let mut step_with = self.done.as_ref().filter(|_| allowed);
        let mut result = Ok(());
        for waiter in woken {
            // After SystemExit or KeyboardInterrupt out of a task the others go through `call_soon`.
            step_with = step_with.filter(|_| result.is_ok() && Instant::now() < until);
            let woken = TaskFuture::wake(waiter.bind(py), step_with);
            result = result.and(woken);
        }
        result.map(|()| count)
    }

    fn run_rounds(&self, py: Python<'_>) -> PyResult<()> {
        let started = Instant::now();
        for _ in 0..MAX_ROUNDS {
            let events = self.poll_events(py)?;
            if !events.woken.is_empty() {
                self.end_spin(py, started);
            }
            let woken = self.dispatch(py, events, started + STEP_TIME);
            if let Ok(mut calls) = self.calls(py) {
                calls.driver.flush();
            }
            if woken? <= FEW_WOKEN || self.is_closed() || started.elapsed() >= ROUNDS_TIME {
                break;
            }
        }
        Ok(())
    }
}

/// Work that a turn leaves for when the table of calls is closed again: it runs Python code.
struct TurnEvents {
    woken: Vec<Py<TaskFuture>>,
    informational: Vec<(Py<PyAny>, towline_proto::OwnedHead)>,
}

#[pymethods]
impl LoopDriver {
    /// Called by the event loop when the descriptor is readable.
    fn turn(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() || self.is_inherited() {
            return Ok(());
        }
        self.thread.moved_here();
        self.state.open(py).turn_depth += 1;
        let result = self.run_rounds(py);
        self.state.open(py).turn_depth -= 1;
        self.close_if_idle(py)?;
        let waiters = std::mem::take(&mut self.state.open(py).turn_waiters);
        for waiter in waiters {
            TaskFuture::wake(waiter.bind(py), None)?;
        }
        result
    }

    /// A turn between two iterations of the loop, and the next one while a response may come.
    fn spin(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        this.state.open(py).spin.scheduled = false;
        if this.state.open(py).spin.until.is_none() {
            return Ok(());
        }
        this.turn(py)?;
        let (now, until) = (Instant::now(), this.state.open(py).spin.until);
        if until.is_some_and(|until| now < until) {
            return Self::schedule_spin(slf);
        }
        this.end_spin(py, now);
        Ok(())
    }

    fn flush(&self, py: Python<'_>) {
        self.state.open(py).flush_scheduled = false;
        if let Ok(mut calls) = self.calls(py) {
            calls.driver.flush();
        }
    }

    /// `close`, callable from the event loop.
    #[pyo3(name = "close")]
    fn py_close(&self, py: Python<'_>) -> PyResult<()> {
        self.close(py)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// `abort`, called at the end of a trio run.
    #[pyo3(name = "abort")]
    fn py_abort(&self, py: Python<'_>) -> PyResult<()> {
        self.abort(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.event_loop.object())?;
        visit.call(&self.done)?;
        if let Some(calls) = self.calls.peek()
            && let Some(calls) = calls.as_ref()
        {
            calls.traverse(&visit)?;
        }
        Ok(())
    }
}
