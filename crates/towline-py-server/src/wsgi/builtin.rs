//! Responses without the application: static files, the metrics page, 503 over the concurrency limit, and 501
//! to CONNECT.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use towline_io::Conn;
use towline_io::serve::features::{BuiltinResponse, ExchangeRecord, Features, Sender};
use towline_io::serve::forwarded::{Origin, PeerIp, Scheme};

use super::application::Application;
use super::request::{ConnState, Request};
use crate::default_headers::DefaultHeaders;

/// Used by the thread that runs the engine.
pub struct BuiltinResponses {
    fields: DefaultHeaders,
    features: Features,
    record: ExchangeRecord,
}

impl BuiltinResponses {
    pub fn new(application: &Application) -> Self {
        Self {
            fields: DefaultHeaders::new(&application.options),
            features: Features::new(application.feature_config.clone()),
            record: ExchangeRecord::default(),
        }
    }

    /// Responds if the request is not for the application; true if it did.
    pub fn respond(&mut self, conn: &mut Conn<ConnState>, request: &mut Request) -> bool {
        let role = conn.service().role;
        let may_answer = self.features.may_answer(role);
        if may_answer && let Some(response) = request.take_refusal() {
            self.send(conn, request, *response);
            return true;
        }
        let (line, fields) = (request.line(), request.fields());
        let response = if may_answer {
            let origin = origin(conn, request);
            let sender = Sender {
                client: client(conn, &origin),
                role,
                used_https: origin.scheme == Some(Scheme::Https),
            };
            self.features.builtin_response(&line, fields, &sender)
        } else {
            None
        };
        // PEP 3333 has no tunnels.
        let is_tunnel = line.method == b"CONNECT";
        let response =
            response.or_else(|| is_tunnel.then(|| BuiltinResponse::not_implemented(&line)));
        let Some(response) = response else {
            return false;
        };
        self.send(conn, request, response);
        true
    }

    /// Responds with 503: over `--limit-concurrency`.
    pub fn refuse(&mut self, conn: &mut Conn<ConnState>, request: &Request) {
        let response = BuiltinResponse::overloaded(&request.line());
        self.send(conn, request, response);
    }

    fn send(&mut self, conn: &mut Conn<ConnState>, request: &Request, response: BuiltinResponse) {
        let client = client(conn, &origin(conn, request));
        let (line, fields) = (request.line(), request.fields());
        let begun = (&line, client, Instant::now());
        self.features.begin(&mut self.record, begun, fields);
        self.fields.refresh();
        let config = Arc::clone(conn.service());
        let added = self.fields.missing(&config.fields, |_| false);
        // Fails only if the client has disconnected.
        let _ = response.send(
            &mut self.features,
            &mut self.record,
            conn,
            request.stream,
            added,
        );
        self.features.end(&mut self.record, Instant::now());
    }
}

/// Client and scheme as trusted proxies have forwarded them.
fn origin(conn: &Conn<ConnState>, request: &Request) -> Origin {
    if !conn.has_proven_address() {
        return Origin::default();
    }
    let remote = conn.remote_addr().inet();
    let peer = remote.map_or(PeerIp::Unix, |address| PeerIp::Ip(address.ip()));
    conn.service().origin(peer, request.fields())
}

/// Address of the client: from the proxies, else from the socket.
fn client(conn: &Conn<ConnState>, origin: &Origin) -> Option<IpAddr> {
    let forwarded = origin.client.map(|(address, _)| address);
    forwarded.or_else(|| conn.remote_addr().inet().map(|address| address.ip()))
}
