//! One turn: the events of every ready connection, and the requests among them.
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::forwarded::Hop;
use towline_io::serve::site::{OwnAnswer, RequestLine};
use towline_io::{ConnId, Peer, PeerAddr};
use towline_proto::{Event, HeadRef, StreamId};

use super::exchange::{Client, Exchange, wake};
use super::run::{self, Served};
use super::scope::{Ends, Tls};
use super::server::{AsgiServer, ConnState, Extras, Pool, files_sent, tell_files_sent};
use super::wake_queue::{Cause, WOKEN_PER_TURN};
use super::websocket::{self, Asked, Session};
use crate::server::setup::NOT_AT_ALL;

/// Pipelined requests of one connection before the others have their turn.
const REQUESTS_PER_VISIT: usize = 16;

/// One that has suspended counts as so many: its task is made, and runs behind the turn for the first time.
const SUSPENDED_FOR_WOKEN: usize = 4;

/// Events without a request after which the clock is read, as it is after each request.
const EVENTS_PER_LOOK: usize = 16;

pub fn turn(server: &Bound<'_, AsgiServer>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    if std::mem::replace(&mut this.pool.open(py).in_turn, true) {
        // An application runs the loop inside the loop: the outer turn goes on when it returns.
        return Ok(());
    }
    let result = turn_inside(server);
    let ended = run::end_loan(this, py);
    this.pool.open(py).in_turn = false;
    if let Ok(mut engine) = this.engine(py) {
        engine.turn_end();
    }
    result.and(ended)
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
        this.say(py, 30, &notice.to_string(), None);
    }
    let mut result = this.wake_sleepers(py);
    let mut visited = std::mem::take(&mut this.pool.open(py).visited);
    result = result.and(visit_all(server, &mut visited));
    for id in visited.drain(..) {
        let settled = settle(server, id);
        result = result.and(settled);
    }
    this.pool.open(py).visited = visited;
    result
}

/// Visits every connection that is ready, up to the bounds of a turn. Their answers leave together
/// afterwards: a client that sleeps between two of them is woken for each, and a wake-up on another core
/// costs several times what an answer does (with Starlette 30 to 17 microseconds of CPU a request).
fn visit_all(server: &Bound<'_, AsgiServer>, visited: &mut Vec<ConnId>) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let mut before = this.engine(py)?.clock();
    this.pool.open(py).haste.expire(before);
    loop {
        let (next, now, more) = {
            let mut engine = this.engine(py)?;
            // Whoever is in line now has been visited: there may be others, and nobody has looked.
            let is_over = !engine.has_unvisited() && this.pool.open(py).has_left_enough();
            let next = if is_over { None } else { engine.next_ready() };
            if next.is_none() {
                engine.refresh_clock();
            }
            (next, engine.clock(), engine.has_ready())
        };
        {
            let mut pool = this.pool.open(py);
            pool.haste.note(before, now);
            pool.clock = Some(now);
            pool.in_company = more || !visited.is_empty();
        }
        before = now;
        let Some(id) = next else {
            return Ok(());
        };
        visited.push(id);
        visit(server, id)?;
    }
}

/// What an event asks for, once the engine has been given back.
enum Next<'py> {
    Request(Request<'py>),
    /// The exchange, and what happened to it.
    News(Py<Exchange>, News),
    /// The connection is over, and these exchanges with it.
    Lost(Vec<Py<Exchange>>),
    /// A clock of these exchanges may have run out.
    Due(Vec<Py<Exchange>>),
    /// Nothing for Python.
    Seen,
}

pub struct Request<'py> {
    pub id: ConnId,
    pub stream: StreamId,
    pub scope: Bound<'py, PyDict>,
    pub head_only: bool,
    pub websocket: Option<Box<Session>>,
}

/// What happened to an exchange.
#[derive(Debug, Clone, Copy)]
pub enum News {
    Readable,
    Writable,
    HalfClosed,
    Gone,
}

/// Everything that has happened on one connection.
fn visit(server: &Bound<'_, AsgiServer>, id: ConnId) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let (mut requests, mut unlooked) = (0, 0);
    loop {
        let mut is_over = requests == REQUESTS_PER_VISIT;
        if unlooked >= EVENTS_PER_LOOK {
            unlooked = 0;
            let has_left_enough = this.pool.open(py).has_left_enough();
            let mut engine = this.engine(py)?;
            is_over |= (has_left_enough || engine.is_visit_over())
                && engine.peer(id).is_some_and(|peer| peer.conn.has_events());
        }
        if is_over {
            this.engine(py)?.revisit(id);
            break Ok(());
        }
        let next = match next(server, id) {
            Ok(next) => next,
            Err(error) => {
                // Out of memory, or a finaliser in our way: this connection ends, the others go on.
                this.say(
                    py,
                    40,
                    "cannot read a request: connection closed",
                    Some(error),
                );
                this.engine(py)?.abort(id);
                break Ok(());
            }
        };
        unlooked += match &next {
            Some(Next::Request(_)) => EVENTS_PER_LOOK,
            _ => 1,
        };
        match next {
            None => break Ok(()),
            Some(Next::Seen) => {}
            Some(Next::News(exchange, news)) => {
                run::end_loan(this, py)?;
                tell(this, py, &exchange, news)?;
            }
            Some(Next::Lost(exchanges)) => {
                run::end_loan(this, py)?;
                for exchange in exchanges {
                    tell(this, py, &exchange, News::Gone)?;
                }
            }
            Some(Next::Due(exchanges)) => {
                run::end_loan(this, py)?;
                websocket::tick(this, py, exchanges)?;
            }
            Some(Next::Request(request)) => {
                requests += 1;
                match run::serve(server, request) {
                    Ok(Served::Ended) => {}
                    Ok(Served::Suspended) => this.pool.open(py).suspended += SUSPENDED_FOR_WOKEN,
                    Err(error) => break Err(error),
                }
            }
        }
    }
}

/// After a visit: sends, and tells the exchanges whose file has gone out.
fn settle(server: &Bound<'_, AsgiServer>, id: ConnId) -> PyResult<()> {
    let py = server.py();
    let this = server.get();
    let sent = {
        let mut engine = this.engine(py)?;
        engine.settle(id);
        engine.peer(id).map(|peer| files_sent(py, peer))
    };
    tell_files_sent(py, &sent.unwrap_or_default())
}

fn next<'py>(server: &Bound<'py, AsgiServer>, id: ConnId) -> PyResult<Option<Next<'py>>> {
    let py = server.py();
    let this = server.get();
    let mut engine = this.engine(py)?;
    let Some(peer) = engine.peer(id) else {
        return Ok(None);
    };
    // Not kept before there is a head: until then a handshake or a PROXY header may be under way.
    let news_ends = peer.state.ends.is_none();
    if news_ends {
        peer.state.ends = Some(ends(py, this, peer)?);
    }
    let facts = Facts {
        hop: hop(peer.remote_addr()),
        metrics_only: peer.service().metrics_only,
    };
    let due = peer.is_due();
    let Peer { conn, state, .. } = &mut *peer;
    let about = |state: &ConnState, stream, news| match state.exchanges.get(stream) {
        Some(exchange) => Next::News(exchange.clone_ref(py), news),
        None => Next::Seen,
    };
    let all = |state: &ConnState| {
        let exchanges = state.exchanges.iter();
        exchanges
            .map(|(_, exchange)| exchange.clone_ref(py))
            .collect()
    };
    let next = match conn.next_event() {
        // Its clocks come last: what has just arrived may be what they wait for.
        None => due.then(|| Next::Due(all(state))),
        Some(Event::Head { stream, head, .. }) => {
            return match begin(this, py, &head, state, &facts)? {
                Begun::Call(scope, websocket) => {
                    let head_only = head.method() == b"HEAD";
                    Ok(Some(Next::Request(Request {
                        id,
                        stream,
                        scope,
                        head_only,
                        websocket,
                    })))
                }
                Begun::Answer(answer) => {
                    this.answer(py, peer, stream, *answer);
                    Ok(Some(Next::Seen))
                }
            };
        }
        Some(Event::Readable(stream)) => Some(about(state, stream, News::Readable)),
        Some(Event::Writable(stream)) => Some(about(state, stream, News::Writable)),
        Some(Event::HalfClosed(stream)) => Some(about(state, stream, News::HalfClosed)),
        Some(Event::Failed(stream, _)) => {
            let news = about(state, stream, News::Gone);
            if matches!(news, Next::Seen) {
                // No application is at work on it.
                peer.let_go(stream);
            }
            return Ok(Some(news));
        }
        Some(Event::Closed(_)) => Some(Next::Lost(all(state))),
        Some(Event::Informational { .. } | Event::Switched { .. } | Event::GoingAway { .. }) => {
            Some(Next::Seen)
        }
    };
    if news_ends {
        state.ends = None;
    }
    if matches!(next, Some(Next::Due(_))) {
        peer.clear_due();
    }
    Ok(next)
}

/// What is known of a connection without its wire.
struct Facts {
    hop: Hop,
    metrics_only: bool,
}

/// What becomes of a head.
enum Begun<'py> {
    Call(Bound<'py, PyDict>, Option<Box<Session>>),
    Answer(Box<OwnAnswer>),
}

fn begin<'py>(
    server: &AsgiServer,
    py: Python<'py>,
    head: &HeadRef<'_>,
    state: &ConnState,
    facts: &Facts,
) -> PyResult<Begun<'py>> {
    let mut pool = server.pool.open(py);
    let extras = server.extras.open(py);
    let line = RequestLine::of(head);
    let origin = extras.site.origin(facts.hop, head.fields());
    let answer = extras
        .site
        .own_answer(&line, head.fields(), facts.metrics_only);
    let (answer, websocket) = match answer {
        Some(answer) => (Some(answer), None),
        None => match websocket::asked(&server.sockets.open(py), head) {
            Asked::Plain => (None, None),
            Asked::WebSocket(session) => (None, Some(session)),
            Asked::Refused(answer) => (Some(*answer), None),
        },
    };
    let answer = answer.or_else(|| {
        let overloaded = pool.in_flight >= server.limit_concurrency;
        overloaded.then(OwnAnswer::overloaded)
    });
    if server.watching {
        let client = origin
            .client
            .map(|(address, _)| address)
            .or(match facts.hop {
                Hop::Ip(address) => Some(address),
                Hop::Unix => None,
            });
        let now = pool.clock.unwrap_or_else(Instant::now);
        extras
            .site
            .begin(&mut pool.visit, (&line, client, now), head.fields());
    }
    pool.requests += 1;
    if let Some(answer) = answer {
        return Ok(Begun::Answer(Box::new(answer)));
    }
    // A collection may run finalisers while the scope is made: they find these cells closed.
    drop((pool, extras));
    let ends = state
        .ends
        .as_ref()
        .ok_or_else(|| PyRuntimeError::new_err("a head on a connection without ends"))?;
    let scope = server.scopes.build(py, head, ends, &origin)?;
    if let Some(session) = &websocket {
        session.adapt(&scope)?;
    }
    server.pool.open(py).in_flight += 1;
    Ok(Begun::Call(scope, websocket))
}

impl AsgiServer {
    /// Static files, the metrics page, and 503 over the limit.
    fn answer(
        &self,
        py: Python<'_>,
        peer: &mut Peer<ConnState>,
        stream: StreamId,
        answer: OwnAnswer,
    ) {
        let visit = &mut self.pool.open(py).visit;
        let Extras { fields, site } = &mut *self.extras.open(py);
        fields.refresh();
        // A refusal is about a client that has gone meanwhile.
        let _ = answer.send(site, visit, peer, stream, fields.missing(|_| false));
        site.end(visit, Instant::now());
    }
}

fn tell(server: &AsgiServer, py: Python<'_>, exchange: &Py<Exchange>, news: News) -> PyResult<()> {
    let cause = match news {
        News::Gone => Cause::Loss,
        _ => Cause::News,
    };
    if let Some(waiters) = websocket::tell(py, exchange, news)? {
        return server.wake_soon(py, waiters, cause);
    }
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
    server.wake_soon(py, waiters, cause)
}

impl Pool {
    /// What this turn has left for the loop to run behind it is as much as others may have to wait for: a connection
    /// with more to do than one request goes to the end of the line.
    fn has_left_enough(&self) -> bool {
        self.woken + self.suspended >= WOKEN_PER_TURN
    }
}

impl AsgiServer {
    /// Wakes all who wait on an exchange that has lost its client.
    pub fn wake_lost(&self, py: Python<'_>, waiters: Vec<Py<PyAny>>) -> PyResult<()> {
        self.wake_soon(py, waiters, Cause::Loss)
    }

    /// Wakes those who wait, in this turn or, behind others, in one of the next.
    fn wake_soon(&self, py: Python<'_>, waiters: Vec<Py<PyAny>>, cause: Cause) -> PyResult<()> {
        if waiters.is_empty() {
            return Ok(());
        }
        let is_now = {
            let mut pool = self.pool.open(py);
            pool.woken += waiters.len() * cause.cost();
            pool.in_turn && pool.sleepers.has_none_before(cause) && pool.woken <= WOKEN_PER_TURN
        };
        if is_now {
            return wake(py, waiters);
        }
        self.pool.open(py).sleepers.add(waiters, cause);
        self.engine(py).map(|mut engine| engine.rearm())
    }

    /// Those whom earlier turns have left, as many as one may wake.
    fn wake_sleepers(&self, py: Python<'_>) -> PyResult<()> {
        let (waiters, is_all) = {
            let mut pool = self.pool.open(py);
            let (waiters, cost) = pool.sleepers.take();
            (pool.woken, pool.suspended) = (cost, 0);
            (waiters, pool.sleepers.is_empty())
        };
        let woken = wake(py, waiters);
        if !is_all {
            self.engine(py)?.rearm();
        }
        woken
    }
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
