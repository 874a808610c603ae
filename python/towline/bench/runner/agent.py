"""The load generator as a process of its own, controlled over stdio with one JSON line per command.

An agent that hangs or dies is killed and reported; the next use starts another one and reopens the sessions.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from .._helper_process import LineReader, in_child
from ..record import Latency, Slice
from .protocol import Failed, SliceSpec

COMMAND = (sys.executable, "-m", "towline", "load", "--agent")
TIMEOUT_S = 15.0
"""Time in addition to the duration of a command."""
STARTS_S = 60.0
"""Time in which a generator must introduce itself, with all agents that it controls."""
LOG_TAIL_BYTES = 2000

Config = dict[str, Any]


class AgentFailed(Failed):
    """The generator refused a command, ended, or did not reply in time."""


class Agent:
    """One generator; its sessions are sets of connections, one per subject. Not thread-safe."""

    def __init__(self, cores: Sequence[int] | None = None, command: Sequence[str] = COMMAND) -> None:
        self.cores, self._command = cores, list(command)
        self._configs: dict[str, Config] = {}
        self._opened: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._lines = LineReader()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def introduction(self) -> dict[str, Any]:
        """Version and machine of the generator; one that controls others starts them first."""
        if self._process is None:
            self._start()
        found: dict[str, Any] = self._request({"op": "hello"}, STARTS_S).get("hello", {})
        return found

    def open(self, session: str, config: Config) -> None:
        """Stores the configuration of a session. Connections are opened on first use."""
        self.close(session)
        self._configs[session] = config
        self._ready(session)

    def probe(self, session: str) -> list[dict[str, Any]]:
        """Sends each target once on a new connection; returns the whole responses."""
        config = self._ready(session)
        # A request sent in pieces may take its whole timeout.
        timeout = len(config["targets"]) * (
            config.get("timeout_s", 5.0) + config.get("connect_timeout_s", 5.0)
        )
        responses: list[dict[str, Any]] = self._request({"op": "probe", "session": session}, timeout)[
            "responses"
        ]
        return responses

    def slice(self, session: str, work: SliceSpec) -> dict[str, Any]:
        """Runs a slice of load; returns the generator's report, with `histograms` and `refused`."""
        config = self._ready(session)
        open_loop = {"rate_per_s": work.rate_per_s, "poisson": work.poisson} if work.rate_per_s else {}
        until = (
            {"duration_s": work.duration_s, "discard_s": work.discard_s}
            if work.requests is None
            else {"requests": work.requests}
        )
        message = {"op": "slice", "session": session, **until, **open_loop}
        timeout = work.duration_s + 2 * config.get("timeout_s", 5.0) + config.get("connect_timeout_s", 5.0)
        report: dict[str, Any] = self._request(message, timeout)["slice"]
        return report

    def has(self, session: str) -> bool:
        """Whether the session is open."""
        return session in self._configs

    def close(self, session: str) -> None:
        """Closes its connections. Never raises: a session that is gone is closed."""
        self._configs.pop(session, None)
        if session in self._opened:
            self._opened.discard(session)
            with contextlib.suppress(AgentFailed):
                self._request({"op": "close", "session": session}, 5.0)

    def stop(self) -> None:
        """Ends the process."""
        self._configs.clear()
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._send({"op": "quit"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            self._kill()
        self._log.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _ready(self, session: str) -> Config:
        """The session's configuration; it is open when this returns."""
        config = self._configs[session]
        if self._process is None:
            self._start()
        if session not in self._opened:
            self._request({"op": "open", "session": session, "config": config}, 10.0)
            self._opened.add(session)
        return config

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Ctrl-C at the terminal goes to the bench only, which then ends what it started.
            start_new_session=True,
            preexec_fn=in_child(self.cores),
        )
        self._lines = LineReader()

    def _request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        operation = message["op"]
        try:
            self._send(message)
            line = self._line(time.monotonic() + timeout_s + TIMEOUT_S)
        except TimeoutError:
            self._kill()
            raise AgentFailed(
                f"the generator did not reply to {operation!r} in {timeout_s + TIMEOUT_S:.0f} s and was killed",
                self._tail(),
            ) from None
        except OSError:
            status = self._kill()
            raise AgentFailed(f"the generator ended during {operation!r} ({status})", self._tail()) from None
        except BaseException:
            # An interrupt between command and reply: the next reply would be for this command.
            self._kill()
            raise
        try:
            reply = json.loads(line)
        except ValueError:
            self._kill()
            raise AgentFailed(f"the generator's reply is not JSON: {line[:80]!r}", self._tail()) from None
        if "error" in reply:
            raise AgentFailed(f"the generator's reply to {operation!r}: {reply['error']}")
        found: dict[str, Any] = reply
        return found

    def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise BrokenPipeError
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()

    def _line(self, deadline: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise BrokenPipeError
        return self._lines.line(process.stdout, deadline)

    def _kill(self) -> str:
        """Kills the process; returns its status for a message."""
        process, self._process = self._process, None
        self._opened.clear()
        if process is None:
            return "it had ended before"
        if process.poll() is None:
            process.kill()
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # Unflushed output has no reader any more.
                with contextlib.suppress(OSError):
                    pipe.close()
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace")


def slice_of(report: dict[str, Any], subject: str) -> Slice:
    """The generator's report as a slice of the record; the caller adds the subject's costs."""
    generator, schedule = report["generator"], report.get("open_loop")
    errors = {name: count for name, count in report["errors"].items() if count}
    response = latency_of(report["response"])
    return Slice(
        subject=subject,
        restart=0,
        round=0,
        position=0,
        began_unix_s=report["began_unix_s"],
        measured_s=report["measured_s"],
        answered=report["answered"],
        failed=sum(errors.values()),
        refused=report.get("refused", 0),
        target_per_s=schedule["target_per_s"] if schedule else None,
        response=response,
        service=latency_of(report["service"]) if schedule else response,
        first_byte=latency_of(report["first_byte"]),
        achieved_share=schedule["achieved_share"] if schedule else None,
        lag_p99_us=latency_of(schedule["lag"]).p99_us if schedule else None,
        lag_p50_us=latency_of(schedule["lag"]).p50_us if schedule else None,
        connection_wait_p99_us=latency_of(schedule["connection_wait"]).p99_us if schedule else None,
        driver_cpu_s=generator["cpu_s"],
        driver_busiest_share=generator["busiest_share"],
        driver_waited_share=generator["kept_waiting_share"],
        driver_limit=generator["limit"],
        body_bytes=report["body_bytes"],
        errors=errors,
        first_failure=report["first_failure"],
        histogram=report.get("histograms", {}).get("response"),
    )


def latency_of(found: dict[str, Any]) -> Latency:
    """From the generator's summary of one histogram."""
    at = {one["percent"]: one["us"] for one in found["percentiles"]}
    return Latency(
        count=found["count"],
        mean_us=found["mean_us"],
        min_us=found["min_us"],
        max_us=found["max_us"],
        p50_us=at.get(50.0, 0.0),
        p90_us=at.get(90.0, 0.0),
        p95_us=at.get(95.0, 0.0),
        p99_us=at.get(99.0, 0.0),
        p99_9_us=at.get(99.9, 0.0),
    )
