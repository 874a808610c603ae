//! How a stream ends, and how the connection does.

use std::sync::Arc;
use std::time::Instant;

use crate::{ConnectionError, ErrorCode, Side, StreamError};

use super::frame;
use super::rules::{self, Fault};
use super::stream::{End, Notices, Receiving, Sending, Tunnel};
use super::streams::At;
use super::timers;
use super::{Connection, Leaving, PeerLeft, Phase, settings};

/// The last stream of a GOAWAY that names none yet (RFC 9113 6.8).
const ANY_STREAM: u32 = 0x7fff_ffff;

impl Connection {
    // Streams.

    /// Something to tell about a stream.
    pub(super) fn notice(&mut self, at: At, notice: u8) {
        let stream = self.streams.at_mut(at);
        stream.notices.set(notice);
        if !std::mem::replace(&mut stream.is_noticed, true) {
            self.noticed.push_back(at);
        }
    }

    /// Both sides and the program have done with it, perhaps.
    pub(super) fn check_over(&mut self, at: At) {
        let stream = self.streams.at(at);
        let is_sent = stream.sending == Sending::Complete && stream.outbox.end == End::Sent;
        let is_read = match (self.side, stream.tunnel) {
            (Side::Server, Tunnel::No | Tunnel::Asked) => true,
            (Side::Client, _) | (_, Tunnel::Open) => stream.receiving == Receiving::Done,
        };
        if !is_sent || !is_read || stream.is_over {
            return;
        }
        if stream.receiving == Receiving::Body {
            // The answer is complete: the rest of the request is not needed (RFC 9113 8.1).
            let id = stream.id;
            self.write_control(|out| frame::reset(out, id, ErrorCode::NO_ERROR));
            self.forget(id);
        }
        self.set_over(at);
    }

    /// Nobody has to do with it any more: its place is free when the next event is asked for.
    pub(super) fn set_over(&mut self, at: At) {
        let stream = self.streams.at_mut(at);
        if !std::mem::replace(&mut stream.is_over, true) {
            self.over.push(at);
            self.watch_idleness();
        }
    }

    /// Frees the places of streams that are over.
    pub(super) fn bury(&mut self) {
        while let Some(at) = self.over.pop() {
            self.turns.remove(&mut self.streams, at);
            if self.streams.at(at).is_noticed {
                self.noticed.retain(|noticed| *noticed != at);
            }
            if self.chunk.is_some_and(|chunk| chunk.to == at) {
                self.chunk = None;
            }
            self.streams.end(at);
        }
    }

    /// It can no longer complete. The program hears of it, unless it has done with it.
    fn fail(&mut self, at: At, error: StreamError) {
        self.turns.remove(&mut self.streams, at);
        if self.chunk.is_some_and(|chunk| chunk.to == at) {
            self.chunk = None;
        }
        let stream = self.streams.at_mut(at);
        // Who has ended one direction of a tunnel still reads the other.
        let is_done = self.side == Side::Server
            && stream.sending == Sending::Complete
            && stream.tunnel != Tunnel::Open;
        stream.receiving = Receiving::Failed;
        stream.sending = Sending::Failed;
        stream.outbox.clear();
        stream.inbox.clear();
        stream.recv_clock.stop();
        stream.send_clock.stop();
        stream.notices.take(!0);
        if is_done {
            return self.set_over(at);
        }
        stream.failure = Some(error);
        self.notice(at, Notices::FAILED);
    }

    /// The peer broke a rule on it, or was too slow. An error: it did so too often.
    pub(super) fn break_stream(&mut self, at: At, fault: Fault) -> Result<(), Fault> {
        let id = self.streams.at(at).id;
        // Said first: with its last stream the connection may end.
        let charged = self.reset_unbegun(id, fault);
        self.fail(at, fault.stream_error());
        charged
    }

    /// The same of a stream that never was.
    pub(super) fn reset_unbegun(&mut self, id: u32, fault: Fault) -> Result<(), Fault> {
        self.write_control(|out| frame::reset(out, id, fault.code));
        self.forget(id);
        self.charge_reset()
    }

    /// We have reset it. Until the peer knows, it may send what its window allows.
    pub(super) fn forget(&mut self, id: u32) {
        let window = match self.streams.find(id) {
            Some(at) => self.streams.at(at).recv_window.left(),
            None => u64::from(self.stream_window),
        };
        // Our setting is known there perhaps, and the word of that on its way.
        let more = match self.clocks.settings {
            Some(_) => settings::stream_window(&self.limits).saturating_sub(self.stream_window),
            None => 0,
        };
        self.forgotten.add(id, window + u64::from(more));
    }

    /// CVE-2023-44487 and CVE-2025-8671: resets cost one bucket, whoever sends them. A server cannot hurt
    /// its client so, which begins the streams.
    pub(super) fn charge_reset(&mut self) -> Result<(), Fault> {
        let allowance = self.limits.http2.resets;
        if self.side == Side::Client || self.resets.take(allowance, self.now) {
            Ok(())
        } else {
            Err(rules::RESETS)
        }
    }

    pub(super) fn reset_by_peer(&mut self, at: At, code: ErrorCode) {
        let stream = self.streams.at_mut(at);
        let is_answered = matches!(stream.receiving, Receiving::Ended | Receiving::Done);
        if self.side == Side::Client && is_answered && code == ErrorCode::NO_ERROR {
            // The answer is complete and the rest of the request not needed (RFC 9113 8.1).
            return self.stop_sending(at);
        }
        let error = match code {
            ErrorCode::REFUSED_STREAM if self.side == Side::Client => {
                StreamError::Refused(rules::BY_REFUSED_STREAM)
            }
            // It asks for the request to be sent again, so it has done nothing with it.
            ErrorCode::HTTP_1_1_REQUIRED if self.side == Side::Client => {
                StreamError::Http1Required { unprocessed: true }
            }
            code => StreamError::ResetByPeer(code),
        };
        self.fail(at, error);
    }

    /// What the program still writes goes nowhere.
    fn stop_sending(&mut self, at: At) {
        self.turns.remove(&mut self.streams, at);
        let stream = self.streams.at_mut(at);
        stream.outbox.clear();
        stream.outbox.end = End::Sent;
        stream.send_clock.stop();
        if stream.sending != Sending::Complete {
            stream.sending = Sending::Swallow;
        }
        if stream.notices.take(Notices::WRITER_WAITS) {
            self.notice(at, Notices::WRITABLE);
        }
        self.check_over(at);
    }

    /// The program gives it up, or has done with one that had failed.
    pub fn reset(&mut self, at: At) {
        let stream = self.streams.at_mut(at);
        if stream.is_over {
            return;
        }
        if stream.sending == Sending::Complete && stream.tunnel == Tunnel::Open {
            // As after an answer: what was sent is complete, and the rest is not needed.
            stream.tunnel = Tunnel::No;
            return self.check_over(at);
        }
        if !stream.has_failed() {
            let id = stream.id;
            let code = match self.side {
                Side::Client => ErrorCode::CANCEL,
                Side::Server => ErrorCode::INTERNAL_ERROR,
            };
            if self.phase == Phase::Open {
                let provoked = self.provoked;
                self.write_control(|out| frame::reset(out, id, code));
                self.provoked = provoked;
                self.forget(id);
            }
            self.fail(at, StreamError::Reset);
        }
        self.set_over(at);
    }

    // The connection.

    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.now = now;
        self.eof = true;
        if self.phase == Phase::Open {
            self.conclude(rules::aborted(rule));
        }
        self.send.clear();
        self.tail = None;
        self.phase = Phase::Closed { abort: false };
    }

    /// Everything that came before the end of input has been read.
    pub(super) fn input_ended(&mut self) {
        self.clocks.eof_seen = true;
        let is_whole = self.recv.is_empty() && self.block.stream == 0;
        if !self.is_busy() {
            return if is_whole {
                self.shut(rules::DONE);
            } else {
                self.conclude(rules::TRUNCATED);
            };
        }
        if self.side == Side::Client {
            return self.conclude(rules::TRUNCATED);
        }
        // Whole requests still get their answers.
        let error = Arc::new(rules::TRUNCATED);
        for at in self.streams.iter() {
            let stream = self.streams.at(at);
            if stream.is_over || stream.has_failed() {
                continue;
            }
            if stream.receiving == Receiving::Body {
                self.fail(at, StreamError::Connection(Arc::clone(&error)));
            } else if self.lacks_credit(at) {
                self.starve(at);
            } else if stream.sending != Sending::Complete {
                self.notice(at, Notices::HALF_CLOSED);
            }
        }
    }

    /// More waits than its windows let pass, and nobody can open them any more.
    pub(super) fn lacks_credit(&self, at: At) -> bool {
        let stream = self.streams.at(at);
        let window = stream.send_window.bytes().min(self.send_window.bytes());
        self.clocks.eof_seen && stream.outbox.len() > window
    }

    /// What it sends cannot become whole. Who ended only its own direction still hears of it.
    pub(super) fn starve(&mut self, at: At) {
        let id = self.streams.at(at).id;
        self.write_control(|out| frame::reset(out, id, ErrorCode::CANCEL));
        self.fail(at, StreamError::Connection(Arc::new(rules::NO_CREDIT)));
    }

    /// The peer sent its GOAWAY.
    pub(super) fn peer_leaves(&mut self, last: u32, code: ErrorCode) {
        let before = self.peer_left;
        let last = before.map_or(last, |before| before.last.min(last));
        let wants_http1 =
            code == ErrorCode::HTTP_1_1_REQUIRED || before.is_some_and(|before| before.wants_http1);
        self.peer_left = Some(PeerLeft { last, wants_http1 });
        if self.side == Side::Client {
            self.news.going_away = Some(last);
            let error = if wants_http1 {
                StreamError::Http1Required { unprocessed: true }
            } else {
                StreamError::Refused(rules::BY_GOAWAY)
            };
            for at in self.streams.iter() {
                let stream = self.streams.at(at);
                if stream.id > last && !stream.has_failed() && !stream.is_over {
                    self.fail(at, error.clone());
                }
            }
        }
        self.check_left();
    }

    pub fn close(&mut self) {
        if self.phase != Phase::Open || std::mem::replace(&mut self.closing, true) {
            return;
        }
        match (self.side, self.clocks.head.parting()) {
            (Side::Client, _) => {
                self.write_control(|out| frame::go_away(out, 0, ErrorCode::NO_ERROR, ""));
                self.leaving = Leaving::Last(0);
                self.check_left();
            }
            (Side::Server, Some(parting)) => self.clocks.head = parting,
            (Side::Server, None) => self.begin_leaving(),
        }
    }

    /// Tells that we leave, and asks for a sign that the peer knows (RFC 9113 6.8).
    pub(super) fn begin_leaving(&mut self) {
        if self.leaving != Leaving::No {
            return;
        }
        self.leaving = Leaving::Told;
        self.clocks.left = Some(self.now);
        self.write_control(|out| {
            frame::go_away(out, ANY_STREAM, ErrorCode::NO_ERROR, "");
            frame::ping(out, 0, timers::LEAVING);
        });
    }

    /// What was on its way has come: nothing more is served.
    pub(super) fn leave(&mut self) {
        self.clocks.left = None;
        let last = self.last_peer;
        self.leaving = Leaving::Last(last);
        self.write_control(|out| frame::go_away(out, last, ErrorCode::NO_ERROR, ""));
        self.check_left();
    }

    /// Nothing is left to be done here, perhaps.
    pub(super) fn check_left(&mut self) {
        let leaves = matches!(self.leaving, Leaving::Last(_))
            || self.peer_left.is_some()
            || self.clocks.eof_seen;
        if leaves && !self.is_busy() && self.phase == Phase::Open {
            self.shut(rules::DONE);
        }
    }

    /// The end in order.
    pub(super) fn shut(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open && !matches!(self.leaving, Leaving::Last(_)) {
            let last = self.last_peer;
            self.write_control(|out| frame::go_away(out, last, ErrorCode::NO_ERROR, ""));
        }
        self.conclude(error);
    }

    /// The end because the peer, or the clock, broke a rule.
    #[cold]
    pub(super) fn end_with(&mut self, fault: Fault) {
        if self.phase != Phase::Open {
            return;
        }
        let last = self.last_peer;
        self.write_control(|out| frame::go_away(out, last, fault.code, fault.rule));
        self.conclude(fault.error());
    }

    /// The end because nothing else can be done: queued bytes are lost.
    pub(super) fn abandon(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open {
            self.conclude(error);
        }
        self.send.clear();
        self.tail = None;
        self.phase = Phase::Closed { abort: true };
    }

    /// Every stream fails that is not complete, and nothing more is read.
    fn conclude(&mut self, error: ConnectionError) {
        self.stash();
        self.phase = Phase::Closing {
            since: self.now,
            lingered: 0,
        };
        let error = Arc::clone(self.error.get_or_insert_with(|| Arc::new(error)));
        let wants_http1 =
            self.side == Side::Client && self.peer_left.is_some_and(|left| left.wants_http1);
        for at in self.streams.iter() {
            let stream = self.streams.at(at);
            if stream.is_over || stream.has_failed() {
                continue;
            }
            let is_answered = matches!(stream.receiving, Receiving::Ended | Receiving::Done);
            if self.side == Side::Client && is_answered {
                self.stop_sending(at);
            } else if wants_http1 && stream.receiving == Receiving::Head {
                self.fail(at, StreamError::Http1Required { unprocessed: false });
            } else {
                self.fail(at, StreamError::Connection(Arc::clone(&error)));
            }
        }
        self.clocks.stop();
        self.recv.clear();
        self.news.closed = true;
    }
}
