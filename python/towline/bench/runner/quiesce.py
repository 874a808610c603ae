"""Keeps the bench from disturbing its measurements: its thread runs on the driver's core, without garbage
collection.

The subject has its core to itself only if nothing else of the bench runs there. Processes that this thread starts
inherit its cores; subjects, clients and the generator have their own.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """Context in which this thread runs on `cores` only."""
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
    """Context without garbage collection, which takes tens of milliseconds of the generator's core."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
