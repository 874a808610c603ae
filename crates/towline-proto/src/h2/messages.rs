//! Receiving messages: header blocks become heads and trailers, bodies are read by the program.

use crate::error::CloseReason;
use crate::field_compression::{Bounds, DecodedFields};
use crate::multiplexed::head::{HeadRules, Rejection, Request};
use crate::multiplexed::refusals::Refused;
use crate::multiplexed::response::{encode_response, with_own_head};
use crate::multiplexed::signal::{Signal, Step};
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Messages, Timing};
use crate::pending_events::PendingEvents;
use crate::{Fields, Side, StreamId, StreamRead, Version};

use super::frame::{self, FrameHeader, FrameType, flag};
use super::rules::{self, Fault};
use super::stream::{EndStream, RecvState, SendState, Tunnel};
use super::window::{RecvWindow, SendWindow};
use super::{Connection, GoAwayState, InputState, PartialHeaderBlock};

impl Connection {
    // Header blocks (RFC 9113 4.3).

    pub(super) fn headers(&mut self, header: FrameHeader, at: usize) -> Result<Step, Fault> {
        let payload = self.input.consumed(at, header.len as usize);
        let mut from = 0;
        let mut padding = 0;
        if header.has(flag::PADDED) {
            padding = usize::from(*payload.first().ok_or(rules::WRONG_SIZE)?);
            from = 1;
        }
        let mut self_dependent = false;
        if header.has(flag::PRIORITY) {
            if payload.len() < from + 5 {
                return Err(rules::WRONG_SIZE);
            }
            self_dependent = frame::number(payload, from) == header.stream;
            from += 5;
        }
        let to = payload.len().checked_sub(padding).filter(|&to| to >= from);
        let to = to.ok_or(rules::PADDING)?;
        let end_stream = header.has(flag::END_STREAM);
        if header.has(flag::END_HEADERS) {
            self.timers.block = None;
            let decoded = self.decode_in_place(at + from, to - from)?;
            return self.head(header.stream, end_stream, self_dependent, decoded);
        }
        self.timers.block.get_or_insert(self.core.now());
        let bytes = std::mem::take(&mut self.partial_block.bytes);
        self.partial_block = PartialHeaderBlock {
            stream: header.stream,
            end_stream,
            self_dependent,
            continuations: 0,
            bytes,
        };
        self.append_to_block(at + from, to - from)?;
        Ok(Step::Next)
    }

    /// Checked before anything is decoded (CVE-2024-27316).
    pub(super) fn continuation(&mut self, header: FrameHeader, at: usize) -> Result<Step, Fault> {
        self.partial_block.continuations += 1;
        if self.partial_block.continuations > self.core.limits().http2.max_continuations {
            return Err(rules::CONTINUATIONS);
        }
        self.append_to_block(at, header.len as usize)?;
        if !header.has(flag::END_HEADERS) {
            return Ok(Step::Next);
        }
        self.timers.block = None;
        let block = std::mem::take(&mut self.partial_block);
        let rules = self.head_rules();
        let decoded = self
            .core
            .head_decoder_mut()
            .decode(&mut self.decoder, &block.bytes, rules);
        let decoded = decoded.map_err(compression)?;
        self.head(
            header.stream,
            block.end_stream,
            block.self_dependent,
            decoded,
        )
    }

    fn append_to_block(&mut self, at: usize, len: usize) -> Result<(), Fault> {
        let max = self.core.limits().http2.max_header_block_bytes as usize;
        if self.partial_block.bytes.len() + len > max {
            return Err(rules::BLOCK);
        }
        let bytes = self.input.consumed(at, len);
        self.partial_block.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn decode_in_place(&mut self, at: usize, len: usize) -> Result<DecodedFields, Fault> {
        if len > self.core.limits().http2.max_header_block_bytes as usize {
            return Err(rules::BLOCK);
        }
        let rules = self.head_rules();
        let block = self.input.consumed(at, len);
        self.core
            .head_decoder_mut()
            .decode(&mut self.decoder, block, rules)
            .map_err(compression)
    }

    fn head_rules(&self) -> HeadRules {
        HeadRules {
            bounds: Bounds {
                max_bytes: self.core.limits().http2.max_header_list_bytes,
                max_fields: self.core.limits().http2.max_fields,
            },
            version: Version::Http2,
        }
    }

    /// Handles a decoded block: a head or trailers, by the state of its stream.
    fn head(
        &mut self,
        id: u32,
        end: bool,
        self_dependent: bool,
        decoded: DecodedFields,
    ) -> Result<Step, Fault> {
        let Some(key) = self.core.find(id) else {
            return match self.core.side() {
                Side::Server if self.is_idle_stream(id) => {
                    self.request_received(id, end, self_dependent, decoded)
                }
                _ => self.head_on_closed(id),
            };
        };
        if self.is_reset_by_peer(key) {
            return Err(rules::CLOSED_STREAM);
        }
        if self.core.stream(key).discard_until.is_some() {
            if end {
                self.discarded(key);
            }
            return Ok(Step::Next);
        }
        if self_dependent {
            self.reset_stream(key, rules::SELF_DEPENDENCY)?;
            return Ok(Step::Next);
        }
        let result = match self.core.stream(key).exchange.recv_state {
            RecvState::Failed => Ok(None),
            RecvState::Ended | RecvState::Done => Err(rules::HALF_CLOSED),
            RecvState::Head | RecvState::Body if decoded == DecodedFields::Truncated => {
                Err(rules::HEADERS)
            }
            RecvState::Head => self.on_response(key, end),
            RecvState::Body => self.trailers_received(key, end),
        };
        match result {
            Ok(Some(signal)) => return Ok(Step::Signal(signal)),
            Ok(None) => {}
            Err(fault) => self.reset_stream(key, fault)?,
        }
        Ok(Step::Next)
    }

    fn head_on_closed(&mut self, id: u32) -> Result<Step, Fault> {
        let is_odd = id % 2 == 1;
        if !is_odd {
            return Err(rules::STREAM_ID);
        }
        if self.is_idle_stream(id) {
            return Err(rules::IDLE_STREAM);
        }
        if !self.resets.local.has(id) {
            return Err(rules::CLOSED_STREAM);
        }
        self.core.charge_control()?;
        Ok(Step::Next)
    }

    // Requests.

    fn request_received(
        &mut self,
        id: u32,
        end: bool,
        self_dependent: bool,
        decoded: DecodedFields,
    ) -> Result<Step, Fault> {
        if id.is_multiple_of(2) {
            return Err(rules::STREAM_ID);
        }
        if matches!(self.go_away.own, GoAwayState::Final(last) if id > last) {
            // The final GOAWAY tells the peer that it may send the request elsewhere (RFC 9113 6.8).
            self.core.charge_control()?;
            self.ids.ignored(id);
            self.remember_reset(id);
            return Ok(Step::Next);
        }
        self.ids.opened_by_peer(id);
        let max = self.core.limits().http2.max_concurrent_streams as usize;
        let request = if self_dependent {
            Err(Rejection::Reset(rules::SELF_DEPENDENCY))
        } else if self.core.stream_count() >= max {
            Err(Rejection::Reset(rules::REFUSED))
        } else if decoded == DecodedFields::Truncated {
            Err(Rejection::Respond(431, rules::HEADERS.rule))
        } else {
            let offers = self.core.limits().http2.extended_connect;
            let (head_decoder, limits) = self.core.head_decoder_and_limits();
            head_decoder.request(limits, offers, end)
        };
        match request {
            Ok(request) => Ok(Step::Signal(self.begin_request(id, request, end))),
            Err(Rejection::Respond(status, rule)) => {
                self.core
                    .record_refusal(Refused::Head(CloseReason::Limit), status, rule);
                self.reject_request(id, status, end)?;
                Ok(Step::Next)
            }
            Err(rejection) => {
                let fault = rejection.fault(rules::malformed);
                self.core
                    .record_refusal(Refused::Head(fault.reason), 0, fault.rule);
                self.reset_unopened(id, fault)?;
                Ok(Step::Next)
            }
        }
    }

    fn begin_request(&mut self, id: u32, request: Request, end: bool) -> Signal {
        let key = self.begin_stream(id);
        let stream = self.core.stream_mut(key);
        stream.priority = request.priority.unwrap_or_default();
        let begun = stream.exchange.begin_request(request, end);
        if begun.is_half_closed {
            self.core.notify(key, PendingEvents::HALF_CLOSED);
        }
        if begun.is_body_due {
            self.watch_body(key);
        }
        Signal::Head {
            stream: StreamId(u64::from(id)),
            end: !begun.has_body,
        }
    }

    pub(super) fn begin_stream(&mut self, id: u32) -> StreamKey {
        let recv = RecvWindow::of(self.stream_window);
        let send = SendWindow::of(self.peer_settings.initial_window);
        let key = self.core.insert(id, |own| own.begin(recv, send));
        self.watch_idleness();
        key
    }

    /// Responds to a request that is not passed to the program.
    fn reject_request(&mut self, id: u32, status: u16, end: bool) -> Result<(), Fault> {
        with_own_head(status, self.core.limits().date, |head| {
            self.write_block(id, true, |encoder, out| {
                encode_response(encoder, head, Some(0), out);
            });
        });
        if !end {
            let key = self.begin_stream(id);
            let stream = self.core.stream_mut(key);
            stream.exchange.recv_state = RecvState::Body;
            stream.exchange.send_state = SendState::Complete;
            stream.outbox.end = EndStream::Sent;
            self.discard_body(key, true);
        }
        self.core.charge_reset()
    }

    /// Rejects a body over the limit: with 413 if there was no response yet.
    pub(super) fn reject_body(&mut self, key: StreamKey) -> Result<(), Fault> {
        let fault = rules::BODY;
        let stream = self.core.stream(key);
        if self.core.is_client() || stream.exchange.send_state != SendState::Head {
            return self.reset_stream(key, fault);
        }
        self.write_refusal(key, 413);
        let refused = Refused::Stream(self.core.id_of(key), fault.reason);
        self.core.record_refusal(refused, 413, fault.rule);
        let charged = self.core.charge_reset();
        self.fail(key, fault.stream_error());
        self.discard_body(key, false);
        charged
    }

    // Responses.

    fn on_response(&mut self, key: StreamKey, end: bool) -> Result<Option<Signal>, Fault> {
        let response = self
            .core
            .head_decoder_mut()
            .response()
            .map_err(rules::malformed)?;
        if end && response.status < 200 {
            return Err(rules::INTERIM_END);
        }
        self.response_received(key, response, end).map(Some)
    }

    // Trailers.

    fn trailers_received(&mut self, key: StreamKey, end: bool) -> Result<Option<Signal>, Fault> {
        if !end {
            return Err(rules::TRAILERS_OPEN);
        }
        self.core.keep_trailers(key, rules::malformed)?;
        let stream = self.core.stream_mut(key);
        stream.exchange.recv_state = RecvState::Ended;
        stream.recv_timer.stop();
        let wakes = stream.exchange.pending.take(PendingEvents::READER_WAITS);
        let id = self.core.id_of(key);
        self.check_closed(key);
        Ok(wakes.then_some(Signal::Readable(id)))
    }

    // Bodies.

    pub fn read(&mut self, key: StreamKey, max: usize) -> StreamRead<'_> {
        if self.readable(key) == 0 {
            self.pull(key);
        }
        let n = self.readable(key).min(max.max(1));
        if n == 0 {
            return self.nothing_to_read(key);
        }
        self.release_capacity(key, n as u32);
        let stream = self.core.stream_mut(key);
        stream.exchange.awaits_continue = false;
        if !stream.inbox.is_empty() {
            return StreamRead::Data(stream.inbox.take(n));
        }
        StreamRead::Data(self.input.read_chunk(n))
    }

    /// Number of bytes that can be read in one piece.
    fn readable(&self, key: StreamKey) -> usize {
        let stream = self.core.stream(key);
        match stream.inbox.len() {
            _ if stream.exchange.tunnel == Tunnel::Requested => 0,
            0 => self.input.chunk_len(key),
            n => n,
        }
    }

    /// Parses body bytes that are next in the input, so that they can be read without an event.
    fn pull(&mut self, key: StreamKey) {
        let stream = self.core.stream(key);
        let (id, is_due) = (stream.id, stream.exchange.recv_state == RecvState::Body);
        if !is_due || stream.exchange.tunnel == Tunnel::Requested || !self.may_parse() {
            return;
        }
        self.stash();
        while self.readable(key) == 0
            && self.core.stream(key).exchange.recv_state == RecvState::Body
        {
            let step = match self.state {
                InputState::Data(part) if part.id == id => {
                    // As if the reader waited, so that the bytes stay in place.
                    self.core
                        .stream_mut(key)
                        .exchange
                        .pending
                        .set(PendingEvents::READER_WAITS);
                    let step = self.data(part);
                    self.core
                        .stream_mut(key)
                        .exchange
                        .pending
                        .take(PendingEvents::READER_WAITS);
                    Ok(step)
                }
                InputState::Frame => match FrameHeader::parse(self.input.unread()) {
                    Some(header) if header.frame_type == FrameType::Data && header.stream == id => {
                        self.next_frame()
                    }
                    _ => return,
                },
                InputState::Skip(0) => self.next_frame(),
                _ => return,
            };
            match step {
                Ok(Step::NeedMore) => return,
                Ok(Step::Signal(_) | Step::Next) => {}
                Err(fault) => return self.fail_connection(fault),
            }
        }
    }

    pub fn available(&mut self, key: StreamKey) -> usize {
        if self.readable(key) == 0 {
            self.pull(key);
        }
        self.readable(key)
    }

    pub fn buffered(&self, key: StreamKey) -> usize {
        self.core.stream(key).inbox.len() + self.input.chunk_len(key)
    }

    pub fn trailers(&self, key: StreamKey) -> Fields<'_> {
        let stream = self.core.stream(key);
        stream.exchange.trailers(stream.inbox.is_empty())
    }
}

fn compression(error: super::hpack::HpackError) -> Fault {
    rules::compression(error.rule())
}
