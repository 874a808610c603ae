"""One client in a process of its own: `python -m benches.client.worker SUBJECT CELL URL LOOP`.

A line of JSON for each line that it is told: `verify`, then `run SECONDS` as often as wanted. It ends with
its standard input. Only what measures is imported before the client itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from .adapters import SUBJECTS
from .cells import CELLS, Cell
from .loads import async_call, async_slice, sync_call, sync_slice
from .slow import async_slow, sync_slow

MISSING = 4


class AsyncFace:
    """The loop lives as long as the process: connections stay warm between slices."""

    def __init__(self, make: Callable[[str, int], Any], cell: Cell, base: str, loop: str) -> None:
        self.cell, self.loop = cell, new_loop(loop)
        asyncio.set_event_loop(self.loop)
        self.adapter = make(base, cell.pool)
        self.loop.run_until_complete(self.adapter.open())

    def verify(self) -> dict[str, Any]:
        if not self.cell.slow:
            call = async_call(self.adapter, self.cell)
            for _ in range(2):  # the second over a connection that is kept
                self.loop.run_until_complete(_awaited(call))
        return {}

    def run(self, seconds: float) -> dict[str, Any]:
        work = async_slow if self.cell.slow else async_slice
        return self.loop.run_until_complete(work(self.adapter, self.cell, seconds))


class SyncFace:
    def __init__(self, make: Callable[[str, int], Any], cell: Cell, base: str, _loop: str) -> None:
        self.cell = cell
        self.adapter = make(base, cell.pool)
        self.adapter.open()

    def verify(self) -> dict[str, Any]:
        if not self.cell.slow:
            call = sync_call(self.adapter, self.cell)
            for _ in range(2):
                call()
        return {}

    def run(self, seconds: float) -> dict[str, Any]:
        return (sync_slow if self.cell.slow else sync_slice)(self.adapter, self.cell, seconds)


async def _awaited(call: Callable[[], Any]) -> None:
    await call()


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def main(subject_name: str, cell_name: str, base: str, loop: str) -> int:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    subject, cell = SUBJECTS[subject_name], CELLS[cell_name]

    def say(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        versions, make = subject.versions(), subject.load()
        face = (AsyncFace if subject.face == "async" else SyncFace)(make, cell, base, loop)
    except (ImportError, AttributeError) as error:
        say(missing=f"{type(error).__name__}: {error}")
        return MISSING
    say(versions=versions)
    serve(face, sys.stdin, say)
    answers.flush()
    os._exit(0)  # a client's own threads do not keep the bench waiting


def serve(face: AsyncFace | SyncFace, lines: Iterable[str], say: Callable[..., None]) -> None:
    for line in lines:
        command, *values = line.split()
        try:
            say(found=face.verify() if command == "verify" else face.run(*map(float, values)))
        except BaseException as error:
            traceback.print_exc()
            say(error=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
