//! Requests that the server answers without the application: static files, the metrics page, 503 over
//! the limit, and 501 to CONNECT.
use std::time::Instant;

use towline_io::Peer;
use towline_io::serve::site::{OwnAnswer, Site, Visit};

use super::app_runner::Application;
use super::client_info::Origin;
use super::request::{ConnState, Request};
use crate::server::default_headers::DefaultFields;

/// What the thread with the engine keeps for them.
pub struct Own {
    fields: DefaultFields,
    site: Site,
    visit: Visit,
}

impl Own {
    pub fn new(application: &Application) -> Self {
        Self {
            fields: DefaultFields::new(&application.options),
            site: Site::new(application.rules.clone()),
            visit: Visit::default(),
        }
    }

    /// True: the request was none of the application's.
    pub fn answer(&mut self, peer: &mut Peer<ConnState>, request: &Request) -> bool {
        let (line, fields) = (request.head.line(), request.head.fields());
        let metrics_only = peer.service().metrics_only;
        let answer = if line.method == b"CONNECT" {
            // Raw bytes both ways have no place in PEP 3333.
            Some(OwnAnswer::not_implemented())
        } else {
            self.site.own_answer(&line, fields, metrics_only)
        };
        let Some(answer) = answer else {
            return false;
        };
        self.send(peer, request, answer);
        true
    }

    /// Over `--limit-concurrency`.
    pub fn refuse(&mut self, peer: &mut Peer<ConnState>, request: &Request) {
        self.send(peer, request, OwnAnswer::overloaded());
    }

    fn send(&mut self, peer: &mut Peer<ConnState>, request: &Request, answer: OwnAnswer) {
        let trusted = self.site.rules().trusted.as_ref();
        let client = Origin::of(peer, &request.head, trusted).remote;
        let client = client.map(|address| address.ip());
        let (line, fields) = (request.head.line(), request.head.fields());
        let since = (&line, client, Instant::now());
        self.site.begin(&mut self.visit, since, fields);
        self.fields.refresh();
        let added = self.fields.missing(|_| false);
        // An error is a client that has left.
        let _ = answer.send(&mut self.site, &mut self.visit, peer, request.stream, added);
        self.site.end(&mut self.visit, Instant::now());
    }
}
