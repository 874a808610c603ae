//! The common part of the native `ClientCore` and `AsyncClientCore`: decides whether a call can take the fast path,
//! and builds its request. Other calls go through `_slow_request`, in Python.
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::PyClass;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use towline_io::client::{CallOptions, OutgoingRequest, Route, Timeouts};

use super::call_log;
use super::fast_path::{
    FastArguments, FastUrl, HeaderTemplate, MAX_TARGET_BYTES, is_canonical_target, split_origin,
};
use super::pool_config::{self, PoolConfig};
use super::request::{self, Origin};
use super::response;
use super::response_config::ResponseConfig;
use towline_py_common::cell::StateCell;

/// Bound of the cache of origins; when it is reached the cache is cleared.
const MAX_CACHED_ORIGINS: usize = 1024;

/// The pool type of a client: `SyncPool` or `AsyncPool`.
pub trait PoolKind: PyClass {
    fn config<'a>(pool: &'a Bound<'_, Self>) -> &'a PoolConfig;

    fn route(pool: &Bound<'_, Self>, origin: &Origin<'_>) -> PyResult<Arc<Route>>;
}

/// The state of a client, empty before `_configure`.
pub struct Core<P: PoolKind> {
    state: StateCell<Option<State<P>>>,
}

impl<P: PoolKind> Default for Core<P> {
    fn default() -> Self {
        Self {
            state: StateCell::default(),
        }
    }
}

struct State<P: PoolKind> {
    pool: Py<P>,
    config: Arc<ResponseConfig>,
    template: Arc<HeaderTemplate>,
    timeouts: Timeouts,
    fast_path: bool,
    cookies: Option<Py<PyAny>>,
    base_url: Option<BaseUrl<P>>,
    /// By `scheme://authority`. `None`: calls to this origin go through Python.
    origins: HashMap<Box<str>, Option<Arc<CachedOrigin<P>>>>,
}

/// An origin whose pool and route are known.
struct CachedOrigin<P: PoolKind> {
    pool: Py<P>,
    route: Arc<Route>,
    /// The value of the Host header.
    host: Box<[u8]>,
}

/// An origin, and the path and query of a URL there.
type Located<'a, P> = (Arc<CachedOrigin<P>>, Cow<'a, [u8]>);

/// The URL that relative URLs are appended to.
struct BaseUrl<P: PoolKind> {
    origin: Arc<CachedOrigin<P>>,
    /// Ends with a slash.
    path: Box<str>,
}

/// A call on the fast path, ready to be sent.
pub struct FastCall<'py, P: PoolKind> {
    pub pool: Bound<'py, P>,
    pub request: OutgoingRequest,
    pub options: CallOptions,
    pub config: Arc<ResponseConfig>,
    pub follow_redirects: bool,
}

impl<P: PoolKind> Core<P> {
    /// Returns `None` if the call cannot take the fast path.
    pub fn resolve<'py>(
        &self,
        client: &Bound<'py, PyAny>,
        method: &Bound<'py, PyString>,
        url: &Bound<'py, PyAny>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<FastCall<'py, P>>> {
        let py = client.py();
        let Ok(url) = url.cast_exact::<PyString>() else {
            return Ok(None);
        };
        if call_log::is_observed() {
            return Ok(None);
        }
        let (config, template, timeouts, cookies) = {
            let state = self.state.open(py);
            let state = state.as_ref().ok_or_else(not_configured)?;
            if !state.fast_path || state.template.needs_python {
                return Ok(None);
            }
            let cookies = state.cookies.as_ref().map(|cookies| cookies.clone_ref(py));
            (
                Arc::clone(&state.config),
                Arc::clone(&state.template),
                state.timeouts,
                cookies,
            )
        };
        if cookies.is_some_and(|cookies| cookies.is_truthy(py).unwrap_or(true)) {
            return Ok(None);
        }
        let Some((cached, target)) = self.locate(client, url.to_str()?)? else {
            return Ok(None);
        };
        let Some(arguments) = FastArguments::read(arguments, &config)? else {
            return Ok(None);
        };
        let method = method.to_str()?.as_bytes();
        let Some(target) = with_query(target, arguments.query.as_deref()) else {
            return Ok(None);
        };
        let mut text = request::start_head(method, &cached.route, &target);
        if template
            .fill(&mut text, method, &cached.host, &arguments)?
            .is_none()
        {
            return Ok(None);
        }
        let pool = cached.pool.bind(py).clone();
        let mut options = P::config(&pool).defaults;
        options.timeouts = arguments.timeouts.unwrap_or(timeouts);
        Ok(Some(FastCall {
            request: OutgoingRequest {
                route: Arc::clone(&cached.route),
                idempotent: request::is_idempotent(method),
                head: text.into(),
                body: arguments.body,
            },
            pool,
            options,
            follow_redirects: arguments
                .follow_redirects
                .unwrap_or(config.follow_redirects),
            config,
        }))
    }

    /// The origin of a URL, and its path and query. `None`: the URL needs Python.
    fn locate<'a>(
        &self,
        client: &Bound<'_, PyAny>,
        url: &'a str,
    ) -> PyResult<Option<Located<'a, P>>> {
        let py = client.py();
        let Some((origin, target)) = split_origin(url) else {
            let state = self.state.open(py);
            let base = state.as_ref().and_then(|state| state.base_url.as_ref());
            let base = base.filter(|_| is_relative(url));
            return Ok(base.map(|base| (Arc::clone(&base.origin), base.join(url))));
        };
        let known = {
            let state = self.state.open(py);
            let state = state.as_ref().ok_or_else(not_configured)?;
            state.origins.get(origin).cloned()
        };
        let cached = match known {
            // The origin was parsed when it was cached.
            Some(cached) if is_canonical_target(target) => cached,
            _ => match FastUrl::parse(url) {
                Some(parsed) => self.cache_origin(client, &parsed)?,
                None => return Ok(None),
            },
        };
        let target = if target.is_empty() { "/" } else { target };
        Ok(cached.map(|cached| (cached, target.as_bytes().into())))
    }

    /// Calls `_origin_pool` and caches the result. `None`: a transport of the program serves this origin.
    fn cache_origin(
        &self,
        client: &Bound<'_, PyAny>,
        url: &FastUrl<'_>,
    ) -> PyResult<Option<Arc<CachedOrigin<P>>>> {
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
        let cached = if pool.is_none() {
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
            Some(Arc::new(CachedOrigin {
                pool: pool.unbind(),
                route,
                host: host.into_bytes().into(),
            }))
        };
        let mut state = self.state.open(py);
        let state = state.as_mut().ok_or_else(not_configured)?;
        let evicted = if state.origins.len() >= MAX_CACHED_ORIGINS {
            std::mem::take(&mut state.origins)
        } else {
            HashMap::new()
        };
        state.origins.insert(url.origin.into(), cached.clone());
        drop(evicted);
        Ok(cached)
    }
}

impl<P: PoolKind> BaseUrl<P> {
    /// The path and query of a relative URL.
    fn join(&self, url: &str) -> Cow<'static, [u8]> {
        let joined = format!("{}{}", self.path, url.trim_start_matches('/'));
        joined.into_bytes().into()
    }
}

/// `None`: the target has a query already, or would become too long.
fn with_query<'a>(target: Cow<'a, [u8]>, query: Option<&[u8]>) -> Option<Cow<'a, [u8]>> {
    let Some(query) = query else {
        return Some(target);
    };
    let fits = target.len() + query.len() < MAX_TARGET_BYTES && !target.contains(&b'?');
    fits.then(|| [&target, &b"?"[..], query].concat().into())
}

/// Whether `url` is a path that is simply appended to the base URL.
fn is_relative(url: &str) -> bool {
    url.starts_with('/') && !url.starts_with("//") && is_canonical_target(url)
}

fn not_configured() -> PyErr {
    PyRuntimeError::new_err("__init__ of the client has not been called")
}

/// The arguments of `_configure`.
pub struct ClientConfig<'a, 'py, P: PoolKind> {
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
    pub fn configure(
        &self,
        client: &Bound<'_, PyAny>,
        config: ClientConfig<'_, '_, P>,
    ) -> PyResult<()> {
        let py = client.py();
        let headers = config.headers.map(HeaderTemplate::read).transpose()?;
        let timeouts = config
            .timeout
            .map(pool_config::timeouts_of_tuple)
            .transpose()?;
        let response = ResponseConfig {
            response: response::response_class(config.response)?.unbind(),
            default_encoding: config.default_encoding.to_owned(),
            json_loads: config.json_loads,
            json_dumps: config.json_dumps,
            follow_redirects: config.follow_redirects,
            retry_statuses: config.retry_statuses,
            max_response_size: config.max_response_size,
            max_decompressed_size: config.max_decompressed_size,
        };
        let state = State {
            config: Arc::new(response),
            template: Arc::new(headers.unwrap_or_default()),
            timeouts: timeouts.unwrap_or(P::config(config.pool.bind(py)).defaults.timeouts),
            fast_path: false,
            cookies: None,
            base_url: None,
            origins: HashMap::new(),
            pool: config.pool,
        };
        let before = self.state.open(py).replace(state);
        drop(before);
        self.set_base(client, config.base_url)
    }

    pub fn set_headers(&self, headers: &Bound<'_, PyAny>) -> PyResult<()> {
        let template = Arc::new(HeaderTemplate::read(headers)?);
        let mut state = self.state.open(headers.py());
        state.as_mut().ok_or_else(not_configured)?.template = template;
        Ok(())
    }

    pub fn pool(&self, py: Python<'_>) -> PyResult<Py<P>> {
        let state = self.state.open(py);
        Ok(state
            .as_ref()
            .ok_or_else(not_configured)?
            .pool
            .clone_ref(py))
    }

    pub fn is_fast_path(&self, py: Python<'_>) -> bool {
        let state = self.state.open(py);
        state.as_ref().is_some_and(|state| state.fast_path)
    }

    pub fn set_fast_path(&self, py: Python<'_>, enabled: bool) -> PyResult<()> {
        let mut state = self.state.open(py);
        state.as_mut().ok_or_else(not_configured)?.fast_path = enabled;
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
            let state = state.as_mut().ok_or_else(not_configured)?;
            std::mem::replace(&mut state.cookies, cookies)
        };
        drop(before);
        Ok(())
    }

    /// Sets the base URL if the fast path can append to it; otherwise Python joins relative URLs.
    fn set_base(&self, client: &Bound<'_, PyAny>, base_url: &str) -> PyResult<()> {
        let Some(parsed) = FastUrl::parse(base_url) else {
            return Ok(());
        };
        if parsed.target.contains('?') {
            return Ok(());
        }
        let Some(origin) = self.cache_origin(client, &parsed)? else {
            return Ok(());
        };
        let mut path = parsed.target.to_owned();
        if !path.ends_with('/') {
            path.push('/');
        }
        let base = BaseUrl {
            origin,
            path: path.into(),
        };
        if let Some(state) = self.state.open(client.py()).as_mut() {
            state.base_url = Some(base);
        }
        Ok(())
    }
}

/// Returns the method in upper case, as all registered methods are (RFC 9110 16.1.1).
pub fn upper_case<'py>(method: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyString>> {
    let text = method.to_str()?;
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(PyString::new(method.py(), &text.to_uppercase()));
    }
    Ok(method.clone())
}
