"""Behaviour of other clients in a long-lived process, and when TLS fails: `python -m tests.client.peers --life`.

Each client and behaviour has its own process, which is killed at a timeout: a hang is a finding.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from towline.bench.clients.subjects import CLIENTS, Missing

from benches import report
from tests.support.http1_scripts import (
    CHURN,
    ENDLESS,
    GeneratedScriptServer,
    HostileServer,
    PathEchoServer,
    closes_soon,
    events,
    script_of,
)
from tests.support.tls import FAILURES, invalid_certificate, serving

from .peers_adapters import PATHS, interpreter
from .peers_tls import AUTHORITY

ROOT = Path(__file__).parent.parent.parent
MAX_WAIT = 60.0
STALL_TIMEOUT = 15.0
CROWD = 4000

# Name, description, the backends that have it.
BEHAVIOURS = {
    "race_get": ("keep-alive race, 400 GETs", ("async", "sync")),
    "race_post": ("keep-alive race, 400 POSTs", ("async", "sync")),
    "churn": ("2,000 cancels, then 20 GETs", ("async",)),
    "fork": ("fork with a warm connection, 250 GETs", ("async", "sync")),
    "loops": ("three asyncio.run, 15 GETs", ("async",)),
    "threads": ("40 threads, 2,000 GETs", ("sync",)),
    "crowd": (f"{CROWD:,} GETs at once", ("async",)),
    "slow_plain": ("slow reader, plain", ("async", "sync")),
    "slow_chunked": ("slow reader, chunked", ("async", "sync")),
    "slow_events": ("slow reader of SSE", ("async", "sync")),
    "tls_good": ("TLS as it should be", ("sync",)),
    **{f"tls_{failure.replace(' ', '_')}": (f"TLS: {failure}", ("sync",)) for failure in FAILURES},
    "tls_stalled": ("TLS: the handshake stalls", ("sync",)),
}
ASYNC = (
    "towline",
    "aiohttp",
    "httpx",
    "httpx2",
    "httpcorexyz",
    "niquests",
    "pycurl-multi",
    "pyreqwest",
    "wreq",
    "primp",
)
SYNC = (
    "towline-sync",
    "aiohttp",
    "httpx-sync",
    "httpx2-sync",
    "httpcorexyz-sync",
    "urllib3",
    "requests",
    "niquests-sync",
    "pycurl",
    "pyreqwest-sync",
    "wreq-sync",
    "primp-sync",
)


def has(subject: str, behaviour: str) -> bool:
    """TLS is tested with one backend; aiohttp has only one."""
    if behaviour.startswith("tls_"):
        return subject in SYNC
    return CLIENTS[subject].backend in BEHAVIOURS[behaviour][1]


def record(subject: str, names: list[str]) -> dict[str, Any]:
    """Raises Missing."""
    found = {}
    for name in names:
        if has(subject, name):
            found[name] = attempt(subject, name)
            if "missing" in found[name]:
                raise Missing(found[name]["missing"])
    return found


def attempt(subject: str, behaviour: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, server_of(behaviour, Path(folder)) as (url, server):
        timeout = STALL_TIMEOUT if behaviour == "tls_stalled" else MAX_WAIT
        result = child(subject, behaviour, url, timeout, {AUTHORITY: str(Path(folder) / "ca.pem")})
        if behaviour.startswith("race_") and "answered" in result:
            result["carried_twice"] = twice(server.requests)
        if behaviour == "crowd":
            result["connections"] = len({number for number, _ in server.requests})
        return result


def twice(requests: list[tuple[int, str]]) -> int:
    return sum(times > 1 for times in collections.Counter(name for _, name in requests).values())


def child(subject: str, behaviour: str, url: str, timeout: float, env: dict[str, str]) -> dict[str, Any]:
    command = [interpreter(subject), "-m", "tests.client.peers_lifecycle_child", subject, behaviour, url]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | env | {"PYTHONPATH": PATHS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=many_descriptors,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"hung_s": timeout}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its forked children too
    return dict(json.loads(output)) if output else {"failed": f"died ({process.returncode})"}


def many_descriptors() -> None:
    """A client that opens a connection for each of thousands of calls is to fail by itself, if it fails."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))


@contextlib.contextmanager
def server_of(behaviour: str, folder: Path) -> Iterator[tuple[str, Any]]:
    if behaviour.startswith("tls_"):
        with failing(behaviour.removeprefix("tls_").replace("_", " "), folder) as url:
            yield url, None
        return
    server: HostileServer
    if behaviour.startswith("race_"):
        server = GeneratedScriptServer(lambda _: closes_soon)
    elif behaviour.startswith("slow_"):
        warm_up = {"bytes": script_of(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 4000000)}
        streams = {"sse": events(2000, 200, 100), "events": events(500, 8192)}
        server = HostileServer({**ENDLESS, **warm_up, **streams})
    elif behaviour in ("churn", "loops"):
        server = HostileServer(CHURN)
    else:
        server = PathEchoServer()
    with server:
        yield server.base, server


@contextlib.contextmanager
def failing(failure: str, folder: Path) -> Iterator[str]:
    """Server whose TLS fails in this way, for a client that trusts ca.pem in the folder."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    if failure == "stalled":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield f"https://localhost:{listener.getsockname()[1]}/good"
        return
    known = failure in FAILURES
    certificate = (
        invalid_certificate(failure, authority, folder) if known else authority.issue_cert("localhost")
    )
    with serving(certificate) as server:
        yield server.url("localhost")


# --- in words -----------------------------------------------------------------------------------


def verdict(behaviour: str, found: dict[str, Any]) -> str:
    """Summary in a few words."""
    if "hung_s" in found:
        return f"still at it after {found['hung_s']:.0f} s"
    if "failed" in found:
        return str(found["failed"]).partition(":")[0]
    if behaviour.startswith("tls_"):
        return refusal(behaviour, found)
    if behaviour.startswith("slow_"):
        stopped = ", stopped" if found["stopped"] else ""
        return f"{'**' if found['growth_mib'] >= 1 else ''}+{found['growth_mib']:.1f} MiB{stopped}" + (
            "**" if found["growth_mib"] >= 1 else ""
        )
    if behaviour == "fork":
        return forked(found)
    words = [counted(found)]
    if found.get("carried_twice") and behaviour == "race_post":
        words.append(f"**{found['carried_twice']} carried out twice**")
    if behaviour == "crowd":
        words.append(f"{found['connections']} connections, {found['seconds']} s")
    return ", ".join(words)


def counted(found: dict[str, Any]) -> str:
    words = []
    if found["wrong"]:
        words.append(f"**{found['wrong']} wrong bodies**")
    words += [f"{times} {name}" for name, times in sorted(found["errors"].items())]
    return ", ".join(words) or "none failed"


def forked(found: dict[str, Any]) -> str:
    hung = sum("hung" in one for one in found["children"])
    total: dict[str, Any] = {"wrong": 0, "errors": collections.Counter()}
    for one in (found["parent"], *found["children"]):
        total["wrong"] += one.get("wrong", 0)
        total["errors"].update(one.get("errors", {}))
    words = [] if hung and not total["wrong"] and not total["errors"] else [counted(total)]
    return ", ".join([*([f"{hung} of 4 children hang"] if hung else []), *words])


def refusal(behaviour: str, found: dict[str, Any]) -> str:
    """Returns the error, whether its text has the reason and whether it names the server."""
    if "answered" in found:
        return "answered" if behaviour == "tls_good" else "**taken for good**"
    words, message = [found["error"]], found["message"].lower()
    if behaviour in ("tls_good", "tls_stalled"):
        return f"{found['error']} after {found['seconds']:.0f} s" if behaviour == "tls_stalled" else words[0]
    reasons = FAILURES[behaviour.removeprefix("tls_").replace("_", " ")]
    if not any(reason in message for reason in reasons):
        words.append("does not say why")
    if "localhost" not in message:
        words.append("nor for whom" if len(words) > 1 else "not for whom")
    return ", ".join(words)


def tables(measured: dict[str, Any]) -> list[str]:
    parts = [
        "## Over a long life\n\nServers: tests/support/http1_scripts.py and tls.py; the same tests of ours are"
        " test_faults_life.py and test_faults_tls.py. A pool of 100 connections (20 for the threads, 10 for the"
        " cancels) where a client has one. The crowd counts the connections that were used. A slow reader takes"
        " 64 KB every 50 ms, or 10 of 500 events of 8 KiB, for 4 s: what resident memory grew by. TLS is asked of"
        " a client that trusts one authority: the error, and whether its text says why and for which host; the"
        f" stalled handshake without a deadline set. A process is ended after {MAX_WAIT:.0f} s"
        f" ({STALL_TIMEOUT:.0f} s where it is to stall).\n"
    ]
    for title, subjects, tls in (
        ("Asynchronous", ASYNC, False),
        ("Synchronous", SYNC[:1] + SYNC[2:], False),
        ("TLS", SYNC, True),
    ):
        present = [name for name in subjects if measured.get(name, {}).get("life")]
        rows = [
            [description, *(cell(measured[subject]["life"], name) for subject in present)]
            for name, (description, _) in BEHAVIOURS.items()
            if name.startswith("tls_") is tls and any(has(subject, name) for subject in present)
        ]
        if present:
            parts.append(f"### {title}\n\n" + report.table(["behaviour", *present], rows))
    return parts


def cell(life: dict[str, Any], behaviour: str) -> str:
    return verdict(behaviour, life[behaviour]) if behaviour in life else ""
