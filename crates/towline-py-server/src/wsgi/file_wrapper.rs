//! `wsgi.file_wrapper` (PEP 3333, "Optional Platform-Specific File Handling").
use std::fs::File;
use std::os::fd::{BorrowedFd, RawFd};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use towline_io::serve::features::Payload;

use super::start_response::{Phase, Responder};

/// An iterable over the blocks of a file-like object. If the application returns it as the response, a regular
/// file is sent with `sendfile` and occupies no thread.
#[pyclass(frozen, module = "towline._native")]
pub struct FileWrapper {
    file: Py<PyAny>,
    block_bytes: usize,
}

/// A file that `sendfile` can send: a duplicated descriptor and its position.
struct RegularFile {
    file: File,
    offset: u64,
    remaining: u64,
}

impl FileWrapper {
    /// Sends the response with `sendfile`; false when this is no regular file and its blocks have to be read.
    pub fn send(&self, py: Python<'_>, responder: &Responder) -> PyResult<bool> {
        if responder.phase(py) != Phase::Started {
            return Ok(false);
        }
        let Some(regular) = regular_file(self.file.bind(py)) else {
            return Ok(false);
        };
        let length = responder.content_length(py).unwrap_or(regular.remaining);
        if length > regular.remaining {
            return Err(PyRuntimeError::new_err(format!(
                "content-length says {length}, the file has {} bytes left",
                regular.remaining
            )));
        }
        responder.send_head(py, Some(length), Payload::File)?;
        if responder.is_bodyless(py) || length == 0 {
            responder.send_end(py)?;
        } else {
            responder.send_file(py, regular.file, regular.offset, length)?;
        }
        Ok(true)
    }
}

/// Accepts unmodified files of the `io` module only: a `GzipFile` has a descriptor, too, but its content is not
/// the bytes of that file.
fn regular_file(object: &Bound<'_, PyAny>) -> Option<RegularFile> {
    let io = object.py().import("io").ok()?;
    let is_exactly = |object: &Bound<'_, PyAny>, name: &str| {
        io.getattr(name)
            .is_ok_and(|class| object.get_type().is(&class))
    };
    let is_plain = is_exactly(object, "FileIO")
        || ((is_exactly(object, "BufferedReader") || is_exactly(object, "BufferedRandom"))
            && object
                .getattr("raw")
                .is_ok_and(|raw| is_exactly(&raw, "FileIO")));
    if !is_plain {
        return None;
    }
    let offset: u64 = object.call_method0("tell").ok()?.extract().ok()?;
    let descriptor: RawFd = object.call_method0("fileno").ok()?.extract().ok()?;
    // SAFETY: `object` keeps its descriptor open until it is duplicated: no Python code runs in between.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = File::from(borrowed.try_clone_to_owned().ok()?);
    let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(RegularFile {
        file,
        offset,
        remaining: meta.len().saturating_sub(offset),
    })
}

#[pymethods]
impl FileWrapper {
    #[new]
    #[pyo3(signature = (filelike, blksize=65536, /))]
    fn new(filelike: Py<PyAny>, blksize: usize) -> Self {
        Self {
            file: filelike,
            block_bytes: blksize.max(1),
        }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let block = self
            .file
            .bind(py)
            .call_method1(pyo3::intern!(py, "read"), (self.block_bytes,))?;
        let block = block.cast_into::<PyBytes>()?;
        Ok((!block.as_bytes().is_empty()).then_some(block))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.file.bind(py).getattr_opt("close")? {
            Some(close) => close.call0().map(drop),
            None => Ok(()),
        }
    }
}
