"""`manage.py runserver` with the app `towline.django`, in a project as `startproject` makes it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import towline

from tests.support.process import MAX_WAIT, eventually

URLS = """
    import threading
    from django.http import HttpResponse
    from django.urls import path

    def hello(request):
        return HttpResponse(f"hello {type(request).__name__} {threading.active_count()}")
    def error(request):
        raise RuntimeError("as asked")
    def slow(request):
        import time
        time.sleep(60)
    urlpatterns = [path("hello", hello), path("error", error), path("slow", slow)]
"""
BOTH = pytest.mark.parametrize("interface", ["WSGI", "ASGI"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "django", "startproject", "mysite", tmp_path], check=True, timeout=60
    )
    settings = tmp_path / "mysite/settings.py"
    settings.write_text(
        settings.read_text().replace("INSTALLED_APPS = [", 'INSTALLED_APPS = [\n    "towline.django",')
        + '\nSTATICFILES_DIRS = [BASE_DIR / "assets"]\n'
    )
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/site.css").write_text("body {}")
    write(tmp_path / "mysite/urls.py", URLS)
    return tmp_path


def write(path: Path, text: str) -> None:
    lines = text.strip("\n").splitlines()
    path.write_text("\n".join(line[4:] for line in lines) + "\n")


def add_setting(project: Path, line: str) -> None:
    with (project / "mysite/settings.py").open("a") as file:
        file.write(f"\n{line}\n")


class RunServer:
    """The command in a process group of its own, as a terminal starts it."""

    def __init__(self, project: Path, *arguments: str) -> None:
        self._log = project / "log"
        command = [sys.executable, "manage.py", "runserver", *(arguments or ["127.0.0.1:0"])]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=project,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def url(self, starts: int = 1) -> str:
        """The address after this many starts."""
        found: list[str] = []

        def has_started() -> bool:
            found[:] = re.findall(r"Starting development server at (http\S+)/\n", self.log)
            return len(found) >= starts or self.process.poll() is not None

        eventually(has_started, "the start")
        assert self.process.poll() is None, self.log
        return found[-1]

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit status. The time is that in which somebody would press it again."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(5)


@contextlib.contextmanager
def runserver(project: Path, *arguments: str) -> Iterator[RunServer]:
    server = RunServer(project, *arguments)
    try:
        yield server
    except BaseException:
        sys.stderr.write(server.log)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(MAX_WAIT)


def get(url: str) -> towline.Response:
    return towline.get(url, timeout=MAX_WAIT)


@BOTH
@pytest.mark.parametrize("reload", [(), ("--noreload",)], ids=["reload", "noreload"])
def test_what_runserver_does(interface: str, reload: tuple[str, ...], project: Path) -> None:
    if interface == "ASGI":
        add_setting(project, 'ASGI_APPLICATION = "mysite.asgi.application"')
    with runserver(project, "127.0.0.1:0", *reload) as server:
        url = server.url()
        response = get(f"{url}/hello")
        assert response.text.startswith(f"hello {interface}Request")
        assert response.headers["server"] == "towline"
        assert get(f"{url}/static/site.css").text == "body {}"
        assert get(f"{url}/static/missing.css").status_code == 404
        error = get(f"{url}/error")
        assert (error.status_code, "RuntimeError at /error" in error.text) == (500, True)
        eventually(lambda: '"GET /error HTTP/1.1" 500' in server.log, "the line of a request")
        for text in (
            "System check identified",
            "unapplied migration(s)",
            f"serves {interface}",
            "using settings 'mysite.settings'",
        ):
            assert text in server.log
        assert server.interrupt() == 0


@BOTH
def test_a_change_of_a_file_is_seen_in_the_next_request(interface: str, project: Path) -> None:
    """Django's autoreloader starts a process anew, also while a request of the old one still runs."""
    if interface == "ASGI":
        add_setting(project, 'ASGI_APPLICATION = "mysite.asgi.application"')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with runserver(project, str(port)) as server:
        url = server.url()
        with socket.create_connection(("127.0.0.1", port)) as busy:
            busy.sendall(b"GET /slow HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            write(project / "mysite/urls.py", URLS.replace("hello {type", "changed {type"))

            def is_noticed() -> bool:
                # Django sees only what changes after its first look.
                os.utime(project / "mysite/urls.py")
                return server.log.count("Watching for file changes") == 2

            eventually(is_noticed, "the notice of the change")
            assert server.url(2) == url
        assert get(f"{url}/hello").text.startswith("changed")
        assert server.interrupt() == 0
        assert "Fatal" not in server.log


@BOTH
def test_ctrl_c_does_not_wait_for_a_request(interface: str, project: Path) -> None:
    if interface == "ASGI":
        add_setting(project, 'ASGI_APPLICATION = "mysite.asgi.application"')
    for reload in ((), ("--noreload",)):
        with runserver(project, "127.0.0.1:0", *reload) as server:
            port = int(server.url().rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as busy:
                busy.sendall(b"GET /slow HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                get(f"http://127.0.0.1:{port}/hello")
                server.interrupt()
                assert "panicked" not in server.log


def test_flags_of_static_files(project: Path) -> None:
    with runserver(project, "127.0.0.1:0", "--nostatic") as server:
        assert get(f"{server.url()}/static/site.css").status_code == 404
    add_setting(project, 'DEBUG = False\nALLOWED_HOSTS = ["*"]')
    for flag, status in (("--noreload", 404), ("--insecure", 200)):
        for setting in ("", 'ASGI_APPLICATION = "mysite.asgi.application"'):
            add_setting(project, setting)
            with runserver(project, "127.0.0.1:0", flag) as server:
                assert get(f"{server.url()}/static/site.css").status_code == status
        add_setting(project, "ASGI_APPLICATION = None")


def test_nothreading_runs_one_request_at_a_time(project: Path) -> None:
    write(
        project / "mysite/urls.py",
        URLS.replace("threading.active_count()", "threading.current_thread().name"),
    )
    names = []
    for flags in ((), ("--nothreading",)):
        with runserver(project, "127.0.0.1:0", "--noreload", *flags) as server:
            names.append(get(f"{server.url()}/hello").text.split()[-1])
    assert names[0] != names[1] == "MainThread"


def test_addresses(project: Path) -> None:
    with runserver(project, "0:0") as server:
        assert get(f"{server.url().replace('0.0.0.0', '127.0.0.1')}/hello").status_code == 200
        port = server.url().rpartition(":")[2]
        with runserver(project / ".", f"127.0.0.1:{port}", "--noreload") as second:
            assert second.process.wait(MAX_WAIT) == 1
            assert "Error: That port is already in use." in second.log
    with runserver(project, "[::1]:0") as server:
        assert server.url().startswith("http://[::1]:")
        assert get(f"{server.url()}/hello").status_code == 200
    with runserver(project, "-6", "0") as server:
        assert server.url().startswith("http://[::1]:")


def test_an_app_before_ours_keeps_its_runserver_and_a_check_says_so(project: Path) -> None:
    settings = project / "mysite/settings.py"
    text = settings.read_text().replace('    "towline.django",\n', "")
    settings.write_text(text + '\nINSTALLED_APPS += ["towline.django"]\n')
    command = [sys.executable, "manage.py", "check"]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60)
    assert "towline.W001) runserver is that of django.contrib.staticfiles" in result.stderr
    assert "Put 'towline.django' before 'django.contrib.staticfiles'" in result.stderr


def test_without_static_files(project: Path) -> None:
    settings = project / "mysite/settings.py"
    settings.write_text(settings.read_text().replace("    'django.contrib.staticfiles',\n", ""))
    with runserver(project) as server:
        assert get(f"{server.url()}/hello").status_code == 200
        assert get(f"{server.url()}/static/site.css").status_code == 404
    add_setting(project, 'ASGI_APPLICATION = "mysite.nowhere.application"')
    with runserver(project, "--noreload") as server:
        assert server.process.wait(MAX_WAIT) == 1
        assert "ASGI_APPLICATION: cannot import mysite.nowhere.application" in server.log
