"""Import cycles between source files: strongly connected components of the graph of imports.

Rust: `use` declarations and paths that begin with `crate`, `super` or `self`, resolved to the file of the
module that they name. `mod` declarations, re-exports (`pub use`) and tests do not count. Python: imports that
run when a module is imported, so neither those inside functions nor those under `if TYPE_CHECKING`.

    python scripts/import_cycles.py     # lists the cycles of this checkout
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Graph = Mapping[Path, set[Path]]

COMMENT = re.compile(r"//[^\n]*")
INLINE_TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{")
USE = re.compile(r"^[ \t]*(?P<public>pub(?:\([^)]*\))?[ \t]+)?use\s+(?P<tree>[^;]+);", re.MULTILINE)
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")


def cycles() -> list[tuple[str, ...]]:
    """Every cycle of the repository as its sorted file names, relative to the repository."""
    found: list[tuple[str, ...]] = []
    for sources in sorted((ROOT / "crates").glob("*/src")):
        found += components(rust_graph(sources))
    found += components(python_graph(ROOT / "python" / "towline"))
    return sorted(found)


def rust_graph(sources: Path) -> Graph:
    files = [path for path in sources.rglob("*.rs") if not is_test(path.relative_to(sources))]
    return {path: set(rust_imports(path, sources)) - {path} for path in files}


def is_test(relative: Path) -> bool:
    return "tests" in relative.parts or relative.stem.endswith("tests")


def rust_imports(path: Path, sources: Path) -> Iterator[Path]:
    text = INLINE_TESTS.split(COMMENT.sub("", path.read_text()))[0]
    relative = path.relative_to(sources).with_suffix("")
    module = list(relative.parts if relative.stem not in {"mod", "lib", "main"} else relative.parts[:-1])
    named = [name for use in USE.finditer(text) if not use["public"] for name in expand(use["tree"])]
    named += [found[0].split("::") for found in PATH.finditer(USE.sub("", text))]
    for name in named:
        if (absolute := resolve(name, module)) is not None:
            yield from module_file(sources, absolute)


def expand(tree: str) -> list[list[str]]:
    """The paths of a `use` tree: `a::{b, c::d}` names `a::b` and `a::c::d`."""
    head, brace, rest = tree.partition("{")
    prefix = [part.strip() for part in re.sub(r"\s+as\s+\w+", "", head).split("::") if part.strip()]
    if not brace:
        return [prefix]
    items, depth = [""], 0
    for character in rest[: rest.rindex("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [prefix + path for item in items if item.strip() for path in expand(item)]


def resolve(name: list[str], module: list[str]) -> list[str] | None:
    if name[0] == "crate":
        return name[1:]
    if name[0] == "self":
        return module + name[1:]
    ups = next((index for index, part in enumerate(name) if part != "super"), len(name))
    return module[: len(module) - ups] + name[ups:] if ups else None


def module_file(sources: Path, name: list[str]) -> Iterator[Path]:
    """The file of the longest prefix of `name` that is a module."""
    for length in range(len(name), -1, -1):
        folder = sources.joinpath(*name[:length])
        candidates = [folder.with_suffix(".rs"), folder / "mod.rs"] if length else [sources / "lib.rs"]
        if existing := [path for path in candidates if path.is_file()]:
            yield existing[0]
            return


def python_graph(package: Path) -> Graph:
    return {path: set(python_imports(path, package)) - {path} for path in package.rglob("*.py")}


def python_imports(path: Path, package: Path) -> Iterator[Path]:
    relative = path.relative_to(package.parent).with_suffix("")
    is_package = relative.stem == "__init__"
    module = list(relative.parts[:-1] if is_package else relative.parts)
    for node in import_time(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        else:
            base = module[: len(module) - node.level + is_package] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        for name in names:
            if name[0] == package.name:
                yield from python_file(package.parent, name, module)


def import_time(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from import_time(child)


def python_file(base: Path, name: list[str], importer: list[str]) -> Iterator[Path]:
    for length in range(len(name), 0, -1):
        target = base.joinpath(*name[:length])
        if target.with_suffix(".py").is_file():
            yield target.with_suffix(".py")
            return
        if (target / "__init__.py").is_file():
            if (
                name[:length] != importer[:length]
            ):  # a package that contains the importer is being imported already
                yield target / "__init__.py"
            return


def components(graph: Graph) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one file (Tarjan, SIAM J. Comput. 1, 1972)."""
    order: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found: list[tuple[str, ...]] = []

    def search(file: Path) -> None:
        order[file] = low[file] = len(order)
        stack.append(file)
        for target in graph.get(file, ()):
            if target not in order:
                search(target)
                low[file] = min(low[file], low[target])
            elif target in stack:
                low[file] = min(low[file], order[target])
        if low[file] == order[file]:
            members = stack[stack.index(file) :]
            del stack[stack.index(file) :]
            if len(members) > 1:
                found.append(tuple(sorted(str(member.relative_to(ROOT)) for member in members)))

    for file in sorted(graph):
        if file not in order:
            search(file)
    return found


def main() -> int:
    found = cycles()
    for files in found:
        print(f"{len(files)} files: {', '.join(files)}")
    print(f"{len(found)} import cycles")
    return 0


if __name__ == "__main__":
    sys.exit(main())
