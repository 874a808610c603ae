"""Options for development."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import option
from .groups import DEVELOPMENT


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class DevelopmentOptions:
    """Reload on change."""

    reload: bool = option(
        False, "restart the worker when a file changes; means one worker", group=DEVELOPMENT
    )
    reload_dir: tuple[str, ...] = option(
        (),
        "directory watched instead of the application's",
        group=DEVELOPMENT,
        metavar="DIR",
        parse=lambda value: (value,),
        repeat=True,
    )
    reload_include: tuple[str, ...] = option(
        ("*.py",), "files to watch", group=DEVELOPMENT, metavar="GLOB", parse=kind.words, repeat=True
    )
    reload_exclude: tuple[str, ...] = option(
        (".*", "__pycache__", "node_modules"),
        "files and directories not to watch",
        group=DEVELOPMENT,
        metavar="GLOB",
        parse=kind.words,
        repeat=True,
    )


# fmt: on
