"""Checks the wheels and the sdist of a folder: `python scripts/check_wheels.py dist`.

A wheel is small enough, has what it must and nothing else, and auditwheel finds that its extension runs on every
Linux that its platform tag promises; one for macOS, on a Mac, needs libraries of the system only. Needs auditwheel (group
`wheels`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_WHEEL_BYTES = 6_000_000
NAME = re.compile(r"towline-(?P<version>[\w.]+)-cp(?P<python>3\d+)-cp(?P=python)t?-(?P<platform>[\w.]+)\.whl")
PLATFORM = re.compile(
    r"(manylinux2014|manylinux_2_(\d+)|musllinux_1_2)_(x86_64|aarch64)|macosx_11_0_(arm64|x86_64)"
)
# manylinux_2_28 is the newest that is promised.
NEWEST_GLIBC = 28
OLD_NAMES = {
    "manylinux1": ("manylinux", 5),
    "manylinux2010": ("manylinux", 12),
    "manylinux2014": ("manylinux", 17),
}
LIBRARIES_BEFORE, LIBRARIES_AFTER = (
    "external shared libraries are required by the wheel:",
    "In order to achieve",
)
MUSL_ALONE = '{ "libc.so": null }'
"""zig calls musl so, and auditwheel knows it by Alpine's name only; musl's loader takes every name that begins with `libc.` for itself."""
NEEDED = ("towline/__init__.py", "towline/_native.pyi", "towline/py.typed")
NEEDED_METADATA = ("licenses/LICENSE-MIT", "licenses/LICENSE-APACHE", "entry_points.txt")
NEEDED_SOURCES = ("Cargo.lock", "Cargo.toml", "pyproject.toml", "crates/towline-py/src/lib.rs")


def contents_problems(wheel: zipfile.ZipFile) -> Iterator[str]:
    names = wheel.namelist()
    (metadata,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    for needed in [*NEEDED, *(f"{metadata}/{name}" for name in NEEDED_METADATA)]:
        if needed not in names:
            yield f"without {needed}"
    natives = [name for name in names if name.endswith(".so")]
    if len(natives) != 1 or not natives[0].startswith("towline/_native."):
        yield f"shared objects: {natives}"
    for name in names:
        if not name.startswith(("towline/", f"{metadata}/")) or "__pycache__" in name:
            yield f"has {name}"
    for name in names:
        if str(ROOT).encode() in wheel.read(name):
            yield f"{name} names the folder of the build"
    boms = [name for name in names if name.startswith(f"{metadata}/sboms/")]
    if not boms:
        yield "without a bill of materials"
    for name in boms:
        yield from bom_problems(json.loads(wheel.read(name)))


def bom_problems(bom: dict[str, object]) -> Iterator[str]:
    """A CycloneDX document that names the crates."""
    components = bom.get("components")
    names = {one["name"] for one in components} if isinstance(components, list) else set()
    if bom.get("bomFormat") != "CycloneDX" or not {"pyo3", "rustls", "towline-proto"} <= names:
        yield f"bill of materials: {bom.get('bomFormat')}, {len(names)} components"


def platform_problems(path: Path, platform: str) -> Iterator[str]:
    tags = [found for part in platform.split(".") if (found := PLATFORM.fullmatch(part))]
    if not tags or any(found[2] and int(found[2]) > NEWEST_GLIBC for found in tags):
        yield f"platform {platform}"
        return
    if platform.startswith("macosx"):
        yield from macos_problems(path)
        return
    show = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", path], capture_output=True, text=True, check=False
    )
    # auditwheel says which tag the symbols allow; it must be one of the file's name, or an older one.
    text = " ".join((show.stdout + show.stderr).split())
    allowed = re.search(r'consistent with the following platform tag: "(?P<tag>\w+)"', text)
    if allowed is None:
        yield f"auditwheel: {text[:300]}"
    elif not is_as_old(allowed["tag"], platform) and not (
        platform.startswith("musllinux") and f"{LIBRARIES_BEFORE} {MUSL_ALONE} {LIBRARIES_AFTER}" in text
    ):
        yield f"auditwheel allows {allowed['tag']} only"


def macos_problems(path: Path) -> Iterator[str]:
    """Libraries that macOS does not have, where its tool for them is."""
    if sys.platform != "darwin":
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        (native,) = (name for name in wheel.namelist() if name.endswith(".so"))
        command = ["otool", "-L", wheel.extract(native, folder)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    for name in (line.split()[0] for line in lines):
        if not name.startswith(("/usr/lib/", "/System/Library/")) and Path(name).name != Path(native).name:
            yield f"needs {name}"


def is_as_old(allowed: str, platform: str) -> bool:
    """Whether a wheel that runs on `allowed` runs on every platform of its name."""
    family, version = rank(allowed)
    return all(rank(part)[0] == family and rank(part)[1] >= version for part in platform.split("."))


def rank(tag: str) -> tuple[str, int]:
    """Family, and the version of its library: a lower one runs on more systems."""
    if found := re.match(r"manylinux_2_(\d+)_", tag):
        return "manylinux", int(found[1])
    if found := re.match(r"musllinux_1_(\d+)_", tag):
        return "musllinux", int(found[1])
    return OLD_NAMES.get(tag.partition("_")[0], ("other", 0))


def wheel_problems(path: Path) -> Iterator[str]:
    found = NAME.fullmatch(path.name)
    if found is None:
        yield "unexpected name"
        return
    if path.stat().st_size > MAX_WHEEL_BYTES:
        yield f"{path.stat().st_size} bytes, at most {MAX_WHEEL_BYTES}"
    with zipfile.ZipFile(path) as wheel:
        yield from contents_problems(wheel)
    yield from platform_problems(path, found["platform"])


def sdist_problems(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    yield from (f"without {needed}" for needed in NEEDED_SOURCES if needed not in names)


def main() -> int:
    folder = Path(sys.argv[1])
    found = {path: list(wheel_problems(path)) for path in sorted(folder.glob("*.whl"))}
    found |= {path: list(sdist_problems(path)) for path in sorted(folder.glob("*.tar.gz"))}
    for path, problems in found.items():
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {'; '.join(problems) or 'good'}")
    if not found:
        print(f"{folder}: no wheel, no sdist")
    return int(not found or any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
