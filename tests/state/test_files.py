"""Files of a store: what is refused, permissions, settings, and a store without space."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import towline.state
from towline.config import ServerConfig
from towline.errors import ConfigError, StateFull, StateUnavailable, UsageError

from tests.support.process import eventually

SIZE = 1 << 20


def test_a_store_keeps_its_values(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with towline.state.open(path) as state:
        state.set("greeting", {"text": "hello"})
    with towline.state.open(f"file://{path}") as state:
        assert state.get("greeting") == {"text": "hello"}


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    old = os.umask(0)
    try:
        with towline.state.open(str(path)) as state, state.subscribe("any"):
            state.set("key", 1)
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()}
    finally:
        os.umask(old)
    assert {"data.mdb", "lock.mdb", "shared", "format", "opening"} < modes.keys()
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("format", b"towline state 2\nsize 1\n", "has format 2, and this version of Towline reads 1"),
        ("format", b"\xff\xfe", "the file `format` is damaged"),
        ("data.mdb", b"not a database" * 1000, "does not begin as a file of LMDB does"),
        ("data.mdb", b"short", "ends within its first pages"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    path = tmp_path / "store"
    with towline.state.open(str(path)) as state:
        state.set("key", 1)
    (path / file).write_bytes(content)
    before = {each.name: each.stat().st_size for each in path.iterdir()}
    with pytest.raises(StateUnavailable, match=message):
        towline.state.open(str(path))
    assert {each.name: each.stat().st_size for each in path.iterdir()} == before


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with towline.state.open(str(path)) as state:
        for number in range(1000):
            state.set(f"key-{number}", "x" * 100)
    os.truncate(path / "data.mdb", 16384)
    with pytest.raises(StateUnavailable, match="shorter than its contents"):
        towline.state.open(str(path))


def test_foreign_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StateUnavailable, match=r"has other files \(notes.txt\)"):
        towline.state.open(str(tmp_path))
    (tmp_path / "notes.txt").rename(tmp_path / "data.mdb")
    with pytest.raises(StateUnavailable, match="is not of Towline"):
        towline.state.open(str(tmp_path))
    with pytest.raises(StateUnavailable, match="is not a directory"):
        towline.state.open(str(tmp_path / "data.mdb"))
    assert (tmp_path / "data.mdb").read_text() == "mine"


def test_settings_belong_to_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with towline.state.open(path, size=2 * SIZE, when_full="evict"):
        with pytest.raises(UsageError, match="open with other settings: size 2097152"):
            towline.state.open(path, size=SIZE)
    with towline.state.open(path) as state:
        assert (state.info()["size"], state.info()["when_full"]) == (2 * SIZE, "evict")
    with towline.state.open(path, size=4 * SIZE) as state:  # nobody else has it open
        assert (state.info()["size"], state.info()["when_full"]) == (4 * SIZE, "evict")
    with pytest.raises(UsageError, match="at least 1048576 bytes"):
        towline.state.open(str(tmp_path / "small"), size=1000)
    with pytest.raises(UsageError, match="when_full"):
        towline.state.open(str(tmp_path / "other"), when_full="drop")


def test_a_synchronous_store(tmp_path: Path) -> None:
    with towline.state.open(str(tmp_path / "store"), sync=True) as state:
        state.set("key", 1)
        assert state.get("key") == 1
        assert state.info()["sync"] is True


def fill(state: towline.state.State[bytes], size: int) -> int:
    for number in range(1_000_000):
        try:
            state.set(f"key-{number:06}", bytes(size))
        except StateFull:
            return number
    raise AssertionError("the store has no bound")


@pytest.mark.parametrize("size", [20, 1000, 20_000])
def test_a_full_store_refuses_and_recovers(tmp_path: Path, size: int) -> None:
    with towline.state.open(str(tmp_path / "store"), codec="bytes", size=SIZE) as state:
        count = fill(state, size)
        assert SIZE / 4 < count * (size + 20) < SIZE
        with pytest.raises(StateFull, match="its size is 1048576 bytes"):
            state.set_many({f"more-{number}": bytes(size) for number in range(100)})
        assert "more-0" not in state
        assert len(list(state.keys())) == count
        assert state.delete(*[f"key-{number:06}" for number in range(count // 2)]) == count // 2
        state.set("new", bytes(size))
        assert state.clear() == count - count // 2 + 1
        assert fill(state, size) >= count * 0.9
        assert state.info()["file_bytes"] < 8 * SIZE


def test_expired_values_make_space(tmp_path: Path) -> None:
    with towline.state.open(str(tmp_path / "store"), codec="bytes", size=SIZE) as state:
        for number in range(300):
            state.set(f"old-{number}", bytes(1000), ttl=0.001)
        for number in range(3000):
            state.set(f"old-{number}", bytes(1000), ttl=0.001)
        state.set("kept", b"x")
        assert state.get("kept") == b"x"


def test_a_full_store_evicts(tmp_path: Path) -> None:
    options = {"size": SIZE, "when_full": "evict"}
    with (
        towline.state.open(str(tmp_path / "store"), codec="bytes", **options) as state,
        state.lock("mine") as lock,
    ):
        for number in range(20_000):
            state.set(f"key-{number:06}", bytes(200))
        keys = list(state.keys())
        assert 1000 < len(keys) < 5000
        assert "key-019999" in keys
        assert state.info()["used_bytes"] <= 2 * SIZE
        lock.extend()  # locks are not evicted
    with towline.state.open(str(tmp_path / "store"), codec="bytes") as state, pytest.raises(StateFull):
        state.set("too large", bytes(2 * SIZE))


def test_keys_are_checked(tmp_path: Path) -> None:
    with towline.state.open(str(tmp_path / "store")) as state:
        state.set("x" * 480, 1)
        for key in ("", "x" * 481, "\0lock:x"):
            with pytest.raises(UsageError):
                state.set(key, 1)
        with pytest.raises(UsageError):
            state.namespace("a:b")


def test_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOWLINE_STATE", raising=False)
    with pytest.raises(towline.state.StateError, match="not started by a server that has a store"):
        towline.state.open()
    monkeypatch.setenv("TOWLINE_STATE", str(tmp_path / "store"))
    with towline.state.open() as state:
        state.set("key", 1)
    with pytest.raises(UsageError, match="there is no store for nats://"):
        towline.state.open("nats://localhost")


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_store_that_is_gone_is_not_used_on(tmp_path: Path, how: str) -> None:
    """Another process would make a new one, and the counters and locks of the two would differ."""
    path = tmp_path / "store"
    with towline.state.open(str(path)) as state:
        state.set("key", 1)
        if how == "removed":
            shutil.rmtree(path)
        else:
            path.rename(tmp_path / "elsewhere")
        if how == "replaced":
            shutil.copytree(tmp_path / "elsewhere", path)

        def is_refused(operation: Callable[[], object]) -> bool:
            try:
                operation()
            except StateUnavailable as error:
                return "was removed or replaced while it was open" in str(error)
            return False

        eventually(lambda: is_refused(lambda: state.get("key")), "the refusal of a read")
        assert is_refused(lambda: state.set("key", 2))
        assert is_refused(lambda: state.increment("count"))
        assert is_refused(lambda: state.publish("channel", 1))
        # In the same process, too, a store that is opened now is the one in the directory.
        with towline.state.open(str(path)) as other:
            assert other.get("key") == (1 if how == "replaced" else None)
            other.set("key", 3)
        assert is_refused(lambda: state.get("key"))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("redis:/localhost", "redis:// has two slashes"),
        ("rediss:host", "rediss:// has two slashes"),
        ("localhost:6379", r"neither a URL, redis://localhost:6379, nor a directory"),
        ("127.0.0.1:6379/2", "neither a URL"),
        ("memcached://localhost", "there is no store for memcached://"),
    ],
)
def test_a_location_that_resembles_a_url_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for opens in (towline.state.open, towline.state.open_async):
        with pytest.raises(UsageError, match=message):
            opens(location)
    with pytest.raises(ConfigError, match=f"state: .*{message}"):
        ServerConfig(app="app:app", state=location)
    assert not list(tmp_path.iterdir())


def test_a_directory_may_have_a_name_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with towline.state.open("./localhost:6379") as state:
        state.set("key", 1)
    assert (tmp_path / "localhost:6379" / "data.mdb").exists()
