//! `wsgi.file_wrapper` (PEP 3333, "Optional Platform-Specific File Handling").
use std::fs::File;
use std::os::fd::{BorrowedFd, RawFd};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use towline_io::serve::site::Payload;

use super::responder::{Phase, Responder};

/// An iterable over the blocks of a file-like object. Returned as it is by the application, a real file is
/// sent by the kernel and pins no thread.
#[pyclass(frozen, module = "towline._native")]
pub struct FileWrapper {
    file: Py<PyAny>,
    block_bytes: usize,
}

/// Of a file that the kernel can send: an open descriptor of our own, and where it stands.
struct RealFile {
    file: File,
    offset: u64,
    left: u64,
}

impl FileWrapper {
    /// Leaves the response to the kernel; false when this is no real file, and its blocks are to be read.
    pub fn send(&self, py: Python<'_>, responder: &Responder) -> PyResult<bool> {
        if responder.phase(py) != Phase::Started {
            return Ok(false);
        }
        let Some(real) = real_file(self.file.bind(py)) else {
            return Ok(false);
        };
        let length = responder.content_length(py).unwrap_or(real.left);
        if length > real.left {
            return Err(PyRuntimeError::new_err(format!(
                "content-length says {length}, the file has {} bytes left",
                real.left
            )));
        }
        responder.send_head(py, Some(length), Payload::File)?;
        if responder.is_bodyless(py) || length == 0 {
            responder.send_end(py)?;
        } else {
            responder.send_file(py, real.file, real.offset, length)?;
        }
        Ok(true)
    }
}

/// Only a file of the `io` module, read from the disk as it is: a `GzipFile`, too, has a descriptor, but not
/// the bytes that it stands for.
fn real_file(object: &Bound<'_, PyAny>) -> Option<RealFile> {
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
    // SAFETY: the file object, which we hold, keeps its descriptor open until the copy is made: no Python
    // code runs in between.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = File::from(borrowed.try_clone_to_owned().ok()?);
    let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(RealFile {
        file,
        offset,
        left: meta.len().saturating_sub(offset),
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
