"""Certificates and challenges that a worker serves from the store of `--acme`, and the options of `--acme`."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from towline import Client, Server
from towline.config import ServerConfig
from towline.errors import ConfigError, StartupError
from towline.server import acme_store
from towline.server.acme_store import prepare

from tests.support.feature_server import every_kind, serving
from tests.support.waiting import until

NAME = "example.test"
DIRECTORY = "https://ca.test/dir"


class Store:
    """A store with the folder of a CA, as the process that orders would leave it."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.roots = str(folder / "roots.pem")
        self.ca.cert_pem.write_to_path(self.roots)
        self.folder = folder / "store" / "ca.test-dir"
        for kind in ("http-01", "tls-alpn-01"):
            (self.folder / kind).mkdir(parents=True)
        self.options: dict[str, Any] = {
            "acme": NAME,
            "acme_directory": DIRECTORY,
            "acme_store": str(folder / "store"),
        }

    def issue(self, path: str = f"{NAME}.pem", name: str = NAME) -> None:
        """Put a new certificate in its place, as a renewal does."""
        new = self.folder / "new"
        new.write_bytes(self.ca.issue_cert(name).private_key_and_cert_chain_pem.bytes())
        os.replace(new, self.folder / path)

    def leaf(self, port: int, *alpn: str, name: str | None = NAME) -> bytes | None:
        """The certificate that a client gets; None if the handshake fails."""
        context = ssl.create_default_context(cafile=self.roots)
        context.set_alpn_protocols(list(alpn))
        context.check_hostname = name is not None
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 10) as plain,
                context.wrap_socket(plain, server_hostname=name) as conn,
            ):
                assert conn.selected_alpn_protocol() == (alpn[0] if alpn else None)
                return conn.getpeercert(binary_form=True)
        except (ssl.SSLError, ConnectionError):
            return None

    def file(self, path: str = f"{NAME}.pem") -> bytes:
        """The leaf of a file."""
        leaf = x509.load_pem_x509_certificate((self.folder / path).read_bytes())
        return leaf.public_bytes(Encoding.DER)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@every_kind
def test_certificates_come_and_change_without_a_restart(kind: str, store: Store) -> None:
    with serving(kind, **store.options, http3=True) as server:
        assert store.leaf(server.port) is None
        store.issue()
        first = store.leaf(server.port)
        assert first == store.file()
        assert store.leaf(server.port, "h2") == first
        # Clients without a server name, or with one that no certificate has, get the first.
        assert store.leaf(server.port, name=None) == first
        store.issue()
        until(lambda: store.leaf(server.port, "h2") == store.file())
        # A file that cannot be used takes nothing away.
        (store.folder / f"{NAME}.pem").write_text("damaged")
        assert store.leaf(server.port) is not None
        assert server.url.startswith("https://")


@every_kind
def test_responses_to_http_challenges(kind: str, store: Store) -> None:
    store.issue(name="127.0.0.1")
    token = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
    (store.folder / "http-01" / token).write_text(f"{token}.thumbprint")
    (store.folder / "http-01" / "se.cret").write_text("no token")
    (store.folder / "secret").write_text("secret")
    (store.folder / "http-01" / "link").symlink_to(store.folder)
    with serving(kind, **store.options, http3=True) as server:
        prefix = f"{server.url}/.well-known/acme-challenge/"
        for versions in ({"http2": False}, {"http2": True}, {"http1": False, "http3": True}):
            with Client(verify=store.roots, **versions) as client:
                response = client.get(prefix + token)
                assert (response.status_code, response.text) == (200, f"{token}.thumbprint"), versions
                assert client.head(prefix + token + "?a=b").headers["content-length"] == str(
                    len(response.text)
                )
                assert client.post(prefix + token).status_code == 405
                for other in (
                    "",
                    "unknown",
                    "../secret",
                    "..%2fsecret",
                    "%2e%2e/secret",
                    "se.cret",
                    "link",
                    "link/secret",
                ):
                    # The application responds to what is no challenge.
                    assert "x-app" in client.get(prefix + other).headers, other
                assert "x-app" in client.get(prefix + "a" * 200).headers


def test_responses_to_tls_challenges(store: Store) -> None:
    store.issue()
    with serving("asgi", **store.options) as server:
        assert store.leaf(server.port, "acme-tls/1") is None
        store.issue(f"tls-alpn-01/{NAME}.pem")
        challenge = store.leaf(server.port, "acme-tls/1")
        assert challenge == store.file(f"tls-alpn-01/{NAME}.pem")
        assert store.leaf(server.port, "http/1.1") == store.file() != challenge
        # Names that are not served have no file, whatever they are.
        assert store.leaf(server.port, "acme-tls/1", name="other.test") is None
    with serving("asgi", ssl_certfile=str(store.folder / f"{NAME}.pem")) as server:
        assert store.leaf(server.port, "acme-tls/1") is None


def test_http3_serves_the_new_certificate(store: Store) -> None:
    from tests.support.http3.client import Client as Http3Client

    store.issue()
    with serving("asgi", **store.options, http3=True) as server:

        def serial() -> int:
            with Http3Client(("127.0.0.1", server.port), ca=store.roots, server_name=NAME) as client:
                assert client.fetch("GET", "/a").body == b"/a"
                return int(client.quic.tls._peer_certificate.serial_number)

        first = serial()
        store.issue()
        until(lambda: serial() != first)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"acme": "*.example.org"}, "a wildcard needs the challenge dns-01"),
        ({"acme": "192.0.2.1"}, "IP addresses and ports are not supported"),
        ({"acme": "example.org:443"}, "IP addresses and ports are not supported"),
        ({"acme": "exa mple.org"}, "is no host name"),
        ({"acme": "../example.org"}, "is no host name"),
        ({"acme": "a" * 64 + ".org"}, "is no host name"),
        (
            {"acme": NAME, "acme_directory": "http://ca.test/dir"},
            "acme_directory: expected an https URL, or staging",
        ),
        ({"acme": NAME, "http1": False, "http2": False, "http3": True}, "acme: needs http1 or http2"),
    ],
)
def test_wrong_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig("app:app", **options)
    assert expected in str(caught.value)


def test_names_and_directories() -> None:
    config = ServerConfig(
        "app:app", acme=["B\u00fccher.Example", "a.test", "A.test."], acme_directory="staging"
    )
    assert config.acme_names == ["xn--bcher-kva.example", "a.test"]
    folder = config.acme_folder
    assert folder is not None
    assert folder.endswith("/acme-staging-v02.api.letsencrypt.org-directory")


def test_the_place_of_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    config = ServerConfig("app:app", acme=NAME, acme_directory=DIRECTORY)
    assert config.acme_folder == "/home/me/.local/share/towline/acme/ca.test-dir"
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/app:/var/lib/other")
    assert config.acme_folder == "/var/lib/app/acme/ca.test-dir"
    assert ServerConfig("app:app").acme_folder is None


def test_a_store_that_others_can_enter(tmp_path: Path) -> None:
    config = ServerConfig("app:app", acme=NAME, acme_store=str(tmp_path / "open"))
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(StartupError, match=r"others can enter .*open \(mode 755\).*chmod 700"):
        prepare(config)
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"--acme-store: .*file"):
        prepare(config.replace(acme_store=str(tmp_path / "file" / "store")))
    with pytest.raises(StartupError, match=r"--acme-ca: cannot read /missing\.pem"):
        prepare(config.replace(acme_ca="/missing.pem"))


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"pip install 'towline\[acme\]'"):
        prepare(ServerConfig("app:app", acme=NAME, acme_store=str(tmp_path / "store")))
    assert not (tmp_path / "store").exists()


def test_one_worker_without_a_supervisor_refuses() -> None:
    with pytest.raises(ConfigError, match=r"needs the supervisor of towline\.serve"):
        Server(ServerConfig("app:app", acme=NAME))


def test_a_token_that_is_a_path_is_no_file_name(tmp_path: Path) -> None:
    orders = pytest.importorskip("towline.server.acme_orders")
    (tmp_path / "ca" / "http-01").mkdir(parents=True)
    challenge = {"type": "http-01", "status": "pending", "token": "../../outside", "url": "https://ca.test/1"}

    class Authority:
        def fetch(self, url: str, body: Any = None) -> Any:
            return SimpleNamespace(json=lambda: {"status": "pending", "challenges": [challenge]})

        def key_authorization(self, token: str) -> str:
            return f"{token}.thumbprint"

    order = orders.Order(Authority(), acme_store.Store(str(tmp_path / "ca")), NAME, ["http-01"])
    with pytest.raises(orders.OrderError, match="base64url"):
        order._prove("https://ca.test/authorization")
    assert not (tmp_path / "outside").exists()
    challenge["token"] = "DGyRejmCefe7v4NfDGDKfA_-"
    order._prove("https://ca.test/authorization")
    assert (
        tmp_path / "ca" / "http-01" / challenge["token"]
    ).read_text() == f"{challenge['token']}.thumbprint"
