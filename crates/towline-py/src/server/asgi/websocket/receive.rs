//! `receive()`: the next message of a WebSocket for the application.
use std::time::Instant;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use towline_proto::ws::{Event, Kind, WebSocket};

use super::super::exchange::{Client, Exchange, Response};
use super::drive::advance;
use super::{Ended, Session, Sockets, Stage, VANISHED};

/// What there is to tell.
enum Told {
    Nothing,
    Connect,
    Text(Py<PyString>),
    Bytes(Py<PyBytes>),
    Disconnect(Ended),
}

/// The next message, if there is one.
pub fn receive(exchange: &Bound<'_, Exchange>) -> PyResult<Option<Py<PyAny>>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let told = next(py, exchange.get())?;
    let message = PyDict::new(py);
    let kind = match told {
        Told::Nothing => {
            server.flush_outside(py, exchange);
            return Ok(None);
        }
        Told::Connect => intern!(py, "websocket.connect"),
        Told::Text(text) => {
            message.set_item(intern!(py, "text"), text)?;
            intern!(py, "websocket.receive")
        }
        Told::Bytes(bytes) => {
            message.set_item(intern!(py, "bytes"), bytes)?;
            intern!(py, "websocket.receive")
        }
        Told::Disconnect(Ended { code, reason }) => {
            message.set_item(intern!(py, "code"), code)?;
            message.set_item(intern!(py, "reason"), reason)?;
            intern!(py, "websocket.disconnect")
        }
    };
    message.set_item(intern!(py, "type"), kind)?;
    server.flush_outside(py, exchange);
    Ok(Some(message.into_any().unbind()))
}

fn next(py: Python<'_>, exchange: &Exchange) -> PyResult<Told> {
    let mut state = exchange.state.open(py);
    let state = &mut *state;
    let gone = state.client != Client::Present;
    let complete = state.response == Response::Complete;
    let Some(session) = state.websocket.as_deref_mut() else {
        return Ok(Told::Nothing);
    };
    match &mut session.stage {
        Stage::Asking {
            told: told @ false, ..
        } => {
            *told = true;
            return Ok(Told::Connect);
        }
        Stage::Asking { .. } | Stage::Denied => {
            return Ok(if gone || complete {
                Told::Disconnect(Ended::new(VANISHED, ""))
            } else {
                Told::Nothing
            });
        }
        Stage::Open(_) => {}
    }
    let server = exchange.server.get();
    let mut sockets = server.sockets.open(py);
    let told = take(py, session, &mut sockets);
    if !matches!(told, Told::Nothing) {
        return Ok(told);
    }
    let mut engine = server.engine(py)?;
    let Some(peer) = engine.peer(state.id) else {
        return Ok(session.disconnect(VANISHED, ""));
    };
    advance(state, peer, &mut sockets, Instant::now(), usize::MAX);
    let Some(session) = state.websocket.as_deref_mut() else {
        return Ok(Told::Nothing);
    };
    Ok(take(py, session, &mut sockets))
}

/// The event that waits. Strings and bytes are no containers: making them runs no collection.
fn take(py: Python<'_>, session: &mut Session, sockets: &mut Sockets) -> Told {
    let Stage::Open(socket) = &mut session.stage else {
        return Told::Nothing;
    };
    let told = match socket.next_event() {
        Some(Event::Message { kind, data }) => Some(message(py, kind, data)),
        Some(Event::Close { code, reason }) => {
            session.ended = Some(Ended::new(code, reason));
            None
        }
        Some(Event::Failed(violation)) => {
            // An end of our own making keeps its code.
            session
                .ended
                .get_or_insert_with(|| Ended::new(violation.code, violation.rule));
            None
        }
        Some(Event::Ping(_) | Event::Pong(_)) | None => None,
    };
    socket.release(&mut sockets.shared);
    if let Some(told) = told {
        return told;
    }
    match &session.ended {
        Some(Ended { code, reason }) => Told::Disconnect(Ended::new(*code, reason)),
        None if session.over => session.disconnect(VANISHED, ""),
        None => Told::Nothing,
    }
}

fn message(py: Python<'_>, kind: Kind, data: &[u8]) -> Told {
    match (kind, std::str::from_utf8(data)) {
        (Kind::Text, Ok(text)) => Told::Text(PyString::new(py, text).unbind()),
        // Text has been checked.
        _ => Told::Bytes(PyBytes::new(py, data).unbind()),
    }
}

impl Session {
    fn disconnect(&mut self, code: u16, reason: &str) -> Told {
        self.ended = Some(Ended::new(code, reason));
        Told::Disconnect(Ended::new(code, reason))
    }
}

/// The application has done with messages: one that it has not asked for does not hold up the close behind it.
pub fn forget_unread(socket: &mut WebSocket, sockets: &mut Sockets) {
    while socket.next_event().is_some() {}
    socket.release(&mut sockets.shared);
}
