//! Request bodies that are sent piece by piece.
use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use towline_io::client::{BlockingCall, WriteOutcome};

use super::super::request::shared_bytes;
use super::wait::detached;

/// Size of one read of a file object that is not a regular file.
const READ_BYTES: usize = 64 * 1024;

/// The source of the pieces.
enum Pieces<'py> {
    Reader(Bound<'py, PyAny>),
    Iterator(Bound<'py, PyIterator>),
}

impl<'py> Pieces<'py> {
    fn of(body: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = body.py();
        if let Some(read) = body.getattr_opt(intern!(py, "read"))? {
            return Ok(Self::Reader(read));
        }
        body.try_iter().map(Self::Iterator).map_err(|_| {
            PyTypeError::new_err("body: expected bytes, an iterable of bytes or a binary file")
        })
    }

    /// Returns `None` at the end. Skips empty pieces, which would end a chunked body.
    fn next(&mut self) -> PyResult<Option<Bytes>> {
        loop {
            let (piece, ends_when_empty) = match self {
                Self::Reader(read) => (read.call1((READ_BYTES,))?, true),
                Self::Iterator(iterator) => match iterator.next() {
                    None => return Ok(None),
                    Some(piece) => (piece?, false),
                },
            };
            let piece = match piece.cast::<PyBytes>() {
                Ok(bytes) => shared_bytes(bytes),
                Err(_) => Bytes::from(piece.extract::<Vec<u8>>()?),
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
            if ends_when_empty {
                return Ok(None);
            }
        }
    }
}

/// Sends the body, until its end or until the server responds.
pub fn upload(call: &mut BlockingCall, body: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = body.py();
    let mut pieces = Pieces::of(body)?;
    while let Some(piece) = pieces.next()? {
        match detached(py, |wait| call.write(piece, wait))? {
            WriteOutcome::Continue => {}
            WriteOutcome::Responded => return Ok(()),
        }
    }
    detached(py, |wait| call.finish(&[], wait))
}
