//! The opening handshake: detection of WebSocket requests, their scope, and `websocket.accept`.
use std::time::Instant;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use towline_io::serve::features::{BuiltinResponse, Payload, RequestLine};
use towline_proto::ws::handshake::{Request, is_upgrade};
use towline_proto::ws::{WebSocket, handshake};
use towline_proto::{BodySize, HeadRef, Side, Version};

use super::super::exchange_state::{ClientState, ResponsePhase};
use super::super::pending_head::PendingHead;
use super::super::response::{SendFailure, respond};
use super::super::state::Exchange;
use super::drive::{advance, close_for_shutdown};
use super::session::{Offer, READ_AHEAD_BYTES, Session, Stage, WsContext};
use crate::open_gauge::OpenGauge;
use towline_py_common::errors::{ResponseStateError, client_disconnected};

/// The WebSocket request in a request head, if any.
pub enum UpgradeRequest {
    None,
    WebSocket(Box<Session>),
    /// The request violates RFC 6455: the response to send.
    Invalid(Box<BuiltinResponse>),
}

/// Detects a WebSocket request. HTTP/1.0 has no upgrades (RFC 9110 7.8).
/// `end`: the request has no content.
pub fn upgrade_request(ws_context: &WsContext, head: &HeadRef<'_>, end: bool) -> UpgradeRequest {
    if !ws_context.is_enabled {
        // An upgrade may be ignored (RFC 9110 7.8): it is an ordinary request.
        return UpgradeRequest::None;
    }
    let request = match (head.version(), head.protocol()) {
        // The frames would follow the content, which nobody reads.
        (Version::Http11, _) if !end && is_upgrade(head) => Err(handshake::Refusal {
            status: 400,
            rule: "content in a WebSocket handshake (RFC 6455 4.1)",
        }),
        (Version::Http11, _) if is_upgrade(head) => Request::read(*head),
        (Version::Http2 | Version::Http3, Some(b"websocket")) => Request::read_extended(*head),
        _ => return UpgradeRequest::None,
    };
    match request {
        Ok(request) => {
            let offer = Offer {
                accepted: request.accept(None, ws_context.deflate.as_ref()),
                protocols: request.protocols().map(Box::from).collect(),
            };
            UpgradeRequest::WebSocket(Box::new(Session {
                stage: Stage::Handshake {
                    connect_received: false,
                    offer,
                },
                close: None,
                is_finished: false,
                gauge: None,
            }))
        }
        Err(handshake::Refusal { status, rule }) => {
            let fields = handshake::Refusal { status, rule }.fields();
            let line = RequestLine::of(head);
            let response = BuiltinResponse::refused_handshake(&line, (status, rule), fields);
            UpgradeRequest::Invalid(Box::new(response))
        }
    }
}

impl Session {
    /// Converts the scope of a request to a websocket scope.
    pub fn adapt(&self, scope: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = scope.py();
        scope.set_item(intern!(py, "type"), intern!(py, "websocket"))?;
        scope.del_item(intern!(py, "method"))?;
        let scheme = scope.get_item(intern!(py, "scheme"))?;
        let secure = match scheme {
            Some(scheme) => scheme.eq(intern!(py, "https"))?,
            None => false,
        };
        let scheme = if secure {
            intern!(py, "wss")
        } else {
            intern!(py, "ws")
        };
        scope.set_item(intern!(py, "scheme"), scheme)?;
        let protocols = PyList::empty(py);
        if let Stage::Handshake { offer, .. } = &self.stage {
            for protocol in &offer.protocols {
                // Tokens, hence ASCII.
                protocols.append(String::from_utf8_lossy(protocol))?;
            }
        }
        scope.set_item(intern!(py, "subprotocols"), protocols)?;
        let extensions = PyDict::new(py);
        extensions.set_item(intern!(py, "websocket.http.response"), PyDict::new(py))?;
        let before = scope.get_item(intern!(py, "extensions"))?;
        if let Some(before) = &before
            && let Ok(before) = before.cast::<PyDict>()
            && let Some(tls) = before.get_item(intern!(py, "tls"))?
        {
            extensions.set_item(intern!(py, "tls"), tls)?;
        }
        scope.set_item(intern!(py, "extensions"), extensions)
    }
}

/// `websocket.accept`.
pub fn accept(exchange: &Bound<'_, Exchange>, message: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
    let py = exchange.py();
    let server = exchange.get().server.get();
    let protocol = subprotocol(message)?;
    let mut application_head = PendingHead::default();
    if let Some(headers) = message.get_item(intern!(py, "headers"))?
        && !headers.is_none()
    {
        application_head.fill(&headers)?;
    }
    {
        let mut state = exchange.get().state.open(py);
        let state = &mut *state;
        let session = state.websocket.as_deref();
        let Some(Stage::Handshake { offer, .. }) = session.map(|session| &session.stage) else {
            return Err(ResponseStateError::new_err(
                "ASGI: unexpected websocket.accept: the WebSocket has been accepted, denied or closed",
            ));
        };
        if state.client != ClientState::Connected {
            return Err(client_disconnected());
        }
        write_head(
            &mut state.head,
            offer,
            protocol.as_deref(),
            &application_head,
        )?;
        let params = offer.accepted.deflate;
        let mut engine = server.engine(py)?;
        let now = Instant::now();
        let draining = engine.is_draining();
        let conn = engine.conn(state.id).ok_or_else(client_disconnected)?;
        let mut features = server.features.open(py);
        respond(state, conn, &mut features, BodySize::Empty, Payload::Pieces)
            .map_err(SendFailure::from)?;
        state.response = ResponsePhase::Switched;
        let mut ws_context = server.ws_context.open(py);
        let limits = std::sync::Arc::clone(&ws_context.limits);
        let deflate = params.zip(ws_context.deflate);
        let socket = WebSocket::new(Side::Server, limits, deflate, now);
        if let Some(session) = &mut state.websocket {
            session.stage = Stage::Open(Box::new(socket));
            let slot = features.features.config().slot.clone();
            session.gauge = slot.map(OpenGauge::new);
        }
        if draining {
            close_for_shutdown(state);
        }
        advance(state, conn, &mut ws_context, now, READ_AHEAD_BYTES);
        // The log record ends with the response.
        if server.records_exchanges {
            features.features.end(&mut state.record, now);
        }
    }
    server.flush_part(py, exchange);
    Ok(server.ready(py))
}

/// The subprotocol that the application has chosen.
fn subprotocol(message: &Bound<'_, PyDict>) -> PyResult<Option<String>> {
    let parsed = message.get_item(intern!(message.py(), "subprotocol"))?;
    let Some(parsed) = parsed.filter(|parsed| !parsed.is_none()) else {
        return Ok(None);
    };
    let text = parsed.cast::<PyString>().map_err(|_| {
        PyTypeError::new_err(format!(
            "ASGI: `subprotocol` must be a string, not {}",
            parsed.get_type()
        ))
    })?;
    Ok(Some(text.to_str()?.to_owned()))
}

/// Builds the head of the response: the headers of the handshake, then those of the application.
fn write_head(
    head: &mut PendingHead,
    offer: &Offer,
    protocol: Option<&str>,
    application_head: &PendingHead,
) -> PyResult<()> {
    head.clear();
    head.status = offer.accepted.status;
    for (name, value) in &offer.accepted.fields {
        head.push(name, value);
    }
    if let Some(protocol) = protocol {
        if !offer
            .protocols
            .iter()
            .any(|offered| **offered == *protocol.as_bytes())
        {
            return Err(PyValueError::new_err(format!(
                "ASGI: the client has not offered the subprotocol {protocol:?} (RFC 6455 4.2.2)"
            )));
        }
        head.push(b"sec-websocket-protocol", protocol.as_bytes());
    }
    for field in application_head.fields() {
        let is = |name: &[u8]| field.name.eq_ignore_ascii_case(name);
        if field.name.len() > 14 && field.name[..14].eq_ignore_ascii_case(b"sec-websocket-") {
            return Err(PyValueError::new_err(format!(
                "ASGI: {} is set by the server; use `subprotocol` of websocket.accept for the subprotocol",
                String::from_utf8_lossy(field.name)
            )));
        }
        if !is(b"connection") && !is(b"upgrade") && !is(b"content-length") {
            head.push(field.name, field.value);
        }
    }
    Ok(())
}
