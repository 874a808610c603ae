"""The store of a server: shared by its workers, kept over kills, reloads and recycling, removed at the end."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from pathlib import Path

import pytest
import towline.state
from towline._state_location import STATE_VARIABLE
from towline.config import ServerConfig
from towline.server import state_store
from towline.server.process import Owner
from towline.server.state_store import give_store, server_store

from tests.support.process import eventually, request, running

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATE_VARIABLE, raising=False)


@pytest.mark.parametrize("app", ["apps:asgi", "apps:wsgi"])
@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["plain", "preload"])
def test_workers_share_it(app: str, options: list[str]) -> None:
    with running(app, "--workers", "2", *options, cwd=HERE) as program:
        folder = Path(request(program.port, "/where").body.decode())
        counts = {int(request(program.port, "/count").body) for _ in range(20)}
        assert counts == set(range(1, 21))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "data.mdb").exists()

        victims = program.pids(2)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not victims & set(program.children()), "the end of the killed")
        assert int(request(program.port, "/count").body) == 21

        before = program.pids(2)
        program.signal(signal.SIGHUP)
        eventually(lambda: not before & set(program.children()), "the end of the old workers")
        assert int(request(program.port, "/count").body) == 22
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert not folder.exists()


def test_recycled_workers(tmp_path: Path) -> None:
    options = ["--limit-max-requests", "5", "--state", str(tmp_path / "store")]
    with running("apps:asgi", *options, cwd=HERE) as program:
        pids = {int(request(program.port, "/pid").body)}
        for number in range(1, 41):
            assert int(request(program.port, "/count").body) == number
            if len(pids) < 3:
                pids.add(int(request(program.port, "/pid").body))
        eventually(lambda: pids.add(int(request(program.port, "/pid").body)) or len(pids) > 2, "new workers")
        assert request(program.port, "/where").body.decode() == str(tmp_path / "store")
    with towline.state.open(str(tmp_path / "store")) as state:
        assert state.get("count") == 40


def test_the_store_of_a_killed_server_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "MEMORY", str(tmp_path))
    monkeypatch.setattr(state_store, "ROOM", 0)
    config = ServerConfig("apps:asgi")
    pid = os.fork()
    if not pid:
        with server_store(config):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (left_over,) = tmp_path.iterdir()
    with server_store(config):
        (own,) = tmp_path.iterdir()
        assert own != left_over
        assert os.environ[STATE_VARIABLE] == str(own)
        with server_store(config):
            assert len(list(tmp_path.iterdir())) == 2, "that of a running server stays"
    assert list(tmp_path.iterdir()) == []
    assert STATE_VARIABLE not in os.environ


def test_an_abandoned_new_directory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "MEMORY", str(tmp_path))
    monkeypatch.setattr(state_store, "ROOM", 0)
    old = time.time() - state_store.LONGEST_MAKING_S - 10
    for name, has_lock in (("empty", False), ("unlocked", True), ("locked", True), ("new", True)):
        folder = tmp_path / f"towline-new-{name}"
        folder.mkdir()
        if has_lock:
            (folder / state_store.OWNER).touch()
        if name != "new":
            os.utime(folder, (old, old))
    (tmp_path / "towline-new-link").symlink_to(tmp_path / "towline-new-new")
    (tmp_path / "towline-new-foreign").mkdir()
    (tmp_path / "towline-new-foreign" / "notes").touch()
    os.utime(tmp_path / "towline-new-foreign", (old, old))
    lock = os.open(tmp_path / "towline-new-locked" / state_store.OWNER, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with server_store(ServerConfig("apps:asgi")):
        pass
    os.close(lock)
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {f"towline-new-{name}" for name in ("locked", "new", "link", "foreign")}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_removes_the_left_over_store_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "MEMORY", str(tmp_path))
    monkeypatch.setattr(state_store, "ROOM", 0)
    pid = os.fork()
    if not pid:
        with server_store(ServerConfig("apps:asgi", user="65534")):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 1
    with server_store(ServerConfig("apps:asgi")):
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_store_belongs_to_the_user_of_the_workers() -> None:
    with server_store(ServerConfig("apps:asgi", user="65534")):
        folder = Path(os.environ[STATE_VARIABLE])
        assert {each.stat().st_uid for each in (folder, *folder.iterdir())} == {65534}
        with towline.state.open() as state:  # an application that is imported by root, with --preload
            state.set("key", 1)
            give_store(Owner(65534, 65534, None))
            assert {each.stat().st_uid for each in (folder, *folder.iterdir())} == {65534}


def test_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "_base", lambda: Path("/proc/nowhere"))
    with server_store(ServerConfig("apps:asgi")), pytest.raises(towline.state.StateError):
        towline.state.open()
