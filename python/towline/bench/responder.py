"""The native responder as a process: the server in client benchmarks, and a subject of known behaviour.

`python -m towline.bench.responder [--port N] [--cert FILE --key FILE] ...` prints its addresses, one per line, and
serves until SIGTERM, SIGINT, or the end of a piped standard input; `--help` lists the options.
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from .. import _native
from .._version import __version__
from ._helper_process import HelperFailed, HelperProcess, pinned_to
from .subjects.resources import waited_s

__all__ = ["InjectedFaults", "Responder", "ResponderElsewhere", "ResponderFailed", "pinned_to"]

ResponderFailed = HelperFailed
PROGRAM = (sys.executable, "-m", "towline.bench.responder")


@dataclass(frozen=True)
class InjectedFaults:
    """The responder's log of injected faults."""

    requests: int
    slow: int
    errors: int
    faults: int
    stalls: tuple[tuple[int, int], ...]
    """Begin and end, in nanoseconds of `time.monotonic_ns`."""


class Responder(HelperProcess):
    """A responder; `options` are those of the command line."""

    def __init__(
        self, *options: str, cores: Sequence[int] | None = None, program: Sequence[str] = PROGRAM
    ) -> None:
        super().__init__(*program, *options, cores=cores)
        scheme = "https" if "--cert" in options else "http"
        self.base_url = f"{scheme}://{self.address}"

    def __enter__(self) -> Responder:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def waited_s(self) -> float:
        """Time for which it waited for its core."""
        return waited_s(self.pid)

    def injected(self) -> InjectedFaults:
        # The bench's own process on loopback needs no verification.
        trust = ssl._create_unverified_context() if self.base_url.startswith("https") else None
        with urllib.request.urlopen(f"{self.base_url}/injected", timeout=10, context=trust) as response:
            plain = json.load(response)
        stalls = tuple((begin, end) for begin, end in plain.pop("stalls"))
        return InjectedFaults(**plain, stalls=stalls)


class ResponderElsewhere(Responder):
    """A responder on another machine, which `command` runs."""

    def __init__(self, command: Sequence[str], *options: str) -> None:
        """Raises `ResponderFailed`, also for another version."""
        super().__init__(*options, program=command)
        try:
            version = self.ask().get("version")
        except ResponderFailed:
            self.stop()
            raise
        if version != __version__:
            self.stop()
            raise ResponderFailed(f"it is towline {version}, this is {__version__}")

    def cpu_s(self) -> float:
        """CPU time of its process, as it says."""
        return float(self.ask()["cpu_s"])

    def waited_s(self) -> float:
        """Not known."""
        return 0.0


if __name__ == "__main__":
    sys.exit(_native.responder_main(sys.argv[1:]))
