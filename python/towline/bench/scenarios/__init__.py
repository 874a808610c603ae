"""The catalogue of scenarios: every benchmark that Towline can run, as data (docs/scenarios.md)."""

from .loader import catalogue, load, sections
from .model import (
    PROTOCOLS,
    VERSIONS,
    Body,
    Expect,
    Limits,
    Load,
    Protocol,
    Published,
    Request,
    Scenario,
    Section,
    SendMode,
)
from .session import session_config
from .table import ScenarioError

__all__ = [
    "PROTOCOLS",
    "VERSIONS",
    "Body",
    "Expect",
    "Limits",
    "Load",
    "Protocol",
    "Published",
    "Request",
    "Scenario",
    "ScenarioError",
    "Section",
    "SendMode",
    "catalogue",
    "load",
    "sections",
    "session_config",
]
