//! Formats with gunicorn's atoms, compiled once into parts and rendered without allocation.
//!
//! | atom | meaning |
//! |---|---|
//! | `h` | client address, `l` always `-`, `u` user of Basic authentication |
//! | `t` | local time in CLF form, with brackets |
//! | `r` | request line; `m` method, `U` path, `q` query, `H` version |
//! | `s` | status; `st` its reason phrase |
//! | `refused` | rule for which the server refused the request itself |
//! | `B` | body bytes sent; `b` the same, `-` for none |
//! | `f` | Referer; `a` User-Agent |
//! | `T` | duration in seconds; `M` milliseconds, `D` microseconds, `L` seconds with six decimals |
//! | `p` | process id as `<pid>` |
//! | `{name}i` | request field; `{name}o` response field; `{NAME}e` WSGI environ variable |
//!
//! An atom without a value is `-`. Text from the peer is escaped (see [`super::escape`]).

mod json;

use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::escape::push_text;
use super::filter::{Decision, Filter};
use super::timestamp::Stamp;
use crate::serve::refusals::RefusedFor;

const COMBINED: &str = r#"%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s""#;

/// Names of predefined formats. `json` is rendered by its own code.
pub const PRESETS: [(&str, &str); 2] = [
    ("common", r#"%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s"#),
    ("combined", COMBINED),
];

/// Replaces a secret in a query. The client, the traces and httpx write the same word.
const REDACTED: &[u8] = b"[secure]";

/// An unknown atom or an unterminated `%(`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatError(pub String);

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "access log format: {}", self.0)
    }
}

impl std::error::Error for FormatError {}

/// A format, ready to render.
#[derive(Debug)]
pub struct Format {
    shape: Shape,
    redact: Vec<Box<[u8]>>,
    /// Indices of the chosen headers of a JSON line among the request fields.
    headers: Vec<usize>,
    request_fields: Vec<Box<[u8]>>,
    response_fields: Vec<Box<[u8]>>,
    filter: Filter,
}

#[derive(Debug)]
enum Shape {
    Parts(Vec<Part>),
    /// The names and the indices of the request fields that are members.
    Json(Vec<(&'static str, usize)>),
}

/// Choices beyond the format itself.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// Names of query parameters whose values are not logged.
    pub redact: Vec<Box<[u8]>>,
    /// Request headers that a JSON line has in addition.
    pub headers: Vec<Box<[u8]>>,
    /// The header of the request id.
    pub request_id: Option<Box<[u8]>>,
    /// The requests that have a line.
    pub filter: Filter,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Box<[u8]>),
    Client,
    User(usize),
    Time,
    RequestLine,
    Method,
    Target,
    Path,
    Query,
    Version,
    Status,
    Reason,
    Refused,
    Bytes,
    BytesOrDash,
    Seconds,
    Millis,
    Micros,
    DecimalSeconds,
    Pid,
    RequestField(usize),
    ResponseField(usize),
    Missing,
}

/// Data of one exchange for its log line. Reused with the exchange's other state.
#[derive(Debug, Default)]
pub struct Entry {
    text: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    version: &'static str,
    request_fields: Vec<Option<Range<usize>>>,
    response_fields: Vec<Option<Range<usize>>>,
    status: u16,
}

/// Outcome of an exchange, known when it ends.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// Client address without port; empty for a Unix socket.
    pub client: &'a str,
    pub pid: u32,
    pub ended: SystemTime,
    pub duration: Duration,
    /// Body bytes sent.
    pub body_bytes: u64,
    /// The reason phrase of the status, for `st`.
    pub reason: &'a [u8],
    /// The server refused the request itself.
    pub refused: Option<RefusedFor>,
    /// `http` or `https`; empty if it is not known.
    pub scheme: &'static str,
}

impl Format {
    /// Compiles a format or the name of one: `json`, `common`, `combined`.
    pub fn compile(format: &str) -> Result<Self, FormatError> {
        Self::compile_with(format, FormatOptions::default())
    }

    /// Compiles a format with options.
    pub fn compile_with(format: &str, options: FormatOptions) -> Result<Self, FormatError> {
        let mut compiled = Self {
            shape: Shape::Parts(Vec::new()),
            redact: options.redact,
            headers: Vec::new(),
            request_fields: Vec::new(),
            response_fields: Vec::new(),
            filter: options.filter,
        };
        if format == "json" {
            let names = &mut compiled.request_fields;
            let mut members = vec![
                ("host", index_of(names, b"host")),
                ("referer", index_of(names, b"referer")),
                ("user_agent", index_of(names, b"user-agent")),
                ("traceparent", index_of(names, b"traceparent")),
            ];
            if let Some(name) = &options.request_id {
                members.push(("request_id", index_of(names, name)));
            }
            let headers = options.headers.iter();
            compiled.headers = headers.map(|name| index_of(names, name)).collect();
            compiled.shape = Shape::Json(members);
            return Ok(compiled);
        }
        let preset = PRESETS.iter().find(|(name, _)| *name == format);
        let parts = compiled.parts(preset.map_or(format, |(_, text)| text))?;
        compiled.shape = Shape::Parts(parts);
        Ok(compiled)
    }

    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Whether a request has a line. The life of a WebSocket is no slow response.
    pub fn decide(&self, entry: &Entry, duration: Duration) -> Decision {
        let is_tunnel = entry.status == 101 || entry.method() == b"CONNECT";
        let duration = (!is_tunnel).then_some(duration);
        self.filter.decide(entry.status, entry.path(), duration)
    }

    fn parts(&mut self, format: &str) -> Result<Vec<Part>, FormatError> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            literal.extend_from_slice(&rest.as_bytes()[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                literal.push(b'%');
                rest = after;
                continue;
            }
            let end = rest.strip_prefix('(').and_then(|inside| inside.find(")s"));
            let Some(end) = end else {
                return Err(FormatError(format!("expected %(atom)s at \"%{rest}\"")));
            };
            push_literal(&mut parts, &mut literal);
            parts.push(self.atom(&rest[1..=end])?);
            rest = &rest[end + 3..];
        }
        literal.extend_from_slice(rest.as_bytes());
        push_literal(&mut parts, &mut literal);
        Ok(parts)
    }

    fn atom(&mut self, name: &str) -> Result<Part, FormatError> {
        Ok(match name {
            "h" => Part::Client,
            "l" => Part::Missing,
            "u" => Part::User(index_of(&mut self.request_fields, b"authorization")),
            "t" => Part::Time,
            "r" => Part::RequestLine,
            "m" => Part::Method,
            "U" => Part::Path,
            "q" => Part::Query,
            "H" => Part::Version,
            "s" => Part::Status,
            "st" => Part::Reason,
            "refused" => Part::Refused,
            "B" => Part::Bytes,
            "b" => Part::BytesOrDash,
            "f" => Part::RequestField(index_of(&mut self.request_fields, b"referer")),
            "a" => Part::RequestField(index_of(&mut self.request_fields, b"user-agent")),
            "T" => Part::Seconds,
            "M" => Part::Millis,
            "D" => Part::Micros,
            "L" => Part::DecimalSeconds,
            "p" => Part::Pid,
            _ => return self.braced_atom(name),
        })
    }

    fn braced_atom(&mut self, name: &str) -> Result<Part, FormatError> {
        let inside = name.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let lower = |name: &str| name.to_ascii_lowercase().into_bytes();
        match inside {
            Some((field, "i")) if !field.is_empty() => Ok(Part::RequestField(index_of(
                &mut self.request_fields,
                &lower(field),
            ))),
            Some((field, "o")) if !field.is_empty() => Ok(Part::ResponseField(index_of(
                &mut self.response_fields,
                &lower(field),
            ))),
            Some((variable, "e")) if !variable.is_empty() => Ok(self.environ(variable)),
            _ => Err(FormatError(format!("unknown atom %({name})s"))),
        }
    }

    /// Variables of the WSGI environ that follow from the request; others have no value here.
    fn environ(&mut self, variable: &str) -> Part {
        match variable {
            "REMOTE_ADDR" => Part::Client,
            "REQUEST_METHOD" => Part::Method,
            "REQUEST_URI" | "RAW_URI" => Part::Target,
            "PATH_INFO" => Part::Path,
            "QUERY_STRING" => Part::Query,
            "SERVER_PROTOCOL" => Part::Version,
            "CONTENT_TYPE" | "CONTENT_LENGTH" => self.environ_field(variable),
            _ => match variable.strip_prefix("HTTP_") {
                Some(field) => self.environ_field(field),
                None => Part::Missing,
            },
        }
    }

    fn environ_field(&mut self, variable: &str) -> Part {
        let field = variable.to_ascii_lowercase().replace('_', "-");
        Part::RequestField(index_of(&mut self.request_fields, field.as_bytes()))
    }

    /// Stores the request's data for the line. Replaces the entry's earlier content.
    pub fn begin<'a>(
        &self,
        entry: &mut Entry,
        (method, target, version): (&[u8], &[u8], &'static str),
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        entry.text.clear();
        entry.method = entry.keep(method);
        entry.target = if self.redact.is_empty() {
            entry.keep(target)
        } else {
            entry.keep_redacted(target, &self.redact)
        };
        entry.version = version;
        entry.status = 0;
        reset(&mut entry.request_fields, self.request_fields.len());
        reset(&mut entry.response_fields, self.response_fields.len());
        if !self.request_fields.is_empty() {
            for (name, value) in fields {
                if let Some(index) = position(&self.request_fields, name) {
                    entry.request_fields[index] = Some(entry.keep(value));
                }
            }
        }
    }

    /// Stores the response's data for the line.
    pub fn on_response<'a>(
        &self,
        entry: &mut Entry,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        entry.status = status;
        if self.response_fields.is_empty() {
            return;
        }
        reset(&mut entry.response_fields, self.response_fields.len());
        for (name, value) in fields {
            if let Some(index) = position(&self.response_fields, name) {
                entry.response_fields[index] = Some(entry.keep(value));
            }
        }
    }

    /// Appends the line without its newline.
    pub fn render(
        &self,
        entry: &Entry,
        outcome: &Outcome<'_>,
        stamp: &mut Stamp,
        out: &mut Vec<u8>,
    ) {
        match &self.shape {
            Shape::Json(members) => self.render_json(entry, outcome, stamp, out, members),
            Shape::Parts(parts) => {
                for part in parts {
                    render_part(part, entry, outcome, stamp, out);
                }
            }
        }
    }
}

fn push_literal(parts: &mut Vec<Part>, literal: &mut Vec<u8>) {
    if !literal.is_empty() {
        parts.push(Part::Literal(std::mem::take(literal).into_boxed_slice()));
    }
}

fn index_of(names: &mut Vec<Box<[u8]>>, name: &[u8]) -> usize {
    if let Some(index) = position(names, name) {
        return index;
    }
    names.push(name.into());
    names.len() - 1
}

fn position(names: &[Box<[u8]>], name: &[u8]) -> Option<usize> {
    names
        .iter()
        .position(|wanted| wanted.eq_ignore_ascii_case(name))
}

fn reset(spans: &mut Vec<Option<Range<usize>>>, count: usize) {
    spans.clear();
    spans.resize(count, None);
}

impl Entry {
    /// Sets the status of a response that has no other data for the line.
    pub fn set_status(&mut self, status: u16) {
        self.status = status;
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        start..self.text.len()
    }

    /// Keeps a target without the values of the query parameters `names`.
    fn keep_redacted(&mut self, target: &[u8], names: &[Box<[u8]>]) -> Range<usize> {
        let start = self.text.len();
        let query = target.iter().position(|&byte| byte == b'?');
        let Some(query) = query.map(|at| at + 1) else {
            return self.keep(target);
        };
        self.text.extend_from_slice(&target[..query]);
        for (index, parameter) in target[query..].split(|&byte| byte == b'&').enumerate() {
            if index > 0 {
                self.text.push(b'&');
            }
            let equals = parameter.iter().position(|&byte| byte == b'=');
            match equals {
                Some(equals) if position(names, &parameter[..equals]).is_some() => {
                    self.text.extend_from_slice(&parameter[..=equals]);
                    self.text.extend_from_slice(REDACTED);
                }
                _ => self.text.extend_from_slice(parameter),
            }
        }
        start..self.text.len()
    }

    fn method(&self) -> &[u8] {
        &self.text[self.method.clone()]
    }

    fn target(&self) -> &[u8] {
        &self.text[self.target.clone()]
    }

    fn path(&self) -> &[u8] {
        let target = self.target();
        let end = target
            .iter()
            .position(|&byte| byte == b'?')
            .unwrap_or(target.len());
        &target[..end]
    }

    fn query(&self) -> &[u8] {
        let target = self.target();
        target
            .iter()
            .position(|&byte| byte == b'?')
            .map_or(&[], |at| &target[at + 1..])
    }

    fn request_field(&self, index: usize) -> Option<&[u8]> {
        self.request_fields
            .get(index)?
            .clone()
            .map(|span| &self.text[span])
    }

    fn response_field(&self, index: usize) -> Option<&[u8]> {
        self.response_fields
            .get(index)?
            .clone()
            .map(|span| &self.text[span])
    }
}

fn render_part(
    part: &Part,
    entry: &Entry,
    outcome: &Outcome<'_>,
    stamp: &mut Stamp,
    out: &mut Vec<u8>,
) {
    let micros = outcome.duration.as_micros();
    // Writing to a Vec cannot fail.
    let _ = match part {
        Part::Literal(text) => return out.extend_from_slice(text),
        Part::Client => return push_or_dash(out, Some(outcome.client.as_bytes())),
        Part::User(index) => return push_user(out, entry.request_field(*index)),
        Part::Time => return out.extend_from_slice(stamp.clf(outcome.ended)),
        Part::RequestLine => return push_request_line(out, entry),
        Part::Method => return push_or_dash(out, Some(entry.method())),
        Part::Target => return push_or_dash(out, Some(entry.target())),
        Part::Path => return push_or_dash(out, Some(entry.path())),
        // gunicorn writes nothing for an empty query, not a dash.
        Part::Query => return push_text(out, entry.query()),
        Part::Version => return push_or_dash(out, Some(entry.version.as_bytes())),
        Part::Status if entry.status == 0 => write!(out, "-"),
        Part::Status => write!(out, "{}", entry.status),
        Part::Reason => return push_or_dash(out, Some(outcome.reason)),
        Part::Refused => {
            let rule = outcome.refused.map(|refused| refused.rule.as_bytes());
            return push_or_dash(out, rule);
        }
        Part::BytesOrDash if outcome.body_bytes == 0 => write!(out, "-"),
        Part::Bytes | Part::BytesOrDash => write!(out, "{}", outcome.body_bytes),
        Part::Seconds => write!(out, "{}", outcome.duration.as_secs()),
        Part::Millis => write!(out, "{}", outcome.duration.as_millis()),
        Part::Micros => write!(out, "{micros}"),
        Part::DecimalSeconds => write!(out, "{}.{:06}", micros / 1_000_000, micros % 1_000_000),
        Part::Pid => write!(out, "<{}>", outcome.pid),
        Part::RequestField(index) => return push_or_dash(out, entry.request_field(*index)),
        Part::ResponseField(index) => return push_or_dash(out, entry.response_field(*index)),
        Part::Missing => write!(out, "-"),
    };
}

/// The parts of a request line that are known: a refused request may lack some.
fn push_request_line(out: &mut Vec<u8>, entry: &Entry) {
    let parts = [entry.method(), entry.target(), entry.version.as_bytes()];
    let before = out.len();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        if out.len() > before {
            out.push(b' ');
        }
        push_text(out, part);
    }
    if out.len() == before {
        out.push(b'-');
    }
}

fn push_or_dash(out: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) if !text.is_empty() => push_text(out, text),
        _ => out.push(b'-'),
    }
}

/// Decodes the user of `Authorization: Basic` (RFC 7617), never the password.
fn push_user(out: &mut Vec<u8>, authorization: Option<&[u8]>) {
    let before = out.len();
    let basic =
        authorization.filter(|value| value.len() > 6 && value[..6].eq_ignore_ascii_case(b"basic "));
    for group in basic
        .map_or(&[][..], |value| value[6..].trim_ascii())
        .chunks(4)
    {
        let mut bits = 0_u32;
        let mut bytes = 0;
        for (index, &digit) in group.iter().enumerate() {
            let Some(value) = base64_value(digit) else {
                break;
            };
            bits |= value << (18 - 6 * index);
            bytes = index;
        }
        let [_, decoded @ ..] = bits.to_be_bytes();
        let decoded = &decoded[..bytes];
        let colon = decoded.iter().position(|&byte| byte == b':');
        push_text(out, &decoded[..colon.unwrap_or(bytes)]);
        if colon.is_some() {
            break;
        }
    }
    if out.len() == before {
        out.push(b'-');
    }
}

fn base64_value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
