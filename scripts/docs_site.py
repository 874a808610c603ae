"""Builds the documentation site: `make docs`.

1. The pages of docs/ are copied to build/docs/pages. Files of the repository that they link to become pages as well:
   documents as they are, sources and configurations as listings. Below each table that is made from a record of
   benches/results its charts are drawn.
2. MkDocs builds build/docs/site by mkdocs.yml; a warning fails.
3. Every internal link and anchor of the result is followed; a dead one fails. Other sites are not called.

`--pages` ends after the first step, `--links` does the last one only.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "docs"
PAGES, SITE = BUILD / "pages", BUILD / "site"

FENCE = re.compile(r"^ *(```+|~~~+)")
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
NAV_PAGE = re.compile(r"(?:- |: )([\w./-]+\.md)$", re.MULTILINE)
RECORD_END = re.compile(r"^<!-- end of (\w+) -->$", re.MULTILINE)
LANGUAGES = {
    ".cfg": "text",
    ".conf": "nginx",
    ".json": "json",
    ".py": "python",
    ".service": "ini",
    ".sh": "bash",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}
COPIED = {".svg", ".png", ".gz"}


class Failed(Exception):
    """The site has a fault, which the text names."""


# --- pages --------------------------------------------------------------------------------------


def place_of(path: PurePosixPath) -> PurePosixPath:
    """The page of a file of the repository, both relative to their roots."""
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    if path.suffix == ".md":
        if path.parts[:2] == ("benches", "results"):
            return "results" / path.relative_to("benches/results")
        if len(path.parts) == 1:
            name = "overview.md" if path.name == "README.md" else path.name.lower()
            return PurePosixPath("project", name)
        if path.name == "README.md":  # an index of its folder in the site
            return "source" / path.parent.with_suffix(".md")
    if path.suffix in COPIED:
        return PurePosixPath("source", path)
    return PurePosixPath("source", f"{path}.md")


class Pages:
    """The pages of docs/, and what they link to, directly or not."""

    def __init__(self) -> None:
        self.waiting: list[PurePosixPath] = []
        self.known: set[PurePosixPath] = set()

    def write(self) -> None:
        shutil.rmtree(PAGES, ignore_errors=True)
        for path in sorted((ROOT / "docs").rglob("*")):
            if path.is_file():
                self.add(PurePosixPath(path.relative_to(ROOT)))
        while self.waiting:
            self.write_page(self.waiting.pop())

    def add(self, path: PurePosixPath) -> None:
        if path not in self.known:
            self.known.add(path)
            self.waiting.append(path)

    def write_page(self, path: PurePosixPath) -> None:
        source, target = ROOT / path, PAGES / place_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.write_text(self.folder(path))
        elif path.suffix == ".md":
            target.write_text(self.with_charts(path, self.linked(path, source.read_text())))
        elif path.parts[0] == "docs" or path.suffix in COPIED:
            shutil.copyfile(source, target)
        else:
            target.write_text(f"# {path}\n\n{listing(source)}")

    def folder(self, path: PurePosixPath) -> str:
        files = [one for one in sorted((ROOT / path).rglob("*")) if one.is_file() and is_source(one)]
        parts = [f"## {one.relative_to(ROOT / path)}\n\n{listing(one)}" for one in files]
        return "\n".join([f"# {path}\n", *parts])

    def linked(self, path: PurePosixPath, text: str) -> str:
        """The text of a page with its links leading to pages of the site."""
        lines, fence = [], ""
        for line in text.splitlines(keepends=True):
            if found := FENCE.match(line):
                fence = "" if fence == found[1] else fence or found[1]
            elif not fence:
                line = LINK.sub(lambda match: self.target(path, match[1]), line)
            lines.append(line)
        return "".join(lines)

    def target(self, path: PurePosixPath, link: str) -> str:
        name, hash_, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or not name:
            return link
        aimed = PurePosixPath(posixpath.normpath(path.parent / name))
        if not (ROOT / aimed).exists():
            raise Failed(f"{path}: {link}: no such file")
        if (ROOT / aimed).is_dir() and (ROOT / aimed / "README.md").exists():
            aimed /= "README.md"
        self.add(aimed)
        return posixpath.relpath(place_of(aimed), place_of(path).parent) + hash_ + anchor

    def with_charts(self, path: PurePosixPath, text: str) -> str:
        """Charts of a record below the table that is made from it."""

        def charts(match: re.Match[str]) -> str:
            names = draw(match[1])
            folder = posixpath.relpath("charts", place_of(path).parent)
            images = [f"![{name}]({folder}/{match[1]}/{name}.svg)" for name in names]
            shown = "\n".join(images)
            return f'{match[0]}\n\n??? note "Charts with their intervals"\n\n' + indented(shown) + "\n"

        return RECORD_END.sub(charts, text)


def draw(record: str) -> list[str]:
    """Draws the charts of a record of the bench; returns their names."""
    from towline.bench import analyse, load
    from towline.bench.report.chart_files import svg_files

    path = ROOT / "benches" / "results" / f"{record}.json.gz"
    folder = PAGES / "charts" / record
    if not path.exists():
        return []
    if not folder.exists():
        folder.mkdir(parents=True)
        for name, chart in svg_files(analyse(load(path))).items():
            (folder / name).write_text(chart)
    return sorted(one.stem for one in folder.glob("*.svg"))


def is_source(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix not in {".pyc", ".so", *COPIED}


def indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def listing(path: Path) -> str:
    """A file as a block of code."""
    text = path.read_text().rstrip("\n")
    language = LANGUAGES.get(path.suffix, "docker" if path.name == "Dockerfile" else "text")
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}\n"


def pages_without_place() -> list[str]:
    """Pages of docs/ that the navigation does not have."""
    listed = set(NAV_PAGE.findall((ROOT / "mkdocs.yml").read_text()))
    return sorted({str(one.relative_to(ROOT / "docs")) for one in (ROOT / "docs").rglob("*.md")} - listed)


# --- the build ----------------------------------------------------------------------------------


def repository() -> str:
    """The address of the repository for the link at the top of each page; empty where there is none."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    command = ["git", "remote", "get-url", "origin"]
    origin = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", origin)
    return f"https://{found[1]}/{found[2]}" if found else ""


def build() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--clean", "--strict"]
    # The notice of the theme about its end (CONTRIBUTING.md).
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TOWLINE_REPOSITORY": repository()}
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
        raise Failed("mkdocs reports faults")


# --- links --------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The links of a page, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name == "src" or (name == "href" and ("rel", "canonical") not in attrs):
                self.links.append(value)


def dead_links() -> Iterator[str]:
    pages = {path: Links(path.read_text()) for path in sorted(SITE.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            aimed = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if aimed.is_dir():
                aimed /= "index.html"
            if not aimed.exists():
                yield f"{path.relative_to(SITE)}: {link}: no such page"
            elif parts.fragment and aimed in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[aimed].anchors and not anchor.startswith("__"):
                    yield f"{path.relative_to(SITE)}: {link}: no such anchor"


def check_links() -> None:
    dead = list(dict.fromkeys(dead_links()))
    if dead:
        raise Failed("\n".join(dead))
    print(f"links: those of {len(list(SITE.rglob('*.html')))} pages lead somewhere")


def main() -> int:
    steps = sys.argv[1:]
    try:
        if missing := pages_without_place():
            raise Failed(f"not in the navigation of mkdocs.yml: {', '.join(missing)}")
        if "--links" not in steps:
            Pages().write()
        if not steps:
            build()
        if "--pages" not in steps:
            check_links()
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
