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

use std::io::{self, IoSlice};
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{BufferPool, StreamId};

use super::state::{Exchange, GeneratorState, Repeat};
use crate::Conn;
use crate::conn::Output;
use crate::conn::flush::FlushOutcome;
use crate::tls::RecvOutcome;

/// Responses of this length and longer ones are not compared: they do not arrive in one piece.
const MAX_BYTES: usize = 16 * 1024;

/// The responses that connections of an engine compare with.
pub(super) struct RepeatedResponses {
    known: Vec<RepeatedResponse>,
    /// Where known responses are received: most are equal, and the core needs no buffer for them.
    received: Box<[u8]>,
}

#[derive(Default)]
struct RepeatedResponse {
    /// Empty: not known yet.
    bytes: Vec<u8>,
    /// The front end wants the next response that differs.
    wants_sample: bool,
}

impl Default for RepeatedResponses {
    fn default() -> Self {
        Self {
            known: Vec::new(),
            received: vec![0; MAX_BYTES].into(),
        }
    }
}

impl RepeatedResponses {
    fn at(&mut self, index: usize) -> &mut RepeatedResponse {
        self.with_space(index).0
    }

    /// The response with this index, and space for one.
    fn with_space(&mut self, index: usize) -> (&mut RepeatedResponse, &mut [u8]) {
        if self.known.len() <= index {
            self.known.resize_with(index + 1, RepeatedResponse::default);
        }
        (&mut self.known[index], &mut self.received)
    }

    pub(super) fn set(&mut self, index: usize, bytes: &[u8]) {
        let response = self.at(index);
        response.bytes.clear();
        response.bytes.extend_from_slice(bytes);
    }

    pub(super) fn sample(&mut self, index: usize, wants_sample: bool) {
        self.at(index).wants_sample = wants_sample;
    }
}

impl<S: GeneratorState> Conn<S> {
    /// Declares that `request`, encoded, will be sent again and again, and that the response with this index among the
    /// engine's is expected. HTTP/1.1 only, and without effect over TLS.
    pub fn repeat_exchange(&mut self, request: Bytes, response: usize) {
        let is_plain = (self.io.stream()).is_some_and(|stream| stream.tls.is_none());
        if !is_plain || self.io.is_before_http() {
            return;
        }
        self.state.generated_mut().repeat = Some(Box::new(Repeat {
            request,
            response,
            stream: None,
            exchange: Exchange::Tracked,
            unsent: 0,
            received_before: 0,
            sample: Vec::new(),
        }));
    }

    /// The repeated request was given to the core as `stream`.
    pub fn track_request(&mut self, stream: StreamId) {
        if let Some(repeat) = &mut self.state.generated_mut().repeat {
            repeat.stream = Some(stream);
            repeat.exchange = Exchange::Tracked;
            repeat.received_before = self.traffic.received;
            repeat.sample.clear();
        }
    }

    /// Sends the repeated request again, without the core, if the last response was equal to the expected one.
    /// Returns the stream as which the core knows it. Call `flush_and_rearm` afterwards.
    pub fn send_again(&mut self) -> Option<StreamId> {
        let repeat = self.state.generated_mut().repeat.as_mut()?;
        if !matches!(repeat.exchange, Exchange::Answered { .. }) {
            return None;
        }
        repeat.exchange = Exchange::Sent;
        repeat.unsent = repeat.request.len();
        repeat.received_before = self.traffic.received;
        repeat.sample.clear();
        repeat.stream
    }

    /// Whether a response equal to the expected one has arrived since the last call. It has no events.
    pub fn take_repeated(&mut self) -> bool {
        match &mut self.state.generated_mut().repeat {
            Some(repeat) if repeat.exchange == (Exchange::Answered { is_new: true }) => {
                repeat.exchange = Exchange::Answered { is_new: false };
                true
            }
            _ => false,
        }
    }

    /// Whether the peer has sent bytes while no repeated request was outstanding. The connection is of no use then.
    pub fn is_unsolicited(&self) -> bool {
        (self.state.generated().repeat.as_ref())
            .is_some_and(|repeat| repeat.exchange == Exchange::Unsolicited)
    }

    /// The bytes of the last response, if it arrived in one piece and was to be sampled.
    pub fn response_sample(&self) -> Option<&[u8]> {
        let repeat = self.state.generated().repeat.as_ref()?;
        let received = (self.traffic.received).saturating_sub(repeat.received_before);
        (!repeat.sample.is_empty() && received == repeat.sample.len() as u64)
            .then_some(&*repeat.sample)
    }

    /// Whether an exchange goes on without the core and nothing else is to be handled.
    pub(super) fn is_repeating(&self) -> bool {
        let exchange = self
            .state
            .generated()
            .repeat
            .as_ref()
            .map(|repeat| repeat.exchange);
        matches!(exchange, Some(Exchange::Answered { .. } | Exchange::Sent))
            && self.output == Output::Open
            && !self.input.readable
            && !self.input.over
            && self.input.broken.is_none()
    }

    /// Receives the response of a repeated exchange. Returns false, without a receive, where only `begin_service`
    /// applies.
    pub(super) fn receive_repeated(
        &mut self,
        buffers: &mut BufferPool,
        responses: &mut RepeatedResponses,
        now: Instant,
    ) -> bool {
        let (Some(repeat), Some(stream)) =
            (&mut self.state.generated_mut().repeat, self.io.stream_mut())
        else {
            return false;
        };
        let is_answered = matches!(repeat.exchange, Exchange::Answered { .. });
        let is_next = is_answered
            || repeat.stream.is_some()
                && self.traffic.received == repeat.received_before
                && repeat.exchange != Exchange::Unsolicited;
        let is_open = self.input.readable
            && !self.input.over
            && self.input.broken.is_none()
            && (!self.input.closed || is_answered);
        if !is_next || !is_open || self.output != Output::Open || self.proto.pending_bytes() > 0 {
            return false;
        }
        let (expected, known_space) = responses.with_space(repeat.response);
        let is_known = !expected.bytes.is_empty();
        let space = if is_known {
            &mut *known_space
        } else {
            self.proto.recv_space(buffers)
        };
        if space.is_empty() {
            return false;
        }
        let (bytes, drained) = match stream.recv(space) {
            Ok(RecvOutcome::Data { bytes, drained }) => (bytes, drained),
            other => {
                self.end_receive(other, now);
                return true;
            }
        };
        match repeat.exchange {
            Exchange::Answered { .. } => repeat.exchange = Exchange::Unsolicited,
            // Before the request is sent it is no response to it.
            _ if is_known
                && drained
                && repeat.unsent == 0
                && known_space[..bytes] == *expected.bytes =>
            {
                repeat.exchange = Exchange::Answered { is_new: true };
            }
            _ => match self.proto.recv_space(buffers).get_mut(..bytes) {
                Some(space) => {
                    repeat.exchange = Exchange::Tracked;
                    if is_known {
                        space.copy_from_slice(&known_space[..bytes]);
                    }
                    if expected.wants_sample && drained && bytes < MAX_BYTES {
                        repeat.sample.extend_from_slice(space);
                    }
                    self.proto.received(now, bytes);
                }
                // The core has closed the connection.
                None => repeat.exchange = Exchange::Unsolicited,
            },
        }
        self.count_received(bytes);
        self.input.readable = !drained || self.input.closed;
        true
    }

    /// Sends the rest of a repeated request.
    pub(super) fn send_repeated(&mut self, now: Instant) -> io::Result<FlushOutcome> {
        while let Some(repeat) = self
            .state
            .generated_mut()
            .repeat
            .as_mut()
            .filter(|repeat| repeat.unsent > 0)
        {
            let rest = &repeat.request[repeat.request.len() - repeat.unsent..];
            let Some(stream) = self.io.stream() else {
                break;
            };
            match stream.send_plain(&[IoSlice::new(rest)], false) {
                Ok(sent) => {
                    repeat.unsent -= sent;
                    self.count_sent(now, sent);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(FlushOutcome::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(FlushOutcome::All)
    }
}
