"""Writes the static files of HttpArena's profiles, with a .gz beside each text, into FOLDER/static, then becomes COMMAND:

    python benches/httparena_files.py FOLDER COMMAND...

For servers that have files of their own: benches/httparena.toml.
"""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

from towline.bench.apps.httparena_data import CODED_BEFORE, SIZES, static


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in SIZES:
        content = static(name)
        (folder / name).write_bytes(content)
        if not name.endswith(CODED_BEFORE):
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))


if __name__ == "__main__":
    target, program, *arguments = sys.argv[1:]
    write(Path(target) / "static")
    os.execvp(program, [program, *arguments])
