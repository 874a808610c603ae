"""Error messages for names that users of httpx, requests and aiohttp give: one line that says what to write here.

Consulted only after a call has failed, so that they cost nothing otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .._suggest import closest

F = TypeVar("F", bound=Callable[..., Any])

_OF_CLIENT = "it is set for the client: Client({0}=...)"
_PROXIES = "write Client(proxy='http://...'), or mounts={'https://': ...} for a choice by URL"
_VERIFY = "TLS is set for the client: Client(verify=...), or verify=towline.TLS(...)"
CALL = {
    "allow_redirects": "write follow_redirects=True",
    "redirect": "write follow_redirects=True",
    "body": "write content=b'...', data={...} or json={...}",
    "payload": "write json={...}, data={...} or content=b'...'",
    "text": "write content='...'",
    "form": "write data={...}",
    "query": "write params={...}",
    "cookie": "write cookies={...}",
    "header": "write headers={...}",
    "stream": "write `with client.stream('GET', url) as response:`",
    "preload_content": "write `with client.stream('GET', url) as response:`",
    "proxies": _PROXIES,
    "proxy": "it is set for the client: Client(proxy='http://...')",
    "verify": _VERIFY,
    "cert": "it is set for the client: Client(cert=('chain.pem', 'key.pem'))",
    "ssl": _VERIFY,
    "verify_ssl": _VERIFY,
    "ssl_context": _VERIFY,
    "raise_for_status": "write client.get(url).raise_for_status()",
    "hooks": "write Client(event_hooks={'response': [function]})",
    "connect_timeout": "write timeout=towline.Timeout(connect=...)",
    "read_timeout": "write timeout=towline.Timeout(read=...)",
    "session": "make a Client and call its methods",
    "client": "call the methods of the client",
    "retry": "write retries=",
    "max_retries": "write retries=",
    "user_agent": "write headers={'User-Agent': ...}",
    "chunked": "an iterable given as content= is sent chunked",
    "compress": "compress the content, and set the header Content-Encoding",
    **{
        name: _OF_CLIENT.format(name)
        for name in (
            "base_url",
            "http1",
            "http2",
            "http3",
            "early_data",
            "alt_svc",
            "limits",
            "max_redirects",
            "mounts",
        )
    },
    **{
        name: _OF_CLIENT.format(name)
        for name in ("event_hooks", "trust_env", "uds", "local_address", "resolve")
    },
}
CLIENT = {
    "proxies": _PROXIES,
    "ssl": "write verify=False, a path, or towline.TLS(...)",
    "ssl_context": "write verify=context",
    "verify_ssl": "write verify=False",
    "allow_redirects": "write follow_redirects=True",
    "connector": "write limits=towline.Limits(...), verify= or uds=",
    "connector_owner": "a client owns its connections",
    "max_connections": "write limits=towline.Limits(max_connections=...)",
    "max_keepalive_connections": "write limits=towline.Limits(max_keepalive_connections=...)",
    "pool_maxsize": "write limits=towline.Limits(max_connections=...)",
    "retry": "write retries=",
    "max_retries": "write retries=",
    "app": "write transport=towline.ASGITransport(app) or towline.WSGITransport(app)",
    "hooks": "write event_hooks={'response': [function]}",
    "cookie_jar": "write cookies=jar",
    "json_serialize": "write json_dumps=function",
    "raise_for_status": "write event_hooks={'response': [towline.Response.raise_for_status]}",
    "user_agent": "write headers={'User-Agent': ...}",
    "loop": "a client works in every loop",
    "connect_timeout": "write timeout=towline.Timeout(connect=...)",
    "impersonate": "fingerprints of browsers are not imitated",
}
RESPONSE = {
    "ok": "write response.is_success",
    "status": "write response.status_code",
    "code": "write response.status_code",
    "reason": "write response.reason_phrase",
    "body": "write response.content",
    "data": "write response.content or response.json()",
    "raw": "write client.stream(...) and response.iter_raw()",
    "apparent_encoding": "write response.encoding",
    "iter_content": "write client.stream(...) and response.iter_bytes()",
    "iter_chunked": "write client.stream(...) and response.aiter_bytes()",
    "release": "write response.close() or await response.aclose()",
    "method": "write response.request.method",
    "version": "write response.http_version",
    "protocol": "write response.http_version",
    "request_info": "write response.request",
    "real_url": "write response.url",
    "is_permanent_redirect": "write response.status_code in (301, 308)",
    "next": "write response.next_request",
    "get_encoding": "write response.encoding",
    "num_bytes": "write response.num_bytes_downloaded",
}
CLIENT_NAMES = {
    "fetch": "write client.get(url)",
    "query": "write client.request('QUERY', url)",
    "session": "the client is the session",
    "mount": "write Client(mounts={'https://': transport})",
    "get_adapter": "write Client(mounts={'https://': transport})",
    "proxies": "write Client(proxy=...) or Client(mounts=...)",
    "verify": "write Client(verify=...)",
    "cert": "write Client(cert=...)",
    "hooks": "write client.event_hooks",
    "ws_connect": "write client.websocket(url)",
    "cookie_jar": "write client.cookies",
    "closed": "write client.is_closed",
    "stream_async": "write AsyncClient().stream(...)",
}
ASYNC_CLIENT_NAMES = {"close": "write await client.aclose()", "__enter__": "write `async with`"}
SYNC_CLIENT_NAMES = {"aclose": "write client.close()"}
MODULE = {
    "ClientSession": "AsyncClient",
    "AsyncSession": "AsyncClient",
    "PoolManager": "Client",
    "ClientResponseError": "StatusError",
    "ClientError": "Error",
    "ClientConnectionError": "NetworkError",
    "ClientConnectorError": "ConnectError",
    "ServerTimeoutError": "TimeoutError",
    "HTTPAdapter": "Client(limits=..., retries=...), or towline.requests.Adapter for a Session of requests",
    "TCPConnector": "Limits and TLS",
    "ClientTimeout": "Timeout",
    "HTTPProxyAuth": "Proxy(url, auth=(user, password))",
    "create_ssl_context": "TLS, or ssl.create_default_context()",
    "main": "the command `towline get URL`",
    "FormData": "data= and files=",
    "urllib3": "left out: verify=False does not warn",
    **dict.fromkeys(("check_compatibility", "warnings"), "left out: there is no urllib3 or chardet"),
}


def missing(owner: str, name: str, *tables: Mapping[str, str], known: Iterable[str] = ()) -> AttributeError:
    """The error of an attribute that does not exist."""
    hint = next((table[name] for table in tables if name in table), None)
    if (
        hint is None
        and not name.startswith("_")
        and (close := closest(name, [one for one in known if not one.startswith("_")]))
    ):
        hint = f"did you mean {close}?"
    return AttributeError(f"{owner!r} object has no attribute {name!r}" + (f"; {hint}" if hint else ""))


def explained(hints: Mapping[str, str], positional: str) -> Callable[[F], F]:
    """Improves the TypeError of a function that takes named arguments only, and was given others."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except TypeError:
                accepted = function.__kwdefaults__ or {}
                places = function.__code__.co_varnames[: function.__code__.co_argcount]
                for name in named:
                    if name not in accepted and name not in places:
                        raise unexpected(name, hints, accepted) from None
                if len(args) > len(places):
                    raise TypeError(positional) from None
                raise

        return call  # type: ignore[return-value]

    return decorate


def unexpected(name: str, hints: Mapping[str, str], accepted: Iterable[str]) -> TypeError:
    """The error of an argument that does not exist."""
    hint = hints.get(name)
    if hint is None and (close := closest(name, accepted)):
        hint = f"did you mean {close}=?"
    return TypeError(f"unexpected keyword argument {name!r}" + (f"; {hint}" if hint else ""))


def checked_pairs(argument: str, given: Any) -> list[tuple[Any, Any]]:
    """Returns the pairs of an argument that is a mapping or pairs. Raises TypeError for anything else."""
    if not isinstance(given, (str, bytes)) and hasattr(given, "__iter__"):
        pairs = list(given)
        if all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            return pairs
    shown = f"{given!r:.60}" if isinstance(given, (str, int, float)) else type(given).__name__
    raise TypeError(
        f"{argument}: expected a mapping or (name, value) pairs, not {shown}; write {argument}={{'name': 'value'}}"
    )
