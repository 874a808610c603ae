//! `Decoder`: decodes content codings on demand.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use towline_io::coding::decode::{DecodeError, Decoder as Chain, Step};

use towline_py_common::errors::{DecodingError, DecompressionLimit};

/// Up to this size decoding takes less time than releasing and acquiring the GIL.
const GIL_HELD_BYTES: usize = 4096;

pub fn decoding_error(error: &DecodeError) -> PyErr {
    if error.is_limit() {
        DecompressionLimit::new_err(error.to_string())
    } else {
        DecodingError::new_err(error.to_string())
    }
}

#[pyclass(module = "towline._native")]
pub struct Decoder {
    /// `None`: no coding; bytes pass unchanged.
    chain: Option<Chain>,
    max_size: Option<u64>,
    /// The piece that was fed, and how much of it has been consumed.
    piece: Option<PyBackedBytes>,
    consumed: usize,
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
            consumed: 0,
            passed: 0,
        })
    }

    /// Whether there is a coding to decode.
    #[getter]
    fn active(&self) -> bool {
        self.chain.is_some()
    }

    /// Feeds the next piece. Allowed only after `read` has returned nothing.
    fn feed(&mut self, data: PyBackedBytes) -> PyResult<()> {
        if self
            .piece
            .as_ref()
            .is_some_and(|piece| self.consumed < piece.len())
        {
            let message = "feed() called before the previous piece was read";
            return Err(pyo3::exceptions::PyRuntimeError::new_err(message));
        }
        self.piece = Some(data);
        self.consumed = 0;
        Ok(())
    }

    /// Returns up to `n` decoded bytes; none if it needs another piece, or the body has ended.
    fn read<'py>(&mut self, py: Python<'py>, n: usize) -> PyResult<Bound<'py, PyBytes>> {
        let piece = self.piece.as_deref().unwrap_or_default();
        let rest = &piece[self.consumed..];
        let Some(chain) = &mut self.chain else {
            let part = &rest[..n.min(rest.len())];
            self.passed += part.len() as u64;
            if let Some(max_size) = self.max_size.filter(|&most| self.passed > most) {
                return Err(decoding_error(&DecodeError::TooLarge { max_size }));
            }
            let part = PyBytes::new(py, part);
            self.consumed += part.as_bytes().len();
            return Ok(part);
        };
        // Allocate what the input can yield, not the requested size.
        let likely = rest.len().saturating_mul(8).max(GIL_HELD_BYTES);
        let mut out = vec![0; n.min(likely)];
        let step = if rest.len() + out.len() > 2 * GIL_HELD_BYTES {
            py.detach(|| chain.decode(rest, &mut out))
        } else {
            chain.decode(rest, &mut out)
        };
        let Step { consumed, produced } = step.map_err(|error| decoding_error(&error))?;
        self.consumed += consumed;
        if self.consumed == piece.len() {
            self.piece = None;
            self.consumed = 0;
        }
        Ok(PyBytes::new(py, &out[..produced]))
    }

    /// To be called at the end of the body: raises `DecodingError` if it is incomplete.
    fn finish(&self) -> PyResult<()> {
        match &self.chain {
            Some(chain) => chain.finish().map_err(|error| decoding_error(&error)),
            None => Ok(()),
        }
    }
}
