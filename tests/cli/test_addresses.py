"""Addresses with settings of their own: as a URL, as a table of the file, as a value in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from towline.cli.serve import configure
from towline.config import Address, ServerConfig
from towline.errors import ConfigError

APP = "main:app"


def addresses(*arguments: str, environment: dict[str, str] | None = None) -> tuple[Address, ...]:
    return configure([*arguments, APP], environment or {}).addresses


def resolved(bind: Any, **options: Any) -> Address:
    (address,) = ServerConfig(APP, bind=bind, **options).addresses
    return address


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("form", ["host:1", "[::1]:0", ":8000", "unix:/run/app.sock", "unix:@name", "fd://3"])
def test_old_forms_keep_their_meaning(form: str) -> None:
    plain = resolved([form])
    assert (plain.address, plain.tls, plain.http, plain.proxy_protocol) == (form, False, (1, 2), False)
    options = {"ssl_certfile": "c", "ssl_keyfile": "k", "proxy_protocol": True, "http2": False}
    with_tls = resolved([form], **options)
    assert (with_tls.tls, with_tls.certfile, with_tls.keyfile) == (True, ("c",), ("k",))
    assert (with_tls.http, with_tls.proxy_protocol) == ((1,), True)


def test_a_url_has_a_scheme_and_settings() -> None:
    plain, unix = addresses("--bind=http://:8080,unix:/run/app.sock?forwarded_allow_ips=*,10.0.0.1")
    assert (plain.address, plain.tls) == (":8080", False)
    assert (unix.address, unix.forwarded_allow_ips) == ("unix:/run/app.sock", ("*", "10.0.0.1"))
    files = "certfile=a%20b.pem,c%2Cd.pem&keyfile=k,l"
    (tls,) = addresses("--bind", f"https://[::1]:8443?{files}&http=1,2,3&proxy_protocol")
    assert (tls.address, tls.certfile, tls.keyfile) == ("[::1]:8443", ("a b.pem", "c,d.pem"), ("k", "l"))
    assert (tls.http, tls.proxy_protocol) == ((1, 2, 3), True)
    (quic,) = addresses("-b", "https://h?ssl-certfile=c&http=3&proxy-protocol=off", "--proxy-protocol")
    assert (quic.address, quic.http, quic.proxy_protocol) == ("h:443", (3,), False)


def test_what_an_address_says_wins_over_the_options() -> None:
    options: dict[str, Any] = {"ssl_certfile": "own", "ssl_keyfile": "key", "http3": True}
    mixed = ServerConfig(APP, bind=["http://:1", ":2?certfile=other", "https://:3?http=1", ":4"], **options)
    plain, other, old, usual = mixed.addresses
    assert (plain.tls, plain.certfile, plain.keyfile, plain.http) == (False, (), (), (1, 2))
    assert (other.certfile, other.keyfile, other.http) == (("other",), (), (1, 2, 3))
    assert (old.certfile, old.http, old.announces_http3) == (("own",), (1,), False)
    assert (usual.keyfile, usual.announces_http3) == (("key",), True)


def test_every_source_gives_the_same_address(tmp_path: Path) -> None:
    text = "https://:8443?certfile=cert.pem&http=1,3&forwarded_allow_ips=10.0.0.0/8,unix"
    table = """
[[bind]]
address = "https://:8443"
certfile = "cert.pem"
http = [1, 3]
forwarded-allow-ips = ["10.0.0.0/8", "unix"]
"""
    (tmp_path / "towline.toml").write_text(table)
    value = Address(
        "https://:8443", certfile=("cert.pem",), http=(1, 3), forwarded_allow_ips=("10.0.0.0/8", "unix")
    )
    from_file = addresses("--config", "towline.toml")
    assert from_file == addresses("-b", text) == addresses(environment={"TOWLINE_BIND": text})
    assert ServerConfig(APP, bind=[value]).addresses == from_file  # type: ignore[arg-type]
    (tmp_path / "towline.toml").write_text(table.replace("[[bind]]", "[bind]"))
    assert addresses("--config", "towline.toml") == from_file


@pytest.mark.parametrize(
    "text",
    [
        ":1",
        "http://a:1",
        "https://[::1]:443?http=1,3",
        "unix:/a?tls=on",
        "fd://3?tls=off",
        "a:1?certfile=b%2Cc,d%20e",
    ],
)
def test_the_text_of_an_address_names_it_again(text: str) -> None:
    assert Address(str(Address(text))) == Address(text)
    assert Address.of({"address": text}) == Address(text)


CERT = "certfile=c&keyfile=k"


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("https://:1", "https needs a certificate: certfile=PATH in its settings, ssl_certfile or acme"),
        ("unix:/a?tls=on", "https needs a certificate"),
        (f"http://:1?{CERT}", "certfile and keyfile contradict an address without TLS"),
        (f"unix:/a?tls=off&{CERT}", "certfile and keyfile contradict an address without TLS"),
        ("http://:1?tls=on", "tls contradicts http://"),
        ("https://:1?keyfile=k", "keyfile needs one certfile for each key, in the same order"),
        ("https://:1?certfile=c&keyfile=k,l", "keyfile needs one certfile for each key"),
        ("http://:1?http=3", "HTTP/3 needs https, because QUIC is always encrypted (RFC 9001)"),
        (":1?http=1,3", "HTTP/3 needs https, because QUIC is always encrypted (RFC 9001)"),
        (f"unix:/a?http=3&{CERT}", "HTTP/3 needs an address with a port, because it runs over UDP"),
        (f"https://:1?http=3&proxy_protocol&{CERT}", "proxy_protocol is for TCP, and HTTP/3 alone has none"),
        ("http://:1?http=4", "http: expected some of 1, 2 and 3, not 4"),
        ("http://:1?http=1,1", "http: expected some of 1, 2 and 3, not 1,1"),
        ("http://:1?http=", "http: expected a whole number, not ''"),
        ("http://:1?http=1&http=2", "a setting is given twice; commas separate several values"),
        ("http://:1?certfil=c", "unknown setting 'certfil'; did you mean 'certfile'?"),
        ("http://:1?workers=2", "unknown setting 'workers'; there are tls, certfile"),
        ("http://:1?proxy_protocol=maybe", "proxy_protocol: expected true or false, not 'maybe'"),
        ("http://:1?forwarded_allow_ips=10.0.0.0/8,lan", "forwarded_allow_ips: 'lan' is not an address"),
        ("http://:99999", "port: must be between 0 and 65535, not 99999"),
        ("http://", "expected http://HOST:PORT"),
        ("http://user@host:1", "expected http://HOST:PORT"),
        ("http://host:1/path", "expected http://HOST:PORT"),
        ("ftp://host:1", "expected http://HOST:PORT"),
    ],
)
def test_an_error_names_the_address_and_the_rule(address: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(["--bind", address, APP], {})
    assert str(caught.value).startswith(f"bind {address.partition('?')[0]}")
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("bind", "rule"),
    [
        ({"address": "http://:1?http=1", "http": [2]}, "bind http://:1?http=1: http is given twice"),
        ({"address": ":1", "cert": "c"}, "bind :1: unknown setting 'cert'; did you mean 'certfile'?"),
        ({"address": ":1", "http": True}, "bind :1: http: expected a list of numbers, not True"),
        ({"address": ":1", "tls": 1}, "bind :1: tls: expected true or false, not 1"),
        ({"certfile": "c"}, "bind: expected text or a table with `address`, not None"),
        (5, "bind: expected text or a table with `address`, not 5"),
    ],
)
def test_a_wrong_table_is_refused(bind: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(APP, bind=[bind])
    assert rule in str(caught.value)


def test_all_wrong_addresses_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        configure(["--bind=http://:1?htp=1", "--bind=ftp://a", "--hsts=often", APP], {})
    first, second, third = str(caught.value).splitlines()
    assert first.startswith("bind http://:1?htp=1: unknown setting 'htp'")
    assert second.startswith("bind ftp://a: expected http://HOST:PORT")
    assert third.startswith("hsts: expected a number of seconds")


def test_the_metrics_address_is_plain() -> None:
    assert ServerConfig(APP, metrics_address="http://127.0.0.1:1").metrics_address == "http://127.0.0.1:1"
    for wrong in ("https://127.0.0.1:1", "127.0.0.1:1?http=1"):
        with pytest.raises(ConfigError, match="metrics_address: has no settings"):
            ServerConfig(APP, metrics_address=wrong)


BOTH = {"bind": ["http://:1", "https://:2?certfile=c"]}


def test_redirects_need_addresses_to_redirect_from_and_to() -> None:
    assert configure(["--redirect-https", "--bind=http://:1,:2?certfile=c", APP], {}).redirect_https == 0
    assert ServerConfig(APP, redirect_https=443).redirect_https == 443
    for options, rule in (
        ({"redirect_https": 0}, "redirect_https: needs an address of https://, or the port of one elsewhere"),
        (
            {"redirect_https": 0, "bind": ["http://:1", "https://:2?certfile=c&http=3"]},
            "needs an address of https://",
        ),
        (
            {"redirect_https": 0, "bind": ["https://:2?certfile=c"]},
            "redirect_https: needs an address of http://",
        ),
        ({"redirect_https": 443, "bind": ["unix:/a"]}, "redirect_https: needs an address of http://"),
        ({"redirect_https": 65536, **BOTH}, "redirect_https: must be a number of at most 65535"),
        ({"redirect_https": "https", **BOTH}, "redirect_https: expected a number, not 'https'"),
        ({"hsts": "60"}, "hsts: needs an address of https://"),
    ):
        with pytest.raises(ConfigError) as caught:
            ServerConfig(APP, **options)  # type: ignore[arg-type]
        assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("31536000", "max-age=31536000"),
        (31536000, "max-age=31536000"),
        ("max-age=31536000; includeSubDomains", "max-age=31536000; includeSubDomains"),
        ("365d;includesubdomains ; PRELOAD", "max-age=31536000; includeSubDomains; preload"),
        ("0", "max-age=0"),
        ("always", None),
        ("-1", None),
        ("nan", None),
        ("60, includeSubDomains", None),
        ("60; includeSubDomain", None),
        ("60;", None),
        ("", None),
        (True, None),
    ],
)
def test_hsts_is_written_as_in_nginx(value: Any, header: str | None) -> None:
    if header is None:
        with pytest.raises(ConfigError, match=r"^hsts: "):
            ServerConfig(APP, hsts=value, **BOTH)
    else:
        assert ServerConfig(APP, hsts=value, **BOTH).strict_transport_security == header
