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
//! The application is called when the body has arrived, so that a slow upload occupies a buffer, then a temporary
//! file, and never a thread. `--wsgi-request-buffer` bounds it; the rest of a longer body is received by
//! `wsgi.input`.
use std::collections::VecDeque;
use std::sync::Arc;

use towline_io::serve::features::request_body::{BodyRead, Content};
use towline_io::serve::features::{BuiltinResponse, FeatureConfig, RequestLine};
use towline_io::{Conn, Spool, StreamMap};
use towline_proto::{Event, Fields, OwnedHead, StreamId, StreamRead};

/// Size of one read of a body, and the part of it that is awaited when bodies are streamed.
pub const WINDOW_BYTES: usize = 64 * 1024;

/// The part of a body that is kept in memory: a stream window of HTTP/2, so that a usual form or upload needs no
/// file.
const MEMORY_BYTES: usize = 256 * 1024;

pub struct Request {
    pub stream: StreamId,
    pub head: OwnedHead,
    /// The part of the body that has arrived: the first bytes,
    pub body: Vec<u8>,
    /// and those after them.
    pub more: Option<Box<MoreBody>>,
    /// The whole body has arrived.
    pub complete: bool,
}

/// Parts that few bodies have.
#[derive(Default)]
pub struct MoreBody {
    pub spool: Option<Box<Spool>>,
    /// With a content coding, the body in memory and in the file is decoded.
    pub content: Content,
}

/// Larger structures are moved by calls of `memcpy`.
const _: () = assert!(size_of::<Request>() <= 128);

/// Source of a connection's requests.
pub struct RequestReader {
    /// A head whose buffers are reused for the next one.
    pub spare: OwnedHead,
    /// `--wsgi-request-buffer`.
    buffer_bytes: u64,
    features: Arc<FeatureConfig>,
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

impl RequestReader {
    pub fn new(buffer_bytes: u64, features: Arc<FeatureConfig>) -> Self {
        Self {
            spare: OwnedHead::default(),
            buffer_bytes,
            features,
        }
    }

    /// Handles the connection's events until a request is ready.
    pub fn next_request(&mut self, conn: &mut Conn<ConnState>) -> Option<Request> {
        if let Some(request) = conn.state.ready.pop_front() {
            return Some(request);
        }
        loop {
            if let RequestEvent::Request(request) = self.next_event(conn)? {
                return Some(request);
            }
        }
    }

    /// Handles the connection's events while the application serves `stream`: other requests wait. Returns true
    /// if the client of `stream` has disconnected.
    pub fn process_events(&mut self, conn: &mut Conn<ConnState>, stream: Option<StreamId>) -> bool {
        let mut disconnected = false;
        while let Some(step) = self.next_event(conn) {
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
    pub fn next_event(&mut self, conn: &mut Conn<ConnState>) -> Option<RequestEvent> {
        loop {
            let (stream, end) = match conn.proto.next_event()? {
                Event::Head { stream, head, end } => {
                    self.spare.copy_from(&head);
                    (stream, end)
                }
                Event::Readable(stream) => {
                    return Some(match self.resume_body(conn, stream) {
                        Some(request) => RequestEvent::Request(request),
                        None => RequestEvent::Progress(stream),
                    });
                }
                Event::Writable(stream) => return Some(RequestEvent::Progress(stream)),
                Event::Failed(stream, _) => {
                    if let Some(request) = conn.state.remove(stream) {
                        self.log_refusal(conn, &request);
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
            let mut request = Request {
                stream,
                head: std::mem::take(&mut self.spare),
                body: Vec::new(),
                more: None,
                complete: end,
            };
            if !end && let Some(decoding) = &self.features.decoding {
                let content = decoding.content(&request.line(), request.fields());
                request.more.get_or_insert_default().content = content;
            }
            if end || self.read_body(conn, &mut request) {
                return Some(RequestEvent::Request(request));
            }
            conn.state.awaiting.insert(stream, Box::new(request));
        }
    }

    /// Writes the access line of a request that the server has refused while its body arrived (413, 408).
    #[cold]
    fn log_refusal(&self, conn: &Conn<ConnState>, request: &Request) {
        let (Some(refusals), Some(refused)) =
            (&self.features.refusals, conn.refused(request.stream))
        else {
            return;
        };
        let fields = || {
            let fields = request.fields();
            fields.map(|field| (field.name, field.value))
        };
        let remote = conn.remote_addr();
        let forwarded = conn.service().origin(remote.into(), request.fields());
        let client = forwarded.client.map(|(address, _)| address);
        let client = client.or(remote.inet().map(|address| address.ip()));
        refusals.on_unserved(refused, &request.line(), fields(), client);
    }

    /// Reads more of an awaited body; returns the request once the application can be called.
    fn resume_body(&self, conn: &mut Conn<ConnState>, stream: StreamId) -> Option<Request> {
        let mut request = conn.state.awaiting.remove(stream)?;
        if self.read_body(conn, &mut request) {
            return Some(*request);
        }
        conn.state.awaiting.insert(stream, request);
        None
    }

    /// Reads the part of the body that has arrived; true once the application can be called.
    fn read_body(&self, conn: &mut Conn<ConnState>, request: &mut Request) -> bool {
        let awaited = self.buffer_bytes.max(WINDOW_BYTES as u64);
        loop {
            let left = awaited.saturating_sub(request.arrived());
            // Without space in the temporary file the rest is received by `wsgi.input`.
            let is_full = request.spool().is_some_and(Spool::is_full);
            if request.complete || is_full || left == 0 {
                return true;
            }
            let Ok(mut stream) = conn.proto.stream(request.stream) else {
                return false;
            };
            match request.more.as_mut().map(|more| &mut more.content) {
                None | Some(Content::Plain) => {}
                Some(Content::Refused(_)) => return true,
                Some(Content::Coded(decoder)) => {
                    let mut bytes = Vec::new();
                    match decoder.read(&mut stream, &mut bytes, WINDOW_BYTES) {
                        Ok(BodyRead::Data) => {}
                        Ok(BodyRead::End) => request.complete = true,
                        Ok(BodyRead::Pending | BodyRead::Failed) => return false,
                        Err(why) => {
                            let content = Content::Refused(Box::new(decoder.refusal(why)));
                            let spool = None;
                            request.more = Some(Box::new(MoreBody { spool, content }));
                            return true;
                        }
                    }
                    request.buffer_or_spool(&bytes);
                    continue;
                }
            }
            let at_most = usize::try_from(left).map_or(WINDOW_BYTES, |left| left.min(WINDOW_BYTES));
            match stream.read(at_most) {
                StreamRead::Data(bytes) => request.buffer_or_spool(bytes),
                StreamRead::End => request.complete = true,
                // A failure is also an event, which removes the request.
                StreamRead::Pending | StreamRead::Failed => return false,
            }
        }
    }
}

impl Request {
    pub fn line(&self) -> RequestLine<'_> {
        RequestLine::of(&self.head.view())
    }

    pub fn fields(&self) -> Fields<'_> {
        self.head.view().fields()
    }

    /// Number of body bytes that have arrived, decoded.
    pub fn arrived(&self) -> u64 {
        self.body.len() as u64 + self.spool().map_or(0, Spool::len)
    }

    fn spool(&self) -> Option<&Spool> {
        self.more.as_ref()?.spool.as_deref()
    }

    /// Whether the body is decoded.
    pub fn is_coded(&self) -> bool {
        let more = self.more.as_ref();
        more.is_some_and(|more| matches!(more.content, Content::Coded(_)))
    }

    /// The response to a request whose body cannot be decoded.
    pub fn take_refusal(&mut self) -> Option<Box<BuiltinResponse>> {
        let more = self
            .more
            .take_if(|more| matches!(more.content, Content::Refused(_)))?;
        match more.content {
            Content::Refused(response) => Some(response),
            Content::Plain | Content::Coded(_) => None,
        }
    }

    fn buffer_or_spool(&mut self, bytes: &[u8]) {
        let in_memory = if self.spool().is_some() {
            0
        } else {
            bytes
                .len()
                .min(MEMORY_BYTES.saturating_sub(self.body.len()))
        };
        self.body.extend_from_slice(&bytes[..in_memory]);
        let rest = &bytes[in_memory..];
        if !rest.is_empty() {
            let more = self.more.get_or_insert_default();
            more.spool.get_or_insert_default().append(rest);
        }
    }
}

impl ConnState {
    /// Removes and returns the request of a failed stream, if the application has not been called for it.
    fn remove(&mut self, stream: StreamId) -> Option<Request> {
        if let Some(request) = self.awaiting.remove(stream) {
            return Some(*request);
        }
        let mut requests = self.ready.iter();
        let index = requests.position(|request| request.stream == stream)?;
        self.ready.remove(index)
    }
}
