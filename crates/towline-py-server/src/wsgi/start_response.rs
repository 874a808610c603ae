//! `start_response`, the `write()` it returns, and `wsgi.early_hints`.
//!
//! ```text
//!           begin             start              first byte of body,
//!   Idle ──────────▶ Waiting ───────▶ Started ─── or its end ───────▶ Sent
//!    ▲                          │  ▲                                   │
//!    │                          └──┘ start with exc_info               │
//!    └──────────────────────────────── end ────────────────────────────┘
//! ```
//!
//! Instead of `Sent`, a request for a WebSocket may become `TakenOver`, from `Waiting` or `Started`.
//!
//! One object serves request after request, unless an application keeps it (or one of its methods).
use std::fs::File;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use towline_io::serve::features::overrides::{Arrival, Overrides};
use towline_io::serve::features::{BodyWriter, ExchangeRecord, Features, Payload};
use towline_io::{Conn, SpooledResponse};
use towline_proto::{BodySize, Field, ResponseHead, StreamId, UserError};

use super::application::RequestTimes;
use super::pending_head::PendingHead;
use super::request::{ConnState, Request};
use super::request_io::{RequestIo, SharedRequestIo, lock, write_out};
use crate::default_headers::DefaultHeaders;
use towline_py_common::errors::client_disconnected;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Idle,
    Waiting,
    Started,
    Sent,
    /// The application uses the socket itself.
    TakenOver,
}

#[pyclass(frozen, module = "towline._native")]
pub struct Responder {
    pub request_io: SharedRequestIo,
    state: Mutex<State>,
}

pub struct State {
    pub phase: Phase,
    pub serial: u64,
    is_head_request: bool,
    /// The method `write`, only during an exchange: the reference cycle would keep this object alive.
    write: Option<Py<PyAny>>,
    head: PendingHead,
    interim: PendingHead,
    pub default_headers: DefaultHeaders,
    pub features: Features,
    pub record: ExchangeRecord,
    /// Body bytes that the announced length still allows.
    announced: Option<u64>,
    /// The application has written more than it announced.
    exceeded: bool,
}

/// Pieces of at least this size are passed by reference, smaller ones are copied: copying a page costs less than
/// keeping the object alive.
const MIN_SHARED_BYTES: usize = 4096;

/// A plain-text response of the server.
pub struct PlainText {
    pub status: u16,
    pub text: &'static [u8],
}

impl State {
    pub fn on_taken_over(&mut self, now: Instant) {
        self.features.taken_over(&mut self.record, now);
        self.phase = Phase::TakenOver;
    }

    fn is_bodyless(&self) -> bool {
        self.is_head_request || matches!(self.head.status, 204 | 304)
    }

    /// A spooled body has been sent only later, so that its end is checked here.
    fn check_length(&self) -> Result<(), UserError> {
        match self.announced {
            Some(1..) => Err(UserError::BodyTooShort),
            _ => Ok(()),
        }
    }

    /// The part of `bytes` that the announced length allows.
    #[inline]
    fn allowed<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(announced) = &mut self.announced else {
            return bytes;
        };
        let allowed = usize::try_from(*announced).map_or(bytes.len(), |left| left.min(bytes.len()));
        *announced -= allowed as u64;
        self.exceeded |= allowed < bytes.len();
        &bytes[..allowed]
    }
}

impl Responder {
    pub fn new(
        request_io: SharedRequestIo,
        default_headers: DefaultHeaders,
        features: Features,
    ) -> Self {
        let state = State {
            phase: Phase::Idle,
            serial: 0,
            is_head_request: false,
            write: None,
            head: PendingHead::default(),
            interim: PendingHead::default(),
            default_headers,
            features,
            record: ExchangeRecord::default(),
            announced: None,
            exceeded: false,
        };
        Self {
            request_io,
            state: Mutex::new(state),
        }
    }

    pub fn state(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an exchange. `write` is the callable that `start_response` returns.
    pub fn begin(
        &self,
        py: Python<'_>,
        (serial, write): (u64, &Py<PyAny>),
        request: &Request,
        (client, is_https, times): (Option<IpAddr>, bool, RequestTimes),
    ) {
        let mut state = self.state(py);
        let State {
            features, record, ..
        } = &mut *state;
        let line = request.line();
        features.begin(record, (&line, client, times.received), request.fields());
        features.scheme(record, is_https);
        features.application_called(record, times.called);
        state.write = Some(write.clone_ref(py));
        state.phase = Phase::Waiting;
        state.serial = serial;
        state.is_head_request = line.method == b"HEAD";
        state.announced = None;
        state.exceeded = false;
    }

    /// The values to change in a request.
    pub fn overrides(
        &self,
        py: Python<'_>,
        arrival: &Arrival<'_>,
        request: &Request,
    ) -> Box<Overrides> {
        let state = self.state(py);
        state.features.overrides(arrival, request.fields())
    }

    pub fn end(&self, py: Python<'_>, now: Instant) {
        let mut state = self.state(py);
        let State {
            features,
            record,
            phase,
            serial,
            ..
        } = &mut *state;
        if !matches!(*phase, Phase::Sent | Phase::TakenOver)
            && let Some((status, refused)) = lock(py, &self.request_io).refused(*serial)
        {
            features.refused(record, status, refused);
        }
        features.end(record, now);
        state.phase = Phase::Idle;
        state.write = None;
    }

    pub fn phase(&self, py: Python<'_>) -> Phase {
        self.state(py).phase
    }

    /// The `content-length` header of the application.
    pub fn content_length(&self, py: Python<'_>) -> Option<u64> {
        self.state(py).head.content_length
    }

    /// A response to HEAD, or one whose status allows no body (RFC 9110 6.4.1).
    pub fn is_bodyless(&self, py: Python<'_>) -> bool {
        self.state(py).is_bodyless()
    }

    /// Sends the whole response: head, `pieces` of `total` bytes, end.
    pub fn send_all(
        &self,
        py: Python<'_>,
        pieces: &[Bound<'_, PyBytes>],
        total: u64,
    ) -> PyResult<()> {
        let mut state = self.state(py);
        let mut request_io = lock(py, &self.request_io);
        if state.phase == Phase::Sent {
            // write() has sent the head.
            for piece in pieces {
                write_piece(&mut request_io, &mut state, piece)?;
            }
            return finish(&mut request_io, &mut state);
        }
        let payload = match pieces {
            [piece] => Payload::Whole(piece.as_bytes()),
            _ => Payload::Pieces,
        };
        send_head(&mut state, &mut request_io, Some(total), payload)?;
        if state.is_bodyless() {
            return finish(&mut request_io, &mut state);
        }
        for piece in pieces {
            write_piece(&mut request_io, &mut state, piece)?;
        }
        finish(&mut request_io, &mut state)
    }

    /// Sends the head unless it has been sent; `inferred` is the length of the body when it is known.
    pub fn send_head(
        &self,
        py: Python<'_>,
        inferred: Option<u64>,
        payload: Payload<'_>,
    ) -> PyResult<()> {
        let mut state = self.state(py);
        if state.phase == Phase::Sent {
            return Ok(());
        }
        let mut request_io = lock(py, &self.request_io);
        send_head(&mut state, &mut request_io, inferred, payload)
    }

    /// Sends one piece of the body; returns when it has been passed to the kernel. A piece that completes the body may
    /// wait, as a complete response does.
    pub fn send_piece(&self, py: Python<'_>, piece: &Bound<'_, PyBytes>) -> PyResult<()> {
        let serial = {
            let mut state = self.state(py);
            let mut request_io = lock(py, &self.request_io);
            if !state.is_head_request {
                spool_piece(&mut request_io, &mut state, piece)?;
                if request_io.is_complete(state.serial) && request_io.may_wait() {
                    return Ok(());
                }
            }
            state.serial
        };
        write_out(py, &self.request_io, serial)
    }

    /// Sends the end of the body, and the head if there was no body.
    pub fn send_end(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state(py);
        let mut request_io = lock(py, &self.request_io);
        if state.phase != Phase::Sent {
            send_head(&mut state, &mut request_io, Some(0), Payload::Whole(b""))?;
        }
        finish(&mut request_io, &mut state)?;
        if !request_io.may_wait() {
            request_io.flush();
        }
        Ok(())
    }

    /// Sends `length` bytes of a file as the rest of the response, which the engine completes.
    pub fn send_file(&self, py: Python<'_>, file: File, offset: u64, length: u64) -> PyResult<()> {
        let mut state = self.state(py);
        let mut request_io = lock(py, &self.request_io);
        let stream = request_io
            .current(state.serial)
            .ok_or_else(client_disconnected)?;
        let peer = request_io.peer().ok_or_else(client_disconnected)?;
        peer.send_file(stream, file, offset, length)
            .map_err(send_error)?;
        let State {
            features, record, ..
        } = &mut *state;
        features.count_body(record, length);
        request_io.flush();
        Ok(())
    }

    /// Sends a plain-text response of the server.
    pub fn send_plain(&self, py: Python<'_>, plain: &PlainText) -> PyResult<()> {
        let mut state = self.state(py);
        let mut request_io = lock(py, &self.request_io);
        state.head.fill_plain(plain.status);
        state.phase = Phase::Started;
        let payload = Payload::Whole(plain.text);
        send_head(
            &mut state,
            &mut request_io,
            Some(plain.text.len() as u64),
            payload,
        )?;
        if !state.is_head_request {
            let State {
                features,
                record,
                serial,
                ..
            } = &mut *state;
            let mut stream = request_io.stream(*serial).ok_or_else(client_disconnected)?;
            features
                .write(record, &mut stream, plain.text)
                .map_err(send_error)?;
        }
        finish(&mut request_io, &mut state)
    }

    /// Aborts the exchange: the part that the client has received must not look complete, unless it is.
    pub fn abort(&self, py: Python<'_>) {
        let serial = self.state(py).serial;
        let mut request_io = lock(py, &self.request_io);
        if let Some(mut stream) = request_io.stream(serial)
            && !(stream.body_left() == Some(0) && stream.finish().is_ok())
        {
            stream.reset();
        }
        request_io.flush();
    }

    /// The piece as `bytes`; PEP 3333 allows nothing else.
    pub fn piece<'a, 'py>(piece: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyBytes>> {
        piece.cast::<PyBytes>().map_err(|_| {
            let kind = piece
                .get_type()
                .name()
                .map_or_else(|_| "?".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!(
                "the body must be an iterable of bytes, not of {kind} (PEP 3333)"
            ))
        })
    }
}

fn send_head(
    state: &mut State,
    request_io: &mut RequestIo,
    inferred: Option<u64>,
    payload: Payload<'_>,
) -> PyResult<()> {
    if state.phase == Phase::TakenOver {
        return Err(client_disconnected());
    }
    if state.phase != Phase::Started {
        return Err(PyRuntimeError::new_err(
            "start_response() was not called before the body (PEP 3333)",
        ));
    }
    let size = match state.head.content_length.or(inferred) {
        Some(length) => BodySize::Known(length),
        None if matches!(state.head.status, 204 | 304) => BodySize::Empty,
        None => BodySize::Unknown,
    };
    let State {
        head,
        default_headers,
        features,
        record,
        serial,
        ..
    } = state;
    let stream = request_io
        .current(*serial)
        .ok_or_else(client_disconnected)?;
    let peer = request_io.peer().ok_or_else(client_disconnected)?;
    let (conn, _, config) = peer.parts();
    let mut fields: Vec<Field<'_>> = Vec::with_capacity(16);
    fields.extend(head.fields());
    default_headers.refresh();
    fields.extend(default_headers.missing(&config.fields, |name| {
        head.fields()
            .any(|field| field.name.eq_ignore_ascii_case(name))
    }));
    let head = ResponseHead {
        status: head.status,
        reason: head.reason(),
        fields: &fields,
    };
    features
        .respond(record, conn, (stream, &head, size), payload)
        .map_err(send_error)?;
    state.phase = Phase::Sent;
    if !state.is_bodyless() {
        state.announced = state.head.content_length;
    }
    Ok(())
}

fn respond(
    request_io: &mut RequestIo,
    serial: u64,
    head: &ResponseHead<'_>,
    size: BodySize,
) -> PyResult<()> {
    let stream = request_io.current(serial).ok_or_else(client_disconnected)?;
    let conn = request_io.conn().ok_or_else(client_disconnected)?;
    conn.respond(stream, head, size).map_err(send_error)
}

fn write_piece(
    request_io: &mut RequestIo,
    state: &mut State,
    piece: &Bound<'_, PyBytes>,
) -> PyResult<()> {
    let bytes = state.allowed(piece.as_bytes());
    if bytes.is_empty() {
        return Ok(());
    }
    let mut stream = request_io
        .stream(state.serial)
        .ok_or_else(client_disconnected)?;
    write_to(&mut stream, state, (piece, bytes.len())).map_err(send_error)
}

/// Like `write_piece`; what the client is too slow for goes to a temporary file.
fn spool_piece(
    request_io: &mut RequestIo,
    state: &mut State,
    piece: &Bound<'_, PyBytes>,
) -> PyResult<()> {
    let bytes = state.allowed(piece.as_bytes());
    if bytes.is_empty() {
        return Ok(());
    }
    let stream = request_io
        .current(state.serial)
        .ok_or_else(client_disconnected)?;
    let peer = request_io.peer().ok_or_else(client_disconnected)?;
    let mut spooled = SpooledResponse::new(peer, stream);
    write_to(&mut spooled, state, (piece, bytes.len())).map_err(send_error)
}

/// Writes the first `len` bytes of a piece.
#[inline]
fn write_to(
    writer: &mut impl BodyWriter,
    state: &mut State,
    (piece, len): (&Bound<'_, PyBytes>, usize),
) -> Result<(), UserError> {
    let State {
        features, record, ..
    } = state;
    if len < MIN_SHARED_BYTES {
        features.write(record, writer, &piece.as_bytes()[..len])
    } else {
        let kept = pyo3::pybacked::PyBackedBytes::from(piece.clone());
        let kept = bytes::Bytes::from_owner(kept);
        features.write_shared(record, writer, kept.slice(..len))
    }
}

/// `ClientDisconnected` for a failed stream; any other error is a mistake of the application.
fn send_error(error: UserError) -> PyErr {
    match error {
        UserError::StreamFailed | UserError::UnknownStream => client_disconnected(),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

fn exchange_over() -> PyErr {
    PyRuntimeError::new_err("this request is over")
}

fn finish(request_io: &mut RequestIo, state: &mut State) -> PyResult<()> {
    if state.check_length().is_err() {
        // HTTP/2 drops what is queued when the stream is reset.
        request_io.flush();
    }
    let stream = request_io
        .current(state.serial)
        .ok_or_else(client_disconnected)?;
    let peer = request_io.peer().ok_or_else(client_disconnected)?;
    if state.exceeded {
        return finish_exceeded(peer, stream, state);
    }
    if peer.is_sending_files() {
        let mut spooled = SpooledResponse::new(peer, stream);
        let finished = state.features.finish(&mut state.record, &mut spooled, &[]);
        return finished
            .and_then(|()| state.check_length())
            .map_err(send_error);
    }
    let mut stream = peer.proto.stream(stream).map_err(send_error)?;
    state
        .features
        .finish(&mut state.record, &mut stream, &[])
        .map_err(send_error)
}

/// Ends a response whose application has written more than it announced: it is complete for the client, which may send
/// another request.
#[cold]
fn finish_exceeded(
    peer: &mut Conn<ConnState>,
    stream: StreamId,
    state: &mut State,
) -> PyResult<()> {
    let mut spooled = SpooledResponse::new(peer, stream);
    let finished = state.features.finish(&mut state.record, &mut spooled, &[]);
    finished.map_err(send_error)?;
    Err(send_error(UserError::BodyTooLong))
}

#[pymethods]
impl Responder {
    /// PEP 3333, "The `start_response()` Callable". Errors in the head are raised here.
    #[pyo3(signature = (status, headers, exc_info=None, /))]
    fn start(
        &self,
        py: Python<'_>,
        status: &Bound<'_, PyString>,
        headers: &Bound<'_, PyList>,
        exc_info: Option<&Bound<'_, PyTuple>>,
    ) -> PyResult<Py<PyAny>> {
        let mut state = self.state(py);
        match (state.phase, exc_info) {
            (Phase::Waiting, _) | (Phase::Started, Some(_)) => {}
            (Phase::Sent, Some(exc_info)) => {
                return Err(PyErr::from_value(exc_info.get_item(1)?));
            }
            (Phase::Idle, _) => return Err(exchange_over()),
            // Flask-Sock ends with a response, for which there is no use.
            (Phase::TakenOver, _) => {
                let write = state.write.as_ref().ok_or_else(exchange_over)?;
                return Ok(write.clone_ref(py));
            }
            (Phase::Started | Phase::Sent, None) => {
                return Err(PyRuntimeError::new_err(
                    "start_response() was called twice without exc_info",
                ));
            }
        }
        // If the new head is invalid, there is no head.
        state.phase = Phase::Waiting;
        state.head.fill(status, headers)?;
        state.phase = Phase::Started;
        let write = state.write.as_ref().ok_or_else(exchange_over)?;
        Ok(write.clone_ref(py))
    }

    /// PEP 3333, "The `write()` Callable": the data has been passed to the kernel when it returns.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        if data.as_bytes().is_empty() {
            return Ok(());
        }
        self.send_head(py, None, Payload::Pieces)?;
        self.send_piece(py, data)
    }

    /// Sends `103 Early Hints` (RFC 8297) with `headers`, a list of pairs, at once.
    fn early_hints(&self, py: Python<'_>, headers: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut state = self.state(py);
        if matches!(state.phase, Phase::Idle | Phase::Sent | Phase::TakenOver) {
            return Err(PyRuntimeError::new_err(
                "early hints come before the response head",
            ));
        }
        let State {
            interim, serial, ..
        } = &mut *state;
        interim.fill_interim(103, headers)?;
        let mut request_io = lock(py, &self.request_io);
        let fields: Vec<Field<'_>> = interim.fields().collect();
        let head = ResponseHead {
            status: 103,
            reason: b"",
            fields: &fields,
        };
        respond(&mut request_io, *serial, &head, BodySize::Empty)?;
        request_io.flush();
        Ok(())
    }
}
