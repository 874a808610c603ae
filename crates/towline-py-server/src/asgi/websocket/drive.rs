//! Events that advance a WebSocket: of its stream, its timers, the end of its application and server shutdown.
use std::time::Instant;

use pyo3::prelude::*;
use towline_io::{Conn, Engine};
use towline_proto::StreamId;
use towline_proto::ws::{Status, WebSocket};
use towline_py_common::task_future::TaskFuture;

use super::super::exchange::wake;
use super::super::exchange_state::{ClientState, ExchangeEvent, ExchangeState, ResponsePhase};
use super::super::state::{AsgiServer, ConnState, Exchange};
use super::session::{
    CloseInfo, INTERNAL_ERROR, NORMAL_CLOSURE, READ_AHEAD_BYTES, SERVICE_RESTART, Stage, WsContext,
    discard_unread,
};

/// Reads at most `read_limit` bytes (see [`READ_AHEAD_BYTES`]), sends pending frames and sets the timer.
pub fn advance(
    state: &mut ExchangeState,
    conn: &mut Conn<ConnState>,
    ws_context: &mut WsContext,
    now: Instant,
    read_limit: usize,
) {
    let Some(session) = state.websocket.as_deref_mut() else {
        return;
    };
    let Stage::Open(socket) = &mut session.stage else {
        return;
    };
    let Ok(mut stream) = conn.proto.stream(state.stream) else {
        session.is_finished = true;
        state.client = ClientState::Disconnected;
        return;
    };
    state.dirty = true;
    socket.read_ahead(&mut stream, now, &mut ws_context.shared, read_limit);
    // Fails only if the stream has failed, which reading has reported.
    let _ = socket.flush(&mut stream, &mut ws_context.shared);
    if socket.status() == Status::Finished && !session.is_finished {
        session.is_finished = true;
        let _ = stream.finish();
        stream.reset();
    }
    if socket.status() != Status::Open && session.close.is_none() {
        // The peer has closed or violated the protocol: nothing more can be sent to it.
        state.client = ClientState::Disconnected;
    }
    if let Some(deadline) = socket.deadline() {
        conn.wake_at(deadline);
    }
}

/// Handles an event of the stream of an exchange. Returns the waiters to wake, or `None` if the exchange has no open
/// WebSocket.
pub fn handle_event(
    py: Python<'_>,
    exchange: &Py<Exchange>,
    event: ExchangeEvent,
) -> PyResult<Option<Vec<Py<TaskFuture>>>> {
    let this = exchange.get();
    let mut state = this.state.open(py);
    if !state
        .websocket
        .as_ref()
        .is_some_and(|session| session.is_open())
    {
        return Ok(None);
    }
    let server = this.server.get();
    if matches!(event, ExchangeEvent::Disconnected) {
        state.client = ClientState::Disconnected;
        if let Some(session) = &mut state.websocket {
            session.is_finished = true;
        }
        if state.response == ResponsePhase::Complete
            && let Some(conn) = server.engine(py)?.conn(state.id)
        {
            remove_exchange(conn, state.stream);
        }
        return Ok(Some(state.take_waiters()));
    }
    let mut ws_context = server.ws_context.open(py);
    let mut engine = server.engine(py)?;
    let mut waiters = poll(&mut state, &mut ws_context, &mut engine, |_| {});
    if matches!(event, ExchangeEvent::Writable) {
        waiters.append(&mut state.take_senders());
    }
    Ok(Some(waiters))
}

/// Calls `first` on the WebSocket and advances it. Returns the waiters to wake.
fn poll(
    state: &mut ExchangeState,
    ws_context: &mut WsContext,
    engine: &mut Engine<ConnState>,
    first: impl FnOnce(&mut WebSocket),
) -> Vec<Py<TaskFuture>> {
    let now = engine.now();
    let Some(conn) = engine.conn(state.id) else {
        return state.take_waiters();
    };
    if let Some(session) = state.websocket.as_deref_mut()
        && let Stage::Open(socket) = &mut session.stage
    {
        first(socket);
    }
    let read_limit = if state.has_receivers() {
        usize::MAX
    } else {
        READ_AHEAD_BYTES
    };
    advance(state, conn, ws_context, now, read_limit);
    let Some(session) = state.websocket.as_deref_mut() else {
        return Vec::new();
    };
    if session.is_finished && state.response == ResponsePhase::Complete {
        // The application has already ended.
        remove_exchange(conn, state.stream);
    }
    match &session.stage {
        _ if state.client == ClientState::Disconnected || session.is_finished => {
            state.take_waiters()
        }
        Stage::Open(socket) if socket.has_event() => state.take_receivers(),
        _ => Vec::new(),
    }
}

/// Handles timers of these exchanges that may have expired.
pub fn check_timers(
    server: &AsgiServer,
    py: Python<'_>,
    exchanges: Vec<Py<Exchange>>,
) -> PyResult<()> {
    for exchange in exchanges {
        let waiters = {
            let mut state = exchange.get().state.open(py);
            let (mut ws_context, mut engine) = (server.ws_context.open(py), server.engine(py)?);
            let now = Instant::now();
            poll(&mut state, &mut ws_context, &mut engine, |socket| {
                socket.handle_timeout(now);
            })
        };
        wake(py, waiters)?;
    }
    Ok(())
}

/// Closes every open WebSocket with 1012 for server shutdown and notifies its application.
pub fn drain(server: &AsgiServer, py: Python<'_>) -> PyResult<()> {
    for exchange in server.running(py) {
        let waiters = {
            let mut state = exchange.get().state.open(py);
            if !state
                .websocket
                .as_ref()
                .is_some_and(|session| session.is_open())
            {
                continue;
            }
            close_for_shutdown(&mut state);
            let (mut ws_context, mut engine) = (server.ws_context.open(py), server.engine(py)?);
            poll(&mut state, &mut ws_context, &mut engine, |_| {})
        };
        server.flush_and_rearm(py, exchange.get());
        wake(py, waiters)?;
    }
    Ok(())
}

/// Closes a WebSocket for server shutdown.
pub fn close_for_shutdown(state: &mut ExchangeState) {
    if let Some(session) = state.websocket.as_deref_mut()
        && let Stage::Open(socket) = &mut session.stage
        && socket.close(Instant::now(), SERVICE_RESTART, "").is_ok()
    {
        session.close = Some(CloseInfo::new(SERVICE_RESTART, ""));
        state.client = ClientState::Disconnected;
    }
}

/// The state of the WebSocket when its application ended.
pub enum WsEnd {
    /// The WebSocket was closed already.
    Closed,
    ClientDisconnected,
    /// The WebSocket was open and has been closed with this code.
    ClosedWith(u16),
}

/// Closes an open WebSocket after its application has ended. `None`: the exchange has a response instead.
pub fn end(
    py: Python<'_>,
    exchange: &Py<Exchange>,
    state: &mut ExchangeState,
    (ws_context, engine): (&mut WsContext, &mut Engine<ConnState>),
    outcome: Outcome,
) -> Option<WsEnd> {
    let session = state.websocket.as_deref_mut()?;
    let socket = match &mut session.stage {
        Stage::Handshake { .. } => {
            state.response = ResponsePhase::Idle;
            return None;
        }
        Stage::Denied => return None,
        Stage::Open(socket) => socket,
    };
    discard_unread(socket, ws_context);
    let code = outcome.code();
    let ws_end = if state.client == ClientState::Disconnected {
        WsEnd::ClientDisconnected
    } else if socket.close(Instant::now(), code, "").is_ok() {
        session.close = Some(CloseInfo::new(code, ""));
        WsEnd::ClosedWith(code)
    } else {
        WsEnd::Closed
    };
    state.response = ResponsePhase::Complete;
    let Some(conn) = engine.conn(state.id) else {
        return Some(ws_end);
    };
    advance(state, conn, ws_context, Instant::now(), READ_AHEAD_BYTES);
    if state
        .websocket
        .as_ref()
        .is_some_and(|session| session.is_finished)
    {
        remove_exchange(conn, state.stream);
    } else {
        // Kept until the closing handshake is complete.
        let exchange = exchange.clone_ref(py);
        drop(conn.state.exchanges.insert(state.stream, exchange));
    }
    Some(ws_end)
}

/// Removes the exchange from its connection after both the WebSocket and the application have ended.
fn remove_exchange(conn: &mut Conn<ConnState>, stream: StreamId) {
    // Other references to the exchange exist, so nothing is deallocated here.
    drop(conn.state.exchanges.remove(stream));
    conn.release_stream(stream);
}

/// The result of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Returned,
    /// Cancelled by server shutdown.
    Cancelled,
    Failed,
}

impl Outcome {
    fn code(self) -> u16 {
        match self {
            Self::Returned => NORMAL_CLOSURE,
            Self::Cancelled => SERVICE_RESTART,
            Self::Failed => INTERNAL_ERROR,
        }
    }
}
