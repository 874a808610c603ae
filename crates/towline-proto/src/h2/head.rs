//! Receiving heads: a decoded header block becomes a request, a response or trailers, or is malformed (RFC 9113
//! 8.2 and 8.3).
//!
//! The block is decoded after the four bytes `host`, the name under which `:authority` is shown as the first
//! field. All checks use information collected while the fields are decoded.
//!
//! ```text
//!           ┌────── a new block ─────┐                    ┌─ the same block
//!           ▼                        │                    ▼       │
//!   CachedKind::None ──valid request, response──► CachedKind::Request, CachedKind::Response
//! ```
//!
//! Heads of one connection resemble each other: if a block is equal to the one before, byte for byte, and the
//! table is unchanged, the stored head is reused.

use crate::body::{Length, Method};
use crate::byte_class::{is_token_bytes, not_visible};
use crate::h1::target::{check_target, is_host};
use crate::head::{FieldSpan, StartLine};
use crate::{Fields, HeadRef, Limits, RefusedLine, Version};

use super::hpack::{Bounds, DecodedField, DecodedFields, Decoder, HpackError, Name};
use super::rules::{self, Fault, malformed};
use super::stream::Priority;

const HOST: &[u8] = b"host";
/// Buffers larger than this are freed.
const MAX_IDLE_BYTES: usize = 8 * 1024;
/// A block longer than this is not compared with the one before. Fields from the tables take a byte each.
const MAX_CACHED_BLOCK_BYTES: usize = 128;

/// The last decoded head: its text, the positions of its parts, and its meaning.
#[derive(Debug, Default)]
pub(super) struct HeadDecoder {
    bytes: Vec<u8>,
    /// The first is reserved for `:authority` as `host`; the fields follow.
    spans: Vec<FieldSpan>,
    shows_authority: bool,
    line: StartLine,
    info: HeadInfo,
    cached: CachedKind,
    /// The encoded block, in `bytes` after the text. Empty: not compared.
    block_at: u32,
    block_len: u32,
}

/// The head stored for a block that is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CachedKind {
    #[default]
    None,
    Request,
    Response,
}

/// The fields of a head that the connection itself acts on.
#[derive(Debug, Clone, Copy, Default)]
struct HeadInfo {
    error: Option<&'static str>,
    has_fields: bool,
    method: Option<FieldSpan>,
    scheme: Option<FieldSpan>,
    authority: Option<FieldSpan>,
    path: Option<FieldSpan>,
    status: Option<FieldSpan>,
    protocol: Option<FieldSpan>,
    host: Option<u32>,
    length: Length,
    expect: Expect,
    cookies: u32,
    priority: Option<Priority>,
}

/// Expect (RFC 9110 10.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Expect {
    #[default]
    Nothing,
    Continue,
    Other,
}

/// Properties of a request that the connection needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub method: Method,
    pub length: Option<u64>,
    pub awaits_continue: bool,
    pub priority: Option<Priority>,
}

/// Properties of a response that the connection needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Response {
    pub status: u16,
    pub length: Option<u64>,
}

/// How a head is rejected.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rejection {
    /// A valid message, which gets a response of this status, with the rule.
    Respond(u16, &'static str),
    /// A malformed message, whose stream is reset.
    Reset(Fault),
}

impl HeadDecoder {
    /// Decodes a whole block. The decoder must be the same each time.
    pub fn decode(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        limits: &Limits,
    ) -> Result<DecodedFields, HpackError> {
        if self.cached != CachedKind::None && block == self.block() && decoder.is_unchanged() {
            return Ok(DecodedFields::All);
        }
        self.cached = CachedKind::None;
        self.block_len = 0;
        let fields = self.decode_new(decoder, block, limits)?;
        if decoder.is_unchanged() && block.len() <= MAX_CACHED_BLOCK_BYTES {
            self.block_at = self.bytes.len() as u32;
            self.block_len = block.len() as u32;
            self.bytes.extend_from_slice(block);
        }
        Ok(fields)
    }

    fn block(&self) -> &[u8] {
        &self.bytes[self.block_at as usize..][..self.block_len as usize]
    }

    fn decode_new(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        limits: &Limits,
    ) -> Result<DecodedFields, HpackError> {
        let bounds = Bounds {
            max_bytes: limits.http2.max_header_list_bytes,
            max_fields: limits.http2.max_fields,
        };
        let Self {
            bytes, spans, info, ..
        } = self;
        bytes.clear();
        bytes.extend_from_slice(HOST);
        spans.clear();
        spans.push(FieldSpan::default());
        *info = HeadInfo::default();
        decoder.decode(block, bounds, bytes, |field, bytes| {
            info.record(field, bytes, spans);
        })
    }

    /// The head as the program sees it.
    pub fn view(&self) -> HeadRef<'_> {
        HeadRef {
            bytes: &self.bytes,
            line: self.line,
            fields: self.fields(),
        }
    }

    /// The line of a request that is refused, as far as its block was decoded.
    pub fn refused_line(&self) -> RefusedLine {
        let text = |span: Option<FieldSpan>| span.map_or(&[][..], |span| self.text(span));
        let target = self.info.path.or(self.info.authority);
        RefusedLine::new(text(self.info.method), text(target), Some(Version::Http2))
    }

    fn fields(&self) -> &[FieldSpan] {
        &self.spans[usize::from(!self.shows_authority)..]
    }

    fn text(&self, span: FieldSpan) -> &[u8] {
        &self.bytes[span.value as usize..][..span.value_len as usize]
    }

    /// RFC 9113 8.3.1.
    pub fn request(
        &mut self,
        limits: &Limits,
        offers_extended_connect: bool,
        end: bool,
    ) -> Result<Request, Rejection> {
        let is_cached = self.cached == CachedKind::Request;
        if !is_cached {
            self.request_line(offers_extended_connect)
                .map_err(|rule| Rejection::Reset(malformed(rule)))?;
        }
        let info = self.info;
        let method = info
            .method
            .map_or(Method::Other, |span| Method::of(self.text(span)));
        let length = announced(info.length).map_err(Rejection::Reset)?;
        if end && length.is_some_and(|length| length > 0) {
            return Err(Rejection::Reset(rules::BODY_LENGTH));
        }
        if info.expect == Expect::Other {
            return Err(Rejection::Respond(
                417,
                "unknown expectation (RFC 9110 10.1.1)",
            ));
        }
        if limits.max_body_bytes.is_some_and(|max| length > Some(max)) {
            return Err(Rejection::Respond(413, rules::BODY.rule));
        }
        if !is_cached {
            self.join_cookies();
            self.mark_cached(CachedKind::Request);
        }
        Ok(Request {
            method,
            length,
            awaits_continue: info.expect == Expect::Continue && !end,
            priority: info.priority,
        })
    }

    /// Marks the stored head as valid for reuse.
    fn mark_cached(&mut self, kind: CachedKind) {
        // Trailers can be an empty block.
        if self.block_len > 0 {
            self.cached = kind;
        }
    }

    /// Drops the stored head, since the next decoder has another table.
    pub fn invalidate(&mut self) {
        self.cached = CachedKind::None;
    }

    fn request_line(&mut self, offers_extended_connect: bool) -> Result<(), &'static str> {
        let info = self.info;
        if let Some(error) = info.error {
            return Err(error);
        }
        let method = info.method.ok_or("no :method (RFC 9113 8.3.1)")?;
        if info.status.is_some() {
            return Err("pseudo-field of a response in a request (RFC 9113 8.3)");
        }
        if !is_token_bytes(self.text(method)) {
            return Err("method is not a token (RFC 9110 9.1)");
        }
        let connects = self.text(method) == b"CONNECT";
        let target = match (connects, info.protocol) {
            (true, None) => self.connect_target()?,
            (true, Some(_)) if offers_extended_connect => self.path_target()?,
            (_, Some(_)) => return Err(":protocol that was not offered (RFC 8441 4)"),
            (false, None) => self.path_target()?,
        };
        self.check_host()?;
        let protocol = info.protocol.unwrap_or_default();
        self.line = StartLine {
            method: method.value,
            method_len: method.value_len,
            target: target.value,
            target_len: target.value_len,
            protocol: protocol.value,
            protocol_len: protocol.value_len,
            status: 0,
            version: Version::Http2,
        };
        Ok(())
    }

    /// `:scheme` and `:path`, both required.
    fn path_target(&self) -> Result<FieldSpan, &'static str> {
        let scheme = self.info.scheme.ok_or("no :scheme (RFC 9113 8.3.1)")?;
        let scheme = self.text(scheme);
        let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
            && scheme
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
        if !is_scheme {
            return Err("malformed :scheme (RFC 3986 3.1)");
        }
        let span = self.info.path.ok_or("no :path (RFC 9113 8.3.1)")?;
        let path = self.text(span);
        let is_asterisk = path == b"*"
            && self
                .info
                .method
                .is_some_and(|method| self.text(method) == b"OPTIONS");
        let is_good = path.starts_with(b"/") || is_asterisk;
        // No client sends a fragment, and parsers disagree on it.
        if !is_good || not_visible(path, 0) < path.len() || memchr::memchr(b'#', path).is_some() {
            return Err("malformed :path (RFC 9113 8.3.1)");
        }
        Ok(span)
    }

    /// `:authority` alone (RFC 9113 8.5).
    fn connect_target(&self) -> Result<FieldSpan, &'static str> {
        if self.info.scheme.is_some() || self.info.path.is_some() {
            return Err("CONNECT with :scheme or :path (RFC 9113 8.5)");
        }
        let span = self.info.authority;
        let span = span.ok_or("CONNECT without :authority (RFC 9113 8.5)")?;
        if check_target(b"CONNECT", self.text(span)).is_err() {
            return Err("CONNECT to no host and port (RFC 9113 8.5)");
        }
        Ok(span)
    }

    /// `:authority` and Host must agree; `:authority` is shown as the first field.
    fn check_host(&mut self) -> Result<(), &'static str> {
        let info = self.info;
        let host = info.host.map(|at| self.spans[at as usize]);
        let named = info.authority.or(host);
        let named = named.ok_or("neither :authority nor host (RFC 9113 8.3.1)")?;
        if !is_host(self.text(named)) {
            return Err("malformed :authority or host (RFC 9113 8.3.1)");
        }
        self.shows_authority = info.authority.is_some();
        if let Some(authority) = info.authority {
            self.spans[0] = FieldSpan {
                name: 0,
                name_len: HOST.len() as u32,
                ..authority
            };
            if let (Some(host), Some(at)) = (host, info.host) {
                if !self.text(host).eq_ignore_ascii_case(self.text(authority)) {
                    return Err("host differs from :authority (RFC 9113 8.3.1)");
                }
                self.spans.remove(at as usize);
            }
        }
        Ok(())
    }

    /// Joins several `cookie` fields into one (RFC 9113 8.2.3).
    fn join_cookies(&mut self) {
        if self.info.cookies < 2 {
            return;
        }
        let Self { bytes, spans, .. } = self;
        let is_cookie = |bytes: &[u8], span: &FieldSpan| {
            &bytes[span.name as usize..][..span.name_len as usize] == b"cookie"
        };
        let start = bytes.len();
        for span in &spans[1..] {
            if is_cookie(bytes, span) {
                if bytes.len() > start {
                    bytes.extend_from_slice(b"; ");
                }
                let value = span.value as usize;
                bytes.extend_from_within(value..value + span.value_len as usize);
            }
        }
        let mut is_first = true;
        spans.retain_mut(|span| {
            if !is_cookie(bytes, span) {
                return true;
            }
            span.value = start as u32;
            span.value_len = (bytes.len() - start) as u32;
            std::mem::take(&mut is_first)
        });
    }

    /// RFC 9113 8.3.2.
    pub fn response(&mut self) -> Result<Response, Fault> {
        if self.cached != CachedKind::Response {
            self.status_line()?;
        }
        Ok(Response {
            status: self.line.status,
            length: announced(self.info.length)?,
        })
    }

    fn status_line(&mut self) -> Result<(), Fault> {
        let info = self.info;
        if let Some(error) = info.error {
            return Err(malformed(error));
        }
        let others = [
            info.method,
            info.scheme,
            info.authority,
            info.path,
            info.protocol,
        ];
        if others.iter().any(Option::is_some) {
            return Err(malformed(
                "pseudo-field of a request in a response (RFC 9113 8.3)",
            ));
        }
        let status = info.status.and_then(|span| parse_status(self.text(span)));
        let status = status.ok_or(malformed("no valid :status (RFC 9113 8.3.2)"))?;
        if status == 101 {
            return Err(malformed("101 does not exist in HTTP/2 (RFC 9113 8.6)"));
        }
        self.shows_authority = false;
        self.line = StartLine {
            status,
            version: Version::Http2,
            ..StartLine::default()
        };
        self.mark_cached(CachedKind::Response);
        Ok(())
    }

    /// Trailers, without pseudo-header fields (RFC 9113 8.1).
    pub fn trailers(&mut self) -> Result<Fields<'_>, Fault> {
        let info = self.info;
        if let Some(error) = info.error {
            return Err(malformed(error));
        }
        let pseudo = [
            info.method,
            info.scheme,
            info.authority,
            info.path,
            info.status,
            info.protocol,
        ];
        if pseudo.iter().any(Option::is_some) {
            return Err(malformed("pseudo-field in trailers (RFC 9113 8.1)"));
        }
        Ok(Fields::new(&self.bytes, &self.spans[1..]))
    }

    /// Frees the buffers of a large head.
    pub fn shrink(&mut self) {
        if self.bytes.capacity() > MAX_IDLE_BYTES {
            *self = Self::default();
        }
    }
}

impl HeadInfo {
    /// Examines a field, whose text is in `bytes`.
    #[inline]
    fn record(&mut self, field: DecodedField, bytes: &[u8], spans: &mut Vec<FieldSpan>) {
        if let Some(error) = field.error {
            self.error.get_or_insert(error.rule());
        }
        if field.name.is_pseudo() {
            return self.record_pseudo(field);
        }
        self.has_fields = true;
        let value = || &bytes[field.span.value as usize..][..field.span.value_len as usize];
        match field.name {
            Name::Host if self.host.is_some() => {
                self.error
                    .get_or_insert("several host fields (RFC 9110 7.2)");
            }
            Name::Host => self.host = Some(spans.len() as u32),
            Name::ContentLength => self.length.add(value()),
            Name::Cookie => self.cookies += 1,
            Name::Expect => self.record_expect(value()),
            Name::Other if field.span.name_len == 8 => {
                let name = &bytes[field.span.name as usize..][..8];
                if name == b"priority" {
                    self.priority = Some(Priority::of(value()));
                }
            }
            _ => {}
        }
        spans.push(field.span);
    }

    fn record_pseudo(&mut self, field: DecodedField) {
        if self.has_fields {
            self.error
                .get_or_insert("pseudo-field after a field (RFC 9113 8.3)");
        }
        let place = match field.name {
            Name::Method => &mut self.method,
            Name::Scheme => &mut self.scheme,
            Name::Authority => &mut self.authority,
            Name::Path => &mut self.path,
            Name::Status => &mut self.status,
            _ => &mut self.protocol,
        };
        if place.replace(field.span).is_some() {
            self.error
                .get_or_insert("pseudo-field twice (RFC 9113 8.3)");
        }
    }

    fn record_expect(&mut self, value: &[u8]) {
        let is_continue = value.eq_ignore_ascii_case(b"100-continue");
        self.expect = match (self.expect, is_continue) {
            (Expect::Nothing | Expect::Continue, true) => Expect::Continue,
            _ => Expect::Other,
        };
    }
}

fn announced(length: Length) -> Result<Option<u64>, Fault> {
    match length {
        Length::Absent => Ok(None),
        Length::Bytes(bytes) => Ok(Some(bytes)),
        Length::Malformed => Err(malformed("malformed content-length (RFC 9110 8.6)")),
        Length::Repeated => Err(malformed("several content-lengths (RFC 9110 8.6)")),
    }
}

/// Three digits, 100 to 999.
fn parse_status(text: &[u8]) -> Option<u16> {
    match *text {
        [
            hundreds @ b'1'..=b'9',
            tens @ b'0'..=b'9',
            ones @ b'0'..=b'9',
        ] => Some(
            u16::from(hundreds - b'0') * 100 + u16::from(tens - b'0') * 10 + u16::from(ones - b'0'),
        ),
        _ => None,
    }
}
