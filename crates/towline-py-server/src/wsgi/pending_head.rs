//! The response head that an application passes to `start_response`, checked and converted to bytes.
use std::ops::Range;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use towline_proto::{Field, is_token_bytes, is_value_bytes, parse_length};

use super::text::append_bytes;

/// One head. Its buffers are reused for the next request.
#[derive(Default)]
pub struct PendingHead {
    pub status: u16,
    pub content_length: Option<u64>,
    bytes: Vec<u8>,
    reason: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

impl PendingHead {
    pub fn reason(&self) -> &[u8] {
        &self.bytes[self.reason.clone()]
    }

    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.fields.iter().map(|(name, value)| Field {
            name: &self.bytes[name.clone()],
            value: &self.bytes[value.clone()],
        })
    }

    /// Replaces the head by `status` ("200 OK") and `headers` (a list of pairs of native strings).
    pub fn fill(
        &mut self,
        status: &Bound<'_, PyString>,
        headers: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        self.content_length = None;
        self.bytes.clear();
        self.fields.clear();
        self.fill_status(status)?;
        for pair in headers {
            let pair = pair.cast_into::<PyTuple>().map_err(|_| not_a_pair())?;
            self.push_field(&pair)?;
        }
        Ok(())
    }

    /// Replaces the head by that of an interim response, which has no reason phrase.
    pub fn fill_interim(&mut self, status: u16, headers: &Bound<'_, PyAny>) -> PyResult<()> {
        self.content_length = None;
        self.bytes.clear();
        self.fields.clear();
        self.reason = 0..0;
        self.status = status;
        for pair in headers.try_iter()? {
            self.push_field(pair?.cast::<PyTuple>().map_err(|_| not_a_pair())?)?;
        }
        Ok(())
    }

    /// Replaces the head by that of a plain-text response of the server.
    pub fn fill_plain(&mut self, status: u16) {
        self.content_length = None;
        self.bytes.clear();
        self.fields.clear();
        self.reason = 0..0;
        self.status = status;
        self.bytes
            .extend_from_slice(b"content-typetext/plain; charset=utf-8");
        self.fields.push((0..12, 12..self.bytes.len()));
    }

    /// Three digits, a space, the reason phrase (PEP 3333, RFC 9112 4).
    fn fill_status(&mut self, status: &Bound<'_, PyString>) -> PyResult<()> {
        append_bytes(&mut self.bytes, status, "status")?;
        let code = match self.bytes.as_slice() {
            [a, b, c] | [a, b, c, b' ', ..] if [a, b, c].iter().all(|d| d.is_ascii_digit()) => {
                [a, b, c]
                    .iter()
                    .fold(0, |code, digit| code * 10 + u16::from(**digit - b'0'))
            }
            _ => 0,
        };
        if !(200..=999).contains(&code) || !is_value_bytes(&self.bytes) {
            return Err(PyValueError::new_err(format!(
                "status {status} is not of the form \"200 OK\""
            )));
        }
        self.status = code;
        self.reason = self.bytes.len().min(4)..self.bytes.len();
        Ok(())
    }

    fn push_field(&mut self, pair: &Bound<'_, PyTuple>) -> PyResult<()> {
        let [name, value] = pair.as_slice() else {
            return Err(not_a_pair());
        };
        let (Ok(name), Ok(value)) = (name.cast::<PyString>(), value.cast::<PyString>()) else {
            return Err(not_a_pair());
        };
        let start = self.bytes.len();
        append_bytes(&mut self.bytes, name, "header name")?;
        let middle = self.bytes.len();
        append_bytes(&mut self.bytes, value, "header value")?;
        self.check_field(start, middle)
    }

    /// An application's connection options: only `close` counts.
    fn push_close(&mut self) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(b"connectionclose");
        let middle = start + b"connection".len();
        self.fields.push((start..middle, middle..self.bytes.len()));
    }

    fn check_field(&mut self, start: usize, middle: usize) -> PyResult<()> {
        let (name, value) = (&self.bytes[start..middle], &self.bytes[middle..]);
        if !is_token_bytes(name) {
            return Err(invalid("name", name, "is not a token (RFC 9110 5.6.2)"));
        }
        if !is_value_bytes(value) {
            return Err(invalid(
                "value",
                value,
                "has a control character (RFC 9110 5.5)",
            ));
        }
        if is_hop_by_hop(name) {
            let closes = name.eq_ignore_ascii_case(b"connection")
                && value
                    .split(|&b| b == b',')
                    .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
            self.bytes.truncate(start);
            if closes {
                self.push_close();
            }
            return Ok(());
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            // The protocol core writes it, from the size of the body.
            let length =
                parse_length(value).ok_or_else(|| invalid("value", value, "is not a length"))?;
            if self.content_length.is_some_and(|other| other != length) {
                return Err(PyValueError::new_err(
                    "two different content-length headers",
                ));
            }
            self.content_length = Some(length);
            self.bytes.truncate(start);
        } else {
            let end = self.bytes.len();
            self.fields.push((start..middle, middle..end));
        }
        Ok(())
    }
}

fn not_a_pair() -> PyErr {
    PyTypeError::new_err("headers must be a list of (name, value) tuples of str (PEP 3333)")
}

fn invalid(part: &str, text: &[u8], why: &str) -> PyErr {
    PyValueError::new_err(format!(
        "header {part} {:?} {why}",
        String::from_utf8_lossy(text)
    ))
}

/// The list of `wsgiref.util.is_hop_by_hop`. An application that uses one is in error (PEP 3333), but many do; the
/// server decides about the connection, as in Gunicorn.
fn is_hop_by_hop(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 9] = [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"trailers",
        b"transfer-encoding",
        b"upgrade",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}
