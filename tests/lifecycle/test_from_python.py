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

from tests.support.process import HERE, request

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
