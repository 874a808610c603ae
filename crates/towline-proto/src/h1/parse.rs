//! Heads, received (RFC 9112 2 to 5): scanned in place, line by line, strictly.
//!
//! A head that arrives whole is parsed in one pass. Parsing of a head that arrives in pieces resumes at the
//! incomplete line, and a long incomplete line is scanned again only if the new bytes could end a part of it or
//! make it invalid: the work stays linear however the input is cut, and so do the results.

use crate::head::{FieldSpan, StartLine};
use crate::{ConnectionError, Limits, Side};

use super::head_info::HeadInfo;
use super::lenient::{self, FieldLine, is_framing};
use super::scan::{FOLD, LINE_END, Scan, Stop, VALUE, bad_name};
use super::start_line::{request_line, status_line};
use crate::byte_class::{not_visible, token_end, value_end};

const EMPTY_LINES: ConnectionError =
    ConnectionError::peer(400, "empty lines instead of a start line (RFC 9112 2.2)");
const LONG_TARGET: ConnectionError = ConnectionError::limit(414, "request line too long");
const LONG_START: ConnectionError = ConnectionError::limit(400, "start line too long");
const LONG_FIELD: ConnectionError = ConnectionError::limit(431, "field line too long");
const LONG_HEAD: ConnectionError = ConnectionError::limit(431, "field block too long");
const FIELDS: ConnectionError = ConnectionError::limit(431, "too many fields");

/// An incomplete line of which less than this was scanned is simply scanned again.
const SHORT_LINE_BYTES: usize = 256;
/// A space, a version, and CRLF.
const VERSION_BYTES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    StartLine,
    Fields,
    /// Complete: kept for its views until the next head is parsed.
    Done,
}

/// Result of a pass over the bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// More bytes are needed.
    Partial,
    /// The head is complete; its length in bytes.
    Complete(usize),
}

/// The head being received. Offsets count from its first byte.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeadParser {
    stage: Stage,
    /// Offset of the incomplete line.
    at: u32,
    /// Offset up to which the incomplete line was scanned.
    scanned: u32,
    /// Offset of the fields.
    fields_at: u32,
    /// A value continues on further lines, which its span contains.
    folded: bool,
    pub line: StartLine,
    pub(super) info: HeadInfo,
}

impl HeadParser {
    /// Parses `bytes` (the head from its first byte on) as far as possible.
    pub(super) fn parse(
        &mut self,
        bytes: &[u8],
        spans: &mut Vec<FieldSpan>,
        limits: &Limits,
        side: Side,
    ) -> Result<Parsed, ConnectionError> {
        if self.stage == Stage::Done {
            *self = Self::default();
        }
        if self.scanned > 0 && !self.needs_another_pass(bytes, limits, side) {
            return Ok(Parsed::Partial);
        }
        if self.stage == Stage::StartLine {
            let line = match side {
                Side::Server => request_line(bytes),
                Side::Client => {
                    status_line(bytes).or_else(|stop| lenient::status_line(bytes, stop))
                }
            };
            match line {
                Ok((line, end)) if end - 2 <= limits.max_start_line_bytes as usize => {
                    self.line = line;
                    self.at = end as u32;
                    self.fields_at = end as u32;
                    self.stage = Stage::Fields;
                    spans.clear();
                    spans.reserve(16);
                }
                Ok((_, end)) => return Err(long_start(&bytes[..end], side)),
                Err(stop) => return self.start_line_stopped(bytes, stop, limits, side),
            }
        }
        self.fields(bytes, spans, limits, side)
    }

    /// Joins folded values of a complete head, and examines its fields again.
    pub fn unfold(&mut self, bytes: &mut [u8], spans: &mut [FieldSpan]) {
        if !std::mem::take(&mut self.folded) {
            return;
        }
        lenient::unfold(bytes, spans);
        self.info = HeadInfo::default();
        for (index, span) in spans.iter().enumerate() {
            self.record(bytes, *span, index);
        }
    }

    #[inline]
    fn record(&mut self, bytes: &[u8], span: FieldSpan, index: usize) {
        let name = &bytes[span.name as usize..(span.name + span.name_len) as usize];
        let value = &bytes[span.value as usize..(span.value + span.value_len) as usize];
        self.info.record(name, value, index);
    }

    /// Number of bytes scanned of an incomplete head.
    pub fn scanned(&self) -> usize {
        if self.stage == Stage::Done {
            0
        } else {
            self.scanned as usize
        }
    }

    /// The start line of the head being received, or of the last one, is valid.
    pub fn has_start_line(&self) -> bool {
        self.stage != Stage::StartLine
    }

    /// No byte of a head was scanned.
    pub fn is_fresh(&self) -> bool {
        self.stage == Stage::Done || (self.stage == Stage::StartLine && self.scanned == 0)
    }

    /// Whether the new part of a long incomplete line could end a part of it or make it invalid.
    fn needs_another_pass(&mut self, bytes: &[u8], limits: &Limits, side: Side) -> bool {
        let at = self.at as usize;
        let line = bytes.len() - at;
        // A status line is known to be in its reason only when this much of it was valid.
        let scanned_bytes = (self.scanned as usize).saturating_sub(at);
        let longest = limits.max_start_line_bytes.min(limits.max_field_line_bytes) as usize;
        if scanned_bytes < SHORT_LINE_BYTES
            || line > longest
            || self.new_part_stops(bytes, at, side)
        {
            return true;
        }
        self.scanned = bytes.len() as u32;
        false
    }

    fn new_part_stops(&self, bytes: &[u8], at: usize, side: Side) -> bool {
        let from = (self.scanned as usize).saturating_sub(1).max(at);
        let seen = |separator| memchr::memchr(separator, &bytes[at..from]).is_some();
        let stop = match (self.stage, side) {
            // A target is followed by a version, which is short: bytes this close after a space are scanned
            // one by one.
            (Stage::StartLine, Side::Server) if seen(b' ') => {
                not_visible(bytes, from.saturating_sub(VERSION_BYTES).max(at))
            }
            (Stage::Fields, _) if seen(b':') => value_end(bytes, from),
            // The reason phrase of a response.
            (Stage::StartLine, Side::Client) => value_end(bytes, from),
            // A method or a field name.
            _ => token_end(bytes, from),
        };
        stop < bytes.len()
    }

    fn start_line_stopped(
        &mut self,
        bytes: &[u8],
        stop: Stop,
        limits: &Limits,
        side: Side,
    ) -> Result<Parsed, ConnectionError> {
        let longest = limits.max_start_line_bytes as usize;
        match stop {
            Stop::Partial if bytes.len() <= longest + 1 => {
                self.scanned = bytes.len() as u32;
                Ok(Parsed::Partial)
            }
            Stop::Wrong(error, at) if at <= longest => Err(error),
            _ => Err(long_start(bytes, side)),
        }
    }

    fn fields(
        &mut self,
        bytes: &[u8],
        spans: &mut Vec<FieldSpan>,
        limits: &Limits,
        side: Side,
    ) -> Result<Parsed, ConnectionError> {
        let mut at = self.at as usize;
        let fields_at = self.fields_at as usize;
        let last = fields_at + limits.max_head_bytes as usize;
        let bounds = Bounds { last, limits };
        loop {
            if bytes.get(at) == Some(&b'\r') {
                return match bytes.get(at + 1) {
                    Some(b'\n') => {
                        self.stage = Stage::Done;
                        Ok(Parsed::Complete(at + 2))
                    }
                    Some(_) => Err(LINE_END),
                    None => Ok(self.partial(at, bytes)),
                };
            }
            match field_line(bytes, at) {
                Ok((span, end)) => {
                    bounds.check(at, end, spans.len())?;
                    self.record(bytes, span, spans.len());
                    spans.push(span);
                    at = end;
                }
                Err(Stop::Wrong(..)) if side == Side::Client => {
                    let line = match lenient::field_line(bytes, at, spans.is_empty()) {
                        Ok(FieldLine::Empty(end)) => {
                            self.stage = Stage::Done;
                            return Ok(Parsed::Complete(end));
                        }
                        Ok(line) => line,
                        Err(stop) => return self.field_stopped(bytes, at, last, stop, limits),
                    };
                    at = self.lenient_line(bytes, &line, spans, &bounds)?;
                }
                Err(stop) => return self.field_stopped(bytes, at, last, stop, limits),
            }
        }
    }

    /// Keeps a line of a response that only the lenient parser accepts; returns the start of the next one.
    #[cold]
    fn lenient_line(
        &mut self,
        bytes: &[u8],
        line: &FieldLine,
        spans: &mut Vec<FieldSpan>,
        bounds: &Bounds<'_>,
    ) -> Result<usize, ConnectionError> {
        match (*line, spans.last_mut()) {
            (FieldLine::Field(span, end), _) => {
                bounds.check(span.name as usize, end, spans.len())?;
                self.record(bytes, span, spans.len());
                spans.push(span);
                Ok(end)
            }
            (FieldLine::Fold { content_end, end }, Some(span)) => {
                let name = span.name as usize;
                if is_framing(&bytes[name..name + span.name_len as usize]) {
                    return Err(FOLD);
                }
                bounds.check(name, end, 0)?;
                span.value_len = content_end as u32 - span.value;
                self.folded = true;
                Ok(end)
            }
            (FieldLine::Fold { .. } | FieldLine::Empty(_), _) => Err(FOLD),
        }
    }

    #[cold]
    fn field_stopped(
        &mut self,
        bytes: &[u8],
        at: usize,
        last: usize,
        stop: Stop,
        limits: &Limits,
    ) -> Result<Parsed, ConnectionError> {
        let longest = limits.max_field_line_bytes as usize;
        let (seen, error) = match stop {
            Stop::Partial => (bytes.len(), None),
            Stop::Wrong(error, wrong) => (wrong, Some(error)),
        };
        // The CR of the line end does not count against the limits.
        if seen > at + longest + 1 {
            return Err(LONG_FIELD);
        }
        if seen > last + 1 {
            return Err(LONG_HEAD);
        }
        error.map_or_else(|| Ok(self.partial(at, bytes)), Err)
    }

    fn partial(&mut self, at: usize, bytes: &[u8]) -> Parsed {
        self.at = at as u32;
        self.scanned = bytes.len() as u32;
        Parsed::Partial
    }
}

/// The limits of a field section.
struct Bounds<'a> {
    /// The position at which the section must end at the latest.
    last: usize,
    limits: &'a Limits,
}

impl Bounds<'_> {
    /// Checks a line from `at` to `end`, before which there are `fields` fields.
    #[inline]
    fn check(&self, at: usize, end: usize, fields: usize) -> Result<(), ConnectionError> {
        if end - at - 2 > self.limits.max_field_line_bytes as usize {
            return Err(LONG_FIELD);
        }
        if end > self.last {
            return Err(LONG_HEAD);
        }
        if fields == self.limits.max_fields as usize {
            return Err(FIELDS);
        }
        Ok(())
    }
}

/// A parser with its spans, outside of a connection: for benchmarks.
#[derive(Debug, Default)]
pub struct HeadScratch {
    spans: Vec<FieldSpan>,
}

impl HeadScratch {
    /// Parses a whole head; returns its length and the number of its fields, or `None` when it is
    /// incomplete or malformed.
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits, side: Side) -> Option<(usize, usize)> {
        let mut parser = HeadParser::default();
        match parser.parse(bytes, &mut self.spans, limits, side) {
            Ok(Parsed::Complete(len)) => Some((len, self.spans.len())),
            _ => None,
        }
    }
}

/// Number of bytes of empty lines before a start line; an error if there are too many.
pub(super) fn empty_lines(
    bytes: &[u8],
    seen: &mut u8,
    limits: &Limits,
    side: Side,
) -> Result<usize, ConnectionError> {
    let mut at = 0;
    loop {
        at += match (side, &bytes[at..]) {
            (_, [b'\r', b'\n', ..]) => 2,
            (Side::Client, [b'\n', ..]) => 1,
            _ => return Ok(at),
        };
        *seen += 1;
        if *seen > limits.max_empty_lines {
            return Err(EMPTY_LINES);
        }
    }
}

#[cold]
fn long_start(bytes: &[u8], side: Side) -> ConnectionError {
    // An endless method is not an error of the target.
    if side == Side::Server && bytes.iter().take(64).any(|&byte| byte == b' ') {
        LONG_TARGET
    } else {
        LONG_START
    }
}

/// `field-name ":" OWS field-value OWS CRLF`, starting at `at`; returns the offset at which the next line starts.
#[allow(
    clippy::inline_always,
    reason = "half of the work of a head; measured by benches/head.rs"
)]
#[inline(always)]
pub(super) fn field_line(bytes: &[u8], at: usize) -> Scan<(FieldSpan, usize)> {
    let colon = token_end(bytes, at);
    match bytes.get(colon) {
        Some(b':') if colon > at => {}
        _ => return Err(bad_name(bytes, at, colon)),
    }
    let mut value = colon + 1;
    while matches!(bytes.get(value), Some(b' ' | b'\t')) {
        value += 1;
    }
    let end = value_end(bytes, value);
    match bytes.get(end..end + 2) {
        Some(b"\r\n") => {}
        _ => return Err(bad_value(bytes, end)),
    }
    let mut value_len = end - value;
    while value_len > 0 && matches!(bytes[value + value_len - 1], b' ' | b'\t') {
        value_len -= 1;
    }
    let span = FieldSpan {
        name: at as u32,
        name_len: (colon - at) as u32,
        value: value as u32,
        value_len: value_len as u32,
    };
    Ok((span, end + 2))
}

#[cold]
fn bad_value(bytes: &[u8], end: usize) -> Stop {
    match (bytes.get(end), bytes.get(end + 1)) {
        (None, _) | (Some(b'\r'), None) => Stop::Partial,
        (Some(b'\n'), _) => Stop::Wrong(LINE_END, end),
        _ => Stop::Wrong(VALUE, end),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::*;
    use super::super::start_line::*;
    use super::*;

    fn parse_in_steps(
        bytes: &[u8],
        step: usize,
        side: Side,
        limits: &Limits,
    ) -> (HeadParser, Vec<FieldSpan>, Result<Parsed, ConnectionError>) {
        let mut parser = HeadParser::default();
        let mut spans = Vec::new();
        let mut end = 0;
        loop {
            end = (end + step).min(bytes.len());
            let result = parser.parse(&bytes[..end], &mut spans, limits, side);
            if result != Ok(Parsed::Partial) || end == bytes.len() {
                return (parser, spans, result);
            }
        }
    }

    /// The rule that refuses `wire`, the same at every cut.
    fn assert_refused(bad: &[(&[u8], &ConnectionError)], side: Side) {
        for (wire, error) in bad {
            assert_eq!(refusal(wire, side), error.rule, "{}", wire.escape_ascii());
        }
    }

    fn refusal(wire: &[u8], side: Side) -> &'static str {
        let limits = Limits::server();
        let mut rules =
            (1..=wire.len()).map(|step| match parse_in_steps(wire, step, side, &limits).2 {
                Err(error) => error.rule,
                Ok(other) => panic!("{other:?} for {}", wire.escape_ascii()),
            });
        let first = rules.next().unwrap();
        assert!(rules.all(|rule| rule == first), "{}", wire.escape_ascii());
        first
    }

    #[test]
    fn malformed_requests_are_refused_at_every_cut() {
        let bad: &[(&[u8], &ConnectionError)] = &[
            (b" / HTTP/1.1\r\n\r\n", &METHOD),
            (b"GET\r/ HTTP/1.1\r\n\r\n", &METHOD),
            (b"GE(T / HTTP/1.1\r\n\r\n", &METHOD),
            (b"G\0T / HTTP/1.1\r\n\r\n", &METHOD),
            (b"\x16\x03\x01\x02\0\x01\0", &METHOD),
            (b"\nGET / HTTP/1.1\r\n\r\n", &METHOD),
            (b"GET  / HTTP/1.1\r\n\r\n", &TARGET),
            (b"GET /\0 HTTP/1.1\r\n\r\n", &TARGET),
            (b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n", &TARGET),
            (b"GET /\nHTTP/1.1\r\n\r\n", &TARGET),
            (b"GET /\r\n\r\n", &NO_VERSION),
            (b"GET /a b HTTP/1.1\r\n\r\n", &VERSION),
            (b"GET / http/1.1\r\n\r\n", &VERSION),
            (b"GET / HTTP/1.32\r\n\r\n", &VERSION),
            (b"GET / HTTP/\r\r1.1\r\n\r\n", &VERSION),
            (b"GET / HTTP/4294967295.255\r\n\r\n", &VERSION),
            (b"GET / HTTP/2.0\r\n\r\n", &VERSION_OTHER),
            (b"GET / HTTP/0.9\r\n\r\n", &VERSION_OTHER),
            (b"GET / HTTP/1.1 \r\n\r\n", &LINE_END),
            (b"GET / HTTP/1.1\n\n", &LINE_END),
            (b"GET / HTTP/1.1\r\rHost: a", &LINE_END),
            (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", &FOLD),
            (b"GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n", &FOLD),
            (b"GET / HTTP/1.1\r\nX : y\r\n\r\n", &COLON),
            (b"GET / HTTP/1.1\r\nX\t: y\r\n\r\n", &COLON),
            (b"GET / HTTP/1.1\r\nX 10\r\n\r\n", &COLON),
            (b"GET / HTTP/1.1\r\n: x\r\n\r\n", &NAME),
            (b"GET / HTTP/1.1\r\nabc\r\n\r\n", &NAME),
            (b"GET / HTTP/1.1\r\na\0b: c\r\n\r\n", &NAME),
            (b"GET / HTTP/1.1\r\nFo(o: 1\r\n\r\n", &NAME),
            (b"GET / HTTP/1.1\r\nX\x85: 1\r\n\r\n", &NAME),
            (b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", &VALUE),
            (b"GET / HTTP/1.1\r\nX: a\rb\r\n\r\n", &VALUE),
            (b"GET / HTTP/1.1\r\nX: a\x0cb\r\n\r\n", &VALUE),
            (b"GET / HTTP/1.1\r\nX: a\x7fb\r\n\r\n", &VALUE),
            (b"GET / HTTP/1.1\r\nX: a\nY: b\r\n\r\n", &LINE_END),
            (b"GET / HTTP/1.1\r\nX: a\r\n\rZ", &LINE_END),
            (b"GET / HTTP/1.1\r\nX: a\r\n\nZ", &LINE_END),
        ];
        assert_refused(bad, Side::Server);
    }

    #[test]
    fn malformed_responses_are_refused_at_every_cut() {
        let bad: &[(&[u8], &ConnectionError)] = &[
            (b"HTP/1.1 200 OK\r\n\r\n", &STATUS_LINE),
            (b"\rHTTP/1.1 200 OK\r\n\r\n", &STATUS_LINE),
            (b"HTTP/01.1 200 OK\r\n\r\n", &VERSION),
            (b"HTTP/5.6 200 OK\r\n\r\n", &VERSION_OTHER),
            (b"HTTP/1.1 2 OK\r\n\r\n", &STATUS),
            (b"HTTP/1.1 +20 OK\r\n\r\n", &STATUS),
            (b"HTTP/1.1 099 OK\r\n\r\n", &STATUS),
            (b"HTTP/1.1 2000 OK\r\n\r\n", &STATUS),
            (b"HTTP/1.1 200 OK\rX: 0\r\n\r\n", &REASON),
            (b"HTTP/1.1 200 O\0K\r\n\r\n", &REASON),
        ];
        assert_refused(bad, Side::Client);
    }

    #[test]
    fn a_head_is_the_same_at_every_cut() {
        let wire = b"GET /a?b=c HTTP/1.1\r\nHost: a\r\nX:\t v \t w \t\r\nEmpty:\r\nCaf: \xc3\xa9\r\n\r\nrest";
        for step in 1..=wire.len() {
            let limits = Limits::server();
            let (parser, spans, result) = parse_in_steps(wire, step, Side::Server, &limits);
            assert_eq!(result, Ok(Parsed::Complete(wire.len() - 4)));
            assert_eq!((parser.line.method_len, parser.line.target_len), (3, 6));
            let values: Vec<&[u8]> = crate::Fields::new(wire, &spans)
                .map(|field| field.value)
                .collect();
            assert_eq!(values, [&b"a"[..], b"v \t w", b"", b"\xc3\xa9"]);
        }
    }

    #[test]
    fn limits_hold_to_the_byte_at_every_cut() {
        let mut limits = Limits::server();
        limits.max_start_line_bytes = 300;
        limits.max_field_line_bytes = 400;
        limits.max_head_bytes = 800;
        limits.max_fields = 3;
        let line = |n: usize| format!("GET /{} HTTP/1.1\r\n", "a".repeat(n - 14));
        let field = |n: usize| format!("X: {}\r\n", "a".repeat(n - 3));
        let ok = Ok(());
        let cases = [
            (line(300) + "\r\n", ok.clone()),
            (line(301) + "\r\n", Err(LONG_TARGET)),
            (line(5000) + "\r\n", Err(LONG_TARGET)),
            ("A".repeat(5000), Err(LONG_START)),
            (line(20) + &field(400) + "\r\n", ok.clone()),
            (line(20) + &field(401) + "\r\n", Err(LONG_FIELD)),
            (
                line(20) + &field(390) + &field(390) + &field(14) + "\r\n",
                ok.clone(),
            ),
            (
                line(20) + &field(390) + &field(390) + &field(15) + "\r\n",
                Err(LONG_HEAD),
            ),
            (line(20) + &field(5).repeat(3) + "\r\n", ok),
            (line(20) + &field(5).repeat(4) + "\r\n", Err(FIELDS)),
        ];
        for (wire, expected) in cases {
            for step in [1, 2, 3, 7, 64, 299, 1000, 10_000] {
                let (_, _, result) = parse_in_steps(wire.as_bytes(), step, Side::Server, &limits);
                assert_eq!(result.map(|_| ()), expected, "{step} {wire}");
            }
        }
    }
}
