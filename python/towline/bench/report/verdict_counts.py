"""Counts of the verdicts, as coloured labels."""

from __future__ import annotations

from collections.abc import Sequence

from ..verdict import Verdict
from .markup import Markup, el
from .svg import VERDICT_CLASSES
from .view import ExperimentView, tally


def tiles(shown: Sequence[ExperimentView], *, controls: bool = False) -> Markup | None:
    """Empty if nothing was compared."""
    counted = tally(list(shown), controls=controls)
    found = [
        el("span", el("b", counted[one]), " ", one.value, class_=f"tile {VERDICT_CLASSES[one]}")
        for one in Verdict
        if counted[one]
    ]
    return el("p", found, class_="tiles") if found else None
