"""`towline bench --git`: two revisions, built and compared."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from towline.cli.bench import main as bench_command

from tests.bench.comparisons import (
    APP,
    TINY,
    compared,
    sizes_of,
)
from tests.bench.test_run import no_process_left, program
from tests.support.process import eventually


def git(folder: Path, *arguments: str) -> str:
    identity = (
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """main has a longer response than `feature`, which is checked out, with a change that is not committed."""
    folder = tmp_path / "shop"
    (folder / "service").mkdir(parents=True)
    git(folder, "init", "--quiet")
    app = folder / "service" / "shop.py"
    app.write_text(APP.format(body="main " * 20))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "checkout", "--quiet", "-b", "feature")
    app.write_text(APP.format(body="feature"))
    git(folder, "commit", "--quiet", "-am", "two")
    app.write_text(APP.format(body="present files"))
    return folder


def test_two_revisions(repository: Path) -> None:
    build = "echo built >> ../built; cat service/shop.py > /dev/null"
    commits = [git(repository, "rev-parse", name).strip() for name in ("main", "feature")]
    lines, record = compared(
        repository,
        *(
            "--git",
            "main..feature",
            "--app",
            "shop:app",
            "--app-dir",
            "service",
            "--build",
            build,
            "--no-control",
        ),
    )
    assert "compares main and feature: GET /, 4 connections" in lines[0]
    assert lines[0].endswith(" after the builds")
    assert record.experiments[0].baseline == "feature"
    assert f"main is commit {commits[0]}, feature is commit {commits[1]}" in record.experiments[0].notes
    sizes = sizes_of(record)
    assert sizes["main"] == pytest.approx(len("main " * 20 + " /"), abs=4)
    assert sizes["feature"] == pytest.approx(len("feature /"), abs=1)
    # The user's files and branches are as they were, and the work trees are gone.
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "status", "--porcelain").splitlines()[0] == " M service/shop.py"
    assert not (repository.parent / "built").exists()
    assert no_process_left(repository)


def test_a_revision_and_the_present_files_with_a_command(repository: Path) -> None:
    command = (
        "{python} -m towline serve shop:app --app-dir service --bind 127.0.0.1:{port} --log-level warning"
    )
    _, record = compared(repository, "--git", "HEAD", "--command", command, "--no-control")
    sizes = sizes_of(record)
    assert sizes["HEAD"] == pytest.approx(len("feature /"), abs=1)
    assert sizes["present"] == pytest.approx(len("present files /"), abs=1)


def test_an_interrupt_during_a_build_removes_the_work_trees(repository: Path) -> None:
    run = program(
        "--git", "main..feature", "--app", "shop:app", "--build", "sleep 600", *TINY, cwd=repository
    )
    try:
        eventually(lambda: git(repository, "worktree", "list").count("\n") == 3, "the work trees are there")
        eventually(lambda: processes_with_parent(run.pid), "the build runs")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 130
    assert git(repository, "worktree", "list").count("\n") == 1


def processes_with_parent(pid: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = path.read_text().partition(" (")[2].rpartition(") ")
        except OSError:
            continue
        if fields.split()[1] == str(pid) and name in ("sleep", "sh"):
            found.append(name)
    return found


def test_revisions_that_cannot_be_compared(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    for arguments, message in (
        (("--git", "nosuch..main"), "git: no revision 'nosuch' in this repository"),
        (("--git=--all..main",), "git: '--all' is no revision"),
        (("--git", "feature..HEAD"), "are the same commit"),
        (("--git", "main.."), "git: one application, on one server"),
        (("--git", "main..feature", "--build", "echo no compiler; exit 3"), "build: of main ("),
        (("--git", "main..feature", "--app-dir", "nope"), "app-dir: "),
    ):
        more = ("--server", "towline,uvicorn") if "one server" in message else ()
        assert bench_command([*arguments, "--app", "shop:app", *more, *TINY, "-q"]) == 2
        err = capfd.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1
        assert ("its output ends with: no compiler" in err) == ("build: " in message)
    assert git(repository, "worktree", "list").count("\n") == 1
