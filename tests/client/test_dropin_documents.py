"""Every example of docs/dropins.md runs, against a server that responds as its text describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from towline.testing import serve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dropins.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"Hello\n"})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(app, lifespan="off") as server:
        yield server.url


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0])
def test_example(block: str, url: str) -> None:
    for package in set(re.findall(r"^import (\w+)$", block, re.MULTILINE)):
        pytest.importorskip(package)
    if "towline.httpx2" in block:
        pytest.importorskip("httpx2")
    exec(block.replace("http://127.0.0.1:8000", url).replace('"http://127.0.0.1"', '"all://127.0.0.1"'), {})
