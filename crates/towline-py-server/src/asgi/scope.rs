//! The scope of a request, from a template that has every key.
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use towline_io::serve::forwarded::Origin;
use towline_io::{PeerAddr, TlsInfo};
use towline_proto::{Field, Fields, HeadRef, Version};

use super::interned::{HeaderCache, method};
use crate::options::{Options, Pathsend};
use crate::pem::pem;
use crate::target::{Target, percent_decoded};
use towline_py_common::cell::StateCell;

const ACCEPT_ENCODING: &[u8] = b"accept-encoding";

/// Builds scopes from the values that all requests of a server share.
pub struct Scopes {
    template: Py<PyDict>,
    /// Memory addresses of the template's `client` and `server`, which the template keeps alive.
    current_endpoints: StateCell<(usize, usize)>,
    recent: StateCell<Recent>,
    extensions: Py<PyDict>,
    /// The extensions of a request that is offered `http.response.pathsend`.
    extensions_with_pathsend: Py<PyDict>,
    pathsend: Pathsend,
    /// The lifespan's state; each request gets a shallow copy.
    state: Option<Py<PyDict>>,
    headers: HeaderCache,
    root_path: String,
}

/// Objects of the last new connection, which the next one shares if they are equal.
#[derive(Default)]
struct Recent {
    server: Option<(PeerAddr, Py<PyAny>)>,
    /// Often that of a proxy.
    client_host: Option<Py<PyString>>,
    server_cert: Option<Py<PyString>>,
}

/// A string that is `last` if that has this text, and the next `last`.
fn shared(py: Python<'_>, last: &mut Option<Py<PyString>>, text: &str) -> Py<PyString> {
    if last.as_ref().is_none_or(|last| *last.bind(py) != *text) {
        *last = Some(PyString::new(py, text).unbind());
    }
    last.as_ref().expect("set above").clone_ref(py)
}

/// The addresses of a connection in the form of the scope.
pub struct Endpoints {
    pub client: Py<PyAny>,
    pub server: Py<PyAny>,
    /// The extension `tls`, when the connection has it.
    pub tls: Option<Py<PyDict>>,
}

impl Scopes {
    pub fn new(py: Python<'_>, options: &Options, state: Option<Py<PyDict>>) -> PyResult<Self> {
        let root_path = options.root_path.as_str();
        let asgi = PyDict::new(py);
        asgi.set_item(intern!(py, "version"), intern!(py, "3.0"))?;
        asgi.set_item(intern!(py, "spec_version"), intern!(py, "2.5"))?;
        let template = PyDict::new(py);
        template.set_item(intern!(py, "type"), intern!(py, "http"))?;
        template.set_item(intern!(py, "asgi"), asgi)?;
        template.set_item(intern!(py, "http_version"), intern!(py, "1.1"))?;
        template.set_item(intern!(py, "server"), py.None())?;
        template.set_item(intern!(py, "client"), py.None())?;
        template.set_item(intern!(py, "scheme"), intern!(py, "http"))?;
        template.set_item(intern!(py, "method"), intern!(py, "GET"))?;
        template.set_item(intern!(py, "root_path"), PyString::new(py, root_path))?;
        template.set_item(intern!(py, "path"), intern!(py, "/"))?;
        template.set_item(intern!(py, "raw_path"), PyBytes::new(py, b"/"))?;
        template.set_item(intern!(py, "query_string"), PyBytes::new(py, b""))?;
        template.set_item(intern!(py, "headers"), py.None())?;
        template.set_item(intern!(py, "extensions"), py.None())?;
        if state.is_some() {
            template.set_item(intern!(py, "state"), py.None())?;
        }
        let extensions = PyDict::new(py);
        for name in ["http.response.trailers", "http.response.early_hint"] {
            extensions.set_item(PyString::intern(py, name), PyDict::new(py))?;
        }
        let with_pathsend = extensions.copy()?;
        with_pathsend.set_item(intern!(py, "http.response.pathsend"), PyDict::new(py))?;
        Ok(Self {
            template: template.unbind(),
            current_endpoints: StateCell::default(),
            recent: StateCell::default(),
            extensions: extensions.unbind(),
            extensions_with_pathsend: with_pathsend.unbind(),
            pathsend: options.pathsend,
            state,
            headers: HeaderCache::new(py),
            root_path: root_path.to_owned(),
        })
    }

    /// The scope of one request. Only built-in objects are created: no Python code runs, except in a garbage
    /// collection.
    pub fn build<'py>(
        &self,
        py: Python<'py>,
        head: &HeadRef<'_>,
        endpoints: &Endpoints,
        origin: &Origin,
    ) -> PyResult<Bound<'py, PyDict>> {
        let scope = self.template(py, endpoints)?.copy()?;
        match head.version() {
            Version::Http11 => {}
            Version::Http10 => scope.set_item(intern!(py, "http_version"), intern!(py, "1.0"))?,
            Version::Http2 => scope.set_item(intern!(py, "http_version"), intern!(py, "2"))?,
            Version::Http3 => scope.set_item(intern!(py, "http_version"), intern!(py, "3"))?,
        }
        if head.method() != b"GET" {
            scope.set_item(intern!(py, "method"), method(py, head.method()))?;
        }
        self.set_target(&scope, head.target())?;
        let (headers, accepts_coding) = self.headers(py, head.fields())?;
        scope.set_item(intern!(py, "headers"), headers)?;
        if let Some((address, port)) = origin.client {
            scope.set_item(intern!(py, "client"), (address.to_string(), port))?;
        }
        if origin.is_https(endpoints.tls.is_some()) {
            scope.set_item(intern!(py, "scheme"), intern!(py, "https"))?;
        }
        let extensions = if self.offers_pathsend(accepts_coding) {
            self.extensions_with_pathsend.bind(py).copy()?
        } else {
            self.extensions.bind(py).copy()?
        };
        if let Some(tls) = &endpoints.tls {
            extensions.set_item(intern!(py, "tls"), tls)?;
        }
        scope.set_item(intern!(py, "extensions"), extensions)?;
        if let Some(state) = &self.state {
            scope.set_item(intern!(py, "state"), state.bind(py).copy()?)?;
        }
        Ok(scope)
    }

    /// Whether a file may be sent by its path: compressing middleware lets such a response pass as it is.
    fn offers_pathsend(&self, accepts_coding: bool) -> bool {
        match self.pathsend {
            Pathsend::Always => true,
            Pathsend::Never => false,
            Pathsend::Auto => !accepts_coding,
        }
    }

    /// The template, with the endpoints of this connection. They stay in it for the next request, often of the same
    /// connection: setting a key costs as much as copying five.
    fn template<'py>(
        &self,
        py: Python<'py>,
        endpoints: &Endpoints,
    ) -> PyResult<&Bound<'py, PyDict>> {
        let template = self.template.bind(py);
        let current = (
            endpoints.client.as_ptr().addr(),
            endpoints.server.as_ptr().addr(),
        );
        if *self.current_endpoints.open(py) != current {
            template.set_item(intern!(py, "server"), &endpoints.server)?;
            template.set_item(intern!(py, "client"), &endpoints.client)?;
            *self.current_endpoints.open(py) = current;
        }
        Ok(template)
    }

    /// Sets `path`, decoded, and `raw_path`, not decoded; both begin with the root path, as under Uvicorn.
    fn set_target(&self, scope: &Bound<'_, PyDict>, target: &[u8]) -> PyResult<()> {
        let py = scope.py();
        let Target { path, query } = Target::parse(target);
        if path != b"/" || !self.root_path.is_empty() {
            Self::put_path(scope, &self.root_path, path)?;
        }
        if !query.is_empty() {
            scope.set_item(intern!(py, "query_string"), PyBytes::new(py, query))?;
        }
        Ok(())
    }

    /// Sets `path` and `raw_path` for the path of a request below `root_path`.
    pub(super) fn put_path(
        scope: &Bound<'_, PyDict>,
        root_path: &str,
        path: &[u8],
    ) -> PyResult<()> {
        let py = scope.py();
        let decoded = percent_decoded(path);
        let text = String::from_utf8_lossy(&decoded);
        if root_path.is_empty() {
            scope.set_item(intern!(py, "path"), PyString::new(py, &text))?;
            return scope.set_item(intern!(py, "raw_path"), PyBytes::new(py, path));
        }
        scope.set_item(intern!(py, "path"), format!("{root_path}{text}"))?;
        let raw = [root_path.as_bytes(), path].concat();
        scope.set_item(intern!(py, "raw_path"), PyBytes::new(py, &raw))
    }

    /// Pairs in the order received, names in lower case; and whether the client accepts a content coding, which is
    /// found here because another pass costs as much as several headers.
    #[allow(clippy::cast_possible_wrap)] // their number is bounded by Limits
    fn headers<'py>(
        &self,
        py: Python<'py>,
        fields: Fields<'_>,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        let mut accepts_coding = false;
        let count = fields.clone().count();
        // SAFETY: every slot of the new list is filled, with a reference that the list takes over, before the list is
        // returned (after an error, null slots are skipped when the list is freed).
        unsafe {
            let list = Bound::from_owned_ptr_or_err(py, ffi::PyList_New(count as ffi::Py_ssize_t))?;
            let mut end = std::ptr::null();
            for (index, field) in fields.clone().enumerate() {
                accepts_coding |= field.name.len() == ACCEPT_ENCODING.len() && names_coding(field);
                let before = fields.clone().take(index);
                let first = (field.name.as_ptr() < end).then(|| index_of_same(field, before));
                let pair = match first.flatten() {
                    Some(first) => ffi::Py_NewRef(ffi::PyList_GET_ITEM(
                        list.as_ptr(),
                        first as ffi::Py_ssize_t,
                    )),
                    None => self.headers.pair(py, field.name, field.value)?.into_ptr(),
                };
                end = end.max(field.name.as_ptr_range().end);
                ffi::PyList_SET_ITEM(list.as_ptr(), index as ffi::Py_ssize_t, pair);
            }
            Ok((list, accepts_coding))
        }
    }
}

/// Whether this is an `Accept-Encoding` with a coding.
fn names_coding(field: Field<'_>) -> bool {
    field.name.eq_ignore_ascii_case(ACCEPT_ENCODING)
        && !field.value.is_empty()
        && !field.value.eq_ignore_ascii_case(b"identity")
}

/// The index of an earlier field with the same memory. A field that an HPACK block repeats by its index exists once in
/// the head, and becomes one object: otherwise each byte received could allocate a kilobyte.
fn index_of_same<'a>(
    field: Field<'_>,
    mut before: impl Iterator<Item = Field<'a>>,
) -> Option<usize> {
    before.position(|earlier| {
        std::ptr::eq(earlier.name, field.name) && std::ptr::eq(earlier.value, field.value)
    })
}

impl Scopes {
    /// The addresses of a new connection, for its scopes.
    pub fn endpoints(
        &self,
        py: Python<'_>,
        (remote, local): (&PeerAddr, &PeerAddr),
        tls: Option<Tls<'_>>,
    ) -> PyResult<Endpoints> {
        Ok(Endpoints {
            client: match remote {
                PeerAddr::Inet(address) => {
                    let ip = address.ip().to_string();
                    let host = shared(py, &mut self.recent.open(py).client_host, &ip);
                    let client = (host, address.port()).into_pyobject(py)?;
                    client.into_any().unbind()
                }
                // Unix clients are anonymous (ASGI, HTTP connection scope).
                PeerAddr::Unix(_) | PeerAddr::None => py.None(),
            },
            server: self.server(py, local)?,
            tls: tls.map(|tls| self.tls_extension(py, tls)).transpose()?,
        })
    }

    fn server(&self, py: Python<'_>, address: &PeerAddr) -> PyResult<Py<PyAny>> {
        if let Some((last, server)) = &self.recent.open(py).server
            && last == address
        {
            return Ok(server.clone_ref(py));
        }
        let server = server_address(py, address)?;
        self.recent.open(py).server = Some((address.clone(), server.clone_ref(py)));
        Ok(server)
    }

    /// The extension `tls` (ASGI TLS extension 0.2).
    fn tls_extension(&self, py: Python<'_>, tls: Tls<'_>) -> PyResult<Py<PyDict>> {
        let (dict, info) = (PyDict::new(py), tls.info.as_ref());
        let server_cert = tls
            .server_cert
            .map(|text| shared(py, &mut self.recent.open(py).server_cert, text));
        dict.set_item(intern!(py, "server_cert"), server_cert)?;
        let certs = info.map_or(&[][..], |info| &info.peer_certs);
        let chain: Vec<String> = certs.iter().map(|cert| pem(cert.as_ref())).collect();
        dict.set_item(intern!(py, "client_cert_chain"), chain)?;
        let subject = info.and_then(TlsInfo::peer_subject);
        dict.set_item(intern!(py, "client_cert_name"), subject)?;
        dict.set_item(intern!(py, "client_cert_error"), py.None())?;
        dict.set_item(intern!(py, "tls_version"), info.map(|info| info.version))?;
        let suite = info.map(|info| info.cipher_suite);
        dict.set_item(intern!(py, "cipher_suite"), suite)?;
        Ok(dict.unbind())
    }
}

/// The result of the TLS handshake and the server's certificate.
pub struct Tls<'a> {
    pub info: Option<TlsInfo>,
    pub server_cert: Option<&'a str>,
}

fn server_address(py: Python<'_>, address: &PeerAddr) -> PyResult<Py<PyAny>> {
    Ok(match address {
        PeerAddr::Inet(address) => (address.ip().to_string(), address.port())
            .into_pyobject(py)?
            .into_any()
            .unbind(),
        PeerAddr::Unix(path) => PyTuple::new(
            py,
            [
                path.to_string_lossy().into_pyobject(py)?.into_any(),
                py.None().into_bound(py),
            ],
        )?
        .into_any()
        .unbind(),
        PeerAddr::None => py.None(),
    })
}
