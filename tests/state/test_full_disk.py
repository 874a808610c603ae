"""A store on a full disk: an error for what does not fit, never SIGBUS; reading and removal always work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")

BEFORE = """
import sys, threading
import towline.state
path = sys.argv[1]
def attempt(call):
    try:
        return call()
    except towline.state.StateError as error:
        return type(error).__name__
"""
FILL = """
with towline.state.open(path, codec="bytes", size=16 << 20) as state:
    number = 0
    while attempt(lambda: state.set(f"key-{number:06}", bytes(200), ttl=3600 if number % 2 else None)) is None:
        number += 1
    print(number)
"""
READ = """
with towline.state.open(path, codec="bytes") as state:
    barrier = threading.Barrier(100)
    def read():
        barrier.wait()
        for _ in range(100):
            assert state.get("key-000001") == bytes(200)
    threads = [threading.Thread(target=read) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(list(state.keys())))
"""
SUBSCRIBE = """
with towline.state.open(path, codec="bytes") as state, state.subscribe("channel"):
    print(attempt(lambda: state.publish("channel", b"x")))
"""
DELETE = """
with towline.state.open(path, codec="bytes") as state:
    keys = list(state.keys())
    print(attempt(lambda: state.delete(*keys)) == len(keys), len(list(state.keys())))
    for number in range(1000):  # into the pages that are free now
        state.set(f"new-{number}", bytes(200))
    print(attempt(lambda: state.delete(*state.keys())))
"""
CLEAR = """
with towline.state.open(path, codec="bytes") as state:
    count = len(list(state.keys()))
    print(attempt(state.clear) == count, len(list(state.keys())))
"""


def run(code: str, folder: Path) -> list[str]:
    command = [sys.executable, "-c", BEFORE + code, str(folder / "store")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout.split()


def mount(folder: Path, size: str, kind: str = "tmpfs") -> None:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", kind, "-o", f"size={size},mode=0700", kind, str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow a mount")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], capture_output=True, check=False)


def fill(folder: Path) -> None:
    """Use what the store has left."""
    descriptor = os.open(folder / "other", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(descriptor, bytes(4096)):
            pass
    except OSError:
        pass
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("size", ["4k", "8k", "16k", "64k", "128k", "160k", "200k", "1m", "2m"])
def test_a_disk_that_is_too_small(folder: Path, size: str) -> None:
    mount(folder, size)
    (found,) = run('print(attempt(lambda: towline.state.open(path).set("key", 1)))', folder)
    assert found == "StateUnavailable"
    mounted = ["mount", "-o", "remount,size=8m", str(folder)]
    subprocess.run(mounted, check=True)
    assert run('s = towline.state.open(path)\ns.set("key", 1)\nprint(s.get("key"))', folder) == ["1"]


@pytest.mark.parametrize("remove", [DELETE, CLEAR], ids=["delete", "clear"])
def test_a_full_disk(folder: Path, remove: str) -> None:
    mount(folder, "8m")
    (count,) = map(int, run(FILL, folder))
    assert count > 1000
    fill(folder)
    assert run(READ, folder) == [str(count)]
    assert run(SUBSCRIBE, folder)[0] in ("None", "StateUnavailable")
    if remove is DELETE:
        assert run(DELETE, folder) == ["True", "0", "1000"]
    else:
        assert run(CLEAR, folder) == ["True", "0"]
    assert run(FILL, folder)[0] != "0"


def test_a_disk_that_is_filled_by_others(folder: Path) -> None:
    """The store was not full, so it has little of its own."""
    mount(folder, "4m")
    first = 's = towline.state.open(path, codec="bytes")\ns.set("key-000001", bytes(200))\nprint(1)'
    assert run(first, folder) == ["1"]
    fill(folder)
    for code, expected in ((READ, ["1"]), (DELETE, ["True", "0", "1000"]), (CLEAR, ["True", "0"])):
        if code is DELETE:
            code = code.replace("range(1000)", "range(100)")
            expected = [*expected[:2], "100"]
        assert run(code, folder) == expected


def test_a_file_system_that_cannot_reserve(folder: Path) -> None:
    mount(folder, "8m", "ramfs")
    code = """
with towline.state.open(path) as state:
    for number in range(2000):
        state.set(f"key-{number}", "x" * 300)
    assert state.get("key-0") == "x" * 300
"""
    read = """
with towline.state.open(path) as state:
    print(sum(value == "x" * 300 for _, value in state.scan()))
    state.set("more", 1)
    state.delete(*[f"key-{number}" for number in range(1000)])
    print(sum(value == "x" * 300 for _, value in state.scan()))
"""
    run(code, folder)
    assert run(read, folder) == ["2000", "1000"]
