"""Compiles `floor.c` with the C compiler of the machine and runs it: `python -m towline.bench.subjects.floor PORT`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("floor.c")
COMPILERS = ("cc", "gcc", "clang")


def main(arguments: list[str]) -> None:
    """Does not return: the process becomes the program."""
    compiler = next((path for path in map(shutil.which, COMPILERS) if path is not None), None)
    if compiler is None:
        sys.exit(
            f"floor: no C compiler ({', '.join(COMPILERS)}) on PATH; install one, or leave the floor out"
        )
    with tempfile.TemporaryDirectory(prefix="towline-floor-") as folder:
        program = os.path.join(folder, "floor")
        completed = subprocess.run(
            [compiler, "-O2", "-o", program, str(SOURCE)], capture_output=True, text=True
        )
        if completed.returncode != 0:
            sys.exit(f"floor: {compiler} does not compile floor.c: {completed.stderr.strip()[-500:]}")
        # A program that is open can be executed after its file is gone.
        descriptor = os.open(program, os.O_RDONLY)
    os.execve(descriptor, ["floor", *arguments], dict(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
