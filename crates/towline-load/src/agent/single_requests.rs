//! Sends each target once, on a connection of its own, and returns the whole response, for a checker
//! that verifies more than the load generator does.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use towline_io::client::{Dial, DialConfig, DialError, DialErrorKind, Established};
use towline_io::{Conn, ConnConfig, ConnId, Engine, EngineConfig};
use towline_proto::{
    BodySize, Event, Field, Fields, HeadRef, PreparedRequest, RequestHead, StreamId, StreamRead,
    UserError, Version,
};

use super::single_message::SingleMessage;
use super::values::Values;
use crate::capture::Captured;
use crate::config::Config;
use crate::error::LoadError;
use crate::stats::Failure;
use crate::target::{SendMode, Target};
use crate::worker::{
    Routes, dial_config, failure_of, failure_on_stream, not_negotiated, service, write_whole,
};

/// Limit of a body that is returned; for a longer one, length and hash.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Time for a server to close after its response.
const CLOSES_WITHIN: Duration = Duration::from_millis(20);

/// RFC 9110 10.1.1: a client does not wait for 100 indefinitely.
const CONTINUE_WITHIN: Duration = Duration::from_secs(1);

/// One response, or the reason why there is none.
#[derive(Debug, Default, Serialize)]
pub(super) struct SingleResponse {
    target: usize,
    status: u16,
    fields: Vec<(String, String)>,
    body_bytes: u64,
    sha256: String,
    body_base64: Option<String>,
    /// Statuses of interim responses.
    interim: Vec<u16>,
    trailers: Vec<(String, String)>,
    version: Option<&'static str>,
    alpn: Option<String>,
    tls: Option<String>,
    /// Whether the server closes after the response.
    closed: bool,
    /// The kind of a WebSocket message, `text` or `binary`; body and hash are those of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'static str>,
    /// The failure class and the rule, if the response is not complete.
    failure: Option<String>,
}

pub(super) fn send_each_once(config: &Config) -> Result<Vec<SingleResponse>, LoadError> {
    let mut requests = SingleRequests::new(config)?;
    let mut values = Values::new(config)?;
    let targets = config.targets.iter().enumerate();
    targets
        .map(|(index, target)| {
            let mut request = SingleRequest::new(index, target)?;
            match values.request(index) {
                Ok(prepared) => {
                    request.prepared = prepared;
                    requests.send(&mut request)?;
                }
                Err(error) => request.fail(Failure::Invalid.name(), &error),
            }
            if request.response.failure.is_none()
                && let Some(captured) = request.captured.take()
                && let Err(rule) = values.keep(index, captured)
            {
                request.fail(Failure::Content.name(), &rule);
            }
            Ok(request.into_response())
        })
        .collect()
}

struct SingleRequests<'a> {
    config: &'a Config,
    engine: Engine<()>,
    service: Arc<ConnConfig>,
    dial_config: Arc<DialConfig>,
    routes: Routes,
}

impl<'a> SingleRequests<'a> {
    fn new(config: &'a Config) -> io::Result<Self> {
        Ok(Self {
            config,
            engine: Engine::new(EngineConfig::default())?,
            service: Arc::new(service(config)),
            dial_config: Arc::new(dial_config(config)),
            routes: Routes::new(config),
        })
    }

    fn send(&mut self, request: &mut SingleRequest<'_>) -> io::Result<()> {
        let established = match self.dial(request.target)? {
            Ok(established) => established,
            Err(error) => {
                let class = match error.kind {
                    DialErrorKind::Timeout => "timeout",
                    _ => "connect",
                };
                request.fail(class, &error.message);
                return Ok(());
            }
        };
        request.response.alpn = established.alpn.as_deref().map(text);
        if request.target.secure
            && let Some(rule) = not_negotiated(self.config, &established)
        {
            request.fail("connect", rule);
            return Ok(());
        }
        let id = self.engine.add_established(*established, &self.service)?;
        if let Some(conn) = self.engine.conn(id) {
            request.response.tls = conn.tls().map(|info| tls_version(info.version));
            request.start(conn);
        }
        self.engine.flush_and_rearm(id);
        let deadline = Instant::now() + self.config.timeout;
        while !request.done && Instant::now() < deadline {
            self.turn(id, request)?;
        }
        if !request.done {
            request.fail("timeout", "no complete response in time");
        }
        let until = Instant::now() + CLOSES_WITHIN;
        while !request.response.closed && Instant::now() < until {
            self.turn(id, request)?;
        }
        self.engine.abort(id);
        Ok(())
    }

    fn dial(&mut self, target: &Target) -> io::Result<Result<Box<Established>, DialError>> {
        let route = self.routes.to(target.origin());
        let dial = Dial::start(route, &self.dial_config, Instant::now());
        self.engine.dial(dial, 0);
        loop {
            if let Some(dialled) = self.engine.next_dial_outcome() {
                return Ok(dialled.result);
            }
            // The dial's own deadline ends it.
            self.engine.turn_start(Some(Duration::from_millis(100)))?;
            self.engine.turn_end();
        }
    }

    fn turn(&mut self, of: ConnId, request: &mut SingleRequest<'_>) -> io::Result<()> {
        self.engine.turn_start(Some(Duration::from_millis(5)))?;
        while let Some(id) = self.engine.next_ready() {
            if id == of
                && let Some(conn) = self.engine.conn(id)
            {
                request.advance(conn);
            }
            self.engine.flush_and_rearm(id);
        }
        if let Some(conn) = self.engine.conn(of) {
            if request.continue_timed_out() {
                request.send_body(conn);
                self.engine.flush_and_rearm(of);
            }
        } else {
            request.response.closed = true;
        }
        self.engine.turn_end();
        Ok(())
    }
}

/// One request in progress.
struct SingleRequest<'a> {
    target: &'a Target,
    response: SingleResponse,
    stream: Option<StreamId>,
    /// The body that waits for 100, and the deadline of the wait.
    awaiting_continue: Option<(Bytes, Instant)>,
    body: Vec<u8>,
    hash: Sha256,
    /// The request, if it has values.
    prepared: Option<PreparedRequest>,
    /// Values for later requests.
    captured: Option<Captured>,
    done: bool,
    /// The WebSocket of the target, if it is one.
    websocket: Option<SingleMessage<'a>>,
}

impl<'a> SingleRequest<'a> {
    fn new(index: usize, target: &'a Target) -> io::Result<Self> {
        Ok(Self {
            target,
            response: SingleResponse {
                target: index,
                ..SingleResponse::default()
            },
            stream: None,
            awaiting_continue: None,
            body: Vec::new(),
            hash: Sha256::new(),
            prepared: None,
            captured: None,
            done: false,
            websocket: SingleMessage::of(target)?,
        })
    }

    fn fail(&mut self, class: &str, rule: &str) {
        self.done = true;
        self.response.closed = true;
        self.response.failure = Some(format!("{class}: {rule}"));
    }

    /// Sends the request, or the part that may precede 100. Pieces are sent without pauses here.
    fn start(&mut self, conn: &mut Conn<()>) {
        if let Err(error) = self.try_start(conn) {
            self.fail("request", &error.to_string());
        }
    }

    fn try_start(&mut self, conn: &mut Conn<()>) -> Result<(), UserError> {
        if let Some(websocket) = &mut self.websocket {
            return websocket.start(conn);
        }
        if let Some(prepared) = &self.prepared {
            self.stream = Some(conn.proto.request_prepared(prepared)?);
            return Ok(());
        }
        let given = self.target.whole_fields();
        let fields: Vec<_> = given
            .iter()
            .map(|(name, value)| Field { name, value })
            .collect();
        let awaits = self.target.send_mode == SendMode::AwaitContinue;
        let head = RequestHead {
            method: self.target.method.as_bytes(),
            target: self.target.path.as_bytes(),
            fields: &fields,
        };
        let body = self.target.body.clone();
        let size = match &body {
            None => BodySize::Empty,
            Some(_) if self.target.chunk_bytes.is_some() => BodySize::Unknown,
            Some(body) => BodySize::Known(body.len() as u64),
        };
        if size == BodySize::Empty || !awaits && size != BodySize::Unknown {
            self.stream = Some(conn.proto.request_pipelined(&head, body)?);
            return Ok(());
        }
        let stream = conn.proto.request(&head, size)?;
        self.stream = Some(stream);
        let body = body.unwrap_or_default();
        if awaits {
            self.awaiting_continue = Some((body, Instant::now() + CONTINUE_WITHIN));
            return Ok(());
        }
        write_whole(&mut conn.proto, stream, &body, self.target.chunk_bytes)
    }

    fn continue_timed_out(&self) -> bool {
        self.awaiting_continue
            .as_ref()
            .is_some_and(|(_, until)| Instant::now() >= *until)
    }

    fn send_body(&mut self, conn: &mut Conn<()>) {
        if let (Some((body, _)), Some(stream)) = (self.awaiting_continue.take(), self.stream)
            && let Err(error) = write_whole(&mut conn.proto, stream, &body, self.target.chunk_bytes)
        {
            self.fail("request", &error.to_string());
        }
    }

    /// Processes all received events.
    fn advance(&mut self, conn: &mut Conn<()>) {
        loop {
            let stream = match conn.proto.next_event() {
                None => return,
                Some(Event::Informational { head, .. }) => {
                    self.response.interim.push(head.status());
                    if head.status() == 100 {
                        self.send_body(conn);
                    }
                    continue;
                }
                Some(Event::Head { stream, head, end }) => {
                    self.head(&head);
                    if let Some(websocket) = &mut self.websocket
                        && head.status() == 101
                    {
                        if let Err(refusal) = websocket.on_head(&head) {
                            return self.fail(refusal.failure.name(), &refusal.rule);
                        }
                        continue;
                    }
                    // A final response in place of 100: the body is not sent (RFC 9110 10.1.1).
                    self.awaiting_continue = None;
                    if end {
                        self.on_complete(conn);
                    }
                    stream
                }
                Some(Event::Readable(stream)) => stream,
                Some(Event::Switched { stream }) => {
                    let Some(websocket) = &mut self.websocket else {
                        let rule = "an unsolicited upgrade (RFC 9110 7.8)";
                        return self.fail("protocol", rule);
                    };
                    websocket.send(conn, stream);
                    stream
                }
                Some(Event::Closed(error)) => {
                    self.response.closed = true;
                    if !self.done {
                        self.fail(failure_of(&error).name(), error.rule);
                    }
                    return;
                }
                Some(Event::Failed(_, error)) if !self.done => {
                    // The stream ended with its connection: `Closed` reports it.
                    let Some(failure) = failure_on_stream(&error) else {
                        continue;
                    };
                    return self.fail(failure.name(), &error.to_string());
                }
                Some(_) => continue,
            };
            if !self.take_message(conn) {
                self.take_body(conn, stream);
            }
        }
    }

    /// Takes a message of a WebSocket; false if the target is none.
    fn take_message(&mut self, conn: &mut Conn<()>) -> bool {
        if !self.websocket.as_ref().is_some_and(SingleMessage::is_open) {
            return false;
        }
        while let Some(reply) = self
            .websocket
            .as_mut()
            .and_then(|websocket| websocket.next_reply(conn))
        {
            match reply {
                Err(_) if self.done => {
                    self.response.closed = true;
                    return true;
                }
                Err(ws_failure) => {
                    self.fail(ws_failure.failure.name(), &ws_failure.rule);
                    return true;
                }
                Ok(_) if self.done => {
                    self.fail(Failure::Protocol.name(), "an unsolicited message");
                    return true;
                }
                Ok(reply) => {
                    self.done = true;
                    self.response.message = Some(reply.kind);
                    self.response.body_bytes = reply.data.len() as u64;
                    self.hash.update(&reply.data);
                    self.body = reply.data;
                }
            }
        }
        true
    }

    fn head(&mut self, head: &HeadRef<'_>) {
        self.response.status = head.status();
        self.response.fields = pairs(head.fields());
        let captures = &self.target.expect.captures;
        self.captured = (!captures.is_empty()).then(|| Captured::begin(captures, &head.fields()));
        self.response.version = Some(match head.version() {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
            Version::Http3 => "HTTP/3",
        });
    }

    fn take_body(&mut self, conn: &mut Conn<()>, stream: StreamId) {
        while !self.done {
            let Ok(mut stream) = conn.proto.stream(stream) else {
                return;
            };
            match stream.read(usize::MAX) {
                StreamRead::Data(data) => {
                    self.hash.update(data);
                    if let Some(captured) = &mut self.captured {
                        captured.data(data);
                    }
                    self.response.body_bytes += data.len() as u64;
                    let room = (MAX_BODY_BYTES + 1).saturating_sub(self.body.len());
                    self.body.extend_from_slice(&data[..data.len().min(room)]);
                }
                StreamRead::End => {
                    self.response.trailers = pairs(stream.trailers());
                    self.on_complete(conn);
                }
                StreamRead::Pending | StreamRead::Failed => return,
            }
        }
    }

    fn on_complete(&mut self, conn: &Conn<()>) {
        self.done = true;
        self.response.closed |= !conn.proto.is_reusable();
    }

    fn into_response(mut self) -> SingleResponse {
        use std::fmt::Write as _;
        let mut hex = String::new();
        for byte in self.hash.finalize() {
            let _ = write!(hex, "{byte:02x}");
        }
        self.response.sha256 = hex;
        self.response.body_base64 =
            (self.body.len() <= MAX_BODY_BYTES).then(|| STANDARD.encode(&self.body));
        self.response
    }
}

fn pairs(fields: Fields<'_>) -> Vec<(String, String)> {
    fields
        .map(|field| (text(field.name), text(field.value)))
        .collect()
}

/// Bytes beyond ASCII are decoded as Latin-1, without loss.
fn text(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn tls_version(code: u16) -> String {
    match code {
        0x0303 => "TLSv1.2".into(),
        0x0304 => "TLSv1.3".into(),
        other => format!("{other:#06x}"),
    }
}
