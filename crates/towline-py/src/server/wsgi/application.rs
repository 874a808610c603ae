//! The application and its configuration, shared by all threads that call it.
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use towline_io::serve::features::FeatureConfig;

use super::log::Log;
use crate::server::options::Options;

pub struct Application {
    pub app: Py<PyAny>,
    pub options: Options,
    pub multiprocess: bool,
    pub feature_config: Arc<FeatureConfig>,
    pub log: Log,
}

impl Application {
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
