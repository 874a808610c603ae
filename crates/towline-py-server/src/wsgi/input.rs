//! `wsgi.input` and `wsgi.errors` (PEP 3333, "Input and Error Streams").
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};
use towline_io::Spool;
use towline_io::serve::features::request_body::{BodyDecoder, BodyRead};
use towline_proto::StreamRead;

use super::request_io::{SharedRequestIo, wait_until};
use towline_py_common::errors::{ClientDisconnected, client_disconnected};

/// Taken from the connection at once: as much as `Limits` lets it buffer.
const CHUNK_BYTES: usize = 64 * 1024;

/// The body of one request: the part that has arrived, in memory and in a temporary file, then the rest,
/// received as it is read. Reading past a
/// truncated body raises `ClientDisconnected`; it never looks like a normal end.
#[pyclass(frozen, module = "towline._native")]
pub struct InputStream {
    body: Mutex<Body>,
}

struct Body {
    buffer: Vec<u8>,
    taken: usize,
    /// Follows the buffer.
    spooled: Option<Box<SpoolReader>>,
    remaining: Remaining,
}

/// The part of a body in a temporary file, and the position in it.
struct SpoolReader {
    spool: Box<Spool>,
    offset: u64,
}

enum Remaining {
    Nothing,
    /// On the connection, while `serial` is the current exchange of `request_io`.
    OnConnection {
        request_io: SharedRequestIo,
        serial: u64,
        decoder: Option<Box<BodyDecoder>>,
    },
    Truncated,
}

impl InputStream {
    /// A body that has arrived completely. One empty object serves all requests without a body.
    pub fn complete(body: Vec<u8>, spool: Option<Box<Spool>>) -> Self {
        Self::new(body, spool, Remaining::Nothing)
    }

    pub fn incoming(
        body: Vec<u8>,
        spool: Option<Box<Spool>>,
        (request_io, serial): (SharedRequestIo, u64),
        decoder: Option<Box<BodyDecoder>>,
    ) -> Self {
        let remaining = Remaining::OnConnection {
            request_io,
            serial,
            decoder,
        };
        Self::new(body, spool, remaining)
    }

    fn new(buffer: Vec<u8>, spool: Option<Box<Spool>>, remaining: Remaining) -> Self {
        let spooled = spool.map(|spool| Box::new(SpoolReader { spool, offset: 0 }));
        Self {
            body: Mutex::new(Body {
                buffer,
                taken: 0,
                spooled,
                remaining,
            }),
        }
    }

    fn body(&self, py: Python<'_>) -> MutexGuard<'_, Body> {
        self.body
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body {
    fn unread(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Reads more from the temporary file; false at its end.
    fn fetch_spooled(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Some(reader) = &mut self.spooled else {
            return Ok(false);
        };
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let filled = self.buffer.len();
        self.buffer.resize(filled + CHUNK_BYTES, 0);
        let space = &mut self.buffer[filled..];
        let read = py.detach(|| reader.spool.read_at(space, reader.offset));
        let n = *read.as_ref().unwrap_or(&0);
        self.buffer.truncate(filled + n);
        reader.offset += n as u64;
        if read? == 0 {
            self.spooled = None;
        }
        Ok(n > 0)
    }

    /// Waits for more of the body; false at its end.
    fn fetch(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.fetch_spooled(py)? {
            return Ok(true);
        }
        let (request_io, serial, decoder) = match &mut self.remaining {
            Remaining::Nothing => return Ok(false),
            Remaining::Truncated => return Err(client_disconnected()),
            Remaining::OnConnection {
                request_io,
                serial,
                decoder,
            } => (request_io.clone(), *serial, decoder),
        };
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let buffer = &mut self.buffer;
        let fetched = wait_until(py, &request_io, serial, |request_io| {
            let mut stream = request_io.stream(serial)?;
            if let Some(decoder) = decoder {
                let before = buffer.len();
                let read = decoder.read(&mut stream, buffer, CHUNK_BYTES);
                request_io.flush_window_updates();
                return match read {
                    Ok(BodyRead::Pending) => None,
                    Ok(BodyRead::Failed) => Some(Err(client_disconnected())),
                    Ok(BodyRead::End) if buffer.len() == before => Some(Ok(false)),
                    Ok(BodyRead::Data | BodyRead::End) => Some(Ok(true)),
                    Err(why) => {
                        request_io.refusal = Some((serial, Box::new(decoder.refusal(why))));
                        Some(Err(ClientDisconnected::new_err(why.refused.rule)))
                    }
                };
            }
            match stream.read(CHUNK_BYTES) {
                StreamRead::Data(bytes) => {
                    buffer.extend_from_slice(bytes);
                    request_io.flush_window_updates();
                    Some(Ok(true))
                }
                StreamRead::End => Some(Ok(false)),
                StreamRead::Failed => Some(Err(client_disconnected())),
                StreamRead::Pending => None,
            }
        });
        match fetched {
            Ok(Ok(true)) => Ok(true),
            Ok(Ok(false)) => {
                self.remaining = Remaining::Nothing;
                Ok(false)
            }
            Ok(Err(error)) | Err(error) => {
                if error.is_instance_of::<ClientDisconnected>(py) {
                    self.remaining = Remaining::Truncated;
                }
                Err(error)
            }
        }
    }

    /// Waits until `wanted` bytes, or the whole body, can be taken.
    fn fetch_at_least(&mut self, py: Python<'_>, wanted: usize) -> PyResult<()> {
        while self.unread().len() < wanted && self.fetch(py)? {}
        Ok(())
    }

    fn take<'py>(&mut self, py: Python<'py>, at_most: usize) -> Bound<'py, PyBytes> {
        let size = self.unread().len().min(at_most);
        let bytes = PyBytes::new(py, &self.unread()[..size]);
        self.taken += size;
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        }
        bytes
    }

    fn line<'py>(&mut self, py: Python<'py>, at_most: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut searched = 0;
        loop {
            let unread = self.unread();
            if let Some(end) = unread[searched..].iter().position(|&byte| byte == b'\n') {
                let size = (searched + end + 1).min(at_most);
                return Ok(self.take(py, size));
            }
            searched = unread.len();
            if searched >= at_most || !self.fetch(py)? {
                return Ok(self.take(py, at_most));
            }
        }
    }
}

/// `None` and negative sizes mean the whole body, as in `io`.
fn bound(size: Option<isize>) -> usize {
    size.map_or(usize::MAX, |size| {
        usize::try_from(size).unwrap_or(usize::MAX)
    })
}

#[pymethods]
impl InputStream {
    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        let mut body = self.body(py);
        body.fetch_at_least(py, bound(size))?;
        Ok(body.take(py, bound(size)))
    }

    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.body(py).line(py, bound(size))
    }

    #[pyo3(signature = (hint=None, /))]
    fn readlines<'py>(&self, py: Python<'py>, hint: Option<isize>) -> PyResult<Bound<'py, PyList>> {
        // As in `io`: a hint of 0 is no hint.
        let limit = if hint == Some(0) {
            usize::MAX
        } else {
            bound(hint)
        };
        let lines = PyList::empty(py);
        let mut read = 0;
        while read < limit {
            let line = self.body(py).line(py, usize::MAX)?;
            if line.as_bytes().is_empty() {
                break;
            }
            read += line.as_bytes().len();
            lines.append(line)?;
        }
        Ok(lines)
    }

    /// Fills the buffer, unless the body ends first; returns the number of bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let cells = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        let bytes = {
            let mut body = self.body(py);
            body.fetch_at_least(py, cells.len()?)?;
            body.take(py, cells.len()?)
        };
        let size = bytes.as_bytes().len();
        cells.set_item(PySlice::new(py, 0, size.cast_signed(), 1), bytes)?;
        Ok(size)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let line = self.body(py).line(py, usize::MAX)?;
        Ok((!line.as_bytes().is_empty()).then_some(line))
    }

    /// Does nothing: the server closes the stream (PEP 3333), but some frameworks call this.
    #[allow(clippy::unused_self)] // a method of the stream, as Python sees it
    fn close(&self) {}
}

/// `wsgi.errors`: whole lines go to the server's log.
#[pyclass(frozen, module = "towline._native")]
pub struct ErrorStream {
    line: Mutex<String>,
    log: super::log::Log,
}

/// A longer line is logged in pieces.
const MAX_LINE_BYTES: usize = 64 * 1024;

impl ErrorStream {
    pub fn new(log: super::log::Log) -> Self {
        Self {
            line: Mutex::default(),
            log,
        }
    }
}

#[pymethods]
impl ErrorStream {
    fn write(&self, py: Python<'_>, text: &str) -> usize {
        let mut ready = Vec::new();
        {
            let mut line = self
                .line
                .lock_py_attached(py)
                .unwrap_or_else(PoisonError::into_inner);
            line.push_str(text);
            while let Some(end) = line.find('\n') {
                let rest = line.split_off(end + 1);
                ready.push(std::mem::replace(&mut *line, rest));
            }
            if line.len() > MAX_LINE_BYTES {
                ready.push(std::mem::take(&mut *line));
            }
        }
        for line in ready {
            self.log.error(py, line.trim_end_matches('\n'), None);
        }
        text.chars().count()
    }

    fn writelines(&self, py: Python<'_>, lines: &Bound<'_, PyAny>) -> PyResult<()> {
        for line in lines.try_iter()? {
            self.write(py, line?.extract::<&str>()?);
        }
        Ok(())
    }

    fn flush(&self, py: Python<'_>) {
        let line = std::mem::take(
            &mut *self
                .line
                .lock_py_attached(py)
                .unwrap_or_else(PoisonError::into_inner),
        );
        if !line.is_empty() {
            self.log.error(py, &line, None);
        }
    }
}
