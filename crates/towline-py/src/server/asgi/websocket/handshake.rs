//! The opening handshake: who asks for a WebSocket, the scope it gets, and `websocket.accept`.
use std::time::Instant;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use towline_io::serve::site::{OwnAnswer, Payload};
use towline_proto::ws::handshake::{Acceptance, Request, is_upgrade};
use towline_proto::ws::{WebSocket, handshake};
use towline_proto::{BodySize, HeadRef, Side, Version};

use super::super::exchange::{Client, Exchange, Response};
use super::super::pending_head::Draft;
use super::super::response::{Refusal, respond};
use super::drive::{advance, restart};
use super::{AHEAD_BYTES, Session, Sockets, Stage};
use crate::errors::{ResponseStateError, client_disconnected};

/// What a request for a WebSocket offers, kept until the application has decided.
pub struct Offer {
    accepted: Acceptance,
    protocols: Vec<Box<[u8]>>,
}

/// What a request asks for.
pub enum Asked {
    /// A response.
    Plain,
    WebSocket(Box<Session>),
    /// A WebSocket, in a way that breaks a rule.
    Refused(Box<OwnAnswer>),
}

/// Looks for a WebSocket in a request. HTTP/1.0 has no upgrades (RFC 9110 7.8).
pub fn asked(sockets: &Sockets, head: &HeadRef<'_>) -> Asked {
    let request = match (head.version(), head.protocol()) {
        (Version::Http11, _) if is_upgrade(head) => Request::read(*head),
        (Version::Http2, Some(b"websocket")) => Request::read_extended(*head),
        _ => return Asked::Plain,
    };
    match request {
        Ok(request) => {
            let offer = Offer {
                accepted: request.accept(None, sockets.deflate.as_ref()),
                protocols: request.protocols().map(Box::from).collect(),
            };
            Asked::WebSocket(Box::new(Session {
                stage: Stage::Asking { told: false, offer },
                ended: None,
                over: false,
            }))
        }
        Err(handshake::Refusal { status, rule }) => {
            let fields = handshake::Refusal { status, rule }.fields();
            Asked::Refused(Box::new(OwnAnswer::refused(status, rule, fields)))
        }
    }
}

impl Session {
    /// Makes the scope of a request that of a WebSocket.
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
        if let Stage::Asking { offer, .. } = &self.stage {
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
    let mut asked_for = Draft::default();
    if let Some(headers) = message.get_item(intern!(py, "headers"))?
        && !headers.is_none()
    {
        asked_for.fill(&headers)?;
    }
    {
        let mut state = exchange.get().state.open(py);
        let state = &mut *state;
        let session = state.websocket.as_deref();
        let Some(Stage::Asking { offer, .. }) = session.map(|session| &session.stage) else {
            return Err(ResponseStateError::new_err(
                "ASGI: unexpected websocket.accept: the WebSocket has been accepted, denied or closed",
            ));
        };
        if state.client != Client::Present {
            return Err(client_disconnected());
        }
        write_head(&mut state.draft, offer, protocol.as_deref(), &asked_for)?;
        let params = offer.accepted.deflate;
        let mut engine = server.engine(py)?;
        let now = Instant::now();
        let draining = engine.is_draining();
        let peer = engine.peer(state.id).ok_or_else(client_disconnected)?;
        let mut extras = server.extras.open(py);
        respond(
            state,
            &mut peer.conn,
            &mut extras,
            BodySize::Empty,
            Payload::Pieces,
        )
        .map_err(Refusal::from)?;
        state.response = Response::Switched;
        let mut sockets = server.sockets.open(py);
        let limits = std::sync::Arc::clone(&sockets.limits);
        let deflate = params.zip(sockets.deflate);
        let socket = WebSocket::new(Side::Server, limits, deflate, now);
        if let Some(session) = &mut state.websocket {
            session.stage = Stage::Open(Box::new(socket));
        }
        if draining {
            restart(state);
        }
        advance(state, peer, &mut sockets, now, AHEAD_BYTES);
        // The request has its answer: what follows is no part of it.
        if server.watching {
            extras.site.end(&mut state.visit, now);
        }
    }
    server.flush_part(py, exchange);
    Ok(server.sent(py))
}

/// The subprotocol that the application has chosen.
fn subprotocol(message: &Bound<'_, PyDict>) -> PyResult<Option<String>> {
    let given = message.get_item(intern!(message.py(), "subprotocol"))?;
    let Some(given) = given.filter(|given| !given.is_none()) else {
        return Ok(None);
    };
    let text = given.cast::<PyString>().map_err(|_| {
        PyTypeError::new_err(format!(
            "ASGI: `subprotocol` must be a string, not {}",
            given.get_type()
        ))
    })?;
    Ok(Some(text.to_str()?.to_owned()))
}

/// Puts the head of the answer together: the handshake's fields, then the application's.
fn write_head(
    draft: &mut Draft,
    offer: &Offer,
    protocol: Option<&str>,
    asked_for: &Draft,
) -> PyResult<()> {
    draft.clear();
    draft.status = offer.accepted.status;
    for (name, value) in &offer.accepted.fields {
        draft.push(name, value);
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
        draft.push(b"sec-websocket-protocol", protocol.as_bytes());
    }
    for field in asked_for.fields() {
        let is = |name: &[u8]| field.name.eq_ignore_ascii_case(name);
        if field.name.len() > 14 && field.name[..14].eq_ignore_ascii_case(b"sec-websocket-") {
            return Err(PyValueError::new_err(format!(
                "ASGI: {} is the server's to send, the subprotocol has a key of its own in websocket.accept",
                String::from_utf8_lossy(field.name)
            )));
        }
        if !is(b"connection") && !is(b"upgrade") && !is(b"content-length") {
            draft.push(field.name, field.value);
        }
    }
    Ok(())
}
