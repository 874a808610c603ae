"""Checks the direction of imports and the length of files (ARCHITECTURE.md, "Layers").

Rust: which of our crates a crate may depend on, which may use pyo3, mio and rustls, and where unsafe code is
forbidden. Python: `server`, `client`, `bench` and `state` import the foundation and never each other. Both: no import cycles
between files but those listed here. Two crates have floors: no file imports upward. Each file of Rust tests belongs to a program. A file of more than 600 lines is listed, one of more than 700 fails.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

# crate -> our crates that it may depend on (testkit only as a dev-dependency, of any crate below py)
BINDINGS = {"towline-py-client", "towline-py-common", "towline-py-server"}
CRATES = {
    "towline-proto": set(),
    "towline-io": {"towline-proto"},
    "towline-load": {"towline-proto", "towline-io"},
    "towline-state": set(),
    "towline-py-common": set(),
    "towline-py-client": {"towline-proto", "towline-io", "towline-py-common"},
    "towline-py-server": {"towline-proto", "towline-io", "towline-py-common"},
    "towline-py": {"towline-io", "towline-load", "towline-state", *BINDINGS},
    "towline-testkit": {"towline-proto"},
}
# outside crate -> our crates that may use it
CONFINED = {
    "pyo3": {"towline-py", *BINDINGS},
    "mio": {"towline-io", "towline-load"},
    "rustls": {"towline-io"},
    "ring": {"towline-io"},
    "quinn_proto": {"towline-io"},
    "quinn_udp": {"towline-io"},
    "lmdb_master_sys": {"towline-state"},
}
# (crate, outside crate) -> the only folder of the crate that may use it
CONFINED_TO_FOLDER = {("towline-load", "mio"): "src/netem"}
# crate -> confined crates that its tests may use, as the other end
TEST_PEERS = {"towline-load": {"rustls"}}
FORBID_UNSAFE = {"towline-proto", "towline-testkit"}

PACKAGE = "towline"
LAYERS = {"server", "client", "bench", "state"}
FOUNDATION = {"errors", "config", "logging"}  # and the private modules, above all `_native`
ABOVE = {
    "_dropins",
    "_pytest_plugin",
}  # private, and yet above the layers: they use the client and the server

# Import cycles between files (scripts/import_cycles.py), each with the reason why it stays. A cycle that is not listed
# fails, and so does an entry whose cycle is gone. Prefer to cut a cycle: move what both files need into a
# third one below them.
IO = "crates/towline-io/src/"
CYCLES: dict[tuple[str, ...], str] = {
    (
        IO + "client/blocking/h2_driver.rs",
        IO + "client/blocking/pooled_conn.rs",
        IO + "client/blocking/shared_pool.rs",
        IO + "client/blocking/waiter_mailbox.rs",
    ): "the pool holds connections, and an HTTP/2 connection reports its free streams and its end to the pool",
}
MAX_CYCLES, MAX_CYCLE_FILES = 1, 4

# The floors of a crate, the ground first: a file imports from its own floor and from those below. The parts of a set
# do not import each other, those of a tuple may. The longest name counts, so that a file or folder can have another
# floor than the folder it is in. What is not listed is on the top floor.
FLOORS: dict[str, list[tuple[str, ...] | set[str]]] = {
    "towline-proto": [
        (
            "body.rs",
            "buffer.rs",
            "byte_class.rs",
            "error.rs",
            "event.rs",
            "field_compression",
            # The parser of a head, whose state is in the receive buffer.
            "h1/head_info.rs",
            "h1/lenient.rs",
            "h1/parse.rs",
            "h1/scan.rs",
            "h1/start_line.rs",
            "head.rs",
            "idle_timer.rs",
            "limits.rs",
            "pending_events.rs",
            "progress_timer.rs",
            "protocol_switch.rs",
            "quic.rs",
            "refusal.rs",
            "target.rs",
        ),
        ("multiplexed",),
        {"h1", "h2", "h3"},
        ("connection",),
        ("ws", "lib.rs"),
    ],
    "towline-io": [
        (
            "coding",
            "conn/id.rs",
            "engine/timers.rs",
            "fork.rs",
            "output_file.rs",
            "quic",
            "serve",
            "serve/features/body.rs",
            "shared_memory.rs",
            "sys",
            "sys.rs",
            "text",
            "thread_pool.rs",
            "tls",
        ),
        ("conn",),
        ("client/alt_svc", "client/dial", "client/request.rs", "client/route.rs", "serve/features"),
        ("engine",),
        ("client", "lib.rs"),
    ],
}
LISTED_LINES, MAX_LINES = 600, 700


def crate_problems() -> Iterator[str]:
    for manifest_path in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        manifest = tomllib.loads(manifest_path.read_text())
        crate, folder = manifest["package"]["name"], manifest_path.parent
        if crate not in CRATES:
            yield f"{manifest_path.relative_to(ROOT)}: {crate} is not listed in scripts/check_layering.py"
            continue
        yield from dependency_problems(crate, manifest)
        yield from source_problems(crate, folder)
        yield from test_program_problems(manifest, folder)
        if crate in FORBID_UNSAFE and "#![forbid(unsafe_code)]" not in (folder / "src/lib.rs").read_text():
            yield f"{crate}: src/lib.rs must say #![forbid(unsafe_code)]"


def dependency_problems(crate: str, manifest: dict) -> Iterator[str]:
    used = set(manifest.get("dependencies", {})) | set(manifest.get("build-dependencies", {}))
    for target in manifest.get("target", {}).values():
        used |= set(target.get("dependencies", {}))
    for name in sorted(used & CRATES.keys() - CRATES[crate]):
        yield f"{crate}: may not depend on {name}"
    used |= set(manifest.get("dev-dependencies", {})) - TEST_PEERS.get(crate, set())
    for name, homes in CONFINED.items():
        if name.replace("_", "-") in used and crate not in homes:
            yield f"{crate}: {name} may be used only in {', '.join(sorted(homes))}"


def source_problems(crate: str, folder: Path) -> Iterator[str]:
    """Uses of a confined crate through a re-export, which needs no dependency."""
    barred = [name for name, homes in CONFINED.items() if crate not in homes]
    path = re.compile(rf"\b({'|'.join(barred)})::") if barred else None
    rules = [(path, None)] if path else []
    rules += [
        (re.compile(rf"\b({name})::"), home) for (of, name), home in CONFINED_TO_FOLDER.items() if of == crate
    ]
    for source in sorted((folder / "src").rglob("*.rs")) if rules else []:
        barring = [rule for rule, home in rules if home is None or not source.is_relative_to(folder / home)]
        for number, line in enumerate(source.read_text().splitlines(), 1):
            if found := next(filter(None, (rule.search(line.split("//")[0]) for rule in barring)), None):
                yield f"{source.relative_to(ROOT)}:{number}: {found[1]} may not be used in {crate}"


def test_program_problems(manifest: dict, folder: Path) -> Iterator[str]:
    """Files of tests that no program contains: Cargo finds them by itself only without `autotests = false`."""
    if manifest["package"].get("autotests", True):
        return
    tests = folder / "tests"
    contained = set(re.findall(r"^mod (\w+);", (tests / "all.rs").read_text(), re.MULTILINE))
    contained |= {target["name"] for target in manifest.get("test", [])}
    for file in sorted([*tests.glob("*.rs"), *tests.glob("*/mod.rs")]):
        name = file.parent.name if file.name == "mod.rs" else file.stem
        if name not in contained:
            yield f"{file.relative_to(ROOT)}: neither in tests/all.rs nor a [[test]] of Cargo.toml, so that it never runs"


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of each import of a module that takes place when it runs, not for annotations only."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, base] if base else kept)
            # `from towline import server` imports a layer as well
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module without those under `if TYPE_CHECKING:`."""
    yield tree
    is_for_types = (
        isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING"
    )
    for child in tree.orelse if isinstance(tree, ast.If) and is_for_types else ast.iter_child_nodes(tree):
        yield from running(child)


def layer_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def python_problems() -> Iterator[str]:
    base = ROOT / "python" / PACKAGE
    present = {path.stem for path in base.iterdir()}
    private = {name for name in present | {"_native"} if re.match("_[^_]", name)}
    foundation = FOUNDATION | private - ABOVE
    for source in sorted(base.rglob("*.py")):
        relative = source.relative_to(base.parent).with_suffix("")
        module = ".".join(relative.parts).removesuffix(".__init__")
        own_layer = layer_of(module)
        if own_layer not in LAYERS | foundation:
            continue  # the package itself, the command line and the helpers are above all layers
        allowed = foundation | ({own_layer} if own_layer in LAYERS else set())
        names = imported(ast.parse(source.read_text()), module, source.name == "__init__.py")
        for line, layer in sorted({(line, layer_of(name)) for line, name in names if layer_of(name)}):
            if layer in present | LAYERS and layer not in allowed:
                yield f"{source.relative_to(ROOT)}:{line}: {own_layer} may not import {layer}"


def long_files() -> Iterator[tuple[int, Path]]:
    for folder, suffix in [("crates", "*.rs"), ("python", "*.py"), ("benches", "*.py"), ("scripts", "*.py")]:
        for source in sorted((ROOT / folder).rglob(suffix)):
            lines = len(source.read_text().splitlines())
            if lines > LISTED_LINES:
                yield lines, source.relative_to(ROOT)


def cycle_problems(found: Collection[tuple[str, ...]]) -> Iterator[str]:
    """`found`: the import cycles of the repository, each as its sorted file names."""
    for files in sorted(set(found) - CYCLES.keys()):
        yield f"import cycle of {len(files)} files, not listed in scripts/check_layering.py: {', '.join(files)}"
    for files in sorted(CYCLES.keys() - set(found)):
        yield f"scripts/check_layering.py lists an import cycle that is gone: {', '.join(files)}"
    for files in CYCLES:
        if len(files) > MAX_CYCLE_FILES:
            yield f"import cycle of {len(files)} files (at most {MAX_CYCLE_FILES}): {', '.join(files)}"
    if len(CYCLES) > MAX_CYCLES:
        yield f"{len(CYCLES)} import cycles are listed (at most {MAX_CYCLES})"


def upward_problems(graph: Mapping[Path, set[Path]], sources: Path, crate: str) -> Iterator[str]:
    """`graph`: the files of a crate with those that each imports."""
    floors = FLOORS[crate]
    levels = {part: level for level, parts in enumerate(floors) for part in parts}

    def part_of(file: Path) -> str:
        relative = file.relative_to(sources)
        names = [str(relative), *(str(parent) for parent in relative.parents)]
        return next((name for name in names if name in levels), "lib.rs")

    for importer, imported in ((file, target) for file, targets in graph.items() for target in targets):
        above, below = part_of(importer), part_of(imported)
        beside = levels[above] == levels[below] and above != below and isinstance(floors[levels[above]], set)
        if levels[below] > levels[above] or beside:
            yield f"{importer.relative_to(ROOT)}: imports {imported.relative_to(sources)}, which is above it or beside it"


def main() -> int:
    from import_cycles import cycles, rust_graph

    problems = [*crate_problems(), *python_problems(), *cycle_problems(cycles())]
    for crate in FLOORS:
        sources = ROOT / "crates" / crate / "src"
        problems += upward_problems(rust_graph(sources), sources, crate)
    for lines, source in long_files():
        print(f"long file: {source} has {lines} lines")
        if lines > MAX_LINES:
            problems.append(f"{source}: {lines} lines; split it by subject (at most {MAX_LINES})")
    print("\n".join(problems) if problems else "layering: every import goes the allowed way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
