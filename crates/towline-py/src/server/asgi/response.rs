//! The messages of a response, from `send()` to the wire core.
use std::fs::File;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyMemoryView, PyString};
use towline_io::serve::site::Payload;
use towline_proto::{BodySize, Field, ResponseHead, UserError};

use super::awaitables::{Purpose, Waiting};
use super::exchange::{Client, Exchange, Exchanged, Response, wake};
use super::messages::Message;
use super::pending_head::Draft;
use super::server::{Extras, Machine};
use super::websocket;
use crate::errors::{ResponseStateError, client_disconnected};

/// Bodies from here on are sent from the application's own bytes object instead of a copy.
pub const SHARED_BYTES: usize = 16 * 1024;

/// A response of so many fields needs no allocation.
const FEW_FIELDS: usize = 16;

/// Why a message was not taken.
pub enum Refusal {
    /// There is nobody to send to.
    Gone,
    Misuse(UserError),
}

impl From<UserError> for Refusal {
    fn from(error: UserError) -> Self {
        match error {
            UserError::StreamFailed | UserError::UnknownStream => Self::Gone,
            other => Self::Misuse(other),
        }
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Gone => client_disconnected(),
            Refusal::Misuse(error) => {
                ResponseStateError::new_err(format!("ASGI response: {error}"))
            }
        }
    }
}

pub fn send<'py>(
    exchange: &Bound<'py, Exchange>,
    message: &Bound<'py, PyAny>,
) -> PyResult<Py<PyAny>> {
    let message = message.cast::<PyDict>().map_err(|_| {
        PyTypeError::new_err(format!(
            "ASGI: a message must be a dict, not {}",
            message.get_type()
        ))
    })?;
    let mut given = Message::read(message)?;
    let kind = given
        .kind
        .take()
        .ok_or_else(|| PyValueError::new_err("ASGI: a message needs a `type`"))?;
    let known = kind
        .cast::<PyString>()
        .map_err(|_| PyTypeError::new_err("ASGI: `type` must be a string"))?;
    match known.to_str()? {
        "http.response.start" => start(exchange, &given),
        "http.response.body" => body(exchange, &given),
        "http.response.trailers" => trailers(exchange, message),
        "http.response.early_hint" => early_hint(exchange, message),
        "http.response.pathsend" => pathsend(exchange, message),
        other => websocket::send(exchange, other, message, &given),
    }
}

pub fn start(exchange: &Bound<'_, Exchange>, message: &Message<'_>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let status = message
        .status
        .as_ref()
        .ok_or_else(|| PyValueError::new_err("ASGI: http.response.start needs a `status`"))?;
    let status: u16 = status.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "ASGI: `status` must be an integer from 200 to 599, not {status}"
        ))
    })?;
    if !(200..=599).contains(&status) {
        return Err(PyValueError::new_err(format!(
            "ASGI: `status` must be from 200 to 599, not {status}"
        )));
    }
    // Taken out while Python code may run: reading the headers can call into the program.
    let mut draft =
        std::mem::take(&mut expect(exchange, Response::Idle, "http.response.start")?.draft);
    draft.clear();
    draft.status = status;
    if let Some(headers) = &message.headers {
        draft.fill(headers)?;
    }
    draft.trailers = flag(message.trailers.as_ref())?;
    let mut state = exchange.get().state.open(py);
    state.draft = draft;
    state.response = Response::Held;
    Ok(exchange.get().server.get().sent(py))
}

/// The exchange, if the response is where a message of this type may come.
fn expect<'a>(
    exchange: &'a Bound<'_, Exchange>,
    expected: Response,
    kind: &str,
) -> PyResult<std::cell::RefMut<'a, Exchanged>> {
    let state = exchange.get().state.open(exchange.py());
    if state.response == expected {
        return if state.client == Client::Gone {
            Err(client_disconnected())
        } else {
            Ok(state)
        };
    }
    Err(out_of_order(state.response, kind))
}

fn out_of_order(response: Response, kind: &str) -> PyErr {
    let rule = match response {
        Response::Idle => "http.response.start must come first",
        Response::Held | Response::Body => {
            "http.response.body is due, the response has been started"
        }
        Response::Trailers => "http.response.trailers is due, as http.response.start announced",
        Response::Complete => "the response is complete, no message may follow",
        Response::Switched => "this is a websocket scope",
    };
    ResponseStateError::new_err(format!("ASGI: unexpected {kind}: {rule}"))
}

fn flag(value: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    match value {
        None => Ok(false),
        Some(value) => match value.cast::<PyBool>() {
            Ok(value) => Ok(value.is_true()),
            Err(_) => value.is_truthy(),
        },
    }
}

pub fn body(exchange: &Bound<'_, Exchange>, message: &Message<'_>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let more = flag(message.more_body.as_ref())?;
    let Some(data) = &message.body else {
        return write(exchange, Data::Copied(b""), more);
    };
    if let Ok(data) = data.cast_exact::<PyBytes>() {
        let bytes = data.as_bytes();
        if bytes.len() < SHARED_BYTES {
            return write(exchange, Data::Copied(bytes), more);
        }
        let owner = pyo3::pybacked::PyBackedBytes::from(data.clone());
        return write(exchange, Data::Shared(Bytes::from_owner(owner)), more);
    }
    if is_byte_string(data) {
        // What can still change under us is copied.
        let copy = py.get_type::<PyBytes>().call1((data,))?;
        return write(
            exchange,
            Data::Copied(copy.cast::<PyBytes>()?.as_bytes()),
            more,
        );
    }
    Err(PyTypeError::new_err(format!(
        "ASGI: `body` must be a byte string, not {}",
        data.get_type()
    )))
}

/// Of the kinds that `bytes()` copies as they are.
pub fn is_byte_string(data: &Bound<'_, PyAny>) -> bool {
    data.is_instance_of::<PyByteArray>()
        || data.is_instance_of::<PyMemoryView>()
        || data.is_instance_of::<PyBytes>()
}

/// Body bytes on their way.
enum Data<'a> {
    Copied(&'a [u8]),
    Shared(Bytes),
}

impl Data<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    fn len(&self) -> usize {
        self.as_slice().len()
    }
}

fn write(exchange: &Bound<'_, Exchange>, data: Data<'_>, more: bool) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let (room, receivers) = {
        let mut state = exchange.get().state.open(py);
        match state.response {
            Response::Held | Response::Body => {}
            other => return Err(out_of_order(other, "http.response.body")),
        }
        if state.client == Client::Gone {
            return Err(client_disconnected());
        }
        let mut engine = server.engine(py)?;
        let mut extras = server.extras.open(py);
        let room = write_part(&mut state, &mut engine, &mut extras, data, more)?;
        let complete = state.response == Response::Complete;
        (
            room,
            if complete {
                state.take_receivers()
            } else {
                Vec::new()
            },
        )
    };
    if !receivers.is_empty() {
        wake(py, receivers)?;
    }
    server.flush_part(py, exchange);
    if room > 0 {
        Ok(server.sent(py))
    } else {
        wait(exchange, Purpose::Room)
    }
}

/// Queues the head, if it is held, and a part of the body. Returns the room that is left.
fn write_part(
    state: &mut Exchanged,
    engine: &mut Machine,
    extras: &mut Extras,
    data: Data<'_>,
    more: bool,
) -> Result<usize, Refusal> {
    let peer = engine.peer(state.id).ok_or(Refusal::Gone)?;
    state.dirty = true;
    if state.response == Response::Held {
        let whole = !more && !state.draft.trailers;
        let size = match state.draft.content_length {
            Some(announced) => BodySize::Known(announced),
            None if whole => BodySize::Known(data.len() as u64),
            None => BodySize::Unknown,
        };
        let payload = if whole {
            Payload::Whole(data.as_slice())
        } else {
            Payload::Pieces
        };
        respond(state, &mut peer.conn, extras, size, payload)?;
    }
    let mut stream = peer.conn.stream(state.stream)?;
    let (site, visit) = (&extras.site, &mut state.visit);
    match data {
        Data::Copied(b"") => {}
        Data::Copied(bytes) => site.write(visit, &mut stream, bytes)?,
        Data::Shared(bytes) => site.write_shared(visit, &mut stream, bytes)?,
    }
    if !more && state.draft.trailers {
        state.response = Response::Trailers;
    } else if !more {
        // Complete for the application, whatever comes of it: too few bytes end the connection.
        state.response = Response::Complete;
        site.finish(visit, &mut stream, &[])?;
    }
    Ok(stream.send_capacity())
}

/// Sends the head that is held, with what the server adds to it.
pub fn respond(
    state: &mut Exchanged,
    conn: &mut towline_proto::Connection,
    extras: &mut Extras,
    size: BodySize,
    payload: Payload<'_>,
) -> Result<(), UserError> {
    extras.fields.refresh();
    let Exchanged {
        draft,
        visit,
        stream,
        ..
    } = state;
    let missing = extras.fields.missing(|name| draft.has(name));
    let mut few = [Field {
        name: b"",
        value: b"",
    }; FEW_FIELDS];
    let mut many = Vec::new();
    let head = ResponseHead {
        status: draft.status,
        reason: b"",
        fields: gather(&mut few, &mut many, draft.fields().chain(missing)),
    };
    extras
        .site
        .respond(visit, conn, (*stream, &head, size), payload)?;
    state.response = Response::Body;
    Ok(())
}

/// All of `fields` in one slice: in `few` if there is room, which saves an allocation, else in `many`.
fn gather<'b, 'f>(
    few: &'b mut [Field<'f>; FEW_FIELDS],
    many: &'b mut Vec<Field<'f>>,
    fields: impl Iterator<Item = Field<'f>>,
) -> &'b [Field<'f>] {
    let mut count = 0;
    // Not a `for`: this lets the iterator keep to itself in which of its parts it is.
    fields.for_each(|field| {
        if let Some(place) = few.get_mut(count) {
            *place = field;
        } else {
            many.push(field);
        }
        count += 1;
    });
    if many.is_empty() {
        return &few[..count];
    }
    many.splice(..0, few.iter().copied());
    many
}

fn trailers(exchange: &Bound<'_, Exchange>, message: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let more = flag(message.get_item(intern!(py, "more_trailers"))?.as_ref())?;
    let mut draft =
        std::mem::take(&mut expect(exchange, Response::Trailers, "http.response.trailers")?.draft);
    if let Some(headers) = message.get_item(intern!(py, "headers"))? {
        // The first message finds the head's fields here, which have been sent.
        if draft.status != 0 {
            draft.clear();
            draft.trailers = true;
        }
        draft.fill(&headers)?;
    }
    let server = exchange.get().server.get();
    let receivers = {
        let mut state = exchange.get().state.open(py);
        state.draft = draft;
        if more {
            return Ok(server.sent(py));
        }
        let extras = server.extras.open(py);
        finish_with_trailers(&mut state, &mut *server.engine(py)?, &extras)?;
        state.take_receivers()
    };
    wake(py, receivers)?;
    server.flush_part(py, exchange);
    Ok(server.sent(py))
}

fn finish_with_trailers(
    state: &mut Exchanged,
    engine: &mut Machine,
    extras: &Extras,
) -> Result<(), Refusal> {
    let peer = engine.peer(state.id).ok_or(Refusal::Gone)?;
    state.dirty = true;
    state.response = Response::Complete;
    let fields: Vec<Field<'_>> = if state.draft.status == 0 {
        state.draft.fields().collect()
    } else {
        Vec::new()
    };
    let mut stream = peer.conn.stream(state.stream)?;
    match extras.site.finish(&mut state.visit, &mut stream, &fields) {
        // HTTP/1.0 has none: they are not worth failing for (RFC 9110 6.5.1).
        Err(UserError::TrailersNotPossible) => stream.finish()?,
        other => other?,
    }
    Ok(())
}

fn early_hint(exchange: &Bound<'_, Exchange>, message: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let mut hints = Draft::default();
    if let Some(links) = message.get_item(intern!(py, "links"))? {
        for link in links.try_iter()? {
            let link = link?;
            let link = link
                .cast::<PyBytes>()
                .map_err(|_| PyTypeError::new_err("ASGI: `links` must be byte strings"))?;
            hints.push(b"link", link.as_bytes());
        }
    }
    let server = exchange.get().server.get();
    {
        let mut state = expect(exchange, Response::Idle, "http.response.early_hint")?;
        let mut engine = server.engine(py)?;
        let peer = engine.peer(state.id).ok_or_else(client_disconnected)?;
        let fields: Vec<Field<'_>> = hints.fields().collect();
        let head = ResponseHead {
            status: 103,
            reason: b"",
            fields: &fields,
        };
        state.dirty = true;
        peer.conn
            .respond(state.stream, &head, BodySize::Empty)
            .map_err(Refusal::from)?;
    }
    server.flush_part(py, exchange);
    Ok(server.sent(py))
}

/// The file is opened here, so that a missing one is the application's error and not a broken response.
fn pathsend(exchange: &Bound<'_, Exchange>, message: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let path: std::path::PathBuf = message
        .get_item(intern!(py, "path"))?
        .ok_or_else(|| PyValueError::new_err("ASGI: http.response.pathsend needs a `path`"))?
        .extract()?;
    let file = File::open(&path)?;
    let size = file.metadata()?.len();
    let server = exchange.get().server.get();
    {
        let mut state = expect(exchange, Response::Held, "http.response.pathsend")?;
        let mut engine = server.engine(py)?;
        let mut extras = server.extras.open(py);
        send_file(&mut state, &mut engine, &mut extras, file, size)?;
    }
    server.flush_part(py, exchange);
    wait(exchange, Purpose::File)
}

fn send_file(
    state: &mut Exchanged,
    engine: &mut Machine,
    extras: &mut Extras,
    file: File,
    size: u64,
) -> Result<(), Refusal> {
    let peer = engine.peer(state.id).ok_or(Refusal::Gone)?;
    let size = state.draft.content_length.unwrap_or(size);
    state.dirty = true;
    respond(
        state,
        &mut peer.conn,
        extras,
        BodySize::Known(size),
        Payload::File,
    )?;
    state.response = Response::Complete;
    if state.head_only || size == 0 {
        return Ok(peer.conn.stream(state.stream)?.finish()?);
    }
    state.sends_file = true;
    extras.site.count_body(&mut state.visit, size);
    Ok(peer.send_file(state.stream, file, 0, size)?)
}

pub fn wait(exchange: &Bound<'_, Exchange>, purpose: Purpose) -> PyResult<Py<PyAny>> {
    Ok(Py::new(
        exchange.py(),
        Waiting::new(exchange.clone().unbind(), purpose),
    )?
    .into_any())
}
