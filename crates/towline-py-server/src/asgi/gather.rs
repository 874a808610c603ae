//! Output that is sent outside of a turn, and waits for that of other requests in the same iteration of the loop.
//!
//! Frameworks respond in tasks of their own (Django, Quart), and most applications after something they have awaited.
//! Flushed one by one, such responses wake a client that sleeps on another core once each, as `flush` explains.
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use towline_io::ConnId;

use super::state::{AsgiServer, Exchange};

/// As long as a turn.
const MAX_WAIT: Duration = Duration::from_micros(500);
/// As many connections as a turn has.
const MAX_CONNS: usize = 64;

/// The connections whose output waits.
#[derive(Default)]
pub struct Gathered {
    conns: Vec<ConnId>,
    /// When the first output was sent.
    since: Option<Instant>,
    /// When the last output was sent.
    last: Option<Instant>,
    /// `flush_gathered` is scheduled in the loop.
    is_scheduled: bool,
}

impl Gathered {
    /// Adds a connection. Returns whether all must be flushed now.
    fn add(&mut self, id: ConnId, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.last = Some(now);
        if self.conns.last() != Some(&id) {
            self.conns.push(id);
        }
        self.conns.len() == MAX_CONNS || now - since > MAX_WAIT
    }
}

impl AsgiServer {
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
            let is_scheduled = std::mem::replace(&mut gathered.is_scheduled, true);
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
            state.gathered.is_scheduled = false;
            if let Some(last) = state.gathered.last.take() {
                // A callback that computed for long after the output was sent has delayed it.
                state.eager_flush.record(last, Instant::now());
            }
        }
        self.flush_all(py)
    }

    fn flush_all(&self, py: Python<'_>) -> PyResult<()> {
        let mut conns = {
            let gathered = &mut self.state.open(py).gathered;
            gathered.since = None;
            std::mem::take(&mut gathered.conns)
        };
        if !self.process.is_current() {
            return Ok(());
        }
        let mut result = Ok(());
        for id in conns.drain(..) {
            result = result.and(self.flush_conn(py, id, None));
        }
        let gathered = &mut self.state.open(py).gathered;
        if gathered.conns.is_empty() {
            gathered.conns = conns;
        }
        result
    }
}
