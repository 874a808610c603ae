//! One thread: the application runs in the turn that read its request.
//!
//! The GIL is released once per turn, around the poll, and kept for all requests of the turn: a request costs
//! one recv, one call and one send, and no hand-over between threads.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use towline_io::Engine;

use super::app_runner::AppRunner;
use super::application::{Application, RequestTimes};
use super::builtin::BuiltinResponses;
use super::client_info::ClientInfo;
use super::control::ServerControl;
use super::request::{ConnState, Request};
use super::request_io::{MAX_WAIT, RequestIo, SharedRequestIo, lock};

pub fn run(
    py: Python<'_>,
    application: &Arc<Application>,
    control: &Arc<ServerControl>,
    engine: Engine<ConnState>,
) -> PyResult<()> {
    let request_io: SharedRequestIo =
        Arc::new(Mutex::new(RequestIo::new_inline(engine, control.clone())));
    let mut runner = AppRunner::new(py, application.clone(), request_io.clone())?;
    let mut builtin = BuiltinResponses::new(application);
    loop {
        let (ended, notice) = py.detach(|| {
            let mut request_io = request_io.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(inline) = request_io.as_inline() else {
                return Ok((true, None));
            };
            if control.apply_commands(&mut inline.engine) {
                return Ok((true, None));
            }
            let wait = if inline.has_deferred() {
                Duration::ZERO
            } else {
                MAX_WAIT
            };
            inline.engine.turn_start(Some(wait))?;
            Ok::<_, PyErr>((false, inline.engine.take_notice()))
        })?;
        if ended {
            return Ok(());
        }
        py.check_signals()?;
        if let Some(notice) = notice {
            application.log.warning(py, &notice.to_string());
        }
        application.log_refusals(py);
        while let Some((mut request, client_info, now)) =
            next_request(py, &request_io, &mut builtin, application)
        {
            control.begin_request();
            let times = RequestTimes {
                received: now,
                called: now,
            };
            let outcome = runner.serve(py, &mut request, &client_info, times);
            control.end_request();
            if let Some(inline) = lock(py, &request_io).as_inline() {
                inline.spare = request.head;
            }
            outcome?;
        }
        if let Some(inline) = lock(py, &request_io).as_inline() {
            inline.engine.turn_end();
        }
    }
}

fn next_request(
    py: Python<'_>,
    request_io: &Mutex<RequestIo>,
    builtin: &mut BuiltinResponses,
    application: &Application,
) -> Option<(Request, ClientInfo, Instant)> {
    let mut request_io = lock(py, request_io);
    let inline = request_io.as_inline()?;
    loop {
        let request = inline.next_request()?;
        let peer = inline.peer()?;
        if !builtin.respond(peer, &request) {
            let client_info = ClientInfo::of(
                peer,
                &request.head,
                application.feature_config.trusted.as_ref(),
            );
            return Some((request, client_info, inline.engine.clock()));
        }
        inline.engine.refresh_clock();
        inline.spare = request.head;
    }
}
