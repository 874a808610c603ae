//! Request bodies that are sent piece by piece, on the thread that makes the call and then reads the response.
use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use towline_io::client::{BlockingCall, FillOutcome, ReadOutcome, WriteOutcome};

use super::super::request::shared_bytes;
use super::wait::{detached, to_error};

/// Size of one read of a file object that is not a regular file.
const READ_BYTES: usize = 64 * 1024;

/// The source of the pieces.
enum Pieces {
    Reader(Py<PyAny>),
    Iterator(Py<PyIterator>),
}

impl Pieces {
    fn of(body: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = body.py();
        if let Some(read) = body.getattr_opt(intern!(py, "read"))? {
            return Ok(Self::Reader(read.unbind()));
        }
        let iterator = body.try_iter().map_err(|_| {
            PyTypeError::new_err("body: expected bytes, an iterable of bytes or a binary file")
        })?;
        Ok(Self::Iterator(iterator.unbind()))
    }

    /// Returns `None` at the end. Skips empty pieces, which would end a chunked body.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Bytes>> {
        loop {
            let (piece, ends_when_empty) = match self {
                Self::Reader(read) => (read.bind(py).call1((READ_BYTES,))?, true),
                Self::Iterator(iterator) => match iterator.bind(py).clone().next() {
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

/// The rest of a request body, sent while the response is read.
pub struct Upload {
    pieces: Pieces,
    /// The last read returned bytes without sending a piece: the next one sends first, so that a response that never
    /// pauses does not hold up the request.
    is_due: bool,
}

impl Upload {
    /// Sends the body until the head of the response is here. Returns the rest, if the server still wants it.
    pub fn start(call: &mut BlockingCall, body: &Bound<'_, PyAny>) -> PyResult<Option<Box<Self>>> {
        let py = body.py();
        let pieces = Pieces::of(body)?;
        let is_due = false;
        let upload = Box::new(Self { pieces, is_due });
        while let Some(piece) = upload.pieces.next(py)? {
            if detached(py, |wait| call.write(piece, wait))? == WriteOutcome::Responded {
                return Ok(Some(upload));
            }
        }
        detached(py, |wait| call.finish(&[], wait))?;
        Ok(None)
    }

    /// Sends the next piece, or the end.
    fn send_next(&mut self, py: Python<'_>, call: &mut BlockingCall) -> PyResult<()> {
        self.is_due = false;
        match self.pieces.next(py)? {
            Some(piece) => py
                .detach(|| call.queue(piece))
                .map_err(|ended| to_error(py, &ended)),
            None => detached(py, |wait| call.finish(&[], wait)),
        }
    }
}

impl Drop for Upload {
    /// Closes a generator, so that it cleans up now and not when it is collected.
    fn drop(&mut self) {
        let Pieces::Iterator(iterator) = &self.pieces else {
            return;
        };
        Python::attach(|py| {
            let iterator = iterator.bind(py);
            let close = iterator.getattr_opt(intern!(py, "close"));
            if let Err(error) = close.and_then(|close| close.map(|close| close.call0()).transpose())
            {
                error.write_unraisable(py, Some(iterator));
            }
        });
    }
}

/// Passes at most `max_bytes` of the response body to `sink`, waiting for them if necessary, and continues the request
/// body meanwhile. Returns `None` when the response has been read and the request sent.
pub fn read_on<T>(
    py: Python<'_>,
    call: &mut BlockingCall,
    upload: &mut Option<Box<Upload>>,
    max_bytes: usize,
    sink: impl FnOnce(&[u8]) -> T,
) -> PyResult<Option<T>> {
    if let Some(upload) = upload
        && upload.is_due
        && py.detach(|| call.is_writable())
    {
        upload.send_next(py, call)?;
    }
    let mut sink = Some(sink);
    loop {
        match call.take(max_bytes, |data| sink.take().map(|sink| sink(data))) {
            Ok(ReadOutcome::Data(value)) => {
                if let Some(upload) = upload {
                    upload.is_due = true;
                }
                return Ok(value);
            }
            Ok(ReadOutcome::End) => {
                *upload = None;
                return Ok(None);
            }
            Ok(ReadOutcome::Pending) => {}
            Err(ended) => return Err(to_error(py, &ended)),
        }
        let outcome = detached(py, |wait| call.fill(wait))?;
        if let (FillOutcome::Writable, Some(upload)) = (outcome, upload.as_mut()) {
            upload.send_next(py, call)?;
        }
    }
}
