"""Several applications in one server: `--mount /admin=admin:app`; the longest prefix wins.

A prefix matches whole path segments: `/api` matches `/api` and `/api/x`, not `/apiary`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import StartupError
from .interface import Interface

Mounted = Sequence[tuple[str, Any]]


def combine(main: Any, main_interface: Interface, mounted: Sequence[tuple[str, Any, Interface]]) -> Any:
    """One application that dispatches requests by prefix. All must have the same interface."""
    for prefix, _, interface in mounted:
        if interface != main_interface:
            raise StartupError(
                f"--mount {prefix}: a {interface} application cannot be mounted together with a {main_interface} one; "
                "serve them in two processes"
            )
    table = sorted(((prefix.rstrip("/"), app) for prefix, app, _ in mounted), key=lambda m: -len(m[0]))
    return AsgiMounts(main, table) if main_interface == "asgi" else WsgiMounts(main, table)


def find(table: Mounted, path: str) -> tuple[str, Any] | None:
    """The first (longest) prefix in `table` that matches `path`."""
    for prefix, app in table:
        if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
            return prefix, app
    return None


class WsgiMounts:
    """PEP 3333: the matched prefix moves from PATH_INFO to SCRIPT_NAME."""

    def __init__(self, main: Any, table: Mounted) -> None:
        self._main, self._table = main, table

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        found = find(self._table, path)
        if found is None:
            response: Iterable[bytes] = self._main(environ, start_response)
            return response
        prefix, app = found
        environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + prefix
        environ["PATH_INFO"] = path[len(prefix) :]
        mounted_response: Iterable[bytes] = app(environ, start_response)
        return mounted_response


class AsgiMounts:
    """ASGI: `path` is unchanged and `root_path` is extended by the prefix. Each application has its own lifespan."""

    def __init__(self, main: Any, table: Mounted) -> None:
        self._main, self._table = main, table
        self._states: dict[str, dict[str, Any]] = {}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        root = scope.get("root_path", "")
        path = scope["path"]
        found = find(self._table, path[len(root) :] if root and path.startswith(root) else path)
        if found is None:
            await self._main(scope, receive, send)
            return
        prefix, app = found
        inner = {**scope, "root_path": root + prefix}
        if prefix in self._states:
            inner["state"] = dict(self._states[prefix])
        await app(inner, receive, send)

    async def _lifespan(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        from .lifespan import Lifespan  # imports asyncio, which WSGI does without

        await receive()
        main = Lifespan(self._main, "auto")
        main.state = scope.get("state", {})
        async with contextlib.AsyncExitStack() as running:
            try:
                await main.startup()
                running.push_async_callback(main.shutdown)
                for prefix, app in self._table:
                    one = Lifespan(app, "auto")
                    await one.startup()
                    self._states[prefix] = one.state
                    running.push_async_callback(one.shutdown)
            except StartupError as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
