"""Damaged and truncated files: a `StateError` that names the file, or the right values. Never a signal, never an empty store."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import towline.state
from towline.errors import StateError, StateUnavailable

from tests.state import damage_reader

PAGE = 4096
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "whole"
    damage_reader.fill(str(path))
    return path


def pages_of(store: Path) -> int:
    return len((store / "data.mdb").read_bytes().rstrip(b"\0")) // PAGE + 1


def outcomes(whole: Path, damages: list[Damage], tmp_path: Path) -> list[str]:
    paths = []
    for number, damage in enumerate(damages):
        paths.append(tmp_path / f"store-{number}")
        shutil.copytree(whole, paths[-1])
        damage(paths[-1])
    command = [sys.executable, damage_reader.__file__, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == len(damages)
    return lines


def written(file: str, at: int, data: bytes) -> Damage:
    def damage(store: Path) -> None:
        with (store / file).open("r+b") as opened:
            opened.seek(at)
            opened.write(data)

    return damage


def test_a_whole_store_is_right(whole: Path, tmp_path: Path) -> None:
    assert outcomes(whole, [lambda store: None], tmp_path) == ["right"]


@pytest.mark.parametrize("seed", range(2))
def test_damaged_pages(whole: Path, tmp_path: Path, seed: int) -> None:
    chance, count = random.Random(seed), pages_of(whole)
    data = (whole / "data.mdb").read_bytes()[: count * PAGE]
    damages = []
    for _ in range(10):
        page, other = chance.randrange(count), chance.randrange(count)
        damages += [
            written("data.mdb", page * PAGE + chance.randrange(16), chance.randbytes(1)),
            written("data.mdb", page * PAGE + chance.randrange(300), chance.randbytes(2)),
            written("data.mdb", page * PAGE, bytes(PAGE)),
            written("data.mdb", page * PAGE, chance.randbytes(PAGE)),
            written("data.mdb", page * PAGE, data[other * PAGE : (other + 1) * PAGE]),
        ]
    found = outcomes(whole, damages, tmp_path)
    # Values have no checksums: those that are read as JSON nevertheless may be wrong. None is missing.
    allowed = ("right", "StateError: a value of ", "StateUnavailable: ", "0 values missing")
    assert [line for line in found if not line.startswith(allowed)] == []
    assert sum("/data.mdb is damaged: " in line for line in found) > 3


def test_truncated_at_every_page(whole: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    for page in range(pages_of(whole) - 1, -1, -1):
        for length in (page * PAGE + PAGE // 2, page * PAGE):
            os.truncate(store / "data.mdb", length)
            with pytest.raises(StateUnavailable, match=r"data\.mdb is damaged: it (is shorter|ends within)"):
                towline.state.open(str(store))


def test_a_missing_file_of_values_is_no_empty_store(whole: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    (store / "data.mdb").unlink()
    with pytest.raises(StateUnavailable, match=r"data\.mdb is missing"):
        towline.state.open(str(store))
    assert not (store / "data.mdb").exists()


def test_files_that_are_made_anew(whole: Path, tmp_path: Path) -> None:
    """No value depends on what these two have when no process has the store open."""
    damages: list[Damage] = []
    for file in ("shared", "lock.mdb"):
        damages += [
            written(file, 0, random.Random(1).randbytes(4000)),
            lambda store, file=file: os.truncate(store / file, 100),  # type: ignore[misc]
            lambda store, file=file: os.truncate(store / file, 0),  # type: ignore[misc]
            lambda store, file=file: (store / file).unlink(),  # type: ignore[misc]
        ]
    assert set(outcomes(whole, damages, tmp_path)) == {"right"}


@pytest.mark.parametrize("file", ["data.mdb", "shared", "lock.mdb"])
def test_truncated_while_another_process_has_it_open(tmp_path: Path, file: str) -> None:
    store = tmp_path / "store"
    with towline.state.open(str(store)) as state:
        state.set("key", 1)
        os.truncate(store / file, 5000 if file == "data.mdb" else 100)
        (line,) = outcomes_of(store)
        assert line.startswith(f"StateUnavailable: {store / file} is damaged")


def outcomes_of(store: Path) -> list[str]:
    command = [sys.executable, damage_reader.__file__, str(store)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def test_a_store_whose_maker_was_killed_is_made_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with towline.state.open(str(store)) as state:
        state.set("key", 1)
    (store / "format").rename(store / "format.new")  # the last step, not yet taken
    with towline.state.open(str(store)) as state:
        assert state.get("key") is None
        state.set("key", 2)
    with towline.state.open(str(store)) as state:
        assert state.get("key") == 2


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_bytes_of_another_codec(tmp_path: Path, codec: str) -> None:
    with (
        towline.state.open(str(tmp_path / "store"), codec="bytes") as raw,
        towline.state.open(str(tmp_path / "store"), codec=codec) as state,
    ):
        raw.set("key", b"\xc1{not it")
        for read in (lambda: state.get("key"), lambda: dict(state.scan()), lambda: state.get_many(["key"])):
            with pytest.raises(StateError, match="another codec has written it, or the store is damaged"):
                read()
