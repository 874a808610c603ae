//! Messages, received: header blocks become heads and trailers, bodies are pulled by the program.

use crate::body::Method;
use crate::h1::encode::is_forbidden_trailer;
use crate::head::KeptFields;
use crate::{Fields, Side, StreamRead};

use super::frame::{self, FrameHeader, Kind, flag};
use super::head::{Refusal, Request};
use super::hpack::Delivered;
use super::recv::{Signal, Step};
use super::rules::{self, Fault};
use super::stream::{Notices, Receiving, Sending, Tunnel};
use super::streams::At;
use super::window::{RecvWindow, SendWindow};
use super::{Block, Connection, Leaving, Reading};

impl Connection {
    // Header blocks (RFC 9113 4.3).

    pub(super) fn headers(&mut self, header: FrameHeader, at: usize) -> Result<Step, Fault> {
        let payload = self.recv.consumed(at, header.len as usize);
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
            self.clocks.block = None;
            let delivered = self.decode_in_place(at + from, to - from)?;
            return self.head(header.stream, end_stream, self_dependent, delivered);
        }
        self.clocks.block.get_or_insert(self.now);
        let bytes = std::mem::take(&mut self.block.bytes);
        self.block = Block {
            stream: header.stream,
            end_stream,
            self_dependent,
            continuations: 0,
            bytes,
        };
        self.gather(at + from, to - from)?;
        Ok(Step::Next)
    }

    /// Decided before anything is decoded (CVE-2024-27316).
    pub(super) fn continuation(&mut self, header: FrameHeader, at: usize) -> Result<Step, Fault> {
        self.block.continuations += 1;
        if self.block.continuations > self.limits.http2.max_continuations {
            return Err(rules::CONTINUATIONS);
        }
        self.gather(at, header.len as usize)?;
        if !header.has(flag::END_HEADERS) {
            return Ok(Step::Next);
        }
        self.clocks.block = None;
        let block = std::mem::take(&mut self.block);
        let delivered = self
            .heads
            .decode(&mut self.decoder, &block.bytes, &self.limits);
        let delivered = delivered.map_err(compression)?;
        self.head(
            header.stream,
            block.end_stream,
            block.self_dependent,
            delivered,
        )
    }

    fn gather(&mut self, at: usize, len: usize) -> Result<(), Fault> {
        let most = self.limits.http2.max_header_block_bytes as usize;
        if self.block.bytes.len() + len > most {
            return Err(rules::BLOCK);
        }
        let bytes = self.recv.consumed(at, len);
        self.block.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn decode_in_place(&mut self, at: usize, len: usize) -> Result<Delivered, Fault> {
        if len > self.limits.http2.max_header_block_bytes as usize {
            return Err(rules::BLOCK);
        }
        let block = self.recv.consumed(at, len);
        self.heads
            .decode(&mut self.decoder, block, &self.limits)
            .map_err(compression)
    }

    /// A decoded block: a head or trailers, by the state of its stream.
    fn head(
        &mut self,
        id: u32,
        end: bool,
        self_dependent: bool,
        delivered: Delivered,
    ) -> Result<Step, Fault> {
        let Some(at) = self.streams.find(id) else {
            return match self.side {
                Side::Server if self.is_idle_stream(id) => {
                    self.request_received(id, end, self_dependent, delivered)
                }
                _ => self.head_on_closed(id),
            };
        };
        if self.is_reset_by_peer(at) {
            return Err(rules::CLOSED_STREAM);
        }
        if self_dependent {
            self.break_stream(at, rules::SELF_DEPENDENCY)?;
            return Ok(Step::Next);
        }
        let result = match self.streams.at(at).receiving {
            Receiving::Failed => Ok(None),
            Receiving::Ended | Receiving::Done => Err(rules::HALF_CLOSED),
            Receiving::Head | Receiving::Body if delivered == Delivered::Bounded => {
                Err(rules::HEADERS)
            }
            Receiving::Head => self.response_received(at, end),
            Receiving::Body => self.trailers_received(at, end),
        };
        match result {
            Ok(Some(signal)) => return Ok(Step::Signal(signal)),
            Ok(None) => {}
            Err(fault) => self.break_stream(at, fault)?,
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
        if !self.forgotten.has(id) {
            return Err(rules::CLOSED_STREAM);
        }
        self.charge_control()?;
        Ok(Step::Next)
    }

    // Requests.

    fn request_received(
        &mut self,
        id: u32,
        end: bool,
        self_dependent: bool,
        delivered: Delivered,
    ) -> Result<Step, Fault> {
        if id.is_multiple_of(2) {
            return Err(rules::STREAM_ID);
        }
        if matches!(self.leaving, Leaving::Last(last) if id > last) {
            // Whoever sent it knows by now that it may send it elsewhere (RFC 9113 6.8).
            self.charge_control()?;
            self.last_ignored = id;
            self.forget(id);
            return Ok(Step::Next);
        }
        self.last_peer = id;
        let most = self.limits.http2.max_concurrent_streams as usize;
        let request = if self_dependent {
            Err(Refusal::Break(rules::SELF_DEPENDENCY))
        } else if self.streams.len() >= most {
            Err(Refusal::Break(rules::REFUSED))
        } else if delivered == Delivered::Bounded {
            Err(Refusal::Answer(431))
        } else {
            let offers = self.limits.http2.extended_connect;
            self.heads.request(&self.limits, offers, end)
        };
        match request {
            Ok(request) => Ok(Step::Signal(self.begin_request(id, request, end))),
            Err(Refusal::Answer(status)) => {
                self.answer(id, status, end)?;
                Ok(Step::Next)
            }
            Err(Refusal::Break(fault)) => {
                self.reset_unbegun(id, fault)?;
                Ok(Step::Next)
            }
        }
    }

    fn begin_request(&mut self, id: u32, request: Request, end: bool) -> Signal {
        let at = self.begin_stream(id);
        let stream = self.streams.at_mut(at);
        stream.method = request.method;
        stream.announced = request.length;
        stream.awaits_continue = request.awaits_continue;
        stream.priority = request.priority.unwrap_or_default();
        stream.receiving = if end {
            Receiving::Ended
        } else {
            Receiving::Body
        };
        let connects = request.method == Method::Connect;
        if connects {
            stream.tunnel = Tunnel::Asked;
            if end {
                self.notice(at, Notices::HALF_CLOSED);
            }
        }
        let has_body = !end && !connects;
        if has_body && !request.awaits_continue {
            self.watch_body(at);
        }
        Signal::Head {
            stream: id,
            end: !has_body,
        }
    }

    pub(super) fn begin_stream(&mut self, id: u32) -> At {
        let recv = RecvWindow::of(self.stream_window);
        let send = SendWindow::of(self.peer.initial_window);
        let at = self.streams.begin(id, recv, send);
        self.watch_idleness();
        at
    }

    // Responses.

    fn response_received(&mut self, at: At, end: bool) -> Result<Option<Signal>, Fault> {
        let response = self.heads.response()?;
        let stream = self.streams.at_mut(at);
        let id = stream.id;
        if response.status < 200 {
            if end {
                return Err(rules::INTERIM_END);
            }
            stream.interim_responses += 1;
            if stream.interim_responses > self.limits.max_interim_responses {
                return Err(rules::INTERIM);
            }
            return Ok(Some(Signal::Informational { stream: id }));
        }
        let is_good = (200..300).contains(&response.status);
        if stream.tunnel == Tunnel::Asked && is_good {
            stream.tunnel = Tunnel::Open;
            stream.receiving = if end {
                Receiving::Ended
            } else {
                Receiving::Body
            };
            stream.sending = Sending::Body(None);
            self.notice(at, Notices::SWITCHED);
            return Ok(Some(Signal::Head {
                stream: id,
                end: false,
            }));
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
        let over_limit = |most| stream.announced > Some(most);
        if self.limits.max_body_bytes.is_some_and(over_limit) {
            return Err(rules::BODY);
        }
        stream.receiving = if end {
            Receiving::Done
        } else {
            Receiving::Body
        };
        if stream.tunnel == Tunnel::Asked {
            stream.tunnel = Tunnel::No;
            self.send_end(at);
        }
        if end {
            self.check_over(at);
        } else {
            self.watch_body(at);
        }
        Ok(Some(Signal::Head { stream: id, end }))
    }

    // Trailers.

    fn trailers_received(&mut self, at: At, end: bool) -> Result<Option<Signal>, Fault> {
        if !end {
            return Err(rules::TRAILERS_OPEN);
        }
        let fields = self.heads.trailers()?;
        let stream = self.streams.at_mut(at);
        if stream.announced.is_some_and(|announced| announced > 0) {
            return Err(rules::BODY_LENGTH);
        }
        let allowed = fields.filter(|field| !is_forbidden_trailer(field.name));
        stream.trailers = Some(Box::new(KeptFields::of(allowed)));
        stream.receiving = Receiving::Ended;
        stream.recv_clock.stop();
        let wakes = stream.notices.take(Notices::READER_WAITS);
        let id = stream.id;
        self.check_over(at);
        Ok(wakes.then_some(Signal::Readable(id)))
    }

    // Bodies.

    pub fn read(&mut self, at: At, max: usize) -> StreamRead<'_> {
        if self.readable(at) == 0 {
            self.pull(at);
        }
        let n = self.readable(at).min(max.max(1));
        if n == 0 {
            return self.nothing_to_read(at);
        }
        self.give_back(at, n as u32);
        let stream = self.streams.at_mut(at);
        stream.awaits_continue = false;
        if !stream.inbox.is_empty() {
            return StreamRead::Data(stream.inbox.take(n));
        }
        match &mut self.chunk {
            Some(chunk) => {
                let from = chunk.at;
                chunk.at += n;
                chunk.len -= n;
                if chunk.len == 0 {
                    self.chunk = None;
                }
                StreamRead::Data(self.recv.consumed(from, n))
            }
            None => StreamRead::Pending,
        }
    }

    /// Bytes that can be read in one piece.
    fn readable(&self, at: At) -> usize {
        let stream = self.streams.at(at);
        match (&self.chunk, stream.inbox.len()) {
            _ if stream.tunnel == Tunnel::Asked => 0,
            (Some(chunk), 0) if chunk.to == at => chunk.len,
            (_, n) => n,
        }
    }

    fn nothing_to_read(&mut self, at: At) -> StreamRead<'_> {
        let stream = self.streams.at_mut(at);
        match stream.receiving {
            Receiving::Failed => return StreamRead::Failed,
            Receiving::Ended => {
                if self.side == Side::Client || stream.tunnel == Tunnel::Open {
                    stream.receiving = Receiving::Done;
                    self.check_over(at);
                }
                return StreamRead::End;
            }
            Receiving::Done => return StreamRead::End,
            Receiving::Body if stream.tunnel == Tunnel::Asked => return StreamRead::End,
            Receiving::Head | Receiving::Body => {}
        }
        stream.notices.set(Notices::READER_WAITS);
        self.send_continue(at);
        StreamRead::Pending
    }

    /// Body bytes that stand next in the input can be read without waiting for their event.
    fn pull(&mut self, at: At) {
        let stream = self.streams.at(at);
        let (id, is_due) = (stream.id, stream.receiving == Receiving::Body);
        if !is_due || stream.tunnel == Tunnel::Asked || !self.may_parse() {
            return;
        }
        self.stash();
        while self.readable(at) == 0 && self.streams.at(at).receiving == Receiving::Body {
            let step = match self.reading {
                Reading::Data(part) if part.id == id => {
                    // Whoever reads waits, so that the bytes stay where they are.
                    self.streams.at_mut(at).notices.set(Notices::READER_WAITS);
                    let step = self.data(part);
                    self.streams.at_mut(at).notices.take(Notices::READER_WAITS);
                    Ok(step)
                }
                Reading::Frame => match FrameHeader::parse(self.recv.unread()) {
                    Some(header) if header.kind == Kind::Data && header.stream == id => {
                        self.next_frame()
                    }
                    _ => return,
                },
                Reading::Skip(0) => self.next_frame(),
                _ => return,
            };
            match step {
                Ok(Step::Starved) => return,
                Ok(Step::Signal(_) | Step::Next) => {}
                Err(fault) => return self.end_with(fault),
            }
        }
    }

    /// Bytes of a stream need no room any more: the program takes them, or they were padding.
    pub(super) fn give_back(&mut self, at: At, n: u32) {
        let most = self.limits.http2.max_stream_window_bytes;
        let is_read = self.buffered(at) <= n as usize;
        let stream = self.streams.at_mut(at);
        // Nothing more comes behind the end, so nobody needs to know.
        if stream.receiving == Receiving::Body
            && let Some(mut increment) = stream.recv_window.give(n)
        {
            // Whoever has read all that is here waits for the peer, not the peer for the reader.
            if is_read && let Some(more) = stream.recv_window.grow(most) {
                increment += more;
            }
            let id = stream.id;
            self.write_control(|out| frame::window_update(out, id, increment));
        }
    }

    pub fn available(&mut self, at: At) -> usize {
        if self.readable(at) == 0 {
            self.pull(at);
        }
        self.readable(at)
    }

    pub fn end_received(&self, at: At) -> bool {
        let receiving = self.streams.at(at).receiving;
        matches!(receiving, Receiving::Ended | Receiving::Done)
    }

    pub fn buffered(&self, at: At) -> usize {
        let chunk = self.chunk.filter(|chunk| chunk.to == at);
        self.streams.at(at).inbox.len() + chunk.map_or(0, |chunk| chunk.len)
    }

    pub fn trailers(&self, at: At) -> Fields<'_> {
        let stream = self.streams.at(at);
        match &stream.trailers {
            Some(trailers) if stream.inbox.is_empty() => trailers.fields(),
            _ => Fields::new(&[], &[]),
        }
    }
}

fn compression(error: super::hpack::HpackError) -> Fault {
    rules::compression(error.rule())
}
