//! Sending responses.

use crate::multiplexed::fields::check_fields;
use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::response::{
    ContentLengths, EncodedBlock, HeadLookup, encode_response, response_plan,
};
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, DateSource, ErrorCode, Field, ResponseHead, Side, StreamId, UserError};

use super::Connection;
use super::frame::{self, HEADER_BYTES};
use super::rules::Fault;
use super::stream::{EndStream, SendState, Tunnel};

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
        let key = self.find(id)?;
        let stream = self.streams.get(key);
        match stream.send_state {
            SendState::Head => {}
            SendState::Failed => return Err(UserError::StreamFailed),
            _ => return Err(UserError::WrongOrder),
        }
        if let Some(hit) = self.head_cache.lookup(head) {
            return self.respond_final(key, head, size, hit);
        }
        if !(100..=599).contains(&head.status) {
            return Err(UserError::InvalidStatus);
        }
        if head.status == 101 {
            return Err(UserError::UpgradeNotPossible);
        }
        let framing = check_fields(head.fields)?;
        if framing.protocol.is_some() {
            // Only requests have it (RFC 8441 4).
            return Err(UserError::InvalidFieldName);
        }
        if head.status < 200 {
            if size != BodySize::Empty {
                return Err(UserError::InvalidStatus);
            }
            let stream = self.streams.get_mut(key);
            stream.awaits_continue &= head.status != 100;
            let id = stream.id;
            self.write_response(id, head, None, false);
            return Ok(());
        }
        self.respond_final(key, head, size, HeadLookup::Miss(framing.length))
    }

    fn respond_final(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        size: BodySize,
        lookup: HeadLookup,
    ) -> Result<(), UserError> {
        let (HeadLookup::Hit(given) | HeadLookup::Miss(given)) = lookup;
        let stream = self.streams.get_mut(key);
        let is_good = (200..300).contains(&head.status);
        if stream.tunnel == Tunnel::Requested && is_good {
            if given.is_some() {
                return Err(UserError::InvalidContentLength);
            }
            stream.tunnel = Tunnel::Open;
            stream.send_state = SendState::Body(None);
            let id = stream.id;
            self.write_response(id, head, None, false);
            self.notify(key, PendingEvents::SWITCHED);
            return Ok(());
        }
        let plan = response_plan(stream.method, head.status, size, given)?;
        stream.tunnel = Tunnel::None;
        stream.awaits_continue = false;
        stream.send_state = plan.next;
        if plan.end {
            stream.outbox.end = EndStream::Sent;
        }
        let id = stream.id;
        let hides_length = head.status == 204;
        let added = plan.length.filter(|_| given.is_none() && !hides_length);
        if !(matches!(lookup, HeadLookup::Hit(_)) && self.write_cached(id, added, plan.end)) {
            self.write_uncached(id, head, ContentLengths { given, added }, plan.end);
        }
        self.check_closed(key);
        Ok(())
    }

    /// Writes the cached block; false if the current block would be different.
    fn write_cached(&mut self, id: u32, added: Option<u64>, end: bool) -> bool {
        let generation = self.encoder.generation();
        let Some(block) = self.head_cache.block(added, generation) else {
            return false;
        };
        let start = self.send.end();
        let written = self
            .send
            .fill(|out| frame::headers(out, id, end, block.bytes));
        self.last_frame = (!end).then_some((id, start));
        self.induced_bytes += written;
        true
    }

    fn write_uncached(
        &mut self,
        id: u32,
        head: &ResponseHead<'_>,
        lengths: ContentLengths,
        end: bool,
    ) {
        let generation = self.encoder.generation();
        let start = self.write_response(id, head, lengths.added, end);
        // If fields were added to the table, the next block for the same head is different.
        if let Some(generation) = generation.filter(|_| self.encoder.generation() == generation) {
            let block = &self.send.from(start)[HEADER_BYTES..];
            let block = EncodedBlock {
                bytes: block,
                generation,
                oldest: 0,
            };
            self.head_cache.record(head, lengths, block);
        }
    }

    /// Writes a validated head. `length`: a Content-Length that the program did not give. Returns the offset
    /// of its first frame in the send buffer.
    fn write_response(
        &mut self,
        id: u32,
        head: &ResponseHead<'_>,
        length: Option<u64>,
        end: bool,
    ) -> usize {
        self.write_head(id, end, |encoder, out| {
            encode_response(encoder, head, length, out);
        })
    }

    /// Responds to a request that is not passed to the program.
    pub(super) fn reject_request(&mut self, id: u32, status: u16, end: bool) -> Result<(), Fault> {
        self.write_refusal(id, status);
        if !end {
            self.write_control(|out| frame::reset(out, id, ErrorCode::NO_ERROR));
            self.remember_reset(id);
        }
        self.charge_reset()
    }

    /// Writes a response of the connection itself: without a body, with a date.
    fn write_refusal(&mut self, id: u32, status: u16) {
        let date = self.limits.date.map(|DateSource(date)| date());
        let date = date.as_ref().map(|date| Field {
            name: b"date",
            value: date,
        });
        let head = ResponseHead {
            status,
            reason: b"",
            fields: date.as_slice(),
        };
        self.write_response(id, &head, Some(0), true);
    }

    /// Rejects a body over the limit: with 413 if there was no response yet.
    pub(super) fn reject_body(&mut self, key: StreamKey) -> Result<(), Fault> {
        let fault = super::rules::BODY;
        let stream = self.streams.get(key);
        if self.side == Side::Client || stream.send_state != SendState::Head {
            return self.reset_stream(key, fault);
        }
        let id = stream.id;
        self.write_refusal(id, 413);
        self.reset_stream(key, super::rules::BODY_REFUSED)
    }

    pub(super) fn send_continue(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if !std::mem::take(&mut stream.awaits_continue) || stream.send_state != SendState::Head {
            return;
        }
        let id = stream.id;
        let head = ResponseHead {
            status: 100,
            reason: b"",
            fields: &[],
        };
        self.write_response(id, &head, None, false);
        self.watch_awaited_body(key);
    }
}
