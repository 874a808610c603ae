//! What moves a WebSocket on: its stream, its clock, the end of its application, the end of the server.
use std::time::Instant;

use pyo3::prelude::*;
use towline_io::Peer;
use towline_proto::StreamId;
use towline_proto::ws::{Status, WebSocket};

use super::super::exchange::{Client, Exchange, Exchanged, Response, wake};
use super::super::server::{AsgiServer, ConnState, Machine};
use super::super::turn::News;
use super::receive::forget_unread;
use super::{AHEAD_BYTES, Ended, INTERNAL_ERROR, NORMAL, RESTART, Sockets, Stage};

/// Reads what may be read, sends what is due and keeps the clock. `most`: see [`AHEAD_BYTES`].
pub fn advance(
    state: &mut Exchanged,
    peer: &mut Peer<ConnState>,
    sockets: &mut Sockets,
    now: Instant,
    most: usize,
) {
    let Some(session) = state.websocket.as_deref_mut() else {
        return;
    };
    let Stage::Open(socket) = &mut session.stage else {
        return;
    };
    let Ok(mut stream) = peer.conn.stream(state.stream) else {
        session.over = true;
        state.client = Client::Gone;
        return;
    };
    state.dirty = true;
    socket.read_ahead(&mut stream, now, &mut sockets.shared, most);
    // A refusal is about a stream that has failed, which reading has told.
    let _ = socket.flush(&mut stream, &mut sockets.shared);
    if socket.status() == Status::Finished && !session.over {
        session.over = true;
        let _ = stream.finish();
        stream.reset();
    }
    if socket.status() != Status::Open && session.ended.is_none() {
        // The peer has closed, or it broke a rule: nothing can be sent to it any more.
        state.client = Client::Gone;
    }
    if let Some(deadline) = socket.deadline() {
        peer.visit_by(deadline);
    }
}

/// Something happened to the stream of an exchange. `None`: it is not that of an open WebSocket, else those who
/// wait for it.
pub fn tell(
    py: Python<'_>,
    exchange: &Py<Exchange>,
    news: News,
) -> PyResult<Option<Vec<Py<PyAny>>>> {
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
    if matches!(news, News::Gone) {
        state.client = Client::Gone;
        if let Some(session) = &mut state.websocket {
            session.over = true;
        }
        if state.response == Response::Complete
            && let Some(peer) = server.engine(py)?.peer(state.id)
        {
            forget(peer, state.stream);
        }
        return Ok(Some(state.take_waiters()));
    }
    let mut sockets = server.sockets.open(py);
    let mut engine = server.engine(py)?;
    let mut waiters = look(&mut state, &mut sockets, &mut engine, |_| {});
    if matches!(news, News::Writable) {
        waiters.append(&mut state.take_senders());
    }
    Ok(Some(waiters))
}

/// Advances a WebSocket after `first`. Returns those who have news of it, to be woken.
fn look(
    state: &mut Exchanged,
    sockets: &mut Sockets,
    engine: &mut Machine,
    first: impl FnOnce(&mut WebSocket),
) -> Vec<Py<PyAny>> {
    let Some(peer) = engine.peer(state.id) else {
        return state.take_waiters();
    };
    if let Some(session) = state.websocket.as_deref_mut()
        && let Stage::Open(socket) = &mut session.stage
    {
        first(socket);
    }
    let asks = state.has_receivers();
    let most = if asks { usize::MAX } else { AHEAD_BYTES };
    advance(state, peer, sockets, Instant::now(), most);
    let Some(session) = state.websocket.as_deref_mut() else {
        return Vec::new();
    };
    if session.over && state.response == Response::Complete {
        // The application has ended before.
        forget(peer, state.stream);
    }
    match &session.stage {
        _ if state.client == Client::Gone || session.over => state.take_waiters(),
        Stage::Open(socket) if socket.has_event() => state.take_receivers(),
        _ => Vec::new(),
    }
}

/// A clock of these exchanges may have run out.
pub fn tick(server: &AsgiServer, py: Python<'_>, exchanges: Vec<Py<Exchange>>) -> PyResult<()> {
    for exchange in exchanges {
        let waiters = {
            let mut state = exchange.get().state.open(py);
            let (mut sockets, mut engine) = (server.sockets.open(py), server.engine(py)?);
            let now = Instant::now();
            look(&mut state, &mut sockets, &mut engine, |socket| {
                socket.handle_timeout(now);
            })
        };
        wake(py, waiters)?;
    }
    Ok(())
}

/// The server ends: each open WebSocket is closed with 1012, and its application is told.
pub fn drain(server: &AsgiServer, py: Python<'_>) -> PyResult<()> {
    let running: Vec<Py<Exchange>> = {
        let pool = server.pool.open(py);
        pool.running
            .values()
            .map(|exchange| exchange.clone_ref(py))
            .collect()
    };
    for exchange in running {
        let waiters = {
            let mut state = exchange.get().state.open(py);
            if !state
                .websocket
                .as_ref()
                .is_some_and(|session| session.is_open())
            {
                continue;
            }
            restart(&mut state);
            let (mut sockets, mut engine) = (server.sockets.open(py), server.engine(py)?);
            look(&mut state, &mut sockets, &mut engine, |_| {})
        };
        server.settle(py, exchange.get());
        wake(py, waiters)?;
    }
    Ok(())
}

/// Closes a WebSocket because the server ends.
pub fn restart(state: &mut Exchanged) {
    if let Some(session) = state.websocket.as_deref_mut()
        && let Stage::Open(socket) = &mut session.stage
        && socket.close(Instant::now(), RESTART, "").is_ok()
    {
        session.ended = Some(Ended::new(RESTART, ""));
        state.client = Client::Gone;
    }
}

/// How an application has ended that had a WebSocket.
pub enum Left {
    /// There was nothing left to do, or nobody to do it for.
    Closed,
    /// The client has gone before.
    Lost,
    /// It was open, and has been closed with this code.
    With(u16),
}

/// The application has ended: what it left open is closed. `None`: it owes a response, like that of an http scope.
pub fn end(
    py: Python<'_>,
    exchange: &Py<Exchange>,
    state: &mut Exchanged,
    (sockets, engine): (&mut Sockets, &mut Machine),
    outcome: Outcome,
) -> Option<Left> {
    let session = state.websocket.as_deref_mut()?;
    let socket = match &mut session.stage {
        Stage::Asking { .. } => {
            state.response = Response::Idle;
            return None;
        }
        Stage::Denied => return None,
        Stage::Open(socket) => socket,
    };
    forget_unread(socket, sockets);
    let code = outcome.code();
    let left = if state.client == Client::Gone {
        Left::Lost
    } else if socket.close(Instant::now(), code, "").is_ok() {
        session.ended = Some(Ended::new(code, ""));
        Left::With(code)
    } else {
        Left::Closed
    };
    state.response = Response::Complete;
    let Some(peer) = engine.peer(state.id) else {
        return Some(left);
    };
    advance(state, peer, sockets, Instant::now(), AHEAD_BYTES);
    if state.websocket.as_ref().is_some_and(|session| session.over) {
        forget(peer, state.stream);
    } else {
        // It is here until the closing handshake is done.
        let exchange = exchange.clone_ref(py);
        drop(peer.state.exchanges.insert(state.stream, exchange));
    }
    Some(left)
}

/// Both the WebSocket and its application have ended: a stream that has failed is no place taken any more.
fn forget(peer: &mut Peer<ConnState>, stream: StreamId) {
    // Others hold the exchange as well: nothing of it ends here.
    drop(peer.state.exchanges.remove(stream));
    peer.let_go(stream);
}

/// How an application has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Returned,
    /// It was cancelled because the server ends.
    Stopped,
    Failed,
}

impl Outcome {
    fn code(self) -> u16 {
        match self {
            Self::Returned => NORMAL,
            Self::Stopped => RESTART,
            Self::Failed => INTERNAL_ERROR,
        }
    }
}
