"""The script that builds the documentation site: where pages go, what their links become, dead links."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
assert SPEC is not None
assert SPEC.loader is not None
docs_site = importlib.util.module_from_spec(SPEC)
sys.modules["docs_site"] = docs_site
SPEC.loader.exec_module(docs_site)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/api/client.md", "api/client.md"),
        ("README.md", "project/overview.md"),
        ("SECURITY.md", "project/security.md"),
        ("benches/results/idle.md", "results/idle.md"),
        ("examples/llm/README.md", "source/examples/llm.md"),
        ("examples/api/app.py", "source/examples/api/app.py.md"),
        ("benches/results/idle.json.gz", "source/benches/results/idle.json.gz"),
    ],
)
def test_place_of_a_file(path, place):
    assert docs_site.place_of(PurePosixPath(path)) == PurePosixPath(place)


def test_links_lead_to_pages_of_the_site():
    pages = docs_site.Pages()
    text = "[a](call.md#errors) [b](../SECURITY.md) [c](../examples/api/app.py) [d](https://x.example/y.md)\n"
    code = "```\n[e](../README.md)\n```\n"
    expected = "[a](call.md#errors) [b](project/security.md) [c](source/examples/api/app.py.md) [d](https://x.example/y.md)\n"
    assert pages.linked(PurePosixPath("docs/serve.md"), text + code) == expected + code
    assert PurePosixPath("examples/api/app.py") in pages.known
    assert PurePosixPath("README.md") not in pages.known


def test_a_link_to_nothing_fails():
    with pytest.raises(docs_site.Failed, match=r"docs/serve.md: nothing.md: no such file"):
        docs_site.Pages().linked(PurePosixPath("docs/serve.md"), "[x](nothing.md)")


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("https://code.example/a/towline.git", "https://code.example/a/towline"),
        ("git@code.example:a/towline.git", "https://code.example/a/towline"),
        ("ssh://git@code.example/a/towline", "https://code.example/a/towline"),
        ("/srv/towline", ""),
        (None, ""),
    ],
)
def test_the_address_of_the_repository(origin, address, tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.setattr(docs_site, "ROOT", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if origin is not None:
        subprocess.run(["git", "remote", "add", "origin", origin], cwd=tmp_path, check=True)
    assert docs_site.repository() == address
    monkeypatch.setenv("GITHUB_REPOSITORY", "b/towline")
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    assert docs_site.repository() == "https://github.com/b/towline"


def test_every_page_has_a_place_in_the_navigation():
    assert docs_site.pages_without_place() == []


def test_dead_links_and_anchors_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_site, "SITE", tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h2 id="there">x</h2>')
    (tmp_path / "index.html").write_text(
        '<a href="other/#there">1</a><a href="other/#gone">2</a><a href="lost/">3</a><a href="#here">4</a><i id="here">'
        '<a href="https://elsewhere.example/">5</a>'
    )
    assert list(docs_site.dead_links()) == [
        "index.html: other/#gone: no such anchor",
        "index.html: lost/: no such page",
    ]
