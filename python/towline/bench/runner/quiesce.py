"""Keeps the bench itself out of what it measures: its thread on the driver's core, no collection of garbage.

The subject has its core to itself only where nothing else of ours may run there. What this thread starts inherits its
cores; subjects, clients and the generator are given theirs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """This thread runs on `cores` only; afterwards where it did before."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """A full collection takes tens of milliseconds of the generator's core: it comes between restarts."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
