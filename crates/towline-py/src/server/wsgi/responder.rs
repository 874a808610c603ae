//! `start_response`, the `write()` it returns, and `wsgi.early_hints`.
//!
//! ```text
//!           begin             start              first byte of body,
//!   Over ──────────▶ Waiting ───────▶ Started ─── or its end ───────▶ Sent
//!    ▲                          │  ▲                                   │
//!    │                          └──┘ start with exc_info               │
//!    └──────────────────────────────── end ────────────────────────────┘
//! ```
//!
//! One such object serves request after request, unless an application kept it (or one of its methods).
use std::fs::File;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use towline_io::serve::site::{Payload, Site, Visit};
use towline_proto::{BodySize, Field, ResponseHead, UserError};

use super::app_runner::Times;
use super::pending_head::Draft;
use super::request::Request;
use super::request_io::{Desk, SharedDesk, lock, write_out};
use crate::errors::client_disconnected;
use crate::server::default_headers::DefaultFields;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Over,
    Waiting,
    Started,
    Sent,
}

#[pyclass(frozen, module = "towline._native")]
pub struct Responder {
    desk: SharedDesk,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    serial: u64,
    is_head: bool,
    /// Our own method. Only during an exchange: for ever, it would be a cycle that nobody frees.
    write: Option<Py<PyAny>>,
    draft: Draft,
    interim: Draft,
    added: DefaultFields,
    site: Site,
    visit: Visit,
}

/// From here on a piece is handed over by reference, below it is copied: a copy of a page costs less than
/// what keeping the object alive does.
const SHARED_FROM_BYTES: usize = 4096;

/// A response of the server's own, as plain text.
pub struct Plain {
    pub status: u16,
    pub text: &'static [u8],
}

impl State {
    fn is_bodyless(&self) -> bool {
        self.is_head || matches!(self.draft.status, 204 | 304)
    }
}

impl Responder {
    pub fn new(desk: SharedDesk, added: DefaultFields, site: Site) -> Self {
        let state = State {
            phase: Phase::Over,
            serial: 0,
            is_head: false,
            write: None,
            draft: Draft::default(),
            interim: Draft::default(),
            added,
            site,
            visit: Visit::default(),
        };
        Self {
            desk,
            state: Mutex::new(state),
        }
    }

    fn state(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is handed to the application, which gets `write` from `start_response`.
    pub fn begin(
        &self,
        py: Python<'_>,
        (serial, write): (u64, &Py<PyAny>),
        request: &Request,
        (client, times): (Option<IpAddr>, Times),
    ) {
        let mut state = self.state(py);
        let State { site, visit, .. } = &mut *state;
        let line = request.head.line();
        site.begin(visit, (&line, client, times.came), request.head.fields());
        site.called(visit, times.called);
        state.write = Some(write.clone_ref(py));
        state.phase = Phase::Waiting;
        state.serial = serial;
        state.is_head = line.method == b"HEAD";
    }

    pub fn end(&self, py: Python<'_>, now: Instant) {
        let mut state = self.state(py);
        let State { site, visit, .. } = &mut *state;
        site.end(visit, now);
        state.phase = Phase::Over;
        state.write = None;
    }

    pub fn phase(&self, py: Python<'_>) -> Phase {
        self.state(py).phase
    }

    /// What the application said its body would be.
    pub fn content_length(&self, py: Python<'_>) -> Option<u64> {
        self.state(py).draft.content_length
    }

    /// A response to HEAD, or one whose status allows no body (RFC 9110 6.4.1).
    pub fn is_bodyless(&self, py: Python<'_>) -> bool {
        self.state(py).is_bodyless()
    }

    /// The whole response: head, `pieces` of `total` bytes, end.
    pub fn send_all(
        &self,
        py: Python<'_>,
        pieces: &[Bound<'_, PyBytes>],
        total: u64,
    ) -> PyResult<()> {
        let mut state = self.state(py);
        let mut desk = lock(py, &self.desk);
        if state.phase == Phase::Sent {
            // write() came first.
            for piece in pieces {
                write_piece(&mut desk, &mut state, piece)?;
            }
            return finish(&mut desk, &mut state);
        }
        if let Some(announced) = state.draft.content_length
            && announced != total
            && !state.is_bodyless()
        {
            // Nothing has been sent: this can still become a proper 500.
            return Err(PyRuntimeError::new_err(format!(
                "content-length says {announced}, the body has {total} bytes"
            )));
        }
        let payload = match pieces {
            [only] => Payload::Whole(only.as_bytes()),
            _ => Payload::Pieces,
        };
        send_head(&mut state, &mut desk, Some(total), payload)?;
        if state.is_bodyless() {
            return finish(&mut desk, &mut state);
        }
        for piece in pieces {
            write_piece(&mut desk, &mut state, piece)?;
        }
        finish(&mut desk, &mut state)
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
        let mut desk = lock(py, &self.desk);
        send_head(&mut state, &mut desk, inferred, payload)
    }

    /// One piece of the body, on its way before this returns.
    pub fn send_piece(&self, py: Python<'_>, piece: &Bound<'_, PyBytes>) -> PyResult<()> {
        let serial = {
            let mut state = self.state(py);
            let mut desk = lock(py, &self.desk);
            if !state.is_head {
                write_piece(&mut desk, &mut state, piece)?;
            }
            state.serial
        };
        write_out(py, &self.desk, serial)
    }

    /// The end of the body, and the head if there was no body.
    pub fn send_end(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state(py);
        let mut desk = lock(py, &self.desk);
        if state.phase != Phase::Sent {
            send_head(&mut state, &mut desk, Some(0), Payload::Whole(b""))?;
        }
        finish(&mut desk, &mut state)?;
        desk.flush();
        Ok(())
    }

    /// The rest of the response is `length` bytes of a file; the engine sends them and ends the message.
    pub fn send_file(&self, py: Python<'_>, file: File, offset: u64, length: u64) -> PyResult<()> {
        let mut state = self.state(py);
        let mut desk = lock(py, &self.desk);
        let stream = desk.current(state.serial).ok_or_else(client_disconnected)?;
        let peer = desk.peer().ok_or_else(client_disconnected)?;
        peer.send_file(stream, file, offset, length)
            .map_err(refused)?;
        let State { site, visit, .. } = &mut *state;
        site.count_body(visit, length);
        desk.flush();
        Ok(())
    }

    /// A response of the server's own.
    pub fn send_plain(&self, py: Python<'_>, plain: &Plain) -> PyResult<()> {
        let mut state = self.state(py);
        let mut desk = lock(py, &self.desk);
        state.draft.fill_plain(plain.status);
        state.phase = Phase::Started;
        let payload = Payload::Whole(plain.text);
        send_head(
            &mut state,
            &mut desk,
            Some(plain.text.len() as u64),
            payload,
        )?;
        if !state.is_head {
            let State {
                site,
                visit,
                serial,
                ..
            } = &mut *state;
            let mut stream = desk.stream(*serial).ok_or_else(client_disconnected)?;
            site.write(visit, &mut stream, plain.text)
                .map_err(refused)?;
        }
        finish(&mut desk, &mut state)
    }

    /// Gives the exchange up: what the client has must not look complete.
    pub fn abort(&self, py: Python<'_>) {
        let serial = self.state(py).serial;
        let mut desk = lock(py, &self.desk);
        if let Some(mut stream) = desk.stream(serial) {
            stream.reset();
        }
        desk.flush();
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
    desk: &mut Desk,
    inferred: Option<u64>,
    payload: Payload<'_>,
) -> PyResult<()> {
    if state.phase != Phase::Started {
        return Err(PyRuntimeError::new_err(
            "start_response() was not called before the body (PEP 3333)",
        ));
    }
    let size = match state.draft.content_length.or(inferred) {
        Some(length) => BodySize::Known(length),
        None if matches!(state.draft.status, 204 | 304) => BodySize::Empty,
        None => BodySize::Unknown,
    };
    let State {
        draft,
        added,
        site,
        visit,
        serial,
        ..
    } = state;
    let mut fields: Vec<Field<'_>> = Vec::with_capacity(16);
    fields.extend(draft.fields());
    added.refresh();
    fields.extend(added.missing(|name| {
        draft
            .fields()
            .any(|field| field.name.eq_ignore_ascii_case(name))
    }));
    let head = ResponseHead {
        status: draft.status,
        reason: draft.reason(),
        fields: &fields,
    };
    let stream = desk.current(*serial).ok_or_else(client_disconnected)?;
    let conn = desk.conn().ok_or_else(client_disconnected)?;
    site.respond(visit, conn, (stream, &head, size), payload)
        .map_err(refused)?;
    state.phase = Phase::Sent;
    Ok(())
}

fn respond(desk: &mut Desk, serial: u64, head: &ResponseHead<'_>, size: BodySize) -> PyResult<()> {
    let stream = desk.current(serial).ok_or_else(client_disconnected)?;
    let conn = desk.conn().ok_or_else(client_disconnected)?;
    conn.respond(stream, head, size).map_err(refused)
}

fn write_piece(desk: &mut Desk, state: &mut State, piece: &Bound<'_, PyBytes>) -> PyResult<()> {
    let bytes = piece.as_bytes();
    if bytes.is_empty() {
        return Ok(());
    }
    let State {
        site,
        visit,
        serial,
        ..
    } = state;
    let mut stream = desk.stream(*serial).ok_or_else(client_disconnected)?;
    let written = if bytes.len() < SHARED_FROM_BYTES {
        site.write(visit, &mut stream, bytes)
    } else {
        let kept = pyo3::pybacked::PyBackedBytes::from(piece.clone());
        site.write_shared(visit, &mut stream, bytes::Bytes::from_owner(kept))
    };
    written.map_err(refused)
}

/// A failed stream is a client that left; anything else is a mistake of the application.
fn refused(error: UserError) -> PyErr {
    match error {
        UserError::StreamFailed | UserError::UnknownStream => client_disconnected(),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

fn over() -> PyErr {
    PyRuntimeError::new_err("this request is over")
}

fn finish(desk: &mut Desk, state: &mut State) -> PyResult<()> {
    let mut stream = desk.stream(state.serial).ok_or_else(client_disconnected)?;
    state
        .site
        .finish(&mut state.visit, &mut stream, &[])
        .map_err(refused)
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
            (Phase::Over, _) => return Err(over()),
            (Phase::Started | Phase::Sent, None) => {
                return Err(PyRuntimeError::new_err(
                    "start_response() was called twice without exc_info",
                ));
            }
        }
        // A head that is refused leaves none behind.
        state.phase = Phase::Waiting;
        state.draft.fill(status, headers)?;
        state.phase = Phase::Started;
        let write = state.write.as_ref().ok_or_else(over)?;
        Ok(write.clone_ref(py))
    }

    /// PEP 3333, "The `write()` Callable": sent before it returns.
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
        if matches!(state.phase, Phase::Over | Phase::Sent) {
            return Err(PyRuntimeError::new_err(
                "early hints come before the response head",
            ));
        }
        let State {
            interim, serial, ..
        } = &mut *state;
        interim.fill_interim(103, headers)?;
        let mut desk = lock(py, &self.desk);
        let fields: Vec<Field<'_>> = interim.fields().collect();
        let head = ResponseHead {
            status: 103,
            reason: b"",
            fields: &fields,
        };
        respond(&mut desk, *serial, &head, BodySize::Empty)?;
        desk.flush();
        Ok(())
    }
}
