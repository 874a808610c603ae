//! The settings of a client that apply to its responses.
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::collector::BodyLimits;

/// Shared by a client and its responses.
#[derive(Debug)]
pub struct ResponseConfig {
    /// The subclass of `ResponseCore` to create.
    pub response: Py<PyType>,
    pub default_encoding: String,
    /// `None`: `json.loads`.
    pub json_loads: Option<Py<PyAny>>,
    /// `None`: `json.dumps` in its compact form.
    pub json_dumps: Option<Py<PyAny>>,
    pub follow_redirects: bool,
    pub retry_statuses: Vec<u16>,
    pub max_response_size: Option<u64>,
    pub max_decompressed_size: Option<u64>,
}

impl ResponseConfig {
    /// The limits of a body that is buffered and decoded.
    pub fn limits(&self) -> BodyLimits {
        BodyLimits {
            max_response_size: self.max_response_size,
            max_decompressed_size: self.max_decompressed_size,
            raw: false,
        }
    }
}
