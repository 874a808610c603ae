//! One call of the application, from environ to the end of its response.
use std::sync::Arc;
use std::time::Instant;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use towline_io::serve::site::{Payload, Rules, Site};

use super::client_info::Origin;
use super::context::InFreshContext;
use super::environ::{Constants, Environs, Line};
use super::file_wrapper::FileWrapper;
use super::input::{ErrorStream, InputStream};
use super::log::Log;
use super::request::Request;
use super::request_io::{SharedDesk, lock};
use super::responder::{Phase, Plain, Responder};
use crate::errors::ClientDisconnected;
use crate::server::default_headers::DefaultFields;
use crate::server::options::Options;

/// What every application thread needs to know.
pub struct Application {
    pub app: Py<PyAny>,
    pub options: Options,
    pub multiprocess: bool,
    pub rules: Arc<Rules>,
    pub log: Log,
}

/// The Python objects with which one thread calls the application, reused from request to request.
pub struct Caller {
    application: Arc<Application>,
    desk: SharedDesk,
    environs: Environs,
    words: Words,
    callables: Callables,
}

struct Words {
    input: Py<PyAny>,
    close: Py<PyAny>,
}

/// When a request came, and when the application was called: until then it had to wait.
#[derive(Clone, Copy)]
pub struct Times {
    pub came: Instant,
    pub called: Instant,
}

/// `start_response`, the `write` that it returns, and `wsgi.early_hints`: three methods of one object.
struct Callables {
    responder: Py<Responder>,
    start: Py<PyAny>,
    write: Py<PyAny>,
    early_hints: Py<PyAny>,
}

impl Caller {
    pub fn new(py: Python<'_>, application: Arc<Application>, desk: SharedDesk) -> PyResult<Self> {
        let constants = Constants {
            input: Bound::new(py, InputStream::complete(Vec::new()))?.into_any(),
            errors: Bound::new(py, ErrorStream::new(application.log.clone()))?.into_any(),
            file_wrapper: py.get_type::<FileWrapper>().into_any(),
            multithread: application.options.threads > 1,
            multiprocess: application.multiprocess,
        };
        let environs = Environs::new(py, &application.options.root_path, &constants)?;
        let words = Words {
            input: pyo3::intern!(py, "wsgi.input").clone().into_any().unbind(),
            close: pyo3::intern!(py, "close").clone().into_any().unbind(),
        };
        let callables = Callables::new(py, &desk, &application)?;
        callables.install(py, &environs)?;
        Ok(Self {
            application,
            desk,
            environs,
            words,
            callables,
        })
    }

    /// Serves one request. Whatever the application does, the exchange is over afterwards; the error is
    /// one that is to end the server (`SystemExit`, `KeyboardInterrupt`).
    pub fn serve(
        &mut self,
        py: Python<'_>,
        request: &mut Request,
        origin: &Origin,
        times: Times,
    ) -> PyResult<()> {
        let serial = lock(py, &self.desk).begin(request.stream);
        let held = self.callables.responder.clone_ref(py);
        let responder = held.get();
        let client = origin.remote.map(|address| address.ip());
        let seat = (serial, &self.callables.write);
        responder.begin(py, seat, request, (client, times));
        let outcome = self
            .environ(py, request, origin, serial)
            .and_then(|environ| {
                let _context = InFreshContext::enter(py)?;
                self.call(py, &environ, responder)
            });
        let outcome = outcome.or_else(|error| self.failed(py, responder, &error, request));
        let now = Instant::now();
        responder.end(py, now);
        // Counted by `renew` otherwise.
        drop(held);
        lock(py, &self.desk).end(now);
        outcome.and_then(|()| self.renew(py))
    }

    /// What the application kept is not used again: it could answer somebody else's request.
    fn renew(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.callables.are_kept() {
            self.callables = Callables::new(py, &self.desk, &self.application)?;
            self.callables.install(py, &self.environs)?;
        }
        Ok(())
    }

    fn environ<'py>(
        &mut self,
        py: Python<'py>,
        request: &mut Request,
        origin: &Origin,
        serial: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let head = &request.head;
        let line = Line {
            method: head.method(),
            target: head.target(),
            version: head.version(),
        };
        let environ = self.environs.build(py, &line, origin, head.fields())?;
        let body = std::mem::take(&mut request.body);
        if !request.complete {
            let input = InputStream::coming(body, self.desk.clone(), serial);
            environ.set_item(&self.words.input, Bound::new(py, input)?)?;
        } else if !body.is_empty() {
            environ.set_item(
                &self.words.input,
                Bound::new(py, InputStream::complete(body))?,
            )?;
        }
        Ok(environ)
    }

    fn call(
        &self,
        py: Python<'_>,
        environ: &Bound<'_, PyDict>,
        responder: &Responder,
    ) -> PyResult<()> {
        let result = self
            .application
            .app
            .bind(py)
            .call1((environ, self.callables.start.bind(py)))?;
        if let Ok(list) = result.cast_exact::<PyList>() {
            if list.len() == 1 {
                let only = list.get_item(0)?;
                return send_known(
                    py,
                    responder,
                    std::slice::from_ref(Responder::piece(&only)?),
                );
            }
            return send_pieces(py, responder, &list.to_tuple());
        }
        if let Ok(tuple) = result.cast_exact::<PyTuple>() {
            return send_pieces(py, responder, tuple);
        }
        let sent = send_iterable(py, responder, &result);
        // PEP 3333: close() is called however the response ended.
        let closed = match result.getattr_opt(self.words.close.bind(py).cast()?)? {
            Some(close) => close.call0().map(drop),
            None => Ok(()),
        };
        match (sent, closed) {
            (Err(first), Err(second)) => {
                self.application.log.error(
                    py,
                    "exception in close() of a WSGI response",
                    Some(&second),
                );
                Err(first)
            }
            (Ok(()), Err(error)) => {
                self.application.log.error(
                    py,
                    "exception in close() of a WSGI response",
                    Some(&error),
                );
                Ok(())
            }
            (sent, Ok(())) => sent,
        }
    }

    /// The application failed. Before the head: 500. After it: the connection is aborted, so that the
    /// client cannot take what it has for the whole. A client that left is nobody's failure.
    fn failed(
        &self,
        py: Python<'_>,
        responder: &Responder,
        error: &PyErr,
        request: &Request,
    ) -> PyResult<()> {
        if !error.is_instance_of::<ClientDisconnected>(py) {
            let text = format!(
                "exception in the WSGI application: {} {}",
                String::from_utf8_lossy(request.head.method()),
                String::from_utf8_lossy(request.head.target())
            );
            self.application.log.error(py, &text, Some(error));
        }
        if responder.phase(py) == Phase::Sent || responder.send_plain(py, &SERVER_ERROR).is_err() {
            responder.abort(py);
        }
        let is_stop = error.is_instance_of::<pyo3::exceptions::PySystemExit>(py)
            || error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py);
        if is_stop {
            Err(error.clone_ref(py))
        } else {
            Ok(())
        }
    }
}

impl Callables {
    fn new(py: Python<'_>, desk: &SharedDesk, application: &Application) -> PyResult<Self> {
        let added = DefaultFields::new(&application.options);
        let site = Site::new(application.rules.clone());
        let responder = Bound::new(py, Responder::new(desk.clone(), added, site))?;
        let start = responder.getattr("start")?.unbind();
        let write = responder.getattr("write")?.unbind();
        let early_hints = responder.getattr("early_hints")?.unbind();
        Ok(Self {
            responder: responder.unbind(),
            start,
            write,
            early_hints,
        })
    }

    fn install(&self, py: Python<'_>, environs: &Environs) -> PyResult<()> {
        environs.set(py, "wsgi.early_hints", self.early_hints.bind(py))
    }

    /// Somebody else holds one of them: `start` and `write` are ours alone, `early_hints` also the
    /// template's, and the object is held by the three and by us.
    fn are_kept(&self) -> bool {
        references(&self.start) > 1
            || references(&self.write) > 1
            || references(&self.early_hints) > 2
            || references(&self.responder) > 4
    }
}

fn references<T>(object: &Py<T>) -> ffi::Py_ssize_t {
    // SAFETY: a live object, as we hold it; every caller is attached, so the count stands still.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

const SERVER_ERROR: Plain = Plain {
    status: 500,
    text: b"Internal Server Error",
};

/// A list or tuple: all of the body is known, so its length is, too.
fn send_pieces(py: Python<'_>, responder: &Responder, pieces: &Bound<'_, PyTuple>) -> PyResult<()> {
    if let [only] = pieces.as_slice() {
        return send_known(py, responder, std::slice::from_ref(Responder::piece(only)?));
    }
    let pieces: Vec<Bound<'_, PyBytes>> = pieces
        .iter()
        .map(|piece| Responder::piece(&piece).cloned())
        .collect::<PyResult<_>>()?;
    send_known(py, responder, &pieces)
}

fn send_known(
    py: Python<'_>,
    responder: &Responder,
    pieces: &[Bound<'_, PyBytes>],
) -> PyResult<()> {
    let total: usize = pieces.iter().map(|piece| piece.as_bytes().len()).sum();
    responder.send_all(py, pieces, total as u64)
}

/// Anything else that can be iterated over: each block is sent before the next is asked for.
fn send_iterable(py: Python<'_>, responder: &Responder, result: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(file) = result.cast_exact::<FileWrapper>()
        && file.get().send(py, responder)?
    {
        return Ok(());
    }
    // PEP 3333, "Handling the Content-Length Header": one block is the whole body.
    let is_single = result.hasattr(pyo3::intern!(py, "__len__"))? && result.len()? == 1;
    for piece in result.try_iter()? {
        let piece = piece?;
        let piece = Responder::piece(&piece)?;
        if piece.as_bytes().is_empty() {
            continue;
        }
        let inferred = is_single.then(|| piece.as_bytes().len() as u64);
        responder.send_head(py, inferred, Payload::Pieces)?;
        if responder.is_bodyless(py) {
            break;
        }
        responder.send_piece(py, piece)?;
    }
    responder.send_end(py)
}
