"""Options about the processes: directory, variables, umask, user, preloading, permissions of sockets, check, print."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.process import Program, eventually, request, running

APP = """
    import json, os

    IMPORTED = os.getpid()
    with open(os.environ.get("IMPORTS", os.devnull), "a") as file:
        file.write(f"{IMPORTED}\\n")

    def app(environ, start_response):
        mask = os.umask(0)
        os.umask(mask)
        body = json.dumps({
            "cwd": os.getcwd(), "env": dict(os.environ), "uid": os.getuid(), "gid": os.getgid(),
            "groups": os.getgroups(), "umask": mask, "imported": IMPORTED, "pid": os.getpid(),
        }).encode()
        start_response("200 OK", [("content-length", str(len(body)))])
        return [body]
"""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")


def readable_by_all(path: str) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in Path(path).resolve().parents)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Another user can read the file too.
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == tmp_path.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "state.py").write_text(textwrap.dedent(APP))
    return tmp_path


def state(program: Program) -> dict[str, object]:
    response = request(program.port, "/")
    assert response.status == 200
    found: dict[str, object] = json.loads(response.body)
    return found


def towline(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "towline", "serve", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=30
    )


def test_chdir_env_and_umask(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / ".env").write_text(
        "# settings\n\nexport PLAIN=value # comment\nSINGLE='a # b'\nDOUBLE=\"a\\nb\"\nHOME=/nowhere\nEMPTY=\n"
    )
    options = ["--chdir", str(folder), "--env-file", ".env", "--env", "GIVEN=a=b", "--umask", "027"]
    with running("state:app", *options, cwd=elsewhere) as program:
        found = state(program)
    env = found["env"]
    assert isinstance(env, dict)
    assert (found["cwd"], found["umask"]) == (str(folder), 0o027)
    assert [env[name] for name in ("PLAIN", "SINGLE", "DOUBLE", "GIVEN", "EMPTY")] == [
        "value",
        "a # b",
        "a\nb",
        "a=b",
        "",
    ]
    assert env["HOME"] == os.environ["HOME"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chdir", "absent"], "--chdir: cannot enter absent: No such file or directory"),
        (["--env-file", "absent"], "--env-file: cannot read absent: No such file or directory"),
        (["--env-file", "latin1"], "--env-file: cannot read latin1: not UTF-8"),
        (["--user", "nobody-at-all"], "--user: there is no user 'nobody-at-all'"),
        (["--group", "nobody-at-all"], "--group: there is no group 'nobody-at-all'"),
    ],
)
def test_an_unusable_value_is_one_line(folder: Path, options: list[str], message: str) -> None:
    (folder / "latin1").write_bytes(b"A=\xe9\n")
    completed = towline(folder, "state:app", "--port", "0", *options)
    assert (completed.returncode, completed.stderr) == (3, f"towline: {message}\n")


def test_an_env_file_is_read_as_python_dotenv_reads_it(folder: Path) -> None:
    text = (
        "\ufeffFIRST=1\r\nBASE=/srv\nPATHS=${BASE}/lib:${NOWHERE:-default}:${NOWHERE}\nMULTI='a\nb'\n"
        'ESCAPED="a\\tb"\nHASH=a#b\nSPACES=a b # c\nNAME\nno assignment here\nLAST=$BASE\n'
    )
    (folder / ".env").write_text(text, encoding="utf-8", newline="")
    (folder / "more").write_text("BASE=/other\nMORE=${BASE}\n")
    with running("state:app", "--env-file", ".env", "--env-file", "more", cwd=folder) as program:
        env = state(program)["env"]
    assert isinstance(env, dict)
    expected = {
        "FIRST": "1",
        "PATHS": "/srv/lib:default:",
        "MULTI": "a\nb",
        "ESCAPED": "a\tb",
        "HASH": "a#b",
        "SPACES": "a b",
        "LAST": "$BASE",
        "MORE": "/srv",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert "NAME" not in env


@AS_ROOT
def test_workers_run_with_another_group(folder: Path) -> None:
    path = folder / "app.sock"
    options = [
        "--group",
        "12345",
        "--bind",
        "127.0.0.1:0",
        "--bind",
        f"unix:{path}",
        "--uds-permissions",
        "660",
    ]
    with running("state:app", *options, cwd=folder) as program:
        found = state(program)
        assert (found["uid"], found["gid"], found["groups"]) == (0, 12345, [12345])
        assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (12345, 0o660)


@AS_ROOT
@pytest.mark.skipif(readable_by_all(os.__file__), reason="the interpreter is readable by every user")
def test_a_user_who_cannot_read_python_is_named(folder: Path) -> None:
    completed = towline(folder, "state:app", "--user", "nobody", "--port", "0")
    assert completed.returncode == 3
    assert "--user: nobody cannot read " in completed.stderr


@AS_ROOT
@pytest.mark.skipif(not readable_by_all(os.__file__), reason="the interpreter is only readable by root")
@pytest.mark.parametrize("preload", [(), ("--preload",)])
def test_workers_run_as_another_user(folder: Path, preload: tuple[str, ...]) -> None:
    path = folder / "app.sock"
    options = ["--user", "nobody", "--bind", "127.0.0.1:0", "--bind", f"unix:{path}", *preload]
    with running("state:app", *options, cwd=folder) as program:
        found = state(program)
        assert (path.owner(), stat.S_IMODE(path.stat().st_mode)) == ("nobody", 0o666)
        assert os.stat(f"/proc/{program.pid}").st_uid == 0
        assert 0 not in (found["uid"], found["gid"])
        assert isinstance(found["groups"], list)
        assert 0 not in found["groups"]


@pytest.mark.parametrize(("options", "mode"), [([], 0o666), (["--uds-permissions", "600"], 0o600)])
def test_permissions_of_unix_sockets(folder: Path, options: list[str], mode: int) -> None:
    path = folder / "app.sock"
    bind = ["--bind", "127.0.0.1:0", "--bind", f"unix:{path}", "--umask", "077"]
    with running("state:app", *bind, *options, cwd=folder):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert sock.recv(64).startswith(b"HTTP/1.1 200")


def test_preload_imports_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = folder / "imports"
    monkeypatch.setenv("IMPORTS", str(imports))
    with running("state:app", "--preload", "--workers", "3", cwd=folder) as program:
        found = state(program)
        assert found["imported"] == program.pid != found["pid"]
        before = set(program.children())
        program.signal(signal.SIGHUP)
        eventually(
            lambda: len(program.children()) == 3 and not before & set(program.children()), "new workers"
        )
        assert "with the code of the start (--preload)" in program.log
        assert state(program)["imported"] == program.pid
        assert imports.read_text().split() == [str(program.pid)]


def test_a_reload_with_preload_keeps_the_modules_of_the_application(folder: Path) -> None:
    """An import within a request finds the module that the application has, as Django's models need it."""
    (folder / "models.py").touch()
    (folder / "lazy.py").write_text(
        "import models\n"
        "def app(environ, start_response):\n"
        "    import models as now\n"
        "    body = b'the same' if now is models else b'another'\n"
        "    start_response('200 OK', [('content-length', str(len(body)))])\n"
        "    return [body]\n"
    )
    with running("lazy:app", "--preload", cwd=folder) as program:
        assert request(program.port, "/").body == b"the same"
        program.signal(signal.SIGHUP)
        eventually(lambda: "reloaded in" in program.log, "the reload")
        assert request(program.port, "/").body == b"the same"


def test_preload_fails_before_the_port_opens_and_names_threads(folder: Path) -> None:
    (folder / "broken.py").write_text("raise RuntimeError('boom')\n")
    completed = towline(folder, "broken:app", "--preload", "--port", "0")
    assert (completed.returncode, completed.stderr.splitlines()[-1]) == (3, "RuntimeError: boom")
    (folder / "threaded.py").write_text(
        "import threading, time\nfrom state import app\n"
        "threading.Thread(target=time.sleep, args=(60,), name='poller', daemon=True).start()\n"
    )
    with running("threaded:app", "--preload", cwd=folder) as program:
        assert "started threads when it was imported (poller)" in program.log
        assert request(program.port, "/").status == 200


def test_check_reads_everything_and_binds_nothing(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        good = towline(folder, "state:app", "--check", "--port", port)
        assert (good.returncode, good.stdout, good.stderr) == (0, "state:app: ready to serve (wsgi)\n", "")
    (folder / "asgi.py").write_text("async def app(scope, receive, send): ...\n")
    assert towline(folder, "asgi:app", "--check").stdout == "asgi:app: ready to serve (asgi)\n"
    for status, arguments, message in [
        (3, ["state:ap"], "'state' has no attribute 'ap'"),
        (3, ["state:app", "--ssl-certfile", "absent.pem"], "absent.pem: No such file"),
        (3, ["asgi:app", "--ssl-certfile", "absent.pem"], "absent.pem: No such file"),
        (3, ["asgi:app", "-b", ":0", "-b", "https://:0?certfile=absent.pem"], "absent.pem: No such file"),
        (3, ["asgi:app", "-b", "https://:0?certfile=absent.pem&http=3"], "absent.pem: No such file"),
        (2, ["state:app", "--forwarded-allow-ips", "10.0.0.0/99"], "forwarded_allow_ips"),
        (3, ["state:app", "--log-config", "absent.json"], "cannot read absent.json"),
        (3, ["state:app", "--interface", "asgi"], "state:app is a WSGI application"),
    ]:
        completed = towline(folder, *arguments, "--check")
        assert (completed.returncode, len(completed.stderr.splitlines())) == (status, 1), completed.stderr
        assert message in completed.stderr


def test_print_config_prints_an_equivalent_file(folder: Path) -> None:
    options = ["--workers", "3", "--header", "x-a: b", "--mount", "/x=a:b", "--umask", "027", "--compress"]
    options += [
        "--uds-permissions",
        "660",
        "--timeout-keep-alive",
        "1.5",
        "--env",
        "SECRET=hidden",
        "-b",
        "unix:a",
    ]
    printed = towline(folder, "state:app", "--print-config", *options)
    assert printed.returncode == 0
    assert "workers = 3\n" in printed.stdout
    assert "# threads = 1\n" in printed.stdout
    assert "hidden" not in printed.stdout
    (folder / "saved.toml").write_text(printed.stdout)
    again = towline(folder, "--config", "saved.toml", "--print-config")
    assert again.stdout == printed.stdout.replace("# env = (given, not shown)", "# env =")


def test_a_log_configuration_in_yaml(folder: Path) -> None:
    pytest.importorskip("yaml")
    (folder / "log.yaml").write_text(
        textwrap.dedent("""
            version: 1
            formatters: {short: {format: "YAML %(message)s"}}
            handlers: {out: {class: logging.StreamHandler, formatter: short}}
            loggers: {towline: {handlers: [out], level: INFO}}
        """)
    )
    with running("state:app", "--log-config", "log.yaml", cwd=folder) as program:
        assert "YAML Towline" in program.log
    (folder / "yaml.py").write_text("raise ImportError('not installed')\n")
    completed = towline(folder, "state:app", "--log-config", "log.yaml", PYTHONPATH=str(folder))
    assert completed.returncode == 3
    assert (
        "log.yaml: YAML needs the package pyyaml (pip install pyyaml), or use .json or .toml"
        in completed.stderr
    )


def test_run_is_serve() -> None:
    import towline

    assert towline.run is towline.serve
