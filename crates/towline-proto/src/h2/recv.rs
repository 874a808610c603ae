//! Frames, read one after the other until an event is due.

use crate::timer::HeadClock;
use crate::{Event, Side, StreamError, StreamId};

use super::frame::{self, FrameHeader, HEADER_BYTES, Kind, PREFACE, flag};
use super::rules::{self, Fault};
use super::stream::{Notices, Priority, Receiving, Tunnel};
use super::streams::At;
use super::{Chunk, Connection, Part, Preface, Reading, settings, timers};

/// An event before it borrows anything.
pub(super) enum Signal {
    Head { stream: u32, end: bool },
    Informational { stream: u32 },
    Readable(u32),
    Switched(u32),
    HalfClosed(u32),
    Writable(u32),
    Failed(u32, StreamError),
    GoingAway { last: u32 },
    Closed,
}

/// What a frame, or a part of one, came to.
pub(super) enum Step {
    Signal(Signal),
    Next,
    /// More input is needed.
    Starved,
}

impl Connection {
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let id = |stream: u32| StreamId(u64::from(stream));
        Some(match self.next_signal()? {
            Signal::Head { stream, end } => Event::Head {
                stream: id(stream),
                head: self.heads.view(),
                end,
            },
            Signal::Informational { stream } => Event::Informational {
                stream: id(stream),
                head: self.heads.view(),
            },
            Signal::Readable(stream) => Event::Readable(id(stream)),
            Signal::Switched(stream) => Event::Switched { stream: id(stream) },
            Signal::HalfClosed(stream) => Event::HalfClosed(id(stream)),
            Signal::Writable(stream) => Event::Writable(id(stream)),
            Signal::Failed(stream, error) => Event::Failed(id(stream), error),
            Signal::GoingAway { last } => Event::GoingAway { last: id(last) },
            Signal::Closed => Event::Closed(self.error.clone()?),
        })
    }

    fn next_signal(&mut self) -> Option<Signal> {
        self.stash();
        loop {
            self.bury();
            if let Some(signal) = self.next_notice() {
                return Some(signal);
            }
            // Before anything behind the GOAWAY, however the input was cut.
            if let Some(last) = self.news.going_away.take() {
                return Some(Signal::GoingAway { last });
            }
            if !self.may_parse() {
                break;
            }
            match self.next_frame() {
                Ok(Step::Signal(signal)) => return Some(signal),
                Ok(Step::Next) => {}
                Ok(Step::Starved) if self.eof && !self.clocks.eof_seen => self.input_ended(),
                Ok(Step::Starved) => {
                    self.looked_at = self.recv.len();
                    break;
                }
                Err(fault) => self.end_with(fault),
            }
        }
        std::mem::take(&mut self.news.closed).then_some(Signal::Closed)
    }

    fn next_notice(&mut self) -> Option<Signal> {
        let &at = self.noticed.front()?;
        let stream = self.streams.at_mut(at);
        let id = stream.id;
        let notices = &mut stream.notices;
        let signal = if notices.take(Notices::SWITCHED) {
            Signal::Switched(id)
        } else if notices.take(Notices::READABLE) {
            Signal::Readable(id)
        } else if notices.take(Notices::HALF_CLOSED) {
            Signal::HalfClosed(id)
        } else if notices.take(Notices::WRITABLE) {
            Signal::Writable(id)
        } else {
            notices.take(Notices::FAILED);
            Signal::Failed(id, stream.failure.clone().unwrap_or(StreamError::Reset))
        };
        if !stream.notices.has(Notices::EVENTS) {
            stream.is_noticed = false;
            self.noticed.pop_front();
        }
        if self.side == Side::Client && matches!(signal, Signal::Failed(..)) {
            self.set_over(at);
        }
        Some(signal)
    }

    /// Marks bytes as read and returns where they stand.
    pub(super) fn consume(&mut self, n: usize) -> usize {
        self.looked_at = 0;
        self.recv.consume(n)
    }

    pub(super) fn next_frame(&mut self) -> Result<Step, Fault> {
        match self.reading {
            Reading::Preface => self.preface(),
            Reading::Data(part) => Ok(self.data(part)),
            Reading::Skip(left) => Ok(self.skip(left)),
            Reading::Settings | Reading::Frame => {
                let Some(header) = FrameHeader::parse(self.recv.unread()) else {
                    return Ok(Step::Starved);
                };
                self.check_header(header)?;
                if header.kind == Kind::Data {
                    return self.begin_data(header);
                }
                let whole = HEADER_BYTES + header.len as usize;
                if self.recv.len() < whole {
                    if matches!(header.kind, Kind::Headers | Kind::Continuation) {
                        self.clocks.block.get_or_insert(self.now);
                    }
                    return Ok(Step::Starved);
                }
                let at = self.consume(whole) + HEADER_BYTES;
                self.reading = Reading::Frame;
                self.frame(header, at)
            }
        }
    }

    fn preface(&mut self) -> Result<Step, Fault> {
        match Preface::of(self.recv.unread()) {
            Preface::Absent => Err(rules::PREFACE),
            Preface::Unclear => Ok(Step::Starved),
            Preface::Whole => {
                self.consume(PREFACE.len());
                self.reading = Reading::Settings;
                Ok(Step::Next)
            }
        }
    }

    fn skip(&mut self, left: u32) -> Step {
        let n = self.recv.len().min(left as usize);
        self.consume(n);
        let left = left - n as u32;
        if left > 0 {
            self.reading = Reading::Skip(left);
            return Step::Starved;
        }
        self.reading = Reading::Frame;
        Step::Next
    }

    /// What can be told from the header alone.
    fn check_header(&self, header: FrameHeader) -> Result<(), Fault> {
        if self.reading == Reading::Settings
            && (header.kind != Kind::Settings || header.has(flag::ACK))
        {
            return Err(rules::NO_SETTINGS);
        }
        if header.len > settings::max_frame(&self.limits) {
            return Err(rules::TOO_LONG);
        }
        let in_block = self.block.stream != 0;
        let is_continuation = header.kind == Kind::Continuation;
        if in_block && (!is_continuation || header.stream != self.block.stream) {
            return Err(rules::BLOCK_INTERRUPTED);
        }
        if is_continuation && !in_block {
            return Err(rules::NO_BLOCK);
        }
        match header.kind {
            Kind::Data | Kind::Headers | Kind::Priority | Kind::Reset if header.stream == 0 => {
                Err(rules::NEEDS_STREAM)
            }
            Kind::Settings | Kind::Ping | Kind::GoAway | Kind::PriorityUpdate
                if header.stream != 0 =>
            {
                Err(rules::NEEDS_CONNECTION)
            }
            _ => Ok(()),
        }
    }

    /// A whole frame; its payload stands at `at`.
    fn frame(&mut self, header: FrameHeader, at: usize) -> Result<Step, Fault> {
        let len = header.len as usize;
        match header.kind {
            Kind::Headers | Kind::Continuation => {
                if self.side == Side::Client
                    && let Some(to) = self.streams.find(header.stream)
                {
                    self.streams.at_mut(to).stats.received += (HEADER_BYTES + len) as u64;
                }
                return if header.kind == Kind::Headers {
                    self.headers(header, at)
                } else {
                    self.continuation(header, at)
                };
            }
            Kind::Priority => self.priority(header, at)?,
            Kind::Reset => self.reset_received(header, at)?,
            Kind::Settings => self.settings(header, at)?,
            Kind::PushPromise => return Err(rules::PUSH),
            Kind::Ping => self.ping(header, at)?,
            Kind::GoAway => self.go_away_received(header, at)?,
            Kind::WindowUpdate => self.window_update(header, at)?,
            Kind::PriorityUpdate => self.priority_update(at, len)?,
            Kind::Unknown => self.charge_control()?,
            Kind::Data => {}
        }
        Ok(Step::Next)
    }

    /// A frame that moves nothing.
    pub(super) fn charge_control(&mut self) -> Result<(), Fault> {
        if self
            .control
            .take(self.limits.http2.control_frames, self.now)
        {
            Ok(())
        } else {
            Err(rules::CONTROL)
        }
    }

    // Frames of the connection.

    fn settings(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        self.charge_control()?;
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
        if matches!(self.clocks.head, HeadClock::Head(_) | HeadClock::Parting(_)) {
            self.clocks.head = HeadClock::Idle(self.now);
            if self.closing {
                self.begin_leaving();
            }
        }
        Ok(())
    }

    fn ping(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        let Some(&data) = self
            .recv
            .consumed(at, header.len as usize)
            .first_chunk::<8>()
            .filter(|_| header.len == 8)
        else {
            return Err(rules::WRONG_SIZE);
        };
        if !header.has(flag::ACK) {
            self.charge_control()?;
            self.write_control(|out| frame::ping(out, flag::ACK, data));
            return Ok(());
        }
        if data == timers::LEAVING && self.clocks.left.is_some() {
            self.leave();
            return Ok(());
        }
        self.charge_control()?;
        self.clocks.answered(data);
        Ok(())
    }

    fn go_away_received(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        if header.len < 8 {
            return Err(rules::WRONG_SIZE);
        }
        self.charge_control()?;
        let payload = self.recv.consumed(at, 8);
        let (last, code) = (frame::number(payload, 0), frame::word(payload, 4));
        self.peer_leaves(last, crate::ErrorCode(code));
        Ok(())
    }

    fn window_update(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        if header.len != 4 {
            return Err(rules::WRONG_SIZE);
        }
        let increment = frame::number(self.recv.consumed(at, 4), 0);
        // Large ones end by overflow, unless nobody counts them; those that answer frames of ours are no more
        // than these.
        let is_counted = header.stream == 0 || self.streams.find(header.stream).is_some();
        if increment < 1024 || !is_counted {
            if self.updates_earned > 0 {
                self.updates_earned -= 1;
            } else {
                self.charge_control()?;
            }
        }
        if header.stream == 0 {
            if increment == 0 {
                return Err(rules::NO_INCREMENT);
            }
            self.send_window
                .shift(i64::from(increment))
                .map_err(|_| rules::WINDOW_OVERFLOW)?;
            self.pump();
            return Ok(());
        }
        let Some(to) = self.addressed(header.stream)? else {
            // Nothing that crossed our end of the stream explains it.
            return if increment == 0 {
                Err(rules::NO_INCREMENT)
            } else {
                Ok(())
            };
        };
        if increment == 0 {
            return self.break_stream(to, rules::NO_INCREMENT);
        }
        let stream = self.streams.at_mut(to);
        if stream.send_window.shift(i64::from(increment)).is_err() {
            return self.break_stream(to, rules::WINDOW_OVERFLOW);
        }
        self.window_moved(to);
        self.pump();
        Ok(())
    }

    // Frames of a stream.

    /// The stream that a frame speaks of; `None`: it is closed, and the frame may have crossed that.
    fn addressed(&self, id: u32) -> Result<Option<At>, Fault> {
        match self.streams.find(id) {
            Some(at) if self.streams.at(at).has_failed() => Ok(None),
            Some(at) => Ok(Some(at)),
            None if self.is_idle_stream(id) => Err(rules::IDLE_STREAM),
            None => Ok(None),
        }
    }

    /// RFC 9113 5.1.1: neither side has begun it.
    pub(super) fn is_idle_stream(&self, id: u32) -> bool {
        let is_ours = (id % 2 == 1) == (self.side == Side::Client);
        if is_ours {
            id >= self.next_id
        } else {
            id > self.last_peer.max(self.last_ignored)
        }
    }

    fn reset_received(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        if header.len != 4 {
            return Err(rules::WRONG_SIZE);
        }
        let code = frame::word(self.recv.consumed(at, 4), 0);
        let to = self.addressed(header.stream)?;
        if to.is_none() && self.cancelled.has(header.stream) {
            return self.charge_control();
        }
        // Also on a stream that was closed by us at the same time: it cost as much.
        self.charge_reset()?;
        self.cancelled.add(header.stream);
        match to {
            Some(to) => self.reset_by_peer(to, crate::ErrorCode(code)),
            // Now it knows that the stream is closed.
            None => self.forgotten.remove(header.stream),
        }
        Ok(())
    }

    /// RFC 9113 5.3.2: checked, and otherwise ignored.
    fn priority(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        self.charge_control()?;
        let fault = if header.len != 5 {
            rules::WRONG_SIZE
        } else if frame::number(self.recv.consumed(at, 5), 0) == header.stream {
            rules::SELF_DEPENDENCY
        } else {
            return Ok(());
        };
        match self.streams.find(header.stream) {
            Some(to) if !self.streams.at(to).has_failed() => self.break_stream(to, fault),
            // A stream that is not there cannot be reset.
            _ => Err(fault),
        }
    }

    /// RFC 9218 7.1. Of a stream that has not begun it is forgotten; its request says it too.
    fn priority_update(&mut self, at: usize, len: usize) -> Result<(), Fault> {
        self.charge_control()?;
        if len < 4 {
            return Err(rules::WRONG_SIZE);
        }
        let payload = self.recv.consumed(at, len);
        let id = frame::number(payload, 0);
        let priority = Priority::of(&payload[4..]);
        if self.side == Side::Client || id == 0 {
            return Err(rules::PRIORITY_UPDATE);
        }
        if let Some(to) = self.streams.find(id) {
            self.turns.remove(&mut self.streams, to);
            self.streams.at_mut(to).priority = priority;
            self.window_moved(to);
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
            let Some(&bytes) = self.recv.unread().get(HEADER_BYTES) else {
                return Ok(Step::Starved);
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
        self.consume(front);
        if let Some(increment) = self.recv_window.give(header.len) {
            self.write_control(|out| frame::window_update(out, 0, increment));
        }
        let framing = front as u32 - HEADER_BYTES as u32 + padding;
        let part = Part {
            id: header.stream,
            left: header.len - framing,
            padding,
            end: header.has(flag::END_STREAM),
        };
        self.reading = Reading::Skip(part.left + part.padding);
        let open = self.addressed(part.id)?;
        if part.left == 0 && (!part.end || open.is_none()) {
            self.charge_control()?;
        }
        let Some(at) = open else {
            self.data_on_closed(header)?;
            return Ok(Step::Next);
        };
        self.streams.at_mut(at).stats.received += u64::from(front as u32 + padding);
        match self.admit_data(at, part, header.len) {
            Ok(()) => self.reading = Reading::Data(part),
            Err(fault) if fault == rules::BODY => self.refuse_body(at)?,
            Err(fault) => self.break_stream(at, fault)?,
        }
        if framing > 0 {
            self.give_back(at, framing);
        }
        Ok(Step::Next)
    }

    /// A client that took its request back says nothing more on it (RFC 9113 5.1).
    pub(super) fn is_reset_by_peer(&self, at: At) -> bool {
        let failure = &self.streams.at(at).failure;
        self.side == Side::Server && matches!(failure, Some(StreamError::ResetByPeer(_)))
    }

    /// Of a stream that we reset. Its window does not open any more, so that what the peer had not heard of
    /// that has an end (RFC 9113 5.1 and 6.9.1).
    fn data_on_closed(&mut self, header: FrameHeader) -> Result<(), Fault> {
        let window = self.forgotten.window(header.stream);
        let window = window.ok_or(rules::CLOSED_STREAM)?;
        let left = window.checked_sub(u64::from(header.len));
        *window = left.ok_or(rules::WINDOW)?;
        Ok(())
    }

    /// An open stream takes these bytes, or breaks.
    fn admit_data(&mut self, at: At, part: Part, len: u32) -> Result<(), Fault> {
        let stream = self.streams.at_mut(at);
        match stream.receiving {
            Receiving::Body => {}
            Receiving::Head => return Err(rules::DATA_FIRST),
            Receiving::Ended | Receiving::Done | Receiving::Failed => {
                return Err(rules::HALF_CLOSED);
            }
        }
        stream.recv_window.receive(len).map_err(|_| rules::WINDOW)?;
        if stream.recv_window.is_shut() {
            // It is the program's turn; when it has read, the peer has a whole period again.
            stream.recv_clock.pause();
        }
        let n = u64::from(part.left);
        if let Some(announced) = stream.announced {
            let left = announced.checked_sub(n).ok_or(rules::BODY_LENGTH)?;
            if part.end && left > 0 {
                return Err(rules::BODY_LENGTH);
            }
            stream.announced = Some(left);
        }
        stream.received_bytes += n;
        let received = stream.received_bytes;
        if self
            .limits
            .max_body_bytes
            .is_some_and(|most| received > most)
        {
            return Err(rules::BODY);
        }
        Ok(())
    }

    /// What is here of a DATA frame.
    pub(super) fn data(&mut self, part: Part) -> Step {
        let n = self.recv.len().min(part.left as usize);
        if n == 0 && part.left > 0 {
            return Step::Starved;
        }
        let from = self.consume(n);
        let left = part.left - n as u32;
        let is_whole = left == 0;
        self.reading = if is_whole {
            Reading::Skip(part.padding)
        } else {
            Reading::Data(Part { left, ..part })
        };
        // It may have been given up between two parts.
        let Some(to) = self.streams.find(part.id) else {
            return Step::Next;
        };
        let stream = self.streams.at_mut(to);
        stream.stats.received += n as u64;
        if stream.receiving != Receiving::Body {
            return Step::Next;
        }
        stream.recv_clock.advance(self.now, n);
        let ends = is_whole && part.end;
        if ends {
            stream.receiving = Receiving::Ended;
            stream.recv_clock.stop();
        }
        if ends && stream.tunnel == Tunnel::Asked {
            // Nobody reads it yet, and whether it is to be opened may depend on it.
            self.notice(to, Notices::HALF_CLOSED);
        }
        let stream = self.streams.at_mut(to);
        if n > 0 {
            self.chunk = Some(Chunk {
                to,
                at: from,
                len: n,
            });
        } else if stream.receiving != Receiving::Ended {
            return Step::Next;
        }
        if stream.notices.take(Notices::READER_WAITS) {
            return Step::Signal(Signal::Readable(part.id));
        }
        self.stash();
        self.check_over(to);
        Step::Next
    }

    /// Moves body bytes that were not read in their turn out of the receive block.
    pub(super) fn stash(&mut self) {
        if let Some(Chunk { to, at, len }) = self.chunk.take() {
            let stream = self.streams.at_mut(to);
            stream.inbox.push(self.recv.consumed(at, len));
        }
    }
}
