//! Whole requests. Prepared ones are sent many times, and compressed once.
//!
//! The meaning of a header block depends on the table of the peer. While the encoder would produce the same block
//! for the same fields, the cached one is sent: nothing is validated, looked up or compressed.

use std::sync::Arc;

use bytes::Bytes;

use crate::body::Method;
use crate::h1::Parts;
use crate::{BodySize, PreparedRequest, RequestHead, StreamId, UserError};

use super::Connection;
use super::frame::{self, HEADER_BYTES};
use super::send::{MAX_CACHED_BLOCK_BYTES, RequestInfo};
use super::streams::StreamKey;

/// Number of cached requests.
const MAX_REMEMBERED: usize = 32;

/// One of this many uncached requests replaces a cached one: a prime, so that it is not the same one in each
/// round.
const REPLACE_ONE_IN: u32 = 31;

/// Prepared requests that were sent, with their encoded header blocks.
///
/// If there are more requests than slots, most cached ones stay: requests sent in rotation would otherwise evict
/// each other just before they come again. A changed set of requests is still cached soon, and immediately if the
/// old requests were dropped.
#[derive(Debug, Default)]
pub(super) struct EncodedRequests {
    entries: Vec<EncodedRequest>,
    /// Number of requests that found no free slot.
    unplaced: u32,
}

#[derive(Debug)]
struct EncodedRequest {
    parts: Arc<Parts>,
    info: RequestInfo,
    /// The encoder state that the block depends on ([`generation`](super::hpack::Encoder::generation)).
    generation: u32,
    block: Vec<u8>,
}

impl EncodedRequests {
    fn position(&self, parts: &Arc<Parts>) -> Option<usize> {
        let is_same = |entry: &EncodedRequest| Arc::ptr_eq(&entry.parts, parts);
        self.entries.iter().position(is_same)
    }

    fn find(&self, request: &PreparedRequest, generation: Option<u32>) -> Option<&EncodedRequest> {
        let found = &self.entries[self.position(request.parts())?];
        (Some(found.generation) == generation).then_some(found)
    }

    /// The slot for a new request, or for one whose block has changed.
    fn slot_for(&mut self, parts: &Arc<Parts>) -> Option<usize> {
        let entries = &self.entries;
        if let Some(slot) = self.position(parts) {
            return Some(slot);
        }
        if entries.len() < MAX_REMEMBERED {
            return Some(entries.len());
        }
        let is_unreferenced = |entry: &EncodedRequest| Arc::strong_count(&entry.parts) == 1;
        if let Some(slot) = entries.iter().position(is_unreferenced) {
            return Some(slot);
        }
        self.unplaced = self.unplaced.wrapping_add(1);
        let takes_slot = self.unplaced.is_multiple_of(REPLACE_ONE_IN);
        takes_slot.then_some((self.unplaced / REPLACE_ONE_IN) as usize % MAX_REMEMBERED)
    }

    fn insert(&mut self, slot: usize, entry: EncodedRequest) {
        match self.entries.get_mut(slot) {
            Some(other) => *other = entry,
            None => self.entries.push(entry),
        }
    }
}

impl Connection {
    pub fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let opened = self.open_request(head, size_of(body.as_ref()))?;
        self.finish_request(opened.key, body)
    }

    /// Sends the body after its head, if there is one.
    fn finish_request(
        &mut self,
        key: StreamKey,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let id = self.id_of(key);
        if let Some(body) = body {
            self.write_shared(key, body)?;
            self.finish(key, &[])?;
        }
        Ok(id)
    }

    pub fn request_prepared(&mut self, request: &PreparedRequest) -> Result<StreamId, UserError> {
        let mut encoded = self.encoded_requests.take().unwrap_or_default();
        let opened = self.open_prepared(request, &mut encoded);
        self.encoded_requests = Some(encoded);
        self.finish_request(opened?, request.body())
    }

    fn open_prepared(
        &mut self,
        request: &PreparedRequest,
        encoded: &mut EncodedRequests,
    ) -> Result<StreamKey, UserError> {
        let generation = self.encoder.generation();
        if let Some(entry) = encoded.find(request, generation)
            && self.stream_capacity() > 0
        {
            return Ok(self.open_encoded(entry));
        }
        let size = size_of(request.body().as_ref());
        let opened = request.with_head(|head| self.open_request(head, size))?;
        let block = &self.send.from(opened.head_at)[HEADER_BYTES..];
        // If fields were added to the table, the next block for the same head is different.
        let is_kept = self.encoder.generation() == generation
            && block.len() <= MAX_CACHED_BLOCK_BYTES
            && opened.info.method != Method::Connect;
        if let Some(generation) = generation.filter(|_| is_kept)
            && let Some(slot) = encoded.slot_for(request.parts())
        {
            let entry = EncodedRequest {
                parts: Arc::clone(request.parts()),
                info: opened.info,
                generation,
                block: block.into(),
            };
            encoded.insert(slot, entry);
        }
        Ok(opened.key)
    }

    fn open_encoded(&mut self, entry: &EncodedRequest) -> StreamKey {
        let info = entry.info;
        let (id, key) = self.begin_exchange(info);
        let start = self.send.end();
        let n = self
            .send
            .fill(|out| frame::headers(out, id, info.end, &entry.block));
        self.last_frame = (!info.end).then_some((id, start));
        self.streams.get_mut(key).stats.sent += n as u64;
        key
    }
}

fn size_of(body: Option<&Bytes>) -> BodySize {
    body.map_or(BodySize::Empty, |body| BodySize::Known(body.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Field;

    fn requests(count: usize) -> Vec<PreparedRequest> {
        let one = |n: usize| {
            let target = format!("/{n}");
            let host = Field {
                name: b"host",
                value: b"a",
            };
            let head = RequestHead {
                method: b"GET",
                target: target.as_bytes(),
                fields: &[host],
            };
            PreparedRequest::new(&head, None).expect("good")
        };
        (0..count).map(one).collect()
    }

    /// Number of requests found in the cache; the others are added if there is a slot.
    fn count_hits(encoded: &mut EncodedRequests, requests: &[PreparedRequest]) -> usize {
        let mut found = 0;
        for request in requests {
            if encoded.find(request, Some(0)).is_some() {
                found += 1;
            } else if let Some(slot) = encoded.slot_for(request.parts()) {
                let entry = EncodedRequest {
                    parts: Arc::clone(request.parts()),
                    info: RequestInfo {
                        method: Method::Other,
                        end: true,
                        next: crate::h2::stream::SendState::Complete,
                    },
                    generation: 0,
                    block: Vec::new(),
                };
                encoded.insert(slot, entry);
            }
        }
        assert!(encoded.entries.len() <= MAX_REMEMBERED);
        found
    }

    #[test]
    fn a_rotation_larger_than_the_cache_hits_in_part() {
        let mut encoded = EncodedRequests::default();
        let many = requests(MAX_REMEMBERED * 2);
        count_hits(&mut encoded, &many);
        for _ in 0..20 {
            assert!(count_hits(&mut encoded, &many) > MAX_REMEMBERED / 2);
        }
    }

    #[test]
    fn a_changed_set_of_requests_is_cached_soon() {
        let mut encoded = EncodedRequests::default();
        let before = requests(MAX_REMEMBERED);
        count_hits(&mut encoded, &before);
        let after = requests(MAX_REMEMBERED);
        for _ in 0..MAX_REMEMBERED {
            count_hits(&mut encoded, &after);
        }
        assert!(count_hits(&mut encoded, &after) > MAX_REMEMBERED / 2);
        // Immediately if the others were dropped.
        drop((before, after));
        let last = requests(MAX_REMEMBERED);
        count_hits(&mut encoded, &last);
        assert_eq!(count_hits(&mut encoded, &last), MAX_REMEMBERED);
    }
}
