//! Bounds of responses that the client reads more slowly than the application writes.
use std::time::Duration;

use crate::options::Options;

#[derive(Clone, Copy)]
pub struct ResponseBounds {
    /// `--wsgi-response-buffer`: bytes in the temporary file of a response.
    pub buffer_bytes: u64,
    /// `--timeout-wsgi-client`, for the time that other requests have waited for this client.
    pub client_timeout: Duration,
}

impl ResponseBounds {
    pub fn new(options: &Options) -> Self {
        Self {
            buffer_bytes: options.wsgi_response_buffer,
            client_timeout: options.timeout_wsgi_client.0,
        }
    }
}
