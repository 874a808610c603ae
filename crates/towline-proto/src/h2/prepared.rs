//! Requests that are sent whole; those that are prepared are sent over and over, and compressed once.
//!
//! A header block means something by the table that it meets. While the encoder would make of the same fields the
//! same block, the one that it made is sent again as it stands: nothing is checked, looked up or compressed.

use std::sync::Arc;

use bytes::Bytes;

use crate::body::Method;
use crate::h1::Parts;
use crate::{BodySize, PreparedRequest, RequestHead, StreamId, UserError};

use super::Connection;
use super::frame::{self, HEADER_BYTES};
use super::send::{Asked, MOST_BLOCK_BYTES};
use super::streams::At;

/// So many requests of a mix are remembered.
const REMEMBERED: usize = 32;

/// One of so many newcomers takes the place of another: a prime, so that it is not the same one in each round.
const ONE_IN: u32 = 31;

/// Prepared requests that were sent, and what they became.
///
/// Where there are more than are remembered, most of those that are stay: requests that come in turn would otherwise
/// push each other out just before they come again. A mix that has changed is known before long all the same, and at
/// once where nobody holds the requests of the old one.
#[derive(Debug, Default)]
pub(super) struct Written {
    known: Vec<Whole>,
    /// That found no place free.
    newcomers: u32,
}

#[derive(Debug)]
struct Whole {
    parts: Arc<Parts>,
    asked: Asked,
    /// What the block depends on ([`changes`](super::hpack::Encoder::changes)).
    changes: u32,
    block: Vec<u8>,
}

impl Written {
    fn place(&self, parts: &Arc<Parts>) -> Option<usize> {
        let is_it = |whole: &Whole| Arc::ptr_eq(&whole.parts, parts);
        self.known.iter().position(is_it)
    }

    fn find(&self, request: &PreparedRequest, changes: Option<u32>) -> Option<&Whole> {
        let found = &self.known[self.place(request.parts())?];
        (Some(found.changes) == changes).then_some(found)
    }

    /// Where a request that has become something else, or is new, is to be kept.
    fn place_for(&mut self, parts: &Arc<Parts>) -> Option<usize> {
        let known = &self.known;
        if let Some(place) = self.place(parts) {
            return Some(place);
        }
        if known.len() < REMEMBERED {
            return Some(known.len());
        }
        let is_forsaken = |whole: &Whole| Arc::strong_count(&whole.parts) == 1;
        if let Some(place) = known.iter().position(is_forsaken) {
            return Some(place);
        }
        self.newcomers = self.newcomers.wrapping_add(1);
        let takes_place = self.newcomers.is_multiple_of(ONE_IN);
        takes_place.then_some((self.newcomers / ONE_IN) as usize % REMEMBERED)
    }

    fn keep(&mut self, place: usize, whole: Whole) {
        match self.known.get_mut(place) {
            Some(other) => *other = whole,
            None => self.known.push(whole),
        }
    }
}

impl Connection {
    pub fn request_pipelined(
        &mut self,
        head: &RequestHead<'_>,
        body: Option<Bytes>,
    ) -> Result<StreamId, UserError> {
        let begun = self.begin_asking(head, size_of(body.as_ref()))?;
        self.send_whole(begun.at, body)
    }

    /// All of the body behind its head, if there is one.
    fn send_whole(&mut self, at: At, body: Option<Bytes>) -> Result<StreamId, UserError> {
        let id = self.id_of(at);
        if let Some(body) = body {
            self.write_shared(at, body)?;
            self.finish(at, &[])?;
        }
        Ok(id)
    }

    pub fn request_prepared(&mut self, request: &PreparedRequest) -> Result<StreamId, UserError> {
        let mut written = self.written.take().unwrap_or_default();
        let begun = self.begin_prepared(request, &mut written);
        self.written = Some(written);
        self.send_whole(begun?, request.body())
    }

    fn begin_prepared(
        &mut self,
        request: &PreparedRequest,
        written: &mut Written,
    ) -> Result<At, UserError> {
        let changes = self.encoder.changes();
        if let Some(whole) = written.find(request, changes)
            && self.stream_capacity() > 0
        {
            return Ok(self.begin_again(whole));
        }
        let size = size_of(request.body().as_ref());
        let begun = request.with_head(|head| self.begin_asking(head, size))?;
        let block = &self.send.from(begun.head_at)[HEADER_BYTES..];
        // Otherwise it becomes something else the next time: what was added to the table stands there then.
        let is_kept = self.encoder.changes() == changes
            && block.len() <= MOST_BLOCK_BYTES
            && begun.asked.method != Method::Connect;
        if let Some(changes) = changes.filter(|_| is_kept)
            && let Some(place) = written.place_for(request.parts())
        {
            let whole = Whole {
                parts: Arc::clone(request.parts()),
                asked: begun.asked,
                changes,
                block: block.into(),
            };
            written.keep(place, whole);
        }
        Ok(begun.at)
    }

    fn begin_again(&mut self, whole: &Whole) -> At {
        let asked = whole.asked;
        let (id, at) = self.begin_exchange(asked);
        let start = self.send.end();
        let n = self
            .send
            .fill(|out| frame::headers(out, id, asked.end, &whole.block));
        self.tail = (!asked.end).then_some((id, start));
        self.streams.at_mut(at).stats.sent += n as u64;
        at
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

    /// How many of them are found; what is not is kept if there is a place.
    fn found(written: &mut Written, requests: &[PreparedRequest]) -> usize {
        let mut found = 0;
        for request in requests {
            if written.find(request, Some(0)).is_some() {
                found += 1;
            } else if let Some(place) = written.place_for(request.parts()) {
                let whole = Whole {
                    parts: Arc::clone(request.parts()),
                    asked: Asked {
                        method: Method::Other,
                        end: true,
                        next: crate::h2::stream::Sending::Complete,
                    },
                    changes: 0,
                    block: Vec::new(),
                };
                written.keep(place, whole);
            }
        }
        assert!(written.known.len() <= REMEMBERED);
        found
    }

    #[test]
    fn more_in_turn_than_are_remembered_are_remembered_in_part() {
        let mut written = Written::default();
        let many = requests(REMEMBERED * 2);
        found(&mut written, &many);
        for _ in 0..20 {
            assert!(found(&mut written, &many) > REMEMBERED / 2);
        }
    }

    #[test]
    fn a_mix_that_has_changed_is_remembered_before_long() {
        let mut written = Written::default();
        let before = requests(REMEMBERED);
        found(&mut written, &before);
        let after = requests(REMEMBERED);
        for _ in 0..REMEMBERED {
            found(&mut written, &after);
        }
        assert!(found(&mut written, &after) > REMEMBERED / 2);
        // ... and at once where the others are gone.
        drop((before, after));
        let last = requests(REMEMBERED);
        found(&mut written, &last);
        assert_eq!(found(&mut written, &last), REMEMBERED);
    }
}
