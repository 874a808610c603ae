//! Receiving messages: field sections become heads and trailers, bodies are read by the program.

use bytes::Bytes;

use crate::error::CloseReason;
use crate::field_compression::{Bounds, DecodedFields};
use crate::multiplexed::head::{HeadRules, Rejection, Request};
use crate::multiplexed::priority::Priority;
use crate::multiplexed::refusals::Refused;
use crate::multiplexed::signal::{Signal, Step};
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Messages, Timing};
use crate::pending_events::PendingEvents;
use crate::{Fields, QuicCommand, StreamId, StreamRead, Version};

use super::Connection;
use super::recv::Violation;
use super::rules::{self, Fault};
use super::stream::{FrameState, RecvSide, RecvState, SendState, Tunnel};

impl Connection {
    // Field sections (RFC 9114 4.1, RFC 9204 2.2).

    /// Decodes a whole field section, or keeps it until the entries that it needs have arrived.
    pub(super) fn section(&mut self, key: StreamKey, section: &Bytes) -> Result<Step, Violation> {
        let required = self.decoder.required(section).map_err(section_error)?;
        if required > self.decoder.inserted() {
            if self.blocked.len() >= self.core.limits().http3.qpack_blocked_streams as usize {
                return Err(Violation::Connection(rules::BLOCKED_STREAMS));
            }
            self.blocked.push(key);
            self.core.stream_mut(key).own.input.block(section);
            return Ok(Step::NeedMore);
        }
        let rules = HeadRules {
            bounds: Bounds {
                max_bytes: self.core.limits().http3.max_field_section_bytes,
                max_fields: self.core.limits().http3.max_fields,
            },
            version: Version::Http3,
        };
        let decoded = self
            .core
            .head_decoder_mut()
            .decode(&mut self.decoder, section, rules)
            .map_err(section_error)?;
        if self.must_wait(key, decoded) {
            self.hold(key, section);
            return Ok(Step::NeedMore);
        }
        let id = self.core.stream(key).id.0;
        let now = self.core.now();
        self.acknowledgements
            .section(&mut self.decoder, id, required, now);
        self.head(key, decoded)
    }

    /// Streams whose entries have arrived continue.
    pub(super) fn unblock_streams(&mut self) {
        let Self {
            blocked,
            decoder,
            core,
            ..
        } = self;
        let is_blocked = |key: &StreamKey| {
            let section = core.stream(*key).own.input.blocked_section();
            let required = decoder.required(section);
            required.is_ok_and(|required| required > decoder.inserted())
        };
        let all = std::mem::take(blocked);
        let (still, free): (Vec<_>, Vec<_>) = all.into_iter().partition(is_blocked);
        *blocked = still;
        for key in free {
            self.mark_ready(key);
        }
    }

    /// Handles a decoded section: a head or trailers, by the state of its stream.
    fn head(&mut self, key: StreamKey, decoded: DecodedFields) -> Result<Step, Violation> {
        let is_request =
            self.core.is_server() && self.core.stream(key).exchange.recv_state == RecvState::Head;
        if is_request {
            return self.request_received(key, decoded);
        }
        if decoded == DecodedFields::Truncated {
            return Err(rules::HEADERS.into());
        }
        match self.core.stream(key).exchange.recv_state {
            RecvState::Head => return Ok(Step::Signal(self.on_response(key)?)),
            RecvState::Body => self.core.keep_trailers(key, rules::malformed)?,
            // The program needs no more of it.
            RecvState::Ended | RecvState::Done | RecvState::Failed => {}
        }
        Ok(Step::Next)
    }

    /// Whether nothing follows on the stream, as far as is known.
    pub(super) fn is_at_end(&self, key: StreamKey) -> bool {
        let stream = self.core.stream(key);
        stream.own.recv_side == RecvSide::Ended && stream.own.input.held() == 0
    }

    // Requests.

    fn request_received(
        &mut self,
        key: StreamKey,
        decoded: DecodedFields,
    ) -> Result<Step, Violation> {
        let end = self.is_at_end(key);
        let request = if decoded == DecodedFields::Truncated {
            Err(Rejection::Respond(431, rules::HEADERS.rule))
        } else {
            let offers = self.core.limits().http3.extended_connect;
            let (head_decoder, limits) = self.core.head_decoder_and_limits();
            head_decoder.request(limits, offers, end)
        };
        match request {
            Ok(request) => {
                self.mark_early();
                Ok(Step::Signal(self.begin_request(key, request, end)))
            }
            Err(Rejection::Respond(status, rule)) => {
                self.core
                    .record_refusal(Refused::Head(CloseReason::Limit), status, rule);
                self.reject_request(key, status)
                    .map_err(Violation::Connection)?;
                Ok(Step::Next)
            }
            Err(rejection) => Err(rejection.fault(rules::malformed).into()),
        }
    }

    /// A field section over the limit, which is not read: 431 to a request.
    pub(super) fn reject_section(&mut self, key: StreamKey) -> Result<Step, Violation> {
        let stream = self.core.stream(key);
        if self.core.is_client() || stream.exchange.recv_state != RecvState::Head {
            return Err(rules::SECTION.into());
        }
        self.core.head_decoder_mut().clear();
        self.core
            .record_refusal(Refused::Head(CloseReason::Limit), 431, rules::SECTION.rule);
        self.reject_request(key, 431)
            .map_err(Violation::Connection)?;
        Ok(Step::Next)
    }

    fn begin_request(&mut self, key: StreamKey, request: Request, end: bool) -> Signal {
        let stream = self.core.stream_mut(key);
        let id = stream.id.0;
        stream.own.is_announced = true;
        stream.own.head_since = None;
        let begun = stream.exchange.begin_request(request, end);
        if begun.is_half_closed {
            self.core.notify(key, PendingEvents::HALF_CLOSED);
        }
        let early = self.take_early_priority(id);
        if let Some(priority) = early.or(request.priority) {
            self.set_priority(key, priority);
        }
        if begun.is_body_due {
            self.watch_body(key);
        }
        Signal::Head {
            stream: StreamId(id),
            end: !begun.has_body,
        }
    }

    /// Sets the priority of a stream's response; QUIC is told if it is not the usual one.
    pub(super) fn set_priority(&mut self, key: StreamKey, priority: Priority) {
        self.core.unqueue(key);
        let stream = self.core.stream_mut(key);
        let before = std::mem::replace(&mut stream.priority, priority);
        let (id, urgency) = (stream.id.0, priority.urgency);
        if urgency != before.urgency {
            self.commands
                .push_back(QuicCommand::Priority { id, urgency });
        }
        self.update_send_queue(key);
    }

    /// Responds to a request that is not passed to the program.
    fn reject_request(&mut self, key: StreamKey, status: u16) -> Result<(), Fault> {
        self.write_refusal(key, status);
        self.send_end(key);
        let stream = self.core.stream_mut(key);
        stream.own.head_since = None;
        stream.exchange.recv_state = RecvState::Ended;
        stream.exchange.send_state = SendState::Complete;
        self.stop_receiving(key, rules::BODY_REFUSED.code);
        self.core.charge_reset()
    }

    /// Rejects a body over the limit: with 413 if there was no response yet.
    pub(super) fn reject_body(&mut self, key: StreamKey) -> Result<(), Fault> {
        let stream = self.core.stream(key);
        if self.core.is_client() || stream.exchange.send_state != SendState::Head {
            return self.reset_stream(key, rules::BODY);
        }
        self.write_refusal(key, 413);
        self.send_end(key);
        self.fail_after_response(key, 413, rules::BODY_REFUSED)
    }

    // Responses.

    fn on_response(&mut self, key: StreamKey) -> Result<Signal, Fault> {
        let response = self
            .core
            .head_decoder_mut()
            .response()
            .map_err(rules::malformed)?;
        let end = self.is_at_end(key);
        self.response_received(key, response, end)
    }

    // Trailers, and the end.

    /// Handles the end of a stream, after all its frames.
    pub(super) fn message_end(&mut self, key: StreamKey) -> Result<Step, Fault> {
        let is_server = self.core.is_server();
        let stream = self.core.stream_mut(key);
        match stream.exchange.recv_state {
            RecvState::Head if is_server => {
                self.core.head_decoder_mut().clear();
                return Err(rules::NO_REQUEST);
            }
            RecvState::Head => return Err(rules::NO_RESPONSE),
            RecvState::Body => {}
            RecvState::Ended | RecvState::Done | RecvState::Failed => return Ok(Step::NeedMore),
        }
        if stream.exchange.lacks_bytes() {
            return Err(rules::BODY_LENGTH);
        }
        stream.exchange.recv_state = RecvState::Ended;
        stream.recv_timer.stop();
        let id = StreamId(stream.id.0);
        if stream.exchange.tunnel == Tunnel::Requested {
            // The tunnel cannot be read yet, and whether to open it may depend on the half-close.
            self.core.notify(key, PendingEvents::HALF_CLOSED);
        }
        let stream = self.core.stream_mut(key);
        let wakes = stream.exchange.pending.take(PendingEvents::READER_WAITS);
        self.check_closed(key);
        Ok(if wakes {
            Step::Signal(Signal::Readable(id))
        } else {
            Step::NeedMore
        })
    }

    // Bodies.

    pub fn read(&mut self, key: StreamKey, max: usize) -> StreamRead<'_> {
        if self.readable_bytes(key) == 0 {
            self.pull(key);
        }
        let n = self.readable_bytes(key).min(max.max(1));
        if n == 0 {
            return self.nothing_to_read(key);
        }
        self.list_readable(key, n);
        let stream = self.core.stream_mut(key);
        stream.exchange.awaits_continue = false;
        StreamRead::Data(stream.inbox.take(n))
    }

    /// Number of bytes that can be read in one piece.
    fn readable_bytes(&self, key: StreamKey) -> usize {
        let stream = self.core.stream(key);
        match stream.exchange.tunnel {
            Tunnel::Requested => 0,
            Tunnel::None | Tunnel::Open => stream.inbox.len(),
        }
    }

    /// Parses body bytes that have arrived, so that they can be read without an event.
    fn pull(&mut self, key: StreamKey) {
        loop {
            let stream = self.core.stream(key);
            let is_due = stream.exchange.recv_state == RecvState::Body
                && stream.exchange.tunnel != Tunnel::Requested
                && stream.inbox.is_empty()
                && stream.own.is_ready
                && self.phase == super::Phase::Open;
            if !is_due || stream.own.input.state == FrameState::Blocked {
                return;
            }
            match self.next_frame(key) {
                Ok(Step::Next) => {}
                Ok(Step::NeedMore) => return self.all_parsed(key),
                // The reader does not wait, so there is none.
                Ok(Step::Signal(_)) => return,
                Err(fault) => return self.fail_connection(fault),
            }
        }
    }

    pub fn available(&mut self, key: StreamKey) -> usize {
        if self.readable_bytes(key) == 0 {
            self.pull(key);
        }
        self.readable_bytes(key)
    }

    pub fn buffered(&self, key: StreamKey) -> usize {
        self.core.stream(key).held()
    }

    pub fn trailers(&self, key: StreamKey) -> Fields<'_> {
        let (stream, end_received) = (self.core.stream(key), self.end_received(key));
        stream
            .exchange
            .trailers(stream.inbox.is_empty() && end_received)
    }
}

fn section_error(error: super::qpack::QpackError) -> Violation {
    Violation::Connection(rules::section(error.rule()))
}
