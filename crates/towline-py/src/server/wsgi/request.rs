//! From a connection's events to a request that can be passed to the application. No Python here: with threads
//! this runs on the I/O thread, which never takes the GIL.
//!
//! ```text
//!            Head, no body                       body complete, or a window of it
//! (nothing) ───────────────▶ Request   (nothing) ─Head─▶ awaiting ────────────────▶ Request
//!                                                           │ Failed
//!                                                           ▼
//!                                                        (nothing)
//! ```
//!
//! A body, or its first 64 KiB, is awaited before the application is called, so that a slow upload occupies a
//! buffer and not a thread.
use std::collections::VecDeque;
use std::ops::Range;

use towline_io::serve::features::RequestLine;
use towline_io::{Conn, StreamMap};
use towline_proto::{Event, Field, HeadRef, StreamId, StreamRead, Version};

/// The part of a body that is awaited; the rest is received by `wsgi.input`.
pub const WINDOW_BYTES: usize = 64 * 1024;

/// A copy of a request head, which outlives its event.
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
    /// The part of the body that has arrived.
    pub body: Vec<u8>,
    /// The whole body has arrived.
    pub complete: bool,
}

/// State of the WSGI server for each connection.
#[derive(Default)]
pub struct ConnState {
    awaiting: StreamMap<Box<Request>>,
    /// Requests that wait for a thread to serve them (HTTP/2).
    pub ready: VecDeque<Request>,
    /// Already in the list of deferred connections.
    pub deferred: bool,
}

/// An event of a connection, with request bodies collected.
pub enum RequestEvent {
    Request(Request),
    /// A stream has become readable or writable.
    Progress(StreamId),
    Failed(StreamId),
    /// All streams have failed.
    Closed,
}

/// Handles the connection's events until a request is ready. The buffers of `spare` are reused for its head.
pub fn next_request(conn: &mut Conn<ConnState>, spare: &mut OwnedHead) -> Option<Request> {
    if let Some(request) = conn.state.ready.pop_front() {
        return Some(request);
    }
    loop {
        if let RequestEvent::Request(request) = next_event(conn, spare)? {
            return Some(request);
        }
    }
}

/// Handles the connection's events while the application serves `stream`: other requests wait. Returns true if
/// the client of `stream` has disconnected.
pub fn process_events(conn: &mut Conn<ConnState>, stream: Option<StreamId>) -> bool {
    let mut disconnected = false;
    while let Some(step) = next_event(conn, &mut OwnedHead::default()) {
        match step {
            RequestEvent::Request(request) => conn.state.ready.push_back(request),
            RequestEvent::Failed(id) => disconnected |= Some(id) == stream,
            RequestEvent::Closed => disconnected = true,
            RequestEvent::Progress(_) => {}
        }
    }
    disconnected
}

#[inline]
pub fn next_event(conn: &mut Conn<ConnState>, spare: &mut OwnedHead) -> Option<RequestEvent> {
    loop {
        let (stream, end) = match conn.proto.next_event()? {
            Event::Head { stream, head, end } => {
                spare.copy(&head);
                (stream, end)
            }
            Event::Readable(stream) => {
                return Some(match resume_body(conn, stream) {
                    Some(request) => RequestEvent::Request(request),
                    None => RequestEvent::Progress(stream),
                });
            }
            Event::Writable(stream) => return Some(RequestEvent::Progress(stream)),
            Event::Failed(stream, _) => {
                if conn.state.remove(stream) {
                    conn.release_stream(stream);
                }
                return Some(RequestEvent::Failed(stream));
            }
            Event::Closed(_) => {
                conn.state.awaiting = StreamMap::default();
                conn.state.ready.clear();
                return Some(RequestEvent::Closed);
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
        if read_body(conn, &mut request) {
            return Some(RequestEvent::Request(request));
        }
        conn.state.awaiting.insert(stream, Box::new(request));
    }
}

impl ConnState {
    /// Removes the request of a failed stream; true if the application has not been called for it.
    fn remove(&mut self, stream: StreamId) -> bool {
        let before = self.ready.len();
        self.ready.retain(|request| request.stream != stream);
        self.awaiting.remove(stream).is_some() || self.ready.len() < before
    }
}

/// Reads more of an awaited body; returns the request once the application can be called.
fn resume_body(conn: &mut Conn<ConnState>, stream: StreamId) -> Option<Request> {
    let mut request = conn.state.awaiting.remove(stream)?;
    if read_body(conn, &mut request) {
        return Some(*request);
    }
    conn.state.awaiting.insert(stream, request);
    None
}

/// Reads the part of the body that has arrived; true once the application can be called.
fn read_body(conn: &mut Conn<ConnState>, request: &mut Request) -> bool {
    while !request.complete && request.body.len() < WINDOW_BYTES {
        let Ok(mut stream) = conn.proto.stream(request.stream) else {
            return false;
        };
        match stream.read(WINDOW_BYTES - request.body.len()) {
            StreamRead::Data(bytes) => request.body.extend_from_slice(bytes),
            StreamRead::End => request.complete = true,
            // A failure is also an event, which removes the request.
            StreamRead::Pending | StreamRead::Failed => return false,
        }
    }
    true
}
