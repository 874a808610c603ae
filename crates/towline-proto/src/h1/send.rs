//! Sending: heads and bodies of the program become bytes, framed once and always by the rules.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::body::Method;
use crate::{
    BodySize, ConnectionError, DateSource, Field, RequestHead, ResponseHead, Side, StreamId,
    UserError, Version,
};

use super::encode::{self, FieldPlacement, FramingFields};
use super::{Connection, Ending, IdleTimer, PendingEvents, Phase, RecvState, SendState, rules};
use crate::byte_class::is_token_bytes;
use crate::target::{check_target, is_host};

/// How a body is sent: the framing fields to add to the head, and the state after it.
#[derive(Debug, Clone, Copy)]
struct BodyPlan {
    length: Option<u64>,
    chunked: bool,
    next: SendState,
}

/// Properties of a request that the client needs until its response comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRequest {
    method: Method,
    keep_alive: bool,
    may_upgrade: bool,
}

pub(super) fn write_request(
    out: &mut Vec<u8>,
    head: &RequestHead<'_>,
    size: BodySize,
) -> Result<(SendState, PendingRequest), UserError> {
    if !is_token_bytes(head.method) {
        return Err(UserError::InvalidMethod);
    }
    if !head.target.iter().all(u8::is_ascii_graphic)
        || check_target(head.method, head.target).is_err()
    {
        return Err(UserError::InvalidTarget);
    }
    for part in [head.method, b" ", head.target, b" HTTP/1.1\r\n"] {
        out.extend_from_slice(part);
    }
    // Transfer-Encoding is written in place unless there is no body for it.
    let coded = size != BodySize::Empty;
    let framing = encode::fields(out, head.fields, FieldPlacement::InPlace { coded })?;
    if framing.hosts != 1 || !host_is_valid(head.fields) {
        return Err(UserError::InvalidHost);
    }
    let plan = request_plan(head.method, size, &framing)?;
    match plan.length {
        Some(length) if framing.length.is_none() => encode::content_length(out, length),
        None if plan.chunked && !framing.chunked => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    let pending_request = PendingRequest {
        method: Method::of(head.method),
        keep_alive: !framing.options.close,
        may_upgrade: framing.upgrade && framing.options.upgrade,
    };
    Ok((plan.next, pending_request))
}

impl Connection {
    pub fn respond(
        &mut self,
        id: StreamId,
        head: &ResponseHead<'_>,
        size: BodySize,
    ) -> Result<(), UserError> {
        if self.side != Side::Server {
            return Err(UserError::WrongSide);
        }
        self.check_stream(id)?;
        match self.send_state {
            SendState::Head => {}
            SendState::Failed => return Err(UserError::StreamFailed),
            _ => return Err(UserError::WrongOrder),
        }
        match head.status {
            100..=199 if head.status != 101 => self.respond_interim(head, size),
            _ => self.respond_final(head, size),
        }
    }

    fn respond_interim(
        &mut self,
        head: &ResponseHead<'_>,
        size: BodySize,
    ) -> Result<(), UserError> {
        if size != BodySize::Empty {
            return Err(UserError::InvalidStatus);
        }
        // HTTP/1.0 has no interim responses (RFC 9110 15.2).
        if self.exchange.version == Version::Http10 {
            return Ok(());
        }
        self.send.append(|out| {
            encode::status_line(out, head.status, head.reason)?;
            encode::fields(out, head.fields, FieldPlacement::Deferred)?;
            out.extend_from_slice(b"\r\n");
            Ok(())
        })?;
        if head.status == 100 {
            self.exchange.awaits_continue = false;
        }
        Ok(())
    }

    fn respond_final(&mut self, head: &ResponseHead<'_>, size: BodySize) -> Result<(), UserError> {
        let switch = self.switches(head.status)?;
        let may_keep_alive = self.may_keep_alive();
        let Self { exchange, send, .. } = self;
        let (method, version) = (exchange.method, exchange.version);
        let mut plan = BodyPlan {
            length: None,
            chunked: false,
            next: SendState::Raw,
        };
        let mut keep_alive = false;
        send.append(|out| {
            encode::status_line(out, head.status, head.reason)?;
            let framing = encode::fields(out, head.fields, FieldPlacement::Deferred)?;
            if switch {
                return end_switching_head(out, &framing, head.status);
            }
            plan = response_plan(method, version, head.status, size, &framing)?;
            keep_alive =
                may_keep_alive && !framing.options.close && plan.next != SendState::UntilClose;
            if let Some(length) = plan.length {
                encode::content_length(out, length);
            } else if plan.chunked {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
            if !keep_alive || version == Version::Http10 || framing.connection.is_some() {
                encode::connection(out, &framing, !keep_alive, version == Version::Http10);
            }
            out.extend_from_slice(b"\r\n");
            Ok(())
        })?;
        exchange.keep_alive = keep_alive;
        exchange.awaits_continue = false;
        self.send_state = plan.next;
        if switch {
            self.recv_state = RecvState::Raw;
            self.pending.set(PendingEvents::SWITCHED);
        } else if plan.next == SendState::Complete {
            self.send_complete();
        }
        Ok(())
    }

    /// Whether this status switches the connection to a tunnel.
    fn switches(&self, status: u16) -> Result<bool, UserError> {
        let connects = self.exchange.method == Method::Connect && (200..=299).contains(&status);
        if status != 101 && !connects {
            return Ok(false);
        }
        let is_read = matches!(self.recv_state, RecvState::Complete);
        if !is_read || (status == 101 && !self.exchange.may_upgrade) {
            return Err(UserError::UpgradeNotPossible);
        }
        Ok(true)
    }

    /// Whether the connection can be reused after the response that is about to be written.
    pub(super) fn may_keep_alive(&self) -> bool {
        // A client that has received no `100 Continue` may send its body or not: nothing can follow it. After
        // a refused CONNECT the client may have begun with the tunneled protocol.
        self.exchange.keep_alive
            && self.limits.keep_alive_timeout != Some(Duration::ZERO)
            && self.ending == Ending::None
            && !self.exchange.awaits_continue
            && self.exchange.method != Method::Connect
    }

    pub fn request(
        &mut self,
        head: &RequestHead<'_>,
        size: BodySize,
    ) -> Result<StreamId, UserError> {
        if self.side != Side::Client {
            return Err(UserError::WrongSide);
        }
        if !self.is_reusable() {
            return Err(UserError::NotIdle);
        }
        let (next, pending_request) = self.send.append(|out| write_request(out, head, size))?;
        self.begin_exchange(pending_request);
        self.send_state = next;
        Ok(StreamId(self.exchange.id))
    }

    pub fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let size = BodySize::of(body.as_ref());
        self.send_pipelined(|conn| {
            let (_, pending_request) = conn.send.append(|out| write_request(out, head, size))?;
            if let Some(body) = body {
                conn.send.push_shared(body);
            }
            Ok(pending_request)
        })
    }

    pub(super) fn send_pipelined(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<PendingRequest, UserError>,
    ) -> Result<StreamId, UserError> {
        self.begin_pipelined();
        let is_first = self.is_reusable();
        let last = self.pipelined.as_ref().and_then(|ahead| ahead.back());
        let keeps_alive = last.map_or(self.exchange.keep_alive, |last| last.keep_alive);
        // The current request has been sent in full and its response is outstanding (RFC 9112 9.3.2).
        let is_behind = self.side == Side::Client
            && self.phase == Phase::Open
            && self.send_state == SendState::Complete
            && keeps_alive
            && self.ending == Ending::None
            && !self.eof;
        if !is_first && !is_behind {
            return Err(UserError::NotIdle);
        }
        let pending_request = write(self)?;
        if is_first {
            self.begin_exchange(pending_request);
            self.send_state = SendState::Complete;
            return Ok(StreamId(self.exchange.id));
        }
        let queue = self.pipelined.get_or_insert_default();
        queue.push_back(pending_request);
        Ok(StreamId(self.exchange.id + queue.len() as u64))
    }

    pub(super) fn has_pipelined(&self) -> bool {
        self.pipelined
            .as_ref()
            .is_some_and(|ahead| !ahead.is_empty())
    }

    /// Begins the next pipelined exchange after one has ended.
    #[inline]
    pub(super) fn begin_pipelined(&mut self) {
        if self.pipelined.is_some() && matches!(self.recv_state, RecvState::Idle) {
            let next = self.pipelined.as_mut().and_then(|ahead| ahead.pop_front());
            if let Some(next) = next {
                self.begin_exchange(next);
                self.send_state = SendState::Complete;
            }
        }
    }

    fn begin_exchange(&mut self, pending_request: PendingRequest) {
        let exchange = &mut self.exchange;
        exchange.id += 1;
        exchange.method = pending_request.method;
        exchange.keep_alive = pending_request.keep_alive;
        exchange.may_upgrade = pending_request.may_upgrade;
        exchange.interim_responses = 0;
        exchange.body_bytes = 0;
        self.recv.reset_head();
        self.trailers = None;
        self.response_started = false;
        self.pending
            .take(PendingEvents::WAITS | PendingEvents::WRITABLE);
        self.recv_state = RecvState::Head;
        self.timers.idle = IdleTimer::Head(self.now);
    }

    pub fn write(&mut self, data: &[u8]) -> Result<(), UserError> {
        if self.frame(data.len())? {
            self.send.push(data);
            self.end_frame();
        }
        Ok(())
    }

    pub fn write_shared(&mut self, data: Bytes) -> Result<(), UserError> {
        if self.frame(data.len())? {
            self.send.push_shared(data);
            self.end_frame();
        }
        Ok(())
    }

    /// Accounts for `n` body bytes and writes the framing before them; false if there is nothing to send.
    fn frame(&mut self, n: usize) -> Result<bool, UserError> {
        match &mut self.send_state {
            SendState::Length(left) => {
                *left = left.checked_sub(n as u64).ok_or(UserError::BodyTooLong)?;
                Ok(n > 0)
            }
            SendState::Chunked if n > 0 => self.send.append(|out| {
                encode::chunk_size(out, n);
                Ok(true)
            }),
            SendState::Chunked | SendState::Discard => Ok(false),
            SendState::UntilClose | SendState::Raw => Ok(n > 0),
            SendState::Head => Err(UserError::WrongOrder),
            SendState::Idle | SendState::Complete => Err(UserError::AlreadyFinished),
            SendState::Failed => Err(UserError::StreamFailed),
        }
    }

    /// `n` bytes of the body were written without `send_slices`; 0: the transport would block.
    pub fn sent_externally(&mut self, now: Instant, id: StreamId, n: u64) -> Result<(), UserError> {
        self.check_stream(id)?;
        match &mut self.send_state {
            SendState::Length(left) => *left = left.checked_sub(n).ok_or(UserError::BodyTooLong)?,
            SendState::UntilClose | SendState::Raw => {}
            SendState::Failed => return Err(UserError::StreamFailed),
            _ => return Err(UserError::WrongOrder),
        }
        self.now = now;
        if n > 0 && self.body_left() == Some(0) {
            self.timers.send = None;
        } else {
            // Not stopped, so that the minimum rate is enforced.
            let bytes = usize::try_from(n).unwrap_or(usize::MAX);
            self.timers.wrote_part(now, bytes);
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        if self.send_state == SendState::Chunked {
            self.send.push(b"\r\n");
        }
        if self.send_capacity() == 0 {
            self.pending.set(PendingEvents::WRITER_WAITS);
        }
    }

    pub fn finish(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        match self.send_state {
            SendState::Idle | SendState::Complete => return Ok(()),
            SendState::Head => return Err(UserError::WrongOrder),
            SendState::Failed => return Err(UserError::StreamFailed),
            SendState::Length(1..) => {
                self.abort_exchange(rules::TOO_SHORT);
                return Err(UserError::BodyTooShort);
            }
            SendState::Chunked => self.send.append(|out| encode::last_chunk(out, trailers))?,
            SendState::Discard => {}
            SendState::Length(0) | SendState::UntilClose | SendState::Raw => {
                if !trailers.is_empty() {
                    return Err(UserError::TrailersNotPossible);
                }
            }
        }
        self.send_complete();
        Ok(())
    }

    pub fn body_left(&self) -> Option<u64> {
        match self.send_state {
            SendState::Length(left) => Some(left),
            SendState::Discard => Some(0),
            _ => None,
        }
    }

    pub(super) fn send_complete(&mut self) {
        self.send_state = SendState::Complete;
        self.try_end_exchange();
        if !self.is_discarding_body() {
            return;
        }
        if !self.exchange.keep_alive || self.ending == Ending::Close {
            // Draining is only useful for the next exchange, and there will be none: FIN at once.
            return self.close_gracefully(rules::UNREAD_BODY);
        }
        self.timers.discard_until = self.now + self.discard_timeout();
        self.timers.recv.start(self.now);
        self.discard_body();
    }

    pub fn reset(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        if self.is_half_closed() {
            // The program has finished sending. The usual time limits the wait for the peer's end.
            self.close_gracefully(rules::DONE);
        } else if self.exchange_is_open() {
            self.abort_exchange(rules::RESET);
        }
    }

    /// Ends the exchange so that no incomplete message looks complete.
    fn abort_exchange(&mut self, error: ConnectionError) {
        let cut_is_visible = matches!(
            self.send_state,
            SendState::Head | SendState::Length(_) | SendState::Chunked
        );
        self.fail_exchange();
        self.pending.take(PendingEvents::FAILED);
        if cut_is_visible && self.side == Side::Server {
            self.close_gracefully(error);
        } else {
            self.abort(error);
        }
    }

    pub fn send_capacity(&self) -> usize {
        self.limits
            .send_window_bytes
            .saturating_sub(self.send.pending())
    }

    /// Writes the minimal response to a violation.
    pub(super) fn send_error_response(&mut self, error: &ConnectionError) {
        if error.status == 0 {
            return;
        }
        let text = format!("{}\n", error.rule);
        let is_head = self.send_state == SendState::Head && self.exchange.method == Method::Head;
        let date = self.limits.date;
        let written = self.send.append(|out| {
            encode::status_line(out, error.status, b"")?;
            if let Some(DateSource(date)) = date {
                out.extend_from_slice(b"date: ");
                out.extend_from_slice(&date());
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"content-type: text/plain\r\n");
            encode::content_length(out, text.len() as u64);
            out.extend_from_slice(b"connection: close\r\n\r\n");
            out.extend_from_slice(if is_head { b"" } else { text.as_bytes() });
            Ok::<(), UserError>(())
        });
        debug_assert!(written.is_ok(), "our own head is valid");
    }
}

fn end_switching_head(
    out: &mut Vec<u8>,
    framing: &FramingFields<'_>,
    status: u16,
) -> Result<(), UserError> {
    if framing.length.is_some() || framing.chunked {
        return Err(UserError::InvalidContentLength);
    }
    if status == 101 && !framing.options.upgrade {
        out.extend_from_slice(b"connection: upgrade\r\n");
    } else {
        encode::connection(out, framing, false, false);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Length of a body, from the `BodySize` and the Content-Length of the program.
fn declared_length(size: BodySize, framing: &FramingFields<'_>) -> Result<Option<u64>, UserError> {
    match (size, framing.length) {
        (BodySize::Known(n), Some(given)) if n != given => Err(UserError::InvalidContentLength),
        (BodySize::Known(_), _) | (_, Some(_)) if framing.chunked => {
            Err(UserError::InvalidTransferEncoding)
        }
        (BodySize::Known(n), _) => Ok(Some(n)),
        (_, given) => Ok(given),
    }
}

fn response_plan(
    method: Method,
    version: Version,
    status: u16,
    size: BodySize,
    framing: &FramingFields<'_>,
) -> Result<BodyPlan, UserError> {
    let length = declared_length(size, framing)?;
    let bodiless = if size == BodySize::Empty {
        SendState::Complete
    } else {
        SendState::Discard
    };
    Ok(match (method, status, size, length) {
        // RFC 9110 8.6: no length in a 204; in a 304 only that of the corresponding 200 response.
        (_, 204, ..) => BodyPlan {
            length: None,
            chunked: false,
            next: bodiless,
        },
        (_, 304, ..) => BodyPlan {
            length: framing.length,
            chunked: false,
            next: bodiless,
        },
        (Method::Head, ..) => BodyPlan {
            length,
            chunked: false,
            next: bodiless,
        },
        (_, _, BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        (_, _, BodySize::Empty, _) => BodyPlan {
            length: Some(0),
            chunked: false,
            next: SendState::Complete,
        },
        (_, _, _, Some(n)) => BodyPlan {
            length,
            chunked: false,
            next: SendState::Length(n),
        },
        _ if version == Version::Http10 => BodyPlan {
            length: None,
            chunked: false,
            next: SendState::UntilClose,
        },
        _ => BodyPlan {
            length: None,
            chunked: true,
            next: SendState::Chunked,
        },
    })
}

fn request_plan(
    method: &[u8],
    size: BodySize,
    framing: &FramingFields<'_>,
) -> Result<BodyPlan, UserError> {
    let length = declared_length(size, framing)?;
    Ok(match (size, length) {
        (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        // RFC 9110 8.6: methods that expect content state a length of 0.
        (BodySize::Empty, _) => {
            let states_length = length.is_some() || matches!(method, b"POST" | b"PUT" | b"PATCH");
            BodyPlan {
                length: states_length.then_some(0),
                chunked: false,
                next: SendState::Complete,
            }
        }
        (_, Some(n)) => BodyPlan {
            length,
            chunked: false,
            next: SendState::Length(n),
        },
        (_, None) => BodyPlan {
            length: None,
            chunked: true,
            next: SendState::Chunked,
        },
    })
}

fn host_is_valid(fields: &[Field<'_>]) -> bool {
    let host = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(b"host"));
    host.is_some_and(|field| field.value.is_empty() || is_host(field.value))
}
