"""Checks names and the openings of doc comments (CONTRIBUTING.md, "House rules", rule 2).

A type, module or function is named after the RFC's or the field's term. The words in retired_names.txt are private
metaphors, or participles used as types, that the project once used; a definition whose name contains one
of them fails. A doc comment starts with a noun or a verb, so one that starts with "What", "Whose", "Who",
"Whoever" or "Those" fails too.

    python scripts/check_names.py            # everything that git tracks
    python scripts/check_names.py PATH...    # some files or folders
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def retired(section: str) -> frozenset[str]:
    text = (ROOT / "scripts/retired_names.txt").read_text()
    return frozenset(text.partition(f"[{section}]")[2].partition("\n\n")[0].split())


RETIRED_WORDS, RETIRED_TYPES = retired("words"), retired("types")

RUST_DEFINITION = re.compile(
    r"^\s*(?:pub(?:\([a-z: ]+\))?\s+)?(?:default\s+)?(?:const\s+)?(?:async\s+)?(?:unsafe\s+)?(?:extern\s+\"C\"\s+)?"
    r"(?P<kind>struct|enum|union|trait|type|fn|mod)\s+(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
)
RUST_DOC = re.compile(r"^\s*//[/!]\s?(?P<text>.*)$")
BAD_OPENING = re.compile(r"(?:What|Whose|Who|Whoever|Those)\b")
BAD_FUNCTION = re.compile(r"(?:test_)?(?:what|whose|who|whoever)_")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def name_problem(kind: str, name: str) -> str | None:
    words = {word.lower() for word in WORD.findall(name)}
    if found := sorted(words & RETIRED_WORDS):
        return f"{kind} `{name}` uses the retired word `{found[0]}`"
    if name in RETIRED_TYPES and kind in {"struct", "enum", "union", "trait", "type", "class"}:
        return f"{kind} `{name}` is a retired name"
    if kind in {"fn", "def"} and BAD_FUNCTION.match(name):
        return f"{kind} `{name}` describes around its subject: say what it does or asserts"
    return None


def rust_problems(text: str) -> Iterator[tuple[int, str]]:
    in_doc = False
    for number, line in enumerate(text.splitlines(), 1):
        if doc := RUST_DOC.match(line):
            if not in_doc and BAD_OPENING.match(doc["text"]):
                yield number, f"doc comment starts with {doc['text'].split()[0]!r}"
            in_doc = True
            continue
        in_doc = False
        if (found := RUST_DEFINITION.match(line)) and (problem := name_problem(found["kind"], found["name"])):
            yield number, problem


def python_problems(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            line = 1 if isinstance(node, ast.Module) else node.lineno
            if docstring and BAD_OPENING.match(docstring):
                yield line, f"docstring starts with {docstring.split()[0]!r}"
            if not isinstance(node, ast.Module):
                kind = "class" if isinstance(node, ast.ClassDef) else "def"
                if problem := name_problem(kind, node.name):
                    yield line, problem


def problems_in(path: Path) -> Iterator[str]:
    if path.suffix not in {".rs", ".py", ".pyi"} or not (ROOT / path).is_file():
        return
    if problem := name_problem("module", path.stem):
        yield f"{path}: {problem}"
    check = rust_problems if path.suffix == ".rs" else python_problems
    for line, problem in sorted(check((ROOT / path).read_text())):
        yield f"{path}:{line}: {problem}"


def tracked(arguments: list[str]) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *arguments], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        return [Path(name) for name in listed.stdout.decode().split("\0") if name]
    found = (path for name in arguments or ["crates", "python", "tests"] for path in (ROOT / name).rglob("*"))
    return [path.relative_to(ROOT) for path in found]  # an unpacked archive


def main() -> int:
    paths = tracked(sys.argv[1:])
    problems = [problem for path in paths for problem in problems_in(path)]
    print("\n".join(problems) if problems else f"names: {len(paths)} files use the field's terms")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
