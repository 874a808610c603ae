//! `Decoder`: content codings undone, pull-based.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use towline_io::coding::decode::{DecodeError, Decoder as Chain, Step};

use crate::errors::{DecodingError, DecompressionLimit};

/// Less than this is decoded faster than the GIL is given away and had again.
const ALONE_BYTES: usize = 4096;

pub fn decoding_error(error: &DecodeError) -> PyErr {
    if error.is_limit() {
        DecompressionLimit::new_err(error.to_string())
    } else {
        DecodingError::new_err(error.to_string())
    }
}

#[pyclass(module = "towline._native")]
pub struct Decoder {
    /// `None`: no coding to undo, the bytes pass as they are.
    chain: Option<Chain>,
    max_size: Option<u64>,
    /// The piece that was fed, and how much of it is taken.
    piece: Option<PyBackedBytes>,
    taken: usize,
    passed: u64,
}

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (codings, max_size=None))]
    fn new(codings: &[u8], max_size: Option<u64>) -> PyResult<Self> {
        Ok(Self {
            chain: Chain::new(codings, max_size).map_err(|error| decoding_error(&error))?,
            max_size,
            piece: None,
            taken: 0,
            passed: 0,
        })
    }

    /// Whether anything is to be undone at all.
    #[getter]
    fn active(&self) -> bool {
        self.chain.is_some()
    }

    /// Gives the next piece; only when `read` has said that it needs one.
    fn feed(&mut self, data: PyBackedBytes) -> PyResult<()> {
        if self
            .piece
            .as_ref()
            .is_some_and(|piece| self.taken < piece.len())
        {
            let message = "feed() before the piece before it was read";
            return Err(pyo3::exceptions::PyRuntimeError::new_err(message));
        }
        self.piece = Some(data);
        self.taken = 0;
        Ok(())
    }

    /// Up to `n` decoded bytes. Nothing: it needs another piece, or the body is over.
    fn read<'py>(&mut self, py: Python<'py>, n: usize) -> PyResult<Bound<'py, PyBytes>> {
        let piece = self.piece.as_deref().unwrap_or_default();
        let rest = &piece[self.taken..];
        let Some(chain) = &mut self.chain else {
            let part = &rest[..n.min(rest.len())];
            self.passed += part.len() as u64;
            if let Some(max_size) = self.max_size.filter(|&most| self.passed > most) {
                return Err(decoding_error(&DecodeError::TooLarge { max_size }));
            }
            let part = PyBytes::new(py, part);
            self.taken += part.as_bytes().len();
            return Ok(part);
        };
        // A stream that has less to give than was asked for costs what it gives.
        let likely = rest.len().saturating_mul(8).max(ALONE_BYTES);
        let mut out = vec![0; n.min(likely)];
        let step = if rest.len() + out.len() > 2 * ALONE_BYTES {
            py.detach(|| chain.decode(rest, &mut out))
        } else {
            chain.decode(rest, &mut out)
        };
        let Step { consumed, produced } = step.map_err(|error| decoding_error(&error))?;
        self.taken += consumed;
        if self.taken == piece.len() {
            self.piece = None;
            self.taken = 0;
        }
        Ok(PyBytes::new(py, &out[..produced]))
    }

    /// The body is over and `read` gives nothing more: raises unless it was whole.
    fn finish(&self) -> PyResult<()> {
        match &self.chain {
            Some(chain) => chain.finish().map_err(|error| decoding_error(&error)),
            None => Ok(()),
        }
    }
}
