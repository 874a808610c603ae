//! `wsgi.input` and `wsgi.errors` (PEP 3333, "Input and Error Streams").
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};
use towline_proto::Read;

use super::request_io::{SharedDesk, wait_until};
use crate::errors::client_disconnected;

/// Taken from the connection at once: what `Limits` lets it hold.
const CHUNK_BYTES: usize = 64 * 1024;

/// The body of one request: what has arrived, then, pulled as it is read, what is still to come.
/// Reading past a truncated body raises `ClientDisconnected`; it is never a normal end.
#[pyclass(frozen, module = "towline._native")]
pub struct InputStream {
    body: Mutex<Body>,
}

struct Body {
    buffer: Vec<u8>,
    taken: usize,
    rest: Rest,
}

enum Rest {
    Ended,
    /// On the connection, while this exchange sits at the desk.
    Coming {
        desk: SharedDesk,
        serial: u64,
    },
    Broken,
}

impl InputStream {
    /// A body that has arrived completely; for no body at all, one such object serves every request.
    pub fn complete(body: Vec<u8>) -> Self {
        Self::with(body, Rest::Ended)
    }

    pub fn coming(body: Vec<u8>, desk: SharedDesk, serial: u64) -> Self {
        Self::with(body, Rest::Coming { desk, serial })
    }

    fn with(buffer: Vec<u8>, rest: Rest) -> Self {
        Self {
            body: Mutex::new(Body {
                buffer,
                taken: 0,
                rest,
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

    /// Waits for more of the body; false at its end.
    fn fetch(&mut self, py: Python<'_>) -> PyResult<bool> {
        let (desk, serial) = match &self.rest {
            Rest::Ended => return Ok(false),
            Rest::Broken => return Err(client_disconnected()),
            Rest::Coming { desk, serial } => (desk.clone(), *serial),
        };
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let buffer = &mut self.buffer;
        let fetched = wait_until(py, &desk, serial, |desk| {
            let mut stream = desk.stream(serial)?;
            match stream.read(CHUNK_BYTES) {
                Read::Data(bytes) => {
                    buffer.extend_from_slice(bytes);
                    desk.send_credit();
                    Some(Ok(true))
                }
                Read::End => Some(Ok(false)),
                Read::Failed => Some(Err(client_disconnected())),
                Read::Pending => None,
            }
        });
        match fetched {
            Ok(Ok(true)) => Ok(true),
            Ok(Ok(false)) => {
                self.rest = Rest::Ended;
                Ok(false)
            }
            Ok(Err(error)) | Err(error) => {
                if error.is_instance_of::<crate::errors::ClientDisconnected>(py) {
                    self.rest = Rest::Broken;
                }
                Err(error)
            }
        }
    }

    /// Makes `wanted` bytes unread, or all there are.
    fn gather(&mut self, py: Python<'_>, wanted: usize) -> PyResult<()> {
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

/// None and negative sizes mean all of it, as in `io`.
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
        body.gather(py, bound(size))?;
        Ok(body.take(py, bound(size)))
    }

    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.body(py).line(py, bound(size))
    }

    #[pyo3(signature = (hint=None, /))]
    fn readlines<'py>(&self, py: Python<'py>, hint: Option<isize>) -> PyResult<Bound<'py, PyList>> {
        // As in `io`: a hint of 0 is no hint.
        let enough = if hint == Some(0) {
            usize::MAX
        } else {
            bound(hint)
        };
        let lines = PyList::empty(py);
        let mut read = 0;
        while read < enough {
            let line = self.body(py).line(py, usize::MAX)?;
            if line.as_bytes().is_empty() {
                break;
            }
            read += line.as_bytes().len();
            lines.append(line)?;
        }
        Ok(lines)
    }

    /// Fills the buffer, unless the body ends first; how many bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let cells = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        let bytes = {
            let mut body = self.body(py);
            body.gather(py, cells.len()?)?;
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

    /// PEP 3333: the server closes it, not the application; frameworks call it all the same.
    #[allow(clippy::unused_self)] // a method of the stream, as Python sees it
    fn close(&self) {}
}

/// `wsgi.errors`: whole lines go to the server's log.
#[pyclass(frozen, module = "towline._native")]
pub struct ErrorStream {
    line: Mutex<String>,
    log: super::log::Log,
}

/// A line that never ends is logged in pieces of this size.
const LONGEST_LINE_BYTES: usize = 64 * 1024;

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
            if line.len() > LONGEST_LINE_BYTES {
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
