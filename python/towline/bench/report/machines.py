"""Which machines are alike: figures of different ones are never drawn on one line, nor compared without a warning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

FINGERPRINT = (
    "cpu",
    "architecture",
    "cores",
    "cores_usable",
    "cpu_quota_cores",
    "threads_per_core",
    "governor",
    "boost",
    "memory_bytes",
    "memory_limit_bytes",
    "virtualisation",
)
"""What the speed of a machine depends on and an update of its system does not change."""
MATTERS = (*FINGERPRINT, "kernel", "c_library", "container", "clock_source")


def fingerprint(machine: Mapping[str, object]) -> str:
    """Twelve digits; equal for like machines. It names nobody."""
    known = {key: _rounded(key, machine.get(key)) for key in FINGERPRINT}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """`governor: performance, then powersave`, for all that bears on figures."""
    found = []
    for key in MATTERS:
        one, other = (_rounded(key, each.get(key)) for each in (first, second))
        if one != other:
            found.append(f"{key.replace('_', ' ')}: {first.get(key)}, then {second.get(key)}")
    return found


def _rounded(key: str, value: object) -> object:
    """Memory to the gigabyte: what firmware keeps for itself differs from boot to boot."""
    return round(value / (1 << 30)) if key.endswith("_bytes") and isinstance(value, (int, float)) else value
