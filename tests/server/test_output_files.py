"""Files that the server and the command line write at known paths, in a directory that all users share."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from towline import _native

from tests.support.process import request, running

OTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
APP = "hello:app"
OPTIONS = ("--app-dir", str(Path(__file__).parents[2] / "examples/hello"))


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A folder as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def link_of(path: Path, target: Path, user: int) -> None:
    path.symlink_to(target)
    os.chown(path, user, user, follow_symlinks=False)


def written(path: Path, text: bytes = b"new") -> None:
    with open(_native.open_output(path), "wb") as file:
        file.write(text)


def test_a_file_is_made_and_replaced(shared_folder: Path, tmp_path: Path) -> None:
    for path in (shared_folder / "file", tmp_path / "file"):
        old = os.umask(0o022)
        written(path, b"a longer text")
        os.umask(old)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        written(path)
        assert path.read_bytes() == b"new"


def test_own_links_are_followed(shared_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (shared_folder / "link").symlink_to(target)
    written(shared_folder / "link")
    assert target.read_bytes() == b"new"
    assert (shared_folder / "link").is_symlink()


@needs_root
@pytest.mark.parametrize("exists", [True, False])
def test_the_link_of_another_user_is_refused(shared_folder: Path, tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "target"
    if exists:
        target.write_bytes(b"mine")
    link_of(shared_folder / "link", target, OTHER)
    with pytest.raises(PermissionError, match="it is a link of user 65534, in a directory that all users"):
        written(shared_folder / "link")
    assert target.exists() == exists
    assert not exists or target.read_bytes() == b"mine"
    # In a directory of its owner's, a link is the owner's decision.
    link_of(tmp_path / "link", target, OTHER)
    written(tmp_path / "link")
    assert target.read_bytes() == b"new"


@needs_root
def test_the_file_of_another_user_is_refused(shared_folder: Path, tmp_path: Path) -> None:
    for folder in (shared_folder, tmp_path):
        (folder / "file").write_bytes(b"theirs")
        os.chown(folder / "file", OTHER, OTHER)
    with pytest.raises(PermissionError, match="it is a file of user 65534"):
        written(shared_folder / "file")
    assert (shared_folder / "file").read_bytes() == b"theirs"
    written(tmp_path / "file")  # such as a log of the user of the workers


@needs_root
@pytest.mark.parametrize("option", ["--pid-file", "--access-log"])
def test_the_server_does_not_start_with_such_a_file(shared_folder: Path, tmp_path: Path, option: str) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    link_of(shared_folder / "link", target, OTHER)
    command = [sys.executable, "-m", "towline", "serve", APP, *OPTIONS, "--port", "0"]
    result = subprocess.run(
        [*command, option, str(shared_folder / "link")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "it is a link of user 65534" in result.stderr
    assert "Traceback" not in result.stderr
    assert target.read_text() == "mine"


@needs_root
def test_a_download_does_not_follow_such_a_link(shared_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    link_of(shared_folder / "page.part", target, OTHER)
    with running(APP, *OPTIONS) as program:
        command = [sys.executable, "-m", "towline", "get", f"http://127.0.0.1:{program.port}/"]
        result = subprocess.run(
            [*command, "-o", str(shared_folder / "page")], capture_output=True, timeout=60, check=False
        )
        assert result.returncode != 0
    assert target.read_text() == "mine"


@pytest.mark.parametrize("kind", ["own", "link"])
def test_a_pid_file_and_a_log_in_a_shared_folder(shared_folder: Path, tmp_path: Path, kind: str) -> None:
    paths = [shared_folder / "app.pid", shared_folder / "access.log"]
    if kind == "link":
        for path in paths:
            path.symlink_to(tmp_path / path.name)
    options = ("--pid-file", str(paths[0]), "--access-log", str(paths[1]))
    with running(APP, *OPTIONS, *options) as program:
        assert request(program.port, "/x").status == 200
        assert int(paths[0].read_text()) == program.pid
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert b"/x" in paths[1].read_bytes()
    assert not paths[0].is_symlink()
    assert not paths[0].exists()


def test_the_pid_file_of_a_later_server_stays(tmp_path: Path) -> None:
    path = tmp_path / "app.pid"
    with running(APP, *OPTIONS, "--pid-file", str(path)) as program:
        path.write_text("1\n")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert path.read_text() == "1\n"


def test_the_permissions_of_a_socket(shared_folder: Path) -> None:
    path, mode = shared_folder / "app.sock", 0o600
    (descriptor,) = _native.open_listeners(f"unix:{path}", 10, mode)
    os.close(descriptor)
    status = path.lstat()
    assert (stat.S_ISSOCK(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, mode)
