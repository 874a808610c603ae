//! The environ dictionary (PEP 3333, "environ variables"): a copy of a template, and the fields.
//!
//! The template holds every key that every request sets, and of those the values of the last request: what
//! is the same again (the address of the server, mostly the method, often the target) is not even set.
//! `dict.copy()` of it is then one copy of the key table, and replacing values never makes the table grow.
use std::net::{IpAddr, SocketAddr};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use towline_proto::{Field, Version};

use super::client_info::Origin;
use super::text::native;
use crate::server::target::{Target, percent_decoded};

/// What the environ says about a request besides its fields.
pub struct Line<'a> {
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub version: Version,
}

/// Keys and values that are in every environ, made once.
struct Words {
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
    get: Py<PyString>,
    post: Py<PyString>,
}

/// Of a server on a Unix socket: PEP 3333 allows neither to be empty.
const DEFAULT_NAME: &str = "localhost";
const DEFAULT_PORT: u16 = 80;

/// Builds environs. One for each application thread: its caches need no lock.
pub struct Environs {
    template: Py<PyDict>,
    words: Words,
    names: Names,
    root_path: Vec<u8>,
    last: Last,
}

/// What the template says now.
#[derive(Default)]
struct Last {
    method: Vec<u8>,
    version: Option<Version>,
    target: Option<Vec<u8>>,
    remote: Option<IpAddr>,
    local: Option<SocketAddr>,
    is_https: bool,
}

/// The values of a template that do not change from request to request.
pub struct Constants<'py> {
    pub input: Bound<'py, PyAny>,
    pub errors: Bound<'py, PyAny>,
    pub file_wrapper: Bound<'py, PyAny>,
    pub multithread: bool,
    pub multiprocess: bool,
}

impl Environs {
    pub fn new(py: Python<'_>, root_path: &str, constants: &Constants<'_>) -> PyResult<Self> {
        let word = |text| PyString::intern(py, text).unbind();
        let words = Words {
            method: word("REQUEST_METHOD"),
            script_name: word("SCRIPT_NAME"),
            path_info: word("PATH_INFO"),
            query: word("QUERY_STRING"),
            raw_uri: word("RAW_URI"),
            request_uri: word("REQUEST_URI"),
            protocol: word("SERVER_PROTOCOL"),
            remote_addr: word("REMOTE_ADDR"),
            remote_port: word("REMOTE_PORT"),
            server_name: word("SERVER_NAME"),
            server_port: word("SERVER_PORT"),
            scheme: word("wsgi.url_scheme"),
            http: word("http"),
            https: word("https"),
            empty: word(""),
            http10: word("HTTP/1.0"),
            http11: word("HTTP/1.1"),
            http2: word("HTTP/2.0"),
            get: word("GET"),
            post: word("POST"),
        };
        let root_path = root_path.trim_end_matches('/').as_bytes().to_vec();
        let template = template(py, &words, &root_path, constants)?.unbind();
        Ok(Self {
            template,
            words,
            names: Names::default(),
            root_path,
            last: Last::default(),
        })
    }

    /// Puts another object into every environ to come.
    pub fn set(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.template.bind(py).set_item(key, value)
    }

    pub fn build<'py, 'a>(
        &mut self,
        py: Python<'py>,
        line: &Line<'_>,
        origin: &Origin,
        fields: impl Iterator<Item = Field<'a>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.put_line(py, line)?;
        self.put_ends(py, origin)?;
        let environ = self.template.bind(py).copy()?;
        if let Some(remote) = origin.remote.filter(|remote| remote.port() != 0) {
            // A proxy need not tell the port; 0 is no port.
            environ.set_item(&self.words.remote_port, decimal(py, remote.port()))?;
        }
        if origin.is_https {
            origin.put_tls(&environ)?;
        }
        for field in fields {
            self.put_field(&environ, &field)?;
        }
        Ok(environ)
    }

    fn put_line(&mut self, py: Python<'_>, line: &Line<'_>) -> PyResult<()> {
        let (template, words) = (self.template.bind(py), &self.words);
        if self.last.method != line.method {
            self.last.method.clear();
            match line.method {
                b"GET" => template.set_item(&words.method, &words.get)?,
                b"POST" => template.set_item(&words.method, &words.post)?,
                other => template.set_item(&words.method, native(py, other))?,
            }
            self.last.method.extend_from_slice(line.method);
        }
        if self.last.version != Some(line.version) {
            self.last.version = None;
            let version = match line.version {
                Version::Http10 => &words.http10,
                Version::Http11 => &words.http11,
                Version::Http2 => &words.http2,
            };
            template.set_item(&words.protocol, version)?;
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
        let (py, words) = (template.py(), &self.words);
        let target = native(py, line_target);
        template.set_item(&words.raw_uri, &target)?;
        template.set_item(&words.request_uri, &target)?;
        let Target { path, query } = Target::parse(line_target);
        template.set_item(&words.query, native(py, query))?;
        if path.len() == line_target.len() && self.root_path.is_empty() && !path.contains(&b'%') {
            return template.set_item(&words.path_info, target);
        }
        let decoded = percent_decoded(path);
        let below = match decoded.strip_prefix(self.root_path.as_slice()) {
            Some(rest) if rest.is_empty() || rest[0] == b'/' => rest,
            _ => &*decoded,
        };
        template.set_item(&words.path_info, native(py, below))
    }

    fn put_ends(&mut self, py: Python<'_>, origin: &Origin) -> PyResult<()> {
        let (template, words) = (self.template.bind(py), &self.words);
        let remote = origin.remote.map(|remote| remote.ip());
        if self.last.remote != remote {
            let text = remote.map_or_else(String::new, |ip| ip.to_string());
            template.set_item(&words.remote_addr, text)?;
            self.last.remote = remote;
        }
        if self.last.local != origin.local {
            let (name, port) = match origin.local {
                Some(local) => (local.ip().to_string(), local.port()),
                None => (DEFAULT_NAME.to_owned(), DEFAULT_PORT),
            };
            template.set_item(&words.server_name, name)?;
            template.set_item(&words.server_port, decimal(py, port))?;
            self.last.local = origin.local;
        }
        if self.last.is_https != origin.is_https {
            let scheme = if origin.is_https {
                &words.https
            } else {
                &words.http
            };
            template.set_item(&words.scheme, scheme)?;
            self.last.is_https = origin.is_https;
        }
        Ok(())
    }

    /// Names with an underscore are dropped: `X_Auth` and `X-Auth` would be the same key, and a proxy that
    /// removes one lets the other through.
    fn put_field(&mut self, environ: &Bound<'_, PyDict>, field: &Field<'_>) -> PyResult<()> {
        let py = environ.py();
        let Some(key) = self.names.key(py, field.name) else {
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
    words: &Words,
    root_path: &[u8],
    constants: &Constants<'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let environ = PyDict::new(py);
    environ.set_item(&words.method, &words.get)?;
    environ.set_item(&words.script_name, native(py, root_path))?;
    for key in [
        &words.path_info,
        &words.query,
        &words.raw_uri,
        &words.request_uri,
        &words.remote_addr,
    ] {
        environ.set_item(key, &words.empty)?;
    }
    environ.set_item(&words.remote_port, &words.empty)?;
    environ.set_item(&words.server_name, DEFAULT_NAME)?;
    environ.set_item(&words.server_port, decimal(py, DEFAULT_PORT))?;
    environ.set_item(&words.protocol, &words.http11)?;
    environ.set_item(PyString::intern(py, "GATEWAY_INTERFACE"), "CGI/1.1")?;
    environ.set_item(
        PyString::intern(py, "SERVER_SOFTWARE"),
        concat!("towline/", env!("CARGO_PKG_VERSION")),
    )?;
    environ.set_item(PyString::intern(py, "wsgi.version"), (1, 0))?;
    environ.set_item(&words.scheme, &words.http)?;
    environ.set_item(PyString::intern(py, "wsgi.input"), &constants.input)?;
    environ.set_item(PyString::intern(py, "wsgi.input_terminated"), true)?;
    environ.set_item(PyString::intern(py, "wsgi.errors"), &constants.errors)?;
    environ.set_item(
        PyString::intern(py, "wsgi.file_wrapper"),
        &constants.file_wrapper,
    )?;
    environ.set_item(PyString::intern(py, "wsgi.early_hints"), py.None())?;
    environ.set_item(
        PyString::intern(py, "wsgi.multithread"),
        constants.multithread,
    )?;
    environ.set_item(
        PyString::intern(py, "wsgi.multiprocess"),
        constants.multiprocess,
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

/// Field names as received -> environ keys. Direct-mapped: bounded, whatever names a peer invents.
struct Names {
    slots: Vec<Option<Name>>,
}

struct Name {
    received: Box<[u8]>,
    key: Option<Py<PyString>>,
}

const NAME_SLOTS: usize = 256;

impl Default for Names {
    fn default() -> Self {
        Self {
            slots: (0..NAME_SLOTS).map(|_| None).collect(),
        }
    }
}

impl Names {
    /// The environ key of a field; None for a name that must not be passed on.
    fn key(&mut self, py: Python<'_>, name: &[u8]) -> Option<&Py<PyString>> {
        let slot = &mut self.slots[slot_of(name)];
        match slot {
            Some(known) if *known.received == *name => {}
            _ => {
                *slot = Some(Name {
                    received: name.into(),
                    key: key_of(py, name),
                });
            }
        }
        slot.as_ref().and_then(|name| name.key.as_ref())
    }
}

/// FNV-1a, folded to the table's size.
fn slot_of(name: &[u8]) -> usize {
    let hash = name.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ hash >> 16) as usize % NAME_SLOTS
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
