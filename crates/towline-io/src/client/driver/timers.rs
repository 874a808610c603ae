//! Deadlines of calls, kept lazily: one heap entry per slot of the call table, checked against whichever call
//! holds the slot when the entry is due. A call that ends in time removes nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::call::{Call, Upload};
use super::{CallId, ClientDriver, Stage};
use crate::client::call_error;
use crate::client::request::{CallErrorKind, CallPhase};

/// Delay of a timeout while the connection has queued events, which are handled first.
const RECHECK: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct CallTimers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Earliest heap entry of each slot.
    scheduled_at: Vec<Option<Instant>>,
    /// When the pool's idle connections are next checked for expiry.
    expiry: Option<Instant>,
}

impl CallTimers {
    /// Adds an entry; true if it is the earliest of all.
    fn add(&mut self, index: u32, at: Instant) -> bool {
        let place = index as usize;
        if place >= self.scheduled_at.len() {
            self.scheduled_at.resize(place + 1, None);
        }
        if self.scheduled_at[place].is_some_and(|earlier| earlier <= at) {
            return false;
        }
        self.scheduled_at[place] = Some(at);
        let first = self.next();
        self.heap.push(Reverse((at, index)));
        first.is_none_or(|first| at < first)
    }

    fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    fn pop_due(&mut self, now: Instant) -> Option<u32> {
        while self.next()? <= now {
            let Reverse((at, index)) = self.heap.pop()?;
            let scheduled_at = &mut self.scheduled_at[index as usize];
            if *scheduled_at == Some(at) {
                *scheduled_at = None;
                return Some(index);
            }
        }
        None
    }
}

/// Returns the earliest deadline of a call and its kind. `unsent`: part of the request is still unsent.
fn deadline(call: &Call, unsent: bool) -> Option<(Instant, CallErrorKind)> {
    let timeouts = &call.options.timeouts;
    // An instant beyond the clock's range is no deadline.
    let since_progress =
        |timeout: Option<Duration>, kind| Some((call.times.progress.checked_add(timeout?)?, kind));
    let phase = match call.stage {
        Stage::Over => return None,
        Stage::Waiting(_) => call.acquire_timer.bound(timeouts),
        Stage::Resting(_) => None,
        // Waiting for 100 (Continue); `continue_deadline` bounds it.
        Stage::Active(_) if call.continue_deadline.is_some() => None,
        // The program is to read: no timeout runs, since the server may wait for that with its own reading.
        Stage::Active(_)
            if call.has_head() && !call.reader_waits && call.upload != Upload::Tunnel =>
        {
            None
        }
        Stage::Active(_) if unsent => since_progress(timeouts.write, CallErrorKind::WriteTimeout),
        // The program is to write, and the server may wait for that.
        Stage::Active(_) if call.upload == Upload::Open => None,
        Stage::Active(_) if call.has_head() && !call.reader_waits => None,
        Stage::Active(_) | Stage::AwaitingSettings(_) => {
            since_progress(timeouts.read, CallErrorKind::ReadTimeout)
        }
    };
    let total = (timeouts.total).and_then(|timeout| {
        Some((
            call.times.begun.checked_add(timeout)?,
            CallErrorKind::TotalTimeout,
        ))
    });
    match (phase, total) {
        (Some(phase), Some(total)) => Some(if total.0 <= phase.0 { total } else { phase }),
        (phase, total) => phase.or(total),
    }
}

impl ClientDriver {
    /// Schedules a check of the call, at its deadline or earlier.
    pub(super) fn schedule_deadline(&mut self, id: CallId) {
        let Some(call) = self.calls.get(id.index as usize) else {
            return;
        };
        let timeouts = &call.options.timeouts;
        let phase = match call.stage {
            Stage::Waiting(_) => call.acquire_timer.bound(timeouts).map(|(at, _)| at),
            Stage::Resting(until) => Some(until),
            _ if call.continue_deadline.is_some() => call.continue_deadline,
            // Whether bytes are unsent is not known here: the shorter timeout is early enough.
            _ => {
                let shorter = [timeouts.read, timeouts.write].into_iter().flatten().min();
                shorter.and_then(|timeout| call.times.progress.checked_add(timeout))
            }
        };
        let total = (timeouts.total).and_then(|timeout| call.times.begun.checked_add(timeout));
        let websocket = call.websocket_deadline();
        if let Some(at) = [phase, total, websocket].into_iter().flatten().min()
            && self.timers.add(id.index, at)
        {
            self.engine.wake_at(at);
        }
    }

    /// Schedules the expiry of the pool's idle connections.
    pub(super) fn schedule_idle_expiry(&mut self) {
        if self.timers.expiry.is_none()
            && let Some(at) = self.pool.next_expiry()
        {
            self.timers.expiry = Some(at);
        }
        let next = [self.timers.next(), self.timers.expiry];
        if let Some(at) = next.into_iter().flatten().min() {
            self.engine.wake_at(at);
        }
    }

    /// Handles expired deadlines; true if there were any to check.
    pub(super) fn expire(&mut self) -> bool {
        let now = self.engine.clock();
        let mut any = false;
        if self.timers.expiry.is_some_and(|at| at <= now) {
            any = true;
            self.timers.expiry = None;
            self.pool.expire(now);
            self.run_pool_actions();
        }
        while let Some(index) = self.timers.pop_due(now) {
            any = true;
            if let Some(again) = self.check_deadlines(index, now) {
                self.timers.add(index, again);
            }
        }
        any
    }

    /// Checks the call in slot `index`. Returns when to check it again.
    fn check_deadlines(&mut self, index: u32, now: Instant) -> Option<Instant> {
        let call = self.calls.get(index as usize)?;
        let id = CallId {
            index,
            generation: call.generation,
        };
        let handle = call.handle();
        let peer = handle.and_then(|handle| self.engine.conn(handle.conn).zip(Some(handle.stream)));
        let (unsent, has_events) = match peer {
            Some((peer, stream)) if peer.is_shared() => {
                if let Some(call) = self.calls.get_mut(index as usize)
                    && let Some(at) = peer.last_sent(stream)
                {
                    call.times.progress = call.times.progress.max(at);
                }
                (peer.has_unsent(stream), peer.queued)
            }
            Some((peer, _)) => (
                peer.proto.pending_bytes() > 0 || peer.is_sending_files(),
                peer.queued,
            ),
            None => (false, false),
        };
        let call = self.calls.get(index as usize)?;
        if call.rests_until().is_some_and(|until| until <= now) {
            self.resend(id);
            self.run_pool_actions();
        }
        let continue_deadline = self.calls.get(index as usize)?.continue_deadline;
        if continue_deadline.is_some_and(|until| until <= now) {
            self.release_body(id);
        }
        let websocket = self.calls.get(index as usize)?.websocket_deadline();
        if websocket.is_some_and(|at| at <= now) {
            self.drive_websocket(id);
        }
        let call = self.calls.get(index as usize)?;
        // Other deadlines of the call.
        let other = [
            call.continue_deadline,
            call.websocket_deadline(),
            call.rests_until(),
        ]
        .into_iter()
        .flatten()
        .min();
        let Some((at, kind)) = deadline(call, unsent) else {
            // The program's next read or write schedules the deadline again.
            return other;
        };
        if at > now {
            return Some(other.map_or(at, |other| other.min(at)));
        }
        if has_events && kind != CallErrorKind::TotalTimeout {
            return Some(now + RECHECK);
        }
        self.time_out(id, kind);
        None
    }

    fn time_out(&mut self, id: CallId, kind: CallErrorKind) {
        let failure_context = self.failure_context(id);
        let Some(call) = self.call(id) else {
            return;
        };
        if call.is_read() && kind != CallErrorKind::TotalTimeout {
            // The response is complete: the rest of the request is not needed.
            return self.give_up_upload(id);
        }
        if let Stage::Waiting(_) | Stage::Resting(_) = call.stage {
            if let Stage::Waiting(waiter) = call.stage {
                self.pool.cancel(waiter);
            }
            self.fail(id, call_error::acquire_timeout(kind));
            return self.run_pool_actions();
        }
        let phase = match kind {
            CallErrorKind::WriteTimeout => CallPhase::Send,
            CallErrorKind::ReadTimeout if call.has_head() => CallPhase::Body,
            CallErrorKind::ReadTimeout => CallPhase::Head,
            _ => call.phase(failure_context.bytes_sent),
        };
        let error = failure_context.with_context(call_error::timeout(kind, phase), false);
        let since = match (kind, call.times.started) {
            // A total timeout says nothing about the connection unless nothing was received since the start.
            (CallErrorKind::TotalTimeout, Some(started)) => started,
            _ => call.times.progress,
        };
        let stage = call.stage;
        let Stage::Active(handle) = stage else {
            self.release_unused(id);
            self.fail(id, error);
            return self.run_pool_actions();
        };
        self.mark_suspect(handle, since);
        self.remove(handle);
        self.fail(id, error);
        self.run_pool_actions();
    }
}
