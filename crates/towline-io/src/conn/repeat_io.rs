//! Receiving and sending of repeated exchanges: see `repeat.rs`.

use std::io::{self, IoSlice};
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{BufferPool, StreamId};

use super::flush::FlushOutcome;
use super::repeat::{Exchange, Repeat, RepeatedResponses};
use super::{Conn, Output};
use crate::tls::RecvOutcome;

/// Longest response that is compared: longer ones do not arrive in one piece.
const MAX_BYTES: usize = 16 * 1024;

impl<S> Conn<S> {
    /// Declares that `request`, encoded, will be sent again and again, and that the response with this index among the
    /// engine's is expected. HTTP/1.1 only, and without effect over TLS.
    pub fn repeat_exchange(&mut self, request: Bytes, response: usize) {
        let is_plain = (self.io.stream()).is_some_and(|stream| stream.tls.is_none());
        if !is_plain || self.io.is_before_http() {
            return;
        }
        self.repeat = Some(Box::new(Repeat {
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
        if let Some(repeat) = &mut self.repeat {
            repeat.stream = Some(stream);
            repeat.exchange = Exchange::Tracked;
            repeat.received_before = self.traffic.received;
            repeat.sample.clear();
        }
    }

    /// Sends the repeated request again, without the core, if the last response was equal to the expected one.
    /// Returns the stream as which the core knows it. Call `flush_and_rearm` afterwards.
    pub fn send_again(&mut self) -> Option<StreamId> {
        let repeat = self.repeat.as_mut()?;
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
        match &mut self.repeat {
            Some(repeat) if repeat.exchange == (Exchange::Answered { is_new: true }) => {
                repeat.exchange = Exchange::Answered { is_new: false };
                true
            }
            _ => false,
        }
    }

    /// Whether the peer has sent bytes while no repeated request was outstanding. The connection is of no use then.
    pub fn is_unsolicited(&self) -> bool {
        (self.repeat.as_ref()).is_some_and(|repeat| repeat.exchange == Exchange::Unsolicited)
    }

    /// The bytes of the last response, if it arrived in one piece and was to be sampled.
    pub fn response_sample(&self) -> Option<&[u8]> {
        let repeat = self.repeat.as_ref()?;
        let received = (self.traffic.received).saturating_sub(repeat.received_before);
        (!repeat.sample.is_empty() && received == repeat.sample.len() as u64)
            .then_some(&*repeat.sample)
    }

    /// Number of bytes of requests that are not written to the socket yet.
    pub fn unsent_bytes(&self) -> usize {
        self.proto.pending_bytes() + self.repeat.as_ref().map_or(0, |repeat| repeat.unsent)
    }

    /// Whether an exchange goes on without the core and nothing else is to be handled.
    pub(crate) fn is_repeating(&self) -> bool {
        let exchange = self.repeat.as_ref().map(|repeat| repeat.exchange);
        matches!(exchange, Some(Exchange::Answered { .. } | Exchange::Sent))
            && self.output == Output::Open
            && !self.input.readable
            && !self.input.over
            && self.input.broken.is_none()
    }

    /// Receives the response of a repeated exchange. Returns false, without a receive, where only `begin_service`
    /// applies.
    pub(crate) fn receive_repeated(
        &mut self,
        buffers: &mut BufferPool,
        responses: &mut RepeatedResponses,
        now: Instant,
    ) -> bool {
        let (Some(repeat), Some(stream)) = (&mut self.repeat, self.io.stream_mut()) else {
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
        let expected = responses.at(repeat.response);
        let space = self.proto.recv_space(buffers);
        if space.len() <= expected.bytes.len() {
            return false;
        }
        let (bytes, drained) = match stream.recv(space) {
            Ok(RecvOutcome::Data { bytes, drained }) => (bytes, drained),
            other => {
                self.end_receive(other, now);
                return true;
            }
        };
        let data = &space[..bytes];
        match repeat.exchange {
            Exchange::Answered { .. } => repeat.exchange = Exchange::Unsolicited,
            // Before the request is sent it is no response to it.
            _ if drained && repeat.unsent == 0 && *data == *expected.bytes => {
                repeat.exchange = Exchange::Answered { is_new: true };
            }
            _ => {
                repeat.exchange = Exchange::Tracked;
                if expected.wants_sample && drained && bytes <= MAX_BYTES {
                    repeat.sample.extend_from_slice(data);
                }
                self.proto.received(now, bytes);
            }
        }
        self.count_received(bytes);
        self.input.readable = !drained || self.input.closed;
        true
    }

    /// Sends the rest of a repeated request.
    pub(crate) fn flush_repeated(&mut self, now: Instant) -> io::Result<FlushOutcome> {
        while let Some(repeat) = self.repeat.as_mut().filter(|repeat| repeat.unsent > 0) {
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
