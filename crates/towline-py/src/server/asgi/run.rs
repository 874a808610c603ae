//! Running one request: the first step in the turn, the rest in the task that adopts it, the end.
use std::time::Instant;

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PySystemExit, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use towline_io::Peer;
use towline_io::serve::site::Payload;
use towline_proto::BodySize;

use super::exchange::{Client, Exchange, Exchanged, Kit, Response, wake};
use super::response::respond;
use super::server::{AsgiServer, ConnState, Extras, Machine};
use super::task::coroutine::{Assignment, Host};
use super::task::idle::{Loan, Spare};
use super::task::step::{self as stepping, Step, copy_context, in_context};
use super::turn::Request;
use super::websocket::{self, Left, Outcome};
use crate::errors::{CancelledError, ClientDisconnected};

const ERROR: i32 = 40;

/// Kits kept for later requests.
const KEPT_KITS: usize = 64;

/// How far the first step of an application has come.
pub enum Served {
    Ended,
    /// A task goes on with it behind the turn.
    Suspended,
}

/// Starts the application on a request. An error is one that must end the loop.
pub fn serve(server: &Bound<'_, AsgiServer>, mut request: Request<'_>) -> PyResult<Served> {
    let py = server.py();
    let this = server.get();
    let kit = AsgiServer::kit(server, request.id, request.stream)?;
    kit.begin(py, request.id, request.stream);
    {
        let mut state = kit.exchange.get().state.open(py);
        state.head_only = request.head_only;
        state.websocket = request.websocket.take();
        if state.websocket.is_some() {
            state.response = Response::Switched;
        }
        std::mem::swap(&mut state.visit, &mut this.pool.open(py).visit);
    }
    let context = copy_context(py, &this.base_context)?;
    if this.task_factory {
        return in_own_task(server, &request, kit, context).map(|()| Served::Suspended);
    }
    let (spare, loan) = lend(this, py)?;
    let outer = this.enter_exchange(py, &kit);
    let mut coroutine = None;
    let step = in_context(py, &context, || {
        first_step(this, &spare, &request, &kit, &mut coroutine)
    });
    this.leave_exchange(py, outer);
    drop(request);
    match step.unwrap_or_else(Step::Raise) {
        Step::Yield(awaited) => {
            this.asyncio.leave(py, &spare.task, loan.outer)?;
            let Some(coroutine) = coroutine else {
                return Ok(Served::Ended);
            };
            let awaited = (!awaited.is_none(py)).then_some(awaited);
            this.flush_suspended(py, &kit);
            let assignment = Assignment {
                coroutine: coroutine.unbind(),
                context,
                awaited,
                kit,
                server: server.clone().unbind(),
            };
            adopt(server, spare, assignment).map(|()| Served::Suspended)
        }
        step => {
            drop(coroutine);
            drop(context);
            spare.host.get().show(py, None);
            give_back(this, py, spare, loan)?;
            let outcome = match step {
                Step::Raise(error) => Err(error),
                _ => Ok(()),
            };
            this.finish(py, kit, outcome).map(|()| Served::Ended)
        }
    }
}

/// Calls the application and resumes what it returns for the first time.
fn first_step<'py>(
    server: &AsgiServer,
    spare: &Spare,
    request: &Request<'py>,
    kit: &Kit,
    coroutine: &mut Option<Bound<'py, PyAny>>,
) -> Step {
    let py = request.scope.py();
    let called = server
        .app
        .bind(py)
        .call1((&request.scope, &kit.receive, &kit.send))
        .and_then(as_coroutine);
    match called {
        Err(error) => Step::Raise(error),
        Ok(called) => {
            spare.host.get().show(py, Some(&called));
            stepping::step(coroutine.insert(called))
        }
    }
}

/// What an application returned, as something that can be resumed.
fn as_coroutine(returned: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: looks at the type of a live object.
    if unsafe { pyo3::ffi::PyCoro_CheckExact(returned.as_ptr()) } != 0 {
        return Ok(returned);
    }
    let py = returned.py();
    if returned.hasattr(intern!(py, "send"))? && returned.hasattr(intern!(py, "throw"))? {
        return Ok(returned);
    }
    match returned.getattr(intern!(py, "__await__")) {
        Ok(awaiting) => awaiting.call0(),
        Err(_) => Err(PyTypeError::new_err(format!(
            "ASGI: an application must return an awaitable (async def), not {}",
            returned.get_type()
        ))),
    }
}

/// Lends a task to a request: it is the current task now.
fn lend(server: &AsgiServer, py: Python<'_>) -> PyResult<(Spare, Loan)> {
    let (kept, loan) = {
        let mut pool = server.pool.open(py);
        (pool.spare.take(), pool.loan.take())
    };
    let spare = match (kept, loan) {
        // Given back in this turn: nobody has had a chance to touch it since.
        (Some(spare), Some(loan)) => return Ok((spare, loan)),
        (Some(spare), None) if spare.is_fit(py)? => spare,
        _ => server.asyncio.spare(py)?,
    };
    let outer = server.asyncio.enter(py, &spare.task)?;
    match server.asyncio.marks(&spare, py) {
        Ok(before) => Ok((spare, Loan { before, outer })),
        Err(error) => {
            server.asyncio.leave(py, &spare.task, outer)?;
            Err(error)
        }
    }
}

/// Keeps the task for the next request, if this one has left no trace on it. Until the turn ends it
/// stays the current task: to leave and to enter it costs 800 instructions, and only requests run in
/// between.
fn give_back(server: &AsgiServer, py: Python<'_>, spare: Spare, loan: Loan) -> PyResult<()> {
    if !server.asyncio.is_unmarked(py, &spare, loan.before)? {
        server.asyncio.leave(py, &spare.task, loan.outer)?;
        return spare.host.get().retire(py);
    }
    let other = {
        let mut pool = server.pool.open(py);
        pool.loan = Some(loan);
        pool.spare.replace(spare)
    };
    match other {
        Some(other) => other.host.get().retire(py),
        None => Ok(()),
    }
}

/// The spare is the current task no longer: anything may run now.
pub fn end_loan(server: &AsgiServer, py: Python<'_>) -> PyResult<()> {
    let (loan, task) = {
        let mut pool = server.pool.open(py);
        let task = pool.spare.as_ref().map(|spare| spare.task.clone_ref(py));
        (pool.loan.take(), task)
    };
    match (loan, task) {
        (Some(loan), Some(task)) => server.asyncio.leave(py, &task, loan.outer),
        _ => Ok(()),
    }
}

/// The task takes over a coroutine that has suspended.
fn adopt(server: &Bound<'_, AsgiServer>, spare: Spare, assignment: Assignment) -> PyResult<()> {
    let py = server.py();
    register(server.get(), py, &assignment.kit, spare.task.clone_ref(py));
    spare.take_up(py)?;
    spare.host.get().assign(py, assignment)
}

/// Makes the exchange known to events of its connection, and to `cancel_all`.
fn register(server: &AsgiServer, py: Python<'_>, kit: &Kit, task: Py<PyAny>) {
    let exchange = kit.exchange.get();
    let key = kit.exchange.as_ptr() as usize;
    server
        .pool
        .open(py)
        .running
        .insert(key, kit.exchange.clone_ref(py));
    let gone = {
        let mut state = exchange.state.open(py);
        state.task = Some(task);
        let stream = state.stream;
        match server
            .engine(py)
            .ok()
            .as_mut()
            .and_then(|engine| engine.peer(state.id))
        {
            Some(peer) => {
                let exchange = kit.exchange.clone_ref(py);
                peer.state.exchanges.insert(stream, exchange);
            }
            None => state.client = Client::Gone,
        }
        state.client == Client::Gone
    };
    if gone && let Err(error) = wake(py, exchange.lose(py)) {
        error.write_unraisable(py, None);
    }
}

/// A task made by the program's own factory; an eager one steps it within this call.
fn in_own_task(
    server: &Bound<'_, AsgiServer>,
    request: &Request<'_>,
    kit: Kit,
    context: Py<PyAny>,
) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let called = in_context(py, &context, || {
        this.app
            .bind(py)
            .call1((&request.scope, &kit.receive, &kit.send))
            .and_then(as_coroutine)
    });
    let coroutine = match called.and_then(|called| called) {
        Ok(coroutine) => coroutine,
        Err(error) => return this.finish(py, kit, Err(error)),
    };
    let host = Py::new(py, Host::new(this.asyncio.loop_(py)))?;
    host.get().show(py, Some(&coroutine));
    let keep = kit.clone_ref(py);
    let assignment = Assignment {
        coroutine: coroutine.unbind(),
        context,
        awaited: None,
        kit,
        server: server.clone().unbind(),
    };
    host.get().assign(py, assignment)?;
    let task = match this.asyncio.create_task(py, &host) {
        Ok(task) => task,
        Err(error) => {
            // The request is not to blame, and is served all the same.
            this.say(py, ERROR, "the loop's task factory failed", Some(error));
            this.asyncio.plain_task(py, &host)?.unbind()
        }
    };
    if !task
        .bind(py)
        .call_method0(intern!(py, "done"))?
        .is_truthy()?
    {
        register(this, py, &keep, task);
    }
    Ok(())
}

/// How an application has left its response.
enum End {
    Complete,
    /// Nobody waits for it any more.
    Lost,
    /// 500 was sent in its place.
    Replaced,
    /// The connection was aborted, so that what was sent does not look complete.
    Aborted,
    /// Its WebSocket was open, and has been closed with this code.
    Closed(u16),
}

impl AsgiServer {
    /// The application has ended. An error is returned when it is not for us to swallow.
    pub fn finish(&self, py: Python<'_>, kit: Kit, outcome: PyResult<()>) -> PyResult<()> {
        let exchange = kit.exchange.get();
        let (end, task, waiters) = {
            let mut state = exchange.state.open(py);
            let end = match self.engine(py) {
                Ok(mut engine) => self
                    .end_websocket(py, &kit.exchange, &mut state, &mut engine, &outcome)
                    .unwrap_or_else(|| {
                        end_response(&mut state, &mut engine, &mut self.extras.open(py))
                    }),
                Err(_) => End::Lost,
            };
            if self.watching {
                let now = Instant::now();
                self.extras.open(py).site.end(&mut state.visit, now);
                self.pool.open(py).clock = Some(now);
            }
            (end, state.task.take(), state.take_waiters())
        };
        let known = {
            let mut pool = self.pool.open(py);
            pool.in_flight -= 1;
            if task.is_some() {
                pool.running.remove(&(kit.exchange.as_ptr() as usize))
            } else {
                None
            }
        };
        drop((known, task));
        wake(py, waiters)?;
        // In a turn the visit settles the connection, after the other pipelined requests.
        if !self.pool.open(py).in_turn {
            self.flush(py, &kit);
        }
        self.look_again(py, exchange);
        let result = self.judge(py, &end, outcome);
        if kit.is_unshared(py) {
            let mut pool = self.pool.open(py);
            if pool.kits.len() < KEPT_KITS {
                pool.kits.push(kit);
            }
        }
        result
    }

    /// `None`: there is a response to look at.
    fn end_websocket(
        &self,
        py: Python<'_>,
        exchange: &Py<Exchange>,
        state: &mut Exchanged,
        engine: &mut Machine,
        outcome: &PyResult<()>,
    ) -> Option<End> {
        state.websocket.as_ref()?;
        let outcome = match outcome {
            Ok(()) => Outcome::Returned,
            Err(_) if self.pool.open(py).cancelling => Outcome::Stopped,
            Err(_) => Outcome::Failed,
        };
        let with = (&mut *self.sockets.open(py), engine);
        Some(match websocket::end(py, exchange, state, with, outcome)? {
            Left::Closed => End::Complete,
            Left::Lost => End::Lost,
            Left::With(code) => End::Closed(code),
        })
    }

    /// A pipelined request may stand behind the response that has just ended.
    fn look_again(&self, py: Python<'_>, exchange: &Exchange) {
        let id = exchange.state.open(py).id;
        if self.pool.open(py).in_turn {
            // The visit goes on with the next event.
            return;
        }
        if let Ok(mut engine) = self.engine(py)
            && engine.peer(id).is_some_and(has_more)
        {
            engine.revisit(id);
        }
    }

    /// What there is to say about the end of an application.
    fn judge(&self, py: Python<'_>, end: &End, outcome: PyResult<()>) -> PyResult<()> {
        let what = match end {
            End::Complete => "",
            End::Lost => " (the client has gone)",
            End::Replaced => ": answered 500",
            End::Aborted => ": connection aborted",
            End::Closed(code) => &format!(": WebSocket closed with {code}"),
        };
        let Err(error) = outcome else {
            match end {
                End::Replaced => self.say(
                    py,
                    ERROR,
                    "ASGI application returned without starting its response: answered 500",
                    None,
                ),
                End::Aborted => self.say(
                    py,
                    ERROR,
                    "ASGI application returned without completing its response: connection aborted",
                    None,
                ),
                End::Complete | End::Lost | End::Closed(_) => {}
            }
            return Ok(());
        };
        if error.is_instance_of::<PyKeyboardInterrupt>(py)
            || error.is_instance_of::<PySystemExit>(py)
        {
            return Err(error);
        }
        if error.is_instance_of::<CancelledError>(py) {
            if !matches!(end, End::Complete | End::Lost) && !self.pool.open(py).cancelling {
                self.say(
                    py,
                    ERROR,
                    &format!("ASGI application was cancelled{what}"),
                    None,
                );
            }
            return Err(error);
        }
        let expected = error.is_instance_of::<ClientDisconnected>(py)
            || matches!(end, End::Lost) && error.is_instance_of::<PyOSError>(py);
        if !expected {
            self.say(
                py,
                ERROR,
                &format!("Exception in ASGI application{what}"),
                Some(error),
            );
        }
        Ok(())
    }
}

/// Whether there is something to see on a connection of which an exchange has ended. While others are
/// under way it is never idle.
fn has_more(peer: &mut Peer<ConnState>) -> bool {
    if peer.state.exchanges.is_empty() {
        !peer.conn.is_idle()
    } else {
        peer.conn.has_events()
    }
}

fn end_response(state: &mut Exchanged, engine: &mut Machine, extras: &mut Extras) -> End {
    let Some(peer) = engine.peer(state.id) else {
        state.client = Client::Gone;
        return End::Lost;
    };
    // Others hold it as well: nothing of it ends here.
    drop(peer.state.exchanges.remove(state.stream));
    peer.let_go(state.stream);
    if state.response == Response::Complete {
        // A file may still be on its way; it ends without us.
        return End::Complete;
    }
    if state.client == Client::Gone {
        return End::Lost;
    }
    state.dirty = true;
    if matches!(state.response, Response::Idle | Response::Held) {
        const BODY: &[u8] = b"Internal Server Error";
        state.draft.clear();
        state.draft.status = 500;
        state
            .draft
            .push(b"content-type", b"text/plain; charset=utf-8");
        let answered = respond(
            state,
            &mut peer.conn,
            extras,
            BodySize::Known(BODY.len() as u64),
            Payload::File,
        );
        state.response = Response::Complete;
        if answered.is_ok()
            && let Ok(mut stream) = peer.conn.stream(state.stream)
            && extras
                .site
                .write(&mut state.visit, &mut stream, BODY)
                .is_ok()
            && stream.finish().is_ok()
        {
            return End::Replaced;
        }
    }
    state.response = Response::Complete;
    if let Ok(mut stream) = peer.conn.stream(state.stream) {
        stream.reset();
    }
    End::Aborted
}
