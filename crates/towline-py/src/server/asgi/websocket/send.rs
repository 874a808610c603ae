//! `send()` in a websocket scope.
use std::time::Instant;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyString};
use towline_io::serve::site::Payload;
use towline_proto::BodySize;
use towline_proto::ws::{Kind, SendError};

use super::super::awaitables::Purpose;
use super::super::exchange::{Client, Exchange, Exchanged, Response, wake};
use super::super::messages::Message;
use super::super::response::{self, Refusal, SHARED_BYTES, respond, wait};
use super::super::server::{Extras, Machine};
use super::drive::advance;
use super::handshake::accept;
use super::receive::forget_unread;
use super::{AHEAD_BYTES, Ended, NORMAL, Session, Sockets, Stage};
use crate::errors::{ResponseStateError, client_disconnected};

/// A message of a WebSocket. `kind`: its type.
pub fn send(
    exchange: &Bound<'_, Exchange>,
    kind: &str,
    message: &Bound<'_, PyDict>,
    given: &Message<'_>,
) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    if exchange.get().state.open(py).websocket.is_none() {
        return Err(unknown(kind, "an http"));
    }
    match kind {
        "websocket.send" => send_message(exchange, given),
        "websocket.accept" => accept(exchange, message),
        "websocket.close" => close(exchange, message),
        "websocket.http.response.start" => deny(exchange, given),
        "websocket.http.response.body" => {
            expect_denied(exchange, kind)?;
            response::body(exchange, given)
        }
        _ => Err(unknown(kind, "a websocket")),
    }
}

fn unknown(kind: &str, scope: &str) -> PyErr {
    ResponseStateError::new_err(format!(
        "ASGI: unknown message type {kind:?} for {scope} scope"
    ))
}

/// What a message carries, still the application's.
enum Data<'py> {
    Text(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
}

impl<'py> Data<'py> {
    fn of(given: &Message<'py>) -> PyResult<Self> {
        let is_there = |value: &&Bound<'py, PyAny>| !value.is_none();
        let text = given.text.as_ref().filter(is_there);
        let bytes = given.bytes.as_ref().filter(is_there);
        match (text, bytes) {
            (Some(text), None) => match text.cast::<PyString>() {
                Ok(text) => Ok(Self::Text(text.clone())),
                Err(_) => Err(PyTypeError::new_err(format!(
                    "ASGI: `text` must be a string, not {}",
                    text.get_type()
                ))),
            },
            (None, Some(bytes)) => Ok(Self::Bytes(byte_string(bytes)?)),
            _ => Err(PyValueError::new_err(
                "ASGI: websocket.send needs either `text` or `bytes`",
            )),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Text(_) => Kind::Text,
            Self::Bytes(_) => Kind::Binary,
        }
    }

    fn as_slice(&self) -> PyResult<&[u8]> {
        match self {
            Self::Text(text) => Ok(text.to_str()?.as_bytes()),
            Self::Bytes(bytes) => Ok(bytes.as_bytes()),
        }
    }

    /// The same memory, kept alive for as long as it takes to send it.
    fn shared(&self) -> PyResult<Bytes> {
        Ok(match self {
            Self::Text(text) => Bytes::from_owner(Utf8(PyBackedStr::try_from(text.clone())?)),
            Self::Bytes(bytes) => Bytes::from_owner(PyBackedBytes::from(bytes.clone())),
        })
    }
}

struct Utf8(PyBackedStr);

impl AsRef<[u8]> for Utf8 {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Bytes as they are; what can still change is copied.
fn byte_string<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = given.cast_exact::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if !response::is_byte_string(given) {
        return Err(PyTypeError::new_err(format!(
            "ASGI: `bytes` must be a byte string, not {}",
            given.get_type()
        )));
    }
    let copy = given.py().get_type::<PyBytes>().call1((given,))?;
    Ok(copy.cast_into::<PyBytes>()?)
}

fn send_message(exchange: &Bound<'_, Exchange>, given: &Message<'_>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let data = Data::of(given)?;
    // Before any cell is open: text may have to be encoded.
    let bytes = data.as_slice()?;
    let room = {
        let mut state = exchange.get().state.open(py);
        let mut sockets = server.sockets.open(py);
        let mut engine = server.engine(py)?;
        write(&mut state, &mut sockets, &mut engine, &data, bytes)?
    };
    server.flush_part(py, exchange);
    if room > 0 {
        Ok(server.sent(py))
    } else {
        wait(exchange, Purpose::Room)
    }
}

/// Queues a message. Returns the room that is left.
fn write(
    state: &mut Exchanged,
    sockets: &mut Sockets,
    engine: &mut Machine,
    data: &Data<'_>,
    bytes: &[u8],
) -> PyResult<usize> {
    let Some(session) = state.websocket.as_deref_mut() else {
        return Err(unknown("websocket.send", "an http"));
    };
    let Stage::Open(socket) = &mut session.stage else {
        return Err(out_of_order("websocket.send", session));
    };
    if state.client == Client::Gone {
        return Err(client_disconnected());
    }
    let peer = engine.peer(state.id).ok_or_else(client_disconnected)?;
    let mut stream = peer.conn.stream(state.stream).map_err(Refusal::from)?;
    let Sockets { shared, frames, .. } = sockets;
    let kind = data.kind();
    let written = if bytes.len() < SHARED_BYTES {
        frames.clear();
        let sent = socket.send(kind, bytes, true, shared, frames);
        sent.map(|()| stream.write(frames))
    } else {
        let frame = socket.frame(kind, data.shared()?, true, shared);
        frame.map(|frame| {
            stream.write(frame.head.as_bytes())?;
            stream.write_shared(frame.payload)
        })
    };
    match written {
        Ok(written) => written.map_err(Refusal::from)?,
        // The peer's close would have made the client gone.
        Err(SendError::Closing) => return Err(out_of_order("websocket.send", session)),
        Err(error) => return Err(ResponseStateError::new_err(format!("ASGI: {error}"))),
    }
    state.dirty = true;
    Ok(stream.send_capacity())
}

fn out_of_order(kind: &str, session: &Session) -> PyErr {
    let rule = match session.stage {
        Stage::Asking { .. } => "websocket.accept, websocket.close or a response must come first",
        Stage::Denied => "the WebSocket has been denied",
        Stage::Open(_) => "the WebSocket has been closed",
    };
    ResponseStateError::new_err(format!("ASGI: unexpected {kind}: {rule}"))
}

/// `websocket.close`: the closing handshake begins, or the request is denied with 403.
fn close(exchange: &Bound<'_, Exchange>, message: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let (code, reason) = code_and_reason(message)?;
    let receivers = {
        let mut state = exchange.get().state.open(py);
        let state = &mut *state;
        let Some(session) = state.websocket.as_deref_mut() else {
            return Err(unknown("websocket.close", "an http"));
        };
        let gone = state.client == Client::Gone;
        let mut engine = server.engine(py)?;
        match &mut session.stage {
            Stage::Asking { .. } | Stage::Open(_) if gone => return Err(client_disconnected()),
            Stage::Asking { .. } => {
                session.stage = Stage::Denied;
                forbid(state, &mut engine, &mut server.extras.open(py))?;
            }
            Stage::Denied => return Err(out_of_order("websocket.close", session)),
            Stage::Open(socket) => {
                let mut sockets = server.sockets.open(py);
                let now = Instant::now();
                match socket.close(now, code, &reason) {
                    Ok(()) => {}
                    Err(SendError::Closing) => {
                        return Err(out_of_order("websocket.close", session));
                    }
                    Err(error) => return Err(PyValueError::new_err(format!("ASGI: {error}"))),
                }
                forget_unread(socket, &mut sockets);
                session.ended = Some(Ended { code, reason });
                let peer = engine.peer(state.id).ok_or_else(client_disconnected)?;
                advance(state, peer, &mut sockets, now, AHEAD_BYTES);
            }
        }
        state.take_receivers()
    };
    wake(py, receivers)?;
    server.flush_part(py, exchange);
    Ok(server.sent(py))
}

fn code_and_reason(message: &Bound<'_, PyDict>) -> PyResult<(u16, String)> {
    let py = message.py();
    let code = match message.get_item(intern!(py, "code"))? {
        Some(code) if !code.is_none() => code.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "ASGI: `code` is no close code (RFC 6455 7.4): {code}"
            ))
        })?,
        _ => NORMAL,
    };
    let reason = match message.get_item(intern!(py, "reason"))? {
        Some(reason) if !reason.is_none() => reason.extract()?,
        _ => String::new(),
    };
    Ok((code, reason))
}

/// A close before the WebSocket was accepted (ASGI, Close - send event).
fn forbid(state: &mut Exchanged, engine: &mut Machine, extras: &mut Extras) -> PyResult<()> {
    let peer = engine.peer(state.id).ok_or_else(client_disconnected)?;
    state.draft.clear();
    state.draft.status = 403;
    respond(
        state,
        &mut peer.conn,
        extras,
        BodySize::Known(0),
        Payload::Whole(b""),
    )
    .map_err(Refusal::from)?;
    state.response = Response::Complete;
    state.dirty = true;
    let finished = peer
        .conn
        .stream(state.stream)
        .and_then(|mut stream| stream.finish());
    Ok(finished.map_err(Refusal::from)?)
}

/// `websocket.http.response.start` (extension Websocket Denial Response).
fn deny(exchange: &Bound<'_, Exchange>, given: &Message<'_>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    {
        let mut state = exchange.get().state.open(py);
        let state = &mut *state;
        if let Some(session) = state.websocket.as_deref_mut() {
            if !matches!(session.stage, Stage::Asking { .. }) {
                return Err(out_of_order("websocket.http.response.start", session));
            }
            state.response = Response::Idle;
        }
    }
    let started = response::start(exchange, given);
    let mut state = exchange.get().state.open(py);
    match &started {
        Ok(_) => {
            if let Some(session) = &mut state.websocket {
                session.stage = Stage::Denied;
            }
        }
        Err(_) => state.response = Response::Switched,
    }
    drop(state);
    started
}

fn expect_denied(exchange: &Bound<'_, Exchange>, kind: &str) -> PyResult<()> {
    let state = exchange.get().state.open(exchange.py());
    match state.websocket.as_deref() {
        Some(session) if !matches!(session.stage, Stage::Denied) => {
            Err(out_of_order(kind, session))
        }
        _ => Ok(()),
    }
}
