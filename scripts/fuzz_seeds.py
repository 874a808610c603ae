"""Writes the corpora as seeds of a fuzz target: ``fuzz_seeds.py TARGET FOLDER``."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

CORPUS = Path(__file__).parent.parent / "conformance" / "corpus"
LONGEST_BYTES = 4096


def compressor(window_bits: int) -> zlib._Compress:
    return zlib.compressobj(wbits=window_bits)


def wires(target: str) -> list[bytes]:
    """The wire text that suits a target."""
    if target == "h1_response":
        cases = json.loads((CORPUS / "llhttp.json").read_text())["cases"]
        return [case["raw"].encode("latin-1") for case in cases if case["mode"].startswith("response")]
    if target == "event_stream":
        return [b"\xef\xbb\xbf: hi\r\nevent: a\ndata: 1\rdata\n\nid: 1\nretry: 10\ndata:x\n\n"]
    if target == "decode":
        return [b"".join([z.compress(b"body" * 100), z.flush()]) for z in map(compressor, (31, 15, -15))]
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
