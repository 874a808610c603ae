//! One thread: the application runs right in the turn that read its request.
//!
//! The GIL is released once per turn, around the poll, and kept for all requests of the turn: a request costs
//! one recv, one call and one send, and no hand-over of anything.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use towline_io::Engine;

use super::app_runner::{Application, Caller, Times};
use super::builtin::Own;
use super::client_info::Origin;
use super::request::{ConnState, Request};
use super::request_io::{Desk, LONGEST_WAIT, SharedDesk, lock};
use super::server::Control;

pub fn run(
    py: Python<'_>,
    application: &Arc<Application>,
    control: &Arc<Control>,
    engine: Engine<ConnState>,
) -> PyResult<()> {
    let desk: SharedDesk = Arc::new(Mutex::new(Desk::inline(engine, control.clone())));
    let mut caller = Caller::new(py, application.clone(), desk.clone())?;
    let mut own = Own::new(application);
    loop {
        let (over, notice) = py.detach(|| {
            let mut desk = desk.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(inline) = desk.inline_seat() else {
                return Ok((true, None));
            };
            if control.obey(&mut inline.engine) {
                return Ok((true, None));
            }
            let wait = if inline.has_deferred() {
                Duration::ZERO
            } else {
                LONGEST_WAIT
            };
            inline.engine.turn_start(Some(wait))?;
            Ok::<_, PyErr>((false, inline.engine.take_notice()))
        })?;
        if over {
            return Ok(());
        }
        py.check_signals()?;
        if let Some(notice) = notice {
            application.log.warning(py, &notice.to_string());
        }
        while let Some((mut request, origin, now)) = next_request(py, &desk, &mut own, application)
        {
            control.begin();
            let times = Times {
                came: now,
                called: now,
            };
            let outcome = caller.serve(py, &mut request, &origin, times);
            control.end();
            if let Some(inline) = lock(py, &desk).inline_seat() {
                inline.spare = request.head;
            }
            outcome?;
        }
        if let Some(inline) = lock(py, &desk).inline_seat() {
            inline.engine.turn_end();
        }
    }
}

fn next_request(
    py: Python<'_>,
    desk: &Mutex<Desk>,
    own: &mut Own,
    application: &Application,
) -> Option<(Request, Origin, Instant)> {
    let mut desk = lock(py, desk);
    let inline = desk.inline_seat()?;
    loop {
        let request = inline.next_request()?;
        let peer = inline.peer()?;
        if !own.answer(peer, &request) {
            let origin = Origin::of(peer, &request.head, application.rules.trusted.as_ref());
            return Some((request, origin, inline.engine.clock()));
        }
        inline.engine.refresh_clock();
        inline.spare = request.head;
    }
}
