//! Receiving messages: field sections become heads and trailers, bodies are read by the program.

use bytes::Bytes;

use crate::body::Method;
use crate::error::CloseReason;
use crate::field_compression::{Bounds, DecodedFields};
use crate::h1::encode::is_forbidden_trailer;
use crate::head::OwnedFields;
use crate::multiplexed::head::{HeadRules, Rejection, Request};
use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::streams::StreamKey;
use crate::{Fields, QuicCommand, Side, StreamRead, Version};

use super::Connection;
use super::close::Refused;
use super::recv::{Signal, Step, Violation};
use super::rules::{self, Fault};
use super::stream::{FrameState, RecvSide, RecvState, SendState, Tunnel};

impl Connection {
    // Field sections (RFC 9114 4.1, RFC 9204 2.2).

    /// Decodes a whole field section, or keeps it until the entries that it needs have arrived.
    pub(super) fn section(&mut self, key: StreamKey, section: &Bytes) -> Result<Step, Violation> {
        let required = self.decoder.required(section).map_err(section_error)?;
        if required > self.decoder.inserted() {
            if self.blocked.len() >= self.limits.http3.qpack_blocked_streams as usize {
                return Err(Violation::Connection(rules::BLOCKED_STREAMS));
            }
            self.blocked.push(key);
            self.streams.get_mut(key).input.block(section);
            return Ok(Step::NeedMore);
        }
        let rules = HeadRules {
            bounds: Bounds {
                max_bytes: self.limits.http3.max_field_section_bytes,
                max_fields: self.limits.http3.max_fields,
            },
            version: Version::Http3,
        };
        let decoded = self
            .head_decoder
            .decode(&mut self.decoder, section, rules)
            .map_err(section_error)?;
        let id = self.streams.get(key).id.0;
        self.decoder
            .acknowledge_section(id, required, &mut self.acknowledgements);
        self.head(key, decoded)
    }

    /// Streams whose entries have arrived continue.
    pub(super) fn unblock_streams(&mut self) {
        let Self {
            blocked,
            decoder,
            streams,
            ..
        } = self;
        let is_blocked = |key: &StreamKey| {
            let section = streams.get(*key).input.blocked_section();
            let required = decoder.required(section);
            required.is_ok_and(|required| required > decoder.inserted())
        };
        let (still, free) = std::mem::take(blocked).into_iter().partition(is_blocked);
        *blocked = still;
        let free: Vec<StreamKey> = free;
        for key in free {
            self.mark_ready(key);
        }
    }

    /// Handles a decoded section: a head or trailers, by the state of its stream.
    fn head(&mut self, key: StreamKey, decoded: DecodedFields) -> Result<Step, Violation> {
        let is_request =
            self.side == Side::Server && self.streams.get(key).recv_state == RecvState::Head;
        if is_request {
            return self.request_received(key, decoded);
        }
        if decoded == DecodedFields::Truncated {
            return Err(rules::HEADERS.into());
        }
        let signal = match self.streams.get(key).recv_state {
            RecvState::Head => Some(self.response_received(key)?),
            RecvState::Body => self.trailers_received(key)?,
            // The program needs no more of it.
            RecvState::Ended | RecvState::Done | RecvState::Failed => None,
        };
        Ok(signal.map_or(Step::Next, Step::Signal))
    }

    /// Whether nothing follows on the stream, as far as is known.
    fn is_at_end(&self, key: StreamKey) -> bool {
        let stream = self.streams.get(key);
        stream.recv_side == RecvSide::Ended && stream.input.held() == 0
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
            let offers = self.limits.http3.extended_connect;
            self.head_decoder.request(&self.limits, offers, end)
        };
        match request {
            Ok(request) => Ok(Step::Signal(self.begin_request(key, request, end))),
            Err(Rejection::Respond(status, rule)) => {
                self.record_refusal(Refused::Head(CloseReason::Limit), status, rule);
                self.reject_request(key, status)
                    .map_err(Violation::Connection)?;
                Ok(Step::Next)
            }
            Err(rejection) => Err(rejection.fault(rules::malformed).into()),
        }
    }

    /// A field section over the limit, which is not read: 431 to a request.
    pub(super) fn reject_section(&mut self, key: StreamKey) -> Result<Step, Violation> {
        let stream = self.streams.get(key);
        if self.side == Side::Client || stream.recv_state != RecvState::Head {
            return Err(rules::SECTION.into());
        }
        self.head_decoder.clear();
        self.record_refusal(Refused::Head(CloseReason::Limit), 431, rules::SECTION.rule);
        self.reject_request(key, 431)
            .map_err(Violation::Connection)?;
        Ok(Step::Next)
    }

    fn begin_request(&mut self, key: StreamKey, request: Request, end: bool) -> Signal {
        let stream = self.streams.get_mut(key);
        let id = stream.id.0;
        stream.is_announced = true;
        stream.head_since = None;
        stream.method = request.method;
        stream.announced = request.length;
        stream.awaits_continue = request.awaits_continue;
        stream.recv_state = if end {
            RecvState::Ended
        } else {
            RecvState::Body
        };
        let connects = request.method == Method::Connect;
        if connects {
            stream.tunnel = Tunnel::Requested;
            if end {
                self.notify(key, PendingEvents::HALF_CLOSED);
            }
        }
        let early = self.take_early_priority(id);
        if let Some(priority) = early.or(request.priority) {
            self.set_priority(key, priority);
        }
        let has_body = !end && !connects;
        if has_body && !request.awaits_continue {
            self.watch_body(key);
        }
        Signal::Head {
            stream: id,
            end: !has_body,
        }
    }

    /// Sets the priority of a stream's response; QUIC is told if it is not the usual one.
    pub(super) fn set_priority(
        &mut self,
        key: StreamKey,
        priority: crate::multiplexed::priority::Priority,
    ) {
        self.send_queue.remove(&mut self.streams, key);
        let stream = self.streams.get_mut(key);
        let before = std::mem::replace(&mut stream.priority, priority);
        let (id, urgency) = (stream.id.0, priority.urgency);
        if urgency != before.urgency {
            self.commands
                .push_back(QuicCommand::Priority { id, urgency });
        }
        self.update_send_queue(key);
    }

    // Responses.

    fn response_received(&mut self, key: StreamKey) -> Result<Signal, Fault> {
        let response = self.head_decoder.response().map_err(rules::malformed)?;
        let end = self.is_at_end(key);
        let stream = self.streams.get_mut(key);
        let id = stream.id.0;
        if response.status < 200 {
            stream.interim_responses += 1;
            if stream.interim_responses > self.limits.max_interim_responses {
                return Err(rules::INTERIM);
            }
            return Ok(Signal::Informational { stream: id });
        }
        let is_good = (200..300).contains(&response.status);
        if stream.tunnel == Tunnel::Requested && is_good {
            stream.tunnel = Tunnel::Open;
            stream.recv_state = if end {
                RecvState::Ended
            } else {
                RecvState::Body
            };
            stream.send_state = SendState::Body(None);
            self.notify(key, PendingEvents::SWITCHED);
            return Ok(Signal::Head {
                stream: id,
                end: false,
            });
        }
        let is_bodiless = stream.method == Method::Head || matches!(response.status, 204 | 304);
        stream.announced = if is_bodiless {
            Some(0)
        } else {
            response.length
        };
        if end && stream.announced.is_some_and(|announced| announced > 0) {
            return Err(rules::BODY_LENGTH);
        }
        let over_limit = |max| stream.announced > Some(max);
        if self.limits.max_body_bytes.is_some_and(over_limit) {
            return Err(rules::BODY);
        }
        stream.recv_state = if end {
            RecvState::Done
        } else {
            RecvState::Body
        };
        if stream.tunnel == Tunnel::Requested {
            stream.tunnel = Tunnel::None;
            self.send_end(key);
        }
        if end {
            self.check_closed(key);
        } else {
            self.watch_body(key);
        }
        Ok(Signal::Head { stream: id, end })
    }

    // Trailers, and the end.

    fn trailers_received(&mut self, key: StreamKey) -> Result<Option<Signal>, Fault> {
        let fields = self.head_decoder.trailers().map_err(rules::malformed)?;
        let stream = self.streams.get_mut(key);
        if stream.announced.is_some_and(|announced| announced > 0) {
            return Err(rules::BODY_LENGTH);
        }
        let allowed = fields.filter(|field| !is_forbidden_trailer(field.name));
        stream.trailers = Some(Box::new(OwnedFields::of(allowed)));
        Ok(None)
    }

    /// Handles the end of a stream, after all its frames.
    pub(super) fn message_end(&mut self, key: StreamKey) -> Result<Step, Fault> {
        let stream = self.streams.get_mut(key);
        match stream.recv_state {
            RecvState::Head if self.side == Side::Server => {
                self.head_decoder.clear();
                return Err(rules::NO_REQUEST);
            }
            RecvState::Head => return Err(rules::NO_RESPONSE),
            RecvState::Body => {}
            RecvState::Ended | RecvState::Done | RecvState::Failed => return Ok(Step::NeedMore),
        }
        if stream.announced.is_some_and(|announced| announced > 0) {
            return Err(rules::BODY_LENGTH);
        }
        stream.recv_state = RecvState::Ended;
        stream.recv_timer.stop();
        let id = stream.id.0;
        if stream.tunnel == Tunnel::Requested {
            // The tunnel cannot be read yet, and whether to open it may depend on the half-close.
            self.notify(key, PendingEvents::HALF_CLOSED);
        }
        let stream = self.streams.get_mut(key);
        let wakes = stream.pending.take(PendingEvents::READER_WAITS);
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
        let stream = self.streams.get_mut(key);
        stream.awaits_continue = false;
        StreamRead::Data(stream.inbox.take(n))
    }

    /// Number of bytes that can be read in one piece.
    fn readable_bytes(&self, key: StreamKey) -> usize {
        let stream = self.streams.get(key);
        match stream.tunnel {
            Tunnel::Requested => 0,
            Tunnel::None | Tunnel::Open => stream.inbox.len(),
        }
    }

    fn nothing_to_read(&mut self, key: StreamKey) -> StreamRead<'_> {
        let stream = self.streams.get_mut(key);
        match stream.recv_state {
            RecvState::Failed => return StreamRead::Failed,
            RecvState::Ended => {
                if self.side == Side::Client || stream.tunnel == Tunnel::Open {
                    stream.recv_state = RecvState::Done;
                    self.check_closed(key);
                }
                return StreamRead::End;
            }
            RecvState::Done => return StreamRead::End,
            RecvState::Body if stream.tunnel == Tunnel::Requested => return StreamRead::End,
            RecvState::Head | RecvState::Body => {}
        }
        stream.pending.set(PendingEvents::READER_WAITS);
        self.send_continue(key);
        StreamRead::Pending
    }

    /// Parses body bytes that have arrived, so that they can be read without an event.
    fn pull(&mut self, key: StreamKey) {
        loop {
            let stream = self.streams.get(key);
            let is_due = stream.recv_state == RecvState::Body
                && stream.tunnel != Tunnel::Requested
                && stream.inbox.is_empty()
                && stream.is_ready
                && self.phase == super::Phase::Open;
            if !is_due || stream.input.state == FrameState::Blocked {
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

    pub fn end_received(&self, key: StreamKey) -> bool {
        let recv_state = self.streams.get(key).recv_state;
        matches!(recv_state, RecvState::Ended | RecvState::Done)
    }

    pub fn buffered(&self, key: StreamKey) -> usize {
        self.streams.get(key).held()
    }

    pub fn trailers(&self, key: StreamKey) -> Fields<'_> {
        let stream = self.streams.get(key);
        let is_read = stream.inbox.is_empty()
            && matches!(stream.recv_state, RecvState::Ended | RecvState::Done);
        match &stream.trailers {
            Some(trailers) if is_read => trailers.fields(),
            _ => Fields::new(&[], &[]),
        }
    }
}

fn section_error(error: super::qpack::QpackError) -> Violation {
    Violation::Connection(rules::section(error.rule()))
}
