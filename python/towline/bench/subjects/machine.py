"""Properties of the machine that affect the figures, without anything that identifies it or its user."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

PROC, SYS = Path("/proc"), Path("/sys")


def describe() -> dict[str, Any]:
    """For `Record.machine`. Unknown properties are None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "cpu_quota_cores": _cpu_quota(),
        "threads_per_core": _threads_per_core(),
        "governor": _line(SYS / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "boost": _boost(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit_bytes": _memory_limit(),
        "system": platform.system(),
        "kernel": platform.release().split("-")[0],
        "c_library": " ".join(platform.libc_ver()).strip() or None,
        "virtualisation": _virtualisation(),
        "container": _container(),
        "clock_source": _line(SYS / "devices/system/clocksource/clocksource0/current_clocksource"),
        "open_files": _bounded(soft),
        "open_files_most": _bounded(hard),
        "accept_queue": _number(PROC / "sys/net/core/somaxconn"),
        "syn_queue": _number(PROC / "sys/net/ipv4/tcp_max_syn_backlog"),
        "local_ports": _line(PROC / "sys/net/ipv4/ip_local_port_range"),
        "time_wait_reuse": _number(PROC / "sys/net/ipv4/tcp_tw_reuse"),
        "load_average": os.getloadavg()[0],
        "pressure": pressure(),
    }


def runtime_versions() -> dict[str, str]:
    """Versions of the bench's own runtime."""
    return {"python": platform.python_version(), "implementation": sys.implementation.name}


def pressure() -> dict[str, float]:
    """Shares of the last ten seconds in which some task waited, by resource. Empty where the kernel does not count."""
    found = {}
    for name in ("cpu", "memory", "io"):
        for line in (_text(PROC / "pressure" / name) or "").splitlines():
            words = line.split()
            if words and words[0] == "some":
                found[name] = float(words[1].partition("=")[2]) / 100
    return found


def pressure_cpu_us() -> int | None:
    """Microseconds since boot in which some task waited for a core; subtract two readings. None: not counted.

    The subject's own threads count too if it has more of them than cores.
    """
    for line in (_text(PROC / "pressure/cpu") or "").splitlines():
        if line.startswith("some"):
            return int(line.rpartition("=")[2])
    return None


def cpu_ticks() -> tuple[int, int]:
    """Ticks stolen by the hypervisor, and all ticks, over all cores; give two readings to `steal_share`."""
    words = (_text(PROC / "stat") or "cpu 0").split("\n", 1)[0].split()[1:]
    numbers = [int(word) for word in words[:8]]  # guest time is in user time already
    return (numbers[7] if len(numbers) > 7 else 0, sum(numbers))


def stolen_s() -> float:
    """Time since boot that the hypervisor took from all cores together; subtract two readings."""
    return cpu_ticks()[0] / os.sysconf("SC_CLK_TCK")


def steal_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Stolen share of the time of all cores between two readings of `cpu_ticks`."""
    total = after[1] - before[1]
    return (after[0] - before[0]) / total if total > 0 else 0.0


# --- reading ----------------------------------------------------------------------------------------------


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _line(path: Path) -> str | None:
    text = _text(path)
    return " ".join(text.split()) if text and text.strip() else None


def _number(path: Path) -> int | None:
    try:
        return int(_line(path) or "")
    except ValueError:
        return None


def _bounded(limit: int) -> int | None:
    """None: without limit."""
    return None if limit == resource.RLIM_INFINITY else limit


def _cpu_model() -> str | None:
    for line in (_text(PROC / "cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _threads_per_core() -> int | None:
    """2: two usable cores may share one, and a generator then slows down its subject."""
    siblings = _line(SYS / "devices/system/cpu/cpu0/topology/thread_siblings_list")
    if siblings is None:
        return None
    count = 0
    for part in siblings.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _boost() -> bool | None:
    """Whether cores may exceed their nominal speed; then figures depend on the temperature."""
    for path, on in (("cpufreq/boost", 1), ("intel_pstate/no_turbo", 0)):
        value = _number(SYS / "devices/system/cpu" / path)
        if value is not None:
            return value == on
    return None


def _cpu_quota() -> float | None:
    """Cores that the control group may use; None: all."""
    words = (_line(SYS / "fs/cgroup/cpu.max") or "max").split()
    if len(words) == 2 and words[0] != "max":
        return int(words[0]) / int(words[1])
    quota, period = (
        _number(SYS / "fs/cgroup/cpu" / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    )
    return quota / period if quota and period and quota > 0 else None


def _memory_limit() -> int | None:
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(SYS / "fs/cgroup" / path)
        if limit is not None and limit < 1 << 60:
            return limit
    return None


def _virtualisation() -> str | None:
    """`virtual` when the processor reports a hypervisor; None when it does not."""
    flags = next(
        (line for line in (_text(PROC / "cpuinfo") or "").splitlines() if line.startswith("flags")), ""
    )
    return "virtual" if " hypervisor" in flags else None


def _container() -> str | None:
    """The kind of container, never its name."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    groups = _text(PROC / "1/cgroup") or ""
    return next((kind for kind in ("docker", "kubepods", "lxc", "containerd") if kind in groups), None)
