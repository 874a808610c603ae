"""Whether threads run Python code at once, and the import that turns the GIL on again in a free-threaded interpreter."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from ..config import ServerConfig

logger = logging.getLogger("towline.server")

MODULE = re.compile(
    r"the global interpreter lock \(GIL\) has been enabled to load module '([^']+)'", re.IGNORECASE
)


def is_free_threaded() -> bool:
    """Whether this interpreter can run without the GIL."""
    return "t" in sys.abiflags


def is_off() -> bool:
    """Whether threads run Python code at once."""
    return is_free_threaded() and not getattr(sys, "_is_gil_enabled", lambda: True)()


def tell_turns(config: ServerConfig) -> None:
    """Log a warning if the threads of `--worker-mode threads` run one at a time."""
    if config.worker_mode == "threads" and config.workers != 1 and not is_off():
        logger.warning(
            "the GIL is on: threads take turns; use --worker-mode processes or a free-threaded Python"
        )


@contextlib.contextmanager
def imports_watched() -> Iterator[None]:
    """Log a warning if an import turns the GIL on, with the module's name unless warnings are ignored."""
    if not is_off():
        yield
        return
    modules: list[str] = []
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        found = MODULE.search(str(message)) if category is RuntimeWarning else None
        if found:
            modules.append(found[1])
        else:
            show(message, category, *where, **more)

    warnings.showwarning = note
    try:
        yield
    finally:
        if warnings.showwarning is note:
            warnings.showwarning = show
    if not is_off():
        name = f"the module {modules[0]}" if modules else "an imported module"
        logger.warning(
            "%s has turned the GIL on: threads of Python run one at a time. PYTHON_GIL=0 keeps it off", name
        )
