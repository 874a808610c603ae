"""A reply as `urllib3.HTTPResponse`, which is what requests and its users expect under `response.raw`.

urllib3's own class does the decoding and has the whole surface; we stand where it expects http.client.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterator
from typing import Any

from urllib3 import HTTPHeaderDict, HTTPResponse

from .. import errors
from ._network import SocketInfo, TlsInfo

READ_BYTES = 65536
_VERSIONS = {"HTTP/1.0": 10, "HTTP/1.1": 11, "HTTP/2": 20}


class Raw(HTTPResponse):
    """urllib3's response over a native reply. A chunked body is given out as it comes, whatever its chunks were."""

    def __init__(self, reply: Any, method: str, url: str, retries: Any) -> None:
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
        """As urllib3's; a body that is neither coded nor chunked, and not yet begun, is handed through as it is."""
        plain = (
            amt and not self.chunked and not self._fp_bytes_read and "content-encoding" not in self.headers
        )
        if not plain:
            yield from super().stream(amt, decode_content)
            return
        body: Any = self._fp
        while True:
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
        while data := self.read1(amt, decode_content):
            yield data


class ReplyFile:
    """The part of http.client.HTTPResponse that urllib3 reads from; errors are those it knows."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.closed = False

    def read(self, amount: int | None = None) -> bytes:
        """Exactly `amount`, less only at the end; None: the rest."""
        if self.closed or amount == 0:
            return b""
        data = self._next(READ_BYTES if amount is None else amount)
        if self.closed or len(data) == amount:
            return data
        parts, held = [data], len(data)
        while amount is None or held < amount:
            data = self._next(READ_BYTES if amount is None else amount - held)
            if not data:
                break
            parts.append(data)
            held += len(data)
        return b"".join(parts)

    def read1(self, amount: int | None = None) -> bytes:
        """What is there, after waiting for the first byte."""
        if self.closed or amount == 0:
            return b""
        return self._next(READ_BYTES if amount is None or amount < 0 else amount)

    def _next(self, amount: int) -> bytes:
        try:
            data: bytes = self._reply.read(amount)
        except errors.ProtocolError as error:
            self.close()
            raise http.client.HTTPException(str(error)) from error
        except errors.Error:  # a TimeoutError or OSError already
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
        """What is to be read is not what the socket holds. `io.TextIOWrapper` of Python 3.10 asks for it."""
        raise io.UnsupportedOperation("fileno: bytes of the body are held above the socket")


class _HttpResponse:
    """For cookie jars, which look at `msg`. False when no cookie is set: requests then spares itself the search."""

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
    """`raw.connection.sock`, where users look for the peer's address and certificate."""

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
        """The questions of an `ssl.SSLSocket`, when it is one."""
        if name.startswith("_") or self._reply.tls is None:
            raise AttributeError(name)
        return getattr(TlsInfo(self._reply.tls), name)
