//! An application that runs the loop inside the loop (`nest_asyncio`), in a step of a request.
//!
//! The loop then calls everything that is due, the next turn included. So the turn and the step that are under way are
//! left: output is flushed at once, and the request can receive the events of its connection. Later requests run in
//! tasks of their own, never within a turn, and every flush is immediate.
use std::sync::atomic::Ordering::Relaxed;

use pyo3::intern;
use pyo3::prelude::*;

use super::state::{AsgiServer, Exchange};

/// Leaves the step that is under way, if there is one. Call it where the loop has called.
#[inline]
pub fn leave_step(server: &AsgiServer, py: Python<'_>) {
    if server.state.open(py).stepped != 0 {
        leave(server, py);
    }
}

/// Leaves the step if it may be one in which the loop runs. Call it before a request waits: no event may come that
/// calls the loop.
pub fn before_waiting(server: &AsgiServer, py: Python<'_>) {
    // SAFETY: both objects are alive; errors are suppressed.
    let may_be_nested = || unsafe {
        let name = intern!(py, "_nest_patched");
        pyo3::ffi::PyObject_HasAttr(server.event_loop.as_ptr(), name.as_ptr()) != 0
    };
    if server.state.open(py).stepped != 0 && may_be_nested() {
        leave(server, py);
    }
}

#[cold]
fn leave(server: &AsgiServer, py: Python<'_>) {
    server.runs_in_tasks.store(true, Relaxed);
    let stepped = {
        let mut state = server.state.open(py);
        state.in_turn = false;
        std::mem::take(&mut state.stepped)
    };
    // SAFETY: the function that steps the exchange is below in the stack, and holds it.
    let exchange = unsafe { Bound::from_borrowed_ptr(py, stepped as *mut pyo3::ffi::PyObject) };
    let Ok(exchange) = exchange.cast_into::<Exchange>() else {
        return;
    };
    {
        let state = exchange.get().state.open(py);
        if let Ok(mut engine) = server.engine(py)
            && let Some(conn) = engine.conn(state.id)
        {
            let exchange = exchange.clone().unbind();
            conn.state.exchanges.insert(state.stream, exchange);
        }
    }
    server.flush_and_rearm(py, exchange.get());
    // The turn ends here: a connection that is still ready has to wake the inner loop.
    if let Ok(mut engine) = server.engine(py) {
        engine.turn_end();
    }
}
