"""A server of Connect's runner: reads what it must support from stdin, starts `towline serve`, and writes its address to stdout."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from connectrpc.conformance.v1 import config_pb2, server_compat_pb2

READY = re.compile(r" on \S*?:(\d+)\b")


def read() -> Any:
    (length,) = struct.unpack(">I", sys.stdin.buffer.read(4))
    return server_compat_pb2.ServerCompatRequest.FromString(sys.stdin.buffer.read(length))


def write(response: Any) -> None:
    data = response.SerializeToString()
    sys.stdout.buffer.write(struct.pack(">I", len(data)) + data)
    sys.stdout.buffer.flush()


def options(request: Any, folder: Path) -> list[str]:
    found = ["--host", "127.0.0.1", "--port", "0"]
    if request.use_tls:
        for name, content in (("cert", request.server_creds.cert), ("key", request.server_creds.key)):
            (folder / name).write_bytes(content)
            found += [f"--ssl-{name}file", str(folder / name)]
    if request.client_tls_cert:
        (folder / "authority").write_bytes(request.client_tls_cert)
        found += ["--ssl-ca-certs", str(folder / "authority"), "--ssl-cert-reqs", "required"]
    if request.http_version == config_pb2.HTTP_VERSION_3:
        found += ["--http3", "--no-http1", "--no-http2"]
    return found


def main() -> int:
    request = read()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "towline",
            "serve",
            "app:app",
            "--app-dir",
            str(Path(__file__).parent),
        ]
        limit = {"READ_MAX_BYTES": str(request.message_receive_limit)}
        program = subprocess.Popen(
            [*command, *sys.argv[1:], *options(request, Path(folder))],
            env=os.environ | limit,
            stderr=subprocess.PIPE,
            text=True,
        )
        signal.signal(signal.SIGTERM, lambda *_: program.terminate())
        assert program.stderr is not None
        for line in program.stderr:
            sys.stderr.write(line)
            if found := READY.search(line):
                port = int(found[1])
                response = server_compat_pb2.ServerCompatResponse(host="127.0.0.1", port=port)
                if request.use_tls:
                    response.pem_cert = request.server_creds.cert
                write(response)
                break
        for line in program.stderr:
            sys.stderr.write(line)
        return program.wait()


if __name__ == "__main__":
    sys.exit(main())
