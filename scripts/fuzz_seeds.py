"""Writes the corpora as seeds of a fuzz target: ``fuzz_seeds.py TARGET FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

CORPUS = Path(__file__).parent.parent / "conformance" / "corpus"
LONGEST_BYTES = 4096


def wires(target: str) -> list[bytes]:
    """The wire text that suits a target."""
    if target == "h1_response":
        cases = json.loads((CORPUS / "llhttp.json").read_text())["cases"]
        return [case["raw"].encode("latin-1") for case in cases if case["mode"].startswith("response")]
    hostile = json.loads((CORPUS / "h1_hostile.json").read_text())["cases"]
    requests = [case["raw"].encode("latin-1") for case in hostile if "raw" in case]
    if target == "chunked":
        return [wire.split(b"\r\n\r\n", 1)[1] for wire in requests if b"chunked\r\n\r\n" in wire]
    return requests if target == "h1_request" else []


def main() -> None:
    """Each seed begins with the byte that chooses the cuts."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    for number, wire in enumerate(wires(target)):
        if len(wire) < LONGEST_BYTES:
            (folder / f"seed-{number:04}").write_bytes(bytes([number % 256]) + wire)


if __name__ == "__main__":
    main()
