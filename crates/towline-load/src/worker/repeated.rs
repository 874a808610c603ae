//! Repeated exchanges: where every connection sends one and the same request, a response that is equal to a verified
//! one, byte for byte, is verified. It is counted without being parsed, and the request is sent again as it is
//! ([`towline_io::Conn::repeat_exchange`]).
//!
//! A response changes once a second where it has a date. So the next one that differs is kept after each tick, and
//! becomes the expected one if it has passed all checks and is a whole response by itself.

use std::time::Instant;

use bytes::Bytes;
use towline_io::ConnId;
use towline_proto::{BufferPool, Connection, Event, Limits, PreparedRequest, Protocol, StreamRead};

use super::Worker;
use super::origins::Origins;
use super::templates::RequestTemplates;
use crate::config::Config;
use crate::target::SendMode;

/// The repeated exchanges of a worker, by target.
pub(super) struct Repeated {
    targets: Vec<RepeatedTarget>,
}

struct RepeatedTarget {
    /// Encoded; `None`: not encoded once for all connections.
    request: Option<Bytes>,
    /// The response that the engine compares with.
    status: u16,
    body_bytes: u64,
}

impl Repeated {
    /// `None` where requests differ, overlap, or end their connection.
    pub(super) fn new(
        config: &Config,
        origins: &Origins,
        templates: &RequestTemplates,
    ) -> Option<Self> {
        let is_possible = config.protocol == Protocol::Http1
            && config.concurrency() == 1
            && config.requests_per_connection.is_none()
            && !config.has_variables()
            && config.mix != crate::Mix::Session
            && origins.have_one_target_each()
            && (config.targets.iter()).all(|target| {
                target.send_mode == SendMode::Whole
                    && target.messages.is_none()
                    && (target.body.is_none() || target.chunk_bytes.is_none())
                    && target.expect.captures.is_empty()
            });
        is_possible.then(|| Self {
            targets: (0..config.targets.len())
                .map(|target| RepeatedTarget {
                    request: (templates.prepared(target)).map(PreparedRequest::http1_bytes),
                    status: 0,
                    body_bytes: 0,
                })
                .collect(),
        })
    }
}

impl Worker {
    /// Prepares a new connection of `slot` for repeated exchanges.
    pub(super) fn repeat_on(&mut self, slot: u32, id: ConnId) {
        let target = self.origin_of(slot).next() as usize;
        if let Some(repeated) = &self.repeated
            && let Some(request) = &repeated.targets[target].request
            && let Some(conn) = self.engine.conn(id)
        {
            conn.repeat_exchange(request.clone(), target);
        }
    }

    /// Keeps the next response of each target that differs.
    pub(super) fn sample_responses(&mut self) {
        if let Some(repeated) = &self.repeated {
            for target in 0..repeated.targets.len() {
                self.engine.sample_responses(target, true);
            }
        }
    }

    /// Learns a response that has passed all checks.
    pub(super) fn learn_response(
        &mut self,
        id: ConnId,
        target: usize,
        status: u16,
        body_bytes: u64,
    ) {
        let Some(repeated) = &mut self.repeated else {
            return;
        };
        let sample = (self.engine.conn(id)).and_then(|conn| Some(conn.response_sample()?.to_vec()));
        let (Some(sample), Some(request)) = (sample, self.writer.templates.prepared(target)) else {
            return;
        };
        // Only one response is kept per tick, so that a server whose responses always differ costs nothing.
        self.engine.sample_responses(target, false);
        if is_whole_response(request, &sample, self.engine.buffers()) {
            self.engine.set_repeated_response(target, &sample);
            let known = &mut repeated.targets[target];
            (known.status, known.body_bytes) = (status, body_bytes);
        }
    }

    /// Counts a response that is equal to the expected one, and sends the request again.
    pub(super) fn on_repeated(&mut self, id: ConnId, now: Instant) {
        let Some(repeated) = &self.repeated else {
            return;
        };
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        let (Some(mut request), Some(slot)) = (conn.state.pending.pop_front(), conn.state.slot)
        else {
            return;
        };
        let known = &repeated.targets[request.target as usize];
        let (status, body_bytes) = (known.status, known.body_bytes);
        self.slots.end_requests(1);
        self.window.on_server_active(now);
        self.align(now);
        if self.window.counts(request.intended, now) {
            self.tally.count_status(status);
        }
        self.count_success(&request, status, body_bytes, now);
        // A closed loop needs no more of `permit`.
        if self.permits.are_used_at_once()
            && self.window.sends()
            && !self.permits.is_spent()
            && let Some(conn) = self.engine.conn(id)
            && conn.send_again().is_some()
        {
            (request.intended, request.sent) = (now, now);
            conn.state.pending.push_back(request);
            self.slots.get_mut(slot).used += 1;
            self.slots.begin_request();
            self.permits.spend();
            self.tally.sent += u64::from(self.window.counts(now, now));
        } else {
            self.permit(slot, now);
        }
    }
}

/// Whether `bytes` are one response to `request`, no more and no less, after which the connection can be used again.
fn is_whole_response(request: &PreparedRequest, bytes: &[u8], buffers: &mut BufferPool) -> bool {
    let now = Instant::now();
    let limits = Limits::client().into();
    let mut conn = Connection::client_with_protocol(limits, Protocol::Http1, now);
    if conn.request_prepared(request).is_err() {
        return false;
    }
    let unsent = conn.pending_bytes();
    conn.sent(now, unsent);
    let space = conn.recv_space(buffers);
    let Some(space) = space.get_mut(..bytes.len()) else {
        return false;
    };
    space.copy_from_slice(bytes);
    conn.received(now, bytes.len());
    let mut is_whole = false;
    while let Some(event) = conn.next_event() {
        let stream = match event {
            Event::Head { end: true, .. } => {
                is_whole = true;
                continue;
            }
            Event::Head { stream, .. } | Event::Readable(stream) => stream,
            _ => return false,
        };
        let Ok(mut stream) = conn.stream(stream) else {
            return false;
        };
        is_whole = loop {
            match stream.read(usize::MAX) {
                StreamRead::Data(_) => {}
                outcome => break matches!(outcome, StreamRead::End),
            }
        };
    }
    conn.release(buffers);
    is_whole && conn.is_reusable()
}

#[cfg(test)]
mod tests {
    use towline_proto::RequestHead;

    use super::*;

    #[test]
    fn only_one_whole_response_after_which_the_connection_goes_on_is_known() {
        let head = RequestHead {
            method: b"GET",
            target: b"/",
            fields: &[towline_proto::Field {
                name: b"Host",
                value: b"a",
            }],
        };
        let request = PreparedRequest::new(&head, None).unwrap();
        let whole = [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        ];
        let other = [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "",
        ];
        let mut buffers = BufferPool::new(64 * 1024, 1);
        let mut is_whole = |text: &str| is_whole_response(&request, text.as_bytes(), &mut buffers);
        for text in whole {
            assert!(is_whole(text), "{text:?}");
        }
        for text in other {
            assert!(!is_whole(text), "{text:?}");
        }
    }
}
