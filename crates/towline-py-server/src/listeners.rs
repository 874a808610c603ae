//! Opening listening sockets for the process that owns them: a supervisor, or a server without one.
use std::os::fd::RawFd;
use std::path::Path;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use towline_io::Listener;

/// Opens the sockets of `address` (`Listener::bind`): TCP sockets listen from the moment at which a server uses them.
/// `unix_mode`: the permissions of a Unix socket. The caller owns the descriptors.
#[pyfunction]
#[pyo3(signature = (address, backlog, unix_mode=None))]
pub fn open_listeners(
    py: Python<'_>,
    address: &str,
    backlog: u32,
    unix_mode: Option<u32>,
) -> PyResult<Vec<RawFd>> {
    // A host name may require a look-up.
    let opened = py.detach(|| match (address.strip_prefix("unix:"), unix_mode) {
        // An abstract socket (unix:@name) has no file.
        (Some(path), Some(_)) if !path.starts_with('@') => {
            Listener::unix(Path::new(path), unix_mode, backlog).map(|listener| vec![listener])
        }
        _ => Listener::bind(address, backlog),
    });
    let listeners = opened.map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(listeners.into_iter().map(Listener::into_raw_fd).collect())
}
