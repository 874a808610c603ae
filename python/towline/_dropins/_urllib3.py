"""A reply as `urllib3.HTTPResponse`, the type of `response.raw` in requests.

The class of urllib3 does the decoding and has the whole interface; this module replaces the http.client response below
it. It works with every urllib3 that requests allows, from 1.26 on.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterator
from typing import Any

from urllib3 import HTTPResponse, exceptions, response
from urllib3._collections import HTTPHeaderDict

from .. import errors
from .._network import SocketInfo, TlsInfo

READ_BYTES = 65536
_VERSIONS = {"HTTP/1.0": 10, "HTTP/1.1": 11, "HTTP/2": 20}


# Attributes that urllib3's constructor sets from its arguments. The other ones are the same for every reply.
_VARIABLE = {
    *("headers", "status", "version", "version_string", "reason", "_retries", "_request_url", "_fp"),
    *("_original_response", "_connection", "chunked", "length_remaining", "_decoded_buffer"),
}
# Names that urllib3 has only since 2.0 and 2.2.
_NEWER = {"_decoded_buffer", "version_string"}
_new_buffer: Any = getattr(response, "BytesQueueBuffer", list)
_HAS_READ1 = hasattr(HTTPResponse, "read1")  # since 2.2


def _pattern() -> dict[str, Any] | None:
    """Returns the constant attributes, from a constructed response. None: this urllib3 has unknown attributes."""
    kept = HTTPResponse(body=io.BytesIO(), preload_content=False, decode_content=False)
    made = vars(kept)
    rest = {name: value for name, value in made.items() if name not in _VARIABLE}
    constant = all(value is None or type(value) in (bool, int, str) for value in rest.values())
    known = constant and made.keys() >= _VARIABLE - _NEWER and vars(HTTPHeaderDict()) == {"_container": {}}
    return rest if known else None


_PATTERN = _pattern()


class Raw(HTTPResponse):
    """An `HTTPResponse` over a native reply. A chunked body is returned as it arrives, without regard to its chunks."""

    def __init__(self, reply: Any, method: str, url: str, retries: Any) -> None:
        if _PATTERN is None:
            self._construct(reply, method, url, retries)
            return
        # The constructor would take a tenth of the time of the whole exchange.
        headers, status, version = HTTPHeaderDict(), reply.status, reply.version
        fields = headers._container
        for raw_name, raw_value in reply.headers:
            name = raw_name.decode("latin-1")
            values = [name, raw_value.decode("latin-1")]
            kept = fields.setdefault(name.lower(), values)
            if kept is not values:
                kept.append(values[1])
        body = ReplyFile(reply)
        state = vars(self)
        state.update(_PATTERN)
        state["headers"] = headers
        state["status"] = status
        state["version"] = _VERSIONS.get(version, 11)
        state["version_string"] = version
        state["reason"] = reply.reason.decode("latin-1")
        state["_request_url"] = url
        state["_fp"] = body
        state["_original_response"] = _HttpResponse(body, headers)
        state["_connection"] = _Connection(reply)
        state["_decoded_buffer"] = _new_buffer()
        coding = fields.get("transfer-encoding")
        state["chunked"] = coding is not None and "chunked" in _list_of(coding[1:])
        length = fields.get("content-length")
        has_body = status >= 200 and status not in (204, 304) and method != "HEAD"
        if length is None and has_body:
            state["length_remaining"] = None
        elif (
            length is not None and has_body and len(length) == 2 and length[1].isdecimal() and coding is None
        ):
            state["length_remaining"] = int(length[1])
        else:
            state["length_remaining"] = self._init_length(method)
        self.retries = retries  # the setter may take the URL from its history

    def _construct(self, reply: Any, method: str, url: str, retries: Any) -> None:
        headers = HTTPHeaderDict()
        for name, value in reply.headers:
            headers.add(name.decode("latin-1"), value.decode("latin-1"))
        body = ReplyFile(reply)
        super().__init__(
            body=body,  # type: ignore[arg-type]
            headers=headers,
            status=reply.status,
            version=_VERSIONS.get(reply.version, 11),
            reason=reply.reason.decode("latin-1"),
            preload_content=False,
            decode_content=False,
            original_response=_HttpResponse(body, headers),  # type: ignore[arg-type]
            connection=_Connection(reply),  # type: ignore[arg-type]
            retries=retries,
            request_method=method,
            request_url=url,
        )
        self.version_string = reply.version

    def stream(self, amt: int | None = READ_BYTES, decode_content: bool | None = None) -> Iterator[bytes]:  # type: ignore[override]
        """Iterates like urllib3's. A body without coding and chunks is passed through directly, unless part of it has been read."""
        plain = (
            amt and not self.chunked and not self._fp_bytes_read and "content-encoding" not in self.headers
        )
        if not plain:
            yield from super().stream(amt, decode_content)
            return
        body: Any = self._fp
        while not body.closed:
            try:
                data = body.read(amt)
            except Exception:
                with self._error_catcher():
                    raise
            if not data:
                return
            self._fp_bytes_read += len(data)
            if self.length_remaining is not None:
                self.length_remaining -= len(data)
            yield data

    def supports_chunked_reads(self) -> bool:
        return True

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:  # type: ignore[override]
        while data := self.read1(amt, decode_content) if _HAS_READ1 else self._read1(amt, decode_content):
            yield data

    def _read1(self, amt: int | None, decode_content: bool | None) -> bytes:
        """`read1` of urllib3 2.2 for older releases."""
        self._init_decoder()
        decode = self.decode_content if decode_content is None else decode_content
        body: Any = self._fp
        while True:
            with self._error_catcher():
                data = body.read1(amt)
            self._fp_bytes_read += len(data)
            decoded: bytes = self._decode(data, decode, not data)
            if decoded or not data:
                return decoded


def _list_of(values: list[str]) -> list[str]:
    return [item.strip().lower() for value in values for item in value.split(",")]


class ReplyFile:
    """The part of http.client.HTTPResponse that urllib3 uses. Raises the errors that urllib3 handles."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.closed = False

    def read(self, amount: int | None = None) -> bytes:
        """Returns exactly `amount` bytes, fewer only at the end; None: the rest."""
        if self.closed or amount == 0:
            return b""
        data = self._next(READ_BYTES if amount is None else amount)
        if self.closed or len(data) == amount:
            return data
        parts, length = [data], len(data)
        while amount is None or length < amount:
            data = self._next(READ_BYTES if amount is None else amount - length)
            if not data:
                break
            parts.append(data)
            length += len(data)
        return b"".join(parts)

    def read1(self, amount: int | None = None) -> bytes:
        """Returns the available bytes, after waiting for the first one."""
        if self.closed or amount == 0:
            return b""
        return self._next(READ_BYTES if amount is None or amount < 0 else amount)

    def _next(self, amount: int) -> bytes:
        try:
            data: bytes = self._reply.read(amount)
        except errors.ProtocolError as error:
            self.close()
            raise exceptions.ProtocolError(f"Connection broken: {error!r}", error) from error
        except errors.TimeoutError as error:
            self.close()
            raise exceptions.ReadTimeoutError(None, None, f"Read timed out. {error}") from error  # type: ignore[arg-type]
        except errors.Error:  # an OSError already
            self.close()
            raise
        if not data:
            self.closed = True
        return data

    def isclosed(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self._reply.close()

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        """Raises: parts of the body are buffered above the socket."""
        raise io.UnsupportedOperation("fileno: bytes of the body are buffered outside the socket")


class _HttpResponse:
    """For cookie jars, which read `msg`. False if no cookie is set, so that requests skips the search."""

    def __init__(self, body: ReplyFile, headers: HTTPHeaderDict) -> None:
        self._body = body
        self._headers = headers

    def __bool__(self) -> bool:
        return "set-cookie" in self._headers

    @property
    def msg(self) -> http.client.HTTPMessage:
        message = http.client.HTTPMessage()
        for name, value in self._headers.iteritems():
            message[name] = value
        return message

    def isclosed(self) -> bool:
        return self._body.closed

    def close(self) -> None:
        self._body.close()


class _Connection:
    """`raw.connection.sock`, from which programs get the address and certificate of the peer."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    @property
    def sock(self) -> Any:
        return _Socket(self._reply)

    def close(self) -> None:
        self._reply.close()


class _Socket(SocketInfo):
    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Provides the methods of an `ssl.SSLSocket`, if the connection uses TLS."""
        if name.startswith("_") or self._reply.tls is None:
            raise AttributeError(name)
        return getattr(TlsInfo(self._reply.tls), name)
