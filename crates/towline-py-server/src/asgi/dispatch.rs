//! From an event of a connection to the action that it requires, once the engine is free again for Python code.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::features::overrides::{Arrival, Overrides};
use towline_io::serve::features::request_body::Content;
use towline_io::serve::features::{BuiltinResponse, ExchangeRecord, Features, RequestLine, Sender};
use towline_io::serve::forwarded::{Origin, PeerIp, Scheme};
use towline_io::{Conn, ConnConfig, ConnId};
use towline_proto::{Event, Field, HeadRef, StreamId};

use super::exchange_state::ExchangeEvent;
use super::scope::{Endpoints, Scopes, Tls};
use super::state::{AsgiServer, ConnState, Exchange, Request, ServerFeatures};
use super::task::step::in_context;
use super::websocket::{self, Session, UpgradeRequest};

/// The action that an event requires.
pub enum Action {
    RunApplication(Request),
    Notify(Py<Exchange>, ExchangeEvent),
    /// The connection is closed: all its exchanges are notified.
    NotifyClosed(Vec<Py<Exchange>>),
    /// A timer of one of these exchanges may have expired.
    CheckTimers(Vec<Py<Exchange>>),
    /// Nothing in Python.
    None,
}

/// Takes the next event of a connection. `None`: it has no more.
pub fn next_action(server: &Bound<'_, AsgiServer>, id: ConnId) -> PyResult<Option<Action>> {
    let py = server.py();
    let this = server.get();
    let mut engine = this.engine(py)?;
    let Some(conn) = engine.conn(id) else {
        return Ok(None);
    };
    // Not kept before there is a head: until then a handshake or a PROXY header may change them.
    let is_new = conn.state.endpoints.is_none();
    if is_new {
        conn.state.endpoints = Some(endpoints(py, &this.scopes, conn)?);
    }
    let conn_info = ConnInfo {
        peer_ip: conn.remote_addr().into(),
        has_proven_address: conn.has_proven_address(),
        is_tls: conn.is_tls(),
    };
    let due = conn.is_wake_due();
    let (proto, state, config) = conn.parts();
    let notify = |state: &ConnState, stream, event| match state.exchanges.get(stream) {
        Some(exchange) => Action::Notify(exchange.clone_ref(py), event),
        None => Action::None,
    };
    let all = |state: &ConnState| {
        let exchanges = state.exchanges.iter();
        exchanges
            .map(|(_, exchange)| exchange.clone_ref(py))
            .collect()
    };
    let action = match proto.next_event() {
        // Timers come last: an event that has just arrived may be the one that they wait for.
        None => match state.held.as_mut().and_then(|held| held.pop_front()) {
            Some(request) => Some(Action::RunApplication(request)),
            None => due.then(|| Action::CheckTimers(all(state))),
        },
        Some(Event::Head { stream, head, end }) => {
            return match dispatch(this, py, (&head, end), (state, config), &conn_info)? {
                Dispatch::Application(scope, websocket) => {
                    let head_only = head.method() == b"HEAD";
                    Ok(Some(Action::RunApplication(Request {
                        id,
                        stream,
                        scope: scope.unbind(),
                        end,
                        head_only,
                        websocket,
                        handle: None,
                    })))
                }
                Dispatch::Builtin(response) => {
                    this.respond_builtin(py, conn, stream, *response);
                    Ok(Some(Action::None))
                }
            };
        }
        Some(Event::Readable(stream)) => Some(notify(state, stream, ExchangeEvent::Readable)),
        Some(Event::Writable(stream)) => Some(notify(state, stream, ExchangeEvent::Writable)),
        Some(Event::HalfClosed(stream)) => Some(notify(state, stream, ExchangeEvent::HalfClosed)),
        Some(Event::Failed(stream, _)) => {
            let action = notify(state, stream, ExchangeEvent::Disconnected);
            if matches!(action, Action::None) {
                // No application serves it.
                conn.release_stream(stream);
            }
            return Ok(Some(action));
        }
        Some(Event::Closed(_)) => Some(Action::NotifyClosed(all(state))),
        Some(Event::Informational { .. } | Event::Switched { .. } | Event::GoingAway { .. }) => {
            Some(Action::None)
        }
    };
    if is_new {
        state.endpoints = None;
    }
    if matches!(action, Some(Action::CheckTimers(_))) {
        conn.clear_wake_due();
    }
    Ok(action)
}

/// Properties of a connection that are read before its protocol state is borrowed.
struct ConnInfo {
    peer_ip: PeerIp,
    /// Only then can it be a trusted proxy.
    has_proven_address: bool,
    is_tls: bool,
}

impl ConnInfo {
    /// Address of the client: from the proxies, else from the socket.
    fn client(&self, origin: &Origin) -> Option<IpAddr> {
        let forwarded = origin.client.map(|(address, _)| address);
        forwarded.or(match self.peer_ip {
            PeerIp::Ip(address) => Some(address),
            PeerIp::Unix => None,
        })
    }
}

/// The part of the server that responds to a request.
enum Dispatch<'py> {
    Application(Bound<'py, PyDict>, Option<Box<Session>>),
    Builtin(Box<BuiltinResponse>),
}

fn dispatch<'py>(
    server: &AsgiServer,
    py: Python<'py>,
    (head, end): (&HeadRef<'_>, bool),
    (state, config): (&ConnState, &ConnConfig),
    conn_info: &ConnInfo,
) -> PyResult<Dispatch<'py>> {
    let mut server_state = server.state.open(py);
    let features = server.features.open(py);
    let line = RequestLine::of(head);
    let origin = if conn_info.has_proven_address {
        config.origin(conn_info.peer_ip, head.fields())
    } else {
        Origin::default()
    };
    let role = config.role;
    let builtin = if features.features.may_answer(role) {
        let sender = Sender {
            client: conn_info.client(&origin),
            role,
            used_https: origin.scheme == Some(Scheme::Https),
        };
        features
            .features
            .builtin_response(&line, head.fields(), &sender)
    } else {
        None
    };
    let (builtin, websocket) = match builtin {
        Some(response) => (Some(response), None),
        None => match websocket::upgrade_request(&server.ws_context.open(py), head, end) {
            // ASGI has no tunnels, apart from those of WebSockets (RFC 8441).
            UpgradeRequest::None if line.method == b"CONNECT" => {
                (Some(BuiltinResponse::not_implemented(&line)), None)
            }
            UpgradeRequest::None => (None, None),
            UpgradeRequest::WebSocket(session) => (None, Some(session)),
            UpgradeRequest::Invalid(response) => (Some(*response), None),
        },
    };
    let mut builtin = builtin.or_else(|| {
        let overloaded = server_state.in_flight >= server.limit_concurrency;
        overloaded.then(|| BuiltinResponse::overloaded(&line))
    });
    let feature_config = features.features.config();
    let mut overrides = feature_config
        .overrides
        .then(|| overrides(&features.features, (conn_info, config), &origin, head));
    if let Some(overrides) = &mut overrides {
        let content = match &feature_config.decoding {
            Some(decoding) if !end && websocket.is_none() && builtin.is_none() => {
                decoding.content(&line, head.fields())
            }
            _ => Content::Plain,
        };
        (server_state.record.decoder, builtin) = match content {
            Content::Plain => (None, builtin),
            Content::Coded(decoder) => (Some(decoder), builtin),
            Content::Refused(response) => (None, Some(*response)),
        };
        overrides.is_decoded = server_state.record.decoder.is_some();
    }
    if server.records_exchanges {
        let client = conn_info.client(&origin);
        let now = server_state.clock.unwrap_or_else(Instant::now);
        let begun = (&line, client, now);
        let record = &mut server_state.record;
        match overrides
            .as_ref()
            .and_then(|overrides| overrides.request_id.as_ref())
        {
            None => features.features.begin(record, begun, head.fields()),
            Some((name, id)) => {
                let others = head.fields();
                let others = others.filter(|field| !field.name.eq_ignore_ascii_case(name));
                let own = Field {
                    name,
                    value: id.as_bytes(),
                };
                let fields = others.chain(std::iter::once(own));
                features.features.begin(record, begun, fields);
            }
        }
        let is_https = origin.is_https(conn_info.is_tls);
        features.features.scheme(record, is_https);
    }
    server_state.requests += 1;
    if let Some(response) = builtin {
        return Ok(Dispatch::Builtin(Box::new(response)));
    }
    // A garbage collection may run finalisers while the scope is built: these cells must not be open then.
    drop((server_state, features));
    let endpoints = state
        .endpoints
        .as_ref()
        .ok_or_else(|| PyRuntimeError::new_err("a head on a connection without endpoints"))?;
    let scope = server.scopes.build(py, head, endpoints, &origin)?;
    if let Some(session) = &websocket {
        session.adapt(&scope)?;
    }
    if let Some(overrides) = &overrides {
        server.scopes.replace(&scope, line.target, overrides)?;
        if let Some((_, id)) = &overrides.request_id {
            // The context of the request is a copy, made next.
            in_context(py, &server.base_context, || crate::request_id::set(py, id))??;
        }
    }
    server.state.open(py).in_flight += 1;
    Ok(Dispatch::Application(scope, websocket))
}

#[cold]
fn overrides(
    features: &Features,
    (conn_info, address): (&ConnInfo, &ConnConfig),
    origin: &Origin,
    head: &HeadRef<'_>,
) -> Box<Overrides> {
    let arrival = Arrival {
        address,
        peer: conn_info.has_proven_address.then_some(conn_info.peer_ip),
        is_https: origin.is_https(conn_info.is_tls),
        waited: Duration::ZERO,
    };
    features.overrides(&arrival, head.fields())
}

impl AsgiServer {
    /// Resets a connection. The requests that it holds back end without their application.
    pub fn abort(&self, py: Python<'_>, id: ConnId) -> PyResult<()> {
        let held = {
            let mut engine = self.engine(py)?;
            let held = engine.conn(id).and_then(|conn| conn.state.held.take());
            engine.abort(id);
            held
        };
        for request in held.into_iter().flat_map(|held| *held) {
            if let Some(handle) = request.handle {
                self.finish(py, handle, Ok(()), Some(request.scope.into_bound(py)))?;
            }
        }
        Ok(())
    }

    /// Responds with a static file, the metrics page, or 503 over the concurrency limit.
    fn respond_builtin(
        &self,
        py: Python<'_>,
        conn: &mut Conn<ConnState>,
        stream: StreamId,
        response: BuiltinResponse,
    ) {
        let record = &mut self.state.open(py).record;
        self.send_builtin(py, (record, conn, stream), response, true);
        self.features.open(py).features.end(record, Instant::now());
    }

    /// Sends a response of the server, or only counts and logs why it refuses the request, which has a response.
    pub fn send_builtin(
        &self,
        py: Python<'_>,
        (record, conn, stream): (&mut ExchangeRecord, &mut Conn<ConnState>, StreamId),
        response: BuiltinResponse,
        sends: bool,
    ) {
        let ServerFeatures { headers, features } = &mut *self.features.open(py);
        if !sends {
            return response.count(features, record, conn);
        }
        headers.refresh();
        // Fails only if the client has disconnected.
        let config = Arc::clone(conn.service());
        let added = headers.missing(&config.fields, |_| false);
        let _ = response.send(features, record, conn, stream, added);
    }
}

fn endpoints(py: Python<'_>, scopes: &Scopes, conn: &Conn<ConnState>) -> PyResult<Endpoints> {
    let tls = conn.is_tls().then(|| Tls {
        info: conn.tls(),
        server_cert: conn.service().certificate_pem.as_deref(),
    });
    scopes.endpoints(py, (conn.remote_addr(), conn.local_addr()), tls)
}
