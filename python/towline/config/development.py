"""Options for development."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import Section, each, option


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class DevelopmentOptions(Section, group="development", summary="reload on change"):
    reload: bool = option(False, "one worker, restarted when a file changes")
    reload_dir: tuple[str, ...] = each((), "directory to watch instead of the application's", metavar="DIR")
    reload_include: tuple[str, ...] = option(
        ("*.py",), "files to watch", metavar="GLOB", parse=kind.words, repeat=True)
    reload_exclude: tuple[str, ...] = option(
        (".*", "__pycache__", "node_modules"), "files and directories not to watch", metavar="GLOB",
        parse=kind.words, repeat=True)


# fmt: on
