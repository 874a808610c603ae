//! Whole requests: sent in one call, and prepared ones, which are sent many times.

use bytes::Bytes;

use crate::multiplexed::prepared::{EncodedRequest, EncodedRequests, size_of};
use crate::multiplexed::response::EncodedBlock;
use crate::multiplexed::streams::StreamKey;
use crate::{PreparedRequest, RequestHead, StreamId, UserError};

use super::Connection;

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
        // If fields were added to the table, the next section for the same head is different.
        if let Some(generation) = generation.filter(|_| self.encoder.generation() == generation) {
            let block = EncodedBlock {
                bytes: &self.scratch.section,
                generation,
                oldest: opened.oldest,
            };
            encoded.record(request, opened.info, block);
        }
        Ok(opened.key)
    }

    fn open_encoded(&mut self, entry: &EncodedRequest) -> StreamKey {
        let key = self.begin_exchange(entry.info);
        self.repeat_head(key, &entry.block, entry.oldest);
        self.begin_body(key, entry.info.end);
        key
    }
}
