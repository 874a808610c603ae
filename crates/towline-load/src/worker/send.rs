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
use crate::target::{SendMode, Target, WholeFields};
use crate::template::has_places;

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
            if self.budget != Some(0) {
                self.use_permit(permit, now, now);
            }
        } else if self.schedule.is_some() || self.config.barrier {
            let may_be_used = self
                .config
                .requests_per_connection
                .is_none_or(|most| state.used < most || !matches!(state.state, State::Open(_)));
            if may_be_used {
                self.permits.push_back(permit);
            }
        } else if (slot as usize) < self.active {
            self.use_permit(permit, now, now);
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
            if self.use_permit(permit, intended, now) {
                if self.counts(intended, now) {
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

    /// Starts one request. Returns false if the connection has changed, or takes no more requests.
    pub(super) fn use_permit(
        &mut self,
        permit: SendPermit,
        intended: Instant,
        now: Instant,
    ) -> bool {
        let slot = &self.slots[permit.slot as usize];
        if slot.serial != permit.serial {
            return false;
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
                true
            }
            _ => false,
        };
        if started {
            let origin = self.slots[permit.slot as usize].origin;
            self.origins[origin].advance();
            self.in_flight += 1;
            if let Some(budget) = &mut self.budget {
                *budget -= 1;
            }
            if self.counts(intended, now) {
                self.tally.sent += 1;
            }
        }
        started
    }

    /// Writes a request to its connection; `sent` is when its service time begins.
    pub(super) fn send(
        &mut self,
        slot: u32,
        id: ConnId,
        queued: QueuedRequest,
        sent: Instant,
    ) -> bool {
        let Some(conn) = self.engine.conn(id) else {
            return false;
        };
        let used = &mut self.slots[slot as usize].used;
        let most = self.config.requests_per_connection;
        if most.is_some_and(|most| *used >= most) {
            return false;
        }
        let has_streams = self.config.protocol != Protocol::Http1;
        // The server's first bytes announce its stream limit; until then one stream is used.
        let is_known = conn.received_bytes() > 0 || conn.state.pending.is_empty();
        if has_streams && !(is_known && conn.proto.stream_capacity() > 0) {
            conn.state.deferred_permits += 1;
            return false;
        }
        let template = &self.templates.templates[queued.target as usize];
        // Only HTTP/1.1 announces the last request.
        let is_last = !has_streams && most == Some(*used + 1);
        let begun = if let Some(stream) = conn.send_again() {
            Some(stream)
        } else if conn.state.socket.is_some() {
            let target = &self.config.targets[queued.target as usize];
            self.ws_context.send(conn, target)
        } else {
            let begun = send_modes::begin(conn, template, is_last, queued.follows.is_some());
            begun.ok().inspect(|stream| conn.track_request(*stream))
        };
        let begun = begun.or_else(|| {
            let users = self.users.as_mut()?;
            users.begin(conn, slot, queued.target, is_last)
        });
        // Refused only by a connection that is ending; its events report that.
        let Some(stream) = begun else {
            return false;
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
        true
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
