"""Processes that an application starts: signals to them are theirs, however they are started."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.process import connect, eventually, request, running

APP = """
    import asyncio, json, multiprocessing, os, pty, signal, subprocess, sys, time
    from concurrent.futures import ProcessPoolExecutor

    PROGRAM = "import time; print(1, flush=True); [time.sleep(0.05) for _ in range(1200)]"

    def rest():
        # Python runs no handler of a signal that arrives between its last look and the system call, until that ends.
        for _ in range(1200):
            time.sleep(0.05)

    def ready(channel):
        channel.send_bytes(b"1")
        rest()

    def process(method):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        child = context.Process(target=ready, args=(theirs,))
        child.start()
        ours.recv_bytes()
        return child.pid, lambda: child.join() or child.exitcode

    def early():
        # Not awaited: the signal may arrive before the child has run.
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        return child.pid, lambda: child.join() or child.exitcode

    def reap(pid):
        return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def forked(fork):
        read, write = os.pipe()
        pid = fork()
        if pid == 0:
            try:
                os.write(write, b"1")
                rest()
            finally:
                os._exit(1)
        os.read(read, 1)
        return pid, reap(pid)

    def spawned():
        read, write = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, write, 1)]
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", PROGRAM], os.environ, file_actions=actions)
        os.read(read, 1)
        return pid, reap(pid)

    def program(**options):
        child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, **options)
        child.stdout.readline()
        return child.pid, child.wait

    WAYS = {
        "fork": lambda: forked(os.fork),
        "pty": lambda: forked(lambda: pty.fork()[0]),
        "posix_spawn": spawned,
        "subprocess": program,
        "preexec": lambda: program(preexec_fn=lambda: None),
        "multiprocessing": lambda: process("fork"),
        "spawn": lambda: process("spawn"),
        "forkserver": lambda: process("forkserver"),
        "early": early,
    }

    def work(path):
        _, way, *number = path.split("/")
        if way == "pid":
            return os.getpid()
        if way == "back":
            pid = os.fork()
            if pid == 0 and number[0] == "raises":
                raise ValueError("in the child")
            if pid == 0 and number[0] == "exits":
                sys.exit(7)
            return pid
        if way == "wait":
            return reap(int(number[0]))()
        if way == "pool":
            context = multiprocessing.get_context("fork")
            with context.Pool(2) as pool:
                return pool.map(abs, [-1, -2])
        if way == "executor":
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                return pool.submit(abs, -3).result()
        pid, wait = WAYS[way]()
        os.kill(pid, int(number[0]))
        return wait()

    async def asgi(scope, receive, send):
        assert scope["type"] == "http"
        if scope["path"].startswith("/back/late"):
            await asyncio.sleep(0.01)
        direct = scope["path"].startswith("/back/")
        result = work(scope["path"]) if direct else await asyncio.to_thread(work, scope["path"])
        body = json.dumps(result).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def wsgi(environ, start_response):
        body = json.dumps(work(environ["PATH_INFO"])).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
"""
KINDS = {
    "asyncio": ("children:asgi", "--loop", "asyncio"),
    "uvloop": ("children:asgi", "--loop", "uvloop"),
    "wsgi": ("children:wsgi",),
    "threads": ("children:wsgi", "--threads", "2"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_ends_a_child_and_not_the_worker(kind: str, tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(textwrap.dedent(APP))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    ways = ("fork", "pty", "posix_spawn", "subprocess", "preexec", "multiprocessing", "spawn", "forkserver")
    with running(*KINDS[kind], cwd=tmp_path) as program:
        worker = request(program.port, "/pid").body
        for number in numbers:
            for way in ways if number in (signal.SIGTERM, signal.SIGINT) else ("fork", "subprocess"):
                status = json.loads(request(program.port, f"/{way}/{int(number)}").body)
                # For a child that goes on as Python, SIGINT is a KeyboardInterrupt.
                expected = (-number, 1) if number == signal.SIGINT else (-number,)
                assert status in expected, (way, number, status)
        for _ in range(20):
            assert json.loads(request(program.port, f"/early/{int(signal.SIGTERM)}").body) == -signal.SIGTERM
        assert json.loads(request(program.port, "/pool").body) == [1, 2]
        assert json.loads(request(program.port, "/executor").body) == 3
        assert request(program.port, "/pid").body == worker
        program.signal(signal.SIGTERM)
        assert program.wait() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_comes_back_from_the_request_ends(kind: str, tmp_path: Path) -> None:
    """A forked child must not answer the request as well, nor take connections of the worker."""
    (tmp_path / "children.py").write_text(textwrap.dedent(APP))
    with running(*KINDS[kind], cwd=tmp_path) as program, connect(program.port) as kept:
        worker = kept.get("/pid").body
        for how, status in (("returns", 0), ("raises", 1), ("exits", 7), ("late", 0)):
            child = json.loads(request(program.port, f"/back/{how}").body)
            assert json.loads(request(program.port, f"/wait/{child}").body) == status
            assert [request(program.port, "/pid").body for _ in range(5)] == [worker] * 5
            assert kept.get("/pid").body == worker
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert program.log.count("ValueError: in the child") == 1


def test_a_child_of_a_hook_gets_its_signals(tmp_path: Path) -> None:
    """The supervisor forks the child."""
    (tmp_path / "children.py").write_text(textwrap.dedent(APP))
    (tmp_path / "conf.py").write_text(
        textwrap.dedent("""
            import os, time
            def when_ready(server):
                if os.fork() == 0:
                    open("child", "w").write(str(os.getpid()))
                    time.sleep(60)
                    os._exit(1)
        """)
    )
    with running("children:asgi", "--config", "conf.py", cwd=tmp_path) as program:
        file = tmp_path / "child"
        eventually(lambda: file.exists() and file.read_text(), "the child")
        os.kill(int(file.read_text()), signal.SIGTERM)
        eventually(lambda: int(file.read_text()) not in program.children(), "the end of the child")
        assert request(program.port, "/pid").status == 200
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
