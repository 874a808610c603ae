"""Similarity of machines: figures of different ones are never drawn on one line, nor compared without a warning."""

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
"""Properties that the speed depends on and that a system update does not change."""
MATTERS = (*FINGERPRINT, "kernel", "c_library", "container", "clock_source")


def fingerprint(machine: Mapping[str, object]) -> str:
    """Twelve digits; equal for similar machines, and anonymous."""
    known = {key: _rounded(key, machine.get(key)) for key in FINGERPRINT}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """`governor: performance, then powersave`, for all properties that affect the figures."""
    found = []
    for key in MATTERS:
        one, other = (_rounded(key, each.get(key)) for each in (first, second))
        if one != other:
            found.append(f"{key.replace('_', ' ')}: {first.get(key)}, then {second.get(key)}")
    return found


def _rounded(key: str, value: object) -> object:
    """Memory to the gigabyte: the part that firmware reserves differs from boot to boot."""
    return round(value / (1 << 30)) if key.endswith("_bytes") and isinstance(value, (int, float)) else value
