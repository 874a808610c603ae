"""Packs wheels again without the path of the folder that they were built in: `python scripts/pack_wheel.py WHEEL...`.

maturin's bill of materials names each crate of the workspace by its path on the machine. Here the folder becomes
`/towline`, RECORD gets the new hash, and everything is compressed with zlib's highest level.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def pack(path: Path, root: Path = ROOT) -> None:
    with zipfile.ZipFile(path) as old:
        members = [(info, old.read(info)) for info in old.infolist()]
    replaced = {}
    for index, (info, content) in enumerate(members):
        if "/sboms/" in info.filename:
            content = content.replace(root.as_uri().encode(), b"file:///towline")
            members[index] = info, content
            replaced[info.filename] = record_line(info.filename, content)
    scratch = path.with_suffix(".packing")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for info, content in members:
            if info.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines()
                lines = [replaced.get(line.partition(",")[0], line) for line in lines]
                content = ("\n".join(lines) + "\n").encode()
            fresh = zipfile.ZipInfo(info.filename, info.date_time)
            fresh.external_attr, fresh.create_system = info.external_attr, info.create_system
            fresh.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(fresh, content)
    scratch.replace(path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        pack(Path(argument))
