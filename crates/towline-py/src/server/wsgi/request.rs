//! From a connection's events to a request that can be handed to the application. No Python here: in
//! threads mode this runs on the I/O thread, which has no business with the GIL.
//!
//! ```text
//!            Head, no body                       body complete, or a window of it
//! (nothing) ───────────────▶ Request   (nothing) ─Head─▶ awaiting ────────────────▶ Request
//!                                                           │ Failed
//!                                                           ▼
//!                                                        (nothing)
//! ```
//!
//! A body is awaited before the application is called, so that a slow uploader costs a buffer and not the
//! I/O thread; but never more than a window of it.
use std::collections::VecDeque;
use std::ops::Range;

use towline_io::serve::site::RequestLine;
use towline_io::{Peer, Streams};
use towline_proto::{Event, Field, HeadRef, Read, StreamId, Version};

/// How much of a body is awaited; longer ones are pulled by `wsgi.input`.
pub const WINDOW_BYTES: usize = 64 * 1024;

/// A request head, kept beyond the event that announced it.
#[derive(Default)]
pub struct OwnedHead {
    bytes: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    version: Option<Version>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

impl OwnedHead {
    pub fn method(&self) -> &[u8] {
        &self.bytes[self.method.clone()]
    }

    pub fn target(&self) -> &[u8] {
        &self.bytes[self.target.clone()]
    }

    pub fn version(&self) -> Version {
        self.version.unwrap_or(Version::Http11)
    }

    pub fn line(&self) -> RequestLine<'_> {
        RequestLine {
            method: self.method(),
            target: self.target(),
            version: self.version(),
        }
    }

    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> + Clone {
        self.fields.iter().map(|(name, value)| Field {
            name: &self.bytes[name.clone()],
            value: &self.bytes[value.clone()],
        })
    }

    fn copy(&mut self, head: &HeadRef<'_>) {
        self.bytes.clear();
        self.fields.clear();
        self.method = self.append(head.method());
        self.target = self.append(head.target());
        self.version = Some(head.version());
        for field in head.fields() {
            let name = self.append(field.name);
            let value = self.append(field.value);
            self.fields.push((name, value));
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}

pub struct Request {
    pub stream: StreamId,
    pub head: OwnedHead,
    /// What has arrived of the body.
    pub body: Vec<u8>,
    /// Nothing of the body is still to come.
    pub complete: bool,
}

/// What the WSGI server keeps with a connection.
#[derive(Default)]
pub struct ConnState {
    awaiting: Streams<Box<Request>>,
    /// Requests that wait until somebody can serve them (HTTP/2).
    pub ready: VecDeque<Request>,
    /// Already in the list of connections to look at again.
    pub deferred: bool,
}

/// What an event comes to.
pub enum Step {
    Request(Request),
    /// There is more to read, or room to write again.
    Moved(StreamId),
    Lost(StreamId),
    /// All streams are.
    Closed,
}

/// Takes the connection's events until a request is ready. `spare` is a head whose buffers are free.
pub fn next_request(peer: &mut Peer<ConnState>, spare: &mut OwnedHead) -> Option<Request> {
    if let Some(request) = peer.state.ready.pop_front() {
        return Some(request);
    }
    loop {
        if let Step::Request(request) = next_step(peer, spare)? {
            return Some(request);
        }
    }
}

/// Takes the connection's events while the application is called for `stream`: other requests wait. True:
/// that call has lost its client.
pub fn take_news(peer: &mut Peer<ConnState>, stream: Option<StreamId>) -> bool {
    let mut lost = false;
    while let Some(step) = next_step(peer, &mut OwnedHead::default()) {
        match step {
            Step::Request(request) => peer.state.ready.push_back(request),
            Step::Lost(id) => lost |= Some(id) == stream,
            Step::Closed => lost = true,
            Step::Moved(_) => {}
        }
    }
    lost
}

#[inline]
pub fn next_step(peer: &mut Peer<ConnState>, spare: &mut OwnedHead) -> Option<Step> {
    loop {
        let (stream, end) = match peer.conn.next_event()? {
            Event::Head { stream, head, end } => {
                spare.copy(&head);
                (stream, end)
            }
            Event::Readable(stream) => {
                return Some(match resume(peer, stream) {
                    Some(request) => Step::Request(request),
                    None => Step::Moved(stream),
                });
            }
            Event::Writable(stream) => return Some(Step::Moved(stream)),
            Event::Failed(stream, _) => {
                if peer.state.forget(stream) {
                    peer.let_go(stream);
                }
                return Some(Step::Lost(stream));
            }
            Event::Closed(_) => {
                peer.state.awaiting = Streams::default();
                peer.state.ready.clear();
                return Some(Step::Closed);
            }
            _ => continue,
        };
        let head = std::mem::take(spare);
        let mut request = Request {
            stream,
            head,
            body: Vec::new(),
            complete: end,
        };
        if pull(peer, &mut request) {
            return Some(Step::Request(request));
        }
        peer.state.awaiting.insert(stream, Box::new(request));
    }
}

impl ConnState {
    /// A client has taken its request back. Whether the application was not called yet.
    fn forget(&mut self, stream: StreamId) -> bool {
        let before = self.ready.len();
        self.ready.retain(|request| request.stream != stream);
        self.awaiting.remove(stream).is_some() || self.ready.len() < before
    }
}

/// Takes more of a body that is awaited; the request comes out once the application can be called.
fn resume(peer: &mut Peer<ConnState>, stream: StreamId) -> Option<Request> {
    let mut request = peer.state.awaiting.remove(stream)?;
    if pull(peer, &mut request) {
        return Some(*request);
    }
    peer.state.awaiting.insert(stream, request);
    None
}

/// Takes what has arrived of the body; true once the application can be called.
fn pull(peer: &mut Peer<ConnState>, request: &mut Request) -> bool {
    while !request.complete && request.body.len() < WINDOW_BYTES {
        let Ok(mut stream) = peer.conn.stream(request.stream) else {
            return false;
        };
        match stream.read(WINDOW_BYTES - request.body.len()) {
            Read::Data(bytes) => request.body.extend_from_slice(bytes),
            Read::End => request.complete = true,
            // A failure is also an event, which ends the waiting.
            Read::Pending | Read::Failed => return false,
        }
    }
    true
}
