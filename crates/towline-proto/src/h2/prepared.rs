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
use super::frame::{self, HEADER_BYTES, Kind, flag};
use super::outgoing::Asked;
use super::streams::At;

/// A longer block is made anew each time. No peer's frames are too small for it.
const MOST_BLOCK_BYTES: usize = 256;

/// So many requests of a mix are remembered; then the one that came first is forgotten.
const REMEMBERED: usize = 32;

/// Prepared requests that were sent, and what they became.
#[derive(Debug, Default)]
pub(super) struct Written(Vec<Whole>);

#[derive(Debug)]
struct Whole {
    parts: Arc<Parts>,
    asked: Asked,
    /// What the block depends on ([`changes`](super::hpack::Encoder::changes)).
    changes: u32,
    block: Vec<u8>,
}

impl Written {
    fn find(&self, request: &PreparedRequest, changes: Option<u32>) -> Option<&Whole> {
        let is_it = |whole: &&Whole| Arc::ptr_eq(&whole.parts, request.parts());
        let found = self.0.iter().find(is_it)?;
        (Some(found.changes) == changes).then_some(found)
    }

    fn add(&mut self, whole: Whole) {
        self.0
            .retain(|other| !Arc::ptr_eq(&other.parts, &whole.parts));
        if self.0.len() == REMEMBERED {
            self.0.remove(0);
        }
        self.0.push(whole);
    }
}

impl Connection {
    pub fn request_ahead(
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
            && self.stream_room() > 0
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
        if let Some(changes) = changes.filter(|_| is_kept) {
            written.add(Whole {
                parts: Arc::clone(request.parts()),
                asked: begun.asked,
                changes,
                block: block.into(),
            });
        }
        Ok(begun.at)
    }

    fn begin_again(&mut self, whole: &Whole) -> At {
        let asked = whole.asked;
        let (id, at) = self.begin_exchange(asked);
        let start = self.send.end();
        let n = self.send.fill(|out| {
            let flags = flag::END_HEADERS | if asked.end { flag::END_STREAM } else { 0 };
            frame::header(out, Kind::Headers, flags, id, whole.block.len());
            out.extend_from_slice(&whole.block);
        });
        self.tail = (!asked.end).then_some((id, start));
        self.streams.at_mut(at).carried.sent += n as u64;
        at
    }
}

fn size_of(body: Option<&Bytes>) -> BodySize {
    body.map_or(BodySize::Empty, |body| BodySize::Known(body.len() as u64))
}
