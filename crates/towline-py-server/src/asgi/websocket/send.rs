//! `send()` in a websocket scope.
use std::time::Instant;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyString};
use towline_io::Engine;
use towline_io::serve::features::Payload;
use towline_proto::BodySize;
use towline_proto::ws::{Kind, SendError};

use super::super::exchange::wake;
use super::super::exchange_state::{ClientState, ExchangeState, ResponsePhase, WaitFor};
use super::super::messages::Message;
use super::super::response::{self, MIN_SHARED_BYTES, SendFailure, respond, wait};
use super::super::state::{ConnState, Exchange, ServerFeatures};
use super::drive::advance;
use super::handshake::accept;
use super::session::{
    CloseInfo, NORMAL_CLOSURE, READ_AHEAD_BYTES, Session, Stage, WsContext, discard_unread,
};
use towline_py_common::errors::{ResponseStateError, client_disconnected};

/// Sends a message. `kind`: its type.
pub fn send(
    exchange: &Bound<'_, Exchange>,
    kind: &str,
    message: &Bound<'_, PyDict>,
    parsed: &Message<'_>,
) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    if exchange.get().state.open(py).websocket.is_none() {
        return Err(unknown(kind, "an http"));
    }
    match kind {
        "websocket.send" => send_message(exchange, parsed),
        "websocket.accept" => accept(exchange, message),
        "websocket.close" => close(exchange, message),
        "websocket.http.response.start" => deny(exchange, parsed),
        "websocket.http.response.body" => {
            expect_denied(exchange, kind)?;
            response::body(exchange, parsed)
        }
        _ => Err(unknown(kind, "a websocket")),
    }
}

fn unknown(kind: &str, scope: &str) -> PyErr {
    ResponseStateError::new_err(format!(
        "ASGI: unknown message type {kind:?} for {scope} scope"
    ))
}

/// The payload of a message, as objects of the application.
enum Data<'py> {
    Text(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
}

impl<'py> Data<'py> {
    fn of(parsed: &Message<'py>) -> PyResult<Self> {
        let is_there = |value: &&Bound<'py, PyAny>| !value.is_none();
        let text = parsed.text.as_ref().filter(is_there);
        let bytes = parsed.bytes.as_ref().filter(is_there);
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

    /// Memory of the application, kept alive until it is sent.
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

/// `bytes` as they are; a mutable buffer is copied.
fn byte_string<'py>(parsed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = parsed.cast_exact::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if !response::is_byte_string(parsed) {
        return Err(PyTypeError::new_err(format!(
            "ASGI: `bytes` must be a byte string, not {}",
            parsed.get_type()
        )));
    }
    let copy = parsed.py().get_type::<PyBytes>().call1((parsed,))?;
    Ok(copy.cast_into::<PyBytes>()?)
}

fn send_message(exchange: &Bound<'_, Exchange>, parsed: &Message<'_>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let data = Data::of(parsed)?;
    // Before any cell is opened: encoding text may run Python code.
    let bytes = data.as_slice()?;
    let room = {
        let mut state = exchange.get().state.open(py);
        let mut ws_context = server.ws_context.open(py);
        let mut engine = server.engine(py)?;
        write(&mut state, &mut ws_context, &mut engine, &data, bytes)?
    };
    server.flush_part(py, exchange);
    if room > 0 {
        Ok(server.ready(py))
    } else {
        wait(exchange, WaitFor::Room)
    }
}

/// Queues a message. Returns the remaining room.
fn write(
    state: &mut ExchangeState,
    ws_context: &mut WsContext,
    engine: &mut Engine<ConnState>,
    data: &Data<'_>,
    bytes: &[u8],
) -> PyResult<usize> {
    let Some(session) = state.websocket.as_deref_mut() else {
        return Err(unknown("websocket.send", "an http"));
    };
    let Stage::Open(socket) = &mut session.stage else {
        return Err(out_of_order("websocket.send", session));
    };
    if state.client == ClientState::Disconnected {
        return Err(client_disconnected());
    }
    let conn = engine.conn(state.id).ok_or_else(client_disconnected)?;
    let mut stream = conn.proto.stream(state.stream).map_err(SendFailure::from)?;
    let WsContext { shared, frames, .. } = ws_context;
    let kind = data.kind();
    let written = if bytes.len() < MIN_SHARED_BYTES {
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
        Ok(written) => written.map_err(SendFailure::from)?,
        // Closed by this side: a close of the peer would have set `ClientState::Disconnected`.
        Err(SendError::Closing) => return Err(out_of_order("websocket.send", session)),
        Err(error) => return Err(ResponseStateError::new_err(format!("ASGI: {error}"))),
    }
    state.dirty = true;
    Ok(stream.send_capacity())
}

fn out_of_order(kind: &str, session: &Session) -> PyErr {
    let rule = match session.stage {
        Stage::Handshake { .. } => {
            "websocket.accept, websocket.close or a response must come first"
        }
        Stage::Denied => "the WebSocket has been denied",
        Stage::Open(_) => "the WebSocket has been closed",
    };
    ResponseStateError::new_err(format!("ASGI: unexpected {kind}: {rule}"))
}

/// `websocket.close`: starts the closing handshake, or denies the request with 403.
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
        let gone = state.client == ClientState::Disconnected;
        let mut engine = server.engine(py)?;
        match &mut session.stage {
            Stage::Handshake { .. } | Stage::Open(_) if gone => return Err(client_disconnected()),
            Stage::Handshake { .. } => {
                session.stage = Stage::Denied;
                forbid(state, &mut engine, &mut server.features.open(py))?;
            }
            Stage::Denied => return Err(out_of_order("websocket.close", session)),
            Stage::Open(socket) => {
                let mut ws_context = server.ws_context.open(py);
                let now = Instant::now();
                match socket.close(now, code, &reason) {
                    Ok(()) => {}
                    Err(SendError::Closing) => {
                        return Err(out_of_order("websocket.close", session));
                    }
                    Err(error) => return Err(PyValueError::new_err(format!("ASGI: {error}"))),
                }
                discard_unread(socket, &mut ws_context);
                session.close = Some(CloseInfo { code, reason });
                let conn = engine.conn(state.id).ok_or_else(client_disconnected)?;
                advance(state, conn, &mut ws_context, now, READ_AHEAD_BYTES);
            }
        }
        state.take_receivers()
    };
    wake(py, receivers)?;
    server.flush_part(py, exchange);
    Ok(server.ready(py))
}

fn code_and_reason(message: &Bound<'_, PyDict>) -> PyResult<(u16, String)> {
    let py = message.py();
    let code = match message.get_item(intern!(py, "code"))? {
        Some(code) if !code.is_none() => code.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "ASGI: `code` is not a close code (RFC 6455 7.4): {code}"
            ))
        })?,
        _ => NORMAL_CLOSURE,
    };
    let reason = match message.get_item(intern!(py, "reason"))? {
        Some(reason) if !reason.is_none() => reason.extract()?,
        _ => String::new(),
    };
    Ok((code, reason))
}

/// Responds with 403: a close before the WebSocket was accepted (ASGI, Close - send event).
fn forbid(
    state: &mut ExchangeState,
    engine: &mut Engine<ConnState>,
    features: &mut ServerFeatures,
) -> PyResult<()> {
    let conn = engine.conn(state.id).ok_or_else(client_disconnected)?;
    state.head.clear();
    state.head.status = 403;
    respond(
        state,
        conn,
        features,
        BodySize::Known(0),
        Payload::Whole(b""),
    )
    .map_err(SendFailure::from)?;
    state.response = ResponsePhase::Complete;
    state.dirty = true;
    let finished = conn
        .proto
        .stream(state.stream)
        .and_then(|mut stream| stream.finish());
    Ok(finished.map_err(SendFailure::from)?)
}

/// `websocket.http.response.start` (extension Websocket Denial Response).
fn deny(exchange: &Bound<'_, Exchange>, parsed: &Message<'_>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    {
        let mut state = exchange.get().state.open(py);
        let state = &mut *state;
        if let Some(session) = state.websocket.as_deref_mut() {
            if !matches!(session.stage, Stage::Handshake { .. }) {
                return Err(out_of_order("websocket.http.response.start", session));
            }
            state.response = ResponsePhase::Idle;
        }
    }
    let started = response::start(exchange, parsed);
    let mut state = exchange.get().state.open(py);
    match &started {
        Ok(_) => {
            if let Some(session) = &mut state.websocket {
                session.stage = Stage::Denied;
            }
        }
        Err(_) => state.response = ResponsePhase::Switched,
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
