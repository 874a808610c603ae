//! Sending and reading messages over HTTP/2 and HTTP/3. Heads are validated before they are compressed, since every field
//! changes the compression table.

use std::mem::take;

use bytes::Bytes;

use crate::field_compression::FieldEncoder;
use crate::{
    BodySize, Field, RequestHead, ResponseHead, StreamId, StreamRead, StreamStats, UserError,
};

use super::exchange::{BegunResponse, Finish, NothingToRead};
use super::fault::Fault;
use super::fields::{RequestInfo, RequestPlan, Scheme, encode_request};
use super::response::{
    CONTINUE, ContentLengths, EncodedBlock, HeadLookup, encode_response, with_own_head,
};
use super::signal::Signal;
use super::stream::Variant;
use super::streams::StreamKey;
use super::timing::Timing;
use crate::pending_events::PendingEvents;

/// A stream whose request head was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenedRequest<W> {
    pub key: StreamKey,
    pub info: RequestInfo,
    pub written: W,
}

/// A connection that exchanges messages. The required methods write frames.
pub(crate) trait Messages: Timing {
    type Encoder: FieldEncoder;
    /// Where a head was written.
    type Written: Copy;

    fn scheme(&self) -> Scheme;

    /// The encoder's state: while it is unchanged, equal heads have equal blocks. `None`: it is not known.
    fn generation(&self) -> Option<u32>;

    /// Opens the stream of the next request.
    fn open_next(&mut self, info: RequestInfo) -> StreamKey;

    /// Encodes a head. `end`: nothing follows.
    fn write_head(
        &mut self,
        key: StreamKey,
        end: bool,
        fill: impl FnOnce(&mut Self::Encoder, &mut Vec<u8>),
    ) -> Self::Written;

    /// The block of the head that was written last.
    fn written_block(&self, written: Self::Written, generation: u32) -> EncodedBlock<'_>;

    /// Sends an encoded head again.
    fn repeat_head(&mut self, key: StreamKey, block: EncodedBlock<'_>, end: bool);

    /// Follows each final head and each request.
    fn after_head(&mut self, key: StreamKey, end: bool);

    /// Sends the end of a body of unknown size.
    fn finish_unsized(&mut self, key: StreamKey, trailers: &[Field<'_>]);

    /// The stream ends after its last queued byte.
    fn send_end(&mut self, key: StreamKey);

    fn write_shared(&mut self, key: StreamKey, data: Bytes) -> Result<(), UserError>;

    // Requests.

    fn request(&mut self, head: &RequestHead<'_>, size: BodySize) -> Result<StreamId, UserError> {
        let opened = self.open_request(head, size)?;
        Ok(self.core().id_of(opened.key))
    }

    #[inline]
    fn open_request(
        &mut self,
        head: &RequestHead<'_>,
        size: BodySize,
    ) -> Result<OpenedRequest<Self::Written>, UserError> {
        if self.core().is_server() {
            return Err(UserError::WrongSide);
        }
        if self.stream_capacity() == 0 {
            return Err(UserError::NotIdle);
        }
        let extends_connect = self.extended_connect() == Some(true);
        let plan = RequestPlan::of(head, size, self.scheme(), extends_connect)?;
        let info = plan.info;
        let key = self.begin_exchange(info);
        let written = self.write_head(key, info.end, |encoder, out| {
            encode_request(encoder, head, &plan, out);
        });
        self.after_head(key, info.end);
        Ok(OpenedRequest { key, info, written })
    }

    #[inline]
    fn begin_exchange(&mut self, info: RequestInfo) -> StreamKey {
        let key = self.open_next(info);
        let core = self.core_mut();
        core.set_response_started(false);
        core.stream_mut(key).exchange.request(info);
        key
    }

    fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let opened = self.open_request(head, BodySize::of(body.as_ref()))?;
        self.finish_request(opened.key, body)
    }

    /// Sends the body after its head, if there is one.
    fn finish_request(
        &mut self,
        key: StreamKey,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let id = self.core().id_of(key);
        if let Some(body) = body {
            self.write_shared(key, body)?;
            self.finish(key, &[])?;
        }
        Ok(id)
    }

    // Responses.

    #[inline]
    fn respond(
        &mut self,
        id: StreamId,
        head: &ResponseHead<'_>,
        size: BodySize,
    ) -> Result<(), UserError> {
        if self.core().is_client() {
            return Err(UserError::WrongSide);
        }
        let key = self.find(id)?;
        self.core().stream(key).exchange.check_respond()?;
        let lookup = self.core().head_cache().check(head, size)?;
        if head.status < 200 {
            let exchange = &mut self.core_mut().stream_mut(key).exchange;
            exchange.awaits_continue &= head.status != 100;
            self.write_response(key, head, None, false);
            return Ok(());
        }
        self.respond_final(key, head, size, lookup)
    }

    #[inline]
    fn respond_final(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        size: BodySize,
        lookup: HeadLookup,
    ) -> Result<(), UserError> {
        let given = lookup.given;
        let exchange = &mut self.core_mut().stream_mut(key).exchange;
        let Some(plan) = exchange.respond(head.status, size, given)? else {
            self.write_response(key, head, None, false);
            self.core_mut().notify(key, PendingEvents::SWITCHED);
            return Ok(());
        };
        let added = plan.added;
        if !(lookup.is_cached && self.write_cached(key, added, plan.end)) {
            self.write_uncached(key, head, ContentLengths { given, added }, plan.end);
        }
        self.after_head(key, plan.end);
        Ok(())
    }

    /// Writes the cached block; false if the current one would be different.
    #[inline]
    fn write_cached(&mut self, key: StreamKey, added: Option<u64>, end: bool) -> bool {
        let generation = self.generation();
        let cache = take(self.core_mut().head_cache_mut());
        let block = cache.block(added, generation);
        if let Some(block) = block {
            self.repeat_head(key, block, end);
        }
        let is_found = block.is_some();
        *self.core_mut().head_cache_mut() = cache;
        is_found
    }

    fn write_uncached(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        lengths: ContentLengths,
        end: bool,
    ) {
        let generation = self.generation();
        let written = self.write_response(key, head, lengths.added, end);
        // If fields were added to the table, the next block for the same head is different.
        if let Some(generation) = generation.filter(|_| self.generation() == generation) {
            let mut cache = take(self.core_mut().head_cache_mut());
            cache.record(head, lengths, self.written_block(written, generation));
            *self.core_mut().head_cache_mut() = cache;
        }
    }

    /// Writes a validated head. `length`: a Content-Length that the program did not give.
    #[inline]
    fn write_response(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        length: Option<u64>,
        end: bool,
    ) -> Self::Written {
        self.write_head(key, end, |encoder, out| {
            encode_response(encoder, head, length, out);
        })
    }

    /// Writes a response of the connection itself: without a body, with a date.
    fn write_refusal(&mut self, key: StreamKey, status: u16) {
        with_own_head(status, self.core().limits().date, |head| {
            self.write_response(key, head, Some(0), true);
        });
    }

    fn send_continue(&mut self, key: StreamKey) {
        if self.core_mut().stream_mut(key).exchange.takes_continue() {
            self.write_response(key, &CONTINUE, None, false);
            self.watch_awaited_body(key);
        }
    }

    /// A response's head was decoded. `end`: nothing follows.
    fn response_received(
        &mut self,
        key: StreamKey,
        response: super::head::Response,
        end: bool,
    ) -> Result<Signal, Fault> {
        let id = self.core().id_of(key);
        let (stream, limits) = self.core_mut().stream_and_limits(key);
        let rules = &Self::Variant::RULES.messages;
        match (stream.exchange).begin_response(response, end, limits, rules)? {
            BegunResponse::Interim => return Ok(Signal::Informational { stream: id }),
            BegunResponse::Tunnel => {
                self.core_mut().notify(key, PendingEvents::SWITCHED);
                return Ok(Signal::Head {
                    stream: id,
                    end: false,
                });
            }
            BegunResponse::TunnelRefused => self.send_end(key),
            BegunResponse::Final => {}
        }
        if end {
            self.check_closed(key);
        } else {
            self.watch_body(key);
        }
        Ok(Signal::Head { stream: id, end })
    }

    // Bodies.

    fn finish(&mut self, key: StreamKey, trailers: &[Field<'_>]) -> Result<(), UserError> {
        match self.core_mut().stream_mut(key).exchange.finish(trailers) {
            Ok(Finish::Already) => {}
            Ok(Finish::Whole) => self.check_closed(key),
            Ok(Finish::End) => self.finish_unsized(key, trailers),
            Err(error) => {
                match error {
                    UserError::StreamFailed => self.release_failed(key),
                    UserError::BodyTooShort => self.reset(key),
                    _ => {}
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The result of a read without bytes.
    fn nothing_to_read(&mut self, key: StreamKey) -> StreamRead<'_> {
        let side = self.core().side();
        let exchange = &mut self.core_mut().stream_mut(key).exchange;
        match exchange.nothing_to_read(side) {
            NothingToRead::Pending => {
                self.send_continue(key);
                StreamRead::Pending
            }
            NothingToRead::NowDone => {
                self.check_closed(key);
                StreamRead::End
            }
            NothingToRead::End => StreamRead::End,
            NothingToRead::Failed => StreamRead::Failed,
        }
    }

    #[inline]
    fn send_capacity(&mut self, key: StreamKey) -> usize {
        self.core_mut().send_capacity(key)
    }

    fn await_sent(&mut self, key: StreamKey) {
        let stream = self.core_mut().stream_mut(key);
        stream.exchange.pending.set(PendingEvents::WRITER_WAITS);
    }

    fn body_left(&self, key: StreamKey) -> Option<u64> {
        self.core().stream(key).exchange.body_left()
    }

    #[inline]
    fn stats(&self, key: StreamKey) -> StreamStats {
        self.core().stream(key).stats
    }

    #[inline]
    fn queued(&self, key: StreamKey) -> usize {
        self.core().stream(key).outbox.len()
    }

    #[inline]
    fn end_received(&self, key: StreamKey) -> bool {
        self.core().stream(key).exchange.end_received()
    }

    fn is_body_unwanted(&self, key: StreamKey) -> bool {
        self.core().stream(key).exchange.is_unwanted()
    }
}
