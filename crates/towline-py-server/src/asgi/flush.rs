//! When the output of a connection is flushed.
//!
//! A wake-up of a client that sleeps on another core costs several times as much as a response. So output waits,
//! where it may, for that of the other requests of the turn, and outside of a turn (`gather`) of the loop's iteration.
use std::time::Instant;

use pyo3::intern;
use pyo3::prelude::*;
use towline_io::{Conn, ConnId};

use super::exchange_state::ResponsePhase;
use super::state::{AsgiServer, ConnState, Exchange, ExchangeHandle};

/// Takes the exchanges on `conn` whose file has been sent since the last call.
pub fn take_sent_files(py: Python<'_>, conn: &mut Conn<ConnState>) -> Vec<Py<Exchange>> {
    if !conn.take_file_ended() {
        return Vec::new();
    }
    let exchanges = conn.state.exchanges.iter();
    exchanges
        .filter(|(stream, _)| !conn.is_sending_file(*stream))
        .map(|(_, exchange)| exchange.clone_ref(py))
        .collect()
}

pub fn notify_files_sent(py: Python<'_>, sent: &[Py<Exchange>]) -> PyResult<()> {
    sent.iter()
        .try_for_each(|exchange| exchange.get().on_file_sent(py))
}

impl AsgiServer {
    /// Flushes after a step.
    pub fn flush(&self, py: Python<'_>, handle: &ExchangeHandle) {
        let exchange = handle.exchange.get();
        if exchange.state.open(py).dirty {
            self.flush_or_gather(py, exchange);
        }
    }

    /// Flushes after a step, unless the output may wait: in a turn with other requests or connections it waits for
    /// theirs, as a complete response does.
    pub fn flush_suspended(&self, py: Python<'_>, handle: &ExchangeHandle) {
        let (has_other_conns, is_eager) = {
            let state = self.state.open(py);
            (
                state.has_other_conns,
                state.eager_flush.is_on() || !state.in_turn,
            )
        };
        let waits = !is_eager && (has_other_conns || self.has_events(py, handle.exchange.get()));
        if !waits {
            self.flush(py, handle);
        }
    }

    /// Whether the connection of `exchange` has more events in this turn.
    fn has_events(&self, py: Python<'_>, exchange: &Exchange) -> bool {
        let id = exchange.state.open(py).id;
        let engine = self.engine(py).ok();
        engine.is_some_and(|mut engine| {
            let conn = engine.conn(id);
            conn.is_some_and(|conn| conn.proto.has_events())
        })
    }

    /// Flushes after reading, unless a step is under way, which flushes at its end.
    pub fn flush_outside_step(&self, py: Python<'_>, exchange: &Bound<'_, Exchange>) {
        let (stepped, dirty) = (
            self.state.open(py).stepped,
            exchange.get().state.open(py).dirty,
        );
        if dirty && stepped != exchange.as_ptr() as usize {
            self.flush_and_rearm(py, exchange.get());
        }
    }

    /// Flushes after sending a part of `bytes` that is not the last, unless it may wait for the parts after it; see
    /// [`PartBatch`](super::part_batch::PartBatch).
    pub fn flush_part_or_batch(
        &self,
        py: Python<'_>,
        exchange: &Bound<'_, Exchange>,
        bytes: usize,
    ) {
        let is_batchable = {
            let state = self.state.open(py);
            // Outside its step nothing would flush it.
            state.stepped == exchange.as_ptr() as usize && !state.eager_flush.is_on()
        };
        let state = &exchange.get().state;
        if is_batchable && state.open(py).parts.must_wait(bytes, Instant::now()) {
            return;
        }
        self.flush_part(py, exchange);
        state.open(py).parts.sent(Instant::now());
    }

    /// Flushes after sending. A complete response or a message waits for the other connections of the turn, if there are
    /// any and `EagerFlush` is off; any response waits for a pipelined request that is already in the buffer. A part
    /// of a response is sent now, because the application may run for long before it suspends. The last part waits for
    /// trailers that are due (gRPC), at most until the application suspends.
    pub fn flush_part(&self, py: Python<'_>, exchange: &Bound<'_, Exchange>) {
        let (is_stepped, may_wait) = {
            let state = self.state.open(py);
            let is_stepped = state.stepped == exchange.as_ptr() as usize;
            (
                is_stepped,
                is_stepped && state.in_turn && state.has_other_conns && !state.eager_flush.is_on(),
            )
        };
        if is_stepped {
            let state = exchange.get().state.open(py);
            let waits = match state.response {
                ResponsePhase::Complete | ResponsePhase::Switched => may_wait,
                phase => phase == ResponsePhase::Trailers,
            };
            if waits {
                return;
            }
            let Ok(mut engine) = self.engine(py) else {
                return;
            };
            let Some(conn) = engine.conn(state.id) else {
                return;
            };
            if conn.proto.has_events() {
                return;
            }
        }
        self.flush_or_gather(py, exchange.get());
    }

    /// Flushes the connection and returns it to the engine.
    pub fn flush_and_rearm(&self, py: Python<'_>, exchange: &Exchange) {
        if !self.process.is_current() {
            // A child must not write to the connection of its parent.
            return;
        }
        let id = {
            let mut state = exchange.state.open(py);
            state.dirty = false;
            state.id
        };
        if let Err(error) = self.flush_conn(py, id, Some(exchange)) {
            error.write_unraisable(py, None);
        }
    }

    /// Flushes a connection, and tells its exchanges what follows from that: `exchange`, and those that run.
    pub fn flush_conn(
        &self,
        py: Python<'_>,
        id: ConnId,
        exchange: Option<&Exchange>,
    ) -> PyResult<()> {
        let sent = {
            let Ok(mut engine) = self.engine(py) else {
                return Ok(());
            };
            engine.flush_and_rearm(id);
            engine.conn(id).map(|conn| take_sent_files(py, conn))
        };
        match sent {
            Some(sent) => notify_files_sent(py, &sent),
            None => self.on_connection_closed(py, id, exchange),
        }
    }

    /// Notifies all exchanges of a connection that has closed during a flush, which no event will report.
    fn on_connection_closed(
        &self,
        py: Python<'_>,
        id: ConnId,
        exchange: Option<&Exchange>,
    ) -> PyResult<()> {
        let mut waiters = exchange.map_or_else(Vec::new, |exchange| exchange.mark_disconnected(py));
        for other in self.running(py) {
            if other.get().state.open(py).id == id {
                waiters.append(&mut other.get().mark_disconnected(py));
            }
        }
        self.wake_disconnected(py, waiters)
    }

    /// Flushes what a request has sent. Outside of a turn the output waits for that of other requests, if there are any.
    pub fn flush_or_gather(&self, py: Python<'_>, exchange: &Exchange) {
        let waits = {
            let state = self.state.open(py);
            !state.in_turn && state.in_flight > 1 && !state.eager_flush.is_on()
        };
        if !waits || !self.process.is_current() {
            return self.flush_and_rearm(py, exchange);
        }
        let (is_full, is_scheduled) = {
            let mut state = exchange.state.open(py);
            state.dirty = false;
            let gathered = &mut self.state.open(py).gathered;
            let is_scheduled = gathered.schedule();
            (gathered.add(state.id, Instant::now()), is_scheduled)
        };
        let mut result = Ok(());
        if !is_scheduled {
            result = self.schedule_flush(exchange.server.bind(py));
        }
        if is_full {
            result = result.and(self.flush_all(py));
        }
        if let Err(error) = result {
            error.write_unraisable(py, None);
        }
    }

    /// Has the loop flush in its next iteration.
    fn schedule_flush(&self, server: &Bound<'_, Self>) -> PyResult<()> {
        let py = server.py();
        let method = server.getattr(intern!(py, "flush_gathered"))?;
        let event_loop = self.event_loop.bind(py);
        event_loop.call_method1(intern!(py, "call_soon"), (method,))?;
        Ok(())
    }

    /// Flushes in the iteration after the output was sent.
    pub fn flush_gathered(&self, py: Python<'_>) -> PyResult<()> {
        {
            let mut state = self.state.open(py);
            if let Some(last) = state.gathered.begin_scheduled() {
                // A callback that computed for long after the output was sent has delayed it.
                state.eager_flush.record(last, Instant::now());
            }
        }
        self.flush_all(py)
    }

    fn flush_all(&self, py: Python<'_>) -> PyResult<()> {
        let mut conns = self.state.open(py).gathered.take();
        if !self.process.is_current() {
            return Ok(());
        }
        let mut result = Ok(());
        for id in conns.drain(..) {
            result = result.and(self.flush_conn(py, id, None));
        }
        self.state.open(py).gathered.recycle(conns);
        result
    }
}
