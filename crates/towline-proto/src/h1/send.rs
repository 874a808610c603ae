//! The outgoing half: what the program says becomes bytes, framed once and never against the rules.

use std::time::Instant;

use bytes::Bytes;

use crate::body::Method;
use crate::{
    BodySize, ConnectionError, Field, RequestHead, ResponseHead, Side, StreamId, UserError, Version,
};

use super::encode::{self, Framing, Held};
use super::parse::HeadParser;
use super::prepared::PreparedRequest;
use super::target::{check_target, is_host};
use super::{Connection, HeadClock, Incoming, Notices, Outgoing, Phase, rules};
use crate::byte_class::is_token_bytes;

/// How a body is sent: what the head says about it, and the state behind the head.
#[derive(Debug, Clone, Copy)]
struct Plan {
    length: Option<u64>,
    chunked: bool,
    next: Outgoing,
}

/// What a client must remember of a request until its answer comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    method: Method,
    keep_alive: bool,
    may_upgrade: bool,
}

pub(super) fn size_of(body: Option<&Bytes>) -> BodySize {
    body.map_or(BodySize::Empty, |body| BodySize::Known(body.len() as u64))
}

pub(super) fn write_request(
    out: &mut Vec<u8>,
    head: &RequestHead<'_>,
    size: BodySize,
) -> Result<(Outgoing, Ahead), UserError> {
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
    // Only a coding without a body to be coded is not what the plan below says.
    let coded = size != BodySize::Empty;
    let noted = encode::fields(out, head.fields, Framing::InPlace { coded })?;
    if noted.hosts != 1 || !host_is_valid(head.fields) {
        return Err(UserError::InvalidHost);
    }
    let plan = request_plan(head.method, size, &noted)?;
    match plan.length {
        Some(length) if noted.length.is_none() => encode::content_length(out, length),
        None if plan.chunked && !noted.chunked => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    let begun = Ahead {
        method: Method::of(head.method),
        keep_alive: !noted.options.close,
        may_upgrade: noted.upgrade && noted.options.upgrade,
    };
    Ok((plan.next, begun))
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
        match self.outgoing {
            Outgoing::Head => {}
            Outgoing::Failed => return Err(UserError::StreamFailed),
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
        // HTTP/1.0 knows no interim responses (RFC 9110 15.2).
        if self.exchange.version == Version::Http10 {
            return Ok(());
        }
        self.send.append(|out| {
            encode::status_line(out, head.status, head.reason)?;
            encode::fields(out, head.fields, Framing::Held)?;
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
        let mut plan = Plan {
            length: None,
            chunked: false,
            next: Outgoing::Raw,
        };
        let mut keep_alive = false;
        send.append(|out| {
            encode::status_line(out, head.status, head.reason)?;
            let noted = encode::fields(out, head.fields, Framing::Held)?;
            if switch {
                return end_switching_head(out, &noted, head.status);
            }
            plan = response_plan(method, version, head.status, size, &noted)?;
            keep_alive =
                may_keep_alive && !noted.options.close && plan.next != Outgoing::UntilClose;
            if let Some(length) = plan.length {
                encode::content_length(out, length);
            } else if plan.chunked {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
            if !keep_alive || version == Version::Http10 || noted.connection.is_some() {
                encode::connection(out, &noted, !keep_alive, version == Version::Http10);
            }
            out.extend_from_slice(b"\r\n");
            Ok(())
        })?;
        exchange.keep_alive = keep_alive;
        exchange.awaits_continue = false;
        self.outgoing = plan.next;
        if switch {
            self.incoming = Incoming::Raw;
            self.notices.set(Notices::SWITCHED);
        } else if plan.next == Outgoing::Complete {
            self.outgoing_complete();
        }
        Ok(())
    }

    /// Whether this status makes the connection a tunnel.
    fn switches(&self, status: u16) -> Result<bool, UserError> {
        let connects = self.exchange.method == Method::Connect && (200..=299).contains(&status);
        if status != 101 && !connects {
            return Ok(false);
        }
        let is_read = matches!(self.incoming, Incoming::Complete);
        if !is_read || (status == 101 && !self.exchange.may_upgrade) {
            return Err(UserError::UpgradeNotPossible);
        }
        Ok(true)
    }

    /// Whether the connection can go on after the response that is about to be written.
    fn may_keep_alive(&self) -> bool {
        // A client that was not told to continue may send its body or not: nothing can follow it. One
        // whose CONNECT was refused may have begun to speak the other protocol.
        self.exchange.keep_alive
            && !self.closing
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
        let (next, begun) = self.send.append(|out| write_request(out, head, size))?;
        self.begin_exchange(begun);
        self.outgoing = next;
        Ok(StreamId(self.exchange.id))
    }

    pub fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let size = size_of(body.as_ref());
        self.go_ahead(|conn| {
            let (_, begun) = conn.send.append(|out| write_request(out, head, size))?;
            if let Some(body) = body {
                conn.send.push_shared(body);
            }
            Ok(begun)
        })
    }

    pub fn request_prepared(&mut self, request: &PreparedRequest) -> Result<StreamId, UserError> {
        self.go_ahead(|conn| {
            conn.send.push(&request.head);
            if let Some(body) = &request.body {
                conn.send.push_shared(body.clone());
            }
            Ok(request.begun)
        })
    }

    fn go_ahead(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<Ahead, UserError>,
    ) -> Result<StreamId, UserError> {
        self.begin_ahead();
        let is_first = self.is_reusable();
        let last = self.ahead.as_ref().and_then(|ahead| ahead.back());
        let keeps_alive = last.map_or(self.exchange.keep_alive, |last| last.keep_alive);
        // What is in hand has been sent whole and its answer is due (RFC 9112 9.3.2).
        let is_behind = self.side == Side::Client
            && self.phase == Phase::Open
            && self.outgoing == Outgoing::Complete
            && keeps_alive
            && !self.closing
            && !self.eof;
        if !is_first && !is_behind {
            return Err(UserError::NotIdle);
        }
        let begun = write(self)?;
        if is_first {
            self.begin_exchange(begun);
            self.outgoing = Outgoing::Complete;
            return Ok(StreamId(self.exchange.id));
        }
        let ahead = self.ahead.get_or_insert_default();
        ahead.push_back(begun);
        Ok(StreamId(self.exchange.id + ahead.len() as u64))
    }

    pub(super) fn has_ahead(&self) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| !ahead.is_empty())
    }

    /// Begins the exchange behind the one that has ended, if its request is out already.
    #[inline]
    pub(super) fn begin_ahead(&mut self) {
        if self.ahead.is_some() && matches!(self.incoming, Incoming::Idle) {
            let next = self.ahead.as_mut().and_then(|ahead| ahead.pop_front());
            if let Some(next) = next {
                self.begin_exchange(next);
                self.outgoing = Outgoing::Complete;
            }
        }
    }

    fn begin_exchange(&mut self, begun: Ahead) {
        let exchange = &mut self.exchange;
        exchange.id += 1;
        exchange.method = begun.method;
        exchange.keep_alive = begun.keep_alive;
        exchange.may_upgrade = begun.may_upgrade;
        exchange.interim_responses = 0;
        exchange.body_bytes = 0;
        self.parser = HeadParser::default();
        self.trailers = None;
        self.response_started = false;
        self.notices.take(Notices::WAITS | Notices::WRITABLE);
        self.incoming = Incoming::Head;
        self.head_clock = HeadClock::Head(self.now);
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

    /// Admits `n` body bytes and writes what stands in front of them; false when there is nothing to send.
    fn frame(&mut self, n: usize) -> Result<bool, UserError> {
        match &mut self.outgoing {
            Outgoing::Length(left) => {
                *left = left.checked_sub(n as u64).ok_or(UserError::BodyTooLong)?;
                Ok(n > 0)
            }
            Outgoing::Chunked if n > 0 => self.send.append(|out| {
                encode::chunk_size(out, n);
                Ok(true)
            }),
            Outgoing::Chunked | Outgoing::Swallow => Ok(false),
            Outgoing::UntilClose | Outgoing::Raw => Ok(n > 0),
            Outgoing::Head => Err(UserError::WrongOrder),
            Outgoing::Idle | Outgoing::Complete => Err(UserError::AlreadyFinished),
            Outgoing::Failed => Err(UserError::StreamFailed),
        }
    }

    /// `n` bytes of the body went out beside `send_slices`; 0: the transport would block.
    pub fn sent_externally(&mut self, now: Instant, id: StreamId, n: u64) -> Result<(), UserError> {
        self.check_stream(id)?;
        match &mut self.outgoing {
            Outgoing::Length(left) => *left = left.checked_sub(n).ok_or(UserError::BodyTooLong)?,
            Outgoing::UntilClose | Outgoing::Raw => {}
            Outgoing::Failed => return Err(UserError::StreamFailed),
            _ => return Err(UserError::WrongOrder),
        }
        self.now = now;
        if n > 0 && self.body_left() == Some(0) {
            self.send_clock.stop();
        } else if n > 0 {
            // Not stopped, or a reader of one byte a minute would be as good as any.
            let bytes = usize::try_from(n).unwrap_or(usize::MAX);
            self.send_clock.advance(now, bytes);
        } else if !self.send_clock.is_running() {
            self.send_clock.start(now);
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        if self.outgoing == Outgoing::Chunked {
            self.send.push(b"\r\n");
        }
        if self.send_capacity() == 0 {
            self.notices.set(Notices::WRITER_WAITS);
        }
    }

    pub fn finish(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        match self.outgoing {
            Outgoing::Idle | Outgoing::Complete => return Ok(()),
            Outgoing::Head => return Err(UserError::WrongOrder),
            Outgoing::Failed => return Err(UserError::StreamFailed),
            Outgoing::Length(1..) => {
                self.give_up(rules::TOO_SHORT);
                return Err(UserError::BodyTooShort);
            }
            Outgoing::Chunked => self.send.append(|out| encode::last_chunk(out, trailers))?,
            Outgoing::Swallow => {}
            Outgoing::Length(0) | Outgoing::UntilClose | Outgoing::Raw => {
                if !trailers.is_empty() {
                    return Err(UserError::TrailersNotPossible);
                }
            }
        }
        self.outgoing_complete();
        Ok(())
    }

    pub fn body_left(&self) -> Option<u64> {
        match self.outgoing {
            Outgoing::Length(left) => Some(left),
            Outgoing::Swallow => Some(0),
            _ => None,
        }
    }

    fn outgoing_complete(&mut self) {
        self.outgoing = Outgoing::Complete;
        self.try_end_exchange();
        if !self.is_draining() {
            return;
        }
        if !self.exchange.keep_alive || self.closing {
            // Draining serves the next exchange, and there will be none: FIN at once.
            return self.shut(rules::UNREAD_BODY);
        }
        self.recv_clock.start(self.now);
        self.drain();
    }

    pub fn reset(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        if self.is_half_shut() {
            // What was sent is complete; only its peer's end is not waited for any longer than usual.
            self.shut(rules::DONE);
        } else if self.exchange_is_open() {
            self.give_up(rules::RESET);
        }
    }

    /// Ends the exchange in a way that cannot pass for a complete message.
    fn give_up(&mut self, error: ConnectionError) {
        let cut_is_visible = matches!(
            self.outgoing,
            Outgoing::Head | Outgoing::Length(_) | Outgoing::Chunked
        );
        self.fail_exchange();
        self.notices.take(Notices::FAILED);
        if cut_is_visible && self.side == Side::Server {
            self.shut(error);
        } else {
            self.abandon(error);
        }
    }

    pub fn send_capacity(&self) -> usize {
        self.limits
            .send_window_bytes
            .saturating_sub(self.send.pending())
    }

    /// The minimal answer to what the peer did wrong.
    pub(super) fn refuse(&mut self, error: &ConnectionError) {
        if error.status == 0 {
            return;
        }
        let text = format!("{}\n", error.rule);
        let is_head = self.outgoing == Outgoing::Head && self.exchange.method == Method::Head;
        let written = self.send.append(|out| {
            encode::status_line(out, error.status, b"")?;
            out.extend_from_slice(b"content-type: text/plain\r\n");
            encode::content_length(out, text.len() as u64);
            out.extend_from_slice(b"connection: close\r\n\r\n");
            out.extend_from_slice(if is_head { b"" } else { text.as_bytes() });
            Ok::<(), UserError>(())
        });
        debug_assert!(written.is_ok(), "our own head is valid");
    }
}

fn end_switching_head(out: &mut Vec<u8>, noted: &Held<'_>, status: u16) -> Result<(), UserError> {
    if noted.length.is_some() || noted.chunked {
        return Err(UserError::InvalidContentLength);
    }
    if status == 101 && !noted.options.upgrade {
        out.extend_from_slice(b"connection: upgrade\r\n");
    } else {
        encode::connection(out, noted, false, false);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// The length a body will have, from what the program said in two places.
fn declared_length(size: BodySize, noted: &Held<'_>) -> Result<Option<u64>, UserError> {
    match (size, noted.length) {
        (BodySize::Known(n), Some(given)) if n != given => Err(UserError::InvalidContentLength),
        (BodySize::Known(_), _) | (_, Some(_)) if noted.chunked => {
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
    noted: &Held<'_>,
) -> Result<Plan, UserError> {
    let length = declared_length(size, noted)?;
    let silent = if size == BodySize::Empty {
        Outgoing::Complete
    } else {
        Outgoing::Swallow
    };
    Ok(match (method, status, size, length) {
        // RFC 9110 8.6: no length in a 204; in a 304 only the one of the response it stands for.
        (_, 204, ..) => Plan {
            length: None,
            chunked: false,
            next: silent,
        },
        (_, 304, ..) => Plan {
            length: noted.length,
            chunked: false,
            next: silent,
        },
        (Method::Head, ..) => Plan {
            length,
            chunked: false,
            next: silent,
        },
        (_, _, BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        (_, _, BodySize::Empty, _) => Plan {
            length: Some(0),
            chunked: false,
            next: Outgoing::Complete,
        },
        (_, _, _, Some(n)) => Plan {
            length,
            chunked: false,
            next: Outgoing::Length(n),
        },
        _ if version == Version::Http10 => Plan {
            length: None,
            chunked: false,
            next: Outgoing::UntilClose,
        },
        _ => Plan {
            length: None,
            chunked: true,
            next: Outgoing::Chunked,
        },
    })
}

fn request_plan(method: &[u8], size: BodySize, noted: &Held<'_>) -> Result<Plan, UserError> {
    let length = declared_length(size, noted)?;
    Ok(match (size, length) {
        (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        // RFC 9110 8.6: methods that expect content say that there is none.
        (BodySize::Empty, _) => {
            let says = length.is_some() || matches!(method, b"POST" | b"PUT" | b"PATCH");
            Plan {
                length: says.then_some(0),
                chunked: false,
                next: Outgoing::Complete,
            }
        }
        (_, Some(n)) => Plan {
            length,
            chunked: false,
            next: Outgoing::Length(n),
        },
        (_, None) => Plan {
            length: None,
            chunked: true,
            next: Outgoing::Chunked,
        },
    })
}

fn host_is_valid(fields: &[Field<'_>]) -> bool {
    let host = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(b"host"));
    host.is_some_and(|field| field.value.is_empty() || is_host(field.value))
}
