"""`--net` in a run: a relay of our own between driver and subject, and what it really does, for the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import ConfigError
from .._helper_process import HelperFailed
from ..net import BadConditions, Conditions, Measured, Relay, measure, parse
from ..record import Slice
from .protocol import Failed

RELAY_FULL = 0.9
"""Above this share of its core the relay may have been the limit."""


@dataclass(frozen=True)
class Network:
    """Conditions with what was measured of them on this machine."""

    asked: str
    conditions: Conditions
    measured: Measured
    seed: int
    cores: Sequence[int] | None
    """The relay's: the driver's, so that the subject's core is its own."""

    @classmethod
    def of(cls, text: str, seed: int, cores: Sequence[int] | None) -> Network:
        """Measures. Raises `ConfigError` for what are no conditions, `Failed` where the relay does not run."""
        try:
            conditions = parse(text)
        except BadConditions as error:
            raise ConfigError(f"net: {error}") from None
        try:
            return cls(text, conditions, measure(conditions, seed=seed, cores=cores), seed, cores)
        except (HelperFailed, OSError) as error:
            raise Failed(f"the emulated network: {error}") from None

    def relay(self, address: str) -> Relay:
        """To `address` ("127.0.0.1:8000"). Raises `Failed`."""
        try:
            return Relay(address, self.conditions, seed=self.seed, cores=self.cores)
        except HelperFailed as error:
            raise Failed(f"the emulated network: {error}") from None

    def plain(self) -> dict[str, Any]:
        """For the record."""
        return {
            "asked": self.asked,
            **{f"measured_{name}": value for name, value in asdict(self.measured).items()},
        }

    def said(self) -> str:
        """For the reader of a result."""
        found = self.measured
        return (
            f"network: {self.asked}; as measured {found.rtt_s * 1e3:.2f} ms ({found.rtt_least_s * 1e3:.2f} to "
            f"{found.rtt_most_s * 1e3:.2f}) there and back, {found.rate_bytes_per_s * 8 / 1e6:,.0f} Mbit/s"
        )


def with_relay(one: Slice, cpu_s: float, elapsed_s: float) -> Slice:
    """The relay works on the driver's core: what it used counts with it."""
    share = cpu_s / elapsed_s if elapsed_s > 0 else 0.0
    limit = one.driver_limit
    if limit is None and share > RELAY_FULL:
        limit = f"the relay that emulates the network used {share:.0%} of its core"
    return replace(
        one, driver_cpu_s=one.driver_cpu_s + cpu_s, driver_limit=limit,
        driver_busiest_share=min(one.driver_busiest_share + share, 1.0),
    )  # fmt: skip
