//! The compressed form of prepared requests.
//!
//! The meaning of a block depends on the table of the peer. While the encoder would produce the same block
//! for the same fields, the cached one is sent: nothing is validated, looked up or compressed.

use std::sync::Arc;

use crate::PreparedRequest;
use crate::body::Method;
use crate::h1::Parts;
use crate::multiplexed::fields::RequestInfo;
use crate::multiplexed::response::{EncodedBlock, MAX_CACHED_BLOCK_BYTES};

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
pub(crate) struct EncodedRequests {
    entries: Vec<EncodedRequest>,
    /// Number of requests that found no free slot.
    unplaced: u32,
}

#[derive(Debug)]
pub(super) struct EncodedRequest {
    parts: Arc<Parts>,
    pub info: RequestInfo,
    /// The encoder state that the block depends on (its generation).
    generation: u32,
    /// QPACK: the oldest entry that the block refers to.
    oldest: u64,
    block: Vec<u8>,
}

impl EncodedRequest {
    pub fn block(&self) -> EncodedBlock<'_> {
        EncodedBlock {
            bytes: &self.block,
            generation: self.generation,
            oldest: self.oldest,
        }
    }
}

impl EncodedRequests {
    fn position(&self, parts: &Arc<Parts>) -> Option<usize> {
        let is_same = |entry: &EncodedRequest| Arc::ptr_eq(&entry.parts, parts);
        self.entries.iter().position(is_same)
    }

    pub(super) fn find(
        &self,
        request: &PreparedRequest,
        generation: Option<u32>,
    ) -> Option<&EncodedRequest> {
        let found = &self.entries[self.position(request.parts())?];
        (Some(found.generation) == generation).then_some(found)
    }

    /// Caches the block of a request that was sent.
    pub fn record(
        &mut self,
        request: &PreparedRequest,
        info: RequestInfo,
        block: EncodedBlock<'_>,
    ) {
        if block.bytes.len() > MAX_CACHED_BLOCK_BYTES || info.method == Method::Connect {
            return;
        }
        let parts = request.parts();
        if let Some(slot) = self.slot_for(parts) {
            let entry = EncodedRequest {
                parts: Arc::clone(parts),
                info,
                generation: block.generation,
                oldest: block.oldest,
                block: block.bytes.to_vec(),
            };
            match self.entries.get_mut(slot) {
                Some(other) => *other = entry,
                None => self.entries.push(entry),
            }
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multiplexed::states::SendState;
    use crate::{Field, RequestHead};

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
            } else {
                let info = RequestInfo {
                    method: Method::Other,
                    is_safe: true,
                    end: true,
                    next: SendState::Complete,
                };
                let block = EncodedBlock {
                    bytes: &[],
                    generation: 0,
                    oldest: 0,
                };
                encoded.record(request, info, block);
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
