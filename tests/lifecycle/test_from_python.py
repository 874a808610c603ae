"""`towline.serve()` and `Server.run()` in scripts of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.process import HERE, children, eventually, request

SERVE = """
    import apps, towline
    if __name__ == "__main__":
        towline.serve({app}, port=0, workers=2)
        print("after")
"""
AS_UVICORN = """
    import apps, towline
    if __name__ == "__main__":
        towline.run({app}, port=0, http="httptools", ws="auto", access_log=False, reload_dirs=None, log_level="info")
        print("after")
"""
RUN = """
    import apps, threading, towline
    server = towline.Server(towline.ServerConfig({app}, port=0))
    def tell():
        server.started.wait()
        print("on http://" + server.addresses[0], flush=True)
    threading.Thread(target=tell).start()
    server.run()
    print("after")
"""


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    for line in process.stdout:
        if found := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError("it ended without a word")


@pytest.mark.parametrize("app", ["apps.asgi", "apps.wsgi", "'apps:asgi'"])
@pytest.mark.parametrize(
    "script",
    [pytest.param(SERVE, id="serve"), pytest.param(RUN, id="run"), pytest.param(AS_UVICORN, id="as-uvicorn")],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_script_serves_until_a_signal(script: str, app: str, number: signal.Signals) -> None:
    source = textwrap.dedent(script).format(app=app)
    process = subprocess.Popen(
        [sys.executable, "-c", source], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    try:
        assert request(port_of(process), "/sleep/0").body == b"slept"
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(15) == 0, rest
        assert rest.splitlines()[-1] == "after"
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_serve_exits_with_3_when_the_start_fails() -> None:
    source = "import towline; towline.serve('nowhere:app', port=0)"
    completed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=30)
    assert completed.returncode == 3
    assert "no module 'nowhere'" in completed.stderr


def test_a_start_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)\n")
    command = [sys.executable, "-m", "towline", "serve", "slow:app", "--port", "0"]
    started = time.monotonic()
    completed = subprocess.run(
        [*command, "--timeout-worker-startup", "0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert completed.returncode == 3
    assert "was not ready after" in completed.stderr
    assert time.monotonic() - started < 15


OBJECTS = """
    import apps, towline
    if __name__ == "__main__":
        towline.run({app}, port=0, {option})
"""


@pytest.mark.parametrize("app", ["apps.asgi", "'__main__:apps.asgi'", "lambda: apps.asgi", "mounted"])
def test_an_object_cannot_be_reloaded(app: str) -> None:
    option = "reload=True"
    if app == "mounted":
        app, option = "'apps:asgi'", "reload=True, mount=[('/a', apps.asgi)]"
    elif app.startswith("lambda"):
        option = "reload=True, factory=True"
    source = textwrap.dedent(OBJECTS).format(app=app, option=option)
    completed = subprocess.run(
        [sys.executable, "-c", source], cwd=HERE, capture_output=True, text=True, timeout=30
    )
    assert completed.returncode == 1
    last = completed.stderr.splitlines()[-1]
    assert last.startswith("towline.errors.ConfigError: reload: ")
    assert 'give an import string ("module:app")' in last


def test_hup_is_refused_for_an_object() -> None:
    source = textwrap.dedent(OBJECTS).format(app="apps.asgi", option="workers=2")
    process = subprocess.Popen(
        [sys.executable, "-c", source], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    try:
        port = port_of(process)
        workers = children(process.pid)
        process.send_signal(signal.SIGHUP)
        assert 'SIGHUP: refused: the application is an object; give an import string ("module:app")' in (
            process.stdout.readline()
        )
        assert request(port, "/sleep/0").body == b"slept"
        assert children(process.pid) == workers
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()


def test_modules_that_the_program_has_imported_are_reloaded(tmp_path: Path) -> None:
    """Workers are forked, and would inherit them."""
    app = """
        from detail import VERSION
        def app(environ, start_response):
            start_response("200 OK", [("Content-Length", "2")])
            return [VERSION]
    """
    (tmp_path / "served.py").write_text(textwrap.dedent(app))
    (tmp_path / "detail.py").write_text("VERSION = b'v1'\n")
    source = "import served, towline; towline.run('served:app', port=0, reload=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    try:
        port = port_of(process)
        assert request(port, "/").body == b"v1"
        (tmp_path / "detail.py").write_text("VERSION = b'v2' # changed\n")
        eventually(lambda: request(port, "/").body == b"v2", "the new code")
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()
