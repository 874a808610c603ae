"""Pebble, the ACME server for tests by Let's Encrypt, with a DNS server for which every name is this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme

from tests.support.process import MAX_WAIT, eventually
from tests.support.programs import _accepts, free_port
from tests.support.server_processes import go_program

MODULE = "github.com/letsencrypt/pebble/v2/cmd"
ADDRESS = "127.0.0.1"


@dataclasses.dataclass
class Pebble:
    """A CA. `tls_port` and `http_port`: those at which it looks for the responses to its challenges.

    `environment`: its faults, such as `PEBBLE_WFE_NONCEREJECT`. `validity`: seconds for which certificates are valid.
    """

    folder: Path
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    validity: int = 90 * 86400
    blocked: tuple[str, ...] = ()
    tls_port: int = dataclasses.field(default_factory=free_port)
    http_port: int = dataclasses.field(default_factory=free_port)
    port: int = dataclasses.field(default_factory=free_port)
    admin_port: int = dataclasses.field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        authority = trustme.CA()
        leaf = authority.issue_cert(ADDRESS)
        authority.cert_pem.write_to_path(self.ca)
        leaf.private_key_pem.write_to_path(self.folder / "key.pem")
        leaf.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        self._process: subprocess.Popen[bytes] | None = None
        self.dns_port = 0

    @property
    def ca(self) -> str:
        """The authority of the directory's own certificate."""
        return str(self.folder / "directory.pem")

    def options(self, *names: str, bind: tuple[str, ...] = ()) -> list[str]:
        """The options of a server that gets certificates from here; by default it has the TLS port of the challenges."""
        named = [part for name in names for part in ("--acme", name)]
        return [
            *(part for address in bind or (f"{ADDRESS}:{self.tls_port}",) for part in ("--bind", address)),
            *named,
            *("--acme-directory", f"https://{ADDRESS}:{self.port}/dir"),
            *("--acme-store", str(self.folder.parent / "store")),
            *("--acme-ca", self.ca),
        ]

    @property
    def store(self) -> Path:
        """The folder of this CA in the store."""
        return self.folder.parent / "store" / f"{ADDRESS}-{self.port}-dir"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self, dns_port: int) -> None:
        self.dns_port = dns_port
        config = {
            "listenAddress": f"{ADDRESS}:{self.port}",
            "managementListenAddress": f"{ADDRESS}:{self.admin_port}",
            "certificate": str(self.folder / "cert.pem"),
            "privateKey": str(self.folder / "key.pem"),
            "httpPort": self.http_port,
            "tlsPort": self.tls_port,
            "retryAfter": {"authz": 1, "order": 1},
            "domainBlocklist": list(self.blocked),
            "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "default", "validityPeriod": self.validity}},
        }
        (self.folder / "config.json").write_text(json.dumps({"pebble": config}))
        program = go_program("pebble", "1.25", f"{MODULE}/pebble")
        command = [program, "-config", "config.json", "-dnsserver", f"{ADDRESS}:{dns_port}"]
        faults = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", **self.environment}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **faults}
            )
        process = self._process
        eventually(
            lambda: process.poll() is not None or (_accepts(self.port) and _accepts(self.admin_port)),
            "Pebble",
        )
        assert process.poll() is None, self.log  # a port may have been taken meanwhile

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(MAX_WAIT)
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def orders(self) -> int:
        """The number of orders that it has been asked for."""
        return self.log.count("Added order ")

    def ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """A request to its management."""
        context = ssl.create_default_context(cafile=self.ca)
        conn = http.client.HTTPSConnection(ADDRESS, self.admin_port, context=context, timeout=MAX_WAIT)
        method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
        conn.request(method, path, body=sent, headers={"user-agent": "tests"})
        with conn.getresponse() as response:
            assert response.status == 200, response.read()
            return response.read()

    def trust(self) -> ssl.SSLContext:
        """The trust of a client in the certificates of this CA."""
        return ssl.create_default_context(cadata=self.ask("/roots/0").decode())


@contextlib.contextmanager
def name_server() -> Iterator[int]:
    """The port of a DNS server that gives 127.0.0.1 for every name."""
    port, admin = free_port(), free_port()
    program = go_program("pebble", "1.25", f"{MODULE}/pebble-challtestsrv")
    off = [part for service in ("http01", "https01", "doh", "tlsalpn01") for part in (f"-{service}", "")]
    addresses = ["-dnsserver", f"{ADDRESS}:{port}", "-management", f"{ADDRESS}:{admin}", "-defaultIPv6", ""]
    process = subprocess.Popen(
        [program, *off, *addresses], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: _accepts(port), "the name server")
        yield port
    finally:
        process.terminate()
        process.wait(MAX_WAIT)


@contextlib.contextmanager
def pebble(folder: Path, **settings: Any) -> Iterator[Pebble]:
    """A CA that runs."""
    ca = Pebble(folder / "pebble", **settings)
    with name_server() as dns_port:
        ca.start(dns_port)
        try:
            yield ca
        finally:
            ca.stop()
