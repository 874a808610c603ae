"""Runs the Rust tests: `python scripts/run_rust_tests.py CARGO-TEST-ARGUMENTS...`.

cargo runs one test program after the other, although most tests wait. This script has cargo build the programs, and runs three of
them at a time, the documentation tests beside them. It shows the output of the programs that fail, and the totals.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 3
RESULT = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


def programs(arguments: list[str]) -> list[tuple[Path, Path]]:
    """Folder of the crate and path of each test program that cargo has built."""
    command = ["cargo", "test", *arguments, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    messages = map(json.loads, built.stdout.splitlines())
    return [
        (Path(message["manifest_path"]).parent, Path(message["executable"]))
        for message in messages
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]
    ]


def run(command: list[str], folder: Path) -> tuple[str, subprocess.CompletedProcess[str]]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "CARGO_MANIFEST_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return " ".join(command), done


def main(arguments: list[str]) -> int:
    commands = [([str(program), "--quiet"], folder) for folder, program in programs(arguments)]
    commands.append((["cargo", "test", *arguments, "--doc"], Path.cwd()))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda one: run(*one), commands))
    totals = [0, 0, 0]
    for command, done in outcomes:
        if done.returncode:
            print(f"{command}: exit status {done.returncode}\n{done.stdout}")
        for counts in RESULT.findall(done.stdout):
            totals = [total + int(count) for total, count in zip(totals, counts, strict=True)]
    print("rust tests: {} passed, {} failed, {} ignored".format(*totals))
    return int(any(done.returncode for _, done in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
