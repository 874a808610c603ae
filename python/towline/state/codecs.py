"""Codecs: how values become the bytes of a store."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from .. import _native
from ..errors import StateError, UsageError

V = TypeVar("V")


class Codec(Protocol[V]):
    """A pair of functions: `loads(dumps(value))` is the value. Counters need integers as decimal digits."""

    def dumps(self, value: V, /) -> bytes: ...
    def loads(self, data: bytes, /) -> V: ...


class BytesCodec:
    """Values are bytes, stored as they are."""

    def dumps(self, value: bytes, /) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        raise TypeError(f'a value with codec="bytes" is bytes, not {type(value).__name__}')

    def loads(self, data: bytes, /) -> bytes:
        return data


class JsonCodec:
    """Values are what JSON can say (RFC 8259), in UTF-8. Tuples come back as lists."""

    def dumps(self, value: Any, /) -> bytes:
        try:
            return _native.dump_json(value)
        except TypeError as error:
            hint = '; codec="bytes" stores bytes' if isinstance(value, (bytes, bytearray)) else ""
            raise TypeError(f"{error}{hint}") from None

    def loads(self, data: bytes, /) -> Any:
        try:
            return _native.load_json(data)
        except ValueError as error:
            raise _unreadable("JSON", data, error) from None


class MsgpackCodec:
    """Values are what MessagePack can say: as JSON, and bytes. Needs the package `msgpack`."""

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError:
            raise UsageError('codec="msgpack" needs the package msgpack: pip install msgpack') from None
        self._pack, self._unpack = msgpack.packb, msgpack.unpackb

    def dumps(self, value: Any, /) -> bytes:
        # A counter is decimal digits, whatever the codec; so is every integer, which makes the first byte decide.
        if type(value) is int:
            return b"%d" % value
        packed: bytes = self._pack(value)
        return packed

    def loads(self, data: bytes, /) -> Any:
        try:
            return int(data) if data[:1] in FIRST_OF_INTEGER else self._unpack(data)
        except Exception as error:  # of msgpack, which has a class for each kind
            raise _unreadable("MessagePack", data, error) from None


def _unreadable(kind: str, data: bytes, error: Exception) -> StateError:
    return StateError(
        f"a value of {len(data)} bytes is not {kind} ({error}): another codec has written it, or the store is damaged"
    )


FIRST_OF_INTEGER = frozenset(bytes([byte]) for byte in b"-0123456789")
BYTES = BytesCodec()
JSON = JsonCodec()


def codec_of(codec: str | Codec[Any]) -> Codec[Any]:
    """The codec of a name ("bytes", "json", "msgpack"), or the one that is given. Raises `UsageError`."""
    if not isinstance(codec, str):
        return codec
    if codec == "bytes":
        return BYTES
    if codec == "json":
        return JSON
    if codec == "msgpack":
        return MsgpackCodec()
    raise UsageError(
        f'there is no codec {codec!r}; there is "bytes", "json", "msgpack", or an object with dumps and loads'
    )
