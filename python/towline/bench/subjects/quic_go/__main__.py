"""Compiles `main.go` with the Go of the machine and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = Path(__file__).parent
USUAL_FOLDER = "/usr/local/go/bin"


def main(arguments: list[str]) -> None:
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}{os.pathsep}{USUAL_FOLDER}")
    if go is None:
        sys.exit("quic-go: no Go on PATH; install it (https://go.dev/dl), or leave quic-go out")
    with tempfile.TemporaryDirectory(prefix="towline-quic-go-") as folder:
        program = os.path.join(folder, "quic-go")
        # Modules are verified by go.sum; Go has them in its cache after the first time.
        built = subprocess.run(
            [go, "build", "-o", program, "."], cwd=MODULE, capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            sys.exit(f"quic-go: Go does not compile it: {built.stderr.strip()[-500:]}")
        descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    # The file is gone; its descriptor is enough to run it.
    os.execve(descriptor, ["quic-go", *arguments], dict(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
