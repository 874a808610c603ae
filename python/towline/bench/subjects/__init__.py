"""Server subjects: what can be measured, how each is started, watched and ended.

`servers()` gives the definitions, `Process` runs one. A subject is any command line; ours is started
exactly as a peer's.
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
