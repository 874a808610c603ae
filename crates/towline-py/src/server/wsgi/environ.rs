//! The environ dictionary (PEP 3333, "environ variables"): a copy of a template in which only what the
//! request says is replaced.
//!
//! The template already holds every key that every request sets. `dict.copy()` of it is then one copy of
//! the key table, and replacing values never makes the table grow.
use std::net::IpAddr;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use towline_proto::{Field, Version};

use super::origin::Origin;
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
    https: Py<PyString>,
    empty: Py<PyString>,
    http10: Py<PyString>,
    http2: Py<PyString>,
    get: Py<PyString>,
    post: Py<PyString>,
}

/// Builds environs. One for each application thread: its caches need no lock.
pub struct Environs {
    template: Py<PyDict>,
    words: Words,
    names: Names,
    root_path: Vec<u8>,
    /// The last addresses seen: behind a proxy, and in a test, always the same few.
    addresses: [Option<(IpAddr, Py<PyString>)>; 2],
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
            https: word("https"),
            empty: word(""),
            http10: word("HTTP/1.0"),
            http2: word("HTTP/2"),
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
            addresses: [None, None],
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
        let environ = self.template.bind(py).copy()?;
        self.put_line(&environ, line)?;
        self.put_ends(&environ, origin)?;
        for field in fields {
            self.put_field(&environ, &field)?;
        }
        Ok(environ)
    }

    fn put_line(&self, environ: &Bound<'_, PyDict>, line: &Line<'_>) -> PyResult<()> {
        let (py, words) = (environ.py(), &self.words);
        match line.method {
            b"GET" => {}
            b"POST" => environ.set_item(&words.method, &words.post)?,
            other => environ.set_item(&words.method, native(py, other))?,
        }
        match line.version {
            Version::Http11 => {}
            Version::Http10 => environ.set_item(&words.protocol, &words.http10)?,
            Version::Http2 => environ.set_item(&words.protocol, &words.http2)?,
        }
        let target = native(py, line.target);
        environ.set_item(&words.raw_uri, &target)?;
        environ.set_item(&words.request_uri, &target)?;
        let Target { path, query } = Target::parse(line.target);
        if !query.is_empty() {
            environ.set_item(&words.query, native(py, query))?;
        }
        if path.len() == line.target.len() && self.root_path.is_empty() && !path.contains(&b'%') {
            return environ.set_item(&words.path_info, target);
        }
        let decoded = percent_decoded(path);
        let below = match decoded.strip_prefix(self.root_path.as_slice()) {
            Some(rest) if rest.is_empty() || rest[0] == b'/' => rest,
            _ => &*decoded,
        };
        environ.set_item(&words.path_info, native(py, below))
    }

    fn put_ends(&mut self, environ: &Bound<'_, PyDict>, origin: &Origin) -> PyResult<()> {
        let py = environ.py();
        if let Some(remote) = origin.remote {
            environ.set_item(
                &self.words.remote_addr,
                cached(&mut self.addresses[0], py, remote.ip()),
            )?;
            // A proxy need not tell the port; 0 is no port.
            if remote.port() != 0 {
                environ.set_item(&self.words.remote_port, decimal(py, remote.port()))?;
            }
        }
        if let Some(local) = origin.local {
            environ.set_item(
                &self.words.server_name,
                cached(&mut self.addresses[1], py, local.ip()),
            )?;
            environ.set_item(&self.words.server_port, decimal(py, local.port()))?;
        }
        if origin.is_https {
            environ.set_item(&self.words.scheme, &self.words.https)?;
            origin.put_tls(environ)?;
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
    environ.set_item(&words.server_name, "localhost")?;
    environ.set_item(&words.server_port, "80")?;
    environ.set_item(&words.protocol, "HTTP/1.1")?;
    environ.set_item(PyString::intern(py, "GATEWAY_INTERFACE"), "CGI/1.1")?;
    environ.set_item(
        PyString::intern(py, "SERVER_SOFTWARE"),
        concat!("towline/", env!("CARGO_PKG_VERSION")),
    )?;
    environ.set_item(PyString::intern(py, "wsgi.version"), (1, 0))?;
    environ.set_item(&words.scheme, PyString::intern(py, "http"))?;
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

fn cached<'py>(
    slot: &mut Option<(IpAddr, Py<PyString>)>,
    py: Python<'py>,
    ip: IpAddr,
) -> Bound<'py, PyString> {
    match slot {
        Some((known, text)) if *known == ip => text.bind(py).clone(),
        _ => {
            let text = PyString::new(py, &ip.to_string());
            *slot = Some((ip, text.clone().unbind()));
            text
        }
    }
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
