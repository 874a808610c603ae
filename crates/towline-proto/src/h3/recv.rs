//! Receiving frames of request streams (RFC 9114 4.1), one stream after the other until there is an event.
//!
//! ```text
//!   HEADERS ─► DATA ... ─► HEADERS (trailers) ─► end       frames of unknown types are skipped anywhere
//! ```

use bytes::Bytes;

use crate::multiplexed::signal::{Signal, Step};
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Events, Lifecycle, Multiplexed};
use crate::pending_events::PendingEvents;

use super::frame::{FrameHeader, FrameType};
use super::rules::{self, Fault};
use super::stream::{FrameState, RecvSide, RecvState, RequestId, StreamPart, Tunnel};
use super::{Connection, GoAwayState};

/// Why a frame ends more than itself.
pub(super) enum Violation {
    Stream(Fault),
    Connection(Fault),
}

impl From<Fault> for Violation {
    fn from(fault: Fault) -> Self {
        Self::Stream(fault)
    }
}

impl Connection {
    /// Adds a stream to those with bytes to parse.
    pub(super) fn mark_ready(&mut self, key: StreamKey) {
        let (stream, own) = self.core.stream_and_own(key);
        if !std::mem::replace(&mut stream.own.is_ready, true) {
            own.ready.push_back(key);
        }
    }

    pub(super) fn unmark_ready(&mut self, key: StreamKey) {
        let (stream, own) = self.core.stream_and_own(key);
        if std::mem::replace(&mut stream.own.is_ready, false) {
            if own.ready.front() == Some(&key) {
                own.ready.pop_front();
            } else {
                own.ready.retain(|other| *other != key);
            }
        }
    }

    // Reading from QUIC.

    /// Bytes of a stream that may be read from QUIC now.
    pub(super) fn room(&self, key: StreamKey) -> usize {
        let stream = self.core.stream(key);
        if stream.own.recv_side != RecvSide::Open {
            return 0;
        }
        let mut max = self.core.limits().window_bytes;
        if stream.exchange.recv_state == RecvState::Head {
            // A whole head must fit.
            max = max.max(self.core.limits().http3.max_encoded_section_bytes as usize + 64);
        }
        max.saturating_sub(stream.held())
    }

    /// Adds a stream to those that are read from QUIC, if QUIC has bytes of it and there is room. `released`: bytes of
    /// the inbox that are being read.
    pub(super) fn list_readable(&mut self, key: StreamKey, released: usize) {
        let stream = self.core.stream(key);
        if !stream.own.is_readable || stream.own.is_listed {
            return;
        }
        let is_read = stream.inbox.len() == released;
        let room = self.room(key) + released;
        // After a full window, reading goes on when a good part of it is free.
        if room == 0 || (!is_read && room < self.core.limits().window_bytes / 4) {
            return;
        }
        let (stream, own) = self.core.stream_and_own(key);
        stream.own.is_listed = true;
        own.readable.push_back(stream.id.0);
    }

    /// All input of a stream is parsed.
    pub(super) fn all_parsed(&mut self, key: StreamKey) {
        self.unmark_ready(key);
        self.list_readable(key, 0);
        self.check_lost();
    }

    /// A new request stream of the client.
    pub(super) fn begin_request_stream(&mut self, id: u64) -> Result<(), Fault> {
        if matches!(self.go_away.own, GoAwayState::Final(first) if id >= first) {
            self.core.charge_control()?;
            self.reject_stream(id, rules::GOING_AWAY);
            return Ok(());
        }
        let max = self.core.limits().http3.max_concurrent_streams as usize;
        if self.core.stream_count() >= max {
            self.reject_stream(id, rules::REFUSED);
            return self.core.charge_reset();
        }
        let now = self.core.now();
        let key = self.begin_stream(id);
        let stream = self.core.stream_mut(key);
        stream.own.is_readable = true;
        stream.own.head_since = Some(now);
        self.watch_head();
        self.list_readable(key, 0);
        Ok(())
    }

    pub(super) fn begin_stream(&mut self, id: u64) -> StreamKey {
        let id = RequestId(id);
        let key = self.core.insert(id, StreamPart::begin);
        self.watch_idleness();
        key
    }

    // Frames.

    /// Parses the next frame of a stream, or a part of it.
    pub(super) fn next_frame(&mut self, key: StreamKey) -> Result<Step, Fault> {
        match self.parse_frame(key) {
            Ok(step) => Ok(step),
            Err(Violation::Connection(fault)) => Err(fault),
            Err(Violation::Stream(fault)) => {
                self.reset_stream(key, fault)?;
                Ok(Step::Next)
            }
        }
    }

    fn parse_frame(&mut self, key: StreamKey) -> Result<Step, Violation> {
        let stream = self.core.stream_mut(key);
        if stream.has_failed() || stream.is_closed() {
            stream.own.input.clear();
            return Ok(Step::NeedMore);
        }
        match stream.own.input.state {
            FrameState::Header => match stream.own.input.frame_header() {
                Some((header, n)) => {
                    stream.own.input.skip(n as u64);
                    self.frame(key, header)
                }
                None => self.no_frame(key),
            },
            FrameState::Headers(len) => match stream.own.input.section(len) {
                Some(section) => {
                    stream.own.input.state = FrameState::Header;
                    self.section(key, &section)
                }
                None => self.no_frame(key),
            },
            FrameState::Blocked if self.blocked.contains(&key) => Ok(Step::NeedMore),
            // Until the handshake is complete, or it is known that no body follows.
            FrameState::Held
                if self.early_data.is_open && stream.own.recv_side == RecvSide::Open =>
            {
                Ok(Step::NeedMore)
            }
            FrameState::Blocked | FrameState::Held => {
                let section = stream.own.input.unblock();
                self.section(key, &section)
            }
            FrameState::Data(left) => self.data(key, left),
            FrameState::Skip(left) => {
                let n = stream.own.input.skip(left);
                let left = left - n as u64;
                stream.own.input.state = if left == 0 {
                    FrameState::Header
                } else {
                    FrameState::Skip(left)
                };
                match left {
                    0 => Ok(Step::Next),
                    _ => self.no_frame(key),
                }
            }
        }
    }

    /// Nothing is complete: more is needed, or the stream has ended.
    fn no_frame(&mut self, key: StreamKey) -> Result<Step, Violation> {
        let stream = self.core.stream(key);
        if stream.own.recv_side != RecvSide::Ended {
            return Ok(Step::NeedMore);
        }
        if stream.own.input.held() > 0 || stream.own.input.state != FrameState::Header {
            return Err(Violation::Connection(rules::TRUNCATED_FRAME));
        }
        self.message_end(key).map_err(Violation::Stream)
    }

    /// Handles the header of a frame.
    fn frame(&mut self, key: StreamKey, header: FrameHeader) -> Result<Step, Violation> {
        use Violation::Connection as Conn;
        let has_trailers = self.core.stream(key).exchange.trailers.is_some();
        let state = match header.frame_type {
            FrameType::Data | FrameType::Headers if has_trailers => {
                return Err(Conn(rules::AFTER_TRAILERS));
            }
            FrameType::Data => self.begin_data(key, header.len)?,
            FrameType::Headers => {
                if self.core.stream(key).exchange.tunnel != Tunnel::None
                    && self.core.stream(key).exchange.recv_state != RecvState::Head
                {
                    return Err(Conn(rules::IN_TUNNEL));
                }
                let max = u64::from(self.core.limits().http3.max_encoded_section_bytes);
                if header.len > max {
                    return self.reject_section(key);
                }
                FrameState::Headers(header.len as usize)
            }
            FrameType::Unknown => {
                self.core.charge_control().map_err(Conn)?;
                match header.len {
                    0 => FrameState::Header,
                    len => FrameState::Skip(len),
                }
            }
            FrameType::Http2 => return Err(Conn(rules::OF_HTTP2)),
            FrameType::PushPromise if self.core.is_server() => {
                return Err(Conn(rules::PROMISE_BY_CLIENT));
            }
            FrameType::PushPromise => return Err(Conn(rules::PUSH)),
            FrameType::CancelPush
            | FrameType::Settings
            | FrameType::GoAway
            | FrameType::MaxPushId
            | FrameType::PriorityUpdateRequest
            | FrameType::PriorityUpdatePush => return Err(Conn(rules::ON_REQUEST)),
        };
        self.core.stream_mut(key).own.input.state = state;
        Ok(Step::Next)
    }

    // DATA (RFC 9114 7.2.1).

    /// Checks and accounts for a DATA frame of this length.
    fn begin_data(&mut self, key: StreamKey, len: u64) -> Result<FrameState, Violation> {
        if len == 0 {
            self.core.charge_control().map_err(Violation::Connection)?;
        }
        let stream = self.core.stream_mut(key);
        match stream.exchange.recv_state {
            RecvState::Body => {}
            RecvState::Head => return Err(Violation::Connection(rules::DATA_FIRST)),
            RecvState::Ended | RecvState::Done | RecvState::Failed => {
                return Ok(FrameState::Skip(len));
            }
        }
        let (stream, limits) = self.core.stream_and_limits(key);
        match stream
            .exchange
            .count_body(len, false, limits, &rules::MESSAGES)
        {
            Ok(()) => {}
            Err(fault) if fault == rules::BODY => {
                self.reject_body(key).map_err(Violation::Connection)?;
                return Ok(FrameState::Header);
            }
            Err(fault) => return Err(Violation::Stream(fault)),
        }
        Ok(if len == 0 {
            FrameState::Header
        } else {
            FrameState::Data(len)
        })
    }

    /// Handles the received part of a DATA frame.
    fn data(&mut self, key: StreamKey, left: u64) -> Result<Step, Violation> {
        let now = self.core.now();
        let stream = self.core.stream_mut(key);
        if stream.own.input.is_empty() {
            return self.no_frame(key);
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX);
        let piece: Bytes = stream.own.input.take(max);
        let n = piece.len();
        let left = left - n as u64;
        stream.own.input.state = if left == 0 {
            FrameState::Header
        } else {
            FrameState::Data(left)
        };
        stream.inbox.push(&piece);
        stream.recv_timer.advance(now, n);
        if stream.exchange.pending.take(PendingEvents::READER_WAITS) {
            // More of it may be here, and is read together.
            self.core.notify(key, PendingEvents::READABLE);
            return self.rest_of_body(key);
        }
        Ok(Step::Next)
    }

    /// Parses the rest of the body that is here before the program is notified.
    fn rest_of_body(&mut self, key: StreamKey) -> Result<Step, Violation> {
        while let FrameState::Data(left) = self.core.stream(key).own.input.state
            && !self.core.stream(key).own.input.is_empty()
        {
            self.data(key, left)?;
        }
        Ok(Step::Next)
    }
}

impl Events for Connection {
    fn next_signal(&mut self) -> Option<Signal> {
        loop {
            self.remove_closed();
            if let Some(signal) = self.next_pending_event() {
                return Some(signal);
            }
            if !self.is_open() {
                break;
            }
            let Some(&key) = self.core.own().ready.front() else {
                self.check_lost();
                break;
            };
            match self.next_frame(key) {
                Ok(Step::Signal(signal)) => return Some(signal),
                Ok(Step::Next) => {}
                Ok(Step::NeedMore) => self.all_parsed(key),
                Err(fault) => self.fail_connection(fault),
            }
        }
        self.core.take_ended()
    }
}
