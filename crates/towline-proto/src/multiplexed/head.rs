//! Receiving heads: a decoded header block becomes a request, a response or trailers, or is malformed (RFC 9113
//! 8.2 and 8.3, RFC 9114 4.1.2 to 4.3).
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

use crate::body::{Method, is_safe_method};
use crate::byte_class::{is_token_bytes, not_visible};
use crate::field_compression::{Bounds, DecodedFields, FieldDecoder};
use crate::head::{FieldSpan, StartLine};
use crate::target::{check_target, is_host};
use crate::{Fields, HeadRef, Limits, RefusedLine, Version};

use super::fault::Fault;
pub(crate) use super::head_info::{BODY_TOO_LARGE, body_length};
use super::head_info::{Expect, HeadInfo, announced, rule};
use super::priority::Priority;

const HOST: &[u8] = b"host";
const EARLY_DATA: &[u8] = b"early-data";
/// Buffers larger than this are freed.
const MAX_IDLE_BYTES: usize = 8 * 1024;
/// A block longer than this is not compared with the one before. Fields from the tables take a byte each.
const MAX_CACHED_BLOCK_BYTES: usize = 128;

/// How heads are decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadRules {
    pub bounds: Bounds,
    /// HTTP/2 or HTTP/3.
    pub version: Version,
}

/// The last decoded head: its text, the positions of its parts, and its meaning.
#[derive(Debug, Default)]
pub(crate) struct HeadDecoder {
    version: HeadVersion,
    bytes: Vec<u8>,
    /// The first is reserved for `:authority` as `host`; the fields follow.
    spans: Vec<FieldSpan>,
    shows_authority: bool,
    line: StartLine,
    /// The method of a request.
    method: Method,
    info: HeadInfo,
    cached: CachedKind,
    /// The encoded block, in `bytes` after the text. Empty: not compared.
    block_at: u32,
    block_len: u32,
}

/// Version of the messages; HTTP/2 until one is decoded.
#[derive(Debug, Clone, Copy)]
struct HeadVersion(Version);

impl Default for HeadVersion {
    fn default() -> Self {
        Self(Version::Http2)
    }
}

/// The head stored for a block that is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CachedKind {
    #[default]
    None,
    Request,
    Response,
}

/// Properties of a request that the connection needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub method: Method,
    pub length: Option<u64>,
    pub awaits_continue: bool,
    pub priority: Option<Priority>,
}

/// Properties of a response that the connection needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Response {
    pub status: u16,
    pub length: Option<u64>,
}

/// How a head is rejected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rejection {
    /// A valid message, which gets a response of this status, with the rule.
    Respond(u16, &'static str),
    /// A malformed message, whose stream is reset, with the rule.
    Malformed(&'static str),
    /// A stream that is reset for another reason.
    Reset(Fault),
}

impl Rejection {
    /// The fault for which the stream is reset.
    pub fn fault(self, malformed: impl FnOnce(&'static str) -> Fault) -> Fault {
        match self {
            Self::Respond(_, rule) | Self::Malformed(rule) => malformed(rule),
            Self::Reset(fault) => fault,
        }
    }
}

impl HeadDecoder {
    /// Decodes a whole block. The decoder must be the same each time.
    pub fn decode<D: FieldDecoder>(
        &mut self,
        decoder: &mut D,
        block: &[u8],
        rules: HeadRules,
    ) -> Result<DecodedFields, D::Error> {
        if self.cached != CachedKind::None && block == self.block() && decoder.is_unchanged() {
            return Ok(DecodedFields::All);
        }
        self.cached = CachedKind::None;
        self.block_len = 0;
        let fields = self.decode_new(decoder, block, rules)?;
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

    fn decode_new<D: FieldDecoder>(
        &mut self,
        decoder: &mut D,
        block: &[u8],
        rules: HeadRules,
    ) -> Result<DecodedFields, D::Error> {
        self.version = HeadVersion(rules.version);
        let Self {
            bytes, spans, info, ..
        } = self;
        bytes.clear();
        bytes.extend_from_slice(HOST);
        spans.clear();
        spans.push(FieldSpan::default());
        *info = HeadInfo::default();
        decoder.decode(block, rules.bounds, bytes, |field, bytes| {
            info.record(field, rules.version, bytes, spans);
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
        RefusedLine::new(text(self.info.method), text(target), Some(self.version.0))
    }

    /// Whether the block decoded last is a request whose method is safe (RFC 9110 9.2.1).
    pub fn is_safe_request(&self) -> bool {
        let method = self.info.method.map_or(&[][..], |span| self.text(span));
        is_safe_method(method)
    }

    /// Adds `early-data: 1` in place of what the client has sent (RFC 8470 5.1).
    pub fn mark_early(&mut self) {
        // A block that is equal may come after the handshake.
        self.cached = CachedKind::None;
        self.block_len = 0;
        let Self { bytes, spans, .. } = self;
        spans.retain(|span| &bytes[span.name as usize..][..span.name_len as usize] != EARLY_DATA);
        let name = bytes.len() as u32;
        bytes.extend_from_slice(EARLY_DATA);
        bytes.extend_from_slice(b"1");
        let name_len = EARLY_DATA.len() as u32;
        spans.push(FieldSpan {
            name,
            name_len,
            value: name + name_len,
            value_len: 1,
        });
    }

    fn fields(&self) -> &[FieldSpan] {
        &self.spans[usize::from(!self.shows_authority)..]
    }

    fn text(&self, span: FieldSpan) -> &[u8] {
        &self.bytes[span.value as usize..][..span.value_len as usize]
    }

    /// RFC 9113 8.3.1, RFC 9114 4.3.1.
    #[expect(
        clippy::inline_always,
        reason = "a call costs 20 of 5,600 instructions an exchange, for its large result; measured by benches/h2_memory"
    )]
    #[inline(always)]
    pub fn request(
        &mut self,
        limits: &Limits,
        offers_extended_connect: bool,
        end: bool,
    ) -> Result<Request, Rejection> {
        let is_cached = self.cached == CachedKind::Request;
        if !is_cached {
            self.request_line(offers_extended_connect)
                .map_err(Rejection::Malformed)?;
        }
        let info = &self.info;
        let length = announced(info.length).map_err(Rejection::Malformed)?;
        if end && length.is_some_and(|length| length > 0) {
            return Err(Rejection::Malformed(body_length(self.version.0)));
        }
        if info.expect == Expect::Other {
            return Err(Rejection::Respond(
                417,
                "unknown expectation (RFC 9110 10.1.1)",
            ));
        }
        if limits.max_body_bytes.is_some_and(|max| length > Some(max)) {
            return Err(Rejection::Respond(413, BODY_TOO_LARGE));
        }
        let request = Request {
            method: self.method,
            length,
            awaits_continue: info.expect == Expect::Continue && !end,
            priority: info.priority,
        };
        if !is_cached {
            self.join_cookies();
            self.mark_cached(CachedKind::Request);
        }
        Ok(request)
    }

    /// Marks the stored head as valid for reuse.
    fn mark_cached(&mut self, kind: CachedKind) {
        // Trailers can be an empty block.
        if self.block_len > 0 {
            self.cached = kind;
        }
    }

    /// Forgets the last head: another one is refused before it is decoded.
    pub fn clear(&mut self) {
        self.cached = CachedKind::None;
        self.block_len = 0;
        self.info = HeadInfo::default();
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
        let method = info.method.ok_or(rule!(
            self.version.0,
            "no :method",
            "9113 8.3.1",
            "9114 4.3.1"
        ))?;
        if info.status.is_some() {
            return Err(rule!(
                self.version.0,
                "pseudo-field of a response in a request",
                "9113 8.3",
                "9114 4.3"
            ));
        }
        if !is_token_bytes(self.text(method)) {
            return Err("method is not a token (RFC 9110 9.1)");
        }
        let connects = self.text(method) == b"CONNECT";
        let target = match (connects, info.protocol) {
            (true, None) => self.connect_target()?,
            (true, Some(_)) if offers_extended_connect => self.path_target()?,
            (_, Some(_)) => {
                return Err(rule!(
                    self.version.0,
                    ":protocol that was not offered",
                    "8441 4",
                    "9220 3"
                ));
            }
            (false, None) => self.path_target()?,
        };
        self.check_host()?;
        let protocol = info.protocol.unwrap_or_default();
        self.method = Method::of(self.text(method));
        self.line = StartLine {
            method: method.value,
            method_len: method.value_len,
            target: target.value,
            target_len: target.value_len,
            protocol: protocol.value,
            protocol_len: protocol.value_len,
            status: 0,
            version: self.version.0,
        };
        Ok(())
    }

    /// `:scheme` and `:path`, both required.
    fn path_target(&self) -> Result<FieldSpan, &'static str> {
        let scheme = self.info.scheme.ok_or(rule!(
            self.version.0,
            "no :scheme",
            "9113 8.3.1",
            "9114 4.3.1"
        ))?;
        let scheme = self.text(scheme);
        let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
            && scheme
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
        if !is_scheme {
            return Err("malformed :scheme (RFC 3986 3.1)");
        }
        let span = self.info.path.ok_or(rule!(
            self.version.0,
            "no :path",
            "9113 8.3.1",
            "9114 4.3.1"
        ))?;
        let path = self.text(span);
        let is_asterisk = path == b"*"
            && self
                .info
                .method
                .is_some_and(|method| self.text(method) == b"OPTIONS");
        let is_good = path.starts_with(b"/") || is_asterisk;
        // No client sends a fragment, and parsers disagree on it.
        if !is_good || not_visible(path, 0) < path.len() || memchr::memchr(b'#', path).is_some() {
            return Err(rule!(
                self.version.0,
                "malformed :path",
                "9113 8.3.1",
                "9114 4.3.1"
            ));
        }
        Ok(span)
    }

    /// `:authority` alone (RFC 9113 8.5).
    fn connect_target(&self) -> Result<FieldSpan, &'static str> {
        if self.info.scheme.is_some() || self.info.path.is_some() {
            return Err(rule!(
                self.version.0,
                "CONNECT with :scheme or :path",
                "9113 8.5",
                "9114 4.4"
            ));
        }
        let span = self.info.authority;
        let span = span.ok_or(rule!(
            self.version.0,
            "CONNECT without :authority",
            "9113 8.5",
            "9114 4.4"
        ))?;
        if check_target(b"CONNECT", self.text(span)).is_err() {
            return Err(rule!(
                self.version.0,
                "CONNECT to no host and port",
                "9113 8.5",
                "9114 4.4"
            ));
        }
        Ok(span)
    }

    /// `:authority` and Host must agree; `:authority` is shown as the first field.
    fn check_host(&mut self) -> Result<(), &'static str> {
        let info = self.info;
        let host = info.host.map(|at| self.spans[at as usize]);
        let named = info.authority.or(host);
        let named = named.ok_or(rule!(
            self.version.0,
            "neither :authority nor host",
            "9113 8.3.1",
            "9114 4.3.1"
        ))?;
        if !is_host(self.text(named)) {
            return Err(rule!(
                self.version.0,
                "malformed :authority or host",
                "9113 8.3.1",
                "9114 4.3.1"
            ));
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
                    return Err(rule!(
                        self.version.0,
                        "host differs from :authority",
                        "9113 8.3.1",
                        "9114 4.3.1"
                    ));
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

    /// RFC 9113 8.3.2, RFC 9114 4.3.2.
    #[expect(
        clippy::inline_always,
        reason = "a call costs 20 of 5,600 instructions an exchange; measured by benches/h2_memory"
    )]
    #[inline(always)]
    pub fn response(&mut self) -> Result<Response, &'static str> {
        if self.cached != CachedKind::Response {
            self.status_line()?;
        }
        Ok(Response {
            status: self.line.status,
            length: announced(self.info.length)?,
        })
    }

    fn status_line(&mut self) -> Result<(), &'static str> {
        let info = self.info;
        if let Some(error) = info.error {
            return Err(error);
        }
        let others = [
            info.method,
            info.scheme,
            info.authority,
            info.path,
            info.protocol,
        ];
        if others.iter().any(Option::is_some) {
            return Err(rule!(
                self.version.0,
                "pseudo-field of a request in a response",
                "9113 8.3",
                "9114 4.3"
            ));
        }
        let status = info.status.and_then(|span| parse_status(self.text(span)));
        let status = status.ok_or(rule!(
            self.version.0,
            "no valid :status",
            "9113 8.3.2",
            "9114 4.3.2"
        ))?;
        if status == 101 {
            return Err(rule!(
                self.version.0,
                "101 does not exist in this version",
                "9113 8.6",
                "9114 4.5"
            ));
        }
        self.shows_authority = false;
        self.line = StartLine {
            status,
            version: self.version.0,
            ..StartLine::default()
        };
        self.mark_cached(CachedKind::Response);
        Ok(())
    }

    /// Trailers, without pseudo-header fields (RFC 9113 8.1).
    pub fn trailers(&mut self) -> Result<Fields<'_>, &'static str> {
        let info = self.info;
        if let Some(error) = info.error {
            return Err(error);
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
            return Err(rule!(
                self.version.0,
                "pseudo-field in trailers",
                "9113 8.1",
                "9114 4.3"
            ));
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
