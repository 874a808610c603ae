//! Collects a response body into one bytes object.
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::coding::decode::{DecodeError, Decoder};

use super::errors;
use super::head::Head;
use crate::bodies::malloc_hint;

/// Size limits of a body, in bytes. `None`: unlimited.
#[derive(Debug, Clone, Copy, Default)]
pub struct BodyLimits {
    pub max_response_size: Option<u64>,
    pub max_decompressed_size: Option<u64>,
    /// Do not decode the Content-Encoding.
    pub raw: bool,
}

/// A failure to collect a body, other than a failure of its connection.
#[derive(Debug)]
pub enum BodyError {
    TooLarge(u64),
    Decode(DecodeError),
    OutOfMemory,
}

impl BodyError {
    pub fn to_error(&self) -> PyErr {
        match self {
            Self::TooLarge(max_bytes) => errors::too_large(*max_bytes),
            Self::Decode(error) => crate::bodies::decoder::decoding_error(error),
            Self::OutOfMemory => pyo3::exceptions::PyMemoryError::new_err("no memory for the body"),
        }
    }
}

impl From<DecodeError> for BodyError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// Bodies with a Content-Length up to this are allocated at once: the system provides pages as they are written.
const MAX_PREALLOCATED_BYTES: u64 = 256 * 1024 * 1024;

/// Decodes and collects the pieces of one body.
pub struct Collector {
    buffer: Buffer,
    decoder: Option<Box<Decoder>>,
    max_bytes: Option<u64>,
    received: u64,
}

enum Buffer {
    /// No data yet; the value of Content-Length.
    Expected(usize),
    /// Filled up to an index. No other reference to the object exists before it is full.
    Exact(Py<PyBytes>, usize),
    Growing(Vec<u8>),
}

impl Collector {
    pub fn new(head: &Head, limits: BodyLimits) -> Result<Self, BodyError> {
        let length = head.flags.content_length;
        let coded = head.flags.has_coding && !limits.raw;
        let codings = coded.then(|| head.joined(b"content-encoding")).flatten();
        let decoder = match codings {
            Some(codings) => Decoder::new(&codings, limits.max_decompressed_size)?,
            None => None,
        };
        let exact = length.filter(|&length| decoder.is_none() && length <= MAX_PREALLOCATED_BYTES);
        Ok(Self {
            buffer: match exact {
                Some(length) => Buffer::Expected(length as usize),
                None => Buffer::Growing(Vec::new()),
            },
            decoder: decoder.map(Box::new),
            max_bytes: limits.max_response_size,
            received: 0,
        })
    }

    pub fn push(&mut self, py: Python<'_>, data: &[u8]) -> Result<(), BodyError> {
        self.received += data.len() as u64;
        if let Some(max_bytes) = self
            .max_bytes
            .filter(|&max_bytes| self.received > max_bytes)
        {
            return Err(BodyError::TooLarge(max_bytes));
        }
        if let Buffer::Expected(length) = self.buffer {
            self.buffer = if data.len() == length {
                Buffer::Exact(PyBytes::new(py, data).unbind(), length)
            } else {
                Buffer::Exact(allocate(py, length)?, 0)
            };
            if data.len() == length {
                return Ok(());
            }
        }
        match &mut self.buffer {
            Buffer::Expected(_) => {}
            Buffer::Exact(bytes, filled) => fill(py, bytes, filled, data),
            Buffer::Growing(buffer) => match &mut self.decoder {
                Some(decoder) => decoder.decode_to_end(data, buffer)?,
                None => buffer.extend_from_slice(data),
            },
        }
        Ok(())
    }

    pub fn finish(self, py: Python<'_>) -> Result<Py<PyBytes>, BodyError> {
        if let Some(decoder) = &self.decoder {
            decoder.finish()?;
        }
        Ok(match self.buffer {
            Buffer::Exact(bytes, filled) if filled == bytes.as_bytes(py).len() => bytes,
            // Fewer bytes than Content-Length: a response to HEAD, or 304.
            Buffer::Exact(bytes, filled) => {
                PyBytes::new(py, &bytes.as_bytes(py)[..filled]).unbind()
            }
            Buffer::Expected(_) => PyBytes::new(py, b"").unbind(),
            Buffer::Growing(buffer) => PyBytes::new(py, &buffer).unbind(),
        })
    }
}

/// Returns a bytes object with uninitialised content.
fn allocate(py: Python<'_>, length: usize) -> Result<Py<PyBytes>, BodyError> {
    malloc_hint::before_allocation(length);
    // SAFETY: returns an object of that length, or NULL with an exception set, which is fetched.
    let bytes = unsafe {
        let bytes = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length.cast_signed());
        Bound::from_owned_ptr_or_err(py, bytes)
    };
    let bytes = bytes.map_err(|_| BodyError::OutOfMemory)?;
    // SAFETY: created as bytes above.
    Ok(unsafe { bytes.cast_into_unchecked::<PyBytes>() }.unbind())
}

/// Appends at index `filled`. The wire core delivers at most as many bytes as Content-Length announces.
fn fill(py: Python<'_>, bytes: &Py<PyBytes>, filled: &mut usize, data: &[u8]) {
    let room = bytes.as_bytes(py).len() - *filled;
    let count = data.len().min(room);
    // SAFETY: `count` bytes fit after `filled`, and no other reference to the object exists.
    unsafe {
        let start = ffi::PyBytes_AsString(bytes.as_ptr())
            .cast::<u8>()
            .add(*filled);
        std::ptr::copy_nonoverlapping(data.as_ptr(), start, count);
    }
    *filled += count;
}
