//! Receiving frames of request streams (RFC 9114 4.1), one stream after the other until there is an event.
//!
//! ```text
//!   HEADERS ─► DATA ... ─► HEADERS (trailers) ─► end       frames of unknown types are skipped anywhere
//! ```

use bytes::Bytes;

use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::signal::{Signal, Step};
use crate::multiplexed::streams::StreamKey;
use crate::{Event, Side, StreamId};

use super::frame::{FrameHeader, FrameType};
use super::rules::{self, Fault};
use super::stream::{FrameState, RecvSide, RecvState, RequestId, Tunnel};
use super::{Connection, GoAwayState, Phase};

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
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let signal = self.next_signal()?;
        signal.event(&self.head_decoder, self.error.as_ref())
    }

    fn next_signal(&mut self) -> Option<Signal> {
        loop {
            self.remove_closed();
            if let Some(signal) = self.next_pending_event() {
                return Some(signal);
            }
            // Before anything after the GOAWAY, however the input was cut.
            if let Some(first) = self.conn_events.going_away.take() {
                let last = StreamId(first.saturating_sub(4));
                return Some(Signal::GoingAway { last });
            }
            if self.phase != Phase::Open {
                break;
            }
            let Some(&key) = self.ready.front() else {
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
        std::mem::take(&mut self.conn_events.closed).then_some(Signal::Closed)
    }

    fn next_pending_event(&mut self) -> Option<Signal> {
        let &key = self.eventful.front()?;
        let id = self.id_of(key);
        let stream = self.streams.get_mut(key);
        let signal = Signal::pending_of(id, &mut stream.exchange);
        if !stream.exchange.pending.has(PendingEvents::EVENTS) {
            stream.has_events = false;
            self.eventful.pop_front();
        }
        if self.side == Side::Client && matches!(signal, Signal::Failed(..)) {
            self.mark_closed(key);
        }
        Some(signal)
    }

    /// Adds a stream to those with bytes to parse.
    pub(super) fn mark_ready(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if !std::mem::replace(&mut stream.is_ready, true) {
            self.ready.push_back(key);
        }
    }

    pub(super) fn unmark_ready(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if std::mem::replace(&mut stream.is_ready, false) {
            if self.ready.front() == Some(&key) {
                self.ready.pop_front();
            } else {
                self.ready.retain(|other| *other != key);
            }
        }
    }

    // Reading from QUIC.

    /// Bytes of a stream that may be read from QUIC now.
    pub(super) fn room(&self, key: StreamKey) -> usize {
        let stream = self.streams.get(key);
        if stream.recv_side != RecvSide::Open {
            return 0;
        }
        let mut max = self.limits.window_bytes;
        if stream.exchange.recv_state == RecvState::Head {
            // A whole head must fit.
            max = max.max(self.limits.http3.max_encoded_section_bytes as usize + 64);
        }
        max.saturating_sub(stream.held())
    }

    /// Adds a stream to those that are read from QUIC, if QUIC has bytes of it and there is room. `released`: bytes of
    /// the inbox that are being read.
    pub(super) fn list_readable(&mut self, key: StreamKey, released: usize) {
        let stream = self.streams.get(key);
        if !stream.is_readable || stream.is_listed {
            return;
        }
        let is_read = stream.inbox.len() == released;
        let room = self.room(key) + released;
        // After a full window, reading goes on when a good part of it is free.
        if room == 0 || (!is_read && room < self.limits.window_bytes / 4) {
            return;
        }
        let stream = self.streams.get_mut(key);
        stream.is_listed = true;
        self.readable.push_back(stream.id.0);
    }

    /// All input of a stream is parsed.
    pub(super) fn all_parsed(&mut self, key: StreamKey) {
        self.unmark_ready(key);
        self.list_readable(key, 0);
        self.check_lost();
    }

    /// A new request stream of the client.
    pub(super) fn begin_request_stream(&mut self, id: u64) -> Result<(), Fault> {
        if matches!(self.go_away, GoAwayState::Final(first) if id >= first) {
            self.charge_control()?;
            self.reject_stream(id, rules::GOING_AWAY);
            return Ok(());
        }
        let max = self.limits.http3.max_concurrent_streams as usize;
        if self.streams.len() >= max {
            self.reject_stream(id, rules::REFUSED);
            return self.charge_reset();
        }
        let key = self.begin_stream(id);
        let stream = self.streams.get_mut(key);
        stream.is_readable = true;
        stream.head_since = Some(self.now);
        self.watch_head();
        self.list_readable(key, 0);
        Ok(())
    }

    pub(super) fn begin_stream(&mut self, id: u64) -> StreamKey {
        let id = RequestId(id);
        let key = self.streams.insert(id, |stream| stream.begin(id));
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
        let stream = self.streams.get_mut(key);
        if stream.has_failed() || stream.is_closed {
            stream.input.clear();
            return Ok(Step::NeedMore);
        }
        match stream.input.state {
            FrameState::Header => match stream.input.frame_header() {
                Some((header, n)) => {
                    stream.input.skip(n as u64);
                    self.frame(key, header)
                }
                None => self.no_frame(key),
            },
            FrameState::Headers(len) => match stream.input.section(len) {
                Some(section) => {
                    stream.input.state = FrameState::Header;
                    self.section(key, &section)
                }
                None => self.no_frame(key),
            },
            FrameState::Blocked if self.blocked.contains(&key) => Ok(Step::NeedMore),
            // Until the handshake is complete, or it is known that no body follows.
            FrameState::Held if self.early_data.is_open && stream.recv_side == RecvSide::Open => {
                Ok(Step::NeedMore)
            }
            FrameState::Blocked | FrameState::Held => {
                let section = stream.input.unblock();
                self.section(key, &section)
            }
            FrameState::Data(left) => self.data(key, left),
            FrameState::Skip(left) => {
                let n = stream.input.skip(left);
                let left = left - n as u64;
                stream.input.state = if left == 0 {
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
        let stream = self.streams.get(key);
        if stream.recv_side != RecvSide::Ended {
            return Ok(Step::NeedMore);
        }
        if stream.input.held() > 0 || stream.input.state != FrameState::Header {
            return Err(Violation::Connection(rules::TRUNCATED_FRAME));
        }
        self.message_end(key).map_err(Violation::Stream)
    }

    /// Handles the header of a frame.
    fn frame(&mut self, key: StreamKey, header: FrameHeader) -> Result<Step, Violation> {
        use Violation::Connection as Conn;
        let has_trailers = self.streams.get(key).exchange.trailers.is_some();
        let state = match header.frame_type {
            FrameType::Data | FrameType::Headers if has_trailers => {
                return Err(Conn(rules::AFTER_TRAILERS));
            }
            FrameType::Data => self.begin_data(key, header.len)?,
            FrameType::Headers => {
                if self.streams.get(key).exchange.tunnel != Tunnel::None
                    && self.streams.get(key).exchange.recv_state != RecvState::Head
                {
                    return Err(Conn(rules::IN_TUNNEL));
                }
                let max = u64::from(self.limits.http3.max_encoded_section_bytes);
                if header.len > max {
                    return self.reject_section(key);
                }
                FrameState::Headers(header.len as usize)
            }
            FrameType::Unknown => {
                self.charge_control().map_err(Conn)?;
                match header.len {
                    0 => FrameState::Header,
                    len => FrameState::Skip(len),
                }
            }
            FrameType::Http2 => return Err(Conn(rules::OF_HTTP2)),
            FrameType::PushPromise if self.side == Side::Server => {
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
        self.streams.get_mut(key).input.state = state;
        Ok(Step::Next)
    }

    // DATA (RFC 9114 7.2.1).

    /// Checks and accounts for a DATA frame of this length.
    fn begin_data(&mut self, key: StreamKey, len: u64) -> Result<FrameState, Violation> {
        if len == 0 {
            self.charge_control().map_err(Violation::Connection)?;
        }
        let stream = self.streams.get_mut(key);
        match stream.exchange.recv_state {
            RecvState::Body => {}
            RecvState::Head => return Err(Violation::Connection(rules::DATA_FIRST)),
            RecvState::Ended | RecvState::Done | RecvState::Failed => {
                return Ok(FrameState::Skip(len));
            }
        }
        let (exchange, limits) = (&mut stream.exchange, &self.limits);
        match exchange.count_body(len, false, limits, &rules::MESSAGES) {
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
        let now = self.now;
        let stream = self.streams.get_mut(key);
        if stream.input.is_empty() {
            return self.no_frame(key);
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX);
        let piece: Bytes = stream.input.take(max);
        let n = piece.len();
        let left = left - n as u64;
        stream.input.state = if left == 0 {
            FrameState::Header
        } else {
            FrameState::Data(left)
        };
        stream.inbox.push(&piece);
        stream.recv_timer.advance(now, n);
        if stream.exchange.pending.take(PendingEvents::READER_WAITS) {
            // More of it may be here, and is read together.
            self.notify(key, PendingEvents::READABLE);
            return self.rest_of_body(key);
        }
        Ok(Step::Next)
    }

    /// Parses the rest of the body that is here before the program is notified.
    fn rest_of_body(&mut self, key: StreamKey) -> Result<Step, Violation> {
        while let FrameState::Data(left) = self.streams.get(key).input.state
            && !self.streams.get(key).input.is_empty()
        {
            self.data(key, left)?;
        }
        Ok(Step::Next)
    }

    /// Charges a frame that carries no data to its rate limit.
    pub(super) fn charge_control(&mut self) -> Result<(), Fault> {
        let limit = self.limits.http3.control_frames;
        if self.control.take(limit, self.now) {
            Ok(())
        } else {
            Err(rules::CONTROL)
        }
    }
}
