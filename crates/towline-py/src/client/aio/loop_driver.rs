//! A pool's part in one event loop: its caller, and the turn that the loop calls.
use std::cell::RefMut;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use towline_io::call::{
    CallError, CallId, CallOptions, Caller, CallerConfig, PoolStatus, Prepared, fork,
};

use super::super::head::view_to_list;
use super::calls::{Desk, Want};
use super::event_loop::Home;
use super::waiter::Waiter;
use crate::gil::GilCell;

#[pyclass(frozen, module = "towline._native")]
pub struct Hub {
    pub home: Home,
    generation: u64,
    fd: i32,
    /// `None` once the hub has ended and no answer is left to be fetched.
    desk: GilCell<Option<Desk>>,
    /// Calls given up while the desk was open: a finaliser in another's way.
    late: GilCell<Vec<CallId>>,
    state: GilCell<State>,
}

#[derive(Default)]
struct State {
    /// Turns under way: a program may run the loop inside the loop.
    depth: u32,
    /// `flush` is on the loop's list.
    flush_due: bool,
    /// No more calls; the hub ends with the last.
    closing: bool,
    /// The loop does not call any more.
    ended: bool,
    /// Who waits for that, or for the end of a dial.
    watchers: Vec<Py<Waiter>>,
}

/// Rounds of a turn while answers keep coming in.
const ROUNDS: usize = 4;

/// A turn steps tasks itself for this long, the others come through the loop's list: what else runs
/// in the loop is not to wait longer than a millisecond.
const STEP_TIME: Duration = Duration::from_micros(500);

/// No further round is begun after this time.
const ROUNDS_TIME: Duration = Duration::from_micros(200);

/// So few answers in a round tell that the next are not here yet.
const FEW: usize = 1;

impl Hub {
    pub fn new(py: Python<'_>, home: Home, config: CallerConfig) -> PyResult<Py<Self>> {
        let caller = Caller::new(config)?;
        let fd = caller.as_raw_fd();
        let hub = Bound::new(
            py,
            Self {
                home,
                generation: fork::generation(),
                fd,
                desk: GilCell::new(Some(Desk::new(caller))),
                late: GilCell::default(),
                state: GilCell::default(),
            },
        )?;
        hub.get().home.watch(hub.as_any(), fd)?;
        Ok(hub.unbind())
    }

    /// It can take calls of that loop.
    pub fn serves(&self, py: Python<'_>, home: &Home) -> bool {
        self.home.is(home) && !self.is_foreign() && !self.is_ended(py)
    }

    /// Inherited through a fork: its sockets are the parent's.
    fn is_foreign(&self) -> bool {
        self.generation != fork::generation()
    }

    pub fn is_ended(&self, py: Python<'_>) -> bool {
        self.state.open(py).ended
    }

    /// To be forgotten: its loop is closed, or it is another process's.
    pub fn is_stale(&self, py: Python<'_>) -> bool {
        self.is_foreign() || self.home.is_over(py) || self.is_ended(py)
    }

    /// The desk, which must be closed again before any Python code runs.
    pub fn desk<'a>(&'a self, py: Python<'_>) -> PyResult<RefMut<'a, Desk>> {
        let desk = self.desk.try_open(py).ok_or_else(|| {
            PyRuntimeError::new_err("the client is called from inside its own engine")
        })?;
        RefMut::filter_map(desk, Option::as_mut).map_err(|_| super::super::errors::client_closed())
    }

    pub fn begin(
        slf: &Bound<'_, Self>,
        request: Prepared,
        options: CallOptions,
        want: Want,
        on_interim: Option<Py<PyAny>>,
    ) -> PyResult<Result<CallId, Box<CallError>>> {
        let py = slf.py();
        let mut desk = slf.get().desk(py)?;
        let begun = desk.begin(request, options, want, on_interim);
        if desk.caller.calls() == 1 {
            // Nothing else is under way, and most often nothing else comes: it need not wait.
            desk.caller.flush();
            return Ok(begun);
        }
        drop(desk);
        Self::flush_soon(slf)?;
        Ok(begun)
    }

    /// What is written outside a turn leaves together with what other tasks write in this round.
    pub fn flush_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if this.home.is_trio() {
            this.desk(py)?.caller.flush();
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
        this.home.call_soon(py, flush, None, None)
    }

    /// Gives up a call. Safe from any thread and from finalisers.
    pub fn cancel(&self, py: Python<'_>, id: CallId) {
        if self.is_foreign() {
            return;
        }
        let dropped = if let Some(mut desk) = self.desk.try_open(py) {
            desk.as_mut().and_then(|desk| desk.cancel(id))
        } else {
            self.late.open(py).push(id);
            None
        };
        drop(dropped);
    }

    pub fn status(&self, py: Python<'_>) -> PoolStatus {
        let desk = self.desk.try_open(py);
        let desk = desk.as_deref().and_then(Option::as_ref);
        desk.map(|desk| desk.caller.status()).unwrap_or_default()
    }

    /// Wakes `waiter` when the hub has ended, or dials have.
    pub fn add_watcher(&self, py: Python<'_>, waiter: Py<Waiter>) {
        self.state.open(py).watchers.push(waiter);
    }

    /// Takes no more calls, and ends when none is left. On the loop's own thread.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.open(py).closing = true;
        if let Some(mut desk) = self.desk.try_open(py)
            && let Some(desk) = desk.as_mut()
        {
            desk.caller.close();
        }
        self.end_if_empty(py)
    }

    /// The same without a word to the loop, which is closed, or the parent's.
    pub fn forget(&self, py: Python<'_>) -> PyResult<()> {
        self.finish(py, false)
    }

    fn end_if_empty(&self, py: Python<'_>) -> PyResult<()> {
        let is_over = self.state.open(py).closing
            && self
                .desk
                .try_open(py)
                .is_some_and(|mut desk| desk.as_mut().is_none_or(|desk| desk.caller.is_empty()));
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
        let desk = self.desk.try_open(py).and_then(|mut desk| match &*desk {
            Some(desk) if keep && desk.has_answers() => None,
            _ => desk.take(),
        });
        let left = if self.is_foreign() {
            Ok(())
        } else {
            self.home.unwatch(py, self.fd)
        };
        drop(desk);
        left
    }

    /// Polls and sees every event; what is to be done in Python is listed.
    fn see(&self, py: Python<'_>) -> PyResult<Seen> {
        let late = std::mem::take(&mut *self.late.open(py));
        let mut dropped = Vec::new();
        let mut desk = self.desk(py)?;
        for id in late {
            dropped.extend(desk.cancel(id));
        }
        desk.caller.turn(Some(Duration::ZERO))?;
        while let Some((id, event)) = desk.caller.next_event() {
            desk.handle(py, id, event);
        }
        let seen = Seen {
            woken: std::mem::take(&mut desk.woken),
            interim: std::mem::take(&mut desk.interim),
        };
        drop(desk);
        drop(dropped);
        Ok(seen)
    }

    /// Wakes who waits, and says how many that were.
    fn wake(&self, py: Python<'_>, seen: Seen, until: Instant) -> PyResult<usize> {
        let Seen { woken, interim } = seen;
        for (callback, head) in interim {
            let fields = view_to_list(py, &head.view())?;
            callback.call1(py, (head.view().status(), fields))?;
        }
        if woken.is_empty() {
            return Ok(0);
        }
        let count = woken.len();
        let mut at_once = self.home.takes_steps(py)?;
        let mut result = Ok(());
        for waiter in woken {
            at_once = at_once && Instant::now() < until;
            // SystemExit or KeyboardInterrupt out of a task: the others wait for the next round.
            let woken = Waiter::wake(waiter.bind(py), at_once && result.is_ok());
            result = result.and(woken);
        }
        result.map(|()| count)
    }

    fn rounds(&self, py: Python<'_>) -> PyResult<()> {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            let seen = self.see(py)?;
            let woken = self.wake(py, seen, started + STEP_TIME);
            if let Ok(mut desk) = self.desk(py) {
                desk.caller.flush();
            }
            if woken? <= FEW || self.is_ended(py) || started.elapsed() >= ROUNDS_TIME {
                break;
            }
        }
        Ok(())
    }
}

/// What a turn leaves to be done in Python.
struct Seen {
    woken: Vec<Py<Waiter>>,
    interim: Vec<(Py<PyAny>, towline_proto::KeptHead)>,
}

#[pymethods]
impl Hub {
    /// For the loop: the descriptor is readable.
    fn turn(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_ended(py) || self.is_foreign() {
            return Ok(());
        }
        self.state.open(py).depth += 1;
        let result = self.rounds(py);
        self.state.open(py).depth -= 1;
        self.end_if_empty(py)?;
        let watchers = std::mem::take(&mut self.state.open(py).watchers);
        for waiter in watchers {
            Waiter::wake(waiter.bind(py), false)?;
        }
        result
    }

    fn flush(&self, py: Python<'_>) {
        self.state.open(py).flush_due = false;
        if let Ok(mut desk) = self.desk(py) {
            desk.caller.flush();
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
        visit.call(self.home.object())?;
        if let Some(desk) = self.desk.peek()
            && let Some(desk) = desk.as_ref()
        {
            desk.traverse(&visit)?;
        }
        Ok(())
    }
}
