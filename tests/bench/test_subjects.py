"""The definitions of server subjects: each renders; errors in a file have their place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from towline.bench.subjects import (
    NotSupported,
    Server,
    ServersFileError,
    Settings,
    load_servers,
    render,
    servers,
)
from towline.bench.subjects.model import GIVEN, KEYS

BUILT_IN = sorted(servers())


def rendered(server: Server, folder: Path, **settings: object) -> str:
    found = render(server, Settings(**settings), host="127.0.0.1", port=12345, folder=folder)  # type: ignore[arg-type]
    assert found.cwd.is_absolute()
    return "\n".join([*found.argv, *found.files.values(), *found.env.values()])


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_definition_renders(name: str, tmp_path: Path) -> None:
    server = servers()[name]
    for interface in server.interfaces or (None,):
        text = rendered(server, tmp_path, interface=interface)
        assert "12345" in text
        for placeholder in (
            "{port}",
            "{host}",
            "{app}",
            "{arguments}",
            "{interface}",
            "{folder}",
            "{bin}",
            "{python}",
        ):
            assert placeholder not in text
        if interface is not None:
            assert f"{interface}:app" in text


@pytest.mark.parametrize("name", BUILT_IN)
def test_tls_and_each_limit_reach_the_command_line_or_are_not_supported(name: str, tmp_path: Path) -> None:
    server = servers()[name]
    tls = (tmp_path / "cert.pem", tmp_path / "key.pem")
    scenario, supports = server.scenarios[0] if server.scenarios else "hello", server.protocols
    if server.tls:
        text = rendered(server, tmp_path, tls=tls)
        assert str(tls[0]) in text
        assert str(tls[1]) in text
    else:
        assert server.cannot(scenario, protocols=supports, tls=True)
        with pytest.raises(NotSupported, match="TLS"):
            rendered(server, tmp_path, tls=tls)
    for limit in ("requests_per_connection", "concurrency"):
        reason = server.cannot(scenario, protocols=supports, limits={limit: 777})
        assert (reason is None) == (limit in server.limits)
        if reason is None:
            assert "777" in rendered(server, tmp_path, limits={limit: 777})
        else:
            assert limit.replace("_", " ") in reason
            with pytest.raises(NotSupported, match="no option for"):
                rendered(server, tmp_path, limits={limit: 777})


def test_protocol_options_reach_the_command_line_or_a_file(tmp_path: Path) -> None:
    for name, words in {
        "gunicorn-gthread": "--http-protocols\nh2,h1\n--http2-cleartext\nprior-knowledge",
        "nginx": "listen 127.0.0.1:12345 http2 backlog",
    }.items():
        server = servers()[name]
        assert words in rendered(server, tmp_path, protocol="h2")
        assert words not in rendered(server, tmp_path, protocol="h1")
        assert words not in rendered(server, tmp_path)  # h1 is its first


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_command_of_a_record_names_no_place_of_this_machine(name: str, tmp_path: Path) -> None:
    tls = (tmp_path / "cert.pem", tmp_path / "key.pem") if servers()[name].tls else None
    settings = Settings(tls=tls)
    command = render(servers()[name], settings, host="127.0.0.1", port=12345, folder=tmp_path).shown
    assert "12345" not in " ".join(command)
    assert str(tmp_path) not in " ".join(command)
    assert "/" not in command[0]


def test_a_relative_folder_masks_no_dot_of_an_address(tmp_path: Path) -> None:
    server = servers()["towline"]
    command = render(server, Settings(app_folder=Path(".")), host="127.0.0.1", port=1, folder=Path(".")).shown
    assert "127.0.0.1:PORT" in command


def test_one_line_defines_a_subject(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[mine]\ncommand = \"./serve --port {port} 'two words'\"\n")
    server = load_servers(path)["mine"]
    assert server.command == ("./serve", "--port", "{port}", "two words")
    assert server.interfaces == ()
    assert "mine" in servers(path)
    assert "towline" in servers(path)
    found = render(server, Settings(), host="127.0.0.1", port=12345, folder=tmp_path)
    assert found.argv[1:] == ["--port", "12345", "two words"]
    assert found.cwd == tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine", "not TOML"),
        ("", "no subject"),
        ("mine = 1", "no table"),
        ("[mine]", "has no command"),
        ('[mine]\ncommand = ""\nport = 80', "command is empty"),
        ('[mine]\ncommand = "x \'"', "No closing quotation"),
        ("[mine]\ncommand = 7", "a string or a list of strings"),
        ('[mine]\ncommand = "serve"', "no listen address"),
        ('[mine]\ncommand = "serve {prot}"', "unknown placeholder {prot}"),
        ('[mine]\ncommand = "serve {app} {port}"', "give interfaces"),
        ('[mine]\ncomand = "serve {port}"', "did you mean 'command'"),
        ('[mine]\ncommand = "serve"\nport = 0', "from 1 to 65535"),
        ('[mine]\ncommand = "serve"\nport = true', "from 1 to 65535"),
        ('[mine]\ncommand = "serve {port}"\nready = "health"', "starts with /"),
        ('[mine]\ncommand = "serve {port}"\nready = { path = "/", statsu = 200 }', "unknown key 'statsu'"),
        ('[mine]\ncommand = "serve {port}"\nready = { status = 42 }', "from 200 to 599"),
        ('[mine]\ncommand = "serve {port}"\nstart_timeout_s = "long"', "a number of seconds"),
        ('[mine]\ncommand = "serve {port}"\ninterfaces = ["rsgi"]', "'rsgi' is none of"),
        ('[mine]\ncommand = "serve {port}"\nprotocols = ["h4"]', "protocol 'h4' is none of h1, h2, h3"),
        ('[mine]\ncommand = "serve {port}"\nprotocols = []', "protocols is empty"),
        ('[mine]\ncommand = "serve {port}"\nenv = { A = 1 }', "env.A must be a string"),
        ('[mine]\ncommand = "serve {port}"\nfiles = { "../x" = "" }', "a plain name"),
        ('[mine]\nlike = "granien"', "there is no built-in server 'granien'"),
        ('[mine]\ncommand = "serve {port}"\ntls = { args = [] }', "unknown key 'args'"),
    ],
)
def test_an_invalid_file_is_one_line_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ServersFileError) as caught:
        load_servers(path)
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_subject_like_a_built_in_one_has_its_keys_and_its_own(tmp_path: Path) -> None:
    path = tmp_path / "servers.toml"
    path.write_text('[mine]\nlike = "granian"\ninterfaces = ["wsgi"]\nvalues = { app = "shop:app" }\n')
    server = load_servers(path)["mine"]
    assert (server.interfaces, server.packages) == (("wsgi",), servers()["granian"].packages)
    words = rendered(server, tmp_path, interface="wsgi")
    assert "--interface\nwsgi" in words
    assert "--blocking-threads\n1\nshop:app" in words


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServersFileError, match=r"none\.toml: No such file"):
        load_servers(tmp_path / "none.toml")


def test_unsupported_scenarios_have_a_reason() -> None:
    sync = servers()["gunicorn-sync"]
    assert sync.cannot("async_sleep", ("asgi",)) == "has no asgi interface"
    assert sync.cannot("hello", ("asgi", "wsgi")) is None
    assert sync.cannot("multi_stream_h2", protocols=("h2",)) == "does not support h2"
    with pytest.raises(NotSupported, match="gunicorn-sync does not support h2"):
        render(sync, Settings(protocol="h2"), host="127.0.0.1", port=1, folder=Path("."))
    assert servers()["nginx"].cannot("echo")
    assert servers()["nginx"].cannot("hello") is None


def test_the_page_shows_definitions_that_load_and_names_every_key(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs/subjects.md").read_text()
    examples = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    for text in examples:
        path = tmp_path / "subjects.toml"
        path.write_text(text)
        server = load_servers(path)["mine"]
        assert render(server, Settings(), host="127.0.0.1", port=12345, folder=tmp_path).argv
    assert {key for key in KEYS if f"`{key}`" not in page} == set()
    assert {word for word in GIVEN if f"`{{{word}}}`" not in page} == {"bin"}
