"""Chromium loads a page of 100 objects over HTTP/3 after an Alt-Svc upgrade."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.browser import Browser, Tab, trusting
from tests.support.http3.servers import SERVERS, Site, ours

pytest.importorskip("aioquic", reason="aioquic is not installed")
OBJECTS = 100
WAIT_S = 30.0


def write_page(folder: Path) -> None:
    # A visit with another query finds nothing in the cache.
    script = f"""
        var loaded = 0;
        for (let number = 0; number < {OBJECTS}; number++) {{
            const image = document.createElement("img");
            image.onload = () => loaded++;
            image.src = `${{number}}.svg${{location.search}}`;
            document.body.append(image);
        }}"""
    (folder / "page.html").write_text(f"<!doctype html><body><script>{script}</script>")
    for number in range(OBJECTS):
        text = f'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"><!--{"x" * 4000}--></svg>'
        (folder / f"{number}.svg").write_text(text)


@pytest.mark.skipif(browser.program() is None, reason="Chromium is not installed")
@pytest.mark.parametrize("name", ["ours", "caddy"])
def test_a_page_of_100_objects(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path)
    write_page(tmp_path)
    serving = ours(site, "--static", f"/files={tmp_path}") if name == "ours" else SERVERS[name](site)
    prefix = "/files" if name == "ours" else ""
    with serving as server, Browser(*trusting(Path(site.cert)), quic=True) as chromium:
        tab = Tab(chromium)
        deadline = time.monotonic() + WAIT_S
        for number in itertools.count():
            tab.open(f"{server.url}{prefix}/page.html?{number}", f"loaded === {OBJECTS}")
            document, objects = tab.protocols
            assert len(objects) == OBJECTS
            # The first visit uses TCP and is told of HTTP/3; a browser changes over when that connection has proved good.
            if (document, set(objects)) == ("h3", {"h3"}):
                return
            assert time.monotonic() < deadline, (document, objects)
            time.sleep(0.2)
