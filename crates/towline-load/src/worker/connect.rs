//! Connections come and go: dialling, adopting, and what follows from an end.

use std::time::Instant;

use towline_io::ConnId;
use towline_io::Service;
use towline_io::call::{Dial, DialErrorKind};
use towline_proto::{Http2Limits, Limits, Protocol, ProtocolPolicy};

use super::slot::{Start, State};
use super::{Phase, Worker};
use crate::config::Config;
use crate::stats::Failure;

impl Worker {
    /// Begins to connect `slot`, for `start` where each request has its own connection.
    pub(super) fn dial(&mut self, slot: u32, start: Option<Start>, now: Instant) {
        let state = &mut self.slots[slot as usize];
        let route = self.origins[state.origin].route.clone();
        state.state = State::Dialling { begun: now, start };
        self.dialling += 1;
        let dial = Dial::start(route, &self.dial_config, now);
        self.engine.dial(dial, u64::from(slot));
    }

    /// Dials what is absent and due.
    pub(super) fn open_due(&mut self, now: Instant) {
        if !self.phase.sends() || self.budget == Some(0) {
            return;
        }
        for index in 0..self.slots.len() {
            let State::Absent { due: Some(due) } = self.slots[index].state else {
                continue;
            };
            if due > now {
                continue;
            }
            let index = index as u32;
            if self.config.is_fresh() {
                // The pause after a failure is over: requests may use it again.
                self.slots[index as usize].state = State::Absent { due: None };
                self.credit(index, now);
            } else {
                self.dial(index, None, now);
            }
        }
    }

    pub(super) fn take_dialled(&mut self, now: Instant) {
        while let Some(dialled) = self.engine.next_dialled() {
            self.dialling -= 1;
            let slot = dialled.tag as u32;
            let State::Dialling { begun, start } = self.slots[slot as usize].state else {
                continue;
            };
            let mut refused = false;
            let adopted = dialled.result.map_err(|error| {
                let os_error = error.os_error.unwrap_or_default();
                refused = !self.config.refusal_statuses.is_empty()
                    && [libc::ECONNREFUSED, libc::ECONNRESET, libc::EPIPE].contains(&os_error);
                if !refused {
                    self.tally.note(|| error.message.clone());
                }
                match error.kind {
                    DialErrorKind::Timeout => Failure::Timeout,
                    _ => Failure::Connect,
                }
            });
            let adopted = adopted.and_then(|established| {
                if self.config.protocol == Protocol::Http2
                    && self.is_secure(slot)
                    && established.alpn.as_deref() != Some(alpn(Protocol::Http2))
                {
                    self.tally.note(|| NOT_CHOSEN.into());
                    return Err(Failure::Connect);
                }
                let adopted = self.engine.adopt(*established, &self.service);
                adopted.map_err(|_| Failure::Connect)
            });
            match adopted {
                Ok(id) if self.handshake_of(slot).is_some() => {
                    self.upgrade(slot, id, (begun, start), now);
                }
                Ok(id) => self.opened(slot, id, begun, start, now),
                Err(failure) => self.not_opened(slot, start, failure, refused, now),
            }
        }
    }

    fn is_secure(&self, slot: u32) -> bool {
        self.origins[self.slots[slot as usize].origin].route.secure
    }

    pub(super) fn opened(
        &mut self,
        slot: u32,
        id: ConnId,
        begun: Instant,
        start: Option<Start>,
        now: Instant,
    ) {
        let state = &mut self.slots[slot as usize];
        let again = state.was_open;
        state.opened(id);
        self.live += 1;
        if let Some(peer) = self.engine.peer(id) {
            peer.state.slot = Some(slot);
        }
        if self.phase == Phase::Connecting || self.counts(now, now) {
            self.tally.connect.record(now - begun);
            let meant = self.config.is_fresh() || start.is_some();
            self.tally.reconnects += u64::from(again && !meant);
        }
        match start {
            // Counted as in flight since the dial.
            Some(start) => _ = self.send(slot, id, start, start.follows.unwrap_or(begun)),
            None => self.credit_all(slot, now),
        }
        self.engine.settle(id);
    }

    pub(super) fn not_opened(
        &mut self,
        slot: u32,
        start: Option<Start>,
        failure: Failure,
        refused: bool,
        now: Instant,
    ) {
        let retry_at = self.slots[slot as usize].retry_at(now);
        self.slots[slot as usize].closed(Some(retry_at));
        if let Some(start) = start {
            self.in_flight -= 1;
            return if refused {
                self.turned_away(start.intended, now);
            } else {
                self.failed(start.intended, failure, now);
            };
        }
        // Otherwise requests that nobody can take would be waited for without end.
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(1);
        }
        if refused && self.phase == Phase::Connecting {
            self.tally.refused += 1;
        } else if refused {
            self.turned_away(now, now);
        } else if self.phase == Phase::Connecting || self.counts(now, now) {
            self.tally.failed(failure);
        }
    }

    /// A connection has ended. Requests that it leaves without answers have failed.
    pub(super) fn over(&mut self, id: ConnId, failure: Failure, rule: &str, now: Instant) {
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        let was_silent = peer.received_bytes() == 0;
        let line = &mut peer.state;
        let Some(slot) = line.slot.take() else {
            return;
        };
        if let State::Upgrading {
            begun: _, start, ..
        } = self.slots[slot as usize].state
        {
            return self.not_upgraded(slot, start, (failure, false), rule, now);
        }
        let flights = std::mem::take(&mut line.flights);
        let may_refuse = !self.config.refusal_statuses.is_empty();
        let was_refused = line.refused;
        let did_its_work = self.slots[slot as usize].used > flights.len() as u64;
        self.live -= 1;
        self.in_flight -= flights.len() as u64;
        for flight in &flights {
            // An answer that was begun and cut is no refusal.
            if may_refuse && failure == Failure::Reset && !did_its_work && was_silent {
                self.turned_away(flight.intended, now);
            } else {
                self.failed(flight.intended, failure, now);
                self.tally.note(|| rule.into());
            }
        }
        // More came than was asked for: no request has failed, and yet the server has.
        if flights.is_empty() && failure == Failure::Protocol {
            self.failed(now, failure, now);
            self.tally.note(|| rule.into());
        }
        if self.phase == Phase::Connecting {
            return self.slots[slot as usize].closed(None);
        }
        let state = &mut self.slots[slot as usize];
        if was_refused || (!did_its_work && !flights.is_empty()) {
            // A server that closes without a word, or declines, is not to be stormed.
            let at = state.retry_at(now);
            return state.closed(Some(at));
        }
        state.closed(Some(now));
        if !self.phase.sends() || self.budget == Some(0) {
            return;
        }
        if self.config.is_fresh() {
            self.slots[slot as usize].state = State::Absent { due: None };
            self.credit(slot, now);
        } else {
            self.dial(slot, None, now);
        }
    }
}

/// What is wrong with a server that speaks something else under TLS.
pub(crate) const NOT_CHOSEN: &str = "the server does not choose HTTP/2 (RFC 9113 3.2)";

/// What is spoken, and within which bounds.
pub(crate) fn service(config: &Config) -> Service {
    /// So that our own flow control is never what is measured.
    const WINDOW_BYTES: u32 = 1 << 30;
    let limits = Limits {
        http2: Http2Limits {
            stream_window_bytes: WINDOW_BYTES,
            connection_window_bytes: WINDOW_BYTES,
            max_concurrent_streams: config.at_once() as u32,
            ..Http2Limits::client()
        },
        ..Limits::client()
    };
    Service {
        protocols: match config.protocol {
            Protocol::Http1 => ProtocolPolicy::Http1,
            Protocol::Http2 => ProtocolPolicy::Http2,
        },
        ..Service::plain(limits)
    }
}

/// The name of what is spoken over TLS (RFC 7301).
pub(crate) fn alpn(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Http1 => b"http/1.1",
        Protocol::Http2 => b"h2",
    }
}
