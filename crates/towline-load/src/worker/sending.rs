//! Starting requests: credits, the schedule, and what goes on the wire.

use std::time::Instant;

use bytes::Bytes;
use towline_io::ConnId;
use towline_proto::{Field, RequestHead};

use super::line::Flight;
use super::slot::{Credit, Start, State};
use super::{Phase, Worker};
use crate::config::Config;
use crate::schedule::Delay;
use crate::target::WholeFields;

/// What is sent for each target.
pub(super) struct Heads<'a> {
    heads: Vec<Head<'a>>,
}

struct Head<'a> {
    method: &'a [u8],
    path: &'a [u8],
    fields: WholeFields,
    body: Option<Bytes>,
}

impl<'a> Heads<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        let head = |target: &'a crate::Target| Head {
            method: target.method.as_bytes(),
            path: target.path.as_bytes(),
            fields: target.whole_fields(),
            body: target.body.clone(),
        };
        Self {
            heads: config.targets.iter().map(head).collect(),
        }
    }
}

impl Head<'_> {
    /// Calls `send` with the head, which says `close` when it is the connection's last.
    fn with<T>(&self, last: bool, send: impl FnOnce(&RequestHead<'_>) -> T) -> T {
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
            method: self.method,
            target: self.path,
            fields,
        })
    }
}

impl Worker<'_> {
    /// Leave for as many requests as a new connection takes at once.
    pub(super) fn credit_all(&mut self, slot: u32, now: Instant) {
        for _ in 0..self.config.pipeline {
            self.credit(slot, now);
        }
    }

    /// Leave for one request on `slot`: spent at once in a closed loop. The caller settles the connection.
    pub(super) fn credit(&mut self, slot: u32, now: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        let state = &self.slots[slot as usize];
        let credit = Credit {
            slot,
            serial: state.serial,
            since: now,
        };
        if self.schedule.is_some() {
            let may_be_used = self
                .config
                .requests_per_connection
                .is_none_or(|most| state.used < most || !matches!(state.state, State::Open(_)));
            if may_be_used {
                self.credits.push_back(credit);
            }
        } else if self.budget != Some(0) {
            self.spend(credit, now, now);
        }
    }

    /// When the schedule next wants a turn, if there is anything to start it on.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let schedule = self.schedule.as_ref()?;
        let at = self.window.begin + schedule.peek();
        let can_start = self.phase == Phase::Running
            && self.budget != Some(0)
            && at < self.window.to
            && !self.credits.is_empty();
        Some(if can_start { at } else { self.tick_at })
    }

    /// Starts what is due, as far as there are connections.
    pub(super) fn start_due(&mut self) {
        let Some(schedule) = &self.schedule else {
            return;
        };
        let mut intended = self.window.begin + schedule.peek();
        if self.phase != Phase::Running || self.credits.is_empty() || intended > self.engine.clock()
        {
            return;
        }
        let mut now = Instant::now();
        while intended <= now && intended < self.window.to && self.budget != Some(0) {
            let Some(credit) = self.credits.pop_front() else {
                return;
            };
            self.engine.set_clock(now);
            if self.spend(credit, intended, now) {
                if self.counts(intended, now) {
                    let delay = Delay::of(intended, credit.since, now);
                    self.tally.wait.record(delay.wait);
                    self.tally.lag.record(delay.lag);
                }
                let Some(schedule) = &mut self.schedule else {
                    return;
                };
                schedule.advance();
                intended = self.window.begin + schedule.peek();
                if let State::Open(id) = self.slots[credit.slot as usize].state {
                    self.engine.settle(id);
                }
                now = Instant::now();
            }
        }
    }

    /// Starts one request; false when the connection is not what it was, or takes no more.
    fn spend(&mut self, credit: Credit, intended: Instant, now: Instant) -> bool {
        let slot = &self.slots[credit.slot as usize];
        if slot.serial != credit.serial {
            return false;
        }
        let target = self.origins[slot.origin].next;
        let start = Start { target, intended };
        let started = match slot.state {
            State::Open(id) => self.send(credit.slot, id, start, now),
            State::Absent { .. } if self.config.is_fresh() => {
                self.dial(credit.slot, Some(start), now);
                true
            }
            _ => false,
        };
        if started {
            let origin = self.slots[credit.slot as usize].origin;
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

    /// Puts a request into its connection; `sent` is when its latency begins.
    pub(super) fn send(&mut self, slot: u32, id: ConnId, start: Start, sent: Instant) -> bool {
        let Some(peer) = self.engine.peer(id) else {
            return false;
        };
        let used = &mut self.slots[slot as usize].used;
        let most = self.config.requests_per_connection;
        if most.is_some_and(|most| *used >= most) {
            return false;
        }
        let head = &self.heads.heads[start.target as usize];
        let is_last = most == Some(*used + 1);
        let begun = head.with(is_last, |request| {
            peer.conn.request_ahead(request, head.body.clone())
        });
        // Refused only by a connection that is ending, of which its events tell.
        if begun.is_err() {
            return false;
        }
        *used += 1;
        peer.state.flights.push_back(Flight {
            target: start.target,
            intended: start.intended,
            sent,
        });
        true
    }

    /// What was due in the measured time and has found no connection.
    pub(super) fn count_unsent(&mut self) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        // The budget, where there is one, and not the schedule says how many there are.
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
