//! Requests that are sent many times, for a load generator. They are validated once, and compressed once for each state of
//! the compression table. A server repeats refusals over HTTP/1.

mod encoded;

use crate::multiplexed::Messages;
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, EncodedResponse, PreparedRequest, StreamId, UserError};

use super::{Connection, Inner};

pub(crate) use encoded::EncodedRequests;

impl Connection {
    /// Responds over HTTP/1.1, on a connection that stays open. False: use [`respond`](Self::respond).
    pub fn respond_encoded(
        &mut self,
        id: StreamId,
        response: &EncodedResponse,
    ) -> Result<bool, UserError> {
        match &mut self.inner {
            Inner::H1(conn) => conn.respond_encoded(id, response),
            Inner::H2(_) | Inner::H3(_) => Ok(false),
        }
    }

    /// Like [`request_pipelined`](Self::request_pipelined), with a request that is validated and encoded already,
    /// for programs that send the same one many times.
    pub fn request_prepared(&mut self, request: &PreparedRequest) -> Result<StreamId, UserError> {
        let encoded = &mut self.encoded_requests;
        match &mut self.inner {
            Inner::H1(conn) => conn.request_prepared(request),
            Inner::H2(conn) => {
                request_encoded(&mut **conn, request, encoded.get_or_insert_default())
            }
            Inner::H3(conn) => {
                request_encoded(&mut **conn, request, encoded.get_or_insert_default())
            }
        }
    }
}

fn request_encoded<C: Messages>(
    conn: &mut C,
    request: &PreparedRequest,
    encoded: &mut EncodedRequests,
) -> Result<StreamId, UserError> {
    let key = open(conn, request, encoded)?;
    conn.finish_request(key, request.body())
}

fn open<C: Messages>(
    conn: &mut C,
    request: &PreparedRequest,
    encoded: &mut EncodedRequests,
) -> Result<StreamKey, UserError> {
    let generation = conn.generation();
    if let Some(entry) = encoded.find(request, generation)
        && conn.stream_capacity() > 0
    {
        let key = conn.begin_exchange(entry.info);
        conn.repeat_head(key, entry.block(), entry.info.end);
        conn.after_head(key, entry.info.end);
        return Ok(key);
    }
    let size = BodySize::of(request.body().as_ref());
    let opened = request.with_head(|head| conn.open_request(head, size))?;
    // If fields were added to the table, the next block for the same head is different.
    if let Some(generation) = generation.filter(|_| conn.generation() == generation) {
        let block = conn.written_block(opened.written, generation);
        encoded.record(request, opened.info, block);
    }
    Ok(opened.key)
}
