//! The messages of a response, from `send()` to the protocol core.
use std::fs::File;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyMemoryView};
use towline_io::serve::features::{ExchangeRecord, Features, Payload};
use towline_io::{Conn, Engine, open_regular};
use towline_proto::{BodySize, Field, ResponseHead, StreamMut, UserError};

use super::awaitables::PendingAwaitable;
use super::exchange::wake;
use super::exchange_state::{ClientState, ExchangeState, ResponsePhase, WaitFor};
use super::messages::Message;
use super::pending_head::PendingHead;
use super::state::{ConnState, Exchange, ServerFeatures};
use towline_py_common::cell::Opened;
use towline_py_common::errors::{ResponseStateError, client_disconnected};

/// A body of at least this size is sent from the application's bytes object instead of a copy.
pub const MIN_SHARED_BYTES: usize = 16 * 1024;

/// A response with at most this many headers needs no allocation.
const INLINE_FIELDS: usize = 16;

/// The reason why a message was not accepted.
pub enum SendFailure {
    Disconnected,
    Misuse(UserError),
}

impl From<UserError> for SendFailure {
    fn from(error: UserError) -> Self {
        match error {
            UserError::StreamFailed | UserError::UnknownStream => Self::Disconnected,
            other => Self::Misuse(other),
        }
    }
}

impl From<SendFailure> for PyErr {
    fn from(failure: SendFailure) -> Self {
        match failure {
            SendFailure::Disconnected => client_disconnected(),
            SendFailure::Misuse(error) => {
                ResponseStateError::new_err(format!("ASGI response: {error}"))
            }
        }
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
    // Taken out, because reading the headers may run Python code, during which no cell may be open.
    let mut head =
        std::mem::take(&mut expect(exchange, ResponsePhase::Idle, "http.response.start")?.head);
    head.clear();
    head.status = status;
    if let Some(headers) = &message.headers {
        head.fill(headers)?;
    }
    head.trailers = flag(message.trailers.as_ref())?;
    let mut state = exchange.get().state.open(py);
    state.head = head;
    state.response = ResponsePhase::HeadPending;
    Ok(exchange.get().server.get().ready(py))
}

/// The state of the exchange, if its response expects a message of this type.
fn expect<'a>(
    exchange: &'a Bound<'_, Exchange>,
    expected: ResponsePhase,
    kind: &str,
) -> PyResult<Opened<'a, ExchangeState>> {
    let state = exchange.get().state.open(exchange.py());
    if state.response == expected {
        return if state.client == ClientState::Disconnected {
            Err(client_disconnected())
        } else {
            Ok(state)
        };
    }
    Err(out_of_order(state.response, kind))
}

fn out_of_order(response: ResponsePhase, kind: &str) -> PyErr {
    let rule = match response {
        ResponsePhase::Idle => "http.response.start must come first",
        ResponsePhase::HeadPending | ResponsePhase::Body => {
            "http.response.body is due, the response has been started"
        }
        ResponsePhase::Trailers => {
            "http.response.trailers is due, as http.response.start announced"
        }
        ResponsePhase::Complete => "the response is complete, no message may follow",
        ResponsePhase::Switched => "this is a websocket scope",
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
        if bytes.len() < MIN_SHARED_BYTES {
            return write(exchange, Data::Copied(bytes), more);
        }
        let owner = pyo3::pybacked::PyBackedBytes::from(data.clone());
        return write(exchange, Data::Shared(Bytes::from_owner(owner)), more);
    }
    if is_byte_string(data) {
        // A mutable buffer is copied.
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

/// Whether `bytes()` copies the content of `data`.
pub fn is_byte_string(data: &Bound<'_, PyAny>) -> bool {
    data.is_instance_of::<PyByteArray>()
        || data.is_instance_of::<PyMemoryView>()
        || data.is_instance_of::<PyBytes>()
}

/// Body bytes to send.
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
    let bytes = data.len();
    let (room, receivers) = {
        let mut state = exchange.get().state.open(py);
        match state.response {
            ResponsePhase::HeadPending | ResponsePhase::Body => {}
            other => return Err(out_of_order(other, "http.response.body")),
        }
        if state.client == ClientState::Disconnected {
            return Err(client_disconnected());
        }
        let mut engine = server.engine(py)?;
        let mut features = server.features.open(py);
        let room = write_part(&mut state, &mut engine, &mut features, data, more)?;
        let complete = state.response == ResponsePhase::Complete;
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
    if more && room > 0 {
        server.flush_part_or_batch(py, exchange, bytes);
    } else {
        server.flush_part(py, exchange);
    }
    if room > 0 {
        Ok(server.ready(py))
    } else {
        wait(exchange, WaitFor::Room)
    }
}

/// Queues the head, if it is pending, and a part of the body. Returns the remaining room.
fn write_part(
    state: &mut ExchangeState,
    engine: &mut Engine<ConnState>,
    features: &mut ServerFeatures,
    data: Data<'_>,
    more: bool,
) -> Result<usize, SendFailure> {
    let conn = engine.conn(state.id).ok_or(SendFailure::Disconnected)?;
    state.dirty = true;
    if state.response == ResponsePhase::HeadPending {
        let is_whole = !more && !state.head.trailers;
        let size = match state.head.content_length {
            Some(announced) => BodySize::Known(announced),
            None if is_whole => BodySize::Known(data.len() as u64),
            None => BodySize::Unknown,
        };
        let payload = if is_whole {
            Payload::Whole(data.as_slice())
        } else {
            Payload::Pieces
        };
        respond(state, conn, features, size, payload)?;
    }
    let mut stream = conn.proto.stream(state.stream)?;
    let (features, record) = (&features.features, &mut state.record);
    match data {
        Data::Copied(b"") => {}
        Data::Copied(bytes) => features
            .write(record, &mut stream, bytes)
            .or_else(|error| write_announced(error, (features, record), &mut stream, bytes))?,
        Data::Shared(bytes) => features
            .write_shared(record, &mut stream, bytes.clone())
            .or_else(|error| write_announced(error, (features, record), &mut stream, &bytes))?,
    }
    if !more && state.head.trailers {
        state.response = ResponsePhase::Trailers;
    } else if !more {
        // Complete for the application in any case: too few bytes abort the connection.
        state.response = ResponsePhase::Complete;
        features.finish(record, &mut stream, &[])?;
    }
    Ok(stream.send_capacity())
}

/// Handles an error of `write`: of a body that is too long, the announced part is sent.
#[cold]
fn write_announced(
    error: UserError,
    (features, record): (&Features, &mut ExchangeRecord),
    stream: &mut StreamMut<'_>,
    data: &[u8],
) -> Result<(), UserError> {
    if error == UserError::BodyTooLong
        && let Some(left) = stream.body_left()
    {
        let left = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
        features.write(record, stream, &data[..left])?;
    }
    Err(error)
}

/// Sends the pending head, with the default headers of the server.
pub fn respond(
    state: &mut ExchangeState,
    conn: &mut Conn<ConnState>,
    features: &mut ServerFeatures,
    size: BodySize,
    payload: Payload<'_>,
) -> Result<(), UserError> {
    features.headers.refresh();
    let ExchangeState {
        head,
        record,
        stream,
        ..
    } = state;
    let (conn, _, config) = conn.parts();
    let missing = features
        .headers
        .missing(&config.fields, |name| head.has(name));
    let mut few = [Field {
        name: b"",
        value: b"",
    }; INLINE_FIELDS];
    let mut many = Vec::new();
    let head = ResponseHead {
        status: head.status,
        reason: b"",
        fields: gather(&mut few, &mut many, head.fields().chain(missing)),
    };
    features
        .features
        .respond(record, conn, (*stream, &head, size), payload)?;
    state.response = ResponsePhase::Body;
    Ok(())
}

/// Collects `fields` into one slice: `few` if there is room, which saves an allocation, else `many`.
fn gather<'b, 'f>(
    few: &'b mut [Field<'f>; INLINE_FIELDS],
    many: &'b mut Vec<Field<'f>>,
    fields: impl Iterator<Item = Field<'f>>,
) -> &'b [Field<'f>] {
    let mut count = 0;
    // `for_each` rather than `for`: a chained iterator then does not check its position in every step.
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

pub fn trailers(
    exchange: &Bound<'_, Exchange>,
    message: &Bound<'_, PyDict>,
) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let more = flag(message.get_item(intern!(py, "more_trailers"))?.as_ref())?;
    let mut head = std::mem::take(
        &mut expect(exchange, ResponsePhase::Trailers, "http.response.trailers")?.head,
    );
    if let Some(headers) = message.get_item(intern!(py, "headers"))? {
        // Before the first message of trailers this still has the fields of the head, which has been sent.
        if head.status != 0 {
            head.clear();
            head.trailers = true;
        }
        head.fill(&headers)?;
    }
    let server = exchange.get().server.get();
    let receivers = {
        let mut state = exchange.get().state.open(py);
        state.head = head;
        if more {
            return Ok(server.ready(py));
        }
        let features = server.features.open(py);
        finish_with_trailers(&mut state, &mut *server.engine(py)?, &features)?;
        state.take_receivers()
    };
    wake(py, receivers)?;
    server.flush_part(py, exchange);
    Ok(server.ready(py))
}

fn finish_with_trailers(
    state: &mut ExchangeState,
    engine: &mut Engine<ConnState>,
    features: &ServerFeatures,
) -> Result<(), SendFailure> {
    let conn = engine.conn(state.id).ok_or(SendFailure::Disconnected)?;
    state.dirty = true;
    state.response = ResponsePhase::Complete;
    let fields: Vec<Field<'_>> = if state.head.status == 0 {
        state.head.fields().collect()
    } else {
        Vec::new()
    };
    let mut stream = conn.proto.stream(state.stream)?;
    match features
        .features
        .finish(&mut state.record, &mut stream, &fields)
    {
        // HTTP/1.0 has no trailers: they are discarded (RFC 9110 6.5.1).
        Err(UserError::TrailersNotPossible) => stream.finish()?,
        other => other?,
    }
    Ok(())
}

pub fn early_hint(
    exchange: &Bound<'_, Exchange>,
    message: &Bound<'_, PyDict>,
) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let mut hints = PendingHead::default();
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
        let mut state = expect(exchange, ResponsePhase::Idle, "http.response.early_hint")?;
        let mut engine = server.engine(py)?;
        let conn = engine.conn(state.id).ok_or_else(client_disconnected)?;
        let fields: Vec<Field<'_>> = hints.fields().collect();
        let head = ResponseHead {
            status: 103,
            reason: b"",
            fields: &fields,
        };
        state.dirty = true;
        conn.proto
            .respond(state.stream, &head, BodySize::Empty)
            .map_err(SendFailure::from)?;
    }
    server.flush_part(py, exchange);
    Ok(server.ready(py))
}

/// Opens the file at once, so that a missing one is an error of the application and not a truncated response.
pub fn pathsend(
    exchange: &Bound<'_, Exchange>,
    message: &Bound<'_, PyDict>,
) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let path: std::path::PathBuf = message
        .get_item(intern!(py, "path"))?
        .ok_or_else(|| PyValueError::new_err("ASGI: http.response.pathsend needs a `path`"))?
        .extract()?;
    let Some((file, size)) = open_regular(&path)? else {
        return Err(PyValueError::new_err(format!(
            "ASGI: http.response.pathsend: {} is not a regular file",
            path.display()
        )));
    };
    let server = exchange.get().server.get();
    {
        let mut state = expect(
            exchange,
            ResponsePhase::HeadPending,
            "http.response.pathsend",
        )?;
        let mut engine = server.engine(py)?;
        let mut features = server.features.open(py);
        send_file(&mut state, &mut engine, &mut features, file, size)?;
    }
    server.flush_part(py, exchange);
    wait(exchange, WaitFor::File)
}

fn send_file(
    state: &mut ExchangeState,
    engine: &mut Engine<ConnState>,
    features: &mut ServerFeatures,
    file: File,
    size: u64,
) -> Result<(), SendFailure> {
    let conn = engine.conn(state.id).ok_or(SendFailure::Disconnected)?;
    let size = state.head.content_length.unwrap_or(size);
    state.dirty = true;
    respond(state, conn, features, BodySize::Known(size), Payload::File)?;
    state.response = ResponsePhase::Complete;
    if state.head_only || size == 0 {
        return Ok(conn.proto.stream(state.stream)?.finish()?);
    }
    state.sends_file = true;
    features.features.count_body(&mut state.record, size);
    Ok(conn.send_file(state.stream, file, 0, size)?)
}

pub fn wait(exchange: &Bound<'_, Exchange>, wait_for: WaitFor) -> PyResult<Py<PyAny>> {
    Ok(Py::new(
        exchange.py(),
        PendingAwaitable::new(exchange.clone().unbind(), wait_for),
    )?
    .into_any())
}
