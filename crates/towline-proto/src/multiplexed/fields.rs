//! Heads of requests and trailers that the program sends: validated, and split into pseudo-header fields.

use crate::body::{Method, is_safe_method, parse_length};
use crate::byte_class::{is_token_bytes, is_value_bytes, is_visible_bytes};
use crate::field_compression::FieldEncoder;
use crate::head::is_forbidden_trailer;
use crate::target::{check_target, is_host};
use crate::{BodySize, Field, RequestHead, UserError};

use super::encode;
use super::states::SendState;

/// Framing fields given by the program.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FramingFields<'a> {
    pub length: Option<u64>,
    pub host: Option<&'a [u8]>,
    pub protocol: Option<&'a [u8]>,
}

/// Properties of a request that its stream needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestInfo {
    pub method: Method,
    /// The method is safe (RFC 9110 9.2.1).
    pub is_safe: bool,
    /// The request has no body.
    pub end: bool,
    pub next: SendState,
}

/// A valid request, and how it is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestPlan<'a> {
    pub info: RequestInfo,
    pseudo: PseudoFields<'a>,
    /// A Content-Length that the program did not give.
    length: Option<u64>,
}

/// The scheme of the requests of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

/// Pseudo-header fields of a request.
#[derive(Debug, Clone, Copy)]
struct PseudoFields<'a> {
    scheme: Option<&'a [u8]>,
    authority: &'a [u8],
    path: Option<&'a [u8]>,
    /// RFC 8441 4.
    protocol: Option<&'a [u8]>,
}

impl<'a> PseudoFields<'a> {
    /// Splits the target into pseudo-header fields (RFC 9113 8.3.1, RFC 9114 4.3.1).
    #[inline]
    fn of(
        head: &RequestHead<'a>,
        framing: &FramingFields<'a>,
        scheme: Scheme,
    ) -> Result<Self, UserError> {
        let host = framing.host.ok_or(UserError::InvalidHost)?;
        let is_tunnel = head.method == b"CONNECT" && framing.protocol.is_none();
        // An extended CONNECT has a path like any other request (RFC 8441 4).
        let method = if framing.protocol.is_some() {
            b"GET"
        } else {
            head.method
        };
        if !is_visible_bytes(head.target) {
            return Err(UserError::InvalidTarget);
        }
        let absolute = check_target(method, head.target).map_err(|_| UserError::InvalidTarget)?;
        if !is_host(host) {
            return Err(UserError::InvalidHost);
        }
        let mut pseudo = Self {
            scheme: Some(match scheme {
                Scheme::Https => b"https",
                Scheme::Http => b"http",
            }),
            authority: host,
            path: Some(head.target),
            protocol: framing.protocol,
        };
        if is_tunnel {
            pseudo.scheme = None;
            pseudo.authority = head.target;
            pseudo.path = None;
        } else if let Some((at, len)) = absolute {
            pseudo.scheme = Some(&head.target[..at - 3]);
            pseudo.authority = &head.target[at..at + len];
            pseudo.path = Some(match &head.target[at + len..] {
                [] => b"/",
                // An empty path has no valid form in `:path`.
                [b'?', ..] => return Err(UserError::InvalidTarget),
                path => path,
            });
        }
        Ok(pseudo)
    }
}

impl<'a> RequestPlan<'a> {
    /// Validates a request. `extends_connect`: the server accepts extended CONNECT (RFC 8441 3, RFC 9220 3).
    #[expect(
        clippy::inline_always,
        reason = "a call costs 20 of 5,600 instructions an exchange, for its large result; measured by benches/h2_memory"
    )]
    #[inline(always)]
    pub fn of(
        head: &RequestHead<'a>,
        size: BodySize,
        scheme: Scheme,
        extends_connect: bool,
    ) -> Result<Self, UserError> {
        if !is_token_bytes(head.method) {
            return Err(UserError::InvalidMethod);
        }
        let framing = check_fields(head.fields)?;
        let method = Method::of(head.method);
        let may_extend = method == Method::Connect && extends_connect;
        if framing.protocol.is_some() && !may_extend {
            return Err(UserError::WrongProtocol);
        }
        let pseudo = PseudoFields::of(head, &framing, scheme)?;
        let length = added_length(head.method, size, framing.length)?;
        let (end, next) = match (method, size, length.or(framing.length)) {
            // The stream stays open for the tunnel.
            (Method::Connect, ..) => (false, SendState::Complete),
            (_, BodySize::Empty, _) => (true, SendState::Complete),
            (_, _, declared) => (declared == Some(0), SendState::Body(declared)),
        };
        Ok(Self {
            info: RequestInfo {
                method,
                is_safe: is_safe_method(head.method),
                end,
                next,
            },
            pseudo,
            length,
        })
    }
}

/// The Content-Length to add to the `given` one.
#[inline]
fn added_length(
    method: &[u8],
    size: BodySize,
    given: Option<u64>,
) -> Result<Option<u64>, UserError> {
    Ok(match (size, given) {
        (BodySize::Known(n), Some(given)) if n != given => {
            return Err(UserError::InvalidContentLength);
        }
        (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        (BodySize::Known(n), None) => Some(n),
        // RFC 9110 8.6: methods that expect content state a length of 0.
        (BodySize::Empty, None) => matches!(method, b"POST" | b"PUT" | b"PATCH").then_some(0),
        _ => None,
    })
}

/// Encodes the head that `plan` was made of.
#[inline]
pub(crate) fn encode_request(
    encoder: &mut impl FieldEncoder,
    head: &RequestHead<'_>,
    plan: &RequestPlan<'_>,
    out: &mut Vec<u8>,
) {
    let pseudo = &plan.pseudo;
    let named = [
        (&b":method"[..], Some(head.method)),
        (b":scheme", pseudo.scheme),
        (b":authority", Some(pseudo.authority)),
        (b":path", pseudo.path),
        (b":protocol", pseudo.protocol),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            encoder.encode(name, value, out);
        }
    }
    for field in head.fields {
        if !field.name.eq_ignore_ascii_case(b"host") && field.name != b":protocol" {
            encode::field(encoder, field, out);
        }
    }
    if let Some(length) = plan.length {
        encode::content_length(encoder, length, out);
    }
}

/// Validates the fields and returns those about framing.
pub(super) fn check_fields<'a>(fields: &[Field<'a>]) -> Result<FramingFields<'a>, UserError> {
    let mut framing = FramingFields::default();
    for field in fields {
        if field.name == b":protocol" && framing.protocol.is_none() {
            framing.protocol = Some(field.value);
        } else if !is_token_bytes(field.name) {
            return Err(UserError::InvalidFieldName);
        }
        if !is_value_bytes(field.value) {
            return Err(UserError::InvalidFieldValue);
        }
        match (field.name.len(), field.name[0] | 0x20) {
            (14, b'c') if field.name.eq_ignore_ascii_case(b"content-length") => {
                if framing.length.is_some() {
                    return Err(UserError::InvalidContentLength);
                }
                let length = parse_length(field.value).ok_or(UserError::InvalidContentLength)?;
                framing.length = Some(length);
            }
            (4, b'h')
                if field.name.eq_ignore_ascii_case(b"host")
                    && framing.host.replace(field.value).is_some() =>
            {
                return Err(UserError::InvalidHost);
            }
            _ => {}
        }
    }
    Ok(framing)
}

pub(super) fn check_trailers(fields: &[Field<'_>]) -> Result<(), UserError> {
    if fields.iter().any(|field| is_forbidden_trailer(field.name)) {
        return Err(UserError::ForbiddenTrailer);
    }
    for field in fields {
        if !is_token_bytes(field.name) {
            return Err(UserError::InvalidFieldName);
        }
        if !is_value_bytes(field.value) {
            return Err(UserError::InvalidFieldValue);
        }
    }
    Ok(())
}
