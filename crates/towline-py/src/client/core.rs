//! What the native halves of `Client` and `AsyncClient` have in common: which calls are plain, and what these
//! are on the wire. Plain calls are made in one go, the others through `_slow_request`.
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::PyClass;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use towline_io::client::{CallOptions, Prepared, Route, Timeouts};

use super::fast_path::{
    FastArguments, FastUrl, HeaderTemplate, MAX_TARGET_BYTES, is_canonical_target,
};
use super::pool_config::{self, PoolConfig};
use super::request::{self, Origin};
use super::response;
use super::response_config::ResponseConfig;
use crate::gil::GilCell;

/// Origins remembered; beyond these all are forgotten and learnt again.
const MAX_CACHED_ORIGINS: usize = 1024;

/// The pools of one face.
pub trait PoolKind: PyClass {
    fn terms<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolConfig;

    fn route(pool: &Bound<'_, Self>, origin: &Origin<'_>) -> PyResult<Arc<Route>>;
}

/// The state of a client. It is empty before `_configure`.
pub struct Core<P: PoolKind> {
    state: GilCell<Option<State<P>>>,
}

impl<P: PoolKind> Default for Core<P> {
    fn default() -> Self {
        Self {
            state: GilCell::default(),
        }
    }
}

struct State<P: PoolKind> {
    pool: Py<P>,
    terms: Arc<ResponseConfig>,
    template: Arc<HeaderTemplate>,
    timeouts: Timeouts,
    plain: bool,
    cookies: Option<Py<PyAny>>,
    base: Option<Base>,
    /// By `scheme://authority`. `None`: Python decides.
    origins: HashMap<Box<str>, Option<CachedOrigin<P>>>,
}

/// How an origin is reached.
struct CachedOrigin<P: PoolKind> {
    pool: Py<P>,
    route: Arc<Route>,
    /// The value of Host.
    host: Box<[u8]>,
}

/// A base URL, for relative ones.
struct Base {
    origin: Box<str>,
    /// Ends with a slash.
    path: Box<str>,
}

/// A plain call, understood.
pub struct Found<'py, P: PoolKind> {
    pub pool: Bound<'py, P>,
    pub request: Prepared,
    pub options: CallOptions,
    pub terms: Arc<ResponseConfig>,
    pub follow_redirects: bool,
}

impl<P: PoolKind> Core<P> {
    /// `None`: not plain.
    pub fn find<'py>(
        &self,
        client: &Bound<'py, PyAny>,
        method: &Bound<'py, PyString>,
        url: &Bound<'py, PyAny>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Found<'py, P>>> {
        let py = client.py();
        let Ok(url) = url.cast_exact::<PyString>() else {
            return Ok(None);
        };
        let (terms, template, cookies) = {
            let state = self.state.open(py);
            let state = state.as_ref().ok_or_else(not_set_up)?;
            if !state.plain || state.template.needs_python {
                return Ok(None);
            }
            let cookies = state.cookies.as_ref().map(|cookies| cookies.clone_ref(py));
            (
                Arc::clone(&state.terms),
                Arc::clone(&state.template),
                cookies,
            )
        };
        if cookies.is_some_and(|cookies| cookies.is_truthy(py).unwrap_or(true)) {
            return Ok(None);
        }
        let url = url.to_str()?;
        let Some(target) = self.locate(client, url)? else {
            return Ok(None);
        };
        let Some(arguments) = FastArguments::read(arguments, &terms)? else {
            return Ok(None);
        };
        let method = method.to_str()?.as_bytes();
        let state = self.state.open(py);
        let state = state.as_ref().ok_or_else(not_set_up)?;
        let Some(Some(lane)) = state.origins.get(target.origin(state)) else {
            return Ok(None);
        };
        let Some(target) = with_query(target.text(state), arguments.query.as_deref()) else {
            return Ok(None);
        };
        let mut text = request::start(method, &lane.route, &target);
        if template
            .fill(&mut text, method, &lane.host, &arguments)?
            .is_none()
        {
            return Ok(None);
        }
        let pool = lane.pool.bind(py).clone();
        let mut options = P::terms(&pool).defaults;
        options.timeouts = arguments.timeouts.unwrap_or(state.timeouts);
        Ok(Some(Found {
            request: Prepared {
                route: Arc::clone(&lane.route),
                idempotent: request::is_idempotent(method),
                head: text,
                body: arguments.body,
            },
            pool,
            options,
            follow_redirects: arguments.follow_redirects.unwrap_or(terms.follow_redirects),
            terms,
        }))
    }

    /// Where a URL leads; its origin is then known.
    fn locate<'a>(&self, client: &Bound<'_, PyAny>, url: &'a str) -> PyResult<Option<Target<'a>>> {
        let py = client.py();
        let Some(plain) = FastUrl::parse(url) else {
            let state = self.state.open(py);
            let based = state.as_ref().is_some_and(|state| state.base.is_some());
            return Ok((based && is_relative(url)).then_some(Target::Relative(url)));
        };
        {
            let state = self.state.open(py);
            let known = state
                .as_ref()
                .and_then(|state| state.origins.get(plain.origin));
            if let Some(lane) = known {
                return Ok(lane.is_some().then_some(Target::Absolute(plain)));
            }
        }
        let known = self.learn(client, &plain)?;
        Ok(known.then_some(Target::Absolute(plain)))
    }

    /// Asks Python how an origin is reached. False: not by us.
    fn learn(&self, client: &Bound<'_, PyAny>, url: &FastUrl<'_>) -> PyResult<bool> {
        let py = client.py();
        let (scheme, default) = if url.secure {
            ("https", 443)
        } else {
            ("http", 80)
        };
        let port = url.port.unwrap_or(default);
        let host = url.host.to_ascii_lowercase();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let pool = client.call_method1(intern!(py, "_origin_pool"), (scheme, bare, port))?;
        let lane = if pool.is_none() {
            None
        } else {
            let pool = pool.cast_into::<P>()?;
            let origin = Origin {
                secure: url.secure,
                host: host.as_bytes(),
                port,
            };
            let route = P::route(&pool, &origin)?;
            let host = match url.port {
                Some(port) => format!("{host}:{port}"),
                None => host,
            };
            Some(CachedOrigin {
                pool: pool.unbind(),
                route,
                host: host.into_bytes().into(),
            })
        };
        let known = lane.is_some();
        let mut state = self.state.open(py);
        let state = state.as_mut().ok_or_else(not_set_up)?;
        let forgotten = if state.origins.len() >= MAX_CACHED_ORIGINS {
            std::mem::take(&mut state.origins)
        } else {
            HashMap::new()
        };
        state.origins.insert(url.origin.into(), lane);
        drop(forgotten);
        Ok(known)
    }
}

enum Target<'a> {
    Absolute(FastUrl<'a>),
    Relative(&'a str),
}

impl<'a> Target<'a> {
    fn origin<'s, P: PoolKind>(&'s self, state: &'s State<P>) -> &'s str {
        match self {
            Self::Absolute(url) => url.origin,
            Self::Relative(_) => state.base.as_ref().map_or("", |base| &base.origin),
        }
    }

    fn text<P: PoolKind>(&self, state: &State<P>) -> Cow<'a, [u8]> {
        match self {
            Self::Absolute(url) if url.target.is_empty() => b"/"[..].into(),
            Self::Absolute(url) => url.target.as_bytes().into(),
            Self::Relative(url) => {
                let base = state.base.as_ref().map_or("/", |base| &base.path);
                format!("{base}{}", url.trim_start_matches('/'))
                    .into_bytes()
                    .into()
            }
        }
    }
}

/// `None`: there is a query already, or it would be one that a URL is too long with.
fn with_query<'a>(target: Cow<'a, [u8]>, query: Option<&[u8]>) -> Option<Cow<'a, [u8]>> {
    let Some(query) = query else {
        return Some(target);
    };
    let fits = target.len() + query.len() < MAX_TARGET_BYTES && !target.contains(&b'?');
    fits.then(|| [&target, &b"?"[..], query].concat().into())
}

/// A path that a base URL is put in front of, without any doubt.
fn is_relative(url: &str) -> bool {
    url.starts_with('/') && !url.starts_with("//") && is_canonical_target(url)
}

fn not_set_up() -> PyErr {
    PyRuntimeError::new_err("__init__ of the client has not been called")
}

/// What `_configure` is given.
pub struct Setup<'a, 'py, P: PoolKind> {
    pub pool: Py<P>,
    pub response: &'a Bound<'py, PyType>,
    pub base_url: &'a str,
    pub headers: Option<&'a Bound<'py, PyAny>>,
    pub timeout: Option<&'a Bound<'py, PyAny>>,
    pub follow_redirects: bool,
    pub retry_statuses: Vec<u16>,
    pub max_response_size: Option<u64>,
    pub max_decompressed_size: Option<u64>,
    pub default_encoding: &'a str,
    pub json_loads: Option<Py<PyAny>>,
    pub json_dumps: Option<Py<PyAny>>,
}

impl<P: PoolKind> Core<P> {
    pub fn set_up(&self, client: &Bound<'_, PyAny>, setup: Setup<'_, '_, P>) -> PyResult<()> {
        let py = client.py();
        let headers = setup.headers.map(HeaderTemplate::read).transpose()?;
        let timeouts = setup
            .timeout
            .map(pool_config::timeouts_of_tuple)
            .transpose()?;
        let terms = ResponseConfig {
            response: response::response_class(setup.response)?.unbind(),
            default_encoding: setup.default_encoding.to_owned(),
            json_loads: setup.json_loads,
            json_dumps: setup.json_dumps,
            follow_redirects: setup.follow_redirects,
            retry_statuses: setup.retry_statuses,
            max_response_size: setup.max_response_size,
            max_decompressed_size: setup.max_decompressed_size,
        };
        let state = State {
            terms: Arc::new(terms),
            template: Arc::new(headers.unwrap_or_default()),
            timeouts: timeouts.unwrap_or(P::terms(setup.pool.bind(py)).defaults.timeouts),
            plain: false,
            cookies: None,
            base: None,
            origins: HashMap::new(),
            pool: setup.pool,
        };
        let before = self.state.open(py).replace(state);
        drop(before);
        self.set_base(client, setup.base_url)
    }

    pub fn set_headers(&self, headers: &Bound<'_, PyAny>) -> PyResult<()> {
        let template = Arc::new(HeaderTemplate::read(headers)?);
        let mut state = self.state.open(headers.py());
        state.as_mut().ok_or_else(not_set_up)?.template = template;
        Ok(())
    }

    pub fn pool(&self, py: Python<'_>) -> PyResult<Py<P>> {
        let state = self.state.open(py);
        Ok(state.as_ref().ok_or_else(not_set_up)?.pool.clone_ref(py))
    }

    pub fn is_fast_path(&self, py: Python<'_>) -> bool {
        let state = self.state.open(py);
        state.as_ref().is_some_and(|state| state.plain)
    }

    pub fn set_fast_path(&self, py: Python<'_>, plain: bool) -> PyResult<()> {
        self.state.open(py).as_mut().ok_or_else(not_set_up)?.plain = plain;
        Ok(())
    }

    pub fn cookies(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.state.open(py);
        let cookies = state.as_ref()?.cookies.as_ref()?;
        Some(cookies.clone_ref(py))
    }

    pub fn set_cookies(&self, py: Python<'_>, cookies: Option<Py<PyAny>>) -> PyResult<()> {
        let before = {
            let mut state = self.state.open(py);
            let state = state.as_mut().ok_or_else(not_set_up)?;
            std::mem::replace(&mut state.cookies, cookies)
        };
        drop(before);
        Ok(())
    }

    /// Takes a base URL where joining is certain; Python joins the others.
    fn set_base(&self, client: &Bound<'_, PyAny>, base_url: &str) -> PyResult<()> {
        let Some(plain) = FastUrl::parse(base_url) else {
            return Ok(());
        };
        if plain.target.contains('?') || !self.learn(client, &plain)? {
            return Ok(());
        }
        let mut path = plain.target.to_owned();
        if !path.ends_with('/') {
            path.push('/');
        }
        let base = Base {
            origin: plain.origin.into(),
            path: path.into(),
        };
        if let Some(state) = self.state.open(client.py()).as_mut() {
            state.base = Some(base);
        }
        Ok(())
    }
}

/// Upper case is what the methods of the registry are, and what users mean.
pub fn upper_case<'py>(method: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyString>> {
    let text = method.to_str()?;
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(PyString::new(method.py(), &text.to_uppercase()));
    }
    Ok(method.clone())
}
