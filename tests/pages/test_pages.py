"""Every code block of README.md and docs/*.md runs as it is written.

Rules for a page:

- Its blocks run in order, in one process, in the repository's root; each ```python block sees the names of those above.
- A block whose first line is `# needs: ...` (a key, a network, root, minutes, an uninstalled package) is not run.
- A ```python block whose first line is `# NAME.py` is also a module: `towline serve NAME:app` below it works.
- In ```console (lines after `$ `) and ```sh blocks `make` targets exist, `towline` command lines parse, and the simple
  ones run: `towline serve` of a module that is there, and after it `towline get`, `towline load` and `curl` of
  http://127.0.0.1:8000, and comparisons by `towline bench` of that server or of an example (`--app-dir`), shortened. Output that the page shows below a command must be what it prints.
- Port 8000 of a page is a free one here. Without a `towline serve` above, examples/hello/asgi_app.py answers there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pages.run_page import ROOT, blocks_of, needs_of

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
LANGUAGES = {"python", "console", "sh"}
Runs = dict[Path, "Future[subprocess.CompletedProcess[str]]"]


def has_blocks(page: Path) -> bool:
    return any(block.language in LANGUAGES for block in blocks_of(page.read_text()))


def run(page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.pages.run_page", str(page.relative_to(ROOT))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The selected pages, two at a time: a page mostly waits for servers to start and for loads to end."""
    wanted = [
        item.callspec.params["page"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_blocks_run.__name__
    ]
    pool = ThreadPoolExecutor(2)
    yield {page: pool.submit(run, page) for page in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("page", list(filter(has_blocks, PAGES)), ids=lambda page: page.name)
def test_blocks_run(page: Path, runs: Runs) -> None:
    done = runs[page].result()
    assert done.returncode == 0, done.stdout + done.stderr


def test_most_blocks_run() -> None:
    """A page whose blocks all need something is not tested at all."""
    blocks = [block for page in PAGES for block in blocks_of(page.read_text()) if block.language == "python"]
    skipped = [f"{page.name}:{line}: {need}" for page in PAGES for line, need in needs_of(page)]
    print("\n".join(["not run:", *skipped]))
    assert sum(block.needs is None for block in blocks) >= 0.7 * len(blocks), skipped
    assert all(need.strip() for need in skipped)


def test_the_first_application_is_the_example() -> None:
    """README's first application is examples/hello/hello.py."""
    readme = [
        block.text for block in blocks_of((ROOT / "README.md").read_text()) if block.language == "python"
    ]
    example = (ROOT / "examples/hello/hello.py").read_text()
    assert example.partition('"""\n\n\n')[2] == readme[0]
