//! From options and open sockets to a listening engine.
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use towline_io::serve::features::FeatureConfig;
use towline_io::{ConnConfig, Drain, Engine, Listener, Role};

use super::addresses::{Addresses, Interface};
use super::http3;
use super::options::{Bind, Options};
use towline_py_common::errors;

/// Listens on every bind, on duplicates of the descriptors. Takes the password of the key out of the options. The
/// metrics page of `--metrics-address` is always plain HTTP. A bind without a descriptor is only checked.
pub fn listen<S: Default>(
    engine: &mut Engine<S>,
    options: &mut Options,
    binds: &[Bind],
    features: &FeatureConfig,
    interface: Interface,
) -> PyResult<()> {
    let mut addresses = Addresses::new(options, binds, features, interface);
    http3::listen(engine, &mut addresses, features)?;
    let options = addresses.options;
    for bind in binds.iter().filter(|bind| !bind.udp) {
        let config = if bind.metrics {
            ConnConfig {
                role: Role::Metrics,
                ..ConnConfig::plain(options.limits())
            }
        } else {
            addresses.conn_config(bind)?
        };
        if bind.fd < 0 {
            continue;
        }
        listener(bind, options)
            .and_then(|listener| engine.add_listener(listener, Arc::new(config)))
            .map_err(|error| errors::setup(&error, &bind.address))?;
    }
    Ok(())
}

fn listener(bind: &Bind, options: &Options) -> io::Result<Listener> {
    // SAFETY: the descriptor is borrowed for the one call that duplicates it.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(bind.fd) };
    let own: OwnedFd = fd.try_clone_to_owned()?;
    Listener::inherited(own.into_raw_fd(), options.backlog)
}

/// The drain that Python's `close_idle` names.
pub fn drain(close_idle: bool) -> Drain {
    if close_idle {
        Drain::CloseIdle
    } else {
        Drain::Graceful
    }
}

/// Maximum wait of a turn that a foreign event loop calls.
pub const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

/// Maximum time for writing the last lines of the access log at the end.
pub const LOG_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
