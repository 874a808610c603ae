//! One period of load, and the request to end it early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Config, LoopMode, Until};
use crate::error::LoadError;

/// Ends a run from outside; measurements made until then are kept.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Async-signal-safe.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Prepares for the next run.
    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One period of load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    pub loop_mode: LoopMode,
    /// Without the warm-up.
    pub until: Until,
    /// Load before anything counts; zero where requests are counted.
    pub warm_up: Duration,
}

impl Slice {
    /// The single slice of a plain run.
    pub fn of(config: &Config) -> Self {
        Self {
            loop_mode: config.loop_mode,
            until: config.until,
            warm_up: config.total_warm_up(),
        }
    }

    pub fn check(&self, config: &Config) -> Result<(), LoadError> {
        let LoopMode::Open(rate) = self.loop_mode else {
            return Ok(());
        };
        let why = if config.barrier {
            "a barrier needs a closed loop"
        } else if !(rate.per_s.is_finite() && rate.per_s > 0.0) {
            "the rate must be a positive number"
        } else {
            return Ok(());
        };
        Err(LoadError::Config(why.into()))
    }
}
