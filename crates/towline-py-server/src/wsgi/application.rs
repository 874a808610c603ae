//! The application and its configuration, shared by all threads that call it.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use pyo3::prelude::*;
use towline_io::serve::features::FeatureConfig;

use super::log::Log;
use crate::forked::Process;
use crate::options::Options;

pub struct Application {
    pub app: Py<PyAny>,
    pub options: Options,
    pub multiprocess: bool,
    pub feature_config: Arc<FeatureConfig>,
    pub log: Log,
    pub process: Process,
    /// The server has logged why an application gets no socket for a WebSocket.
    pub websocket_hint: AtomicBool,
}

impl Application {
    /// Logs once why an application cannot get the socket of a request for a WebSocket.
    #[cold]
    pub fn log_websocket_hint(&self, py: Python<'_>, is_tls: bool) {
        let need = match (is_tls, self.options.threads) {
            (true, _) => "a connection without TLS",
            (false, 1) => "--threads 2 or more",
            _ => return,
        };
        let is_enabled = self.options.ws && self.options.wsgi_websockets > 0;
        if is_enabled && !self.websocket_hint.swap(true, Relaxed) {
            let text = format!(
                "a client asked for a WebSocket, for which a WSGI application needs {need}: the request is an \
                 ordinary one"
            );
            self.log.warning(py, &text);
        }
    }

    /// Writes the lines about refused requests to the server log. Called at least once in `MAX_WAIT`, so that the
    /// number of suppressed ones is logged when it is due.
    pub fn log_refusals(&self, py: Python<'_>) {
        if let Some(refusals) = &self.feature_config.refusals
            && refusals.has_lines()
        {
            for line in refusals.take_lines(Instant::now()).0 {
                self.log.warning(py, &line);
            }
        }
    }
}

/// Arrival of a request, and the call of the application. With threads a queue lies in between.
#[derive(Clone, Copy)]
pub struct RequestTimes {
    pub received: Instant,
    pub called: Instant,
}
