//! The head of a response between `http.response.start` and the first body: checked and copied.
use std::ops::Range;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use towline_proto::Field;

/// One head or trailer section. Its buffers are reused for the next request.
#[derive(Debug, Default)]
pub struct PendingHead {
    pub status: u16,
    /// The `content-length` header of the application.
    pub content_length: Option<u64>,
    /// Trailers follow the body (extension http.response.trailers).
    pub trailers: bool,
    bytes: Vec<u8>,
    spans: Vec<(Range<usize>, Range<usize>)>,
}

impl PendingHead {
    pub fn clear(&mut self) {
        self.status = 0;
        self.content_length = None;
        self.trailers = false;
        self.bytes.clear();
        self.spans.clear();
    }

    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.spans.iter().map(|(name, value)| Field {
            name: &self.bytes[name.clone()],
            value: &self.bytes[value.clone()],
        })
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.spans
            .iter()
            .any(|(span, _)| self.bytes[span.clone()].eq_ignore_ascii_case(name))
    }

    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.spans.push((start..middle, middle..self.bytes.len()));
    }

    /// Adds the `headers` of an ASGI message: an iterable of pairs of byte strings.
    pub fn fill(&mut self, headers: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(list) = headers.cast::<PyList>() {
            for pair in list {
                self.fill_pair(&pair)?;
            }
        } else {
            for pair in headers.try_iter()? {
                self.fill_pair(&pair?)?;
            }
        }
        Ok(())
    }

    fn fill_pair(&mut self, pair: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(pair) = pair.cast::<PyTuple>()
            && let [name, value] = pair.as_slice()
        {
            return self.fill_field(name, value);
        }
        if let Ok(pair) = pair.cast::<PyList>()
            && pair.len() == 2
        {
            return self.fill_field(&pair.get_item(0)?, &pair.get_item(1)?);
        }
        let [name, value] = pair
            .extract::<[Bound<'_, PyAny>; 2]>()
            .map_err(|_| not_a_pair(pair))?;
        self.fill_field(&name, &value)
    }

    fn fill_field(&mut self, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = name
            .cast::<PyBytes>()
            .map_err(|_| not_bytes("name", name))?
            .as_bytes();
        let value = value
            .cast::<PyBytes>()
            .map_err(|_| not_bytes("value", value))?
            .as_bytes();
        if name.len() == 14
            && (name == b"content-length" || name.eq_ignore_ascii_case(b"content-length"))
        {
            self.content_length = Some(content_length(value)?);
        } else if name.len() == 17 && name.eq_ignore_ascii_case(b"transfer-encoding") {
            // Ignored: the server frames the body (ASGI, Response Start).
            return Ok(());
        }
        self.push(name, value);
        Ok(())
    }
}

/// `1*DIGIT` (RFC 9110 8.6).
fn content_length(value: &[u8]) -> PyResult<u64> {
    let add_digit = |sum: u64, &digit: &u8| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    };
    let length = value.iter().try_fold(0, add_digit);
    length.filter(|_| !value.is_empty()).ok_or_else(|| {
        let value = String::from_utf8_lossy(value);
        PyValueError::new_err(format!(
            "content-length {value:?} is not a number of bytes (RFC 9110 8.6)"
        ))
    })
}

fn not_a_pair(pair: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "ASGI: headers must be an iterable of [name, value] pairs, not {}",
        pair.get_type()
    ))
}

fn not_bytes(what: &str, value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "ASGI: header {what} must be a byte string, not {}",
        value.get_type()
    ))
}
