"""A cache of Django: `CACHES = {"default": {"BACKEND": "towline.state.adapters.django.StateCache", "LOCATION": ...}}`.

LOCATION is a directory or a URL, as for `towline.state.open`; empty, it is the store of the server. OPTIONS are those of the
store. KEY_PREFIX, VERSION, TIMEOUT and KEY_FUNCTION are Django's. As in Django's own back ends, values are pickled: who can
write to the store can run code.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

import towline.state

from ..async_state import AsyncState
from ..state import State
from ._shared import short_name

NAMESPACE = "django"
_OWN_OPTIONS = ("MAX_ENTRIES", "CULL_FREQUENCY")


class PickleCodec:
    """Any object; integers as decimal digits, so that they count."""

    def dumps(self, value: Any, /) -> bytes:
        return b"%d" % value if type(value) is int else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def loads(self, data: bytes, /) -> Any:
        return pickle.loads(data) if data[:1] == b"\x80" else int(data)


# Django makes a cache object for each thread and task. They share one opened store.
@functools.lru_cache(maxsize=64)
def _opened(location: str, options: tuple[tuple[str, Any], ...]) -> State[Any]:
    return towline.state.open(location or None, codec=PickleCodec(), namespace=NAMESPACE, **dict(options))


@functools.lru_cache(maxsize=64)
def _opened_async(location: str, options: tuple[tuple[str, Any], ...]) -> AsyncState[Any]:
    return towline.state.open_async(
        location or None, codec=PickleCodec(), namespace=NAMESPACE, **dict(options)
    )


class StateCache(BaseCache):  # type: ignore[misc]  # Django has no types
    """The cache. Its asynchronous methods do not use threads."""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = {k: v for k, v in params.get("OPTIONS", {}).items() if k.upper() not in _OWN_OPTIONS}
        self._arguments = str(location), tuple(sorted(options.items()))

    @property
    def _state(self) -> State[Any]:
        return _opened(*self._arguments)

    @property
    def _async_state(self) -> AsyncState[Any]:
        return _opened_async(*self._arguments)

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> float | None:
        """Seconds; None for ever; 0 or less: expired at once."""
        chosen = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return None if chosen is None else float(chosen)

    def _name(self, key: Any, version: int | None) -> str:
        return short_name(self.make_and_validate_key(key, version=version))

    def _names(self, keys: Iterable[Any], version: int | None) -> dict[str, Any]:
        return {self._name(key, version): key for key in keys}

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        name, ttl = self._name(key, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            return not self._state.contains(name)
        return self._state.set_if_absent(name, value, ttl=ttl)

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return self._state.get(self._name(key, version), default)

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        name, ttl = self._name(key, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            self._state.delete(name)
        else:
            self._state.set(name, value, ttl=ttl)

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        name, ttl = self._name(key, version), self.get_backend_timeout(timeout)
        return self._state.delete(name) == 1 if _is_over(ttl) else self._state.expire(name, ttl)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return self._state.delete(self._name(key, version)) == 1

    def has_key(self, key: Any, version: int | None = None) -> bool:
        return self._state.contains(self._name(key, version))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> Any:
        return self._state.update(self._name(key, version), _adding(key, delta), keep_ttl=True)

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        names = self._names(keys, version)
        return {names[name]: value for name, value in self._state.get_many(list(names)).items()}

    def set_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        values, ttl = self._named(data, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            self._state.delete(*values)
        else:
            self._state.set_many(values, ttl=ttl)
        return []

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        self._state.delete(*self._names(keys, version))

    def clear(self) -> None:
        self._state.clear()

    def _named(self, data: Mapping[Any, Any], version: int | None) -> dict[str, Any]:
        return {self._name(key, version): value for key, value in data.items()}

    async def aadd(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        name, ttl = self._name(key, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            return not await self._async_state.contains(name)
        return await self._async_state.set_if_absent(name, value, ttl=ttl)

    async def aget(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return await self._async_state.get(self._name(key, version), default)

    async def aset(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        name, ttl = self._name(key, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            await self._async_state.delete(name)
        else:
            await self._async_state.set(name, value, ttl=ttl)

    async def atouch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        name, ttl = self._name(key, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            return await self._async_state.delete(name) == 1
        return await self._async_state.expire(name, ttl)

    async def adelete(self, key: Any, version: int | None = None) -> bool:
        return await self._async_state.delete(self._name(key, version)) == 1

    async def ahas_key(self, key: Any, version: int | None = None) -> bool:
        return await self._async_state.contains(self._name(key, version))

    async def aincr(self, key: Any, delta: int = 1, version: int | None = None) -> Any:
        return await self._async_state.update(self._name(key, version), _adding(key, delta), keep_ttl=True)

    async def aget_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        names = self._names(keys, version)
        return {names[name]: value for name, value in (await self._async_state.get_many(list(names))).items()}

    async def aset_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        values, ttl = self._named(data, version), self.get_backend_timeout(timeout)
        if _is_over(ttl):
            await self._async_state.delete(*values)
        else:
            await self._async_state.set_many(values, ttl=ttl)
        return []

    async def adelete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        await self._async_state.delete(*self._names(keys, version))

    async def aclear(self) -> None:
        await self._async_state.clear()


def _is_over(ttl: float | None) -> bool:
    return ttl is not None and ttl <= 0


def _adding(key: Any, delta: int) -> Any:
    def add(value: Any) -> Any:
        if value is None:
            raise ValueError(f"Key {key!r} not found")
        return value + delta

    return add
