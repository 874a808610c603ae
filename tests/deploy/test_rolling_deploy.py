"""Two servers behind HAProxy are replaced one after the other under load, with deploy/haproxy/rolling.cfg as it is."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nightly import by_night
from tests.support.posting import Posting
from tests.support.process import Program, eventually, request, running
from tests.support.programs import executable, free_port, listening
from tests.support.proxies import DEPLOY, replaced

HERE = Path(__file__).parent
FILE = (DEPLOY / "haproxy/rolling.cfg").read_text()
APPS = {
    "asgi": ["apps:app", "--lifespan", "off"],
    "wsgi-threads": ["tests.lifecycle.apps:wsgi", "--threads", "4", "--app-dir", str(HERE.parents[1])],
}


def options_of_the_file() -> list[str]:
    found = re.search(r"towline serve (--drain-delay \S+ --health-path \S+) ", FILE)
    assert found
    return found[1].split()


class Deployment:
    """The two servers, each on a port of its own."""

    def __init__(self, stack: contextlib.ExitStack, app: list[str], options: list[str]) -> None:
        self._stack, self._app, self._options = stack, app, options
        self.ports = [free_port(), free_port()]
        self.programs = [self._start(port) for port in self.ports]

    def _start(self, port: int) -> Program:
        command = [*self._app, "--bind", f"127.0.0.1:{port}", *self._options]
        return self._stack.enter_context(running(*command, cwd=HERE))

    def replace(self, index: int, proxy: int) -> None:
        """Stop a server, start its successor and wait until HAProxy uses it."""
        self.programs[index].signal(signal.SIGTERM)
        assert self.programs[index].wait() == 0
        self.programs[index] = successor = self._start(self.ports[index])
        eventually(lambda: int(request(proxy, "/pid").body) in successor.children(), "a response of it")


@contextlib.contextmanager
def deployed(app: str, protocol: str, folder: Path, *more: str) -> Iterator[tuple[Deployment, int]]:
    program, port = executable("haproxy"), free_port()
    with contextlib.ExitStack() as stack:
        servers = Deployment(stack, APPS[app], [*options_of_the_file(), *more])
        config = folder / "haproxy.cfg"
        # A request that the proxy repeats would hide that a server has lost it.
        changes = [
            ("bind :80", f"bind 127.0.0.1:{port}"),
            ("    timeout connect", "    retries 0\n    timeout connect"),
        ]
        for number, own in zip(("8001", "8002"), servers.ports, strict=True):
            changes.append((f"127.0.0.1:{number}", f"127.0.0.1:{own} {protocol}"))
        config.write_text(replaced(FILE, *changes))
        stack.enter_context(listening([program, "-db", "-f", str(config)], port, folder))
        eventually(lambda: request(port, "/pid").status == 200, "the first response")
        yield servers, port


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("app", "protocol", "rounds"),
    [
        pytest.param("asgi", "", 1, id="asgi"),
        *by_night(
            [
                pytest.param("asgi", "proto h2", 3, id="asgi-h2c"),
                pytest.param("wsgi-threads", "", 3, id="wsgi-threads"),
                pytest.param("wsgi-threads", "proto h2", 3, id="wsgi-threads-h2c"),
            ]
        ),
    ],
)
def test_a_rolling_deploy_fails_no_request(app: str, protocol: str, rounds: int, tmp_path: Path) -> None:
    with deployed(app, protocol, tmp_path) as (servers, port), Posting(port, 16, 0.005) as posting:
        for _ in range(rounds):
            for index in range(2):
                servers.replace(index, port)
                posting.more()
    assert not posting.lost
    assert posting.responses > 500 * rounds


@pytest.mark.timeout(300)
@pytest.mark.parametrize("app", by_night(["asgi"]))
def test_without_the_delay_requests_fail(app: str, tmp_path: Path) -> None:
    """The load of these tests finds a server that leaves too early."""
    with (
        deployed(app, "", tmp_path, "--drain-delay", "0") as (servers, port),
        Posting(port, 16, 0.005) as posting,
    ):
        servers.programs[0].signal(signal.SIGTERM)
        assert servers.programs[0].wait() == 0
        eventually(lambda: posting.lost, "a lost request")
