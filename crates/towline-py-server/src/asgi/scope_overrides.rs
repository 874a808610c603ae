//! Values that replace those of a request in its scope.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use towline_io::serve::features::overrides::Overrides;

use super::scope::Scopes;
use crate::target::Target;

impl Scopes {
    /// Replaces values of the scope of a request with this `target`.
    pub fn replace(
        &self,
        scope: &Bound<'_, PyDict>,
        target: &[u8],
        overrides: &Overrides,
    ) -> PyResult<()> {
        let py = scope.py();
        if let Some((name, id)) = &overrides.request_id {
            set_header(scope, name, Some(id.as_bytes()))?;
        }
        if let Some(authority) = &overrides.authority {
            set_header(scope, b"host", Some(authority.host.as_bytes()))?;
            let server = (&authority.name, authority.port);
            scope.set_item(intern!(py, "server"), server)?;
        }
        if let Some(prefix) = &overrides.prefix {
            scope.set_item(intern!(py, "root_path"), prefix)?;
            Self::put_path(scope, prefix, Target::parse(target).path)?;
        }
        if overrides.is_decoded {
            set_header(scope, b"content-encoding", None)?;
            set_header(scope, b"content-length", None)?;
        }
        if let Some(queue_time) = overrides.queue_time
            && let Some(extensions) = scope.get_item(intern!(py, "extensions"))?
        {
            let extension = PyDict::new(py);
            extension.set_item(intern!(py, "seconds"), queue_time.as_secs_f64())?;
            extensions.set_item(intern!(py, "towline.queue_time"), extension)?;
        }
        Ok(())
    }
}

/// Sets a header of a scope, instead of those of this name that the client has sent. `None` only removes these.
fn set_header(scope: &Bound<'_, PyDict>, name: &[u8], value: Option<&[u8]>) -> PyResult<()> {
    let py = scope.py();
    let Some(headers) = scope.get_item(intern!(py, "headers"))? else {
        return Ok(());
    };
    let kept = PyList::empty(py);
    for pair in headers.try_iter()? {
        let pair = pair?;
        if pair.get_item(0)?.cast::<PyBytes>()?.as_bytes() != name {
            kept.append(pair)?;
        }
    }
    if let Some(value) = value {
        kept.append((PyBytes::new(py, name), PyBytes::new(py, value)))?;
    }
    scope.set_item(intern!(py, "headers"), kept)
}
