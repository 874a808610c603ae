"""`Response`: compatible with httpx's, for both clients.

The fast path creates it natively, without `__init__`, and attributes are computed when they are first read. The native
base class (`_native.ResponseCore`) has status, content, text, json and timings; `BodyReader` has the streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._native import ResponseCore
from .._redact import without_userinfo
from ..errors import ResponseNotRead, StatusError, UsageError
from . import hints
from .body_reader import BodyReader
from .body_sources import SyncByteStream, source_of
from .cookies import Cookies
from .decode import charset_of, decode_text, known_encoding, named_charset
from .encode import BytesBody, encode_response
from .headers import Headers, HeaderTypes
from .request import Request
from .url import URL

_REDIRECTS = (301, 302, 303, 307, 308)
_KINDS = ("informational response", "success", "redirect", "client error", "server error")


class Response(BodyReader, ResponseCore):
    """A response. Tests and transports create one with `Response(200, json={...})` or `Response(200, content=pieces)`."""

    _headers: Headers | None = None
    _history: list[Response] | None = None
    _extensions: dict[str, Any] | None = None
    _credential_headers: frozenset[str] = frozenset()  # of the client
    _next_request: Request | None = None
    _followed = False

    def __init__(
        self,
        status_code: int,
        *,
        headers: HeaderTypes = None,
        content: Any = None,
        text: str | None = None,
        html: str | None = None,
        json: Any = None,
        stream: Any = None,
        request: Request | None = None,
        extensions: Mapping[str, Any] | None = None,
        history: list[Response] | None = None,
        default_encoding: str | Callable[[bytes], str] = "utf-8",
    ) -> None:
        fields = Headers(headers)
        if stream is None:
            stream = _body(fields, content, text, html, json)
        self._extensions = dict(extensions) if extensions else {}
        self._init_head(
            int(status_code),
            fields.raw,
            version=_text(self._extensions.get("http_version", "HTTP/1.1")),
            reason=_bytes(self._extensions.get("reason_phrase", b"")),
        )
        self._headers = fields
        self._request = request
        self._history = list(history) if history else None
        self._default_encoding = default_encoding
        self._source = source_of(stream)
        if isinstance(stream, BytesBody):
            # content is given in its encoded form; malformed content raises here
            self.read()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise hints.missing(type(self).__name__, name, hints.RESPONSE, known=dir(type(self)))

    @classmethod
    def _of_reply(cls, reply: Any, is_async: bool) -> Response:
        """Creates a response from a native reply, its body unread."""
        self = cls.__new__(cls)
        self._set_reply(reply)
        self._source = _AsyncReplySource(reply) if is_async else reply
        return self

    @property
    def headers(self) -> Headers:
        """The header section, case-insensitive."""
        if self._headers is None:
            self._headers = Headers._of_wire(self._raw_headers)
        return self._headers

    @headers.setter
    def headers(self, headers: HeaderTypes) -> None:
        self._headers = Headers(headers)

    @property
    def request(self) -> Request:
        """The request. Raises UsageError if the response was created without one."""
        if self._request is None:
            if self._sent is None or self._client is None:
                raise UsageError(
                    "this response was created without a request; pass Response(..., request=...)"
                )
            self._request = self._client._rebuild_request(self._sent)
        return self._request

    @request.setter
    def request(self, request: Request) -> None:
        self._request = request

    @property
    def url(self) -> URL:
        """The URL of the request."""
        return self.request.url

    @property
    def history(self) -> list[Response]:
        """The responses before this one: redirects and authentication challenges."""
        if self._history is None:
            self._history = []
        return self._history

    @history.setter
    def history(self, history: list[Response]) -> None:
        self._history = list(history)

    @property
    def extensions(self) -> dict[str, Any]:
        """`http_version` and `reason_phrase` as bytes, and the entries that the transport adds."""
        if self._extensions is None:
            self._extensions = {
                "http_version": self.http_version.encode("ascii"),
                "reason_phrase": self.reason_phrase.encode("latin-1", "replace"),
            }
        return self._extensions

    @extensions.setter
    def extensions(self, extensions: dict[str, Any]) -> None:
        self._extensions = extensions

    @property
    def stream(self) -> Any:
        """The body before decoding, as an iterable, for transports that wrap others."""
        source = self._source
        return getattr(source, "stream", None) or (
            BytesBody(self.content) if source is None else _RawStream(self)
        )

    @property
    def cookies(self) -> Cookies:
        """The cookies that this response sets."""
        cookies = Cookies()
        cookies.extract_cookies(self)
        return cookies

    @property
    def trailers(self) -> Headers:
        """The trailers (RFC 9110 6.5); empty until the body has been read to its end."""
        return Headers._of_wire(getattr(self._reply, "trailers", ()))

    @property
    def encoding(self) -> str | None:
        """The encoding of `text`: the one that was set, else the charset of Content-Type, else `default_encoding`."""
        if self._encoding is not None:
            return self._encoding
        if named := charset_of(self.headers.get("content-type")):
            return named
        default = self._default_encoding
        if isinstance(default, str):
            return default
        guessed: str | None = default(self._content) if self._content is not None else None
        return guessed or "utf-8"

    @encoding.setter
    def encoding(self, value: str) -> None:
        if known_encoding(value) is None:
            raise UsageError(f"encoding: Python has no encoding {value!r}")
        self._encoding = value

    @property
    def charset_encoding(self) -> str | None:
        """The charset of Content-Type, whether or not Python has it."""
        return named_charset(self.headers.get("content-type"))

    @property
    def default_encoding(self) -> str | Callable[[bytes], str]:
        """The encoding of text without a charset, or a function of the content."""
        default: str | Callable[[bytes], str] = self._default_encoding
        return default

    @default_encoding.setter
    def default_encoding(self, value: str | Callable[[bytes], str]) -> None:
        self._default_encoding = value

    @property
    def links(self) -> dict[str | None, dict[str, str]]:
        """The Link headers (RFC 8288), by relation or, without one, by URL."""
        values = [_link(link) for link in _split_links(self.headers.get("link", ""))]
        return {link.get("rel") or link.get("url"): link for link in values}

    @property
    def has_redirect_location(self) -> bool:
        """Whether it is a redirect with a Location header."""
        return self.status_code in _REDIRECTS and "location" in self.headers

    @property
    def next_request(self) -> Request | None:
        """The request that would follow the redirect; None if there is none, or if it was followed."""
        if self._next_request is None and self.has_redirect_location and not self._followed:
            from .redirects import redirect_request

            of_client = getattr(self._client, "_credential_headers", self._credential_headers)
            self._next_request = redirect_request(self.request, self, of_client)
        return self._next_request

    @next_request.setter
    def next_request(self, request: Request | None) -> None:
        self._next_request = request

    def raise_for_status(self) -> Response:
        """Raises StatusError unless the status is 2xx; returns the response."""
        if self.is_success:
            return self
        kind = _KINDS[self.status_code // 100 - 1] if 100 <= self.status_code <= 599 else "unknown status"
        text = f"{kind} '{self.status_code} {self.reason_phrase}'"
        if self.has_redirect_location:
            text += f"; the Location is {without_userinfo(self.headers['location'])!r}: pass follow_redirects=True to follow it"
        raise StatusError(text, request=self.request, response=self)

    def _not_read(self) -> bytes:
        """Called by the native base class if `content` is accessed before the body has been read."""
        self._check_unread()
        raise ResponseNotRead("the content has not been read; call read() or await aread() first")

    def _decode_text(self) -> str:
        return decode_text(self.content, self._text_encoding())

    def _own_request(self) -> Request | None:
        return self._request if self._sent is None else self.request

    def _coding(self) -> str | None:
        """The Content-Encoding, without creating `headers` for it."""
        if self._headers is not None:
            return self._headers.get("content-encoding")
        found: str | None = self._header("content-encoding")
        return found

    def _text_encoding(self) -> str:
        return self.encoding or "utf-8"

    def _json_loads(self) -> Any:
        return self._loads

    def __repr__(self) -> str:
        return f"<Response [{self.status_code} {self.reason_phrase}]>"

    def __reduce__(self) -> Any:
        request = None if self._request is None and self._sent is None else self.request
        state = {
            "status": self.status_code,
            "headers": self.headers,
            "content": self._content,
            "version": self.http_version,
            "reason": self.reason_phrase.encode("latin-1", "replace"),
            "request": request,
            "history": self.history,
            "encoding": self._encoding,
            "default_encoding": self._default_encoding,
            "elapsed": self._elapsed,
        }
        return _unpickle, (type(self), state)


class _AsyncReplySource:
    """An asynchronous native reply as a body source."""

    is_async = True
    __slots__ = ("close", "read", "read_all", "reply")

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.read = reply.read
        self.read_all = reply.read_all
        self.close = reply.close

    @property
    def buffered(self) -> int:
        buffered_bytes: int = self.reply.buffered
        return buffered_bytes


class _RawStream(SyncByteStream):
    """The undecoded body of a response, as a stream."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def __iter__(self) -> Any:
        return self._response.iter_raw()

    def __aiter__(self) -> Any:
        return self._response.aiter_raw()

    def close(self) -> None:
        self._response.close()

    async def aclose(self) -> None:
        await self._response.aclose()


def _unpickle(kind: type[Response], state: dict[str, Any]) -> Response:
    self = kind.__new__(kind)
    self._init_head(
        state["status"],
        state["headers"].raw,
        content=state["content"],
        version=state["version"],
        reason=state["reason"],
    )
    self._headers, self._history, self._request = state["headers"], state["history"], state["request"]
    self._encoding, self._default_encoding = state["encoding"], state["default_encoding"]
    self._elapsed = state["elapsed"]
    self._closed = True
    return self


def _body(fields: Headers, content: Any, text: str | None, html: str | None, json: Any) -> Any:
    """Returns the stream of a response that a program creates, and adds the headers that it has not set."""
    added, stream = encode_response(content, text, html, json)
    framed = "content-length" in fields or "transfer-encoding" in fields
    for name, value in added:
        if name not in fields and not (framed and name in ("Content-Length", "Transfer-Encoding")):
            fields._append(name.encode("ascii"), value.encode("latin-1"))
    return stream


def _link(text: str) -> dict[str, str]:
    url, _, rest = text.partition(">")
    link = {"url": url.strip(" <")}
    for parameter in rest.split(";"):
        name, equals, value = parameter.partition("=")
        if equals:
            link[name.strip().lower()] = value.strip(" \t\"'")
    return link


def _split_links(value: str) -> Iterable[str]:
    return [part for part in re.split(r",\s*(?=<)", value) if "<" in part]


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _bytes(value: str | bytes) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value
