"""The project's own checks find what they are for."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from tests.conftest import FIRST

ROOT = Path(__file__).resolve().parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_fuzz_targets_use_the_profile_of_the_extension():
    """Otherwise `make fuzz-build` compiles every dependency again."""
    ours, fuzz = (
        tomllib.loads((ROOT / path).read_text())["profile"] for path in ("Cargo.toml", "fuzz/Cargo.toml")
    )
    packages = fuzz["quick"].pop("package")
    assert fuzz["quick"] == ours["quick"]
    locked = tomllib.loads((ROOT / "fuzz/Cargo.lock").read_text())["package"]
    used = {package["name"] for package in locked}
    assert packages == {name: how for name, how in ours["release"]["package"].items() if name in used}


def test_files_that_begin_first_exist():
    assert all((ROOT / name).is_file() for name in FIRST)


@pytest.fixture
def layering(tmp_path, monkeypatch):
    module = load("check_layering")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def crate(root, name, dependencies="", source="#![forbid(unsafe_code)]\n"):
    folder = root / "crates" / name
    (folder / "src").mkdir(parents=True)
    (folder / "Cargo.toml").write_text(f'[package]\nname = "{name}"\n{dependencies}\n')
    (folder / "src/lib.rs").write_text(source)


def module(root, path, source):
    file = root / "python/towline" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)


@pytest.mark.parametrize(
    ("name", "dependencies", "complaint"),
    [
        ("towline-proto", "[dependencies]\ntowline-io.workspace = true", "may not depend on towline-io"),
        ("towline-io", "[dependencies]\npyo3 = '1'", "pyo3 may be used only in towline-py"),
        ("towline-proto", "[dev-dependencies]\nmio = '1'", "mio may be used only in towline-io"),
        ("towline-io", "[dependencies]\ntowline-testkit = '1'", "may not depend on towline-testkit"),
        ("towline-new", "", "is not listed"),
    ],
)
def test_crates(layering, tmp_path, name, dependencies, complaint):
    crate(tmp_path, name, dependencies)
    (problem,) = layering.crate_problems()
    assert complaint in problem


def test_crates_that_keep_the_rule(layering, tmp_path):
    crate(tmp_path, "towline-proto", "[dev-dependencies]\ntowline-testkit = '1'")
    crate(tmp_path, "towline-io", "[dependencies]\ntowline-proto = '1'\nmio = '1'", "use mio::Poll;\n")
    assert list(layering.crate_problems()) == []


def test_source_paths_and_unsafe(layering, tmp_path):
    crate(tmp_path, "towline-proto", source="// rustls:: in a comment is fine\nuse mio::Poll;\n")
    problems = "\n".join(layering.crate_problems())
    assert "lib.rs:2: mio may not be used" in problems
    assert "forbid(unsafe_code)" in problems
    assert "rustls" not in problems


def test_rust_tests_that_no_program_contains(layering, tmp_path):
    crate(tmp_path, "towline-proto", 'autotests = false\n[[test]]\nname = "alone"')
    tests = tmp_path / "crates/towline-proto/tests"
    for path in ("alone.rs", "ended.rs", "forgotten.rs", "folder/mod.rs", "folder/part.rs", "other/mod.rs"):
        (tests / path).parent.mkdir(parents=True, exist_ok=True)
        (tests / path).write_text("")
    (tests / "all.rs").write_text("mod ended;\nmod folder;\n")
    assert [problem.partition(": ")[0] for problem in layering.crate_problems()] == [
        f"crates/towline-proto/tests/{path}" for path in ("all.rs", "forgotten.rs", "other/mod.rs")
    ]


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("server/asgi.py", "from .. import client\n", "server may not import client"),
        ("server/asgi.py", "from towline.client import Client\n", "server may not import client"),
        ("client.py", "import towline.server.asgi\n", "client may not import server"),
        ("config.py", "def f():\n    from . import server\n", "config may not import server"),
        ("bench/runner.py", "from ..server import serve\n", "bench may not import server"),
    ],
)
def test_python_layers(layering, tmp_path, path, source, complaint):
    module(tmp_path, path, source)
    (problem,) = layering.python_problems()
    assert complaint in problem


def test_python_layers_that_keep_the_rule(layering, tmp_path):
    module(tmp_path, "_private.py", "import os\n")
    module(
        tmp_path,
        "server/__init__.py",
        "from ..config import X\nfrom .asgi import Y\nfrom .. import _native\n",
    )
    module(tmp_path, "server/asgi.py", "from .._private import Z\nfrom . import lifespan\n")
    module(tmp_path, "cli.py", "from . import server, client\n")
    assert list(layering.python_problems()) == []


def test_import_cycles_are_listed_or_fail(layering, monkeypatch):
    pair, three = ("a.rs", "b.rs"), ("c.py", "d.py", "e.py")
    monkeypatch.setattr(layering, "CYCLES", {pair: "a reason"})
    assert list(layering.cycle_problems([pair])) == []
    (new,) = layering.cycle_problems([pair, three])
    assert "import cycle of 3 files, not listed" in new
    (gone,) = layering.cycle_problems([])
    assert "an import cycle that is gone: a.rs, b.rs" in gone


def test_listed_import_cycles_are_few_and_small(layering, monkeypatch):
    monkeypatch.setattr(layering, "MAX_CYCLES", 2)
    monkeypatch.setattr(layering, "MAX_CYCLE_FILES", 4)
    monkeypatch.setattr(layering, "CYCLES", {tuple("abcde"): "too large"})
    (problem,) = layering.cycle_problems([tuple("abcde")])
    assert "of 5 files (at most 4)" in problem
    three = {(f"{number}.rs", f"{number}b.rs"): "too many" for number in range(3)}
    monkeypatch.setattr(layering, "CYCLES", three)
    (problem,) = layering.cycle_problems(list(three))
    assert "3 import cycles are listed (at most 2)" in problem


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """Writes files of a crate and returns its import cycles, as file names below `src`."""
    finder = load("import_cycles")
    monkeypatch.setattr(finder, "ROOT", tmp_path)
    crate(tmp_path, "towline-proto")
    sources = tmp_path / "crates/towline-proto/src"

    def cycles(files):
        for path, source in files.items():
            (sources / path).parent.mkdir(parents=True, exist_ok=True)
            (sources / path).write_text(source)
        return [
            [name.removeprefix("crates/towline-proto/src/") for name in files] for files in finder.cycles()
        ]

    return cycles


LIB = "mod left;\nmod right;\npub use left::Left;\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param(
            {
                "left.rs": "use crate::right::Right;\npub struct Left(Right);",
                "right.rs": "// use crate::right::X;\npub struct Right;\nfn f(_: crate::left::Left) {}",
            },
            [["left.rs", "right.rs"]],
            id="a path in code",
        ),
        pytest.param(
            {
                "left.rs": "use crate::right::Right;\npub struct Left;",
                "right.rs": 'pub struct Right;\n#[cfg(test)]\nmod tests { use crate::Left; }\n// crate::Left {\nfn f() { g("crate::Left {"); }',
            },
            [],
            id="tests, comments and strings do not count",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\nuse part::Part;\npub struct Left(Part);",
                "left/part.rs": "pub struct Part;\nfn f(_: &super::Left) {}",
                "right.rs": "",
            },
            [["left/mod.rs", "left/part.rs"]],
            id="a child path",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\npub struct Left { part: part::Part }",
                "left/part.rs": "pub struct Part;\nfn f(_: &super::Left) {}",
                "right.rs": "",
            },
            [["left/mod.rs", "left/part.rs"]],
            id="a child path in code",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\npub(crate) use self::part::{Other, Part as Renamed};\npub struct Left;",
                "left/part.rs": "use crate::right::Right;\npub struct Part(Right);",
                "right.rs": "use crate::left::Renamed;\npub struct Right(Renamed);",
            },
            [["left/part.rs", "right.rs"]],
            id="a re-export is followed to the file that defines the name",
        ),
        pytest.param(
            {
                "left.rs": "use crate::right::Right;\npub struct Left(Right);",
                "right.rs": "use crate::Left;\npub struct Right(Left);",
            },
            [["left.rs", "right.rs"]],
            id="a re-export of lib.rs",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\npub use part::Part;\npub struct Left;",
                "left/part.rs": "use super::Left;\npub struct Part(Left);",
                "right.rs": "",
            },
            [],
            id="a re-export is not a use",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\npub use part::Part;\npub struct Left { part: Part }",
                "left/part.rs": "use super::Left;\npub struct Part(Left);",
                "right.rs": "",
            },
            [["left/mod.rs", "left/part.rs"]],
            id="a re-export that the file itself uses",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\nuse part::Part;\npub struct Left<T> { part: Part }\npub const MOST: u8 = 3;",
                "left/part.rs": "use super::{Left, MOST};\npub struct Part;\nimpl<T> Left<T> {}",
                "right.rs": "",
            },
            [],
            id="a child extends the type of its parent",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\nmod other;\nuse other::Other;\npub struct Left(Other);",
                "left/part.rs": "use super::Left;\nuse super::other::Other;\nimpl Left {}\npub const MOST: u8 = 3;",
                "left/other.rs": "pub struct Other;\nuse super::part::MOST;\nconst TWICE: u8 = 2 * MOST;",
                "right.rs": "",
            },
            [["left/other.rs", "left/part.rs"]],
            id="a child that extends its parent may be in another cycle",
        ),
        pytest.param(
            {
                "left/mod.rs": "mod part;\nuse part::*;\npub struct Left(Part);",
                "left/part.rs": "use super::*;\npub struct Part;\nfn f(_: Left) {}",
                "right.rs": "",
            },
            [["left/mod.rs", "left/part.rs"]],
            id="all names of a module",
        ),
    ],
)
def test_import_cycles_of_rust(sample, files, found):
    assert sample({"lib.rs": LIB, **files}) == found


def test_imports_against_the_floors(layering, tmp_path, monkeypatch):
    floors = [("ground.rs", "shared", "shared/top/low.rs"), {"h1", "h2"}, ("lib.rs", "shared/top")]
    monkeypatch.setattr(layering, "FLOORS", {"towline-proto": floors})
    sources = tmp_path / "src"

    def found(importer, imported):
        graph = {sources / importer: {sources / imported}}
        return [*layering.upward_problems(graph, sources, "towline-proto")]

    for importer, imported in [
        ("lib.rs", "h1/mod.rs"),
        ("h1/mod.rs", "ground.rs"),
        ("h1/mod.rs", "h1/send.rs"),
        ("ground.rs", "shared/mod.rs"),
        ("h2/mod.rs", "shared/top/low.rs"),
        ("not_listed.rs", "shared/top/mod.rs"),
    ]:
        assert found(importer, imported) == []
    for importer, imported in [
        ("ground.rs", "h1/mod.rs"),
        ("h1/mod.rs", "h2/mod.rs"),
        ("shared/mod.rs", "shared/top/mod.rs"),
        ("h1/mod.rs", "not_listed.rs"),
    ]:
        assert found(importer, imported) == [
            f"src/{importer}: imports {imported}, which is above it or beside it"
        ]


def test_import_cycles_of_python(tmp_path, monkeypatch):
    finder = load("import_cycles")
    monkeypatch.setattr(finder, "ROOT", tmp_path)
    module(tmp_path, "first.py", "from .second import X\n")
    module(tmp_path, "second.py", "def f():\n    from . import first\n")
    assert finder.cycles() == []
    module(tmp_path, "second.py", "from towline import first\n")
    assert finder.cycles() == [("python/towline/first.py", "python/towline/second.py")]


def test_text_of_one_machine():
    text = load("check_text")
    found = [pattern for pattern in text.PATTERNS.values() if pattern.search("cd " + "/ro" + "ot/work")]
    assert len(found) == 1
    assert not any(pattern.search("https://example.org/work/item") for pattern in text.PATTERNS.values())


def test_a_comment_names_its_subject():
    text = load("check_text")

    def found(name: str, source: str) -> list[tuple[int, str]]:
        return list(text.openings(Path(name), list(enumerate(source.splitlines(), 1))))

    assert found("a.rs", "/// The same for HTTP/2.\nfn a() {}\n// A frame.\n// It goes on.\n") == [
        (1, "The same")
    ]
    assert found("a.py", '"""Frames."""\nx = 1  # none\n# Of two, the first.\n\n"""What it is."""\n') == [
        (3, "Of"),
        (5, "What"),
    ]
    assert found("a.md", "It is a page.\n") == []


def test_option_page_knows_every_option():
    pages = load("options_doc")
    from towline._options import options_of
    from towline.config import ServerConfig

    page = pages.page()
    for name, (option, _) in options_of(ServerConfig).items():
        assert f"`{option.flag or '--' + name.replace('_', '-')}" in page


def test_the_page_of_comparisons_names_subjects_that_failed():
    from towline.bench.scenarios import catalogue

    page = load("published_comparisons_doc")
    reason = page.shortened("it ended with status -6: note: the end of its output")
    assert reason == "it ended with SIGABRT"
    one = page.Measured("record", "get_async", "get_async", {}, {}, {}, {"rnet": reason})
    assert [*page.cells(catalogue()["get_async"], one, None)] == [
        "rnet has no figure (it ended with SIGABRT)"
    ]


def test_a_record_has_the_load_from_before_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    from benches import report

    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 99.0, 99.0))
    assert report.machine()["load_before"] < 99


def test_ratio_of_the_bench():
    from benches.report import ratio

    found = ratio([200.0, 400.0, 300.0], [100.0, 200.0, 150.0])
    assert found["ratio"] == found["low"] == found["high"] == 2.0
    # two rounds at 1 and 4: mean of the logarithms is that of 2, t(1) = 12.71 makes the interval useless, as it is
    wide = ratio([100.0, 400.0], [100.0, 100.0])
    assert wide["ratio"] == 2.0
    assert wide["least"] == 1.0
    assert wide["most"] == 4.0
    assert wide["low"] < 0.01
    assert wide["high"] > 100
    # known by hand: logs 0, ln 1.21 and ln 1.1; sd 0.0953, half = 4.30 * 0.0953 / sqrt(3)
    three = ratio([100.0, 121.0, 110.0], [100.0, 100.0, 100.0])
    assert three["ratio"] == 1.1
    assert three["high"] == pytest.approx(1.1 * 2.71828 ** (4.30 * 0.0953 / 3**0.5), rel=0.002)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("      - uses: actions/checkout@v7 # v7.0.1", "full hash"),
        ("      - uses: actions/checkout@3d3c42e5 # v7.0.1", "full hash"),
        (f"      - uses: actions/checkout@{'3d' * 20}", "version"),
        ("      - uses: ./.github/actions/absent", "no such file"),
        ("      - run: make chekc", "make chekc: no such target"),
        ("        command: TOWLINE_RELOADS=9 make no-such PYTEST_ARGS=x", "make no-such"),
        ("      - run: scripts/absent.sh 3", "scripts/absent.sh: no such file"),
    ],
)
def test_workflows_that_name_what_is_not_there(line, complaint):
    (problem,) = load("check_workflows").problems_of(line)
    assert complaint in problem


def test_workflows_that_keep_the_rules():
    lines = [
        f"      - uses: actions/checkout@{'3d' * 20} # v7.0.1",
        "      - uses: ./new/.github/actions/measure",
        "      - run: make check",
        "      - run: bash new/examples/ci/measure.sh",
    ]
    assert list(load("check_workflows").problems_of("\n".join(lines))) == []


@pytest.fixture(scope="module")
def changed_tests():
    return load("changed_tests")


def test_the_areas_of_changed_tests_are_there(changed_tests):
    files = [
        str(path.relative_to(ROOT))
        for folder in ("python", "crates")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    tracked = [*files, *(path.name for path in ROOT.iterdir())]
    for area in changed_tests.AREAS:
        for start in area.files:
            assert any(name.startswith(start) for name in tracked) or (ROOT / start).exists(), start
        for test in area.tests:
            assert (ROOT / test).exists(), test
        for crate in area.crates:
            assert (ROOT / "crates" / crate).is_dir(), crate


@pytest.mark.parametrize(
    ("file", "crates", "tests", "left_out"),
    [
        ("Cargo.lock", ["--workspace"], {"tests"}, set()),
        (
            "crates/towline-proto/src/h1/parse.rs",
            ["--workspace"],
            {"tests/wire", "tests/server", "tests/client", "tests/bench/test_loop.py"},
            {"tests", "tests/bench", "tests/http3"},
        ),
        (
            "crates/towline-io/src/quic/mod.rs",
            ["--package", "towline-io", "--package", "towline-load"],
            {"tests/http3", "tests/wire", "tests/lifecycle/test_reloads.py"},
            {"tests/bench", "tests/state", "tests/lifecycle"},
        ),
        ("crates/towline-load/src/run.rs", ["--package", "towline-load"], {"tests/bench"}, {"tests/server"}),
        (
            "crates/towline-py-server/src/lib.rs",
            [],
            {"tests/server", "tests/lifecycle", "tests/wire"},
            {"tests/bench"},
        ),
        ("python/towline/client/flow.py", [], {"tests/client", "tests/faults"}, {"tests/server"}),
        ("python/towline/errors.py", [], {"tests"}, set()),
        ("pyproject.toml", [], {"tests"}, set()),
        ("tests/server/test_tls.py", [], {"tests/server/test_tls.py"}, {"tests/server"}),
        ("tests/bench/sshd.py", [], {"tests/bench"}, {"tests"}),
        ("tests/support/redis_servers.py", [], {"tests/state", "tests/cli/test_state.py"}, {"tests"}),
        ("tests/support/limited_h2_server.py", [], {"tests/client/test_http2_stream_limits.py"}, {"tests"}),
        (
            "python/towline/bench/record.py",
            [],
            {"tests/bench", "tests/faults/test_soak.py", "tests/wire/test_http2_attacks.py"},
            {"tests/server", "tests/client/test_http2_stream_limits.py", "tests"},
        ),
        (
            "docs/measure.md",
            [],
            {"tests/pages", "tests/bench/test_published_comparisons.py", "tests/client/test_call_page.py"},
            {"tests/server", "tests"},
        ),
        ("python/towline/_options.py", [], {"tests"}, set()),
        ("benches/results/hello.md", [], {"tests/test_house.py"}, {"tests/bench"}),
    ],
)
def test_a_change_needs_the_tests_of_its_area(changed_tests, file, crates, tests, left_out):
    assert changed_tests.crates([file]) == crates
    needed = set(changed_tests.tests([file]))
    assert tests <= needed
    assert not left_out & needed


def test_changes_are_those_since_the_common_ancestor(changed_tests, tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    for name in ("kept", "deleted", "edited", "of main"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("checkout", "-q", "-b", "work")
    (tmp_path / "committed").touch()
    git("add", ".")
    git("commit", "-q", "-m", "second")
    git("checkout", "-q", "main")
    git("rm", "-q", "of main")
    git("commit", "-q", "-m", "third")
    git("checkout", "-q", "work")
    (tmp_path / "edited").write_text("other")
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").touch()
    monkeypatch.setattr(changed_tests, "ROOT", tmp_path)
    assert changed_tests.changed("main") == ["committed", "deleted", "edited", "new"]
    assert changed_tests.main(["python", "--since", "nothing"]) == 2
