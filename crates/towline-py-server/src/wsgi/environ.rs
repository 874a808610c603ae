//! The environ dictionary (PEP 3333, "environ variables"): a copy of a template, plus the request's headers.
//!
//! The template has every key that all requests set, with the values of the last request: a value that is the
//! same again (the server's address, mostly the method, often the target) is not set again. `dict.copy()` then
//! copies the key table once, and replacing values never makes the table grow.
use std::net::{IpAddr, SocketAddr};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use towline_io::serve::features::RequestLine;
use towline_io::serve::features::overrides::Overrides;
use towline_proto::{Field, Version};

use super::client_info::ClientInfo;
use super::text::native;
use crate::target::{Target, percent_decoded};

/// Keys and values that are in every environ, created once.
struct Interned {
    method: Py<PyString>,
    script_name: Py<PyString>,
    path_info: Py<PyString>,
    query: Py<PyString>,
    raw_uri: Py<PyString>,
    request_uri: Py<PyString>,
    protocol: Py<PyString>,
    remote_addr: Py<PyString>,
    remote_port: Py<PyString>,
    server_name: Py<PyString>,
    server_port: Py<PyString>,
    scheme: Py<PyString>,
    http: Py<PyString>,
    https: Py<PyString>,
    empty: Py<PyString>,
    http10: Py<PyString>,
    http11: Py<PyString>,
    http2: Py<PyString>,
    http3: Py<PyString>,
    get: Py<PyString>,
    post: Py<PyString>,
}

/// `SERVER_NAME` and `SERVER_PORT` on a Unix socket: PEP 3333 allows neither to be empty.
const DEFAULT_NAME: &str = "localhost";
const DEFAULT_PORT: u16 = 80;

/// Builds environs. One per application thread, so that its caches need no lock.
pub struct Environs {
    template: Py<PyDict>,
    interned: Interned,
    keys: KeyCache,
    root_path: Vec<u8>,
    last: LastValues,
}

/// The request values that the template holds now.
#[derive(Default)]
struct LastValues {
    method: Vec<u8>,
    version: Option<Version>,
    target: Option<Vec<u8>>,
    remote: Option<IpAddr>,
    local: Option<SocketAddr>,
    is_https: bool,
}

/// The values of a template that do not change from request to request.
pub struct TemplateValues<'py> {
    pub input: Bound<'py, PyAny>,
    pub errors: Bound<'py, PyAny>,
    pub file_wrapper: Bound<'py, PyAny>,
    pub multithread: bool,
    pub multiprocess: bool,
}

impl Environs {
    pub fn new(py: Python<'_>, root_path: &str, values: &TemplateValues<'_>) -> PyResult<Self> {
        let intern = |text| PyString::intern(py, text).unbind();
        let interned = Interned {
            method: intern("REQUEST_METHOD"),
            script_name: intern("SCRIPT_NAME"),
            path_info: intern("PATH_INFO"),
            query: intern("QUERY_STRING"),
            raw_uri: intern("RAW_URI"),
            request_uri: intern("REQUEST_URI"),
            protocol: intern("SERVER_PROTOCOL"),
            remote_addr: intern("REMOTE_ADDR"),
            remote_port: intern("REMOTE_PORT"),
            server_name: intern("SERVER_NAME"),
            server_port: intern("SERVER_PORT"),
            scheme: intern("wsgi.url_scheme"),
            http: intern("http"),
            https: intern("https"),
            empty: intern(""),
            http10: intern("HTTP/1.0"),
            http11: intern("HTTP/1.1"),
            http2: intern("HTTP/2.0"),
            http3: intern("HTTP/3.0"),
            get: intern("GET"),
            post: intern("POST"),
        };
        let root_path = root_path.trim_end_matches('/').as_bytes().to_vec();
        let template = template(py, &interned, &root_path, values)?.unbind();
        Ok(Self {
            template,
            interned,
            keys: KeyCache::default(),
            root_path,
            last: LastValues::default(),
        })
    }

    /// Sets a value in all later environs.
    pub fn set(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.template.bind(py).set_item(key, value)
    }

    pub fn build<'py, 'a>(
        &mut self,
        py: Python<'py>,
        line: &RequestLine<'_>,
        client_info: &ClientInfo,
        fields: impl Iterator<Item = Field<'a>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.put_line(py, line)?;
        self.put_addresses(py, client_info)?;
        let environ = self.template.bind(py).copy()?;
        if let Some(remote) = client_info.remote.filter(|remote| remote.port() != 0) {
            // A proxy may omit the port, which is then 0.
            environ.set_item(&self.interned.remote_port, decimal(py, remote.port()))?;
        }
        if client_info.is_https {
            client_info.put_tls(&environ)?;
        }
        for field in fields {
            self.put_field(&environ, &field)?;
        }
        Ok(environ)
    }

    fn put_line(&mut self, py: Python<'_>, line: &RequestLine<'_>) -> PyResult<()> {
        let (template, interned) = (self.template.bind(py), &self.interned);
        if self.last.method != line.method {
            self.last.method.clear();
            match line.method {
                b"GET" => template.set_item(&interned.method, &interned.get)?,
                b"POST" => template.set_item(&interned.method, &interned.post)?,
                other => template.set_item(&interned.method, native(py, other))?,
            }
            self.last.method.extend_from_slice(line.method);
        }
        if self.last.version != Some(line.version) {
            self.last.version = None;
            let version = match line.version {
                Version::Http10 => &interned.http10,
                Version::Http11 => &interned.http11,
                Version::Http2 => &interned.http2,
                Version::Http3 => &interned.http3,
            };
            template.set_item(&interned.protocol, version)?;
            self.last.version = Some(line.version);
        }
        if self.last.target.as_deref() != Some(line.target) {
            let mut kept = self.last.target.take().unwrap_or_default();
            self.put_target(template, line.target)?;
            kept.clear();
            kept.extend_from_slice(line.target);
            self.last.target = Some(kept);
        }
        Ok(())
    }

    fn put_target(&self, template: &Bound<'_, PyDict>, line_target: &[u8]) -> PyResult<()> {
        let (py, interned) = (template.py(), &self.interned);
        let target = native(py, line_target);
        template.set_item(&interned.raw_uri, &target)?;
        template.set_item(&interned.request_uri, &target)?;
        let Target { path, query } = Target::parse(line_target);
        template.set_item(&interned.query, native(py, query))?;
        if path.len() == line_target.len() && self.root_path.is_empty() && !path.contains(&b'%') {
            return template.set_item(&interned.path_info, target);
        }
        self.put_path_info(template, path, &self.root_path)
    }

    fn put_path_info(
        &self,
        environ: &Bound<'_, PyDict>,
        path: &[u8],
        script_name: &[u8],
    ) -> PyResult<()> {
        let decoded = percent_decoded(path);
        let below = match decoded.strip_prefix(script_name) {
            Some(rest) if rest.is_empty() || rest[0] == b'/' => rest,
            _ => &*decoded,
        };
        environ.set_item(&self.interned.path_info, native(environ.py(), below))
    }

    /// Replaces values of the environ of a request with this `target`.
    pub fn replace(
        &self,
        environ: &Bound<'_, PyDict>,
        target: &[u8],
        overrides: &Overrides,
    ) -> PyResult<()> {
        let (py, interned) = (environ.py(), &self.interned);
        if let Some(authority) = &overrides.authority {
            environ.set_item(intern!(py, "HTTP_HOST"), &authority.host)?;
            environ.set_item(&interned.server_name, &authority.name)?;
            environ.set_item(&interned.server_port, decimal(py, authority.port))?;
        }
        if let Some(prefix) = &overrides.prefix {
            environ.set_item(&interned.script_name, prefix)?;
            self.put_path_info(environ, Target::parse(target).path, prefix.as_bytes())?;
        }
        if overrides.is_decoded {
            environ.del_item(intern!(py, "HTTP_CONTENT_ENCODING"))?;
            environ.call_method1(intern!(py, "pop"), ("CONTENT_LENGTH", py.None()))?;
            if let Some(bytes) = overrides.decoded_bytes {
                environ.set_item(intern!(py, "CONTENT_LENGTH"), bytes.to_string())?;
            }
        }
        if let Some(queue_time) = overrides.queue_time {
            environ.set_item(intern!(py, "towline.queue_time"), queue_time.as_secs_f64())?;
        }
        Ok(())
    }

    fn put_addresses(&mut self, py: Python<'_>, client_info: &ClientInfo) -> PyResult<()> {
        let (template, interned) = (self.template.bind(py), &self.interned);
        let remote = client_info.remote.map(|remote| remote.ip());
        if self.last.remote != remote {
            let text = remote.map_or_else(String::new, |ip| ip.to_string());
            template.set_item(&interned.remote_addr, text)?;
            self.last.remote = remote;
        }
        if self.last.local != client_info.local {
            let (name, port) = match client_info.local {
                Some(local) => (local.ip().to_string(), local.port()),
                None => (DEFAULT_NAME.to_owned(), DEFAULT_PORT),
            };
            template.set_item(&interned.server_name, name)?;
            template.set_item(&interned.server_port, decimal(py, port))?;
            self.last.local = client_info.local;
        }
        if self.last.is_https != client_info.is_https {
            let scheme = if client_info.is_https {
                &interned.https
            } else {
                &interned.http
            };
            template.set_item(&interned.scheme, scheme)?;
            self.last.is_https = client_info.is_https;
        }
        Ok(())
    }

    /// Headers with an underscore in their name are dropped: `X_Auth` and `X-Auth` would be the same key, and a
    /// proxy that removes one passes the other.
    fn put_field(&mut self, environ: &Bound<'_, PyDict>, field: &Field<'_>) -> PyResult<()> {
        let py = environ.py();
        let Some(key) = self.keys.key(py, field.name) else {
            return Ok(());
        };
        let key = key.bind(py);
        let value = native(py, field.value);
        if !environ.set_default(key, &value)? {
            let before = environ.get_item(key)?;
            let before = before
                .as_ref()
                .map_or(Ok(""), |old| old.cast::<PyString>()?.to_str())?;
            // RFC 9110 5.2: a list; a cookie is not one (RFC 6265 4.2.1).
            let comma = if field.name.eq_ignore_ascii_case(b"cookie") {
                "; "
            } else {
                ","
            };
            let joined = [before, comma, value.to_str()?].concat();
            environ.set_item(key, joined)?;
        }
        Ok(())
    }
}

fn template<'py>(
    py: Python<'py>,
    interned: &Interned,
    root_path: &[u8],
    values: &TemplateValues<'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let environ = PyDict::new(py);
    environ.set_item(&interned.method, &interned.get)?;
    environ.set_item(&interned.script_name, native(py, root_path))?;
    for key in [
        &interned.path_info,
        &interned.query,
        &interned.raw_uri,
        &interned.request_uri,
        &interned.remote_addr,
    ] {
        environ.set_item(key, &interned.empty)?;
    }
    environ.set_item(&interned.remote_port, &interned.empty)?;
    environ.set_item(&interned.server_name, DEFAULT_NAME)?;
    environ.set_item(&interned.server_port, decimal(py, DEFAULT_PORT))?;
    environ.set_item(&interned.protocol, &interned.http11)?;
    environ.set_item(PyString::intern(py, "GATEWAY_INTERFACE"), "CGI/1.1")?;
    environ.set_item(
        PyString::intern(py, "SERVER_SOFTWARE"),
        concat!("towline/", env!("CARGO_PKG_VERSION")),
    )?;
    environ.set_item(PyString::intern(py, "wsgi.version"), (1, 0))?;
    environ.set_item(&interned.scheme, &interned.http)?;
    environ.set_item(PyString::intern(py, "wsgi.input"), &values.input)?;
    environ.set_item(PyString::intern(py, "wsgi.input_terminated"), true)?;
    environ.set_item(PyString::intern(py, "wsgi.errors"), &values.errors)?;
    environ.set_item(
        PyString::intern(py, "wsgi.file_wrapper"),
        &values.file_wrapper,
    )?;
    environ.set_item(PyString::intern(py, "wsgi.early_hints"), py.None())?;
    environ.set_item(PyString::intern(py, "wsgi.multithread"), values.multithread)?;
    environ.set_item(
        PyString::intern(py, "wsgi.multiprocess"),
        values.multiprocess,
    )?;
    environ.set_item(PyString::intern(py, "wsgi.run_once"), false)?;
    Ok(environ)
}

fn decimal(py: Python<'_>, port: u16) -> Bound<'_, PyString> {
    let mut digits = [0_u8; 5];
    let mut at = digits.len();
    let mut rest = port;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return native(py, &digits[at..]);
        }
    }
}

/// Cache from header names as received to environ keys. Direct-mapped, hence of fixed size.
struct KeyCache {
    slots: Vec<Option<CachedKey>>,
}

struct CachedKey {
    received: Box<[u8]>,
    key: Option<Py<PyString>>,
}

const KEY_SLOTS: usize = 256;

impl Default for KeyCache {
    fn default() -> Self {
        Self {
            slots: (0..KEY_SLOTS).map(|_| None).collect(),
        }
    }
}

impl KeyCache {
    /// The environ key of a header; `None` for a name that must not be passed on.
    fn key(&mut self, py: Python<'_>, name: &[u8]) -> Option<&Py<PyString>> {
        let slot = &mut self.slots[slot_of(name)];
        match slot {
            Some(cached) if *cached.received == *name => {}
            _ => {
                *slot = Some(CachedKey {
                    received: name.into(),
                    key: key_of(py, name),
                });
            }
        }
        slot.as_ref().and_then(|cached| cached.key.as_ref())
    }
}

/// FNV-1a, folded to the table's size.
fn slot_of(name: &[u8]) -> usize {
    let hash = name.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ hash >> 16) as usize % KEY_SLOTS
}

fn key_of(py: Python<'_>, name: &[u8]) -> Option<Py<PyString>> {
    if name.contains(&b'_') {
        return None;
    }
    let upper: String = name
        .iter()
        .map(|&byte| {
            if byte == b'-' {
                '_'
            } else {
                byte.to_ascii_uppercase() as char
            }
        })
        .collect();
    Some(match upper.as_str() {
        "CONTENT_TYPE" | "CONTENT_LENGTH" => PyString::intern(py, &upper).unbind(),
        _ => PyString::intern(py, &format!("HTTP_{upper}")).unbind(),
    })
}
