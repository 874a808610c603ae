"""h2spec against HTTP/2 servers: `python tests/suites/h2spec.py [URL...]` (http: prior knowledge, https: ALPN).

Without a URL: against Towline, over plain TCP and over TLS.
Builds h2spec from the Go module proxy into build/suites, runs it in strict mode, and compares the
failures with those allowed. Exit status 1: another failure, or nothing was run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit
from xml.sax.saxutils import escape

VERSION = "v2.2.1+incompatible"
MODULE = f"github.com/summerwind/h2spec/cmd/h2spec@{VERSION}"
BUILD = Path(__file__).parents[2] / "build" / "suites"

# Failures that are named.
MAX_SHOWN_FAILURES = 20

# "Sends invalid connection preface": where HTTP/1.1 shares the port, the bytes are a bad HTTP/1.1 request, and a
# 400 before the end of the connection is the right response to it. h2spec counts any bytes before the end as a failure.
BAD_PREFACE = "http2/3.5/2"
BAD_PREFACE_BYTES = b"INVALID CONNECTION PREFACE\r\n\r\n"


@dataclass(frozen=True)
class Outcome:
    """Result of one run of h2spec; `failed`: the case's number and description."""

    passed: int
    skipped: int
    failed: dict[str, str]


def program() -> Path:
    """h2spec of that version, built if it is not there."""
    folder = BUILD / f"h2spec-{VERSION}"
    if not (folder / "h2spec").exists():
        if shutil.which("go") is None:
            sys.exit("h2spec: it is built from its source: install Go first")
        environment = {**os.environ, "GOBIN": str(folder)}
        subprocess.run(["go", "install", MODULE], check=True, cwd=tempfile.gettempdir(), env=environment)
    return folder / "h2spec"


def run(url: SplitResult) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        address = [
            "--host",
            url.hostname or "127.0.0.1",
            "--port",
            str(port_of(url)),
            "--path",
            url.path or "/",
        ]
        tls = ["--tls", "--insecure"] if url.scheme == "https" else []
        command = [program(), "--strict", "--junit-report", report, *address, *tls]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if not report.exists():
            sys.exit(f"h2spec: no report about {url.geturl()}:\n{result.stdout}{result.stderr}")
        return read(report.read_text())


def read(report: str) -> Outcome:
    """Parses the report; its error texts are not escaped and may contain `<`."""
    report = re.sub(
        r"(<(error|failure)>)(.*?)(</\2>)",
        lambda found: found[1] + escape(found[3]) + found[4],
        report,
        flags=re.DOTALL,
    )
    passed = skipped = 0
    failed = {}
    for suite in ElementTree.fromstring(report):
        for number, case in enumerate(suite, 1):
            kinds = {child.tag for child in case}
            if kinds & {"error", "failure"}:
                failed[f"{case.get('package')}/{number}"] = str(case.get("classname"))
            elif "skipped" in kinds:
                skipped += 1
            else:
                passed += 1
    return Outcome(passed, skipped, failed)


def expected(url: SplitResult) -> set[str]:
    """The cases that may fail on this server, each only with its proof."""
    return {BAD_PREFACE} if url.scheme == "http" and refuses_as_http1(url) else set()


def refuses_as_http1(url: SplitResult) -> bool:
    """Whether the server answers the bad preface with a 400 of HTTP/1.1 and then ends the connection."""
    response = b""
    with socket.create_connection((url.hostname, port_of(url)), timeout=5) as sock:
        sock.sendall(BAD_PREFACE_BYTES)
        try:
            while piece := sock.recv(65536):
                response += piece
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
    return re.match(rb"HTTP/1\.[01] 400 ", response) is not None


def port_of(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def check(text: str) -> bool:
    """Runs all cases against one server and prints the results; returns whether no unexpected case failed."""
    url = urlsplit(text)
    outcome = run(url)
    allowed = expected(url)
    print(
        f"== h2spec, strict: {text}: {outcome.passed} passed, {len(outcome.failed)} failed, {outcome.skipped} skipped"
    )
    for case, description in list(outcome.failed.items())[:MAX_SHOWN_FAILURES]:
        verdict = "as expected: an HTTP/1.1 server's 400" if case in allowed else "FAILED"
        print(f"   {case} {description}: {verdict}")
    return outcome.passed > 100 and outcome.failed.keys() <= allowed


@contextlib.contextmanager
def ours() -> Iterator[list[str]]:
    """Towline's responder and a server of each interface, plain and with TLS."""
    import trustme
    from towline.bench.responder import Responder
    from towline.testing import serve

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        cert, key = str(Path(folder, "cert.pem")), str(Path(folder, "key.pem"))
        issued = trustme.CA().issue_cert("127.0.0.1", "localhost")
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        urls = []
        for options in ([], ["--cert", cert, "--key", key]):
            urls.append(f"{running.enter_context(Responder(*options)).base_url}/after")
        for interface, app in (("asgi", asgi), ("wsgi", wsgi)):
            for tls in ({}, {"ssl_certfile": cert, "ssl_keyfile": key}):
                urls.append(running.enter_context(serve(app, interface=interface, **tls)).url)
        yield urls


async def asgi(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Responds after the complete request: a violation in the body must fail first."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello, world"})


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    environ["wsgi.input"].read()
    start_response("200 OK", [("content-type", "text/plain")])
    return [b"hello, world"]


def main() -> int:
    with contextlib.nullcontext(sys.argv[1:]) if sys.argv[1:] else ours() as urls:
        outcomes = [check(url) for url in urls]  # all of them, also after one that failed
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
