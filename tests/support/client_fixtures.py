"""Fixtures and programs of the tests of both clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from tests.support.client_backends import BACKENDS
from tests.support.server_processes import MAX_WAIT

Make: TypeAlias = Callable[..., Any]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes blocking and asynchronous clients, and closes them."""
    backends: list[Any] = []

    def make(**options: Any) -> Any:
        backends.append(BACKENDS[request.param](**options))
        return backends[-1]

    yield make
    for created in backends:
        created.close()


FORKING = """
import os, sys, threading, towline
client = towline.Client({options}, base_url=sys.argv[1])
stop = threading.Event()
def work():
    while not stop.is_set():
        assert client.get({path!r}).status_code == 200
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
for _ in range(5):
    with client.stream("GET", "/large") as parents:
        child = os.fork()
        if child == 0:
            try:
                assert client.get("/small").text == "hello"
                try:
                    parents.read()
                except towline.Error:
                    os._exit(7)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert len(parents.read()) == 256 * 12_000
stop.set()
[thread.join() for thread in threads]
print(client.get("/small").text)
"""


def check_forking(url: str, options: str, path: str) -> None:
    """A forked child uses a connection of its own, while threads of the parent call `path`. `options`: source code."""
    run_program(FORKING.format(options=options, path=path), url, says="hello\n", timeout=3 * MAX_WAIT)


def run_program(program: str, *arguments: str, says: str, timeout: float) -> None:
    """Runs source code in a process of its own, which must write `says`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.stdout == says, done.stderr
