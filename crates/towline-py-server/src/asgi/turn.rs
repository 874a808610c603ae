//! One turn: every ready connection is serviced up to the bounds of a turn, then all of them are flushed.

use std::time::Instant;

use pyo3::intern;
use pyo3::prelude::*;
use towline_io::ConnId;

use super::dispatch::{Action, next_action};
use super::exchange_state::ExchangeEvent;
use super::flush::{notify_files_sent, take_sent_files};
use super::nested;
use super::notify::notify;
use super::run::{self, StepOutcome};
use super::state::{AsgiServer, ServerState};
use super::wake_queue::MAX_WOKEN_PER_TURN;
use super::websocket;
use crate::log_level::WARNING;
use crate::setup::NO_WAIT;

/// Pipelined requests of one connection before the next connection is serviced.
const REQUESTS_PER_SERVICE: usize = 16;

/// Cost of a suspended application, in wake-ups: it needs a new task, which first runs after this turn.
const SUSPENSION_COST: usize = 4;

/// Events without a request after which the clock is read, as it is after each request.
const EVENTS_PER_CLOCK_READ: usize = 16;

pub fn turn(server: &Bound<'_, AsgiServer>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    this.process.end_child(py, None);
    this.thread.moved_here();
    nested::leave_step(this, py);
    {
        let mut state = this.state.open(py);
        state.in_turn = true;
        state.may_step = None;
    }
    let result = run_turn(server);
    let left = run::leave_current_task(this, py);
    this.state.open(py).in_turn = false;
    if let Ok(mut engine) = this.engine(py) {
        engine.turn_end();
    }
    result.and(left)
}

fn run_turn(server: &Bound<'_, AsgiServer>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let notice = {
        let mut engine = this.engine(py)?;
        engine.turn_start(NO_WAIT)?;
        engine.take_notice()
    };
    if let Some(notice) = notice {
        this.log(py, WARNING, &notice.to_string(), None);
    }
    let mut result = this.wake_queued(py);
    let mut serviced = std::mem::take(&mut this.state.open(py).serviced);
    result = result.and(service_all(server, &mut serviced));
    for id in serviced.drain(..) {
        let flushed = flush_and_rearm(server, id);
        result = result.and(flushed);
    }
    this.state.open(py).serviced = serviced;
    if this.has_refusals() {
        result = result.and(log_refusals(server));
    }
    result
}

/// Writes the lines about refused requests to the server log. The number of suppressed ones is logged when it is
/// due, by a call of the loop.
#[cold]
pub fn log_refusals(server: &Bound<'_, AsgiServer>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let Some(refusals) = &this.refusals else {
        return Ok(());
    };
    let (lines, due) = refusals.take_lines(Instant::now());
    for line in lines {
        this.log(py, WARNING, &line, None);
    }
    let Some(due) = due else { return Ok(()) };
    if std::mem::replace(&mut this.state.open(py).logs_refusals_later, true) {
        return Ok(());
    }
    let method = server.getattr(intern!(py, "log_refusals"))?;
    let arguments = (due.as_secs_f64(), method);
    this.event_loop
        .call_method1(py, intern!(py, "call_later"), arguments)?;
    Ok(())
}

impl AsgiServer {
    #[inline]
    fn has_refusals(&self) -> bool {
        let refusals = self.refusals.as_ref();
        refusals.is_some_and(|refusals| refusals.has_lines())
    }
}

/// Services every ready connection, up to the bounds of a turn. Their responses are flushed together afterwards:
/// otherwise a client that sleeps between two of them is woken for each, and a wake-up on another core costs
/// several times as much as a response (with Starlette 30 instead of 17 microseconds of CPU per request).
fn service_all(server: &Bound<'_, AsgiServer>, serviced: &mut Vec<ConnId>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let mut before = this.engine(py)?.clock();
    let turn_started = before;
    this.state.open(py).eager_flush.expire(before);
    loop {
        let (next, now, more) = {
            let mut engine = this.engine(py)?;
            // All connections in the queue have been serviced once, and epoll may have others.
            let is_over = !engine.has_unserved() && this.state.open(py).is_full();
            let next = if is_over { None } else { engine.next_ready() };
            if next.is_none() {
                engine.refresh_clock();
            }
            (next, engine.clock(), engine.has_ready())
        };
        {
            let mut state = this.state.open(py);
            state.eager_flush.record(before, now);
            state.clock = Some(now);
            state.has_other_conns = more || !serviced.is_empty();
        }
        before = now;
        if this.wait_slot.is_some() {
            let left = this.engine(py)?.ready_len();
            let ready = &mut this.state.open(py).ready_since;
            match next {
                Some(_) => ready.next(turn_started),
                None => ready.carried_over = left,
            }
        }
        let Some(id) = next else {
            return Ok(());
        };
        serviced.push(id);
        service(server, id)?;
        this.engine(py)?.release(id);
    }
}

/// Handles the events of one connection, up to the bounds of a service.
fn service(server: &Bound<'_, AsgiServer>, id: ConnId) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let (mut requests, mut events) = (0, 0);
    loop {
        let mut is_over = requests == REQUESTS_PER_SERVICE;
        if events >= EVENTS_PER_CLOCK_READ {
            events = 0;
            let is_full = this.state.open(py).is_full();
            let mut engine = this.engine(py)?;
            is_over |= engine
                .conn(id)
                .is_some_and(|conn| conn.proto.has_events() || conn.state.has_held())
                && (is_full || engine.is_service_over());
        }
        if is_over {
            this.engine(py)?.requeue(id);
            break Ok(());
        }
        let action = match next_action(server, id) {
            Ok(action) => action,
            Err(error) => {
                // Out of memory, or a finaliser that uses the server: only this connection is closed.
                this.log(
                    py,
                    40,
                    "cannot read a request: connection closed",
                    Some(error),
                );
                break this.abort(py, id);
            }
        };
        events += match &action {
            Some(Action::RunApplication(_) | Action::Notify(..)) => EVENTS_PER_CLOCK_READ,
            _ => 1,
        };
        match action {
            None => break Ok(()),
            Some(Action::None) => {}
            Some(Action::Notify(exchange, event)) => {
                run::leave_current_task(this, py)?;
                notify(this, py, &exchange, event)?;
            }
            Some(Action::NotifyClosed(exchanges)) => {
                run::leave_current_task(this, py)?;
                for exchange in exchanges {
                    notify(this, py, &exchange, ExchangeEvent::Disconnected)?;
                }
            }
            Some(Action::CheckTimers(exchanges)) => {
                run::leave_current_task(this, py)?;
                websocket::check_timers(this, py, exchanges)?;
            }
            Some(Action::RunApplication(request)) => {
                let Some(request) = run::hold(server, request)? else {
                    continue;
                };
                requests += 1;
                match run::serve(server, request) {
                    Ok(StepOutcome::Ended) => {}
                    Ok(StepOutcome::Suspended) => {
                        this.state.open(py).suspended += SUSPENSION_COST;
                    }
                    Err(error) => break Err(error),
                }
            }
        }
    }
}

/// Flushes a connection after its service, and notifies the exchanges whose file has been sent.
fn flush_and_rearm(server: &Bound<'_, AsgiServer>, id: ConnId) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let sent = {
        let mut engine = this.engine(py)?;
        engine.flush_and_rearm(id);
        engine.conn(id).map(|conn| take_sent_files(py, conn))
    };
    notify_files_sent(py, &sent.unwrap_or_default())
}

impl ServerState {
    /// Whether the loop has as much to run after this turn as other connections may have to wait for. A connection
    /// with more than one request is then requeued behind the others.
    fn is_full(&self) -> bool {
        self.woken + self.suspended >= MAX_WOKEN_PER_TURN
    }
}
