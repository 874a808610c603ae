"""`Request`: compatible with httpx's."""

from __future__ import annotations

from typing import Any

from ..errors import RequestNotRead, StreamConsumed, UsageError
from .cookies import Cookies, CookieTypes
from .encode import AsyncIterableBody, BytesBody, Fields, encode_request
from .headers import Headers, HeaderTypes, is_token
from .multipart import boundary_of
from .query import QueryParamTypes
from .url import URL


class Request:
    """A request. `content`, `data`, `files` and `json` set the body and its headers; `stream=` sets only the body.

    `extensions` carries `timeout`, `target`, `sni_hostname`, `transport`, `retries` and `progress` to the transport.
    Raises InvalidURL, InvalidHeader and UsageError (the method).
    """

    _deadline: float | None = None  # of its call, on the monotonic clock
    _streamed = False  # its response is streamed

    def __init__(
        self,
        method: str,
        url: URL | str,
        *,
        params: QueryParamTypes = None,
        headers: HeaderTypes = None,
        cookies: CookieTypes = None,
        content: Any = None,
        data: Any = None,
        files: Any = None,
        json: Any = None,
        stream: Any = None,
        extensions: dict[str, Any] | None = None,
        json_dumps: Any = None,
    ) -> None:
        self.method = _method(method)
        parsed_url = url if type(url) is URL else URL(url)  # immutable: no copy
        self.url = parsed_url if params is None else parsed_url.copy_merge_params(params)
        self.headers = Headers(headers)
        self.extensions: dict[str, Any] = {} if extensions is None else dict(extensions)
        self._content: bytes | None = None
        if cookies:
            Cookies(cookies).set_cookie_header(self)
        if stream is not None:
            self.stream = stream
            return
        boundary = boundary_of(self.headers.get("content-type")) if files else None
        fields, self.stream = encode_request(
            content, data, files, json, boundary=boundary, json_dumps=json_dumps
        )
        self._add_fields(fields)
        if isinstance(self.stream, BytesBody):
            self._content = self.stream.data

    def _add_fields(self, fields: Fields) -> None:
        """Adds headers that the program has not set: Host first (RFC 9110 7.2), those of the body last."""
        headers = self.headers
        if self.url._host and "host" not in headers:
            self.headers = headers = Headers._of_wire([(b"Host", self.url.netloc), *headers.raw])
        framed = "content-length" in headers or "transfer-encoding" in headers
        for name, value in fields:
            if name.lower() in ("content-length", "transfer-encoding"):
                if not framed:
                    headers._append(name.encode("ascii"), value.encode("ascii"))
            elif name not in headers:
                headers._append(name.encode("ascii"), value.encode("latin-1"))
        if not framed and not fields and self.method in ("POST", "PUT", "PATCH"):
            headers._append(b"Content-Length", b"0")  # RFC 9110 8.6: these methods anticipate a body

    @property
    def content(self) -> bytes:
        """The body. Raises UsageError if it is a stream that has not been read."""
        if self._content is None:
            raise RequestNotRead("the request's body is a stream; call read() or await aread() first")
        return self._content

    @property
    def replayable(self) -> bool:
        """Whether the body can be sent again."""
        return bool(getattr(self.stream, "replayable", False))

    def read(self) -> bytes:
        """Reads and returns the whole body, which is replayable afterwards."""
        if self._content is None:
            if isinstance(self.stream, AsyncIterableBody) or not hasattr(self.stream, "__iter__"):
                raise UsageError("the body is an asynchronous iterator; use await aread()")
            self._set_content(b"".join(self.stream))
        return self._content or b""

    async def aread(self) -> bytes:
        """Reads the body, which may be an asynchronous iterator."""
        if self._content is None:
            if not hasattr(self.stream, "__aiter__"):
                return self.read()
            self._set_content(b"".join([piece async for piece in self.stream]))
        return self._content or b""

    def _set_content(self, content: bytes) -> None:
        self._content = content
        self.stream = BytesBody(content)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}({self.method!r}, {repr(self.url)[4:-1]})>"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("extensions", "stream")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.extensions = {}
        self.stream = _PickledStream() if self._content is None else BytesBody(self._content)


class _PickledStream:
    """Replaces the stream of a pickled request."""

    def __iter__(self) -> Any:
        raise StreamConsumed("the body was a stream, which is not pickled")


def _method(method: Any) -> str:
    if isinstance(method, bytes):
        method = method.decode("latin-1")
    name = str(method).upper()
    if not is_token(name):
        raise UsageError(f"method {method!r} is not a token (RFC 9110 9.1)")
    return name
