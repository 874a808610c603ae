//! Responses of the server itself, without the application.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use towline_proto::{
    BodySize, Connection, EncodedResponse, Field, Protocol, ResponseHead, StreamId, UserError,
    Version,
};

use super::super::files::{FileBody, FileResponse, ResponseField};
use super::super::metrics::PageFormat;
use super::super::redirect::https_url;
use super::super::refusals::{Reason, RefusedFor, Undecodable};
use super::{CHALLENGE_PREFIX, ExchangeRecord, Features, Payload, RequestLine};
use crate::conn::Conn;
use crate::conn::addr::PeerAddr;
use crate::sys::unix_seconds;

/// Longest token of a challenge that is looked for; those of Let's Encrypt have 43 bytes.
const MAX_TOKEN_BYTES: usize = 128;

/// A complete response, ready to send.
#[derive(Debug)]
pub struct BuiltinResponse {
    status: u16,
    fields: Vec<ResponseField>,
    content_length: Option<u64>,
    body: BuiltinBody,
    /// The response refuses the request.
    refused: Option<Box<RefusedRequest>>,
    /// Seconds after which a client that is over `--limit-rate` may come back.
    retry_after: Option<u64>,
}

const TOO_MANY_REQUESTS: &str = "Too Many Requests";

pub(super) const RATE_LIMITED: RefusedFor = RefusedFor {
    reason: Reason::Rate,
    rule: "more requests than --limit-rate",
};

/// The requests to which an encoded refusal is an answer: those of the same second, whose date it has, of an address of
/// ours, whose fields it has, with the same `retry-after`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptFor {
    retry_after: u64,
    second: u64,
    config: usize,
}

pub(super) type KeptRefusal = (KeptFor, EncodedResponse);

impl KeptFor {
    fn new<S>(retry_after: u64, conn: &Conn<S>) -> Self {
        Self {
            retry_after,
            second: unix_seconds(),
            config: Arc::as_ptr(conn.service()).addr(),
        }
    }

    fn place(self) -> usize {
        (self.retry_after % 8) as usize
    }
}

/// A refused request, for the server log.
#[derive(Debug)]
struct RefusedRequest {
    refused: RefusedFor,
    method: Vec<u8>,
    target: Vec<u8>,
    version: Version,
}

#[derive(Debug)]
enum BuiltinBody {
    Text(Cow<'static, str>),
    File(FileBody),
}

impl From<FileResponse> for BuiltinResponse {
    fn from(response: FileResponse) -> Self {
        Self {
            status: response.status,
            fields: response.fields,
            content_length: response.content_length,
            body: BuiltinBody::File(response.body),
            refused: None,
            retry_after: None,
        }
    }
}

pub(super) fn metrics_page(
    method: &[u8],
    format: PageFormat,
    page: impl FnOnce() -> String,
) -> BuiltinResponse {
    if !is_reading(method) {
        return only_reading();
    }
    let page = page();
    BuiltinResponse {
        status: 200,
        fields: vec![
            (
                b"content-type",
                Cow::Borrowed(format.content_type().as_bytes()),
            ),
            (b"cache-control", Cow::Borrowed(b"no-store")),
            (b"vary", Cow::Borrowed(b"accept")),
        ],
        content_length: Some(page.len() as u64),
        body: BuiltinBody::Text(page.into()),
        refused: None,
        retry_after: None,
    }
}

/// The response to a health check.
pub(super) fn health(method: &[u8], is_healthy: bool) -> BuiltinResponse {
    if !is_reading(method) {
        return only_reading();
    }
    let mut response = if is_healthy {
        plain(200, "ok")
    } else {
        plain(503, "draining")
    };
    response
        .fields
        .push((b"cache-control", Cow::Borrowed(b"no-store")));
    response
}

fn is_reading(method: &[u8]) -> bool {
    method == b"GET" || method == b"HEAD"
}

fn only_reading() -> BuiltinResponse {
    let mut response = plain(405, "Method Not Allowed\n");
    response
        .fields
        .push((b"allow", Cow::Borrowed(b"GET, HEAD")));
    response
}

/// The response to a challenge of ACME (RFC 8555 8.3), if there is one with this token.
pub(super) fn acme_challenge(
    method: &[u8],
    folder: &Path,
    token: &[u8],
) -> Option<BuiltinResponse> {
    // The alphabet of tokens (RFC 8555 8.1), in which no path leaves the folder.
    let is_base64url = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !token.iter().all(is_base64url) {
        return None;
    }
    let text = fs::read_to_string(folder.join(OsStr::from_bytes(token))).ok()?;
    if !is_reading(method) {
        return Some(only_reading());
    }
    Some(plain(200, text))
}

/// The redirect to the same URL over TLS, or 400. `None` for CONNECT without a path, and for challenges of ACME, which
/// come over plain HTTP (RFC 8555 8.3).
pub(super) fn redirect_https<'a>(
    line: &RequestLine<'_>,
    fields: impl IntoIterator<Item = Field<'a>>,
    port: u16,
) -> Option<BuiltinResponse> {
    let is_tunnel = line.method == b"CONNECT" && !line.target.starts_with(b"/");
    if is_tunnel || line.target.starts_with(CHALLENGE_PREFIX) {
        return None;
    }
    let mut fields = fields.into_iter();
    let host = fields.find(|field| field.name.eq_ignore_ascii_case(b"host"));
    let url = https_url(line, host.map(|host| host.value), port);
    Some(match url {
        Ok(url) => {
            // Only GET and HEAD keep their method after 301 in all clients (RFC 9110 15.4.2).
            let mut response = if is_reading(line.method) {
                plain(301, "Moved Permanently\n")
            } else {
                plain(308, "Permanent Redirect\n")
            };
            response.fields.push((b"location", Cow::Owned(url)));
            response
        }
        Err(rule) => plain(400, rule).refuse(line, Reason::Malformed, rule),
    })
}

pub(super) fn not_found() -> BuiltinResponse {
    plain(404, "Not Found\n")
}

fn plain(status: u16, text: impl Into<Cow<'static, str>>) -> BuiltinResponse {
    let text = text.into();
    BuiltinResponse {
        status,
        fields: vec![(b"content-type", Cow::Borrowed(b"text/plain; charset=utf-8"))],
        content_length: Some(text.len() as u64),
        body: BuiltinBody::Text(text),
        refused: None,
        retry_after: None,
    }
}

impl BuiltinResponse {
    /// 503 (RFC 9110 15.6.4): a request over `--limit-concurrency`.
    pub fn overloaded(line: &RequestLine<'_>) -> Self {
        let mut response = plain(503, "Service Unavailable");
        response.fields.push((b"retry-after", Cow::Borrowed(b"1")));
        response.refuse(
            line,
            Reason::Overloaded,
            "more requests than --limit-concurrency",
        )
    }

    /// 429 (RFC 6585 4): a request over `--limit-rate`.
    pub(super) fn rate_limited(seconds: u64) -> Self {
        let text = TOO_MANY_REQUESTS;
        Self {
            status: 429,
            fields: Vec::new(),
            content_length: Some(text.len() as u64),
            body: BuiltinBody::Text(text.into()),
            refused: None,
            retry_after: Some(seconds),
        }
    }

    /// 501 (RFC 9110 15.6.2) to CONNECT: no tunnels (RFC 9110 9.3.6).
    pub fn not_implemented(line: &RequestLine<'_>) -> Self {
        plain(501, "Not Implemented").refuse(
            line,
            Reason::NotImplemented,
            "CONNECT to a server that is no proxy (RFC 9110 9.3.6)",
        )
    }

    /// 415 (RFC 9110 15.5.16): a content coding that the server does not decode.
    pub fn unsupported_coding(line: &RequestLine<'_>, accepted: String) -> Self {
        let mut response = plain(415, "Unsupported Media Type");
        response
            .fields
            .push((b"accept-encoding", Cow::Owned(accepted.into_bytes())));
        response.refuse(
            line,
            Reason::ContentCoding,
            "a content-encoding outside --decompress-requests (RFC 9110 12.5.3)",
        )
    }

    /// 400 or 413: a body whose content coding is broken or inflates too far; the text has the rule.
    pub fn undecodable(line: &RequestLine<'_>, why: Undecodable) -> Self {
        let RefusedFor { reason, rule } = why.refused;
        plain(why.status, rule).refuse(line, reason, rule)
    }

    /// A WebSocket handshake that violates a rule; the body has the rule.
    pub fn refused_handshake(
        line: &RequestLine<'_>,
        (status, rule): (u16, &'static str),
        fields: impl IntoIterator<Item = (&'static [u8], Vec<u8>)>,
    ) -> Self {
        let mut response = plain(status, rule);
        let fields = fields.into_iter();
        response
            .fields
            .extend(fields.map(|(name, value)| (name, Cow::Owned(value))));
        response.refuse(line, Reason::WebSocket, rule)
    }

    fn refuse(mut self, line: &RequestLine<'_>, reason: Reason, rule: &'static str) -> Self {
        self.refused = Some(Box::new(RefusedRequest {
            refused: RefusedFor { reason, rule },
            method: line.method.to_vec(),
            target: line.target.to_vec(),
            version: line.version,
        }));
        self
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    /// Counts and logs the refusal, without a response: the application has begun its own.
    pub fn count<S>(self, features: &Features, record: &mut ExchangeRecord, conn: &Conn<S>) {
        if let Some(request) = &self.refused {
            features.refuse(record, request, record.status, conn.remote_addr());
        }
    }

    /// Sends the response; a file is sent as the connection accepts it. `defaults` are the headers that the
    /// server adds to every response.
    pub fn send<'a, S>(
        mut self,
        features: &mut Features,
        record: &mut ExchangeRecord,
        conn: &mut Conn<S>,
        id: StreamId,
        defaults: impl IntoIterator<Item = Field<'a>>,
    ) -> Result<(), UserError> {
        if let Some(request) = &self.refused {
            features.refuse(record, request, self.status, conn.remote_addr());
        }
        if let Some(seconds) = self.retry_after {
            record.refused = Some(RATE_LIMITED);
            let use_for = KeptFor::new(seconds, conn);
            if features.repeat(record, &mut conn.proto, (id, use_for))? {
                return Ok(());
            }
            self.fields = features.rate_fields(seconds);
        }
        let own = self
            .fields
            .iter()
            .map(|(name, value)| Field { name, value });
        let mut fields: Vec<Field<'_>> = own.collect();
        // Shortened to the lifetime of the other headers.
        fields.extend(
            defaults
                .into_iter()
                .map(|Field { name, value }| Field { name, value }),
        );
        let length = self.content_length.map_or(BodySize::Empty, BodySize::Known);
        let head = ResponseHead {
            status: self.status,
            reason: b"",
            fields: &fields,
        };
        let payload = match &self.body {
            BuiltinBody::Text(text) => Payload::Whole(text.as_bytes()),
            // Files are compressed by precompressed siblings only.
            BuiltinBody::File(_) => Payload::File,
        };
        if let (Some(seconds), Some(Protocol::Http1)) = (self.retry_after, conn.proto.protocol()) {
            features.keep_refusal(KeptFor::new(seconds, conn), &head);
        }
        features.respond(record, &mut conn.proto, (id, &head, length), payload)?;
        match self.body {
            BuiltinBody::File(FileBody::File {
                file,
                offset,
                bytes,
            }) => {
                features.count_body(record, bytes);
                return conn.send_file(id, file, offset, bytes);
            }
            BuiltinBody::File(FileBody::Text(text)) => send_text(features, record, conn, id, text)?,
            BuiltinBody::Text(text) => send_text(features, record, conn, id, &text)?,
            BuiltinBody::File(FileBody::Empty) => {}
        }
        if matches!(length, BodySize::Empty) {
            return Ok(());
        }
        features.finish(record, &mut conn.proto.stream(id)?, &[])
    }
}

/// Refusals by rate. A client that is refused may send many more requests, which must cost less than those of others.
impl Features {
    /// The fields of draft-ietf-httpapi-ratelimit-headers-11, and `retry-after`.
    fn rate_fields(&self, seconds: u64) -> Vec<ResponseField> {
        let limit = self.config.rate_limit.as_ref();
        let policy = limit.map_or("", |limit| &limit.policy);
        let own = |text: String| Cow::Owned(text.into_bytes());
        let mut response = plain(429, TOO_MANY_REQUESTS);
        response.fields.extend([
            (&b"retry-after"[..], own(seconds.to_string())),
            (b"ratelimit-policy", own(policy.to_owned())),
            (b"ratelimit", own(format!("\"default\";r=0;t={seconds}"))),
        ]);
        response.fields
    }

    /// Keeps a refusal. An access log may have its fields, so that none is kept.
    fn keep_refusal(&mut self, use_for: KeptFor, head: &ResponseHead<'_>) {
        let encoded = EncodedResponse::new(head, TOO_MANY_REQUESTS.as_bytes());
        let encoded = encoded.ok().filter(|_| self.log.is_none());
        self.refusals[use_for.place()] = encoded.map(|response| (use_for, response));
    }

    /// Sends a kept refusal; false if there is none in the form that this request needs.
    fn repeat(
        &self,
        record: &mut ExchangeRecord,
        conn: &mut Connection,
        (id, use_for): (StreamId, KeptFor),
    ) -> Result<bool, UserError> {
        match &self.refusals[use_for.place()] {
            Some((kept_for, response)) if *kept_for == use_for => {
                record.status = 429;
                conn.respond_encoded(id, response)
            }
            _ => Ok(false),
        }
    }

    /// Counts and logs a request that gets a response of the server because of a rule.
    fn refuse(
        &self,
        record: &mut ExchangeRecord,
        request: &RefusedRequest,
        status: u16,
        remote: &PeerAddr,
    ) {
        record.refused = Some(request.refused);
        if let Some(refusals) = &self.config.refusals {
            let line = RequestLine {
                method: &request.method,
                target: &request.target,
                version: request.version,
            };
            let client = remote.inet().map(|address| address.ip());
            refusals.on_builtin(request.refused, status, &line, client);
        }
    }
}

fn send_text<S>(
    features: &Features,
    record: &mut ExchangeRecord,
    conn: &mut Conn<S>,
    id: StreamId,
    text: &str,
) -> Result<(), UserError> {
    if record.is_head {
        return Ok(());
    }
    features.write(record, &mut conn.proto.stream(id)?, text.as_bytes())
}
