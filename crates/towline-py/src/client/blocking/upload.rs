//! Bodies that the program writes while the request is under way.
use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use towline_io::client::{BlockingCall, Written};

use super::super::request::shared_bytes;
use super::wait::detached;

/// One read of a file that is not on a disk.
const READ_BYTES: usize = 64 * 1024;

/// What gives the pieces.
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
            PyTypeError::new_err("body: bytes, an iterable of bytes or a binary file is needed")
        })
    }

    /// `None` at the end. Empty pieces are skipped: they would end a chunked body.
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

/// Writes the whole body, unless the server answers before it has ended.
pub fn upload(call: &mut BlockingCall, body: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = body.py();
    let mut pieces = Pieces::of(body)?;
    while let Some(piece) = pieces.next()? {
        match detached(py, |patience| call.write(piece, patience))? {
            Written::Taken => {}
            Written::Answered => return Ok(()),
        }
    }
    detached(py, |patience| call.finish(&[], patience))
}
