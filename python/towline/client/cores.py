"""The native halves of Response, Client and AsyncClient.

Where the native module does not have one yet, a stand-in in Python sends every call down the long way, so that
everything but the network works. This file goes when the last of them is there.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from .. import _native

_VERBS = ("get", "head", "options", "delete", "post", "put", "patch")


class _ResponseStandIn:
    _content: bytes | None = None
    _encoding: str | None = None
    _default_encoding: Any = "utf-8"
    _loads: Any = None
    _elapsed: float | None = None
    _reply: Any = None
    _client: Any = None
    _sent: Any = None
    reused = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def _fill(
        self,
        status: int,
        headers: Any = (),
        *,
        content: Any = None,
        version: str = "HTTP/1.1",
        reason: bytes = b"",
    ) -> None:
        self._status, self._fields, self._content = status, list(headers), content
        self.http_version, self._reason = version, reason

    def _adopt(self, reply: Any) -> None:
        self._fill(reply.status, reply.headers, version=reply.version, reason=reply.reason)
        self._reply, self.reused = reply, reply.reused

    @property
    def status_code(self) -> int:
        return self._status

    @property
    def reason_phrase(self) -> str:
        from .codes import codes

        return self._reason.decode("latin-1") or codes.get_reason_phrase(self._status)

    @property
    def _raw_headers(self) -> list[tuple[bytes, bytes]]:
        return list(self._fields)

    @property
    def content(self) -> bytes:
        return self._not_read() if self._content is None else self._content  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        return self._decode_text()  # type: ignore[attr-defined, no-any-return]

    def json(self, **kwargs: Any) -> Any:
        return (self._loads or json.loads)(self.content, **kwargs)

    @property
    def elapsed(self) -> timedelta:
        if self._elapsed is None:
            raise RuntimeError("elapsed is known once the body has been read or the response closed")
        return timedelta(seconds=self._elapsed)

    @property
    def timings(self) -> dict[str, float]:
        return {} if self._reply is None else dict(self._reply.timings)

    is_informational = property(lambda self: self._status // 100 == 1)
    is_success = property(lambda self: self._status // 100 == 2)
    is_redirect = property(lambda self: self._status // 100 == 3)
    is_client_error = property(lambda self: self._status // 100 == 4)
    is_server_error = property(lambda self: self._status // 100 == 5)
    is_error = property(lambda self: self._status >= 400)


class _ClientStandIn:
    _plain = False
    _cookies: Any = None
    _pool: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def _setup(self, pool: Any, response: Any, **settings: Any) -> None:
        self._pool = pool

    def request(self, method: str, url: Any, **kwargs: Any) -> Any:
        return self._request(method, url, **kwargs)  # type: ignore[attr-defined]


def _verb(name: str) -> Any:
    def call(self: Any, url: Any, **kwargs: Any) -> Any:
        return self.request(name.upper(), url, **kwargs)

    call.__name__ = name
    return call


for _name in _VERBS:
    setattr(_ClientStandIn, _name, _verb(_name))


class _PoolStandIn:
    def __init__(self, options: Any) -> None:
        self.options = options

    def exchange(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the native pool of blocking clients is not there yet")

    def pool_status(self) -> dict[str, int]:
        return {}

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def _core(name: str, method: str, stand_in: Any) -> Any:
    native = getattr(_native, name, None)
    return native if hasattr(native, method) else stand_in


ResponseCore: Any = _core("ResponseCore", "_fill", _ResponseStandIn)
ClientCore: Any = _core("ClientCore", "_setup", _ClientStandIn)
AsyncClientCore: Any = _core("AsyncClientCore", "_setup", _ClientStandIn)
SyncPool: Any = _core("SyncPool", "exchange", _PoolStandIn)
AsyncPool: Any = _core("AsyncPool", "exchange", _PoolStandIn)
