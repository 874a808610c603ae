"""Packaging: modules that an import loads and the time it takes; the checks of wheels and releases."""

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.test_house import load

MAX_IMPORT_S = 0.040

CLIENT = """
import sys, towline
with towline.Client() as client:
    pass
towline.AsyncClient, towline.get
print(*sorted(name for name in sys.modules if name.startswith("towline")))
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""


def python(script: str) -> list[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def test_the_client_loads_neither_server_nor_bench() -> None:
    ours, others = python(CLIENT)
    other_halves = ("server", "bench", "cli", "config", "testing", "_pytest_plugin")
    assert "towline.client.client" in ours.split()
    assert [
        name for name in ours.split() if name.split(".")[1:2] and name.split(".")[1] in other_halves
    ] == []
    before = set(python("import sys; print(*{name.partition('.')[0] for name in sys.modules})")[0].split())
    assert set(others.split()) - before <= {"towline", "idna"}


def test_an_import_takes_at_most_40_ms() -> None:
    script = "import time; began = time.process_time(); import towline; print(time.process_time() - began)"
    # CPU time, since on a busy machine others have their turn; the least, since they slow a core down.
    took = []
    while not took or (min(took) > MAX_IMPORT_S and len(took) < 20):
        took.append(float(python(script)[0]))
    assert min(took) <= MAX_IMPORT_S, took


def test_an_import_leaves_the_gil_off() -> None:
    """On a free-threaded interpreter; a warning of the interpreter about it would be an error."""
    script = "import sys, towline._native; print(getattr(sys, '_is_gil_enabled', bool)())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert done.stderr == ""
    assert done.stdout.strip() == "False" or not is_free_threaded


def test_a_system_without_support_is_refused_before_anything_of_ours_is_compiled(tmp_path: Path) -> None:
    program = tmp_path / "build"
    script = Path(__file__).parent.parent / "crates" / "towline-io" / "build.rs"
    subprocess.run(["rustc", "--edition=2024", "-o", program, script], timeout=60, check=True)

    def errors_of(**variables: str) -> list[str]:
        done = subprocess.run(
            [program], env=variables, capture_output=True, text=True, timeout=60, check=True
        )
        return [line for line in done.stdout.splitlines() if "error" in line]

    assert errors_of(CARGO_CFG_UNIX="", CARGO_CFG_TARGET_OS="macos") == []
    [line] = errors_of(CARGO_CFG_TARGET_OS="windows")
    assert line.startswith("cargo::error=Towline runs on Linux, not on windows: use WSL 2")


METADATA = "towline-0.2.0.dist-info"
GOOD_BOM = {
    "bomFormat": "CycloneDX",
    "components": [{"name": n} for n in ("pyo3", "rustls", "towline-proto")],
}


def wheel(folder: Path, without: str = "", bom: object = GOOD_BOM, **more: str) -> zipfile.ZipFile:
    contents = {
        "towline/__init__.py": "",
        "towline/_native.pyi": "",
        "towline/py.typed": "",
        "towline/_native.cpython-313-x86_64-linux-gnu.so": "",
        f"{METADATA}/licenses/LICENSE-MIT": "",
        f"{METADATA}/licenses/LICENSE-APACHE": "",
        f"{METADATA}/entry_points.txt": "",
        f"{METADATA}/sboms/towline-py.cyclonedx.json": json.dumps(bom),
        **more,
    }
    path = folder / "towline-0.2.0-cp313-cp313-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            if name != without:
                archive.writestr(name, text)
    return zipfile.ZipFile(path)


def test_contents_of_a_wheel(tmp_path: Path) -> None:
    checks = load("check_wheels")
    assert list(checks.contents_problems(wheel(tmp_path))) == []
    assert list(checks.contents_problems(wheel(tmp_path, without="towline/py.typed"))) == [
        "without towline/py.typed"
    ]
    assert list(checks.contents_problems(wheel(tmp_path, **{"tests/test_x.py": ""}))) == [
        "has tests/test_x.py"
    ]
    (problem,) = checks.contents_problems(wheel(tmp_path, bom={"bomFormat": "CycloneDX", "components": []}))
    assert "0 components" in problem
    second = {"towline/_other.cpython-313-x86_64-linux-gnu.so": ""}
    assert "shared objects" in next(checks.contents_problems(wheel(tmp_path, **second)))


def test_packed_wheels_do_not_name_the_folder_of_the_build(tmp_path: Path) -> None:
    pack, checks = load("pack_wheel"), load("check_wheels")
    bom = f"{METADATA}/sboms/towline-py.cyclonedx.json"
    packed = []
    for name in ("one", "other/folder"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        refs = {"bom-ref": f"path+{folder.as_uri()}/crates/towline-py#0.2.0"}
        record = {
            f"{METADATA}/RECORD": f"{bom},sha256=old,1\ntowline/py.typed,sha256=kept,0\n{METADATA}/RECORD,,\n"
        }
        path = Path(str(wheel(folder, bom={**GOOD_BOM, "metadata": refs}, **record).filename))
        pack.pack(path, folder)
        packed.append(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            content = archive.read(bom)
            assert b"path+file:///towline/crates/towline-py#0.2.0" in content
            first, *rest = archive.read(f"{METADATA}/RECORD").decode().splitlines()
            assert first == pack.record_line(bom, content)
            assert rest == ["towline/py.typed,sha256=kept,0", f"{METADATA}/RECORD,,"]
            assert list(checks.contents_problems(archive)) == []
    # Only the times of the members differ here, which maturin takes from SOURCE_DATE_EPOCH.
    assert len(packed[0]) == len(packed[1])
    here = {"towline/leak.py": f"ROOT = {str(checks.ROOT)!r}"}
    assert list(checks.contents_problems(wheel(tmp_path, **here))) == [
        "towline/leak.py names the folder of the build"
    ]


@pytest.mark.parametrize(
    ("allowed", "promised", "is_kept"),
    [
        ("manylinux_2_17_x86_64", "manylinux_2_17_x86_64", True),
        ("manylinux_2_12_x86_64", "manylinux2014_x86_64", True),
        ("manylinux2010_x86_64", "manylinux_2_17_x86_64", True),
        ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", False),
        ("musllinux_1_2_aarch64", "musllinux_1_2_aarch64", True),
        ("linux_x86_64", "manylinux2014_x86_64", False),
        ("manylinux_2_20_x86_64", "manylinux_2_28_x86_64.manylinux2014_x86_64", False),
    ],
)
def test_platforms_are_compared_by_their_libc(allowed: str, promised: str, is_kept: bool) -> None:
    assert load("check_wheels").is_as_old(allowed, promised) is is_kept


@pytest.mark.parametrize(
    ("platform", "library", "problems"),
    [
        ("macosx_11_0_arm64", "/usr/lib/libSystem.B.dylib", []),
        (
            "macosx_11_0_x86_64",
            "/System/Library/Frameworks/Security.framework/Versions/A/Security",
            [],
        ),
        ("macosx_11_0_arm64", "/opt/homebrew/lib/liblmdb.dylib", ["needs /opt/homebrew/lib/liblmdb.dylib"]),
        ("macosx_14_0_arm64", "/usr/lib/libSystem.B.dylib", ["platform macosx_14_0_arm64"]),
    ],
)
def test_wheels_for_macos_need_libraries_of_the_system_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, library: str, problems: list[str]
) -> None:
    checks = load("check_wheels")
    path = Path(str(wheel(tmp_path).filename))
    name = "_native.cpython-313-x86_64-linux-gnu.so"
    listed = (
        f"{path}/{name}:\n\t/built/{name} (compatibility version 0.0.0)\n\t{library} (current version 1)\n"
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(
        checks.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, listed, "")
    )
    assert list(checks.platform_problems(path, platform)) == problems


def test_notes_of_a_release() -> None:
    notes = load("release_notes")
    changelog = "# Changelog\n\n## Unreleased\n\n- soon\n\n## 0.2.0 (2026-12-01)\n\n- one\n\n### Fixed\n\n- two\n\n## 0.1.0\n\n- old\n"
    assert notes.section(changelog, "0.2.0") == "- one\n\n### Fixed\n\n- two"
    assert notes.section(changelog, "0.1.0") == "- old"
    assert notes.section(changelog, "0.2") == ""
    assert notes.version_in('[project]\nname = "towline"\nversion = "0.2.0"\n') == "0.2.0"


def test_the_versions_are_one() -> None:
    notes = load("release_notes")
    versions = {
        notes.version_in((notes.ROOT / name).read_text()) for name in ("pyproject.toml", "Cargo.toml")
    }
    assert len(versions) == 1
