"""Which tests a change needs: `python scripts/changed_tests.py rust|python [--since main]` prints what cargo or pytest is to be given.

A change is what differs from the revision (its common ancestor with HEAD), uncommitted and new files included. A file of an
area needs the tests of that area; one of none, such as a crate below all others or a pin of a package, needs all. CI runs all
tests in any case: this is for the time before.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALWAYS = ("tests/test_documents.py", "tests/test_house.py", "tests/test_packaging.py")
"""Quick ones, about all files."""
WITHOUT_TESTS = ("benches/results/", "LICENSE", ".gitignore", ".editorconfig", ".gitattributes")
SERVED = (
    "tests/server",
    "tests/lifecycle",
    "tests/http3",
    "tests/wire",
    "tests/faults",
    "tests/frameworks",
    "tests/deploy",
)
WIRE = (
    *("tests/wire", "tests/server", "tests/client", "tests/faults", "tests/frameworks"),
    *("tests/lifecycle/test_http2.py", "tests/lifecycle/test_stopping.py"),
    *("tests/bench/test_checker.py", "tests/bench/test_loop.py", "tests/bench/test_responder_catalogue.py"),
)
"""Tests that a parser, a state machine or a socket can break: both ends, and a load over each protocol. The bench's comparisons, the state
and the supervisor of workers are left out, since they use the wire as these do."""
BENCH = r"towline\.bench(?!\.subjects\.ports)|towline load|\"load\"|\bbenches\b"
"""Without `free_port`, which many tests import and the bench's own use as well."""
STATE = r"towline\.state|_state_location"


@dataclass(frozen=True)
class Area:
    """Files that begin with `files`, the crates and the tests that use them, and what other tests that use them contain."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    crates: tuple[str, ...] = ()
    """None: for a file of a crate, but the extension's, all. A choice of crates has dependencies with other features than all of
    them have, compiled once more."""
    named: str = ""
    """A regular expression."""


AREAS = (
    Area(
        ("crates/towline-load/",),
        ("tests/bench", "tests/cli", "tests/pages"),
        ("towline-load",),
        BENCH,
    ),
    Area(
        (
            *("python/towline/bench/", "python/towline/load_agents/", "python/towline/cli/bench.py"),
            *("python/towline/cli/load.py", "benches/", "crates/towline-py/src/bench/"),
        ),
        ("tests/bench", "tests/cli", "tests/pages", "tests/examples/test_ci.py"),
        named=BENCH,
    ),
    Area(
        ("crates/towline-state/",),
        ("tests/state", "tests/cli", "tests/examples/test_chat.py"),
        ("towline-state",),
        STATE,
    ),
    Area(
        (
            *(
                "python/towline/state/",
                "python/towline/_state_location.py",
                "python/towline/server/state_store.py",
            ),
            *("python/towline/cli/state", "crates/towline-py/src/state/"),
        ),
        ("tests/state", "tests/cli", "tests/examples/test_chat.py"),
        named=STATE,
    ),
    Area(
        (
            *(
                "python/towline/client/",
                "python/towline/_dropins/",
                "python/towline/httpx",
                "python/towline/requests.py",
            ),
            *(
                "python/towline/opentelemetry.py",
                "python/towline/testing.py",
                "python/towline/_native_aio.py",
            ),
            *("python/towline/_pytest_plugin.py", "crates/towline-py-client/"),
        ),
        ("tests/client", "tests/faults", "tests/http3", "tests/cli", "tests/examples", "tests/pages"),
    ),
    Area(("crates/towline-proto/",), (*WIRE, "tests/http3")),
    Area(("crates/towline-proto/src/h1/",), WIRE),
    Area(
        ("crates/towline-io/",),
        (*WIRE, "tests/http3", "tests/lifecycle/test_reloads.py", "tests/lifecycle/test_embedding.py"),
        ("towline-io", "towline-load"),
    ),
    Area(
        ("crates/towline-io/src/client/",),
        ("tests/client", "tests/faults", "tests/http3"),
        ("towline-io", "towline-load"),
    ),
    Area(
        ("python/towline/server/", "crates/towline-py-server/"),
        (*SERVED, "tests/cli", "tests/examples", "tests/pages"),
    ),
    Area(("crates/towline-io/src/serve/",), SERVED, ("towline-io",)),
    Area(
        ("python/towline/cli/", "python/towline/_suggest.py"),
        ("tests/cli", "tests/lifecycle", "tests/pages"),
    ),
    Area(("deploy/",), ("tests/deploy",)),
    Area(("examples/",), ("tests/examples", "tests/pages", "tests/http3")),
    Area(("docs/", "mkdocs.yml"), ("tests/pages", "tests/test_docs_site.py"), named=r"\bdocs\b"),
    Area(
        ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"),
        ("tests/pages",),
        named=r"(README|CHANGELOG|CONTRIBUTING|ARCHITECTURE|SECURITY)\.md",
    ),
    Area(
        (
            ".github/",
            ".ci/",
            "scripts/",
            "deny.toml",
            ".pre-commit-config.yaml",
            ".devcontainer/",
            "Makefile",
        ),
        ALWAYS,
    ),
    Area(("fuzz/",), ALWAYS),
    Area(("conformance/",), ALWAYS, ("towline-proto",)),
)
"""The longest beginning of a file's name decides."""
EVERYTHING = Area((), ("tests",))
ALL_CRATES = "--workspace"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("rust", "python"))
    parser.add_argument("--since", default="main", metavar="REVISION", help="default: main")
    options = parser.parse_args(arguments)
    try:
        files = changed(options.since)
    except subprocess.CalledProcessError as error:
        print(f"changed_tests: {error.stderr.strip()}", file=sys.stderr)
        return 2
    needed = crates(files) if options.what == "rust" else tests(files)
    print(" ".join(needed))
    return 0


def changed(since: str) -> list[str]:
    """Files that differ from the common ancestor of `since` and HEAD, deleted and new ones included."""
    ancestor = _git("merge-base", since, "HEAD").strip()
    return sorted(
        {
            *_git("diff", "--name-only", "--no-renames", ancestor).splitlines(),
            *_git("ls-files", "--others", "--exclude-standard").splitlines(),
        }
    )


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def area(file: str) -> Area:
    """The area of a file, or all."""
    found = [(len(start), one) for one in AREAS for start in one.files if file.startswith(start)]
    return max(found, key=lambda one: one[0], default=(0, EVERYTHING))[1]


def crates(files: Iterable[str]) -> list[str]:
    """Options of `cargo test`: nothing where no crate is touched."""
    needed: set[str] = set()
    for file in files:
        if file.startswith(("crates/", "conformance/", "Cargo.", "rust-toolchain")):
            found = area(file).crates
            # The crates of the extension have no Rust tests.
            if not found and not file.startswith("crates/towline-py"):
                return [ALL_CRATES]
            needed.update(found)
    return [word for crate in sorted(needed) for word in ("--package", crate)]


def tests(files: Iterable[str]) -> list[str]:
    """Files and folders for pytest, none of which is in another one."""
    needed = set(ALWAYS)
    for file in files:
        if not file.startswith(WITHOUT_TESTS):
            needed.update(of_test_file(file) if file.startswith("tests/") else of_area(area(file)))
    return sorted(
        one for one in needed if not any(one != other and Path(one).is_relative_to(other) for other in needed)
    )


def of_area(found: Area) -> list[str]:
    return [*found.tests, *(naming(found.named, set()) if found.named else ())]


def of_test_file(file: str) -> Sequence[str]:
    """A file of tests needs itself, what tests share those that name it, and a helper of a folder the folder."""
    path = ROOT / file
    if path.name.startswith("test_"):
        return [file] if path.exists() else []
    if file.startswith("tests/support/") and path.suffix == ".py" and path.stem != "__init__":
        # One that none names runs in a way that is not seen here.
        return users(path.stem, {file}) or ["tests"]
    folder = str(Path(file).parent)
    return [folder if folder != "tests/support" else "tests"]


def users(module: str, seen: set[str]) -> list[str]:
    """Test files that name a helper, or another helper that does."""
    names = (
        rf"^ *(from|import) [^\n(]*\b{module}\b",
        rf"^ *from [\w.]+ import \([^)]*\b{module}\b",
        # A module or a path in a command.
        rf"\btests[./][\w./]*\b{module}\b",
        rf"\bsupport[./]{module}\b",
        rf"\b{module}(\.py\b|:)",
    )
    return naming("|".join(names), seen)


def naming(pattern: str, seen: set[str]) -> list[str]:
    """Test files that contain `pattern`, or use a helper that does; `seen` ends circles of helpers."""
    contained = re.compile(pattern, re.MULTILINE)
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name not in seen and contained.search(path.read_text()):
            seen.add(name)
            if path.name.startswith("test_"):
                found.append(name)
            elif path.name in ("conftest.py", "__init__.py"):
                found.append(str(Path(name).parent))
            else:
                # A helper, or a program that no test runs.
                found += users(path.stem, seen)
    return found


if __name__ == "__main__":
    sys.exit(main())
