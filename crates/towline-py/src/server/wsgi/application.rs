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

/// Arrival of a request, and the call of the application. With threads a queue lies in between.
#[derive(Clone, Copy)]
pub struct RequestTimes {
    pub received: Instant,
    pub called: Instant,
}
