"""Writes the corpora as seeds of a fuzz target: `fuzz_seeds.py TARGET FOLDER`."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

CORPUS = Path(__file__).parent.parent / "conformance" / "corpus"
LONGEST_BYTES = 4096
# Blocks of RFC 7541 appendix C: one connection a line.
HPACK = """
828684418cf1e3c2e5f23a6ba0ab90f4ff 828684be5886a8eb10649cbf 828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf
828684410f7777772e6578616d706c652e636f6d 828684be58086e6f2d6361636865 3fe101 040c2f73616d706c652f70617468
4882640258 5885aec3771a4b 6196d07abe941054d444a8200595040b8166e082a62d1bff c0 100870617373776f726406736563726574
"""
# Kind, flags, stream and length, then the payload, of each frame: into a server, into a client.
H2_FRAMES = (
    "04010000 01050106 828684410161 01040306 828684410161 00010305 68656c6c6f 08000004 00000100 03000104 00000008",
    "04010000 01040101 88 00010105 68656c6c6f 01050301 88 01040501 88 07000008 0000000300000000",
)


def compressor(window_bits: int) -> zlib._Compress:
    return zlib.compressobj(wbits=window_bits)


def wires(target: str) -> list[bytes]:
    """The wire text for a target."""
    if target == "h1_response":
        cases = json.loads((CORPUS / "llhttp.json").read_text())["cases"]
        return [case["raw"].encode("latin-1") for case in cases if case["mode"].startswith("response")]
    if target == "event_stream":
        return [b"\xef\xbb\xbf: hi\r\nevent: a\ndata: 1\rdata\n\nid: 1\nretry: 10\ndata:x\n\n"]
    if target == "hpack":
        lines = [[bytes.fromhex(block) for block in line.split()] for line in HPACK.strip().splitlines()]
        return [b"".join(bytes([len(block)]) + block for block in blocks) for blocks in lines]
    if target == "h2_frames":
        return [bytes.fromhex(script) for script in H2_FRAMES]
    if target == "decode":
        return [b"".join([z.compress(b"body" * 100), z.flush()]) for z in map(compressor, (31, 15, -15))]
    hostile = json.loads((CORPUS / "h1_hostile.json").read_text())["cases"]
    requests = [case["raw"].encode("latin-1") for case in hostile if "raw" in case]
    if target == "chunked":
        return [wire.split(b"\r\n\r\n", 1)[1] for wire in requests if b"chunked\r\n\r\n" in wire]
    return requests if target == "h1_request" else []


def main() -> None:
    """Writes the seeds. The first byte of each chooses the cuts."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    for number, wire in enumerate(wires(target)):
        if len(wire) < LONGEST_BYTES:
            (folder / f"seed-{number:04}").write_bytes(bytes([number % 256]) + wire)


if __name__ == "__main__":
    main()
