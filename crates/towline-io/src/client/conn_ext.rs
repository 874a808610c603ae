//! Connection operations shared by both front ends: reading events and writing requests, with their limits.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towline_proto::{
    Event, Field, HeadRef, OwnedHead, Protocol, StreamError, StreamId, StreamMut, StreamStats,
    UserError,
};

use super::request::{Body, OutgoingRequest};
use crate::conn::Conn;

/// Bytes of an unread response body that are skipped to keep the connection, or to spare the server a reset.
pub(super) const MAX_SKIPPED_BODY_BYTES: usize = 64 * 1024;

/// A body that waits for `100 Continue` is sent after this long without it: the server may not send one
/// (RFC 9110 10.1.1). The same value as in curl.
pub(super) const EXPECT_CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection may be idle before another request, of a server that says when it closes it
/// (`Keep-Alive: timeout=5`; RFC 2068 19.7.1.1). The rest is for the way of the request: it would be lost if it met
/// the close, and only an idempotent one may be sent again.
pub(super) fn announced_idle_time(head: &HeadRef<'_>) -> Option<Duration> {
    const RESERVE: Duration = Duration::from_secs(1);
    let value = std::str::from_utf8(head.field(b"keep-alive")?).ok()?;
    let seconds = value.split(',').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.trim().parse().ok()).flatten()
    })?;
    let timeout = Duration::from_secs(seconds);
    Some(timeout.saturating_sub(RESERVE.min(timeout / 2)))
}

/// Whether the rest of a request body is not sent once the final response has this status (RFC 9112 9.5). Nothing is
/// uploaded to a URL that redirects.
pub(super) fn refuses_body(status: u16) -> bool {
    status >= 300
}

/// A stream event that does not borrow from the connection.
pub(super) enum ConnEvent {
    Head { head: OwnedHead, end: bool },
    Interim(OwnedHead),
    Readable,
    Writable,
    Switched,
    Failed(StreamError),
}

impl ConnEvent {
    /// Converts a protocol event. `None`: the connection is closing.
    pub(super) fn of(event: Event<'_>) -> Option<(StreamId, Self)> {
        Some(match event {
            Event::Head { stream, head, end } => {
                let head = head.to_owned_head();
                (stream, Self::Head { head, end })
            }
            Event::Informational { stream, head } => (stream, Self::Interim(head.to_owned_head())),
            Event::Readable(stream) => (stream, Self::Readable),
            Event::Writable(stream) => (stream, Self::Writable),
            Event::Switched { stream } => (stream, Self::Switched),
            Event::Failed(stream, error) => (stream, Self::Failed(error)),
            Event::GoingAway { .. } | Event::Closed(_) | Event::HalfClosed(_) => return None,
        })
    }
}

impl<S> Conn<S> {
    pub(super) fn is_shared(&self) -> bool {
        matches!(
            self.proto.protocol(),
            Some(Protocol::Http2 | Protocol::Http3)
        )
    }

    pub(super) fn is_http3(&self) -> bool {
        self.proto.protocol() == Some(Protocol::Http3)
    }

    /// The header that names an alternative to its server (RFC 7838 5); `None` over TCP.
    pub(super) fn alt_used<'a>(&self, request: &'a OutgoingRequest) -> Option<Field<'a>> {
        let value = request.route.alt_used().filter(|_| self.is_http3())?;
        Some(Field {
            name: b"alt-used",
            value: value.as_bytes(),
        })
    }

    /// Whether part of the request on `stream` is still unsent.
    pub(super) fn has_unsent(&mut self, stream: StreamId) -> bool {
        let queued = self.proto.stream(stream).map_or(0, |body| body.queued());
        queued > 0 || self.proto.pending_bytes() > 0 || self.is_sending_file(stream)
    }

    /// When part of the request on `stream` was last sent, if it had to wait.
    pub(super) fn last_sent(&mut self, stream: StreamId) -> Option<Instant> {
        let body = self.proto.stream(stream).ok()?;
        let (queued, own) = (body.queued(), body.stats()?.last_sent);
        if queued == 0 && self.proto.pending_bytes() > 0 {
            // The rest waits in the output of the connection.
            return own.max(self.traffic.last_sent);
        }
        own
    }

    /// Bytes sent and received on an HTTP/2 stream; `None` for HTTP/1.
    pub(super) fn stream_stats(&mut self, stream: StreamId) -> Option<StreamStats> {
        self.proto.stream(stream).ok()?.stats()
    }

    /// Sends GOAWAY (RFC 9113 6.8), so that the server does not take the end of the connection for a failure.
    pub(super) fn send_goaway(&mut self, now: Instant) {
        self.proto.close();
        self.flush(now, usize::MAX);
    }
}

/// Name and value of a trailer field.
pub type Trailer = (Box<[u8]>, Box<[u8]>);

/// The trailers of a response that has been read to its end.
pub(super) fn trailers_of(body: &StreamMut<'_>) -> Vec<Trailer> {
    let trailers = body.trailers();
    trailers
        .map(|field| (field.name.into(), field.value.into()))
        .collect()
}

/// Queues the request, and its body if that is given and need not wait for 100 (Continue).
pub(super) fn write_request<S>(
    peer: &mut Conn<S>,
    request: &OutgoingRequest,
) -> Result<StreamId, UserError> {
    let size = request.body.size();
    // Opened first: a request that is queued cannot be taken back.
    let file = duplicate(&request.body).map_err(|_| UserError::StreamFailed)?;
    let alt_used = peer.alt_used(request);
    let stream = request
        .head
        .with_head_and(alt_used, |head| peer.proto.request(head, size))?;
    if !request.awaits_continue()
        && let Err(error) = write_body(peer, stream, &request.body, file)
    {
        if peer.is_shared() {
            peer.proto.stream(stream)?.reset();
        }
        return Err(error);
    }
    Ok(stream)
}

/// Opens the file of a body once more, because sending it takes the file.
pub(super) fn duplicate(body: &Body) -> io::Result<Option<File>> {
    match body {
        Body::File { file, .. } => file.try_clone().map(Some),
        _ => Ok(None),
    }
}

/// Queues a body that was given with its request; `file` is its file, opened once more.
pub(super) fn write_body<S>(
    peer: &mut Conn<S>,
    stream: StreamId,
    body: &Body,
    file: Option<File>,
) -> Result<(), UserError> {
    match (body, file) {
        (Body::Bytes(bytes), _) => {
            let mut body = peer.proto.stream(stream)?;
            body.write_shared(Bytes::clone(bytes))?;
            body.finish()
        }
        (Body::File { offset, len, .. }, Some(file)) => peer.send_file(stream, file, *offset, *len),
        _ => Ok(()),
    }
}
