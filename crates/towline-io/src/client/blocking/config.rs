//! The configuration of a blocking client.

use std::sync::Arc;

use towline_proto::Limits;

use crate::client::dial::DialConfig;
use crate::client::pool::PoolLimits;

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct BlockingConfig {
    pub pool: PoolLimits,
    pub dial: Arc<DialConfig>,
    /// Limits of each connection; `window_bytes` bounds the unread bytes of a response.
    pub limits: Arc<Limits>,
}

impl Default for BlockingConfig {
    fn default() -> Self {
        Self {
            pool: PoolLimits::default(),
            dial: Arc::default(),
            limits: Arc::new(Limits::client()),
        }
    }
}
