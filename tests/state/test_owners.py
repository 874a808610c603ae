"""Owners and modes of a store: nobody else may be able to read, change or truncate the values."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import towline.state
from towline.errors import StateUnavailable

OTHER, VICTIM = 65534, 1234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
OPEN = "import towline.state as t\ns = t.open({!r})\ns.set('secret', 1)\nprint(s.get('role'))"


def as_user(user: int, code: str) -> subprocess.CompletedProcess[str]:
    before = f"import os, towline.state as t\nfrom towline.state import embedded\nos.setgroups([]); os.setgid({user}); os.setuid({user}); os.umask(0)\n"
    command = [sys.executable, "-c", before + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A folder as /tmp is."""
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_the_store_of_another_user_is_refused(shared_folder: Path, mode: int) -> None:
    path = shared_folder / "store"
    code = OPEN.format(str(path))
    made = as_user(OTHER, code.replace("'secret'", "'role'") + f"\nos.chmod({str(path)!r}, {mode})")
    assert made.returncode == 0, made.stderr
    for file in path.iterdir():
        file.chmod(0o666)
    refused = as_user(VICTIM, code)
    assert "StateUnavailable" in refused.stderr
    assert mode == 0o700 or "belongs to user 65534" in refused.stderr
    with pytest.raises(StateUnavailable, match=r"belongs to user 65534, .* this process runs as root"):
        towline.state.open(str(path))
    assert path.stat().st_uid == OTHER


@needs_root
def test_a_user_may_have_a_store_in_a_shared_folder(shared_folder: Path) -> None:
    path = shared_folder / "store"
    code = OPEN.format(str(path))
    for _ in range(2):
        assert as_user(VICTIM, code).returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert "StateUnavailable" in as_user(OTHER, code).stderr


@needs_root
@pytest.mark.parametrize("file", ["opening", "format", "format.new", "data.mdb", "lock.mdb", "shared"])
def test_files_of_another_user_are_refused(tmp_path: Path, file: str) -> None:
    path = tmp_path / "store"
    towline.state.open(str(path)).close()
    (path / file).touch()
    os.chown(path / file, OTHER, OTHER)
    with pytest.raises(StateUnavailable, match=f"store/{file}: the file belongs to user 65534"):
        towline.state.open(str(path))


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("file", ["opening", "format", "format.new", "data.mdb", "lock.mdb", "shared"])
def test_links_are_not_followed(tmp_path: Path, file: str, is_new: bool) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    if is_new:
        path.mkdir(mode=0o700)
    else:
        towline.state.open(str(path)).close()
        (path / file).unlink(missing_ok=True)
    (path / file).symlink_to(target)
    with pytest.raises(StateUnavailable, match=f"store/{file}: it is a link"):
        towline.state.open(str(path))
    assert not target.exists()


@pytest.mark.parametrize("mode", [0o660, 0o602])
@pytest.mark.parametrize("file", ["opening", "format", "data.mdb", "lock.mdb", "shared"])
def test_files_that_others_may_write_are_refused(tmp_path: Path, file: str, mode: int) -> None:
    path = tmp_path / "store"
    towline.state.open(str(path)).close()
    (path / file).chmod(mode)
    with pytest.raises(StateUnavailable, match=f"store/{file}: other users may write to the file"):
        towline.state.open(str(path))


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "store"
    towline.state.open(str(path)).close()
    path.chmod(mode)
    with pytest.raises(StateUnavailable, match=f"other users may write to the directory .mode {mode:04o}"):
        towline.state.open(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_an_empty_directory_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir()
    path.chmod(0o775)
    towline.state.open(str(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


@needs_root
def test_a_link_to_the_directory(shared_folder: Path, tmp_path: Path) -> None:
    """One of this user is followed; one of another might lead to any store of this user."""
    path, link = tmp_path / "store", shared_folder / "link"
    towline.state.open(str(path)).close()
    link.symlink_to(path)
    towline.state.open(str(link)).close()
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(StateUnavailable, match="link"):
        towline.state.open(str(link))


@needs_root
def test_root_opens_the_store_of_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    os.chown(path, OTHER, OTHER)
    with pytest.raises(StateUnavailable):
        towline.state.open(str(path))
    monkeypatch.setattr("towline._state_location.workers_user", OTHER)
    towline.state.open(str(path)).close()
