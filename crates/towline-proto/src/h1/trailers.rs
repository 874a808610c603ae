//! Trailers, received (RFC 9112 7.1.2).

use crate::head::FieldSpan;
use crate::{ConnectionError, Limits, Side};

use super::lenient::{self, FieldLine};
use super::parse::field_line;
use super::scan::Stop;
use super::{Connection, rules};
use crate::head::is_forbidden_trailer;

/// Trailer fields, copied out of the receive buffer.
#[derive(Debug, Default)]
pub(super) struct Trailers {
    pub(super) bytes: Vec<u8>,
    pub(super) spans: Vec<FieldSpan>,
    /// Wire bytes and lines, dropped fields included.
    section_bytes: usize,
    lines: u32,
    /// The last line was not dropped.
    is_last_kept: bool,
}

impl Trailers {
    /// Counts a line of `len` bytes.
    fn count(&mut self, len: usize, limits: &Limits) -> Result<(), ConnectionError> {
        self.section_bytes += len;
        self.lines += 1;
        if self.section_bytes > limits.max_head_bytes as usize || self.lines > limits.max_fields {
            return Err(rules::TRAILERS);
        }
        Ok(())
    }

    /// Adds a folded line to the last field, after one space (RFC 9112 5.2).
    fn fold(&mut self, line: &[u8], limits: &Limits) -> Result<(), ConnectionError> {
        self.count(line.len(), limits)?;
        if let (true, Some(span)) = (self.is_last_kept, self.spans.last_mut()) {
            self.bytes.truncate((span.value + span.value_len) as usize);
            let content = line.trim_ascii();
            if span.value_len > 0 && !content.is_empty() {
                self.bytes.push(b' ');
            }
            self.bytes.extend_from_slice(content);
            span.value_len = self.bytes.len() as u32 - span.value;
        }
        Ok(())
    }
}

impl Connection {
    /// Reads complete trailer lines; true when the section has ended.
    pub(super) fn read_trailers(&mut self) -> Result<bool, ConnectionError> {
        loop {
            let bytes = self.recv.unread();
            match bytes {
                [b'\r', b'\n', ..] => {
                    self.recv.consume(2);
                    return Ok(true);
                }
                [b'\n', ..] if self.side == Side::Client => {
                    self.recv.consume(1);
                    return Ok(true);
                }
                [] | [b'\r'] => return Ok(false),
                _ => {}
            }
            let longest = self.limits.max_field_line_bytes as usize;
            // Only whole lines are parsed, so that a line arriving in small pieces costs linear time.
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                return if bytes.len() > longest + 1 {
                    Err(rules::TRAILERS)
                } else {
                    Ok(false)
                };
            };
            match field_line(bytes, 0) {
                Ok((span, end)) if end - 2 <= longest => self.keep_trailer(span, end)?,
                Ok(_) => return Err(rules::TRAILERS),
                Err(_) if end > longest + 1 => return Err(rules::TRAILERS),
                Err(Stop::Wrong(..)) if self.side == Side::Client => self.lenient_trailer()?,
                Err(Stop::Wrong(..) | Stop::Partial) => return Err(rules::TRAILER),
            }
        }
    }

    /// Stores one trailer line of a response that only the lenient parser accepts.
    #[cold]
    fn lenient_trailer(&mut self) -> Result<(), ConnectionError> {
        let is_first = self
            .trailers
            .as_ref()
            .is_none_or(|trailers| trailers.lines == 0);
        match lenient::field_line(self.recv.unread(), 0, is_first) {
            Ok(FieldLine::Field(span, end)) => self.keep_trailer(span, end),
            Ok(FieldLine::Fold { content_end, end }) => {
                let at = self.recv.consume(end);
                let line = self.recv.consumed(at, content_end);
                let trailers = self.trailers.get_or_insert_default();
                trailers.fold(line, &self.limits)
            }
            Ok(FieldLine::Empty(_)) | Err(_) => Err(rules::TRAILER),
        }
    }

    /// Stores one trailer line of `len` bytes, unless its field is forbidden in trailers.
    fn keep_trailer(&mut self, span: FieldSpan, len: usize) -> Result<(), ConnectionError> {
        let trailers = self.trailers.get_or_insert_default();
        trailers.count(len, &self.limits)?;
        let at = self.recv.consume(len);
        let line = self.recv.consumed(at, len);
        trailers.is_last_kept = !is_forbidden_trailer(&line[..span.name_len as usize]);
        if trailers.is_last_kept {
            let base = trailers.bytes.len() as u32;
            trailers.bytes.extend_from_slice(line);
            trailers.spans.push(FieldSpan {
                name: base + span.name,
                value: base + span.value,
                ..span
            });
        }
        Ok(())
    }
}
