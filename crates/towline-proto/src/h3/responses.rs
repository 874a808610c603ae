//! Sending responses.

use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::response::{
    CONTINUE, ContentLengths, EncodedBlock, HeadLookup, encode_response, with_own_head,
};
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, ResponseHead, Side, StreamId, UserError};

use super::Connection;
use super::rules::{self, Fault};
use super::stream::{RecvState, SendState};

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
            self.streams.get_mut(key).exchange.awaits_continue &= head.status != 100;
            self.write_response(key, head, None);
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
        let exchange = &mut self.streams.get_mut(key).exchange;
        let Some(plan) = exchange.respond(head.status, size, given)? else {
            self.write_response(key, head, None);
            self.notify(key, PendingEvents::SWITCHED);
            return Ok(());
        };
        let added = plan.added;
        if !(lookup.is_cached && self.write_cached(key, added)) {
            self.write_uncached(key, head, ContentLengths { given, added });
        }
        self.begin_body(key, plan.end);
        Ok(())
    }

    /// Writes the cached section; false if the current one would be different.
    fn write_cached(&mut self, key: StreamKey, added: Option<u64>) -> bool {
        let generation = self.encoder.generation();
        let cache = std::mem::take(&mut self.head_cache);
        let block = cache.block(added, generation);
        if let Some(EncodedBlock { bytes, oldest, .. }) = block {
            self.repeat_head(key, bytes, oldest);
        }
        let is_found = block.is_some();
        self.head_cache = cache;
        is_found
    }

    fn write_uncached(&mut self, key: StreamKey, head: &ResponseHead<'_>, lengths: ContentLengths) {
        let generation = self.encoder.generation();
        let oldest = self.write_response(key, head, lengths.added);
        // If fields were added to the table, the next section for the same head is different.
        if let Some(generation) = generation.filter(|_| self.encoder.generation() == generation) {
            let block = EncodedBlock {
                bytes: &self.scratch.section,
                generation,
                oldest,
            };
            self.head_cache.record(head, lengths, block);
        }
    }

    /// Writes a validated head. `length`: a Content-Length that the program did not give.
    fn write_response(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        length: Option<u64>,
    ) -> u64 {
        self.write_head(key, |encoder, out| {
            encode_response(encoder, head, length, out);
        })
    }

    /// Writes a response of the connection itself: without a body, with a date.
    fn write_refusal(&mut self, key: StreamKey, status: u16) {
        with_own_head(status, self.limits.date, |head| {
            self.write_response(key, head, Some(0));
        });
        self.send_end(key);
    }

    /// Responds to a request that is not passed to the program.
    pub(super) fn reject_request(&mut self, key: StreamKey, status: u16) -> Result<(), Fault> {
        self.write_refusal(key, status);
        let stream = self.streams.get_mut(key);
        stream.head_since = None;
        stream.exchange.recv_state = RecvState::Ended;
        stream.exchange.send_state = SendState::Complete;
        self.stop_receiving(key, rules::BODY_REFUSED.code);
        self.charge_reset()
    }

    /// Rejects a body over the limit: with 413 if there was no response yet.
    pub(super) fn reject_body(&mut self, key: StreamKey) -> Result<(), Fault> {
        let stream = self.streams.get(key);
        if self.side == Side::Client || stream.exchange.send_state != SendState::Head {
            return self.reset_stream(key, rules::BODY);
        }
        self.write_refusal(key, 413);
        self.fail_after_response(key, 413, rules::BODY_REFUSED)
    }

    pub(super) fn send_continue(&mut self, key: StreamKey) {
        if self.streams.get_mut(key).exchange.takes_continue() {
            self.write_response(key, &CONTINUE, None);
            self.watch_awaited_body(key);
        }
    }
}
