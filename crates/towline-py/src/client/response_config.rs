//! What a client has decided about all its responses.
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::collector::BodyLimits;

/// Shared by a client core and the responses it makes.
#[derive(Debug)]
pub struct ResponseConfig {
    /// The subclass of `ResponseCore` that is made.
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
    /// Of a body that is read whole and decoded.
    pub fn bounds(&self) -> BodyLimits {
        BodyLimits {
            max_response_size: self.max_response_size,
            max_decompressed_size: self.max_decompressed_size,
            raw: false,
        }
    }
}
