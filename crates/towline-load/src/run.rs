//! A run: a session with one slice.

use crate::config::Config;
use crate::error::LoadError;
use crate::monitor::Monitor;
use crate::session::{Outcome, Session};
use crate::slice::{Slice, Stop};

/// Runs the load of `config` until it is over or `stop` is requested.
pub fn run(config: &Config, stop: &Stop) -> Result<Outcome, LoadError> {
    Session::open(config.clone())?.last_slice(&Slice::of(config), stop)
}

/// Like [`run`], with progress in `monitor`.
pub fn run_monitored(
    config: &Config,
    stop: &Stop,
    monitor: &Monitor,
) -> Result<Outcome, LoadError> {
    let mut session = Session::open(config.clone())?;
    session.monitor(monitor);
    session.last_slice(&Slice::of(config), stop)
}
