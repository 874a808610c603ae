//! The end of an application: its response or WebSocket is completed or aborted, and the outcome is logged.
use std::fmt::Write;
use std::time::Instant;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::serve::features::Payload;
use towline_io::{Conn, Engine};
use towline_proto::BodySize;

use super::exchange::wake;
use super::exchange_state::{ClientState, ExchangeState, ResponsePhase};
use super::outcome;
use super::response::respond;
use super::state::{AsgiServer, ConnState, Exchange, ExchangeHandle, ServerFeatures};
use super::websocket::{self, Outcome, WsEnd};
use crate::log_level::{DEBUG, ERROR};
use towline_py_common::errors::CancelledError;

// Levels of the module `logging`.

/// Exchange handles kept for later requests.
const MAX_SPARE_HANDLES: usize = 64;

/// The state of the response when the application ended.
enum ResponseEnd {
    Complete,
    ClientDisconnected,
    /// A 500 was sent instead.
    Replaced,
    /// The connection was aborted, so that the part that was sent does not look complete.
    Aborted,
    /// The WebSocket was open and has been closed with this code.
    Closed(u16),
}

impl AsgiServer {
    /// Handles the end of an application, called with `scope`. An error that has to reach the task or the loop is returned.
    pub fn finish(
        &self,
        py: Python<'_>,
        handle: ExchangeHandle,
        outcome: PyResult<()>,
        scope: Option<Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let exchange = handle.exchange.get();
        let (end, has_left, task, waiters) = {
            let mut state = exchange.state.open(py);
            let end = match self.engine(py) {
                Ok(mut engine) => self
                    .end_websocket(py, &handle.exchange, &mut state, &mut engine, &outcome)
                    .unwrap_or_else(|| {
                        end_response(&mut state, &mut engine, &mut self.features.open(py))
                    }),
                Err(_) => ResponseEnd::ClientDisconnected,
            };
            if self.records_exchanges {
                let now = Instant::now();
                self.features.open(py).features.end(&mut state.record, now);
                self.state.open(py).clock = Some(now);
            }
            // A client that has closed its half is reported to the application as one that has left.
            let has_left = state.client != ClientState::Connected;
            (end, has_left, state.task.take(), state.take_waiters())
        };
        let registered = {
            let mut state = self.state.open(py);
            state.in_flight -= 1;
            if task.is_some() {
                state.running.remove(&(handle.exchange.as_ptr() as usize))
            } else {
                None
            }
        };
        drop((registered, task));
        wake(py, waiters)?;
        // In a turn the connection is flushed after its other pipelined requests.
        if !self.state.open(py).in_turn {
            self.flush(py, &handle);
        }
        self.resume_pipelined(py, exchange);
        let result = self.log_outcome(py, (&end, has_left), outcome, scope.as_ref());
        // The scope may refer to the functions of the handle.
        drop(scope);
        if handle.is_unshared(py) {
            let mut state = self.state.open(py);
            if state.spare_handles.len() < MAX_SPARE_HANDLES {
                state.spare_handles.push(handle);
            }
        }
        result
    }

    /// `None`: the exchange has a response.
    fn end_websocket(
        &self,
        py: Python<'_>,
        exchange: &Py<Exchange>,
        state: &mut ExchangeState,
        engine: &mut Engine<ConnState>,
        outcome: &PyResult<()>,
    ) -> Option<ResponseEnd> {
        // The session itself stays until the exchange is reused.
        state.websocket.as_mut()?.gauge = None;
        let outcome = match outcome {
            Ok(()) => Outcome::Returned,
            Err(_) if self.state.open(py).cancelling => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        let with = (&mut *self.ws_context.open(py), engine);
        Some(match websocket::end(py, exchange, state, with, outcome)? {
            WsEnd::Closed => ResponseEnd::Complete,
            WsEnd::ClientDisconnected => ResponseEnd::ClientDisconnected,
            WsEnd::ClosedWith(code) => ResponseEnd::Closed(code),
        })
    }

    /// Queues the connection for service if it may have a pipelined request after the completed response.
    fn resume_pipelined(&self, py: Python<'_>, exchange: &Exchange) {
        let id = exchange.state.open(py).id;
        if self.state.open(py).in_turn {
            // The service of the connection continues with the next event.
            return;
        }
        if let Ok(mut engine) = self.engine(py)
            && engine.conn(id).is_some_and(has_more)
        {
            engine.requeue(id);
        }
    }

    /// Logs the end of an application. Returns the errors that have to reach the task or the loop.
    fn log_outcome(
        &self,
        py: Python<'_>,
        (end, has_left): (&ResponseEnd, bool),
        outcome: PyResult<()>,
        scope: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let has_left = has_left || matches!(end, ResponseEnd::ClientDisconnected);
        let error = match outcome {
            Ok(()) => {
                self.log_return(py, (end, has_left), scope);
                return Ok(());
            }
            Err(error) => error,
        };
        // A worker ignores SIGINT, so there the application has raised it, and other requests must not pay for
        // that: it is logged as any exception, as `SystemExit` is. In an embedding program it may be Ctrl-C.
        if !self.is_worker && error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(error);
        }
        if error.is_instance_of::<CancelledError>(py) {
            if !matches!(end, ResponseEnd::Complete | ResponseEnd::ClientDisconnected)
                && !self.state.open(py).cancelling
            {
                let request = scope.map(|scope| self.describe(py, scope));
                let text = message("ASGI application was cancelled", end, request.as_deref());
                self.log(py, ERROR, &text, None);
            }
            return Err(error);
        }
        if outcome::is_disconnect(&error, py, has_left) {
            self.log_disconnect(py, scope);
            return Ok(());
        }
        let request = scope.map(|scope| self.describe(py, scope));
        let text = message("Exception in ASGI application", end, request.as_deref());
        self.log(py, ERROR, &text, Some(error));
        Ok(())
    }

    fn log_return(
        &self,
        py: Python<'_>,
        (end, has_left): (&ResponseEnd, bool),
        scope: Option<&Bound<'_, PyDict>>,
    ) {
        let text = match end {
            ResponseEnd::Complete | ResponseEnd::Closed(_) => return,
            _ if has_left => return self.log_disconnect(py, scope),
            ResponseEnd::ClientDisconnected => return,
            ResponseEnd::Replaced => "ASGI application returned without starting its response",
            ResponseEnd::Aborted => "ASGI application returned without completing its response",
        };
        let request = scope.map(|scope| self.describe(py, scope));
        self.log(py, ERROR, &message(text, end, request.as_deref()), None);
    }

    /// The request of a scope, for a log line.
    fn describe(&self, py: Python<'_>, scope: &Bound<'_, PyDict>) -> String {
        let name = self.features.open(py).features.config().request_id.clone();
        outcome::describe(scope, name.as_deref())
    }

    /// One line at the level DEBUG, however the framework has ended.
    fn log_disconnect(&self, py: Python<'_>, scope: Option<&Bound<'_, PyDict>>) {
        let mut text = "client disconnected".to_owned();
        if let Some(scope) = scope {
            let _ = write!(text, ": {}", self.describe(py, scope));
        }
        self.log(py, DEBUG, &text, None);
    }
}

/// `what: responded with 500: GET /path from 192.0.2.1:50000`
fn message(what: &str, end: &ResponseEnd, request: Option<&str>) -> String {
    let detail = match end {
        ResponseEnd::Complete => "",
        ResponseEnd::ClientDisconnected => " (the client has disconnected)",
        ResponseEnd::Replaced => ": responded with 500",
        ResponseEnd::Aborted => ": connection aborted",
        ResponseEnd::Closed(code) => &format!(": WebSocket closed with {code}"),
    };
    match request {
        Some(request) => format!("{what}{detail}: {request}"),
        None => format!("{what}{detail}"),
    }
}

/// Whether a connection has events after one of its exchanges has ended. While it has other exchanges it is
/// never idle.
fn has_more(conn: &mut Conn<ConnState>) -> bool {
    if conn.state.exchanges.is_empty() {
        !conn.proto.is_idle()
    } else {
        conn.proto.has_events()
    }
}

fn end_response(
    state: &mut ExchangeState,
    engine: &mut Engine<ConnState>,
    features: &mut ServerFeatures,
) -> ResponseEnd {
    let Some(conn) = engine.conn(state.id) else {
        state.client = ClientState::Disconnected;
        return ResponseEnd::ClientDisconnected;
    };
    let refused = if state.response == ResponsePhase::Complete {
        None
    } else {
        conn.refused(state.stream)
    };
    // Other references to the exchange exist, so nothing is deallocated here.
    drop(conn.state.exchanges.remove(state.stream));
    conn.release_stream(state.stream);
    if state.response == ResponsePhase::Complete {
        // A file may still be being sent; the engine completes it.
        return ResponseEnd::Complete;
    }
    if let Some((status, refused)) = refused {
        features
            .features
            .refused(&mut state.record, status, refused);
    }
    if state.client == ClientState::Disconnected {
        return ResponseEnd::ClientDisconnected;
    }
    state.dirty = true;
    if matches!(
        state.response,
        ResponsePhase::Idle | ResponsePhase::HeadPending
    ) {
        const BODY: &[u8] = b"Internal Server Error";
        state.head.clear();
        state.head.status = 500;
        state
            .head
            .push(b"content-type", b"text/plain; charset=utf-8");
        let answered = respond(
            state,
            conn,
            features,
            BodySize::Known(BODY.len() as u64),
            Payload::File,
        );
        state.response = ResponsePhase::Complete;
        if answered.is_ok()
            && let Ok(mut stream) = conn.proto.stream(state.stream)
            && features
                .features
                .write(&mut state.record, &mut stream, BODY)
                .is_ok()
            && stream.finish().is_ok()
        {
            return ResponseEnd::Replaced;
        }
    }
    state.response = ResponsePhase::Complete;
    if let Ok(mut stream) = conn.proto.stream(state.stream) {
        if stream.body_left() == Some(0) && stream.finish().is_ok() {
            // Everything that was announced is sent, so that another request may follow on the connection.
            return ResponseEnd::Complete;
        }
        stream.reset();
    }
    ResponseEnd::Aborted
}
