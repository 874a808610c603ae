"""Drivers on other machines: commands (`--driver`) and hosts behind a real OpenSSH server (`--hosts`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from towline.bench import record as records
from towline.bench.record import ExperimentRecord
from towline.bench.runner.plan import Options
from towline.errors import ConfigError

from tests.bench import namespaces
from tests.bench.comparisons import APP, compared, running, script
from tests.bench.loads import until_no_agent
from tests.bench.sshd import SSHD, on_loopback, on_machines
from tests.bench.test_run import program

TINY = ("--runs", "2", "--duration", "0.2", "--warm-up", "0.3", "--no-history", "--no-control", "-o", "out")
OTHER_ADDRESS = "127.0.0.2"
"""An address of this machine at which nothing is reached that listens at 127.0.0.1."""
AGENT = f"env TOWLINE_TEST=elsewhere {sys.executable} -m towline load --agent"
NO_SSHD = pytest.mark.skipif(SSHD is None, reason="no sshd (Debian: openssh-server)")


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Options for hosts `a` and `b`, whose agents have the name of the test as an argument; none is left."""
    mark: str = request.node.name.partition("[")[0]
    agent = f"{sys.executable} -X {mark} -m towline load --agent"
    with on_loopback(tmp_path) as sshd:
        yield ["--hosts", "a,b", "--ssh", sshd.ssh, "--agent-command", agent]
        until_no_agent(mark)


def measured(folder: Path, *arguments: str) -> tuple[list[ExperimentRecord], str]:
    """The experiments of a run that succeeds, and its output."""
    run = program(*arguments, *TINY, cwd=folder)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err + out
    return records.load(folder / "out" / "result.json.gz").experiments, out + err


def assert_complete(experiment: ExperimentRecord) -> None:
    assert not [one.failure for one in experiment.subjects if one.failure]
    assert experiment.slices
    assert all(one.answered and not one.failed for one in experiment.slices)
    assert all(one.driver_cpu_s > 0 and one.subject_cpu_s > 0 for one in experiment.slices)


# --- running servers ----------------------------------------------------------------------------------------


def test_a_command_is_the_driver(tmp_path: Path) -> None:
    with running(script(tmp_path, "quick")) as port:
        urls = [f"one=:{port}/", f"other=:{port}/x"]
        _, record = compared(tmp_path, *urls, "--driver", AGENT, "--no-control")
        (experiment,) = record.experiments
        assert any("the load comes from" in note for note in experiment.notes)
        assert all(one.answered and not one.failed for one in experiment.slices)
        for command, part in (
            ("false", "the generator ended"),
            ("sed -u s/^/no/", "is not JSON"),
            ("cat", "it is towline None"),
        ):
            run = program(*urls, "--driver", command, *TINY, cwd=tmp_path)
            _, err = run.communicate(timeout=200)
            assert run.returncode == 2, err
            assert "driver: " in err
            assert part in err


@NO_SSHD
def test_several_drivers_of_running_servers(tmp_path: Path, hosts: list[str]) -> None:
    """Two hosts send the load of each slice together."""
    with running(script(tmp_path, "quick")) as port:
        urls = [f"one=:{port}/", f"other=:{port}/x"]
        _, record = compared(tmp_path, *urls, *hosts, "--no-control")
        (experiment,) = record.experiments
        assert any("the load comes from a, b" in note for note in experiment.notes)
        assert_complete(experiment)
        assert all(one.histogram for one in experiment.slices)
        run = program(*urls, *hosts, "--hosts", "a,nowhere.invalid", *TINY, cwd=tmp_path)
        _, err = run.communicate(timeout=200)
        assert run.returncode == 2, err
        assert "no agent on nowhere.invalid: " in err


# --- servers that the bench starts --------------------------------------------------------------------------


@NO_SSHD
def test_several_drivers_of_the_catalogue(tmp_path: Path, hosts: list[str]) -> None:
    """`bench servers`: subjects here, at the given address alone; capacity, a rate, and the search for the peak."""
    what = (
        "servers",
        "-s",
        "hello",
        "-S",
        "towline,uvicorn-h11",
        "--interface",
        "asgi",
        "--protocol",
        "h1",
        "-c",
        "8",
    )
    experiments, _ = measured(
        tmp_path, *what, *hosts, "--address", OTHER_ADDRESS, "--rate", "200", "--find-peak"
    )
    assert [one.name for one in experiments] == ["hello_c8", "hello peak", "hello@200/s"]
    capacity, peak, at_rate = experiments
    assert_complete(capacity)
    assert_complete(at_rate)
    assert peak.slices
    assert any("the load comes from a, b" in note for note in capacity.notes)
    for subject in capacity.subjects:
        assert "ADDRESS:PORT" in " ".join(subject.command) or "ADDRESS --port PORT" in " ".join(
            subject.command
        )
    for one in at_rate.slices:
        assert one.target_per_s == 200


@NO_SSHD
def test_a_barrier_is_not_measured_by_several_drivers(tmp_path: Path, hosts: list[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[scenario]]\nname = "together"\nconnections = 4\nbarrier = true\n'
        '[[scenario.request]]\ntarget = "/"\nfields = ["Host: localhost"]\nexpect = { any_body = true }\n'
    )
    run = program(
        *("servers", "--scenarios", str(own), "-S", "towline", *hosts, "--address", OTHER_ADDRESS, *TINY),
        cwd=tmp_path,
    )
    _, err = run.communicate(timeout=200)
    assert run.returncode == 1, err
    assert "together is not measured: its barrier is within one thread" in err


def test_a_driver_of_applications_and_commands(tmp_path: Path) -> None:
    """A comparison whose servers are started here for a driver elsewhere."""
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
    serve = f"{sys.executable} -m towline serve shop:app --bind {{host}}:{{port}}"
    _, record = compared(
        tmp_path,
        *("--app", "app=shop:app", "--server", "towline", "--command", f"command={serve}"),
        *("--driver", AGENT, "--address", OTHER_ADDRESS, "--no-control"),
    )
    (experiment,) = record.experiments
    assert_complete(experiment)
    assert OTHER_ADDRESS not in str(record.settings)


def test_a_server_that_does_not_listen_at_the_address_is_named(tmp_path: Path) -> None:
    command = f"{sys.executable} {script(tmp_path, 'local')} {{port}}"
    run = program(
        *("--command", f"a={command}", "--command", f"b={command}", "--start-timeout", "1"),
        *("--driver", AGENT, "--address", OTHER_ADDRESS, *TINY),
        cwd=tmp_path,
    )
    _, err = run.communicate(timeout=200)
    assert run.returncode == 2, err
    assert f"nothing listens on its port at {OTHER_ADDRESS}" in err


@pytest.mark.skipif(
    SSHD is None or not namespaces.are_available(), reason="needs sshd, root and network namespaces"
)
def test_drivers_with_networks_of_their_own(tmp_path: Path) -> None:
    """The catalogue from two namespaces, for which this machine is another one."""
    with on_machines(tmp_path, 2, "200mbit") as (sshd, machines):
        experiments, _ = measured(
            tmp_path,
            *(
                "servers",
                "-s",
                "hello",
                "-S",
                "towline",
                "--interface",
                "asgi",
                "--protocol",
                "h1",
                "--no-latency",
            ),
            *("--hosts", "a,b", *sshd.options()),
            *("--address", machines[0][2]),
        )
        (experiment,) = experiments
        assert_complete(experiment)


# --- clients ------------------------------------------------------------------------------------------------


def test_a_responder_elsewhere(tmp_path: Path) -> None:
    """`bench clients`: the client here, the responder where the command runs it."""
    responder = f"env TOWLINE_TEST=elsewhere {sys.executable} -m towline.bench.responder"
    what = ("clients", "-s", "hello_sync,partial_write", "-S", "towline")
    experiments, out = measured(tmp_path, *what, "--driver", responder, "--address", OTHER_ADDRESS)
    assert experiments
    for experiment in experiments:
        assert experiment.scenario == "hello_sync"
        assert_complete(experiment)
        assert any(f"the responder is at {OTHER_ADDRESS}" in note for note in experiment.notes)
    assert "is not measured with a driver elsewhere: it is over a unix socket" in out


def test_a_command_without_a_responder_is_an_error(tmp_path: Path) -> None:
    run = program(
        *("clients", "-s", "hello_sync", "-S", "towline", "--driver", "false", "--address", OTHER_ADDRESS),
        *TINY,
        cwd=tmp_path,
    )
    _, err = run.communicate(timeout=200)
    assert run.returncode == 1
    assert "the responder: the helper ended" in err


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ([":1/", ":2/", "--driver", "cat", "--hosts", "a"], "one will do"),
        ([":1/", ":2/", "--ssh", "ssh"], "need --hosts"),
        (
            [":1/", ":2/", "--hosts", "a", "--address", "10.0.0.1"],
            "address: is that of servers that are started",
        ),
        (["--hosts", "a", "--app", "x:y"], "hosts: needs --address"),
        (["--driver", "cat", "--git", "main", "--app", "x:y"], "driver: needs --address"),
        (["servers", "--hosts", "a"], "hosts: needs --address"),
        (
            ["servers", "--address", "10.0.0.1"],
            "address: is that of servers that are started for drivers elsewhere",
        ),
        (
            ["servers", "--hosts", "a", "--address", "0.0.0.0"],
            "'0.0.0.0' is no IPv4 address that another machine",
        ),
        (["servers", "--hosts", "a", "--address", "myhost"], "'myhost' is no IPv4 address"),
        (
            ["servers", "--hosts", "a", "--address", "10.0.0.1", "--net", "rtt=1ms"],
            "net: the emulated network",
        ),
        (
            ["servers", "--driver", "cat", "--address", "10.0.0.1", "--find-peak"],
            "find-peak: --driver sends slices",
        ),
        (["clients", "--hosts", "a", "--address", "10.0.0.1"], "only servers have --hosts"),
        (
            ["quick", "--driver", "cat", "--address", "10.0.0.1"],
            "quick: only servers and clients have a --driver",
        ),
        (["servers", "--driver", "cat", "--address", "192.0.2.1"], "192.0.2.1 is no address of this machine"),
    ],
)
def test_options_are_checked(options: Sequence[str], part: str, tmp_path: Path) -> None:
    run = program(*options, cwd=tmp_path)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert part in err


def test_addresses_are_not_in_the_record() -> None:
    options = Options(hosts="a", ssh="ssh -F /x", agent_command="/x/towline", address="10.0.0.1")
    assert options.chosen() == {"hosts": "a"}
    with pytest.raises(ConfigError):
        Options(hosts="a")
