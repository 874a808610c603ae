"""Redirects (RFC 9110 15.4, Fetch 4.4 "HTTP-redirect fetch"; the method is that of httpx and requests)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .._redact import is_secret, without_userinfo
from ..errors import InvalidURL, RemoteProtocolError, StreamConsumed, UnsupportedProtocol
from .encode import BytesBody
from .headers import Headers
from .request import Request
from .url import URL, origin

# "request-body-header name" of Fetch, and the framing
_BODY_HEADERS = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-type",
    "transfer-encoding",
)


def redirect_request(request: Request, response: Any, credential_headers: Collection[str] = ()) -> Request:
    """Returns the request that follows the redirect `response`, without a Cookie header.

    To another origin it has no headers that carry credentials: those that `_redact.is_secret` knows, and
    `credential_headers`, in lower case.

    Raises RemoteProtocolError if the Location cannot be requested, StreamConsumed if the body would have to be sent again
    and is not replayable.
    """
    url = _target(request, response)
    method = _method(request.method, response.status_code)
    headers = Headers(request.headers)
    headers.pop("cookie", None)
    if not same_trust(request.url, url):
        for name in [*headers]:
            if is_secret(name) or name.lower() in credential_headers:
                headers.pop(name, None)
    if request.url.netloc != url.netloc and "host" in headers:
        headers["host"] = url.netloc.decode("ascii")
    stream: Any = request.stream
    if method != request.method:
        for name in _BODY_HEADERS:
            headers.pop(name, None)
        stream = BytesBody()
    elif not request.replayable:
        raise StreamConsumed(
            f"{response.status_code} requires sending the body again, but it came from an iterator; "
            "pass bytes or a file, or follow_redirects=False"
        )
    following = Request(method, url, headers=headers, stream=stream, extensions=_extensions(request, url))
    following._content = stream.data if isinstance(stream, BytesBody) else None
    return following


def same_trust(here: URL, there: URL) -> bool:
    """Whether credentials for `here` may be sent to `there`: the same origin, or the same host upgraded to TLS."""
    if origin(here) == origin(there):
        return True
    upgraded = here.scheme == "http" and there.scheme == "https"
    return upgraded and here.raw_host == there.raw_host and origin(here)[2] == 80 and origin(there)[2] == 443


def _target(request: Request, response: Any) -> URL:
    location = response.headers.get_list("location")[0]
    try:
        url = request.url.join(location)
        if not url._host and url.scheme in ("http", "https"):
            url = url.copy_with(host=request.url.host)  # servers send "http:/path" and "http:///path"
    except InvalidURL as error:
        raise _redirect_error(request, f"Location is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url._host:
        raise _redirect_error(
            request,
            f"Location is {without_userinfo(str(url)[:200])!r}, but only http and https are supported",
        )
    if request.url.fragment and not url.fragment:
        url = url.copy_with(fragment=request.url.fragment)  # RFC 9110 10.2.2
    return url


class _UnsupportedRedirect(RemoteProtocolError, UnsupportedProtocol):
    """The server violated a rule, and the URL cannot be requested, which is what httpx and requests report."""


def _redirect_error(request: Request, why: str) -> RemoteProtocolError:
    return _UnsupportedRedirect(
        f"the redirect cannot be followed: {why}",
        rule="Location is a URI reference to an http or https resource (RFC 9110 10.2.2)",
        phase="head",
        request=request,
    )


def _method(method: str, status: int) -> str:
    """The method as httpx, requests and Go choose it: RFC 9110 15.4 lets clients change POST after 301 and 302, and they all change PUT too."""
    if status == 301 and method == "POST":
        return "GET"
    return "GET" if status in (302, 303) and method != "HEAD" else method


def _extensions(request: Request, url: URL) -> dict[str, Any]:
    """Returns the extensions without those for the connection of one origin, if the origin changes."""
    extensions = dict(request.extensions)
    extensions.pop("target", None)
    if origin(request.url) != origin(url):
        extensions.pop("sni_hostname", None)
    return extensions
