"""An OpenSSH server on loopback, with keys and configuration of its own, run by the user of the tests."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from towline.bench.subjects.ports import free_port

from .namespaces import machines

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
AGENT = f"{sys.executable} -m towline load --agent"


class SshServer:
    """Hosts `a` to `d` are this server; `jumped` is reached through `a`."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        self.folder, self.address, self.port = folder, address, port
        self.ssh = f"ssh -F {folder / 'config'}"

    def options(self) -> list[str]:
        """Options of `towline load` that lead to agents of this environment."""
        return ["--ssh", self.ssh, "--agent-command", AGENT]


def keys(folder: Path) -> None:
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")


def client_config(folder: Path, hosts: dict[str, str], port: int) -> None:
    """`hosts`: names and addresses."""
    public = (folder / "host_key.pub").read_text()
    known = {f"[{address}]:{port} {public}" for address in hosts.values()}
    (folder / "known_hosts").write_text("".join(sorted(known)))
    common = (
        f"  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder / 'user_key'}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder / 'known_hosts'}\n  StrictHostKeyChecking yes\n"
    )
    first = next(iter(hosts.values()))
    entries = [f"Host {name}\n  HostName {address}\n{common}" for name, address in hosts.items()]
    entries.append(f"Host jumped\n  HostName {first}\n  ProxyJump a\n{common}")
    (folder / "config").write_text("".join(entries))


@contextmanager
def on_loopback(folder: Path) -> Iterator[SshServer]:
    """Hosts `a` to `d`, which are one server."""
    keys(folder)
    port = free_port()
    client_config(folder, dict.fromkeys("abcd", "127.0.0.1"), port)
    with server(folder, "127.0.0.1", port):
        yield SshServer(folder, "127.0.0.1", port)


@contextmanager
def on_machines(
    folder: Path, count: int, rate: str = "1gbit"
) -> Iterator[tuple[SshServer, list[tuple[str, str, str]]]]:
    """Hosts `a` to at most `d`, each a network namespace (`machines`) with a server of its own, and the namespaces."""
    keys(folder)
    port = free_port()
    with machines(count, rate) as made, ExitStack() as stack:
        for name, inner, _ in made:
            stack.enter_context(server(folder, inner, port, ("ip", "netns", "exec", name)))
        hosts = {letter: inner for letter, (_, inner, _) in zip("abcd", made, strict=False)}
        client_config(folder, hosts, port)
        yield SshServer(folder, made[0][1], port), made


@contextmanager
def server(
    folder: Path, address: str, port: int, prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """`prefix`: a command that runs another one elsewhere, such as in a network namespace."""
    assert SSHD is not None
    if os.getuid() == 0:
        # Where sshd as root keeps its unprivileged part.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    config = folder / f"sshd-{address}.conf"
    config.write_text(
        f"Port {port}\nListenAddress {address}\nHostKey {folder / 'host_key'}\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\nPidFile none\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxStartups 100\n"
    )
    log = (folder / f"sshd-{address}.log").open("wb")
    process = subprocess.Popen(
        [*prefix, SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            assert process.poll() is None, Path(log.name).read_text()
            try:
                socket.create_connection((address, port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "sshd does not listen"
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()
        log.close()
