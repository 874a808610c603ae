//! Receiving frames, one after the other until there is an event.

use crate::multiplexed::priority::Priority;
use crate::multiplexed::signal::{Signal, Step};
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Events, Lifecycle};
use crate::pending_events::PendingEvents;
use crate::{ErrorCode, PeerClose, StreamError};

use super::frame::{self, FrameHeader, FrameType, HEADER_BYTES, PREFACE, flag};
use super::rules::{self, Fault};
use super::stream::{RecvState, Tunnel};
use super::{Connection, GoAwayState, InputState, PartialData, Preface, settings, timers};

impl Connection {
    pub(super) fn next_frame(&mut self) -> Result<Step, Fault> {
        match self.state {
            InputState::Preface => self.preface(),
            InputState::Data(part) => Ok(self.data(part)),
            InputState::Skip(left) => Ok(self.skip(left)),
            InputState::Settings | InputState::Frame => {
                let Some(header) = FrameHeader::parse(self.input.unread()) else {
                    return Ok(Step::NeedMore);
                };
                self.check_header(header)?;
                if header.frame_type == FrameType::Data {
                    return self.begin_data(header);
                }
                let whole = HEADER_BYTES + header.len as usize;
                if self.input.len() < whole {
                    if matches!(
                        header.frame_type,
                        FrameType::Headers | FrameType::Continuation
                    ) {
                        self.timers.block.get_or_insert(self.core.now());
                    }
                    return Ok(Step::NeedMore);
                }
                let at = self.input.consume(whole) + HEADER_BYTES;
                self.state = InputState::Frame;
                self.frame(header, at)
            }
        }
    }

    fn preface(&mut self) -> Result<Step, Fault> {
        match Preface::detect(self.input.unread()) {
            Preface::Absent => Err(rules::PREFACE),
            Preface::Partial => Ok(Step::NeedMore),
            Preface::Complete => {
                self.input.consume(PREFACE.len());
                self.state = InputState::Settings;
                Ok(Step::Next)
            }
        }
    }

    fn skip(&mut self, left: u32) -> Step {
        let n = self.input.len().min(left as usize);
        self.input.consume(n);
        let left = left - n as u32;
        if left > 0 {
            self.state = InputState::Skip(left);
            return Step::NeedMore;
        }
        self.state = InputState::Frame;
        Step::Next
    }

    /// Checks that need only the header.
    fn check_header(&self, header: FrameHeader) -> Result<(), Fault> {
        if self.state == InputState::Settings
            && (header.frame_type != FrameType::Settings || header.has(flag::ACK))
        {
            return Err(rules::NO_SETTINGS);
        }
        if header.len > settings::max_frame(self.core.limits()) {
            return Err(rules::TOO_LONG);
        }
        let in_block = self.partial_block.stream != 0;
        let is_continuation = header.frame_type == FrameType::Continuation;
        if in_block && (!is_continuation || header.stream != self.partial_block.stream) {
            return Err(rules::BLOCK_INTERRUPTED);
        }
        if is_continuation && !in_block {
            return Err(rules::NO_BLOCK);
        }
        match header.frame_type {
            FrameType::Data | FrameType::Headers | FrameType::Priority | FrameType::Reset
                if header.stream == 0 =>
            {
                Err(rules::NEEDS_STREAM)
            }
            FrameType::Settings
            | FrameType::Ping
            | FrameType::GoAway
            | FrameType::PriorityUpdate
                if header.stream != 0 =>
            {
                Err(rules::NEEDS_CONNECTION)
            }
            _ => Ok(()),
        }
    }

    /// Handles a whole frame with its payload at offset `at`.
    fn frame(&mut self, header: FrameHeader, at: usize) -> Result<Step, Fault> {
        let len = header.len as usize;
        match header.frame_type {
            FrameType::Headers | FrameType::Continuation => {
                if self.core.is_client()
                    && let Some(to) = self.core.find(header.stream)
                {
                    self.core.stream_mut(to).stats.received += (HEADER_BYTES + len) as u64;
                }
                return if header.frame_type == FrameType::Headers {
                    self.headers(header, at)
                } else {
                    self.continuation(header, at)
                };
            }
            FrameType::Priority => self.priority(header, at)?,
            FrameType::Reset => self.reset_received(header, at)?,
            FrameType::Settings => self.settings(header, at)?,
            FrameType::PushPromise => return Err(rules::PUSH),
            FrameType::Ping => self.ping(header, at)?,
            FrameType::GoAway => self.go_away_received(header, at)?,
            FrameType::WindowUpdate => self.on_window_update(header, at)?,
            FrameType::PriorityUpdate => self.priority_update(at, len)?,
            FrameType::Unknown => self.core.charge_control()?,
            FrameType::Data => {}
        }
        Ok(Step::Next)
    }

    // Frames of the connection.

    fn settings(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        self.core.charge_control()?;
        let len = header.len as usize;
        if header.has(flag::ACK) {
            if len > 0 {
                return Err(rules::WRONG_SIZE);
            }
            self.settings_acknowledged();
            return Ok(());
        }
        if !len.is_multiple_of(6) {
            return Err(rules::WRONG_SIZE);
        }
        self.settings_received(at, len)?;
        self.on_settings();
        Ok(())
    }

    fn ping(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        let Some(&data) = self
            .input
            .consumed(at, header.len as usize)
            .first_chunk::<8>()
            .filter(|_| header.len == 8)
        else {
            return Err(rules::WRONG_SIZE);
        };
        if !header.has(flag::ACK) {
            self.core.charge_control()?;
            self.write_control(|out| frame::ping(out, flag::ACK, data));
            return Ok(());
        }
        if data == timers::GO_AWAY_PING && self.go_away.own == GoAwayState::Announced {
            self.go_away_acknowledged();
            return Ok(());
        }
        self.core.charge_control()?;
        self.timers.on_ping_ack(data);
        Ok(())
    }

    fn go_away_received(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        if header.len < 8 {
            return Err(rules::WRONG_SIZE);
        }
        self.core.charge_control()?;
        let payload = self.input.consumed(at, header.len as usize);
        let (last, code) = (frame::number(payload, 0), frame::word(payload, 4));
        let close = PeerClose::new(ErrorCode(u64::from(code)), &payload[8..], last == 0);
        self.on_peer_go_away(last, close);
        Ok(())
    }

    // Frames of a stream.

    /// Finds the stream of a frame; `None`: it is closed, and the frame may have been sent before the peer
    /// knew.
    pub(super) fn find_open(&self, id: u32) -> Result<Option<StreamKey>, Fault> {
        match self.core.find(id) {
            Some(at) if self.core.stream(at).is_over() => Ok(None),
            Some(at) => Ok(Some(at)),
            None if self.is_idle_stream(id) => Err(rules::IDLE_STREAM),
            None => Ok(None),
        }
    }

    /// Whether neither side has opened the stream (RFC 9113 5.1.1).
    pub(super) fn is_idle_stream(&self, id: u32) -> bool {
        let is_ours = (id % 2 == 1) == (self.core.is_client());
        self.ids.is_idle(id, is_ours)
    }

    fn reset_received(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        if header.len != 4 {
            return Err(rules::WRONG_SIZE);
        }
        let code = frame::word(self.input.consumed(at, 4), 0);
        let to = self.find_open(header.stream)?;
        // A repeated reset changes nothing: a peer that sends one for each DATA frame received after the first
        // (STREAM_CLOSED, RFC 9113 5.1) does not take back a complete response that ended with NO_ERROR.
        if self.resets.peer.has(header.stream) {
            return self.core.charge_control();
        }
        // A reset of a stream that we closed at the same time counts, too: the stream cost as much.
        self.core.charge_reset()?;
        self.resets.peer.add(header.stream);
        match to {
            Some(to) => self.reset_by_peer(to, crate::ErrorCode(u64::from(code))),
            // The peer has been informed that the stream is closed.
            None => self.resets.local.remove(header.stream),
        }
        Ok(())
    }

    /// Validated, and otherwise ignored (RFC 9113 5.3.2).
    fn priority(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        self.core.charge_control()?;
        let fault = if header.len != 5 {
            rules::WRONG_SIZE
        } else if frame::number(self.input.consumed(at, 5), 0) == header.stream {
            rules::SELF_DEPENDENCY
        } else {
            return Ok(());
        };
        match self.core.find(header.stream) {
            Some(to) if !self.core.stream(to).has_failed() => self.reset_stream(to, fault),
            // A stream that does not exist cannot be reset.
            _ => Err(fault),
        }
    }

    /// RFC 9218 7.1. Ignored for a stream that is not open yet; its request has a priority of its own.
    fn priority_update(&mut self, at: usize, len: usize) -> Result<(), Fault> {
        self.core.charge_control()?;
        if len < 4 {
            return Err(rules::WRONG_SIZE);
        }
        let payload = self.input.consumed(at, len);
        let id = frame::number(payload, 0);
        let priority = Priority::of(&payload[4..]);
        if self.core.is_client() || id == 0 {
            return Err(rules::PRIORITY_UPDATE);
        }
        if let Some(to) = self.core.find(id) {
            self.core.unqueue(to);
            self.core.stream_mut(to).priority = priority;
            self.update_send_queue(to);
        }
        Ok(())
    }

    // DATA (RFC 9113 6.1).

    pub(super) fn begin_data(&mut self, header: FrameHeader) -> Result<Step, Fault> {
        let mut front = HEADER_BYTES;
        let mut padding = 0;
        if header.has(flag::PADDED) {
            if header.len == 0 {
                return Err(rules::WRONG_SIZE);
            }
            let Some(&bytes) = self.input.unread().get(HEADER_BYTES) else {
                return Ok(Step::NeedMore);
            };
            front += 1;
            padding = u32::from(bytes);
            if padding >= header.len {
                return Err(rules::PADDING);
            }
        }
        self.recv_window
            .receive(header.len)
            .map_err(|_| rules::WINDOW)?;
        self.input.consume(front);
        self.release_connection_capacity(header.len);
        let framing = front as u32 - HEADER_BYTES as u32 + padding;
        let part = PartialData {
            id: header.stream,
            left: header.len - framing,
            padding,
            end: header.has(flag::END_STREAM),
        };
        self.state = InputState::Skip(part.left + part.padding);
        let open = self.find_open(part.id)?;
        if part.left == 0 && (!part.end || open.is_none()) {
            self.core.charge_control()?;
        }
        let Some(at) = open else {
            self.data_on_closed(header)?;
            return Ok(Step::Next);
        };
        self.core.stream_mut(at).stats.received += u64::from(front as u32 + padding);
        match self.admit_data(at, part, header.len) {
            Ok(()) => self.state = InputState::Data(part),
            Err(fault) if fault == rules::BODY => {
                self.reject_body(at)?;
                self.state = InputState::Data(part);
            }
            Err(fault) => self.reset_stream(at, fault)?,
        }
        if framing > 0 {
            self.release_capacity(at, framing);
        }
        Ok(Step::Next)
    }

    /// Whether the client has reset this stream, after which it must not send on it (RFC 9113 5.1).
    pub(super) fn is_reset_by_peer(&self, key: StreamKey) -> bool {
        let failure = &self.core.stream(key).exchange.failure;
        self.core.is_server() && matches!(failure, Some(StreamError::ResetByPeer(_)))
    }

    /// DATA on a stream that we reset. Its window is not reopened, so that the bytes sent before the peer
    /// received the reset are bounded (RFC 9113 5.1 and 6.9.1).
    fn data_on_closed(&mut self, header: FrameHeader) -> Result<(), Fault> {
        let window = self.resets.local.window(header.stream);
        let window = window.ok_or(rules::CLOSED_STREAM)?;
        let left = window.checked_sub(u64::from(header.len));
        *window = left.ok_or(rules::WINDOW)?;
        Ok(())
    }

    /// Checks and accounts for DATA on an open stream.
    fn admit_data(&mut self, key: StreamKey, part: PartialData, len: u32) -> Result<(), Fault> {
        let (stream, limits) = self.core.stream_and_limits(key);
        if stream.discard_until.is_some() {
            return stream
                .own
                .recv_window
                .receive(len)
                .map_err(|_| rules::WINDOW);
        }
        match stream.exchange.recv_state {
            RecvState::Body => {}
            RecvState::Head => return Err(rules::DATA_FIRST),
            RecvState::Ended | RecvState::Done | RecvState::Failed => {
                return Err(rules::HALF_CLOSED);
            }
        }
        stream
            .own
            .recv_window
            .receive(len)
            .map_err(|_| rules::WINDOW)?;
        if stream.own.recv_window.is_exhausted() {
            // The program has to read first; then the peer has a whole period again.
            stream.recv_timer.pause();
        }
        let n = u64::from(part.left);
        stream
            .exchange
            .count_body(n, part.end, limits, &rules::MESSAGES)
    }

    /// Handles the received part of a DATA frame.
    pub(super) fn data(&mut self, part: PartialData) -> Step {
        let n = self.input.len().min(part.left as usize);
        if n == 0 && part.left > 0 {
            return Step::NeedMore;
        }
        let from = self.input.consume(n);
        let left = part.left - n as u32;
        let is_whole = left == 0;
        self.state = if is_whole {
            InputState::Skip(part.padding)
        } else {
            InputState::Data(PartialData { left, ..part })
        };
        // The stream may have been reset between two parts.
        let Some(to) = self.core.find(part.id) else {
            return Step::Next;
        };
        let now = self.core.now();
        let stream = self.core.stream_mut(to);
        stream.stats.received += n as u64;
        if stream.discard_until.is_some() {
            stream.recv_timer.advance(now, n);
            self.release_capacity(to, n as u32);
            if is_whole && part.end {
                self.discarded(to);
            }
            return Step::Next;
        }
        if stream.exchange.recv_state != RecvState::Body {
            return Step::Next;
        }
        stream.recv_timer.advance(now, n);
        let ends = is_whole && part.end;
        if ends {
            stream.exchange.recv_state = RecvState::Ended;
            stream.recv_timer.stop();
        }
        if ends && stream.exchange.tunnel == Tunnel::Requested {
            // The tunnel cannot be read yet, and whether to open it may depend on the half-close.
            self.core.notify(to, PendingEvents::HALF_CLOSED);
        }
        let stream = self.core.stream_mut(to);
        if n > 0 {
            self.input.keep_chunk(to, from, n);
        } else if stream.exchange.recv_state != RecvState::Ended {
            return Step::Next;
        }
        if stream.exchange.pending.take(PendingEvents::READER_WAITS) {
            return Step::Signal(Signal::Readable(self.core.id_of(to)));
        }
        self.stash();
        self.check_closed(to);
        Step::Next
    }

    /// Moves unread body bytes from the receive buffer to their stream.
    pub(super) fn stash(&mut self) {
        if let Some((to, bytes)) = self.input.take_chunk() {
            self.core.stream_mut(to).inbox.push(bytes);
        }
    }
}

impl Events for Connection {
    fn next_signal(&mut self) -> Option<Signal> {
        self.stash();
        loop {
            self.remove_closed();
            if let Some(signal) = self.next_pending_event() {
                return Some(signal);
            }
            if !self.may_parse() {
                break;
            }
            match self.next_frame() {
                Ok(Step::Signal(signal)) => return Some(signal),
                Ok(Step::Next) => {}
                Ok(Step::NeedMore) if self.eof && !self.timers.eof_seen => self.on_input_end(),
                Ok(Step::NeedMore) => {
                    self.input.set_scanned();
                    break;
                }
                Err(fault) => self.fail_connection(fault),
            }
        }
        self.core.take_ended()
    }
}
