"""The common part of `Client` and `AsyncClient`: settings, building requests, choosing transports. No I/O."""

from __future__ import annotations

import ssl
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._codings import ACCEPT_ENCODING
from .._version import __version__
from ..errors import ClientClosed, ConfigError, UsageError
from . import environment, flow, hints, observe, transport_choice
from .auth import Auth, AuthTypes, BasicAuth, build_auth
from .cookies import Cookies, CookieTypes
from .headers import Headers, HeaderTypes, ObservedHeaders
from .mounts import Mounts
from .options import (
    TLS,
    UNSET,
    AltSvcTypes,
    CertTypes,
    Limits,
    PoolOptions,
    Proxy,
    Retry,
    Timeout,
    TimeoutTypes,
    tls_of,
)
from .query import QueryParams, QueryParamTypes
from .request import Request
from .response import Response
from .status_retry import Budget
from .url import DEFAULT_PORTS, URL

EventHooks: TypeAlias = Mapping[str, Sequence[Callable[[Any], Any]]]

# There is no Connection header: HTTP/1.1 keeps connections open by default.
_DEFAULT_HEADERS = (
    (b"Accept", b"*/*"),
    (b"Accept-Encoding", ACCEPT_ENCODING),
    (b"User-Agent", f"towline/{__version__}".encode("ascii")),
)
SentParts: TypeAlias = "tuple[str, str, list[tuple[bytes, bytes]], bytes, list[float | None], bool]"


class BaseClient:
    """The constructor and the properties of both clients; docs/call.md explains each argument."""

    _is_async: bool
    _configure: Any  # of the native base class
    _fast_path: bool
    _cookies: Any

    @hints.explained(hints.CLIENT, "a client takes named arguments only; write Client(base_url=...)")
    def __init__(
        self,
        *,
        base_url: URL | str = "",
        headers: HeaderTypes = None,
        params: QueryParamTypes = None,
        cookies: CookieTypes = None,
        auth: AuthTypes = None,
        verify: bool | str | ssl.SSLContext | TLS = True,
        cert: CertTypes | None = None,
        trust_env: bool = True,
        http1: bool = True,
        http2: bool = False,
        http3: bool | Literal["prior"] = False,
        early_data: bool = False,
        alt_svc: AltSvcTypes | None = None,
        proxy: Proxy | URL | str | None = None,
        mounts: Mapping[str, Any] | None = None,
        transport: Any = None,
        follow_redirects: bool = False,
        max_redirects: int = 20,
        credential_headers: Iterable[str] = (),
        event_hooks: EventHooks | None = None,
        timeout: TimeoutTypes = UNSET,
        limits: Limits | None = None,
        retries: Retry | int | None = UNSET,
        stream_window: int = 65536,
        max_stream_window: int = 4194304,
        max_header_size: int = 102400,
        max_header_count: int = 5000,
        max_interim_responses: int = 100,
        max_response_size: int | None = None,
        max_decompressed_size: int | None = None,
        tcp_keepalive: tuple[int, int, int] | None = (60, 30, 5),
        happy_eyeballs_delay: float = 0.25,
        resolve: Mapping[str, Any] | None = None,
        local_address: str | None = None,
        uds: str | None = None,
        default_encoding: str | Callable[[bytes], str] = "utf-8",
        json_loads: Callable[[Any], Any] | None = None,
        json_dumps: Callable[[Any], bytes | str] | None = None,
    ) -> None:
        """Makes a client. Opens no connection. Raises ConfigError for an invalid argument.

        What every request has:

        - base_url: URL that relative URLs are appended to (default ""). Its path counts as a folder
        - headers: headers of every request; a call's replace those of the same name (default None)
        - params: query parameters of every request (default None)
        - cookies: cookies that the jar starts with (default None)
        - auth: `(user, password)`, an `Auth`, or a function that changes the request (default None)

        TLS and the environment:

        - verify: True trusts the platform's certificates; a path, those of a file or folder; False, any; also a `TLS` or
          an `ssl.SSLContext` (default True)
        - cert: client certificate: its path, or `(certificate, key)` or `(certificate, key, password)` (default None)
        - trust_env: read proxies and trusted certificates from the environment (default True)

        Versions of HTTP:

        - http1: allow HTTP/1.1 (default True)
        - http2: offer HTTP/2 to https servers; with `http1=False` require it (default False)
        - http3: use HTTP/3 where an origin has advertised it; "prior": from the first call (default False)
        - early_data: send calls of safe methods in early data, 0-RTT, over HTTP/3 (default False)
        - alt_svc: file that keeps what origins have advertised, or `{"host": value of Alt-Svc}` (default None)

        The way to the server:

        - proxy: URL of a proxy (http, https, socks5, socks5h) or a `Proxy` (default None: from the environment)
        - mounts: transports by URL pattern; the most specific pattern wins (default None)
        - transport: a name (`"httpx"`), an import string or an object that sends in place of the engine (default None)
        - resolve: addresses by host or `"host:port"`, instead of name resolution (default None)
        - local_address: address that connections are made from (default None: the system's choice)
        - uds: path of a Unix socket that all connections go to (default None)
        - happy_eyeballs_delay: seconds before the next address is tried beside the first (RFC 8305; default 0.25)
        - tcp_keepalive: `(idle seconds, interval seconds, count)` of TCP keep-alive; None: off (default (60, 30, 5))

        Redirects, retries and hooks:

        - follow_redirects: follow redirects (default False)
        - max_redirects: number of redirects before TooManyRedirects (default 20)
        - credential_headers: further headers that are not sent to another origin after a redirect (default ())
        - retries: a `Retry`, or the number of retries; None: none (default `Retry()`: one more attempt to connect)
        - event_hooks: `{"request": [...], "response": [...]}`, functions that are called with each (default None)

        Limits; None means no limit:

        - timeout: seconds of each phase, `(connect, read, write, pool)` or a `Timeout` (default `Timeout()`: 5 s to
          connect, 60 s of silence)
        - limits: the `Limits` of the connection pool (default `Limits()`: 1000 connections, 100 to one host)
        - stream_window: bytes of a response that the program has not read, over HTTP/2 and HTTP/3 (default 65536)
        - max_stream_window: bytes to which this window grows while the program keeps up (default 4194304)
        - max_header_size: bytes of all headers of a response (default 102400)
        - max_header_count: number of headers of a response (default 5000)
        - max_interim_responses: number of 1xx responses to one request (default 100)
        - max_response_size: bytes of a response body as sent (default None)
        - max_decompressed_size: bytes of a response body after decoding (default None)

        Text and JSON:

        - default_encoding: charset of text that names none, or a function of the bytes (default "utf-8")
        - json_loads: function that parses JSON (default None: the native parser)
        - json_dumps: function that writes JSON (default None: the native writer)
        """
        tls = tls_of(verify, cert)
        self._options = PoolOptions(
            tls=environment.with_trust(tls, trust_env),
            check_tls=isinstance(tls, TLS) and tls.names_files,
            http1=http1,
            http2=http2,
            http3=http3,
            early_data=early_data,
            alt_svc=alt_svc,
            timeout=Timeout.of(timeout),
            limits=Limits.of(limits),
            retries=Retry() if retries is UNSET else Retry.of(retries),
            stream_window=stream_window,
            max_stream_window=max_stream_window,
            max_header_size=max_header_size,
            max_header_count=max_header_count,
            max_interim_responses=max_interim_responses,
            max_response_size=max_response_size,
            max_decompressed_size=max_decompressed_size,
            tcp_keepalive=tcp_keepalive,
            happy_eyeballs_delay=happy_eyeballs_delay,
            resolve=resolve or {},
            local_address=local_address,
            uds=uds,
        )
        self._trust_env = trust_env
        self._transport, self._stream_transport = self._choose_transports(transport)
        self._mounts = Mounts(mounts)
        self._proxies = environment.proxies_of(
            Proxy.of(proxy), uds=uds, trust_env=trust_env, is_used=transport is None
        )
        self._pools: dict[Proxy | None, Any] = {}
        self._transports_by_name: dict[str, Any] = {}
        self._closed = False
        self._initialized = False
        # objects that the program holds, too, and may change at any time: they rule out the fast path
        self._exposed: set[str] = set() if cookies is None else {"jar"}
        self._retry = self._options.retries
        self._budget = None if self._retry.budget is None else Budget(self._retry.budget)
        self._timeout = self._options.timeout
        self._default_encoding = default_encoding
        self._json_loads, self._json_dumps = json_loads, json_dumps
        self._params = QueryParams(params)
        self._auth = build_auth(auth)
        self._follow_redirects = follow_redirects
        self.max_redirects = max_redirects
        self._credential_headers = frozenset(name.lower() for name in credential_headers)
        self._event_hooks: dict[str, list[Callable[[Any], Any]]]
        self._tracer: Any = UNSET  # of `towline.opentelemetry`; UNSET: the global one, None: none
        self.event_hooks = event_hooks or {}
        self.base_url = URL(base_url)
        self.headers = headers
        self._jar = Cookies(cookies)
        self._initialized = True
        self._refresh()
        if (always := self._proxies.always) is not None and always.tls is not None:
            self._pool_for(always)  # reads the files of its TLS

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            own = hints.ASYNC_CLIENT_NAMES if self._is_async else hints.SYNC_CLIENT_NAMES
            raise hints.missing(type(self).__name__, name, own, hints.CLIENT_NAMES, known=dir(type(self)))

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_initialized", False) and not self._closed:
            how = "await client.aclose()" if self._is_async else "client.close()"
            _warn(f"unclosed {self!r}; use `with`, or {how}", ResourceWarning, stacklevel=2, source=self)

    # --- settings that may change between calls ---

    @property
    def base_url(self) -> URL:
        """The URL that relative URLs are appended to."""
        return self._base_url

    @base_url.setter
    def base_url(self, url: URL | str) -> None:
        url = URL(url)
        self._base_url = url if url.raw_path.endswith(b"/") else url.copy_with(raw_path=url.raw_path + b"/")
        self._refresh()

    @property
    def headers(self) -> Headers:
        """Headers of every request; those of a call replace them."""
        return self._headers

    @headers.setter
    def headers(self, headers: HeaderTypes) -> None:
        merged = Headers._of_wire(_DEFAULT_HEADERS)
        merged.update(headers)
        self._headers: Headers = ObservedHeaders(merged, self._refresh)
        self._refresh()

    @property
    def params(self) -> QueryParams:
        """Query parameters of every request."""
        return self._params

    @params.setter
    def params(self, params: QueryParamTypes) -> None:
        self._params = QueryParams(params)
        self._refresh()

    @property
    def cookies(self) -> Cookies:
        """The cookie jar: the given cookies, and those that responses have set since."""
        self._exposed.add("jar")
        self._cookies = self._jar
        return self._jar

    @cookies.setter
    def cookies(self, cookies: CookieTypes) -> None:
        self._jar = Cookies(cookies)
        self._exposed.add("jar")
        self._cookies = self._jar

    @property
    def auth(self) -> Auth | None:
        """The authentication of every call; None: none."""
        return self._auth

    @auth.setter
    def auth(self, auth: AuthTypes) -> None:
        self._auth = build_auth(auth)
        self._refresh()

    @property
    def timeout(self) -> Timeout:
        """The timeouts of every call."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: TimeoutTypes) -> None:
        self._timeout = Timeout.of(timeout)
        self._refresh()

    @property
    def follow_redirects(self) -> bool:
        """Whether calls follow redirects."""
        return self._follow_redirects

    @follow_redirects.setter
    def follow_redirects(self, follow: bool) -> None:
        self._follow_redirects = follow
        self._refresh()

    @property
    def event_hooks(self) -> dict[str, list[Callable[[Any], Any]]]:
        """`{"request": [...], "response": [...]}`: called with each request before it is sent, each response before it is read."""
        self._exposed.add("hooks")
        self._refresh()
        return self._event_hooks

    @event_hooks.setter
    def event_hooks(self, hooks: EventHooks) -> None:
        if unknown := set(hooks) - {"request", "response"}:
            raise ConfigError(
                f"event_hooks: {', '.join(sorted(unknown))} is unknown; there are 'request' and 'response'"
            )
        self._event_hooks = {name: list(hooks.get(name, ())) for name in ("request", "response")}
        self._refresh()

    @property
    def trust_env(self) -> bool:
        """Whether the client reads proxies, certificates and netrc from the environment."""
        return self._trust_env

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed."""
        return self._closed

    # --- requests ---

    @hints.explained(
        hints.CALL, "expected the method and the URL; name the other arguments, params=... for example"
    )
    def build_request(
        self,
        method: str,
        url: URL | str,
        *,
        content: Any = None,
        data: Any = None,
        files: Any = None,
        json: Any = None,
        params: QueryParamTypes = None,
        headers: HeaderTypes = None,
        cookies: CookieTypes = None,
        timeout: TimeoutTypes = UNSET,
        retries: Retry | int | None = UNSET,
        progress: Callable[[Any], Any] | None = None,
        transport: Any = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> Request:
        """Builds the request that a call with these arguments sends, for `send()`. The arguments are those of `request`."""
        request = self._build(method, url, params, headers, extensions, content, data, files, json)
        optional = {"progress": progress, "transport": transport}
        request.extensions.update({name: value for name, value in optional.items() if value is not None})
        if "timeout" not in request.extensions:
            chosen = self._timeout if timeout is UNSET else Timeout.of(timeout)
            request.extensions["timeout"] = chosen.as_dict()
        if retries is not UNSET:
            request.extensions["retries"] = Retry.of(retries)
        self._add_cookies(request, cookies)
        return request

    def _build(
        self, method: str, url: Any, params: Any, headers: Any, extensions: Any, *body: Any
    ) -> Request:
        content, data, files, json = body
        merged = Headers(self._headers)
        merged.update(headers)
        return Request(
            method,
            self._merged_url(url),
            params=self._params.merge(params) if self._params else params,
            headers=merged,
            content=content,
            data=data,
            files=files,
            json=json,
            extensions=dict(extensions or {}),
            json_dumps=self._json_dumps,
        )

    def _merged_url(self, url: URL | str) -> URL:
        """Appends a relative URL to `base_url`, whose path counts as a folder, with or without a trailing slash."""
        url = url if type(url) is URL else URL(url)
        if url.is_relative_url and self._base_url._host and not url.scheme:
            return self._base_url.copy_with(raw_path=self._base_url.raw_path + url.raw_path.lstrip(b"/"))
        return url

    def _add_cookies(self, request: Request, cookies: CookieTypes) -> None:
        if cookies:
            merged = Cookies()
            merged.update(self._jar)
            merged.update(cookies)
            merged.set_cookie_header(request)
        else:
            self._jar.set_cookie_header(request)

    @staticmethod
    def _rebuild_request(sent: SentParts) -> Request:
        """Makes the `Request` of a call on the fast path from what was sent."""
        method, url, headers, content, timeouts, _ = sent
        timeout = dict(zip(("connect", "read", "write", "pool", "total"), timeouts, strict=True))
        return Request(
            method,
            url,
            headers=Headers._of_wire(headers),
            content=content or None,
            extensions={"timeout": timeout},
        )

    # --- settings and transports of a call ---

    def _call_settings(
        self, request: Request, auth: Any, follow_redirects: Any, elapsed: float = 0.0
    ) -> flow.CallSettings:
        if self._closed:
            raise ClientClosed("the client is closed; make a new one, or send inside its `with` block")
        seconds = request.extensions.setdefault("timeout", self._timeout.as_dict())
        total = seconds.get("total")
        retry = request.extensions.get("retries")
        return flow.CallSettings(
            auth=self._auth_of(request, auth),
            follow_redirects=self._follow_redirects if follow_redirects is UNSET else bool(follow_redirects),
            max_redirects=self.max_redirects,
            retry=self._retry if retry is None else Retry.of(retry),
            cookies=self._jar,
            budget=self._budget,
            request_hooks=self._event_hooks["request"],
            response_hooks=self._event_hooks["response"],
            deadline=None if total is None else time.monotonic() + total - elapsed,
            credential_headers=self._credential_headers,
        )

    def _auth_of(self, request: Request, auth: Any) -> Auth | None:
        chosen = self._auth if auth is UNSET else build_auth(auth)
        if chosen is None and request.url.userinfo:
            return BasicAuth(request.url.username, request.url.password)
        return chosen

    def _transport_for(self, request: Request) -> Any:
        transport = self._chosen_transport(request)
        if (mocked := observe.interceptor()) is not None and getattr(transport, "uses_network", False):
            return mocked
        return transport

    def _chosen_transport(self, request: Request) -> Any:
        """The transport of the call, of a mount or of the client (for streams maybe another one), or a native pool."""
        if (named := request.extensions.get("transport")) is not None:
            return self._resolve_transport(named)
        found, mounted = self._mounts.find(request.url)
        if mounted is not None:
            return mounted
        transport = self._stream_transport if request._streamed else self._transport
        if transport is not None:
            return transport
        url = request.url
        proxy = (
            None
            if found
            else self._proxies.of(url.scheme, url._host, url.port or DEFAULT_PORTS.get(url.scheme, 0))
        )
        return self._native_transport(self._pool_for(proxy))

    def _origin_pool(self, scheme: str, host: str, port: int) -> Any:
        """Called by the native base class once per origin. None: calls to it go through `_slow_request`."""
        if self._mounts or self._transport is not None:
            return None
        return self._pool_for(self._proxies.of(scheme, host, port))

    def _pool_for(self, proxy: Proxy | None) -> Any:
        pool = self._pools.get(proxy)
        if pool is None:
            pool = self._pools.setdefault(proxy, self._new_pool(proxy))
        return pool

    def _new_pool(self, proxy: Proxy | None) -> Any:
        raise NotImplementedError("a subclass creates its kind of native pool")

    def _native_transport(self, pool: Any) -> Any:
        raise NotImplementedError("a subclass creates the transport over its kind of pool")

    def _resolve_transport(self, transport: Any) -> Any:
        if not isinstance(transport, str):
            return transport_choice.wrap(transport, self._is_async)
        if transport not in self._transports_by_name:
            self._transports_by_name[transport] = transport_choice.by_name(transport, self._is_async)
        named = self._transports_by_name[transport]
        return self._native_transport(self._pool_for(None)) if named is None else named

    def _choose_transports(self, transport: Any) -> tuple[Any, Any]:
        """Returns the client's transport and the one for streams. None: native."""
        if isinstance(transport, str):
            transport = transport_choice.by_name(transport, self._is_async)
        elif transport is not None:
            transport = transport_choice.wrap(transport, self._is_async)
        else:
            return transport_choice.configured(self._is_async, self._trust_env)
        return transport, transport

    def _refresh(self) -> None:
        """Passes the current settings to the native base class."""
        if not self._initialized:
            return
        timeout = self._timeout
        callable_encoding = callable(self._default_encoding)
        self._configure(
            self._pool_for(None),
            Response,
            base_url=str(self._base_url) if self._base_url._host else "",
            headers=self._headers.raw,
            timeout=(timeout.connect, timeout.read, timeout.write, timeout.pool, timeout.total),
            follow_redirects=self._follow_redirects,
            retry_statuses=self._retry.status,
            max_response_size=self._options.max_response_size,
            max_decompressed_size=self._options.max_decompressed_size,
            default_encoding="utf-8" if callable_encoding else self._default_encoding,
            json_loads=self._json_loads,
            json_dumps=self._json_dumps,
        )
        self._cookies = self._jar if self._jar or "jar" in self._exposed else None
        self._fast_path = not (
            self._auth
            or self._params
            or self._mounts
            or self._transport is not None
            or any(self._event_hooks.values())
            or "hooks" in self._exposed
            or callable_encoding
            or self._tracer is not UNSET
            or (self._budget is not None and self._retry.status)
        )

    def _resume(self, response: Response, elapsed: float = 0.0) -> tuple[flow.CallSettings, Request]:
        """Returns settings and request for the rest of a call on the fast path. `elapsed`: seconds so far, if its body is unread."""
        request = response.request
        follow = UNSET if response._sent is None else response._sent[5]
        return self._call_settings(request, None, follow, response._elapsed or elapsed), request

    def _finish_response(self, response: Response, request: Request | None) -> Response:
        """Sets the attributes of a response that leaves the flow. `request` is None for an unchanged fast path response."""
        response._max_size = self._options.max_response_size
        response._max_decoded = self._options.max_decompressed_size
        if self._credential_headers:
            response._credential_headers = self._credential_headers
        if request is None:
            return response
        response._default_encoding = self._default_encoding
        if self._json_loads is not None:
            response._loads = self._json_loads
        response._progress = request.extensions.get("progress")
        if self._jar and self._cookies is None:
            self._cookies = self._jar
        return response

    def _prewarm_target(self, url: URL | str) -> tuple[Any, bytes, bytes, int | None]:
        if observe.interceptor() is not None:
            raise UsageError("prewarm: a mock replaces the network")
        url = self._merged_url(url)
        if url.scheme not in ("http", "https") or not url._host:
            raise UsageError(f"prewarm: expected an http or https URL, not {repr(url)[4:-1]}")
        pool = self._origin_pool(url.scheme, url._host, url.port or DEFAULT_PORTS[url.scheme])
        if pool is None:
            raise UsageError(
                "prewarm: a custom transport serves this URL; only Towline's own pool can be prewarmed"
            )
        return pool, url.raw_scheme, url.raw_host, url.port

    def pool_status(self) -> dict[str, int]:
        """Returns the numbers of connections that are `active`, `idle` and `connecting`, and of calls `waiting` for one.

        They are summed over the pools of this client: one for direct connections, and one for each proxy.
        """
        total = dict.fromkeys(("active", "idle", "connecting", "waiting"), 0)
        for pool in list(self._pools.values()):
            for name, count in pool.pool_status().items():
                total[name] += count
        return total

    def _own_transports(self) -> list[Any]:
        """The transports that are entered and closed with the client."""
        own = [
            self._transport,
            self._stream_transport,
            *self._mounts.transports,
            *self._transports_by_name.values(),
        ]
        return list({id(transport): transport for transport in own if transport is not None}.values())

    def __repr__(self) -> str:
        base = f"base_url={repr(self._base_url)[4:-1]}" if self._base_url._host else ""
        return f"<towline.{type(self).__name__} {base}{' closed' if self._closed else ''}>".replace(" >", ">")
