"""The documents: links lead somewhere, options exist, examples are valid."""

import argparse
import ast
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from towline._migration import ALL_ROWS
from towline._options import options_of
from towline.bench.compare_servers.options import CompareOptions
from towline.bench.report import compare_command, gate_command, history_command, main
from towline.bench.runner.plan import Options as BenchOptions
from towline.cli.call_options import CallOptions
from towline.cli.serve_arguments import ACTIONS
from towline.cli.state_options import StateOptions
from towline.config import ServerConfig
from towline.load_agents.command import VALUED as CLUSTER_OPTIONS
from towline.testing import serve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OUTSIDE = {
    "--config",
    "--help",
    "--version",
    "--measure",
    "--resume",
    "--servers",
    "--seconds",
    "--rounds",
    "--restarts",
    "--cacert",
}
OUTSIDE |= {
    "--no-cache-dir",
    "--only",
    "--release",
    "--subjects",
    "--loop",
    "--scenario",
    "--scenarios",
    "--curl",
}
OUTSIDE |= {"--vegeta", "--features", "--manifest-path", "--quick", "--vus", "--latency-correction"}
# docs/subjects.md: the bench's own and those of servers that are examples
# docs/platforms.md: docker compose
OUTSIDE |= {"--wait"}
# Django's, Flask's and FastAPI's commands
OUTSIDE |= {"--debugger", "--exclude-patterns", "--extra-files", "--no-debugger", "--without-threads"}
OUTSIDE |= {"--app", "--debug", "--insecure", "--nostatic", "--noreload", "--nothreading"}
# scripts/peer_options.py, and Locust's
OUTSIDE |= {"--install", "--write", "--headless", "--master", "--worker"}
OUTSIDE |= {"--peers-bin", "--listen", "--cert", "--key", "--max-concurrency"}

BENCH_PARSERS = [one.parser for one in (compare_command, gate_command, history_command, main)]


def load_options():
    """Options of `towline load`, from its own table."""
    table = (ROOT / "crates/towline-load/src/cli/options.rs").read_text()
    names = re.findall(r"\b(?:load|request)\(\s*\"([a-z0-9-]+)\"", table)
    assert len(names) > 40
    return {f"--{name}" for name in names} | {"--agent"}


def option_names():
    # docs/migrate.md names the options of other servers.
    names = (
        load_options()
        | set(CLUSTER_OPTIONS)
        | {row.flag for row in ALL_ROWS}
        | {f"--{name.replace('_', '-')}" for name in ACTIONS}
    )
    configurations = (ServerConfig, CallOptions, BenchOptions, CompareOptions, StateOptions)
    both = [pair for one in configurations for pair in options_of(one).items()]
    for field, (option, _) in both:
        flag = option.flag or "--" + field.replace("_", "-")
        names |= {flag, *option.aliases, "--no-" + flag[2:]}
    for parser in BENCH_PARSERS:
        names |= bench_options(parser())
    return names


def bench_options(parser):
    """The options of an argparse parser and of its commands."""
    names = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            names = names.union(*map(bench_options, action.choices.values()))
    return names


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_exist(page):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", page.read_text()))
    assert named - option_names() - OUTSIDE == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_parse(page):
    for block in blocks(page, "python"):
        ast.parse(block)


def test_configuration_examples_are_taken():
    page = ROOT / "docs" / "serve.md"
    (example,) = blocks(page, "toml")
    table = tomllib.loads(example)["tool"]["towline"]["serve"]
    config = ServerConfig(**{key.replace("-", "_"): value for key, value in table.items()})
    assert config.workers == 4
    assert [str(address) for address in config.given_addresses] == ["127.0.0.1:8000", "unix:/run/app.sock"]


def test_the_scenarios_of_the_load_page_are_taken(tmp_path):
    (tmp_path / "users.csv").write_text("user\nann\n")
    command = [sys.executable, "-m", "towline", "load", "--agent"]
    examples = blocks(ROOT / "docs" / "load.md", "toml")
    assert len(examples) == 2
    for example, targets in zip(examples, (3, 2), strict=True):
        config = tomllib.loads(example)
        line = json.dumps({"op": "open", "session": "page", "config": config}) + "\n"
        done = subprocess.run(
            command, input=line, capture_output=True, text=True, timeout=30, check=True, cwd=tmp_path
        )
        assert json.loads(done.stdout) == {"ok": True}
        assert len(config["targets"]) == targets


def test_limits_of_the_tuning_page_are_the_defaults():
    page = (ROOT / "docs" / "tuning.md").read_text()
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([\d,]+)( GiB)?", page, re.MULTILINE)
    assert len(rows) >= 10
    for name, default, gib in rows:
        _, known = options_of(ServerConfig)[name.replace("-", "_")]
        assert known == int(default.replace(",", "")) * (2**30 if gib else 1), name


def test_the_first_example_serves():
    """docs/serve.md begins with an application and what curl prints."""
    names: dict[str, object] = {}
    exec(blocks(ROOT / "docs" / "serve.md", "python")[0], names)
    with serve(names["app"]) as server, urllib.request.urlopen(server.url) as response:
        assert response.read() == b"Hello\n"


def test_every_dependency_has_its_reason():
    """CONTRIBUTING.md: a new dependency needs a row."""
    table = " ".join(re.findall(r"^\|(.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    crates = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [
        name for group in project["dependency-groups"].values() for name in group if isinstance(name, str)
    ]
    names = {re.split("[=<>; []", name)[0] for name in groups + project["project"]["dependencies"]}
    wanted = {name for name in {*crates, *names} if not name.startswith("towline-")}
    assert len(wanted) > 30
    assert {name for name in wanted if not re.search(rf"(?<![\w-]){name}(?![\w-])", table)} == set()


# A path in the text is relative to the repository, to the sources of a crate, or to the package.
BASES = [
    "",
    "crates",
    "crates/*/src",
    "python/towline",
    "python/towline/bench",
    "python/towline/bench/clients/worker",
]
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*(?:/|\.(?:py|pyi|rs|toml|md|sh|txt))|[\w.*-]+(?:/[\w.*-]+)+")


def named_paths(text):
    """Paths in backticks and the lines of a tree: `  folder/   its purpose`."""
    tree_lines = []
    for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        tree_lines += block.splitlines()
    parents = []
    for line in tree_lines:
        if found := re.match(r"( *)([\w.-]+(?:/[\w.-]+)*/)(?: |$)", line):
            depth = len(found[1]) // 2
            parents[depth:] = [found[2]]
            yield "".join(parents)
    for quoted in re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    ):
        if PATH.fullmatch(quoted) and not quoted.startswith(".venv"):
            yield quoted


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_named_paths_exist(page):
    paths = list(named_paths((ROOT / page).read_text()))
    missing = [
        path for path in paths if not any(any(ROOT.glob(f"{base}/{path}".strip("/"))) for base in BASES)
    ]
    assert missing == []
    assert len(paths) > 60 or page != "ARCHITECTURE.md"


def test_the_glossary_is_short():
    glossary = (ROOT / "ARCHITECTURE.md").read_text().partition("## Glossary\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!word|-)", glossary, re.MULTILINE)
    assert 15 <= len(rows) <= 25
