//! One call of the application, from the environ to the end of its response.
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyConnectionError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyTuple};
use towline_io::serve::features::overrides::{Arrival, Overrides};
use towline_io::serve::features::request_body::Content;
use towline_io::serve::features::{Features, Payload, RequestLine};
use towline_io::serve::forwarded::PeerIp;
use towline_io::serve::metrics::SlotHandle;

use super::application::{Application, RequestTimes};
use super::client_info::ClientInfo;
use super::context::FreshContext;
use super::environ::{Environs, TemplateValues};
use super::file_wrapper::FileWrapper;
use super::input::{ErrorStream, InputStream};
use super::request::{MoreBody, Request};
use super::request_io::{SharedRequestIo, lock};
use super::start_response::{Phase, PlainText, Responder};
use super::taken_socket::{self, ConnectionSocket};
use super::websockets::{self, Permit};
use crate::default_headers::DefaultHeaders;
use crate::forked::Process;
use towline_py_common::cell::references;
use towline_py_common::errors::ClientDisconnected;

/// The Python objects that one thread passes to the application, reused from request to request.
pub struct AppRunner {
    application: Arc<Application>,
    request_io: SharedRequestIo,
    environs: Environs,
    interned: Interned,
    callables: Callables,
    /// For the environ of the next request.
    additions: Option<Additions>,
}

/// Values that few requests have in their environ.
#[derive(Default)]
struct Additions {
    /// The socket of the connection is offered.
    socket: Option<(Arc<Permit>, Option<SlotHandle>)>,
    overrides: Option<Box<Overrides>>,
}

struct Interned {
    input: Py<PyAny>,
    close: Py<PyAny>,
}

/// `start_response`, the `write` that it returns, and `wsgi.early_hints`: three methods of one object.
struct Callables {
    responder: Py<Responder>,
    start: Py<PyAny>,
    write: Py<PyAny>,
    early_hints: Py<PyAny>,
}

impl AppRunner {
    pub fn new(
        py: Python<'_>,
        application: Arc<Application>,
        request_io: SharedRequestIo,
    ) -> PyResult<Self> {
        let values = TemplateValues {
            input: Bound::new(py, InputStream::complete(Vec::new(), None))?.into_any(),
            errors: Bound::new(py, ErrorStream::new(application.log.clone()))?.into_any(),
            file_wrapper: py.get_type::<FileWrapper>().into_any(),
            multithread: application.options.threads > 1,
            multiprocess: application.multiprocess,
        };
        let environs = Environs::new(py, &application.options.root_path, &values)?;
        let interned = Interned {
            input: pyo3::intern!(py, "wsgi.input").clone().into_any().unbind(),
            close: pyo3::intern!(py, "close").clone().into_any().unbind(),
        };
        let callables = Callables::new(py, &request_io, &application)?;
        callables.install(py, &environs)?;
        Ok(Self {
            application,
            request_io,
            environs,
            interned,
            callables,
            additions: None,
        })
    }

    /// Offers the connection of the next request to the application, in its environ.
    pub fn offer_socket(&mut self, permit: Arc<Permit>, slot: Option<SlotHandle>) {
        self.additions.get_or_insert_default().socket = Some((permit, slot));
    }

    /// Serves one request. The exchange is over afterwards, whatever the application does. An error is one
    /// that has to end the server: `KeyboardInterrupt` in an embedding program.
    pub fn serve(
        &mut self,
        py: Python<'_>,
        request: &mut Request,
        client_info: &ClientInfo,
        times: RequestTimes,
    ) -> PyResult<()> {
        let serial = lock(py, &self.request_io).begin(request.stream);
        let responder_ref = self.callables.responder.clone_ref(py);
        let responder = responder_ref.get();
        let client = client_info.remote.map(|address| address.ip());
        let exchange = (serial, &self.callables.write);
        let is_https = client_info.is_https;
        if self.application.feature_config.overrides {
            let overrides = self.overrides(py, responder, request, (is_https, times));
            if let Some((name, id)) = &overrides.request_id {
                request.head.set_field(name, id.as_bytes());
            }
            self.additions.get_or_insert_default().overrides = Some(overrides);
        }
        responder.begin(py, exchange, request, (client, is_https, times));
        let outcome = FreshContext::enter(py).and_then(|_context| {
            self.environ(py, request, client_info, serial)
                .and_then(|environ| self.call(py, &environ, responder))
                .or_else(|error| {
                    self.handle_exception(py, responder, &error, (request, client_info))
                })
        });
        let now = Instant::now();
        responder.end(py, now);
        // `replace_retained` counts references.
        drop(responder_ref);
        lock(py, &self.request_io).end(now);
        outcome.and_then(|()| self.replace_retained(py))
    }

    #[cold]
    fn overrides(
        &self,
        py: Python<'_>,
        responder: &Responder,
        request: &Request,
        (is_https, times): (bool, RequestTimes),
    ) -> Box<Overrides> {
        let mut request_io = lock(py, &self.request_io);
        let conn = request_io.peer().filter(|conn| conn.has_proven_address());
        let (peer, address) = match conn {
            Some(conn) => {
                let peer = PeerIp::from(conn.remote_addr());
                (Some(peer), Arc::clone(conn.service()))
            }
            None => (None, Arc::default()),
        };
        drop(request_io);
        let arrival = Arrival {
            address: &address,
            peer,
            is_https,
            waited: times.called.saturating_duration_since(times.received),
        };
        let mut overrides = responder.overrides(py, &arrival, request);
        overrides.is_decoded = request.is_coded();
        overrides.decoded_bytes = request.complete.then(|| request.arrived());
        overrides
    }

    /// Replaces the callables when the application has kept one: it could respond to a later request.
    fn replace_retained(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.callables.are_retained() {
            self.callables = Callables::new(py, &self.request_io, &self.application)?;
            self.callables.install(py, &self.environs)?;
        }
        Ok(())
    }

    fn environ<'py>(
        &mut self,
        py: Python<'py>,
        request: &mut Request,
        client_info: &ClientInfo,
        serial: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let environ = self
            .environs
            .build(py, &request.line(), client_info, request.fields())?;
        let body = std::mem::take(&mut request.body);
        let more = request.more.take().map(|more| *more);
        let MoreBody { spool, content } = more.unwrap_or_default();
        if !request.complete {
            let connection = (self.request_io.clone(), serial);
            let decoder = match content {
                Content::Coded(decoder) => Some(decoder),
                _ => None,
            };
            let input = InputStream::incoming(body, spool, connection, decoder);
            environ.set_item(&self.interned.input, Bound::new(py, input)?)?;
        } else if !body.is_empty() {
            environ.set_item(
                &self.interned.input,
                Bound::new(py, InputStream::complete(body, spool))?,
            )?;
        }
        let mut offers_socket = false;
        if let Some(additions) = self.additions.take() {
            if let Some(overrides) = &additions.overrides {
                let target = request.line().target;
                self.environs.replace(&environ, target, overrides)?;
                if let Some((_, id)) = &overrides.request_id {
                    crate::request_id::set(py, id)?;
                }
            }
            if let Some(offered) = additions.socket {
                let responder = self.callables.responder.clone_ref(py);
                let socket = ConnectionSocket::new(responder, serial, offered);
                environ.set_item(taken_socket::ENVIRON_KEY, Bound::new(py, socket)?)?;
                offers_socket = true;
            }
        }
        if client_info.offers_upgrade && !offers_socket && websockets::is_request(&request.head) {
            let is_tls = client_info.tls.is_some();
            self.application.log_websocket_hint(py, is_tls);
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
            .call1((environ, self.callables.start.bind(py)));
        self.application
            .process
            .end_child(py, result.as_ref().err());
        let result = result?;
        if let Ok(list) = result.cast_exact::<PyList>() {
            if list.len() == 1 {
                let piece = list.get_item(0)?;
                return send_known(
                    py,
                    responder,
                    std::slice::from_ref(Responder::piece(&piece)?),
                );
            }
            return send_pieces(py, responder, &list.to_tuple());
        }
        if let Ok(tuple) = result.cast_exact::<PyTuple>() {
            return send_pieces(py, responder, tuple);
        }
        let sent = send_iterable(py, responder, &result, self.application.process);
        // PEP 3333: close() is called however the response ended.
        let closed = match result.getattr_opt(self.interned.close.bind(py).cast()?)? {
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

    /// `GET /path from 192.0.2.1:50000, request id 0193...`
    fn describe(&self, request: &Request, client_info: &ClientInfo) -> String {
        let RequestLine { method, target, .. } = request.line();
        let path = target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        let mut text = format!("{} {}", method.escape_ascii(), path.escape_ascii());
        // Writing to a String cannot fail.
        if let Some(client) = client_info.remote {
            let _ = write!(text, " from {client}");
        }
        let name = self.application.feature_config.request_id.as_deref();
        let mut fields = request.fields();
        let id = name.and_then(|name| fields.find(|field| field.name.eq_ignore_ascii_case(name)));
        if let Some(id) = id {
            let _ = write!(text, ", request id {}", id.value.escape_ascii());
        }
        text
    }

    /// Handles an exception of the application. Before the head: 500. After it: the connection is aborted, so
    /// that the client cannot take a part of the response for the whole. `ClientDisconnected` is not logged.
    fn handle_exception(
        &self,
        py: Python<'_>,
        responder: &Responder,
        error: &PyErr,
        (request, client_info): (&Request, &ClientInfo),
    ) -> PyResult<()> {
        let is_taken_over = responder.phase(py) == Phase::TakenOver;
        let is_disconnect = error.is_instance_of::<ClientDisconnected>(py)
            // engineio ends so, and a library may let the error of the socket pass.
            || is_taken_over && error.is_instance_of::<PyConnectionError>(py);
        if !is_disconnect {
            let text = format!(
                "exception in the WSGI application: {}",
                self.describe(request, client_info)
            );
            self.application.log.error(py, &text, Some(error));
        }
        if responder.refuse_undecodable(py) {
            // The response is sent.
        } else if !is_taken_over
            && (responder.phase(py) == Phase::Sent
                || responder.send_plain(py, &SERVER_ERROR).is_err())
        {
            responder.abort(py);
        }
        // A worker ignores SIGINT, so there the application has raised it, as `SystemExit`: other requests must
        // not pay for that. In an embedding program it may be Ctrl-C.
        let is_worker = self.application.feature_config.slot.is_some();
        if !is_worker && error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py) {
            Err(error.clone_ref(py))
        } else {
            Ok(())
        }
    }
}

impl Callables {
    fn new(
        py: Python<'_>,
        request_io: &SharedRequestIo,
        application: &Application,
    ) -> PyResult<Self> {
        let added = DefaultHeaders::new(&application.options);
        let features = Features::new(application.feature_config.clone());
        let responder = Bound::new(py, Responder::new(request_io.clone(), added, features))?;
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

    /// Whether the application has kept one of them. Without it `start` and `write` have one reference each,
    /// `early_hints` two (one in the environ template), the responder four (the three methods and this).
    fn are_retained(&self) -> bool {
        references(&self.start) > 1
            || references(&self.write) > 1
            || references(&self.early_hints) > 2
            || references(&self.responder) > 4
    }
}

const SERVER_ERROR: PlainText = PlainText {
    status: 500,
    text: b"Internal Server Error",
};

/// Sends a list or tuple, whose total length is known.
fn send_pieces(py: Python<'_>, responder: &Responder, pieces: &Bound<'_, PyTuple>) -> PyResult<()> {
    if let [piece] = pieces.as_slice() {
        return send_known(
            py,
            responder,
            std::slice::from_ref(Responder::piece(piece)?),
        );
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

/// Sends any other iterable: each block is sent before the next one is requested.
fn send_iterable(
    py: Python<'_>,
    responder: &Responder,
    result: &Bound<'_, PyAny>,
    process: Process,
) -> PyResult<()> {
    if let Ok(file) = result.cast_exact::<FileWrapper>()
        && file.get().send(py, responder)?
    {
        return Ok(());
    }
    // A response of Django that has its whole body in memory. With a length it is one block, and leaves with others.
    let streaming = result.getattr_opt(pyo3::intern!(py, "streaming"))?;
    if streaming.is_some_and(|streaming| streaming.is(&*PyBool::new(py, false))) {
        let pieces = result.try_iter()?.collect::<PyResult<Vec<_>>>();
        process.end_child(py, pieces.as_ref().err());
        return send_pieces(py, responder, &PyTuple::new(py, pieces?)?);
    }
    // PEP 3333, "Handling the Content-Length Header": one block is the whole body.
    let is_single = result.hasattr(pyo3::intern!(py, "__len__"))? && result.len()? == 1;
    for piece in result.try_iter()? {
        process.end_child(py, piece.as_ref().err());
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
