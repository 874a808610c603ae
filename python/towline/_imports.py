"""Importing without collections of garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """For imports: what they create stays, so that collections meanwhile find nothing and only make a start slower.

    Not for imports of an application: it may call `gc.disable()` itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
