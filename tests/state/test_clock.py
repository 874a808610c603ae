"""A wall clock that is set changes no time to live, no lease and no limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOUR = 3600
BEFORE = """
import os, sys, time
import towline.state
state = towline.state.open(sys.argv[1])
def jump(seconds):
    with open(os.environ["WALL_CLOCK_OFFSET"], "w") as file:
        file.write(str(seconds))
def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built = tmp_path_factory.mktemp("shim") / "clock_shim.so"
    source = Path(__file__).with_name("clock_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


def run(code: str, shim: Path, folder: Path) -> None:
    variables = {"LD_PRELOAD": str(shim), "WALL_CLOCK_OFFSET": str(folder / "offset")}
    command = [sys.executable, "-c", BEFORE + code, str(folder / "store")]
    result = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=90, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("jump", [-HOUR, -10 * 365 * 24 * HOUR])
def test_a_step_back_prolongs_nothing(shim: Path, tmp_path: Path, jump: int) -> None:
    code = f"""
state.set("value", 1, ttl=0.5)
state.lock("dead", lease=0.5).acquire()
state.once("mail", ttl=0.5)
for _ in range(5):
    assert state.token_bucket("bucket", capacity=5, per_second=5)
    assert state.sliding_window("window", limit=5, seconds=0.2)
jump({jump})
with towline.state.open(sys.argv[1]) as again:
    assert again.ttl("value") <= 0.5
until(lambda: state.get("value") is None)
with state.lock("dead", lease=1, timeout=20):
    pass
until(lambda: state.once("mail", ttl=1))
until(lambda: state.token_bucket("bucket", capacity=5, per_second=5))
until(lambda: state.sliding_window("window", limit=5, seconds=0.2))
"""
    run(code, shim, tmp_path)


def test_a_step_forward_ends_nothing(shim: Path, tmp_path: Path) -> None:
    code = f"""
state.set("value", 1, ttl=600)
lock = state.lock("held", lease=600)
lock.acquire()
for _ in range(5):
    assert state.token_bucket("bucket", capacity=5, per_second=0.001)
    assert state.sliding_window("window", limit=5, seconds=600)
jump({HOUR})
with towline.state.open(sys.argv[1]) as again:
    assert 500 < again.ttl("value") <= 600
    try:
        again.lock("held", lease=1, timeout=0).acquire()
    except towline.state.LockTimeout:
        pass
    else:
        raise AssertionError("two holders")
lock.extend()
assert not state.token_bucket("bucket", capacity=5, per_second=0.001)
assert not state.sliding_window("window", limit=5, seconds=600)
lock.release()
"""
    run(code, shim, tmp_path)


def test_a_store_that_is_opened_again_keeps_its_clock(shim: Path, tmp_path: Path) -> None:
    run('state.set("value", 1, ttl=600)\nstate.close()', shim, tmp_path)
    for jump in (HOUR, -HOUR, 0):
        run(f'jump({jump})\nassert 400 < state.ttl("value") <= 600', shim, tmp_path)
        code = f'jump({jump})\nstate.close()\nstate = towline.state.open(sys.argv[1])\nassert 400 < state.ttl("value") <= 600'
        run(code, shim, tmp_path)


def test_a_writer_that_waits_gives_up_by_its_own_clock(shim: Path, tmp_path: Path) -> None:
    """A step forward must not end the wait for a writer that is stopped for a moment."""
    code = """
import signal
child = os.fork()
if not child:
    while True:
        state.increment("child")
until(lambda: state.get("child"))
jump(3600)
for _ in range(20):
    os.kill(child, signal.SIGSTOP)
    resume = os.fork()
    if not resume:
        time.sleep(0.05)
        os.kill(child, signal.SIGCONT)
        os._exit(0)
    state.increment("own")
    os.waitpid(resume, 0)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
    run(code, shim, tmp_path)
