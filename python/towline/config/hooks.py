"""Server hooks of a gunicorn configuration: functions that are called at moments of the supervisor and the workers."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError

HOOKS = {
    "on_starting": 1,
    "nworkers_changed": 3,
    "when_ready": 1,
    "on_reload": 1,
    "pre_fork": 2,
    "post_fork": 2,
    "post_worker_init": 1,
    "worker_int": 1,
    "worker_exit": 2,
    "child_exit": 2,
    "on_exit": 1,
}
"""Names and the number of their arguments."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """`functions` by name, and the `settings` of their file, which they find in `server.cfg`."""

    functions: Mapping[str, Callable[..., object]]
    settings: Mapping[str, Any]


def checked(where: str, name: str, value: Any) -> Callable[..., object]:
    """A hook that can be called. Raises `ConfigError` for another value, as gunicorn does."""
    count = HOOKS[name]
    if not callable(value):
        raise ConfigError(f"{where}: {name}: expected a function, not {value!r}")
    try:
        inspect.signature(value).bind(*range(count))
    except TypeError:
        arguments = "one argument" if count == 1 else f"{count} arguments"
        raise ConfigError(f"{where}: {name}: must take {arguments}") from None
    except ValueError:
        pass  # a function in C has no signature
    function: Callable[..., object] = value
    return function
