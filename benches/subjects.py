"""The servers as separate processes: command line, pinned start, health check, pause, stop."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
APPS = Path(__file__).parent / "apps"
START_TIMEOUT, STOP_TIMEOUT = 20.0, 8.0

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 20000; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 75s; default_type text/plain;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port} backlog=2048; location / {{ return 200 "Hello, world!\\n"; }} }}
}}
"""


def command(name: str, app: str, interface: str, port: int) -> list[str]:
    """One worker each, access log off, uvloop where there is a choice; everything else as it comes.

    gunicorn's gthread worker gets the number of threads at which it was fastest.
    """
    bind = f"127.0.0.1:{port}"
    match name.split("@")[0]:
        case "towline":
            return [
                "towline",
                "serve",
                app,
                "--interface",
                interface,
                "--bind",
                bind,
                "--log-level",
                "warning",
                "--threads",
                "1",
            ]
        case "granian":
            loop = ["--loop", "uvloop"] if interface == "asgi" else ["--blocking-threads", "1"]
            return [
                "granian",
                "--interface",
                interface,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--workers",
                "1",
                "--log-level",
                "warning",
                *loop,
                app,
            ]
        case "uvicorn":
            return [
                "uvicorn",
                app,
                "--port",
                str(port),
                "--loop",
                "uvloop",
                "--http",
                "httptools",
                "--no-access-log",
                "--log-level",
                "warning",
            ]
        case "hypercorn":
            return ["hypercorn", app, "--bind", bind, "--worker-class", "uvloop", "--log-level", "warning"]
        case "gunicorn-uvicorn":
            return [
                "gunicorn",
                app,
                "--bind",
                bind,
                "--worker-class",
                "uvicorn.workers.UvicornWorker",
                "--timeout",
                "0",
                "--log-level",
                "warning",
            ]
        case "gunicorn-asgi":
            return [
                "gunicorn",
                app,
                "--bind",
                bind,
                "--worker-class",
                "asgi",
                "--timeout",
                "0",
                "--log-level",
                "warning",
                "--keep-alive",
                "75",
            ]
        case "gunicorn-gthread":
            return [
                "gunicorn",
                app,
                "--bind",
                bind,
                "--worker-class",
                "gthread",
                "--threads",
                "4",
                "--timeout",
                "0",
                "--log-level",
                "warning",
                "--keep-alive",
                "75",
            ]
        case "gunicorn-sync":
            return [
                "gunicorn",
                app,
                "--bind",
                bind,
                "--worker-class",
                "sync",
                "--timeout",
                "0",
                "--log-level",
                "warning",
            ]
        case "nginx":
            return ["nginx", "-c", "nginx.conf"]
    raise ValueError(f"no server is called {name}")  # fmt: skip


# NAME@N is the same server asked over N connections, whatever the cell says.
NAMES = (
    "towline", "towline@64", "granian", "uvicorn", "hypercorn", "gunicorn-asgi", "gunicorn-uvicorn", "gunicorn-gthread",
    "gunicorn-sync", "nginx",
)  # fmt: skip


def program(name: str) -> str | None:
    """Where the server's program is; None where it is not installed."""
    base = re.split("[-@]", name)[0]
    if base == "nginx":
        return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    return shutil.which(str(BIN / base))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Subject:
    """One running server and its children, which stand in a process group of their own."""

    def __init__(self, name: str, app: str, interface: str, core: int | None) -> None:
        self.name, self.port = name, free_port()
        self.argv = command(name, app, interface, self.port)
        self._folder = tempfile.TemporaryDirectory(prefix="towline-bench-", ignore_cleanup_errors=True)
        argv = [str(program(name)), *self.argv[1:]]
        if name == "nginx":
            config = Path(self._folder.name, "nginx.conf")
            config.write_text(NGINX.format(folder=self._folder.name, port=self.port))
            argv = [argv[0], "-c", str(config)]
        self._log = Path(self._folder.name, "log").open("wb+")  # noqa: SIM115 (closed by stop)
        # A fresh size of the environment moves the stack: one unlucky layout must not colour every restart.
        environment = os.environ | {"BENCH_PADDING": "x" * (os.urandom(1)[0] * 8)}
        self._process = subprocess.Popen(
            argv, cwd=APPS, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True, preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if core is not None else None,
        )  # fmt: skip

    @property
    def shown(self) -> str:
        """The command line without this run's port."""
        return " ".join(self.argv).replace(str(self.port), "PORT")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended during start-up:\n{self.log()}")
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not listen after {START_TIMEOUT:.0f} s:\n{self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def pids(self) -> list[int]:
        """All processes of the group, which is what the server costs."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self._process.pid
        except ProcessLookupError:
            return False

    def cpu_seconds(self) -> float:
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_kib(self, field: str = "VmRSS") -> int:
        """Sum over the group of a field of /proc/PID/status."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith(field + ":"):
                        total += int(line.split()[1])
        return total

    def reset_peak(self) -> None:
        """VmHWM starts again from the present VmRSS."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT)
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()
