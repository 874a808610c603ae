//! Sending responses.

use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::refusals::Refused;
use crate::multiplexed::response::{
    CONTINUE, ContentLengths, EncodedBlock, HeadLookup, encode_response, with_own_head,
};
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, ResponseHead, Side, StreamId, UserError};

use super::Connection;
use super::frame::{self, HEADER_BYTES};
use super::rules::Fault;
use super::stream::{EndStream, RecvState, SendState};

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
        self.streams.get(key).exchange.check_respond()?;
        let lookup = self.head_cache.check(head, size)?;
        if head.status < 200 {
            let stream = self.streams.get_mut(key);
            stream.exchange.awaits_continue &= head.status != 100;
            let id = stream.id;
            self.write_response(id, head, None, false);
            return Ok(());
        }
        self.respond_final(key, head, size, lookup)
    }

    fn respond_final(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        size: BodySize,
        lookup: HeadLookup,
    ) -> Result<(), UserError> {
        let given = lookup.given;
        let stream = self.streams.get_mut(key);
        let id = stream.id;
        let Some(plan) = stream.exchange.respond(head.status, size, given)? else {
            self.write_response(id, head, None, false);
            self.notify(key, PendingEvents::SWITCHED);
            return Ok(());
        };
        if plan.end {
            stream.outbox.end = EndStream::Sent;
        }
        let added = plan.added;
        if !(lookup.is_cached && self.write_cached(id, added, plan.end)) {
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
            let key = self.begin_stream(id);
            let stream = self.streams.get_mut(key);
            stream.exchange.recv_state = RecvState::Body;
            stream.exchange.send_state = SendState::Complete;
            stream.outbox.end = EndStream::Sent;
            self.discard_body(key, true);
        }
        self.charge_reset()
    }

    /// Writes a response of the connection itself: without a body, with a date.
    fn write_refusal(&mut self, id: u32, status: u16) {
        with_own_head(status, self.limits.date, |head| {
            self.write_response(id, head, Some(0), true);
        });
    }

    /// Rejects a body over the limit: with 413 if there was no response yet.
    pub(super) fn reject_body(&mut self, key: StreamKey) -> Result<(), Fault> {
        let fault = super::rules::BODY;
        let stream = self.streams.get(key);
        if self.side == Side::Client || stream.exchange.send_state != SendState::Head {
            return self.reset_stream(key, fault);
        }
        let id = stream.id;
        self.write_refusal(id, 413);
        let refused = Refused::Stream(StreamId(u64::from(id)), fault.reason);
        self.record_refusal(refused, 413, fault.rule);
        let charged = self.charge_reset();
        self.fail(key, fault.stream_error());
        self.discard_body(key, false);
        charged
    }

    pub(super) fn send_continue(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if stream.exchange.takes_continue() {
            let id = stream.id;
            self.write_response(id, &CONTINUE, None, false);
            self.watch_awaited_body(key);
        }
    }
}
