//! Receiving: heads become events, bodies are read by the program.

use crate::body::{Framing, Length, Method, request_framing, response_framing};
use crate::buffer::Head;
use crate::head::StartLine;
use crate::idle_timer::IdleTimer;
use crate::{ConnectionError, Event, Fields, HeadRef, Side, StreamId, StreamRead, Version};

use super::chunked::{Decoder, Next};
use super::head_info::{Expect, HeadInfo, Host};
use super::parse::{HeadParser, Parsed, empty_lines};
use super::{Connection, PendingEvents, Phase, RecvState, SendState, rules};
use crate::target::{check_host, check_target};

/// An event without borrows.
enum Signal {
    Head { at: usize, len: usize, end: bool },
    Informational { at: usize, len: usize },
    Readable,
    Switched,
    HalfClosed,
    Writable,
    Failed,
    Closed,
}

/// Next part of the body in the receive buffer.
enum BodyFront {
    Data(usize),
    End,
    Pending,
    Failed,
}

impl Connection {
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let signal = self.next_signal()?;
        let stream = StreamId(self.exchange.id);
        Some(match signal {
            Signal::Head { at, len, end } => Event::Head {
                stream,
                head: self.head_ref(at, len),
                end,
            },
            Signal::Informational { at, len } => Event::Informational {
                stream,
                head: self.head_ref(at, len),
            },
            Signal::Readable => Event::Readable(stream),
            Signal::Switched => Event::Switched { stream },
            Signal::HalfClosed => Event::HalfClosed(stream),
            Signal::Writable => Event::Writable(stream),
            Signal::Failed => Event::Failed(stream, self.stream_error()),
            Signal::Closed => Event::Closed(self.failure.error().cloned()?),
        })
    }

    fn head_ref(&self, at: usize, len: usize) -> HeadRef<'_> {
        let head = self.recv.head();
        HeadRef {
            bytes: self.recv.consumed(at, len),
            line: head.map(|head| head.parser.line).unwrap_or_default(),
            fields: head.map_or(&[][..], |head| &head.spans),
        }
    }

    fn next_signal(&mut self) -> Option<Signal> {
        if self.pending.take(PendingEvents::SWITCHED) {
            return Some(Signal::Switched);
        }
        if self.phase == Phase::Open {
            self.begin_pipelined();
            if self.is_discarding_body() {
                self.discard_body();
            }
            let signal = match self.recv_state {
                RecvState::Head if self.is_send_backlogged() => None,
                RecvState::Head => self.next_head(),
                RecvState::Idle | RecvState::Complete | RecvState::Failed => None,
                _ => self.wake_reader(),
            };
            if signal.is_some() {
                return signal;
            }
        }
        [
            (PendingEvents::HALF_CLOSED, Signal::HalfClosed),
            (PendingEvents::WRITABLE, Signal::Writable),
            (PendingEvents::FAILED, Signal::Failed),
            (PendingEvents::CLOSED, Signal::Closed),
        ]
        .into_iter()
        .find_map(|(event, signal)| self.pending.take(event).then_some(signal))
    }

    fn wake_reader(&mut self) -> Option<Signal> {
        if !self.pending.has(PendingEvents::READER_WAITS)
            || matches!(self.body_ready(), BodyFront::Pending | BodyFront::Failed)
        {
            return None;
        }
        self.pending.take(PendingEvents::READER_WAITS);
        Some(Signal::Readable)
    }

    // Heads.

    /// No byte of the next head was scanned.
    pub(super) fn has_fresh_head(&self) -> bool {
        self.recv.head().is_none_or(|head| head.parser.is_fresh())
    }

    /// Everything received of the next head was parsed, and it is incomplete.
    pub(super) fn has_parsed_all(&self) -> bool {
        let unread = self.recv.unread();
        let head = self.recv.head();
        head.map_or(0, |head| head.parser.scanned()) == unread.len() || unread == b"\r"
    }

    fn next_head(&mut self) -> Option<Signal> {
        if let Err(error) = self.skip_empty_lines() {
            self.fail(error);
            return None;
        }
        if self.recv.is_empty() {
            self.end_without_head();
            return None;
        }
        let (bytes, Head { parser, spans }) = self.recv.parse_parts();
        // A single CR may be the start of an empty line.
        let parsed = if bytes == b"\r" && parser.is_fresh() {
            Ok(Parsed::Partial)
        } else {
            parser.parse(bytes, spans, &self.limits, self.side)
        };
        if self.side == Side::Client && matches!(parsed, Ok(Parsed::Complete(_))) {
            parser.unfold(bytes, spans);
        }
        let HeadParser { line, info, .. } = *parser;
        let result = match (parsed, self.side) {
            (Ok(Parsed::Partial), _) if self.eof => Err(self.truncated(rules::TRUNCATED_HEAD)),
            (Ok(Parsed::Partial), _) => return None,
            (Ok(Parsed::Complete(len)), Side::Server) => self.begin_request(len, line, info),
            (Ok(Parsed::Complete(len)), Side::Client) => self.begin_response(len, line, info),
            // A record of a TLS handshake (RFC 8446 5.1).
            (Err(_), Side::Server) if self.recv.unread().starts_with(b"\x16") => Err(rules::TLS),
            (Err(error), _) => Err(error),
        };
        match result {
            Ok(signal) => Some(signal),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn skip_empty_lines(&mut self) -> Result<(), ConnectionError> {
        if matches!(self.recv.unread(), [b'\r' | b'\n', ..]) && self.has_fresh_head() {
            let unread = self.recv.unread();
            let n = empty_lines(unread, &mut self.empty_lines, &self.limits, self.side)?;
            self.recv.consume(n);
        }
        Ok(())
    }

    fn end_without_head(&mut self) {
        match self.side {
            _ if !self.eof => {}
            Side::Server => self.close_gracefully(rules::DONE),
            Side::Client => self.fail(self.truncated(rules::NO_RESPONSE)),
        }
    }

    /// Validates a complete request head of `len` bytes and starts its exchange.
    fn begin_request(
        &mut self,
        len: usize,
        line: StartLine,
        info: HeadInfo,
    ) -> Result<Signal, ConnectionError> {
        let version = line.version;
        let method = Method::of(&self.recv.unread()[..line.method_len as usize]);
        self.check_routing(line, &info)?;
        let framing = request_framing(version, info.length, info.coding)?;
        // Content in a CONNECT request has no meaning, and other implementations start the tunnel right after
        // the head.
        if method == Method::Connect && framing != Framing::None {
            return Err(rules::CONNECT_BODY);
        }
        if info.expect == Expect::Other && version == Version::Http11 {
            return Err(rules::EXPECT);
        }
        self.check_body_limit(info.length)?;

        let at = self.recv.consume(len);
        let keep_alive = peer_keeps_alive(version, &info);
        let exchange = &mut self.exchange;
        exchange.id += 1;
        exchange.method = method;
        exchange.version = version;
        exchange.keep_alive = keep_alive;
        exchange.may_upgrade = info.upgrade && info.options.upgrade && version == Version::Http11;
        exchange.awaits_continue = info.expect == Expect::Continue
            && version == Version::Http11
            && framing != Framing::None;
        exchange.body_bytes = 0;
        self.empty_lines = 0;
        self.trailers = None;
        self.pending
            .take(PendingEvents::WAITS | PendingEvents::WRITABLE);
        self.timers.idle = IdleTimer::Off;
        self.send_state = SendState::Head;
        self.begin_body(framing);
        if self.eof {
            self.pending.set(PendingEvents::HALF_CLOSED);
        }
        Ok(Signal::Head {
            at,
            len,
            end: framing == Framing::None,
        })
    }

    /// Target and Host (RFC 9112 3.2); the host of an absolute-form target replaces the field's value.
    fn check_routing(&mut self, line: StartLine, info: &HeadInfo) -> Result<(), ConnectionError> {
        let StartLine {
            version,
            method_len,
            target,
            target_len,
            ..
        } = line;
        let (bytes, Head { spans, .. }) = self.recv.parse_parts();
        let target = target as usize;
        let named = check_target(
            &bytes[..method_len as usize],
            &bytes[target..target + target_len as usize],
        )?;
        match info.host {
            Host::Absent if version == Version::Http11 => Err(rules::NO_HOST),
            Host::Absent => Ok(()),
            Host::Repeated => Err(rules::HOSTS),
            Host::Index(index) => {
                let span = &mut spans[index as usize];
                let value = span.value as usize;
                check_host(&bytes[value..value + span.value_len as usize])?;
                if let Some((at, len)) = named {
                    span.value = (target + at) as u32;
                    span.value_len = len as u32;
                }
                Ok(())
            }
        }
    }

    fn check_body_limit(&self, length: Length) -> Result<(), ConnectionError> {
        match (length, self.limits.max_body_bytes) {
            (Length::Bytes(bytes), Some(max)) if bytes > max => Err(rules::BODY),
            _ => Ok(()),
        }
    }

    /// A complete response head of `len` bytes, interim or final.
    fn begin_response(
        &mut self,
        len: usize,
        line: StartLine,
        info: HeadInfo,
    ) -> Result<Signal, ConnectionError> {
        let StartLine {
            version, status, ..
        } = line;
        // Equal values are one (RFC 9110 8.6).
        let length = info.length.merged();
        let framing = response_framing(self.exchange.method, status, version, length, info.coding)?;
        if (100..=199).contains(&status) && status != 101 {
            self.exchange.interim_responses += 1;
            if self.exchange.interim_responses > self.limits.max_interim_responses {
                return Err(rules::INTERIM);
            }
            return Ok(Signal::Informational {
                at: self.recv.consume(len),
                len,
            });
        }
        if status == 101 && !self.exchange.may_upgrade {
            return Err(rules::UNREQUESTED_SWITCH);
        }
        if framing != Framing::None {
            self.check_body_limit(length)?;
        }
        self.empty_lines = 0;
        self.exchange.version = version;
        self.exchange.keep_alive &= peer_keeps_alive(version, &info);
        let at = self.recv.consume(len);
        self.timers.idle = IdleTimer::Off;
        self.begin_body(framing);
        Ok(Signal::Head {
            at,
            len,
            end: framing == Framing::None,
        })
    }

    fn begin_body(&mut self, framing: Framing) {
        self.scanned_bytes = 0;
        self.recv_state = match framing {
            Framing::None => RecvState::Complete,
            Framing::Length(bytes) => RecvState::Length(bytes),
            Framing::Chunked => RecvState::Chunked(Decoder::new(self.side)),
            Framing::UntilClose => RecvState::UntilClose,
            Framing::Switch => RecvState::Raw,
        };
        match framing {
            Framing::None => return self.try_end_exchange(),
            Framing::Switch => {
                self.send_state = SendState::Raw;
                self.pending.set(PendingEvents::SWITCHED);
            }
            _ => self.timers.recv.start(self.now),
        }
        self.exchange.keep_alive &= !matches!(framing, Framing::UntilClose | Framing::Switch);
        // Nothing is expected from a client that awaits `100 Continue`, or while the window is full.
        if self.exchange.awaits_continue || !self.recv.has_space(self.recv_budget()) {
            self.timers.recv.pause();
        }
    }

    // Bodies.

    pub fn read(&mut self, max: usize) -> StreamRead<'_> {
        match self.body_ready() {
            BodyFront::Data(n) => {
                let n = n.min(max.max(1));
                let at = self.take(n);
                StreamRead::Data(self.recv.consumed(at, n))
            }
            BodyFront::End => StreamRead::End,
            BodyFront::Failed => StreamRead::Failed,
            BodyFront::Pending => {
                self.pending.set(PendingEvents::READER_WAITS);
                self.send_continue();
                StreamRead::Pending
            }
        }
    }

    /// Number of bytes that `read` would return.
    pub fn available(&mut self) -> usize {
        match self.body_ready() {
            BodyFront::Data(n) => n,
            BodyFront::End | BodyFront::Pending | BodyFront::Failed => 0,
        }
    }

    pub fn buffered(&self) -> usize {
        match self.recv_state {
            RecvState::Length(left) => self
                .recv
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX)),
            RecvState::Chunked(_) | RecvState::UntilClose | RecvState::Raw => self.recv.len(),
            _ => 0,
        }
    }

    pub fn trailers(&self) -> Fields<'_> {
        match &self.trailers {
            Some(trailers) if !matches!(self.recv_state, RecvState::Chunked(_)) => {
                Fields::new(&trailers.bytes, &trailers.spans)
            }
            _ => Fields::new(&[], &[]),
        }
    }

    /// Parses framing up to the next body bytes, or to the end.
    fn body_ready(&mut self) -> BodyFront {
        let ready = self.scan_body();
        if matches!(ready, BodyFront::Pending) {
            self.scanned_bytes = self.recv.len();
        }
        ready
    }

    fn scan_body(&mut self) -> BodyFront {
        let arrived = self.recv.len();
        match &mut self.recv_state {
            RecvState::Idle | RecvState::Head | RecvState::Complete => BodyFront::End,
            RecvState::Failed => BodyFront::Failed,
            RecvState::Length(left) => {
                match usize::try_from(*left).map_or(arrived, |left| left.min(arrived)) {
                    0 => self.body_incomplete(),
                    n => BodyFront::Data(n),
                }
            }
            RecvState::UntilClose | RecvState::Raw if arrived == 0 && self.eof => {
                match self.failure.transport() {
                    Some(rule) => self.body_failed(rules::aborted(rule)),
                    None => self.body_complete(),
                }
            }
            RecvState::UntilClose | RecvState::Raw if arrived == 0 => BodyFront::Pending,
            RecvState::Raw => BodyFront::Data(arrived),
            RecvState::UntilClose => {
                let bytes = self.exchange.body_bytes + arrived as u64;
                match self.limits.max_body_bytes {
                    Some(max) if bytes > max => self.body_failed(rules::BODY),
                    _ => BodyFront::Data(arrived),
                }
            }
            RecvState::Chunked(decoder) => {
                let next = decoder.advance(self.recv.unread(), &self.limits);
                let data_bytes = decoder.data_bytes();
                match next {
                    Ok((used, next)) => {
                        self.recv.consume(used);
                        self.scan_chunk(next, data_bytes)
                    }
                    Err(error) => self.body_failed(error),
                }
            }
        }
    }

    fn scan_chunk(&mut self, next: Next, data_bytes: u64) -> BodyFront {
        match next {
            Next::Data(left) => {
                if self
                    .limits
                    .max_body_bytes
                    .is_some_and(|max| data_bytes + left > max)
                {
                    return self.body_failed(rules::BODY);
                }
                match usize::try_from(left)
                    .unwrap_or(usize::MAX)
                    .min(self.recv.len())
                {
                    0 => self.body_incomplete(),
                    n => BodyFront::Data(n),
                }
            }
            Next::Trailers => match self.read_trailers() {
                Ok(true) => self.body_complete(),
                Ok(false) => self.body_incomplete(),
                Err(error) => self.body_failed(error),
            },
            Next::Pending => self.body_incomplete(),
        }
    }

    fn body_incomplete(&mut self) -> BodyFront {
        if self.eof {
            self.body_failed(self.truncated(rules::TRUNCATED_BODY))
        } else {
            BodyFront::Pending
        }
    }

    fn body_failed(&mut self, error: ConnectionError) -> BodyFront {
        self.fail(error);
        BodyFront::Failed
    }

    fn body_complete(&mut self) -> BodyFront {
        self.recv_state = RecvState::Complete;
        self.timers.recv.stop();
        self.try_end_exchange();
        BodyFront::End
    }

    /// Consumes `n` bytes reported by `body_ready`; returns their offset.
    fn take(&mut self, n: usize) -> usize {
        let at = self.recv.consume(n);
        self.exchange.body_bytes += n as u64;
        self.exchange.awaits_continue = false;
        match &mut self.recv_state {
            RecvState::Length(left) => {
                *left -= n as u64;
                if *left == 0 {
                    self.body_complete();
                }
            }
            RecvState::Chunked(decoder) => decoder.consume(n as u64),
            _ => {}
        }
        at
    }

    fn send_continue(&mut self) {
        if self.exchange.awaits_continue && self.send_state == SendState::Head {
            self.exchange.awaits_continue = false;
            self.send.push(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    /// Skips a request body that will not be read: the response has promised that another request may follow it.
    pub(super) fn discard_body(&mut self) {
        while self.is_discarding_body()
            && let BodyFront::Data(n) = self.body_ready()
        {
            self.take(n);
        }
    }
}

/// Whether the peer keeps the connection open after this message (RFC 9112 9.3).
fn peer_keeps_alive(version: Version, info: &HeadInfo) -> bool {
    match version {
        Version::Http10 => info.options.keep_alive && !info.options.close,
        Version::Http11 | Version::Http2 | Version::Http3 => !info.options.close,
    }
}
