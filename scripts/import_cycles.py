"""Import cycles between source files: strongly connected components of the graph of imports.

Rust: a file imports the file that defines a name that it uses, by a `use` declaration or by a path in its code. Paths
may begin with `crate`, `self`, `super`, a child module or an imported name, and are followed through re-exports. A `mod`
declaration and a re-export are not uses, and tests do not count. A child file that has an `impl` of a type of its parent
module is a part of that type: what it takes from the parent's file is no import.

Python: imports that run when a module is imported, so neither those inside functions nor those under `if TYPE_CHECKING`.

    python scripts/import_cycles.py     # lists the cycles of this checkout
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Graph = Mapping[Path, set[Path]]
Names = tuple[str, ...]

# comments, strings and characters, which may contain braces and paths
OPAQUE = re.compile(
    r'//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'',
    re.DOTALL,
)
TEST = re.compile(r"#\[cfg\(test\)\]")
INLINE_MODULE = re.compile(r"\bmod\s+(\w+)\s*\{")
MODULE = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"(?P<public>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:])[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+")
ITEM = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)")
IMPL = re.compile(r"\bimpl\b(?P<header>[^;{]*)\{")


def cycles() -> list[Names]:
    """Every cycle of the repository as its sorted file names, relative to the repository."""
    found: list[Names] = []
    for sources in sorted((ROOT / "crates").glob("*/src")):
        found += components(rust_graph(sources))
    found += components(python_graph(ROOT / "python" / "towline"))
    return sorted(found)


@dataclass
class Module:
    """One module of a crate: its code without tests and inline modules, and the names of its scope."""

    file: Path
    path: Names
    code: str = ""
    children: set[str] = field(default_factory=set)
    items: set[str] = field(default_factory=set)
    uses: dict[str, Names] = field(default_factory=dict)
    globs: list[Names] = field(default_factory=list)
    reexports: set[str] = field(default_factory=set)


def rust_graph(sources: Path) -> Graph:
    crate = Crate(sources)
    graph: dict[Path, set[Path]] = {module.file: set() for module in crate.modules.values()}
    for module in crate.modules.values():
        graph[module.file] |= crate.imports(module) - {module.file}
    return graph


class Crate:
    def __init__(self, sources: Path) -> None:
        self.modules: dict[Names, Module] = {}
        roots = [sources / "lib.rs", sources / "main.rs"]
        self.load(next(root for root in roots if root.is_file()), ())

    def load(self, file: Path, path: Names) -> None:
        folder = file.parent if file.stem in {"mod", "lib", "main"} else file.with_suffix("")
        self.add(file, path, without_tests(OPAQUE.sub('""', file.read_text())), folder)

    def add(self, file: Path, path: Names, code: str, folder: Path) -> None:
        module = self.modules[path] = Module(file, path)
        while inline := INLINE_MODULE.search(code):
            end = item_end(code, inline.end() - 1)
            module.children.add(inline[1])
            self.add(file, (*path, inline[1]), code[inline.end() : end - 1], folder / inline[1])
            code = code[: inline.start()] + code[end:]
        for name in MODULE.findall(code):
            module.children.add(name)
            candidates = [folder / f"{name}.rs", folder / name / "mod.rs"]
            if existing := next((found for found in candidates if found.is_file()), None):
                self.load(existing, (*path, name))
        for use in USE.finditer(code):
            for name, target in expand(use["tree"]):
                if name == "*":
                    module.globs.append(target)
                    continue
                module.uses[name] = target
                if use["public"]:
                    module.reexports.add(name)
        module.code = USE.sub("", code)
        module.items = set(ITEM.findall(module.code))

    def imports(self, module: Module) -> set[Path]:
        """The files that define the names which the code of `module` uses."""
        words = set(re.findall(r"\w+", module.code))
        paths = [module.uses[name] for name in module.uses if name not in module.reexports or name in words]
        paths += [tuple(path.split("::")) for path in PATH.findall(module.code)]
        for glob in module.globs:
            if target := self.module_at(glob, module):
                paths += [(*glob, word) for word in words & (target.items | target.uses.keys())]
        found = {target.file for path in paths if (target := self.definer(path, module))}
        return found - self.extended(module)

    def extended(self, module: Module) -> set[Path]:
        """The parent's file, if `module` has an `impl` of a type that the parent defines."""
        parent = self.modules.get(module.path[:-1]) if module.path else None
        for header in IMPL.findall(module.code):
            subject = implemented(header)
            if parent and self.definer(subject, module) is parent and subject[-1] not in module.items:
                return {parent.file}
        return set()

    def module_at(self, path: Names, scope: Module) -> Module | None:
        found = self.follow(path, scope, set())
        return found[0] if found and not found[1] else None

    def definer(self, path: Names, scope: Module) -> Module | None:
        """The module that defines the first item of `path`; None for a module itself and for names from elsewhere."""
        found = self.follow(path, scope, set())
        return found[0] if found and found[1] else None

    def follow(
        self, path: Names, scope: Module, seen: set[tuple[Names, Names]]
    ) -> tuple[Module, Names] | None:
        """The module that `path` leads to, and what of the path it does not resolve: an item and its parts."""
        if (path, scope.path) in seen:
            return None
        seen.add((path, scope.path))
        while path and path[0] in {"crate", "self", "super"}:
            above = {"crate": (), "self": scope.path, "super": scope.path[:-1]}[path[0]]
            scope, path = self.modules[above], path[1:]
        if not path:
            return scope, ()
        first, rest = path[0], path[1:]
        if first in scope.children:
            child = self.modules.get((*scope.path, first))
            return self.follow(("self", *rest), child, seen) if child else None
        if first in scope.uses and scope.uses[first] != path:
            return self.follow((*scope.uses[first], *rest), scope, seen)
        if first in scope.items:
            return scope, path
        for glob in scope.globs:
            target = self.follow(glob, scope, seen)
            if target and not target[1] and (found := self.follow(("self", *path), target[0], seen)):
                return found
        return None


def without_tests(code: str) -> str:
    while test := TEST.search(code):
        code = code[: test.start()] + code[item_end(code, test.end()) :]
    return code


def item_end(code: str, start: int) -> int:
    """The end of the item that begins at `start`: its semicolon or its closing brace."""
    depth = 0
    for index in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[index], 0)
        if depth == 0 and code[index] in ";}":
            return index + 1
    return len(code)


def expand(tree: str) -> Iterator[tuple[str, Names]]:
    """The names that a `use` tree brings into scope with their paths: `a::{b, c::d as e}` gives b and e."""
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = (part.strip() for part in head.partition(" as "))
        names = tuple(part.strip() for part in path.split("::") if part.strip())
        names = names[:-1] if names[-1] == "self" and len(names) > 1 else names
        yield (alias or names[-1], names[:-1] if names[-1] == "*" else names)
        return
    items, depth = [""], 0
    for character in rest[: rest.rindex("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    for item in items:
        if item.strip():
            yield from expand(head + item.strip())


def implemented(header: str) -> Names:
    """The path of the type for which `impl HEADER {` is: `<T> Display for Frame<T> where ...` gives Frame."""
    while header != (header := re.sub(r"<[^<>]*>", "", header.replace("->", ""))):
        pass
    subject = re.split(r"\bwhere\b", header)[0].rpartition(" for ")[2]
    return tuple(re.findall(r"\w+", subject)) or ("",)


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
