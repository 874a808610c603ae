//! `receive()`: the next message of a WebSocket for the application.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use towline_proto::ws::{Event, Kind};

use super::super::exchange_state::{ClientState, ResponsePhase};
use super::super::state::Exchange;
use super::drive::advance;
use super::session::{ABNORMAL_CLOSURE, CloseInfo, Session, Stage, WsContext};

/// The next message for the application.
enum Message {
    Connect,
    Text(Py<PyString>),
    Bytes(Py<PyBytes>),
    Disconnect(CloseInfo),
}

/// The next message, if there is one.
pub fn receive(exchange: &Bound<'_, Exchange>) -> PyResult<Option<Py<PyAny>>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let next = next(py, exchange.get())?;
    server.flush_outside_step(py, exchange);
    let Some(next) = next else {
        return Ok(None);
    };
    let message = PyDict::new(py);
    let kind = match next {
        Message::Connect => intern!(py, "websocket.connect"),
        Message::Text(text) => {
            message.set_item(intern!(py, "text"), text)?;
            intern!(py, "websocket.receive")
        }
        Message::Bytes(bytes) => {
            message.set_item(intern!(py, "bytes"), bytes)?;
            intern!(py, "websocket.receive")
        }
        Message::Disconnect(CloseInfo { code, reason }) => {
            message.set_item(intern!(py, "code"), code)?;
            message.set_item(intern!(py, "reason"), reason)?;
            intern!(py, "websocket.disconnect")
        }
    };
    message.set_item(intern!(py, "type"), kind)?;
    Ok(Some(message.into_any().unbind()))
}

fn next(py: Python<'_>, exchange: &Exchange) -> PyResult<Option<Message>> {
    let mut state = exchange.state.open(py);
    let state = &mut *state;
    let is_disconnected = state.client != ClientState::Connected;
    let complete = state.response == ResponsePhase::Complete;
    let Some(session) = state.websocket.as_deref_mut() else {
        return Ok(None);
    };
    match &mut session.stage {
        Stage::Handshake {
            connect_received: received @ false,
            ..
        } => {
            *received = true;
            return Ok(Some(Message::Connect));
        }
        Stage::Handshake { .. } | Stage::Denied => {
            let has_ended = is_disconnected || complete;
            return Ok(has_ended.then(|| Message::Disconnect(CloseInfo::new(ABNORMAL_CLOSURE, ""))));
        }
        Stage::Open(_) => {}
    }
    let server = exchange.server.get();
    let mut ws_context = server.ws_context.open(py);
    let message = take(py, session, &mut ws_context);
    if message.is_some() {
        return Ok(message);
    }
    let mut engine = server.engine(py)?;
    let now = engine.now();
    let Some(conn) = engine.conn(state.id) else {
        return Ok(Some(session.disconnect(ABNORMAL_CLOSURE, "")));
    };
    advance(state, conn, &mut ws_context, now, usize::MAX);
    let Some(session) = state.websocket.as_deref_mut() else {
        return Ok(None);
    };
    Ok(take(py, session, &mut ws_context))
}

/// Takes the pending event. Creating strings and bytes, which are no containers, runs no garbage collection.
fn take(py: Python<'_>, session: &mut Session, ws_context: &mut WsContext) -> Option<Message> {
    let Stage::Open(socket) = &mut session.stage else {
        return None;
    };
    let message = match socket.next_event() {
        Some(Event::Message { kind, data }) => Some(message(py, kind, data)),
        Some(Event::Close { code, reason }) => {
            session.close = Some(CloseInfo::new(code, reason));
            None
        }
        Some(Event::Failed(violation)) => {
            // If this server has closed the connection, its code is kept.
            session
                .close
                .get_or_insert_with(|| CloseInfo::new(violation.code, violation.rule));
            None
        }
        Some(Event::Ping(_) | Event::Pong(_)) | None => None,
    };
    socket.release(&mut ws_context.shared);
    if message.is_some() {
        return message;
    }
    match &session.close {
        Some(CloseInfo { code, reason }) => {
            Some(Message::Disconnect(CloseInfo::new(*code, reason)))
        }
        None if session.is_finished => Some(session.disconnect(ABNORMAL_CLOSURE, "")),
        None => None,
    }
}

fn message(py: Python<'_>, kind: Kind, data: &[u8]) -> Message {
    match (kind, std::str::from_utf8(data)) {
        (Kind::Text, Ok(text)) => Message::Text(PyString::new(py, text).unbind()),
        // The core has validated the UTF-8 of text.
        _ => Message::Bytes(PyBytes::new(py, data).unbind()),
    }
}

impl Session {
    fn disconnect(&mut self, code: u16, reason: &str) -> Message {
        self.close = Some(CloseInfo::new(code, reason));
        Message::Disconnect(CloseInfo::new(code, reason))
    }
}
