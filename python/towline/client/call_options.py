"""Types of the arguments of a call, for type checkers and editors.

The clients take them as keyword arguments (`client.get(url, params=..., timeout=...)`): PEP 692.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import ssl

    from .auth import AuthTypes
    from .cookies import CookieTypes
    from .encode import RequestContent, RequestData
    from .headers import HeaderTypes
    from .multipart import RequestFiles
    from .options import TLS, CertTypes, Proxy, Retry, TimeoutTypes
    from .query import QueryParamTypes
    from .transports import AsyncBaseTransport, BaseTransport
    from .url import URL


class HandshakeOptions(TypedDict, total=False):
    """Arguments of `websocket` besides its own; `CallOptions` explains them."""

    params: QueryParamTypes
    headers: HeaderTypes
    cookies: CookieTypes
    timeout: TimeoutTypes
    retries: Retry | int | None
    extensions: Mapping[str, Any] | None


class BuildOptions(HandshakeOptions, total=False):
    """Arguments of `build_request`; `CallOptions` explains them."""

    content: RequestContent | None
    data: RequestData | None
    files: RequestFiles | None
    json: Any
    progress: Callable[[Any], Any] | None
    transport: str | BaseTransport | AsyncBaseTransport | Any


class CallOptions(BuildOptions, total=False):
    """Arguments of `request`, `get`, `post` and the other methods, and of `stream`.

    - params: query parameters, appended to those of the URL and of the client (default None)
    - headers, cookies: added to those of the client; a header replaces the client's of the same name (default None)
    - content: the body as bytes, text (sent as UTF-8), a binary file or an iterable of bytes (default None)
    - data: the fields of a form, `application/x-www-form-urlencoded` (default None)
    - files: file name or content by field name, sent as `multipart/form-data` (RFC 7578), together with `data` (default
      None)
    - json: any value that JSON can express, sent as `application/json` (default None)
    - auth: `(user, password)`, an `Auth`, or a function that changes the request. None: not even the client's (default:
      the client's)
    - follow_redirects: follow redirects (default: as the client, which does not)
    - timeout: seconds of each phase, `(connect, read, write, pool, total)` or a `Timeout`. None: no limit (default: the
      client's)
    - retries: a `Retry`, or the number of retries. None or 0: none at all (default: the client's)
    - progress: called with a `Progress` while the body is sent and received (default None)
    - transport: `"native"`, `"httpx"`, `"urllib3"`, `"aiohttp"`, `"module:Class"` or an object, for this call (default: the
      client's)
    - extensions: `target`, `sni_hostname`, `trace` and others, as in httpx (default None)
    """

    auth: AuthTypes
    follow_redirects: bool


class SingleCallOptions(CallOptions, total=False):
    """Arguments of `towline.get` and the other functions, which make a client for one call: those of `CallOptions`, and

    - verify, cert, trust_env, proxy, mounts: as for `Client` (default True, None, True, None and None)
    """

    verify: bool | str | ssl.SSLContext | TLS
    cert: CertTypes | None
    trust_env: bool
    proxy: Proxy | URL | str | None
    mounts: Mapping[str, Any] | None
