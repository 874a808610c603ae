"""examples/deployment: its commands run as processes, with nginx and, where it is installed, Prometheus; no containers."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.process import MAX_WAIT, Program, eventually, running
from tests.support.programs import executable
from tests.support.proxies import DEPLOYED_SOCKET, SETUPS

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
COMMAND: list[str] = SERVICES["app"]["command"]
METRICS = COMMAND[COMMAND.index("--metrics-address") + 1]


def mounts(service: str) -> Iterator[tuple[str, str]]:
    """(file or volume, path in the container)"""
    for entry in SERVICES[service].get("volumes", ()):
        source, target, *_ = entry.split(":")
        yield source, target


def mounted(service: str, path: str) -> Path:
    (source,) = (source for source, target in mounts(service) if target == path)
    return FOLDER / source


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, int]]:
    """The application with its command, on a socket of its own, and the port of nginx in front of it."""
    folder = tmp_path_factory.mktemp("deployed")
    upstream = f"unix:{folder}/http.sock"
    assert COMMAND[:3] == ["towline", "serve", "main:app"]
    replaced = {f"unix:{DEPLOYED_SOCKET}": upstream, METRICS: "127.0.0.1:0"}
    options = [replaced.get(word, word) for word in COMMAND[3:]]
    # A port as well, which tells the test that the server is ready.
    with running("main:app", *options, "--bind", "127.0.0.1:0", cwd=FOLDER) as program:
        with SETUPS["nginx"].running(upstream, folder) as port:
            yield program, port


def metrics_url(program: Program) -> str:
    (url,) = set(re.findall(r"http://127\.0\.0\.1:\d+/metrics", program.log))
    return str(url)


def test_requests_pass_through_nginx(deployed: tuple[Program, int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{deployed[1]}/", timeout=MAX_WAIT) as response:
        assert response.read().startswith(b"Hello 127.0.0.1, from worker ")


def test_events_pass_one_by_one(deployed: tuple[Program, int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{deployed[1]}/events", timeout=MAX_WAIT) as response:
        assert response.readline() == b"data: 0\n"
        first = time.monotonic()
        assert response.read().endswith(b"data: 4\n\n")
        assert time.monotonic() - first > 0.6, "the events came together"


def test_errors_are_counted_and_the_health_check_works(deployed: tuple[Program, int]) -> None:
    program, port = deployed
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/error", timeout=MAX_WAIT)

    def is_counted() -> bool:
        with urllib.request.urlopen(metrics_url(program), timeout=MAX_WAIT) as page:
            return (
                re.search(r'towline_requests_total\{[^}]*status="500"\} [1-9]', page.read().decode())
                is not None
            )

    eventually(is_counted, "the error in the metrics")
    script = SERVICES["app"]["healthcheck"]["test"][3]
    address = METRICS.replace("0.0.0.0", "127.0.0.1")
    assert address in script
    exec(script.replace(address, metrics_url(program).split("/")[2]), {})


def test_every_file_that_is_mounted_exists() -> None:
    files = [source for service in SERVICES for source, _ in mounts(service) if source.startswith(".")]
    assert len(files) == 6
    assert [source for source in files if not (FOLDER / source).is_file()] == []
    build = SERVICES["app"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
    assert (FOLDER / "requirements.txt").read_text().split() == ["towline"]


def test_the_services_find_each_other() -> None:
    socket_folder = str(Path(DEPLOYED_SOCKET).parent)
    assert ("socket", socket_folder) in set(mounts("app")) & set(mounts("nginx"))
    assert f"unix:{DEPLOYED_SOCKET}" in mounted("nginx", "/etc/nginx/conf.d/default.conf").read_text()
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"app:{METRICS.rpartition(':')[2]}"
    assert f"/etc/prometheus/{scraped['rule_files'][0]}" in {target for _, target in mounts("prometheus")}
    (source,) = yaml.safe_load((FOLDER / "grafana/datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    assert mounted("grafana", f"{provider['options']['path']}/towline.json").name == "towline.json"


def test_ports_are_open_to_this_machine_only_and_images_have_versions() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        if name != "app":
            assert re.search(r":v?\d+\.\d+", service["image"]), name


def test_containers_are_stopped_later_than_the_server() -> None:
    graceful = float(COMMAND[COMMAND.index("--timeout-graceful-shutdown") + 1])
    assert float(SERVICES["app"]["stop_grace_period"].removesuffix("s")) > graceful + 6


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text((FOLDER / "prometheus.yml").read_text())
    (tmp_path / "alerts.yml").write_text(mounted("prometheus", "/etc/prometheus/alerts.yml").read_text())
    command = [executable("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
