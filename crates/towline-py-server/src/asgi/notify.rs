//! Notifying exchanges of events: which waiting tasks are stepped in this turn, and which are woken in a later one.
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use towline_py_common::event_loop::EventLoop;
use towline_py_common::task_future::TaskFuture;

use super::exchange::wake;
use super::exchange_state::{ClientState, ExchangeEvent};
use super::state::{AsgiServer, Exchange, TaskCoroutine};
use super::wake_queue::{MAX_WOKEN_PER_TURN, WakeReason};
use super::websocket;

pub fn notify(
    server: &AsgiServer,
    py: Python<'_>,
    exchange: &Py<Exchange>,
    event: ExchangeEvent,
) -> PyResult<()> {
    let reason = match event {
        ExchangeEvent::Disconnected => WakeReason::Disconnect,
        _ => WakeReason::Event,
    };
    if let Some(waiters) = websocket::handle_event(py, exchange, event)? {
        return server.wake_soon(py, waiters, reason);
    }
    let exchange = exchange.get();
    let waiters = match event {
        ExchangeEvent::Disconnected => exchange.mark_disconnected(py),
        ExchangeEvent::Readable => exchange.state.open(py).take_receivers(),
        ExchangeEvent::Writable => exchange.state.open(py).take_senders(),
        ExchangeEvent::HalfClosed => {
            let mut state = exchange.state.open(py);
            if state.client == ClientState::Connected {
                state.client = ClientState::HalfClosed;
            }
            state.take_receivers()
        }
    };
    server.wake_soon(py, waiters, reason)
}

impl AsgiServer {
    /// Wakes all waiters of an exchange whose client has disconnected.
    pub fn wake_disconnected(&self, py: Python<'_>, waiters: Vec<Py<TaskFuture>>) -> PyResult<()> {
        self.wake_soon(py, waiters, WakeReason::Disconnect)
    }

    /// Wakes waiters in this turn or, behind others, in one of the next.
    fn wake_soon(
        &self,
        py: Python<'_>,
        waiters: Vec<Py<TaskFuture>>,
        reason: WakeReason,
    ) -> PyResult<()> {
        if waiters.is_empty() {
            return Ok(());
        }
        if reason == WakeReason::Event && self.may_step(py)? {
            return self.step(py, waiters);
        }
        let is_now = {
            let mut state = self.state.open(py);
            state.woken += waiters.len() * reason.cost();
            state.in_turn && state.wake_queue.is_next(reason) && state.woken <= MAX_WOKEN_PER_TURN
        };
        if is_now {
            return wake(py, waiters);
        }
        self.state.open(py).wake_queue.add(waiters, reason);
        self.engine(py).map(|mut engine| engine.rearm())
    }

    /// Whether waiting tasks can be stepped here: in a turn, behind no other waiter, while no task is current.
    fn may_step(&self, py: Python<'_>) -> PyResult<bool> {
        let known = {
            let state = self.state.open(py);
            if !state.in_turn || !state.wake_queue.is_next(WakeReason::Event) {
                return Ok(false);
            }
            state.may_step
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let event_loop = EventLoop::Asyncio(self.event_loop.clone_ref(py));
        let may_step = !self.runs_in_tasks.load(Relaxed) && event_loop.allows_stepping(py)?;
        self.state.open(py).may_step = Some(may_step);
        Ok(may_step)
    }

    /// Steps waiting tasks in this turn: the turn's time bounds them, as it bounds new requests.
    fn step(&self, py: Python<'_>, waiters: Vec<Py<TaskFuture>>) -> PyResult<()> {
        let mut result = Ok(());
        for waiter in waiters {
            // After SystemExit or KeyboardInterrupt out of a task the others go through `call_soon`.
            result = match result {
                Ok(()) => TaskCoroutine::step_waiting(waiter.bind(py), &self.done),
                error => error.and(TaskFuture::wake(waiter.bind(py), None)),
            };
        }
        result
    }

    /// Wakes waiters that earlier turns have deferred, as many as one turn may.
    pub fn wake_queued(&self, py: Python<'_>) -> PyResult<()> {
        let (waiters, is_all) = {
            let mut state = self.state.open(py);
            let (waiters, cost) = state.wake_queue.take();
            (state.woken, state.suspended) = (cost, 0);
            (waiters, state.wake_queue.is_empty())
        };
        let woken = wake(py, waiters);
        if !is_all {
            self.engine(py)?.rearm();
        }
        woken
    }
}
