"""`--workers auto`: a worker for each processor that the server may use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from towline.server import processors

from tests.support.process import eventually, running

ALL = len(os.sched_getaffinity(0))
V2 = "0::/app\n"
V1 = "4:memory:/app\n3:cpu,cpuacct:/outside/app\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, ALL),
        (V2, {"app/cpu.max": "max 100000"}, ALL),
        (V2, {"app/cpu.max": "150000 100000"}, 2),
        (V2, {"app/cpu.max": "max 100000", "cpu.max": "50000 100000"}, 1),
        (V2, {"app/cpu.max": "100000 100000", "cpu.max": "150000 100000"}, 1),
        (V2, {"app/cpu.max": "100000000 100000"}, ALL),
        (V2, {"app/cpu.max": "nonsense"}, ALL),
        ("0::/\n", {"cpu.max": "1000 100000"}, 1),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, ALL),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "100000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1),
        (V1, {"memory/cpu.cfs_quota_us": "100000", "memory/cpu.cfs_period_us": "100000"}, ALL),
    ],
)
def test_quota_of_control_groups(groups: str, files: dict[str, str], expected: int, tmp_path: Path) -> None:
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()} | {"proc/self/cgroup": groups}
    for name, text in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    count, reason = processors.usable(most=128, root=str(tmp_path))
    assert count == min(expected, ALL)
    assert ("quota" in reason) == (expected < ALL or (expected == 2 == ALL and "1.5" in reason))


GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group with one and a half processors; removed at the end."""
    is_v1 = (GROUPS / "cpu/cpu.cfs_quota_us").exists()
    group = (GROUPS / "cpu" if is_v1 else GROUPS) / f"towline-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs the right to make a control group")
    try:
        if is_v1:
            (group / "cpu.cfs_quota_us").write_text("150000")
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text("150000 100000")
        else:
            pytest.skip("needs the controller cpu")
        yield group
    finally:
        group.rmdir()


@pytest.mark.skipif(ALL < 2, reason="needs two processors")
def test_the_quota_of_a_real_group(quota: Path) -> None:
    script = (
        f"open('{quota}/cgroup.procs', 'w').write('0');"
        "from towline.server.processors import usable; print(*usable(most=128))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout == f"2 the CPU quota of the control group is 1.5 of {ALL} processors\n", (
        result.stderr
    )


def test_the_number_is_bounded() -> None:
    assert processors.usable(most=1)[0] == 1


def test_a_server_has_a_worker_for_each_processor_of_its_affinity() -> None:
    """One processor, then all: the child inherits the affinity of this thread."""
    before = os.sched_getaffinity(0)
    for allowed in ({min(before)}, before):
        os.sched_setaffinity(0, allowed)
        try:
            with running("apps:asgi", "--workers", "auto") as program:
                count, reason = processors.usable(most=128)
                eventually(lambda: len(program.children()) == count, "the workers")  # noqa: B023
                assert f"{count} worker{'s'[: count > 1]}: {reason}" in program.log
        finally:
            os.sched_setaffinity(0, before)


def test_a_reloading_server_has_one_worker() -> None:
    with running("apps:asgi", "--workers", "auto", "--reload") as program:
        assert "one worker instead of auto, because of --reload" in program.log
        assert len(program.children()) == 2  # the other is the watcher
