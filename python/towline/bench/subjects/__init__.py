"""Server subjects: their definitions, and how they are started, monitored and stopped.

`servers()` returns the definitions, `Process` runs one. A subject is any command line; Towline is started like any
other.
"""

from __future__ import annotations

from .certificate import Certificate, make_certificate
from .installed import installed, versions
from .machine import cpu_ticks, describe, pressure_cpu_us, steal_share
from .model import Server, ServersFileError, load_servers, servers
from .orphans import kill_orphans
from .process import Process, StopReport, SubjectFailed
from .render import NotSupported, Settings, render, shown
from .resources import Peaks, Usage

__all__ = [
    "Certificate",
    "NotSupported",
    "Peaks",
    "Process",
    "Server",
    "ServersFileError",
    "Settings",
    "StopReport",
    "SubjectFailed",
    "Usage",
    "cpu_ticks",
    "describe",
    "installed",
    "kill_orphans",
    "load_servers",
    "make_certificate",
    "pressure_cpu_us",
    "render",
    "servers",
    "shown",
    "steal_share",
    "versions",
]
