//! A pool's part in one event loop: its driver, and the turn that the loop calls.
use std::cell::RefMut;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use towline_io::client::{
    CallError, CallId, CallOptions, Caller, CallerConfig, PoolStatus, Prepared, fork,
};

use super::super::head::view_to_list;
use super::calls::{CallTable, ResponseMode};
use super::event_loop::EventLoop;
use super::waiter::Waiter;
use crate::gil::GilCell;

#[pyclass(frozen, module = "towline._native")]
pub struct LoopDriver {
    pub event_loop: EventLoop,
    generation: u64,
    fd: i32,
    /// `None` once the loop_driver has ended and no answer is left to be fetched.
    calls: GilCell<Option<CallTable>>,
    /// Calls given up while the desk was open: a finaliser in another's way.
    deferred_cancels: GilCell<Vec<CallId>>,
    state: GilCell<State>,
}

#[derive(Default)]
struct State {
    /// Turns under way: a program may run the loop inside the loop.
    depth: u32,
    /// `flush` is on the loop's list.
    flush_due: bool,
    /// No more calls; the loop_driver ends with the last.
    closing: bool,
    /// The loop does not call any more.
    ended: bool,
    /// Who waits for that, or for the end of a dial.
    status_waiters: Vec<Py<Waiter>>,
}

/// Rounds of a turn while answers keep coming in.
const ROUNDS: usize = 4;

/// A turn steps tasks itself for this long, the send_waiters come through the loop's list: what else runs
/// in the loop is not to wait longer than a millisecond.
const STEP_TIME: Duration = Duration::from_micros(500);

/// No further round is begun after this time.
const ROUNDS_TIME: Duration = Duration::from_micros(200);

/// So few answers in a round tell that the next are not here yet.
const FEW: usize = 1;

impl LoopDriver {
    pub fn new(py: Python<'_>, event_loop: EventLoop, config: CallerConfig) -> PyResult<Py<Self>> {
        let driver = Caller::new(config)?;
        let fd = driver.as_raw_fd();
        let loop_driver = Bound::new(
            py,
            Self {
                event_loop,
                generation: fork::generation(),
                fd,
                calls: GilCell::new(Some(CallTable::new(driver))),
                deferred_cancels: GilCell::default(),
                state: GilCell::default(),
            },
        )?;
        loop_driver
            .get()
            .event_loop
            .watch(loop_driver.as_any(), fd)?;
        Ok(loop_driver.unbind())
    }

    /// It can take calls of that loop.
    pub fn serves(&self, py: Python<'_>, event_loop: &EventLoop) -> bool {
        self.event_loop.is(event_loop) && !self.is_inherited() && !self.is_ended(py)
    }

    /// Inherited through a fork: its sockets are the parent's.
    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    pub fn is_ended(&self, py: Python<'_>) -> bool {
        self.state.open(py).ended
    }

    /// To be forgotten: its loop is closed, or it is another process's.
    pub fn is_stale(&self, py: Python<'_>) -> bool {
        self.is_inherited() || self.event_loop.is_closed(py) || self.is_ended(py)
    }

    /// The calls, which must be closed again before any Python code runs.
    pub fn calls<'a>(&'a self, py: Python<'_>) -> PyResult<RefMut<'a, CallTable>> {
        let calls = self.calls.try_open(py).ok_or_else(|| {
            PyRuntimeError::new_err("the client is called from inside its own engine")
        })?;
        RefMut::filter_map(calls, Option::as_mut).map_err(|_| super::super::errors::client_closed())
    }

    pub fn begin(
        slf: &Bound<'_, Self>,
        request: Prepared,
        options: CallOptions,
        mode: ResponseMode,
        on_interim: Option<Py<PyAny>>,
    ) -> PyResult<Result<CallId, Box<CallError>>> {
        let py = slf.py();
        let mut calls = slf.get().calls(py)?;
        let begun = calls.begin(request, options, mode, on_interim);
        if calls.driver.calls() == 1 {
            // Nothing else is under way, and most often nothing else comes: it need not wait.
            calls.driver.flush();
            return Ok(begun);
        }
        drop(calls);
        Self::flush_soon(slf)?;
        Ok(begun)
    }

    /// What is written outside a turn leaves together with what other tasks write in this round.
    pub fn flush_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if this.event_loop.is_trio() {
            this.calls(py)?.driver.flush();
            return Ok(());
        }
        {
            let mut state = this.state.open(py);
            if state.depth > 0 || state.flush_due {
                return Ok(());
            }
            state.flush_due = true;
        }
        let flush = slf.getattr(intern!(py, "flush"))?.unbind();
        this.event_loop.call_soon(py, flush, None, None)
    }

    /// Gives up a call. Safe from any thread and from finalisers.
    pub fn cancel(&self, py: Python<'_>, id: CallId) {
        if self.is_inherited() {
            return;
        }
        let dropped = if let Some(mut calls) = self.calls.try_open(py) {
            calls.as_mut().and_then(|calls| calls.cancel(id))
        } else {
            self.deferred_cancels.open(py).push(id);
            None
        };
        drop(dropped);
    }

    pub fn status(&self, py: Python<'_>) -> PoolStatus {
        let calls = self.calls.try_open(py);
        let calls = calls.as_deref().and_then(Option::as_ref);
        calls.map(|calls| calls.driver.status()).unwrap_or_default()
    }

    /// Wakes `waiter` when the loop_driver has ended, or dials have.
    pub fn add_status_waiter(&self, py: Python<'_>, waiter: Py<Waiter>) {
        self.state.open(py).status_waiters.push(waiter);
    }

    /// Takes no more calls, and ends when none is left. On the loop's own thread.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.open(py).closing = true;
        if let Some(mut calls) = self.calls.try_open(py)
            && let Some(calls) = calls.as_mut()
        {
            calls.driver.close();
        }
        self.close_if_empty(py)
    }

    /// The same without a word to the loop, which is closed, or the parent's.
    pub fn forget(&self, py: Python<'_>) -> PyResult<()> {
        self.finish(py, false)
    }

    fn close_if_empty(&self, py: Python<'_>) -> PyResult<()> {
        let is_over = self.state.open(py).closing
            && self.calls.try_open(py).is_some_and(|mut calls| {
                calls.as_mut().is_none_or(|calls| calls.driver.is_empty())
            });
        if is_over {
            self.finish(py, true)?;
        }
        Ok(())
    }

    /// Leaves the loop and closes every connection.
    /// `keep`: what has come may still be fetched.
    fn finish(&self, py: Python<'_>, keep: bool) -> PyResult<()> {
        if std::mem::replace(&mut self.state.open(py).ended, true) {
            return Ok(());
        }
        let calls = self.calls.try_open(py).and_then(|mut calls| match &*calls {
            Some(calls) if keep && calls.has_responses() => None,
            _ => calls.take(),
        });
        let left = if self.is_inherited() {
            Ok(())
        } else {
            self.event_loop.unwatch(py, self.fd)
        };
        drop(calls);
        left
    }

    /// Polls and sees every event; what is to be done in Python is listed.
    fn poll_events(&self, py: Python<'_>) -> PyResult<TurnEvents> {
        let deferred_cancels = std::mem::take(&mut *self.deferred_cancels.open(py));
        let mut dropped = Vec::new();
        let mut calls = self.calls(py)?;
        for id in deferred_cancels {
            dropped.extend(calls.cancel(id));
        }
        calls.driver.turn(Some(Duration::ZERO))?;
        while let Some((id, event)) = calls.driver.next_event() {
            calls.handle(py, id, event);
        }
        let events = TurnEvents {
            woken: std::mem::take(&mut calls.woken),
            interim: std::mem::take(&mut calls.interim),
        };
        drop(calls);
        drop(dropped);
        Ok(events)
    }

    /// Wakes who waits, and says how many that were.
    fn wake(&self, py: Python<'_>, events: TurnEvents, until: Instant) -> PyResult<usize> {
        let TurnEvents { woken, interim } = events;
        for (callback, head) in interim {
            let fields = view_to_list(py, &head.view())?;
            callback.call1(py, (head.view().status(), fields))?;
        }
        if woken.is_empty() {
            return Ok(0);
        }
        let count = woken.len();
        let mut step_now = self.event_loop.allows_stepping(py)?;
        let mut result = Ok(());
        for waiter in woken {
            step_now = step_now && Instant::now() < until;
            // SystemExit or KeyboardInterrupt out of a task: the send_waiters wait for the next round.
            let woken = Waiter::wake(waiter.bind(py), step_now && result.is_ok());
            result = result.and(woken);
        }
        result.map(|()| count)
    }

    fn rounds(&self, py: Python<'_>) -> PyResult<()> {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            let events = self.poll_events(py)?;
            let woken = self.wake(py, events, started + STEP_TIME);
            if let Ok(mut calls) = self.calls(py) {
                calls.driver.flush();
            }
            if woken? <= FEW || self.is_ended(py) || started.elapsed() >= ROUNDS_TIME {
                break;
            }
        }
        Ok(())
    }
}

/// What a turn leaves to be done in Python.
struct TurnEvents {
    woken: Vec<Py<Waiter>>,
    interim: Vec<(Py<PyAny>, towline_proto::OwnedHead)>,
}

#[pymethods]
impl LoopDriver {
    /// For the loop: the descriptor is readable.
    fn turn(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_ended(py) || self.is_inherited() {
            return Ok(());
        }
        self.state.open(py).depth += 1;
        let result = self.rounds(py);
        self.state.open(py).depth -= 1;
        self.close_if_empty(py)?;
        let status_waiters = std::mem::take(&mut self.state.open(py).status_waiters);
        for waiter in status_waiters {
            Waiter::wake(waiter.bind(py), false)?;
        }
        result
    }

    fn flush(&self, py: Python<'_>) {
        self.state.open(py).flush_due = false;
        if let Ok(mut calls) = self.calls(py) {
            calls.driver.flush();
        }
    }

    /// `close`, for the loop's list.
    #[pyo3(name = "close")]
    fn close_soon(&self, py: Python<'_>) -> PyResult<()> {
        self.close(py)
    }

    #[getter]
    fn ended(&self, py: Python<'_>) -> bool {
        self.is_ended(py)
    }

    /// The run is over.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.finish(py, false)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.event_loop.object())?;
        if let Some(calls) = self.calls.peek()
            && let Some(calls) = calls.as_ref()
        {
            calls.traverse(&visit)?;
        }
        Ok(())
    }
}
