//! Compression of responses: whether, with which coding, and with which headers.
//!
//! [`Policy::plan`] decides once, from the request's [`AcceptEncoding`] and the response's head. The front end
//! then sends the headers of [`rewrite`] and passes the body through an
//! [`Encoder`](crate::coding::encode::Encoder). A response to HEAD is planned the same way, so that its
//! headers are those of GET.
//!
//! Compressing secrets together with text that an attacker chooses leaks them by length (BREACH), so
//! compression is off by default (`--compress`).

use crate::coding::Coding;
use crate::coding::accept_encoding::AcceptEncoding;

/// Default minimum size: a smaller response fits one packet anyway.
pub const MIN_BYTES: u64 = 860;

/// Configuration of compression.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Offered codings in order of preference; empty disables compression.
    pub codings: Vec<Coding>,
    /// Bodies known to be shorter are not compressed.
    pub min_bytes: u64,
}

/// Decision for one response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Not compressed for any client.
    Untouched,
    /// Not compressed for this client, but for others: the response needs Vary.
    Varies,
    Encode {
        coding: Coding,
        /// The application streams: each piece must be flushed to the client.
        flush_each_piece: bool,
    },
}

impl Policy {
    /// Decides. `body_bytes` is the body's length if it is known; else Content-Length is used.
    pub fn plan<'a>(
        &self,
        accepted: &AcceptEncoding,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        body_bytes: Option<u64>,
    ) -> Plan {
        if self.codings.is_empty() || !has_whole_body(status) {
            return Plan::Untouched;
        }
        let Some(known) = ResponseFields::of(fields) else {
            return Plan::Untouched;
        };
        let length = body_bytes.or(known.content_length);
        if !known.compressible || length.is_some_and(|bytes| bytes < self.min_bytes) {
            return Plan::Untouched;
        }
        match accepted.choose(&self.codings) {
            None => Plan::Varies,
            Some(coding) => Plan::Encode {
                coding,
                flush_each_piece: length.is_none(),
            },
        }
    }
}

/// Whether the body is complete: the offsets of a 206 count uncompressed bytes, the others have no body.
fn has_whole_body(status: u16) -> bool {
    status >= 200 && !matches!(status, 204 | 205 | 206 | 304)
}

/// Headers of the response that decide on compression.
#[derive(Default)]
struct ResponseFields {
    compressible: bool,
    content_length: Option<u64>,
}

impl ResponseFields {
    /// Reads the headers; `None` if one forbids compression.
    fn of<'a>(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Option<Self> {
        let mut known = Self::default();
        for (name, value) in fields {
            if name.eq_ignore_ascii_case(b"content-type") {
                known.compressible = is_compressible(value);
            } else if name.eq_ignore_ascii_case(b"content-length") {
                known.content_length = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok());
            } else if forbids(name, value) {
                return None;
            }
        }
        Some(known)
    }
}

/// Whether a header forbids compression: the body is encoded already, must not be transformed (RFC 9111
/// 5.2.2.6), or has a digest of its bytes (RFC 9530).
fn forbids(name: &[u8], value: &[u8]) -> bool {
    let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
    if is(b"cache-control") {
        return members(value).any(|member| member.eq_ignore_ascii_case(b"no-transform"));
    }
    if is(b"content-encoding") {
        return !value.trim_ascii().eq_ignore_ascii_case(b"identity");
    }
    is(b"content-range") || is(b"content-digest") || is(b"content-md5")
}

fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// Whether a media type is worth compressing: text in its registered forms. Images, video, woff fonts and
/// archives are compressed already. Also decides which static files may have precompressed siblings.
pub fn is_compressible(content_type: &[u8]) -> bool {
    const TYPES: [&[u8]; 16] = [
        b"application/javascript",
        b"application/x-javascript",
        b"application/json",
        b"application/x-ndjson",
        b"application/jsonl",
        b"application/manifest",
        b"application/xml",
        b"application/wasm",
        b"application/graphql",
        b"application/sql",
        b"application/rtf",
        b"application/vnd.ms-fontobject",
        b"font/ttf",
        b"font/otf",
        b"image/bmp",
        b"image/x-icon",
    ];
    let end = content_type
        .iter()
        .position(|&byte| byte == b';')
        .unwrap_or(content_type.len());
    let essence = content_type[..end].trim_ascii();
    let starts = |prefix: &[u8]| {
        essence.len() > prefix.len() && essence[..prefix.len()].eq_ignore_ascii_case(prefix)
    };
    let ends = |suffix: &[u8]| {
        essence.len() > suffix.len()
            && essence[essence.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
    };
    starts(b"text/")
        || ends(b"+json")
        || ends(b"+xml")
        || ends(b"+text")
        || TYPES
            .iter()
            .any(|known| essence.eq_ignore_ascii_case(known))
}

/// Calls back with each header of the response, changed by the plan. Order is kept; new headers come last.
///
/// Content-Length is removed (the front end adds a new one if it encodes the whole body), Accept-Ranges is
/// removed (ranges would count other bytes), a strong `ETag` becomes weak (RFC 9110 8.8.1).
pub fn rewrite<'a>(
    plan: Plan,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    mut emit: impl FnMut(&[u8], &[u8]),
) {
    let encodes = matches!(plan, Plan::Encode { .. });
    let mut varies = false;
    for (name, value) in fields {
        let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
        if is(b"vary") {
            varies |= members(value)
                .any(|member| member == b"*" || member.eq_ignore_ascii_case(b"accept-encoding"));
        } else if encodes
            && (is(b"content-length") || is(b"content-encoding") || is(b"accept-ranges"))
        {
            continue;
        } else if encodes && is(b"etag") && value.starts_with(b"\"") {
            emit(name, &[b"W/", value].concat());
            continue;
        }
        emit(name, value);
    }
    if let Plan::Encode { coding, .. } = plan {
        emit(b"content-encoding", coding.name().as_bytes());
    }
    if plan != Plan::Untouched && !varies {
        emit(b"vary", b"Accept-Encoding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];
    const HTML: (&str, &str) = ("Content-Type", "text/html; charset=utf-8");

    fn bytes(fields: Fields<'_>) -> impl Iterator<Item = (&[u8], &[u8])> {
        fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
    }

    fn plan(accept: &str, status: u16, fields: Fields<'_>, body_bytes: Option<u64>) -> Plan {
        let policy = Policy {
            codings: Coding::ENCODED.to_vec(),
            min_bytes: MIN_BYTES,
        };
        let accepted = AcceptEncoding::from_fields(bytes(&[("Accept-Encoding", accept)]));
        policy.plan(&accepted, status, bytes(fields), body_bytes)
    }

    fn encode(coding: Coding, flush_each_piece: bool) -> Plan {
        Plan::Encode {
            coding,
            flush_each_piece,
        }
    }

    #[test]
    fn small_bodies_are_not_compressed() {
        let gzip = |fields, body| plan("gzip", 200, fields, body);
        assert_eq!(gzip(&[HTML], Some(859)), Plan::Untouched);
        assert_eq!(gzip(&[HTML], Some(860)), encode(Coding::Gzip, false));
        assert_eq!(
            gzip(&[HTML, ("content-length", "859")], None),
            Plan::Untouched
        );
        assert_eq!(
            gzip(&[HTML, ("content-length", "860")], None),
            encode(Coding::Gzip, false)
        );
        assert_eq!(gzip(&[HTML], None), encode(Coding::Gzip, true), "a stream");
    }

    #[test]
    fn accept_encoding_decides() {
        assert_eq!(
            plan("br, gzip", 200, &[HTML], Some(1000)),
            encode(Coding::Brotli, false)
        );
        assert_eq!(plan("identity", 200, &[HTML], Some(1000)), Plan::Varies);
        assert_eq!(plan("gzip;q=0", 200, &[HTML], Some(1000)), Plan::Varies);
        let nothing = Policy {
            codings: Vec::new(),
            min_bytes: 0,
        };
        assert_eq!(
            nothing.plan(&AcceptEncoding::default(), 200, bytes(&[HTML]), None),
            Plan::Untouched
        );
    }

    #[test]
    fn some_responses_are_never_compressed() {
        for status in [100, 103, 204, 205, 206, 304] {
            assert_eq!(
                plan("gzip", status, &[HTML], None),
                Plan::Untouched,
                "{status}"
            );
        }
        for status in [200, 404, 500] {
            assert_ne!(
                plan("gzip", status, &[HTML], None),
                Plan::Untouched,
                "{status}"
            );
        }
        for field in [
            ("Content-Encoding", "br"),
            ("Cache-Control", "public, No-Transform"),
            ("Content-Range", "bytes 0-1/2"),
            ("Content-Digest", "sha-256=:AA==:"),
            ("Content-MD5", "x"),
        ] {
            assert_eq!(
                plan("gzip", 200, &[HTML, field], None),
                Plan::Untouched,
                "{field:?}"
            );
        }
        assert_ne!(
            plan("gzip", 200, &[HTML, ("content-encoding", "identity")], None),
            Plan::Untouched
        );
        assert_ne!(
            plan("gzip", 200, &[HTML, ("cache-control", "no-store")], None),
            Plan::Untouched
        );
    }

    #[test]
    fn text_types_are_compressible() {
        for yes in [
            "text/plain",
            "TEXT/HTML;x=y",
            "application/json",
            "application/problem+json",
            "image/svg+xml",
            "text/event-stream",
            "application/wasm",
            "text/javascript",
        ] {
            assert!(is_compressible(yes.as_bytes()), "{yes}");
        }
        for no in [
            "image/png",
            "application/octet-stream",
            "application/zip",
            "video/mp4",
            "font/woff2",
            "",
            "text/",
            "application/jsonx",
        ] {
            assert!(!is_compressible(no.as_bytes()), "{no}");
        }
        assert_eq!(
            plan("gzip", 200, &[], Some(1000)),
            Plan::Untouched,
            "no type at all"
        );
    }

    fn rewritten(plan: Plan, fields: Fields<'_>) -> String {
        let mut text = String::new();
        rewrite(plan, bytes(fields), |name, value| {
            let (name, value) = (
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value),
            );
            text.extend([&name, ": ", &*value, "\n"]);
        });
        text
    }

    #[test]
    fn an_encoded_response_has_its_headers() {
        let fields: Fields<'_> = &[
            HTML,
            ("Content-Length", "999"),
            ("ETag", "\"a\""),
            ("Accept-Ranges", "bytes"),
            ("X", "y"),
        ];
        assert_eq!(
            rewritten(encode(Coding::Zstd, false), fields),
            "Content-Type: text/html; charset=utf-8\nETag: W/\"a\"\nX: y\n\
             content-encoding: zstd\nvary: Accept-Encoding\n"
        );
        let unchanged = "ETag: \"a\"\nContent-Length: 9\n";
        let fields: Fields<'_> = &[("ETag", "\"a\""), ("Content-Length", "9")];
        assert_eq!(rewritten(Plan::Untouched, fields), unchanged);
        assert_eq!(
            rewritten(Plan::Varies, fields),
            format!("{unchanged}vary: Accept-Encoding\n")
        );
        assert!(
            rewritten(encode(Coding::Gzip, false), &[("etag", "W/\"a\"")])
                .starts_with("etag: W/\"a\"\n")
        );
    }

    #[test]
    fn vary_is_sent_once() {
        for vary in ["Accept-Encoding", "*", "Origin, accept-encoding"] {
            let text = rewritten(Plan::Varies, &[("Vary", vary)]);
            assert_eq!(text, format!("Vary: {vary}\n"));
        }
        let text = rewritten(Plan::Varies, &[("Vary", "Origin")]);
        assert_eq!(text, "Vary: Origin\nvary: Accept-Encoding\n");
    }
}
