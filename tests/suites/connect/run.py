"""Connect's conformance suite against `towline serve`: `python tests/suites/connect/run.py [h1 h2 h3]`.

Builds the runner from the Go module proxy, and installs the package `connectrpc`, on which the service of app.py is, both into
build/suites. Exit status 1: a case has failed that is not in `KNOWN`, or one of them has passed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "v1.0.7"
MODULE = "connectrpc.com/conformance"
PACKAGES = ("connectrpc==0.9.0", "protobuf==7.36.2", "grpcio-tools==1.85.1", "brotli", "zstandard")
HERE = Path(__file__).parent
BUILD = HERE.parents[2] / "build" / "suites" / f"connect-{VERSION}"
REPEATS = {"h1": 7, "h2": 1, "h3": 1}
"""Runs of each protocol. Over HTTP/1.1 the cases depend on timing: an early response, a connection that is closed."""
KNOWN = {"**/client-stream/incomplete-message", "**/client-stream/incomplete-message-prefix"}
"""Patterns of cases that fail: `connectrpc` ignores an incomplete last message, in a request that HTTP has delivered whole."""


def build() -> tuple[Path, Path]:
    """The runner, and a folder of Python packages; made if they are not there."""
    runner, packages = BUILD / "connectconformance", BUILD / "packages"
    if not runner.exists():
        if shutil.which("go") is None:
            sys.exit("connect: its runner is built from source: install Go first")
        command = ["go", "install", f"{MODULE}/cmd/connectconformance@{VERSION}"]
        subprocess.run(command, check=True, cwd=tempfile.gettempdir(), env=os.environ | {"GOBIN": str(BUILD)})
    if not (packages / "connectrpc" / "conformance").exists():
        shutil.rmtree(packages, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *PACKAGES]
        subprocess.run(command, check=True)
        compile_protocol(packages)
    return runner, packages


def compile_protocol(packages: Path) -> None:
    """Write the modules of the conformance service's messages."""
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    found = subprocess.run(command, check=True, capture_output=True, cwd=tempfile.gettempdir())
    source = Path(json.loads(found.stdout)["Dir"]) / "proto"
    files = sorted((source / "connectrpc" / "conformance" / "v1").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"--python_out={packages}"]
    subprocess.run([*command, *map(str, files)], check=True, env=environment(packages))


def environment(packages: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(packages)}


def features(protocol: str) -> dict[str, object]:
    """The features of the server: the configuration of the runner. JSON is YAML."""
    is_h2 = protocol == "h2"
    return {
        "versions": [f"HTTP_VERSION_{protocol[1]}"],
        "protocols": ["PROTOCOL_CONNECT", *(["PROTOCOL_GRPC"] if is_h2 else [])],
        "codecs": ["CODEC_PROTO", "CODEC_JSON"],
        "compressions": [f"COMPRESSION_{name}" for name in ("IDENTITY", "GZIP", "BR", "ZSTD")],
        "stream_types": [
            f"STREAM_TYPE_{name}"
            for name in (
                *("UNARY", "CLIENT_STREAM", "SERVER_STREAM"),
                *("HALF_DUPLEX_BIDI_STREAM", *([] if protocol == "h1" else ["FULL_DUPLEX_BIDI_STREAM"])),
            )
        ],
        "supports_h2c": is_h2,
        "supports_tls": True,
        "supports_tls_client_certs": True,
        "supports_trailers": is_h2,
        "supports_half_duplex_bidi_over_http1": True,
        "supports_connect_get": True,
        "supports_message_receive_limit": True,
    }


def run(protocol: str, serve_options: list[str]) -> bool:
    runner, packages = build()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as configuration:
        json.dump({"features": features(protocol)}, configuration)
        configuration.flush()
        known = [word for case in sorted(KNOWN) for word in ("--known-failing", case)]
        command = [str(runner), "--conf", configuration.name, "--mode", "server", *known]
        server = [sys.executable, str(HERE / "server.py"), *serve_options]
        result = subprocess.run(
            [*command, "--parallel", "4", "--", *server], check=False, env=environment(packages)
        )
    return result.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("protocols", nargs="*", help="h1, h2, h3 (all)")
    parser.add_argument("--once", action="store_true", help="HTTP/1.1 once, instead of seven times")
    given, serve_options = parser.parse_known_args()
    is_good = True
    for protocol in given.protocols or REPEATS:
        for number in range(1 if given.once else REPEATS[protocol]):
            print(f"{protocol}, run {number + 1}", flush=True)
            is_good = run(protocol, serve_options) and is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
