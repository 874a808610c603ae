"""The bench: measures HTTP servers and clients and compares them, with statistically sound verdicts.

Servers and clients run as separate processes, Towline's like any other. From Python: `compare` measures your own
application (docs/measure.md); `load`, `save` and `analyse` read and write results.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import Analysis, Comparison, Estimate, analyse
    from .api import App, Command, Comparisons, compare
    from .record import Record, load, save
    from .verdict import Verdict

_HOMES = {
    "Analysis": "analysis",
    "App": "api",
    "Command": "api",
    "Comparison": "analysis",
    "Comparisons": "api",
    "Estimate": "analysis",
    "Record": "record",
    "Verdict": "verdict",
    "analyse": "analysis",
    "compare": "api",
    "load": "record",
    "save": "record",
}

__all__ = [
    "Analysis",
    "App",
    "Command",
    "Comparison",
    "Comparisons",
    "Estimate",
    "Record",
    "Verdict",
    "analyse",
    "compare",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
