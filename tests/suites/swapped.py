"""Replaces a class of another package by Towline's while a suite runs, and checks that it was used."""

from __future__ import annotations

from types import ModuleType

import pytest


class Swap:
    """A suite that created no replaced object proves nothing: its run fails."""

    def __init__(self) -> None:
        self._unused: set[type] = set()

    def replace(self, modules: list[ModuleType], name: str, ours: type) -> None:
        self._unused.add(ours)
        made, unused = ours.__init__, self._unused

        def __init__(self: object, *args: object, **kwargs: object) -> None:
            unused.discard(ours)
            made(self, *args, **kwargs)

        ours.__init__ = __init__  # type: ignore[misc]
        for module in modules:
            setattr(module, name, ours)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unused:
            print(f"\nnever made: {', '.join(one.__qualname__ for one in self._unused)}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
