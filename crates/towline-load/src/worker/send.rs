//! Starting requests: permits, the schedule, and the bytes to send.

use std::time::Instant;

use bytes::Bytes;
use towline_io::ConnId;
use towline_proto::{Field, PreparedRequest, Protocol, RequestHead, UserError};

use super::Worker;
use super::conn_state::InFlight;
use super::send_modes::{self, PendingSend};
use super::slot::{QueuedRequest, SendPermit, State};
use crate::check::Check;
use crate::config::Config;
use crate::schedule::Delay;
use crate::stats::Failure;
use crate::target::{SendMode, Target, WholeFields};
use crate::template::has_places;

/// Requests that are invalid one after the other before the connection pauses until the next tick.
const MAX_INVALID_AT_ONCE: usize = 16;

/// Why a request is not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    /// The connection takes no request now; its events tell more.
    Unavailable,
    /// The request is invalid, for this reason.
    Invalid(String),
}

impl NotSent {
    pub(super) fn of(error: UserError) -> Self {
        match error {
            UserError::NotIdle | UserError::StreamFailed | UserError::UnknownStream => {
                Self::Unavailable
            }
            _ => Self::Invalid(error.to_string()),
        }
    }
}

/// The outcome of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    Sent,
    /// The request was invalid, and has failed; the permit allows another one.
    Invalid,
    /// The connection has changed, or takes no more requests.
    Void,
}

/// The prepared requests of all targets.
pub(super) struct RequestTemplates {
    templates: Vec<RequestTemplate>,
}

pub(super) struct RequestTemplate {
    method: Box<[u8]>,
    path: Box<[u8]>,
    fields: WholeFields,
    pub(super) body: Option<Bytes>,
    pub(super) chunk_bytes: Option<u64>,
    pub(super) send_mode: SendMode,
    /// Encoded once each: the usual form, and the form for the last request of a connection.
    usual: Result<PreparedRequest, UserError>,
    last: Result<PreparedRequest, UserError>,
}

impl RequestTemplates {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            templates: (config.targets.iter())
                .map(|target| RequestTemplate::new(target, config.has_variables()))
                .collect(),
        }
    }

    /// The usual form of a target's request.
    pub(super) fn prepared(&self, target: usize) -> Option<&PreparedRequest> {
        self.templates[target].usual.as_ref().ok()
    }
}

impl RequestTemplate {
    fn new(target: &Target, may_have_values: bool) -> Self {
        let mut template = Self {
            method: target.method.as_bytes().into(),
            path: target.path.as_bytes().into(),
            fields: target.whole_fields(),
            body: target.body.clone(),
            chunk_bytes: target.chunk_bytes,
            send_mode: target.send_mode,
            usual: Err(UserError::InvalidTarget),
            last: Err(UserError::InvalidTarget),
        };
        // A request with values is encoded when it is sent: see `Users`.
        if may_have_values && template.has_places() {
            return template;
        }
        let prepared = |last| {
            template.with(last, |request| {
                PreparedRequest::new(request, template.body.clone())
            })
        };
        (template.usual, template.last) = (prepared(false), prepared(true));
        template
    }

    fn has_places(&self) -> bool {
        has_places(&self.path)
            || self.fields.iter().any(|(_, value)| has_places(value))
            || self.body.as_deref().is_some_and(has_places)
    }

    /// The encoded request, in the form for the last request of a connection if `last`.
    pub(super) fn prepared(&self, last: bool) -> Result<&PreparedRequest, UserError> {
        let prepared = if last { &self.last } else { &self.usual };
        prepared.as_ref().map_err(|error| *error)
    }

    /// Calls `send` with the head; the last request of a connection has `Connection: close`.
    pub(super) fn with<T>(&self, last: bool, send: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        const FEW: usize = 16;
        let says_close =
            (self.fields.iter()).any(|(name, _)| name.eq_ignore_ascii_case(b"connection"));
        let close = (last && !says_close).then_some(Field {
            name: b"Connection",
            value: b"close",
        });
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| Field { name, value })
            .chain(close);
        let mut few = [Field {
            name: b"",
            value: b"",
        }; FEW];
        let many: Vec<_>;
        let fields = if self.fields.len() < FEW {
            let count = fields
                .zip(&mut few)
                .map(|(field, place)| *place = field)
                .count();
            &few[..count]
        } else {
            many = fields.collect();
            &many
        };
        send(&RequestHead {
            method: &self.method,
            target: &self.path,
            fields,
        })
    }
}

impl Worker {
    /// Grants as many permits as a new connection has concurrent requests.
    pub(super) fn grant_permits(&mut self, slot: u32, now: Instant) {
        if let State::Open(id) = self.slots[slot as usize].state
            && let Some(conn) = self.engine.conn(id)
        {
            conn.state.deferred_permits = 0;
        }
        for _ in 0..self.config.concurrency() {
            self.permit(slot, now);
        }
    }

    /// Grants the deferred permits for which streams are free now.
    pub(super) fn grant_deferred(&mut self, id: ConnId, now: Instant) {
        while let Some(conn) = self.engine.conn(id)
            && conn.state.deferred_permits > 0
            && conn.received_bytes() > 0
            && conn.proto.stream_capacity() > 0
            && let Some(slot) = conn.state.slot
        {
            conn.state.deferred_permits -= 1;
            self.permit(slot, now);
        }
    }

    /// Grants a permit for one request on `slot`, used at once in a closed loop. The caller flushes the
    /// connection.
    pub(super) fn permit(&mut self, slot: u32, now: Instant) {
        if !self.phase.sends() {
            return;
        }
        let state = &self.slots[slot as usize];
        let permit = SendPermit {
            slot,
            serial: state.serial,
            since: now,
        };
        if self.uses_permits {
            self.use_until_sent(permit, now);
        } else if self.schedule.is_some() || self.config.barrier {
            let may_be_used = self
                .config
                .requests_per_connection
                .is_none_or(|most| state.used < most || !matches!(state.state, State::Open(_)));
            if may_be_used {
                self.permits.push_back(permit);
            }
        } else if (slot as usize) < self.active {
            self.use_until_sent(permit, now);
        }
    }

    /// Uses a permit of a closed loop for the first valid request of the next ones.
    fn use_until_sent(&mut self, permit: SendPermit, now: Instant) {
        for _ in 0..MAX_INVALID_AT_ONCE {
            if self.budget == Some(0) || self.use_permit(permit, now, now) != Used::Invalid {
                return;
            }
        }
        self.paused.push(permit);
    }

    /// Uses the permits whose requests were all invalid at the last tick.
    pub(super) fn resume_paused(&mut self, now: Instant) {
        for permit in std::mem::take(&mut self.paused) {
            if self.phase.sends() {
                self.use_until_sent(permit, now);
            }
            if let State::Open(id) = self.slots[permit.slot as usize].state {
                self.engine.flush_and_rearm(id);
            }
        }
    }

    /// The next start of the schedule, if a permit is available for it.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let schedule = self.schedule.as_ref()?;
        let at = self.window.begin + schedule.peek();
        let can_start = self.phase.sends()
            && self.budget != Some(0)
            && at < self.window.to
            && !self.permits.is_empty();
        can_start.then_some(at)
    }

    /// Starts the requests that are due, as far as permits are available.
    pub(super) fn start_due(&mut self) {
        let Some(schedule) = &self.schedule else {
            return;
        };
        let mut intended = self.window.begin + schedule.peek();
        if !self.phase.sends() || self.permits.is_empty() || intended > self.engine.clock() {
            return;
        }
        let mut now = Instant::now();
        while intended <= now && intended < self.window.to && self.budget != Some(0) {
            let Some(permit) = self.permits.pop_front() else {
                return;
            };
            self.engine.set_clock(now);
            let used = self.use_permit(permit, intended, now);
            if used != Used::Void {
                if used == Used::Invalid {
                    self.permits.push_front(permit);
                } else if self.counts(intended, now) {
                    let delay = Delay::of(intended, permit.since, now);
                    self.tally.wait.record(delay.wait);
                    self.tally.lag.record(delay.lag);
                    let is_late = now >= self.window.to && !delay.wait.is_zero();
                    self.tally.late += u64::from(is_late);
                }
                let Some(schedule) = &mut self.schedule else {
                    return;
                };
                schedule.advance();
                intended = self.window.begin + schedule.peek();
                if let State::Open(id) = self.slots[permit.slot as usize].state {
                    self.engine.flush_and_rearm(id);
                }
                now = Instant::now();
            }
        }
    }

    /// Starts one request.
    pub(super) fn use_permit(
        &mut self,
        permit: SendPermit,
        intended: Instant,
        now: Instant,
    ) -> Used {
        let slot = &self.slots[permit.slot as usize];
        if slot.serial != permit.serial {
            return Used::Void;
        }
        let target = self.origins[slot.origin].next;
        let queued = QueuedRequest {
            target,
            intended,
            follows: None,
        };
        let started = match slot.state {
            State::Open(id) => self.send(permit.slot, id, queued, now),
            State::Absent { .. } if self.config.is_fresh() => {
                self.dial(permit.slot, Some(queued), now);
                Ok(())
            }
            _ => Err(NotSent::Unavailable),
        };
        if matches!(started, Err(NotSent::Unavailable)) {
            return Used::Void;
        }
        let origin = self.slots[permit.slot as usize].origin;
        self.origins[origin].advance();
        if let Some(budget) = &mut self.budget {
            *budget -= 1;
        }
        if self.counts(intended, now) {
            self.tally.sent += 1;
        }
        if let Err(NotSent::Invalid(why)) = started {
            self.on_invalid(permit.slot, queued, why, now);
            return Used::Invalid;
        }
        self.in_flight += 1;
        Used::Sent
    }

    /// Fails a request that is invalid.
    #[cold]
    fn on_invalid(&mut self, slot: u32, queued: QueuedRequest, why: String, now: Instant) {
        if self.counts(queued.intended, now) {
            let target = Some(queued.target as usize);
            self.tally.count_failure(target, Failure::Invalid);
            self.tally.note(|| why.clone());
            self.tally.note_invalid(why);
        }
        self.restart_session(slot);
    }

    /// Sends the request for which a connection was opened.
    pub(super) fn send_queued(
        &mut self,
        slot: u32,
        id: ConnId,
        queued: QueuedRequest,
        sent: Instant,
    ) {
        let Err(not_sent) = self.send(slot, id, queued, sent) else {
            return;
        };
        let now = self.engine.clock();
        self.in_flight -= 1;
        match not_sent {
            NotSent::Invalid(why) => {
                self.on_invalid(slot, queued, why, now);
                self.permit(slot, now);
            }
            NotSent::Unavailable => {
                let target = Some(queued.target);
                self.on_failed(target, queued.intended, Failure::Unprocessed, now);
            }
        }
    }

    /// Writes a request to its connection; `sent` is when its service time begins.
    pub(super) fn send(
        &mut self,
        slot: u32,
        id: ConnId,
        queued: QueuedRequest,
        sent: Instant,
    ) -> Result<(), NotSent> {
        let Some(conn) = self.engine.conn(id) else {
            return Err(NotSent::Unavailable);
        };
        let used = &mut self.slots[slot as usize].used;
        let most = self.config.requests_per_connection;
        if most.is_some_and(|most| *used >= most) {
            return Err(NotSent::Unavailable);
        }
        let has_streams = self.config.protocol != Protocol::Http1;
        // The server's first bytes announce its stream limit; until then one stream is used.
        let is_known = conn.received_bytes() > 0 || conn.state.pending.is_empty();
        if has_streams && !(is_known && conn.proto.stream_capacity() > 0) {
            conn.state.deferred_permits += 1;
            return Err(NotSent::Unavailable);
        }
        let template = &self.templates.templates[queued.target as usize];
        // Only HTTP/1.1 announces the last request.
        let is_last = !has_streams && most == Some(*used + 1);
        let stream = if let Some(stream) = conn.send_again() {
            stream
        } else if conn.state.socket.is_some() {
            let target = &self.config.targets[queued.target as usize];
            let begun = self.ws_context.send(conn, target);
            begun.ok_or(NotSent::Unavailable)?
        } else if let Some(users) = &mut self.users
            && let Some(begun) = users.begin(conn, slot, queued.target, is_last)
        {
            begun?
        } else {
            let begun = send_modes::begin(conn, template, is_last, queued.follows.is_some());
            let stream = begun.map_err(NotSent::of)?;
            conn.track_request(stream);
            stream
        };
        *used += 1;
        conn.state.pending.push_back(InFlight {
            stream,
            target: queued.target,
            intended: queued.intended,
            sent,
            head_at: None,
            check: Check::default(),
        });
        let pending_send = conn.state.pending_send;
        if pending_send != PendingSend::Nothing {
            // The turn may have begun long ago.
            self.schedule_pending(slot, pending_send, Instant::now());
        }
        Ok(())
    }

    /// Whether a request was due in the measured time and is not sent yet.
    pub(super) fn has_backlog(&self) -> bool {
        // A run by count is limited by its budget, not by the schedule.
        self.budget.is_none()
            && (self.schedule.as_ref())
                .is_some_and(|schedule| self.window.begin + schedule.peek() < self.window.to)
    }

    /// Counts the requests that were due in the measured time and never found a connection.
    pub(super) fn count_unsent(&mut self) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        while self.budget.is_none() {
            let intended = self.window.begin + schedule.peek();
            if intended >= self.window.to {
                return;
            }
            self.tally.unsent += u64::from(intended >= self.window.from);
            schedule.advance();
        }
    }
}
