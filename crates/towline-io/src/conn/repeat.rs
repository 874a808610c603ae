//! Repeated exchanges of a client: the same request again and again on one connection, and the same response, byte
//! for byte, to all of them. For load generators.
//!
//! The first exchange goes through the protocol core. The front end verifies its response and gives the bytes to the
//! engine. From then on a response that arrives in one piece and is equal to them needs no parsing, and the core is
//! told neither of it nor of the next request: for the core the first request is outstanding all the time. A response
//! that differs in any byte, or arrives in parts, is passed to the core as the response to that request.
//!
//! ```text
//! Tracked ──equal response──► Answered ──send_again──► Sent ──equal response──► Answered
//!    ▲                            │                      └──other bytes──► Tracked
//!    └─────── new request         └──bytes without a request──► Unsolicited
//! ```

use bytes::Bytes;
use towline_proto::StreamId;

/// The responses that connections of an engine compare with.
#[derive(Default)]
pub(crate) struct RepeatedResponses(Vec<RepeatedResponse>);

#[derive(Default)]
pub(super) struct RepeatedResponse {
    /// Empty: not known yet.
    pub(super) bytes: Vec<u8>,
    /// The front end wants the next response that differs.
    pub(super) wants_sample: bool,
}

impl RepeatedResponses {
    pub(super) fn at(&mut self, index: usize) -> &mut RepeatedResponse {
        if self.0.len() <= index {
            self.0.resize_with(index + 1, RepeatedResponse::default);
        }
        &mut self.0[index]
    }

    pub(crate) fn set(&mut self, index: usize, bytes: &[u8]) {
        let response = self.at(index);
        response.bytes.clear();
        response.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn sample(&mut self, index: usize, wants_sample: bool) {
        self.at(index).wants_sample = wants_sample;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// The core knows the request.
    Tracked,
    /// An equal response has arrived; `is_new` until the front end has seen it.
    Answered { is_new: bool },
    /// The request is sent again, and the core does not know it.
    Sent,
    /// Bytes have arrived while no request was outstanding.
    Unsolicited,
}

/// The repeated exchange of a connection.
pub(crate) struct Repeat {
    pub(super) request: Bytes,
    /// Index of the response among the engine's.
    pub(super) response: usize,
    /// The request that is outstanding for the core, from the first one on.
    pub(super) stream: Option<StreamId>,
    pub(super) exchange: Exchange,
    /// Bytes of the request that are not sent yet, its last ones.
    pub(super) unsent: usize,
    /// Bytes that the connection had received when the last request began.
    pub(super) received_before: u64,
    /// The first bytes after the request, if they were to be sampled.
    pub(super) sample: Vec<u8>,
}
