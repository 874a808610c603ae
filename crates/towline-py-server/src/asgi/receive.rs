//! `receive()` in an http scope, and the conditions that awaitables wait for.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use towline_io::Conn;
use towline_io::serve::features::request_body;
use towline_proto::StreamRead;

use super::exchange_state::{ClientState, ExchangeState, ResponsePhase, WaitFor};
use super::state::{ConnState, Exchange};
use super::websocket;

/// Maximum body of one `http.request` message.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// The result of reading the request body.
enum BodyRead<'py> {
    Data {
        body: Bound<'py, PyBytes>,
        more: bool,
    },
    Disconnected,
    Pending,
}

/// The result of an awaitable, if its condition holds.
pub fn poll(exchange: &Bound<'_, Exchange>, wait_for: WaitFor) -> PyResult<Option<Py<PyAny>>> {
    let py = exchange.py();
    match wait_for {
        WaitFor::Receive => poll_message(exchange),
        WaitFor::Room => Ok(poll_room(exchange.get(), py)),
        WaitFor::File => Ok(poll_file(exchange.get(), py)),
    }
}

/// The next message, if there is one.
fn poll_message(exchange: &Bound<'_, Exchange>) -> PyResult<Option<Py<PyAny>>> {
    let (py, this) = (exchange.py(), exchange.get());
    if this.state.open(py).websocket.is_some() {
        return websocket::receive(exchange);
    }
    let message = match read_body(this, py)? {
        BodyRead::Pending => None,
        BodyRead::Disconnected => {
            let message = PyDict::new(py);
            message.set_item(intern!(py, "type"), intern!(py, "http.disconnect"))?;
            Some(message)
        }
        BodyRead::Data { body, more } => {
            let message = PyDict::new(py);
            message.set_item(intern!(py, "type"), intern!(py, "http.request"))?;
            message.set_item(intern!(py, "body"), body)?;
            message.set_item(intern!(py, "more_body"), more)?;
            Some(message)
        }
    };
    this.server.get().flush_outside_step(py, exchange);
    Ok(message.map(|message| message.into_any().unbind()))
}

fn read_body<'py>(exchange: &Exchange, py: Python<'py>) -> PyResult<BodyRead<'py>> {
    let mut state = exchange.state.open(py);
    if state.client == ClientState::Disconnected || state.response == ResponsePhase::Complete {
        return Ok(BodyRead::Disconnected);
    }
    if state.body_ended {
        return Ok(if state.client == ClientState::HalfClosed {
            BodyRead::Disconnected
        } else {
            BodyRead::Pending
        });
    }
    let mut engine = exchange.server.get().engine(py)?;
    let Some(conn) = engine.conn(state.id) else {
        return Ok(BodyRead::Disconnected);
    };
    state.dirty = true;
    if state.record.decoder.is_some() {
        return Ok(decode_body(exchange, py, (&mut state, conn)));
    }
    let Ok(mut stream) = conn.proto.stream(state.stream) else {
        return Ok(BodyRead::Disconnected);
    };
    // As a rule there is one piece, which is copied once. Creating bytes runs no garbage collection.
    let mut piece = PyBytes::new(py, b"");
    let mut pieces = Vec::new();
    while piece.as_bytes().len() + pieces.len() < MAX_MESSAGE_BYTES {
        match stream.read(MAX_MESSAGE_BYTES - piece.as_bytes().len() - pieces.len()) {
            StreamRead::Data(bytes) if piece.as_bytes().is_empty() => {
                piece = PyBytes::new(py, bytes);
            }
            StreamRead::Data(bytes) => pieces.extend_from_slice(bytes),
            StreamRead::End => {
                state.body_ended = true;
                let body = joined(piece, &pieces)?;
                return Ok(BodyRead::Data { body, more: false });
            }
            // A truncated body never looks complete (RFC 9112 8); the part before the failure is discarded.
            StreamRead::Failed => {
                // Set before the event arrives: if the application returns now, that is no error.
                state.client = ClientState::Disconnected;
                return Ok(BodyRead::Disconnected);
            }
            StreamRead::Pending => break,
        }
    }
    Ok(if piece.as_bytes().is_empty() {
        BodyRead::Pending
    } else {
        let body = joined(piece, &pieces)?;
        BodyRead::Data { body, more: true }
    })
}

fn joined<'py>(piece: Bound<'py, PyBytes>, more: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if more.is_empty() {
        return Ok(piece);
    }
    let first = piece.as_bytes();
    PyBytes::new_with(piece.py(), first.len() + more.len(), |body| {
        body[..first.len()].copy_from_slice(first);
        body[first.len()..].copy_from_slice(more);
        Ok(())
    })
}

/// Reads a body with a content coding. One that cannot be decoded ends the exchange, with a response if there was none.
fn decode_body<'py>(
    exchange: &Exchange,
    py: Python<'py>,
    (state, conn): (&mut ExchangeState, &mut Conn<ConnState>),
) -> BodyRead<'py> {
    let mut out = Vec::new();
    let (Some(decoder), Ok(mut stream)) =
        (&mut state.record.decoder, conn.proto.stream(state.stream))
    else {
        return BodyRead::Disconnected;
    };
    match decoder.read(&mut stream, &mut out, MAX_MESSAGE_BYTES) {
        Ok(request_body::BodyRead::Data) => {
            let body = PyBytes::new(py, &out);
            return BodyRead::Data { body, more: true };
        }
        Ok(request_body::BodyRead::Pending) => return BodyRead::Pending,
        Ok(request_body::BodyRead::End) => {
            state.record.decoder = None;
            state.body_ended = true;
            let body = PyBytes::new(py, &out);
            return BodyRead::Data { body, more: false };
        }
        Ok(request_body::BodyRead::Failed) => {}
        Err(why) => {
            let response = decoder.refusal(why);
            let sends = matches!(
                state.response,
                ResponsePhase::Idle | ResponsePhase::HeadPending
            );
            if !sends {
                stream.reset();
            }
            let server = exchange.server.get();
            let at = (&mut *state.record, &mut *conn, state.stream);
            server.send_builtin(py, at, response, sends);
        }
    }
    state.record.decoder = None;
    state.client = ClientState::Disconnected;
    BodyRead::Disconnected
}

/// `None` (the object) once there is room, or once the client has disconnected, which the next send reports.
fn poll_room(exchange: &Exchange, py: Python<'_>) -> Option<Py<PyAny>> {
    let state = exchange.state.open(py);
    if state.client == ClientState::Disconnected {
        return Some(py.None());
    }
    let mut engine = exchange.server.get().engine(py).ok()?;
    let room = engine.conn(state.id).and_then(|conn| {
        conn.proto
            .stream(state.stream)
            .ok()
            .map(|mut stream| stream.send_capacity())
    });
    (room != Some(0)).then(|| py.None())
}

/// `None` (the object) once the file has been sent, or once the client has disconnected.
fn poll_file(exchange: &Exchange, py: Python<'_>) -> Option<Py<PyAny>> {
    let state = exchange.state.open(py);
    if state.client == ClientState::Disconnected {
        return Some(py.None());
    }
    let mut engine = exchange.server.get().engine(py).ok()?;
    let sending = engine
        .conn(state.id)
        .is_some_and(|conn| conn.is_sending_file(state.stream));
    (!sending).then(|| py.None())
}
