//! One thread: the application runs in the turn that read its request.
//!
//! The GIL is released once per turn, around the poll, and kept for all requests of the turn: a request costs
//! one recv, one call and one send, and no hand-over between threads. Responses are sent together (`gather`), unless calls
//! take long (`eager_flush`).
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use towline_io::Engine;

use super::app_runner::AppRunner;
use super::application::{Application, RequestTimes};
use super::builtin::BuiltinResponses;
use super::client_info::ClientInfo;
use super::control::{MAX_WAIT, ServerControl};
use super::request::{ConnState, Request};
use super::request_io::{RequestIo, SharedRequestIo, lock};

/// Age of a turn after which a request's client may have left since the poll, so that it is checked.
const LATE: Duration = Duration::from_millis(10);

pub fn run(
    py: Python<'_>,
    application: &Arc<Application>,
    control: &Arc<ServerControl>,
    engine: Engine<ConnState>,
) -> PyResult<()> {
    let request_io: SharedRequestIo = Arc::new(Mutex::new(RequestIo::new_inline(
        engine,
        control.clone(),
        application,
    )));
    let mut runner = AppRunner::new(py, application.clone(), request_io.clone())?;
    let mut builtin = BuiltinResponses::new(application);
    loop {
        let (ended, notice, started) = py.detach(|| {
            let mut request_io = request_io.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(inline) = request_io.as_inline() else {
                return Ok((true, None, Instant::now()));
            };
            if control.apply_commands(&mut inline.engine) {
                return Ok((true, None, Instant::now()));
            }
            let wait = if inline.has_deferred() {
                Duration::ZERO
            } else {
                MAX_WAIT
            };
            inline.engine.turn_start(Some(wait))?;
            let notice = inline.engine.take_notice();
            Ok::<_, PyErr>((false, notice, inline.engine.clock()))
        })?;
        if ended {
            return Ok(());
        }
        py.check_signals()?;
        let late_after = started + LATE;
        if let Some(notice) = notice {
            application.log.warning(py, &notice.to_string());
        }
        application.log_refusals(py);
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some((mut request, client_info, now)) =
                next_request(py, &request_io, &mut builtin, late_after)
        {
            control.begin_request();
            let times = RequestTimes {
                received: now,
                called: now,
            };
            outcome = runner.serve(py, &mut request, &client_info, times);
            control.end_request();
            if let Some(inline) = lock(py, &request_io).as_inline() {
                inline.reader.spare = request.head;
            }
        }
        if let Some(inline) = lock(py, &request_io).as_inline() {
            inline.end_turn();
        }
        outcome?;
    }
}

fn next_request(
    py: Python<'_>,
    request_io: &Mutex<RequestIo>,
    builtin: &mut BuiltinResponses,
    late_after: Instant,
) -> Option<(Request, ClientInfo, Instant)> {
    let mut request_io = lock(py, request_io);
    let inline = request_io.as_inline()?;
    loop {
        let mut request = inline.next_request()?;
        let is_late = late_after <= inline.engine.clock();
        let peer = inline.peer()?;
        if is_late && peer.check_reset(Instant::now()) {
            continue;
        }
        if !builtin.respond(peer, &mut request) {
            let client_info = ClientInfo::of(peer, &request.head);
            return Some((request, client_info, inline.engine.clock()));
        }
        inline.engine.refresh_clock();
        inline.reader.spare = request.head;
    }
}
