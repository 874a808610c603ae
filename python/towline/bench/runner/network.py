"""`--net` in a run: a network emulator between driver and subject, and its measured behaviour for the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import ConfigError
from .._helper_process import HelperFailed
from ..netem import BadConditions, Conditions, Measured, Netem, isolate, measure, parse
from ..record import Slice
from .protocol import Failed

NETEM_FULL = 0.9
"""Above this share of its core the network emulator may have been the limit."""


@dataclass(frozen=True)
class Network:
    """Network conditions, as requested and as measured on this machine."""

    requested: str
    conditions: Conditions
    measured: Measured
    seed: int
    cores: Sequence[int] | None
    """Cores of the emulator: the driver's, so that the subject's core is its own."""

    @classmethod
    def of(cls, text: str, seed: int, cores: Sequence[int] | None) -> Network:
        """Measures the conditions. Raises `ConfigError` for invalid ones, `Failed` if the emulator does not run."""
        try:
            conditions = parse(text)
            if conditions.packets:
                isolate()
        except BadConditions as error:
            raise ConfigError(f"net: {error}") from None
        try:
            return cls(text, conditions, measure(conditions, seed=seed, cores=cores), seed, cores)
        except (HelperFailed, OSError) as error:
            raise Failed(f"the emulated network: {error}") from None

    def netem(self, address: str) -> Netem:
        """An emulator in front of `address` ("127.0.0.1:8000"). Raises `Failed`."""
        try:
            return Netem(address, self.conditions, seed=self.seed, cores=self.cores)
        except HelperFailed as error:
            raise Failed(f"the emulated network: {error}") from None

    def plain(self) -> dict[str, Any]:
        """For the record."""
        return {
            "requested": self.requested,
            **{f"measured_{name}": value for name, value in asdict(self.measured).items()},
        }

    def description(self) -> str:
        """For the reader of a result."""
        found = self.measured
        return (
            f"network: {self.requested}; as measured {found.rtt_s * 1e3:.2f} ms ({found.rtt_least_s * 1e3:.2f} to "
            f"{found.rtt_most_s * 1e3:.2f}) round trip, {found.rate_bytes_per_s * 8 / 1e6:,.0f} Mbit/s over TCP, "
            + ("packet by packet" if self.conditions.packets else "through a proxy")
        )


def with_netem(one: Slice, cpu_s: float, elapsed_s: float) -> Slice:
    """Adds the emulator's CPU time to the driver's: they share a core."""
    share = cpu_s / elapsed_s if elapsed_s > 0 else 0.0
    limit = one.driver_limit
    if limit is None and share > NETEM_FULL:
        limit = f"the network emulator that emulates the network used {share:.0%} of its core"
    return replace(
        one,
        driver_cpu_s=one.driver_cpu_s + cpu_s,
        driver_limit=limit,
        driver_busiest_share=min(one.driver_busiest_share + share, 1.0),
    )
