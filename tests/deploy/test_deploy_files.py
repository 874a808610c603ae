"""The files in deploy/: their commands are accepted by the server and their metrics exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.feature_server import serving

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/app.service"
MANIFEST = DEPLOY / "kubernetes/app.yaml"
DOCKERFILE = DEPLOY / "docker/Dockerfile"
APPLICATION = "async def app(scope, receive, send): ...\n"


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def container() -> tuple[Any, Any]:
    spec = documents(MANIFEST)[0]["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


def unit_command() -> list[str]:
    found = re.search(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found
    return shlex.split(found[1])


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def check(command: list[str], directory: Path) -> None:
    (directory / "main.py").write_text(APPLICATION)
    assert command[0].endswith("towline")
    run = [sys.executable, "-m", "towline", *command[1:], "--check"]
    result = subprocess.run(run, cwd=directory, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_the_server_accepts_the_command_of_the_unit(tmp_path: Path) -> None:
    check(unit_command(), tmp_path)


def test_the_server_accepts_the_command_of_the_manifest(tmp_path: Path) -> None:
    check(container()[1]["command"], tmp_path)


def instructions(name: str) -> list[str]:
    """The arguments of every such instruction of the Dockerfile."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", text, re.MULTILINE)


def image_command() -> list[str]:
    command: list[str] = json.loads(instructions("CMD")[-1])
    return command


def test_the_server_accepts_the_command_of_the_image(tmp_path: Path) -> None:
    check(image_command(), tmp_path)


def test_the_health_check_of_the_image_reports_a_server_that_serves() -> None:
    """Docker takes status 0 as healthy, and any other as unhealthy."""
    program, *arguments, url = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
    own = f"127.0.0.1:{value(image_command(), '--port')}{value(image_command(), '--health-path')}/live"
    assert (program, url) == ("towline", f"http://{own}")

    def status(port: int) -> int:
        command = [sys.executable, "-m", program, *arguments, url.replace(":8000/", f":{port}/")]
        return subprocess.run(command, capture_output=True, timeout=60).returncode

    with serving("asgi", health_path="/healthz") as server:
        assert status(server.port) == 0
        port = server.port
    assert status(port) == 7


def test_the_image_has_two_stages_and_runs_without_privileges() -> None:
    assert len(instructions("FROM")) == 2
    assert instructions("USER") == ["10001"]
    assert instructions("EXPOSE") == [value(image_command(), "--port")]
    last = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    assert last.index("USER ") < last.index("\nCMD ")


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint is installed on Linux only")
@pytest.mark.parametrize(
    "file", [DOCKERFILE, ROOT / ".devcontainer/Dockerfile", *(ROOT / "examples").rglob("Dockerfile")]
)
def test_hadolint_accepts_the_dockerfiles(file: Path) -> None:
    lint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([lint, file], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_an_unknown_option_fails_the_check(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check([*unit_command(), "--no-such-option"], tmp_path)


def test_systemd_waits_longer_than_the_server() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found
    assert int(found[1]) > float(value(unit_command(), "--timeout-graceful-shutdown")) + 6


def test_kubernetes_waits_longer_than_the_server() -> None:
    spec, app = container()
    pause = float(value(app["command"], "--drain-delay"))
    assert pause > 0
    assert "lifecycle" not in app
    stop = float(value(app["command"], "--timeout-graceful-shutdown"))
    assert spec["terminationGracePeriodSeconds"] > pause + stop + 6


KUBERNETES = ["1.30", "1.37"]
"""Two versions, years apart: the manifest needs nothing that came or went between them."""


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifest_satisfies_the_schemas_of_kubernetes(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in documents(MANIFEST):
        validator.validate(document, version, strict=True)
    # The schemas find what is wrong: a misspelt field, and a value of the wrong type.
    for field, wrong in (("terminationGracePeriod", 45), ("terminationGracePeriodSeconds", "45s")):
        changed = documents(MANIFEST)[0]
        changed["spec"]["template"]["spec"][field] = wrong
        with pytest.raises(validator.ValidationError):
            validator.validate(changed, version, strict=True)


def test_probes_use_the_health_path_and_a_declared_port() -> None:
    app = container()[1]
    health = value(app["command"], "--health-path")
    assert app["readinessProbe"]["httpGet"] == {"path": f"{health}/ready", "port": "metrics"}
    assert app["livenessProbe"]["httpGet"] == {"path": f"{health}/live", "port": "metrics"}
    port = next(port["containerPort"] for port in app["ports"] if port["name"] == "metrics")
    assert value(app["command"], "--metrics-address").endswith(f":{port}")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # The executable is not installed here; systemd verifies that it exists.
    text = UNIT.read_text().replace(unit_command()[0], "/bin/true")
    (tmp_path / "app.service").write_text(text)
    run = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "app.service")]
    result = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert "app.service" not in result.stderr, result.stderr
    assert result.returncode == 0, result.stderr
