//! One turn: the events of every ready connection, and the requests among them.
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::forwarded::{self, Hop, Kind, Scheme};
use towline_io::{ConnId, Peer, PeerAddr};
use towline_proto::{Event, HeadRef, StreamId};

use super::exchange::{Client, Exchange, wake};
use super::run;
use super::scope::{Ends, Origin, Tls};
use super::server::{AsgiServer, ConnState};
use crate::server::overload::overloaded;
use crate::server::setup::NOT_AT_ALL;

/// Pipelined requests of one connection before the others have their turn.
const REQUESTS_PER_VISIT: usize = 16;

pub fn turn(server: &Bound<'_, AsgiServer>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    if std::mem::replace(&mut this.pool.open(py).in_turn, true) {
        // An application runs the loop inside the loop: the outer turn goes on when it returns.
        return Ok(());
    }
    let result = turn_inside(server);
    this.pool.open(py).in_turn = false;
    if let Ok(mut engine) = this.engine(py) {
        engine.turn_end();
    }
    result
}

fn turn_inside(server: &Bound<'_, AsgiServer>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let notice = {
        let mut engine = this.engine(py)?;
        engine.turn_start(NOT_AT_ALL)?;
        engine.take_notice()
    };
    if let Some(notice) = notice {
        this.say(
            py,
            30,
            &format!("cannot accept connections: {notice:?}"),
            None,
        );
    }
    loop {
        let Some(id) = this.engine(py)?.next_ready() else {
            return Ok(());
        };
        visit(server, id)?;
    }
}

/// What an event asks for, once the engine has been given back.
enum Next<'py> {
    Request(Request<'py>),
    /// The exchange, and what happened to it.
    News(Py<Exchange>, News),
    /// Nothing for Python.
    Seen,
}

pub struct Request<'py> {
    pub id: ConnId,
    pub stream: StreamId,
    pub scope: Bound<'py, PyDict>,
    pub head_only: bool,
}

#[derive(Debug, Clone, Copy)]
enum News {
    Readable,
    Writable,
    HalfClosed,
    Gone,
}

/// Everything that has happened on one connection.
fn visit(server: &Bound<'_, AsgiServer>, id: ConnId) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let mut requests = 0;
    let result = loop {
        if requests == REQUESTS_PER_VISIT {
            this.engine(py)?.revisit(id);
            break Ok(());
        }
        match next(server, id)? {
            None => break Ok(()),
            Some(Next::Seen) => {}
            Some(Next::News(exchange, news)) => tell(py, &exchange, news)?,
            Some(Next::Request(request)) => {
                requests += 1;
                if let Err(error) = run::serve(server, request) {
                    break Err(error);
                }
            }
        }
    };
    let file_sent = {
        let mut engine = this.engine(py)?;
        engine.settle(id);
        match engine.peer(id) {
            Some(peer) if !peer.is_sending_file() => peer
                .state
                .exchange
                .as_ref()
                .map(|exchange| exchange.clone_ref(py)),
            _ => None,
        }
    };
    if let Some(exchange) = file_sent {
        exchange.get().file_sent(py)?;
    }
    result
}

fn next<'py>(server: &Bound<'py, AsgiServer>, id: ConnId) -> PyResult<Option<Next<'py>>> {
    let py = server.py();
    let this = server.get();
    let mut engine = this.engine(py)?;
    let Some(peer) = engine.peer(id) else {
        return Ok(None);
    };
    if peer.state.ends.is_none() {
        peer.state.ends = Some(ends(py, this, peer)?);
    }
    let hop = this.trusted.as_ref().map(|_| hop(peer.remote_addr()));
    let Peer { conn, state, .. } = peer;
    let about = |state: &ConnState, news| match &state.exchange {
        Some(exchange) => Next::News(exchange.clone_ref(py), news),
        None => Next::Seen,
    };
    Ok(Some(match conn.next_event() {
        None => return Ok(None),
        Some(Event::Head { stream, head, .. }) => {
            let mut pool = this.pool.open(py);
            if pool.in_flight >= this.limit_concurrency {
                let _ = overloaded(conn, stream, &mut this.fields.open(py));
                return Ok(Some(Next::Seen));
            }
            pool.in_flight += 1;
            pool.requests += 1;
            drop(pool);
            let origin = origin(this, hop, &head);
            let Some(ends) = &state.ends else {
                return Ok(None);
            };
            let scope = this.scopes.build(py, &head, ends, &origin)?;
            Next::Request(Request {
                id,
                stream,
                scope,
                head_only: head.method() == b"HEAD",
            })
        }
        Some(Event::Readable(_)) => about(state, News::Readable),
        Some(Event::Writable(_)) => about(state, News::Writable),
        Some(Event::HalfClosed(_)) => about(state, News::HalfClosed),
        Some(Event::Failed(..) | Event::Closed(_)) => about(state, News::Gone),
        Some(Event::Informational { .. } | Event::Switched { .. } | Event::GoingAway { .. }) => {
            Next::Seen
        }
    }))
}

fn tell(py: Python<'_>, exchange: &Py<Exchange>, news: News) -> PyResult<()> {
    let exchange = exchange.get();
    let waiters = match news {
        News::Gone => exchange.lose(py),
        News::Readable => exchange.state.open(py).take_receivers(),
        News::Writable => exchange.state.open(py).take_senders(),
        News::HalfClosed => {
            let mut state = exchange.state.open(py);
            if state.client == Client::Present {
                state.client = Client::HalfClosed;
            }
            state.take_receivers()
        }
    };
    wake(py, waiters)
}

fn ends(py: Python<'_>, server: &AsgiServer, peer: &Peer<ConnState>) -> PyResult<Ends> {
    let tls = peer.is_tls().then(|| Tls {
        info: peer.tls(),
        server_cert: server.server_cert.as_deref(),
    });
    Ends::new(py, peer.remote_addr(), peer.local_addr(), tls)
}

fn hop(remote: &PeerAddr) -> Hop {
    match remote {
        PeerAddr::Inet(address) => Hop::Ip(address.ip()),
        PeerAddr::Unix(_) | PeerAddr::None => Hop::Unix,
    }
}

fn origin(server: &AsgiServer, hop: Option<Hop>, head: &HeadRef<'_>) -> Origin {
    let (Some(trusted), Some(hop)) = (&server.trusted, hop) else {
        return Origin::default();
    };
    let fields = head.fields().map(|field| (field.name, field.value));
    let said = forwarded::resolve(trusted, Kind::XForwarded, hop, fields);
    Origin {
        client: said.client,
        https: said.scheme.map(|scheme| scheme == Scheme::Https),
    }
}

/// When a request began.
pub fn now() -> Instant {
    Instant::now()
}
