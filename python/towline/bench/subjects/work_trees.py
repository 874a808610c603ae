"""Two revisions of a git repository, each in a work tree of its own, which is removed afterwards.

`git worktree` is used, so nothing in the user's own files, index or branch changes. Ignored files (`.env`, built
extensions, `node_modules`) are not in a work tree: `--build` makes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError

GIT_TIMEOUT_S = 120.0
BUILD_TIMEOUT_S = 1800.0
PRESENT = "present"
"""Name of the files as they are, with changes that are not committed."""


@dataclass(frozen=True)
class Revision:
    """One side of a range."""

    name: str
    """As it was given, and so in the result."""
    commit: str | None
    """None: the present files, which need no work tree."""

    @property
    def shown(self) -> str:
        """`main (1a2b3c4)`."""
        return self.name if self.commit is None else f"{self.name} ({self.commit[:7]})"


@dataclass(frozen=True)
class Range:
    """The two revisions in the repository around a folder."""

    old: Revision
    new: Revision
    root: Path
    """Top folder of the repository."""
    below: Path
    """The current folder, relative to `root`: commands run there in each work tree."""

    @classmethod
    def of(cls, text: str, folder: Path) -> Range:
        """`OLD..NEW`, `OLD...NEW` (from their merge base), `OLD` (the present files are the new ones).

        An empty side is HEAD, as for git. Raises `ConfigError` for a revision that does not exist.
        """
        root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
        below = folder.resolve().relative_to(root.resolve())
        found = re.fullmatch(r"(.*?)(\.{2,3})(.*)", text)
        if found is None:
            old, new = _revision(folder, text), Revision(PRESENT, None)
        else:
            old, new = _revision(folder, found[1] or "HEAD"), _revision(folder, found[3] or "HEAD")
            if found[2] == "...":
                base = _git(folder, "merge-base", old.commit or "", new.commit or "").strip()
                old = Revision(f"{old.name}...", base)
        if old.commit == new.commit:
            raise ConfigError(f"git: {old.shown} and {new.shown} are the same commit")
        return cls(old, new, root, below)

    def note(self) -> str:
        """The commits, for the record: the name of a branch soon means another one."""
        known = [one for one in (self.old, self.new) if one.commit is not None]
        return ", ".join(f"{one.name} is commit {one.commit}" for one in known)

    @contextlib.contextmanager
    def checked_out(self, build: str | None, message: Callable[[str], None]) -> Iterator[dict[str, Path]]:
        """The folders of the two revisions by their names, built. Raises `ConfigError` when a build fails."""
        with tempfile.TemporaryDirectory(prefix="towline-bench-") as temporary:
            folders: dict[str, Path] = {}
            added: list[Path] = []
            try:
                for revision, name in ((self.old, "old"), (self.new, "new")):
                    tree = self.root
                    if revision.commit is not None:
                        tree = Path(temporary, name, self.root.name)
                        tree.parent.mkdir()
                        _git(self.root, "worktree", "add", "--quiet", "--detach", str(tree), revision.commit)
                        added.append(tree)
                    folders[revision.name] = tree / self.below
                    if not folders[revision.name].is_dir():
                        raise ConfigError(f"git: {revision.shown} has no folder {self.below}")
                if build is not None:
                    for revision in (self.old, self.new):
                        message(f"builds {revision.shown}: {build}")
                        _build(build, revision, folders[revision.name])
                yield folders
            finally:
                _remove(self.root, added)


def _revision(folder: Path, name: str) -> Revision:
    if name.startswith("-"):
        raise ConfigError(f"git: {name!r} is no revision")
    try:
        commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except ConfigError:
        raise ConfigError(f"git: no revision {name!r} in this repository") from None
    return Revision(name, commit.strip())


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError("git: the program git is not found") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git: {arguments[0]} takes longer than {GIT_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ConfigError(f"git: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout


def _build(command: str, revision: Revision, folder: Path) -> None:
    """Runs the command by the shell; its whole process group ends with an error or an interrupt."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"build: of {revision.shown} takes longer than {BUILD_TIMEOUT_S:g} s") from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status != 0:
            output.seek(0)
            raise ConfigError(
                f"build: of {revision.shown} fails with status {status}{_last_line(output.read())}"
            )


def _last_line(output: bytes) -> str:
    lines: Sequence[str] = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return f"; its output ends with: {lines[-1].strip():.160}" if lines else ""


def _remove(root: Path, trees: Sequence[Path]) -> None:
    """Removes the work trees; what git cannot remove goes with the temporary folder and `git worktree prune`."""
    for tree in trees:
        with contextlib.suppress(ConfigError):
            _git(root, "worktree", "remove", "--force", str(tree))
